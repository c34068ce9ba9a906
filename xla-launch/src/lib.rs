//! How many replicas, on which devices, started and supervised.
