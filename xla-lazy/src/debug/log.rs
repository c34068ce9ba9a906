//! What `XLA_DEBUG=log` prints.

use std::fmt;
use xla_core::Config;

/// Whether the log was asked for.
pub(crate) fn is_on() -> bool {
    Config::global().is_ok_and(|config| config.debug.log)
}

/// Prints a line to standard error, after the replica's rank where there are several.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    match xla_runtime::context::current("log") {
        Ok(context) if xla_runtime::context::in_launch() => {
            eprintln!("[xla {}] {line}", context.rank());
        }
        _ => eprintln!("[xla] {line}"),
    }
}
