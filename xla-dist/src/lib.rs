//! Process groups and collectives recorded as operators.
