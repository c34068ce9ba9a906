//! Where and when something was measured.

use std::fs;
use std::thread;

use serde::Serialize;

/// What of a machine explains a measurement; empty or 0 where the system does not tell.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// The day, as in `2026-01-31`, by Greenwich.
    pub(super) date: String,
    /// The processor's model.
    pub(super) cpu: String,
    /// How many of its cores this process may use.
    pub(super) cores: usize,
    pub(super) memory_gib: f64,
    /// The kernel's name and release.
    pub(super) kernel: String,
}

impl Machine {
    pub(super) fn read() -> Machine {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let cpu = text("/proc/cpuinfo");
        let memory = text("/proc/meminfo");
        let kib = field(&memory, "MemTotal").and_then(|kib| kib.split(' ').next()?.parse().ok());
        let release = text("/proc/sys/kernel/osrelease");
        Machine {
            date: time::OffsetDateTime::now_utc().date().to_string(),
            cpu: field(&cpu, "model name").unwrap_or_default().to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib.map_or(0.0, |kib: f64| (kib / 1024.0 / 1024.0).round()),
            kernel: format!("{} {}", std::env::consts::OS, release.trim()),
        }
    }
}

/// The value of the first line `key : value`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "vendor_id\t: X\nmodel name\t: A B @ 2 GHz\nmodel name\t: C\n";
        assert_eq!(field(text, "model name"), Some("A B @ 2 GHz"));
        assert_eq!(field(text, "model"), None);
    }

    #[test]
    fn the_date_sorts() {
        let date = Machine::read().date;
        let digits: Vec<usize> = date.split('-').map(str::len).collect();
        assert_eq!(digits, [4, 2, 2], "{date}");
    }
}
