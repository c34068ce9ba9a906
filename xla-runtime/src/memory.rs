//! Whether a program's memory is there, asked before it is started: an allocation that fails inside a
//! plugin costs the step, and one that the system grants but cannot back costs the process.

use crate::client::Client;
use crate::executable::CompiledMemory;
use std::fs;
use xla_core::{Device, Error, Result};

/// Programs that need less are started without asking the system: it takes some tens of microseconds,
/// which is nothing beside what such a program does with its memory.
const ASK_FROM: u64 = 64 << 20;

/// What a program takes on a device while it runs, besides its arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    bytes: u64,
}

impl Need {
    pub(crate) fn of(memory: &CompiledMemory) -> Self {
        // Some results take over an argument's memory.
        let results = memory.outputs.saturating_sub(memory.aliased);
        Need {
            bytes: results.saturating_add(memory.temporaries),
        }
    }

    /// Compares with what a device has left, of which so many run the program at once.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn check(self, client: &Client, ordinal: usize, devices: usize) -> Result<()> {
        let needed = self.bytes;
        let short = |needed, available| {
            Err(Error::OutOfMemory {
                device: Device::new(ordinal),
                needed,
                available: Some(available),
                message: String::new(),
                largest: Vec::new(),
            })
        };
        if let Some(limit) = client.memory_limit() {
            let available = limit.saturating_sub(client.live_bytes(ordinal)?);
            if needed > available {
                return short(needed, available);
            }
        }
        if needed < ASK_FROM {
            return Ok(());
        }
        // The devices of a CPU client share the host's memory.
        let (available, needed) = if client.is_cpu() {
            (host(), needed.saturating_mul(devices as u64))
        } else {
            (on_device(client, ordinal), needed)
        };
        match available {
            Some(available) if needed > available => short(needed, available),
            _ => Ok(()),
        }
    }
}

fn on_device(client: &Client, ordinal: usize) -> Option<u64> {
    let stats = client.device_memory(ordinal).ok()??;
    Some(stats.bytes_limit?.saturating_sub(stats.bytes_in_use))
}

/// What the system can still give to this process: free and reclaimable memory and swap, within the
/// limit of its control group. `None` where it does not say.
fn host() -> Option<u64> {
    let of_system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available(&text));
    match (of_system, of_group()) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let number = line.trim().trim_end_matches("kB").trim();
        number.parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    Some(kibibytes("MemAvailable:")? + kibibytes("SwapFree:").unwrap_or(0))
}

/// Control groups of version 2, as containers see them.
fn of_group() -> Option<u64> {
    let folder = "/sys/fs/cgroup";
    let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
    let max = read("memory.max")?.trim().parse::<u64>().ok()?;
    let current = read("memory.current")?.trim().parse::<u64>().ok()?;
    // Cached pages of files go when memory is needed.
    let cached = read("memory.stat")
        .and_then(|text| {
            let line = text.lines().find_map(|l| l.strip_prefix("inactive_file "));
            line?.trim().parse::<u64>().ok()
        })
        .unwrap_or(0);
    Some(max.saturating_sub(current.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_counts_as_available() {
        let text = "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   20 kB\nSwapFree: 3 kB\n";
        assert_eq!(available(text), Some(23 << 10));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_system_says() {
        assert!(host().is_some_and(|bytes| bytes > 0));
    }
}
