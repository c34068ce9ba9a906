//! What a launch will do, as a value: options and environment in, a [`Plan`] out, nothing started.

use std::fmt;
use xla_core::config::LaunchMode;
use xla_core::{Device, Error, Result};
use xla_runtime::context::Mode;

/// What the program asked for; what is `None` is decided by the environment, then by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// How many devices to use: the first so many.
    pub devices: Option<usize>,
    /// One replica on the calling thread (`true`), or threads whatever the environment says
    /// (`false`).
    pub debug_single_process: Option<bool>,
}

/// Which replicas run, how, and on which devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How the replicas are run.
    pub mode: Mode,
    /// The device of each replica, by rank.
    pub devices: Vec<Device>,
}

impl Plan {
    /// Number of replicas.
    pub fn world_size(&self) -> usize {
        self.devices.len()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Mode::Debug => f.write_str("single-process debug:")?,
            _ => write!(f, "{} thread(s):", self.world_size())?,
        }
        for (rank, device) in self.devices.iter().enumerate() {
            write!(f, " rank {rank} on {device}")?;
        }
        Ok(())
    }
}

/// Decides how to launch: the program's options come first, then `XLA_LAUNCH_MODE`, then one
/// thread for each of all devices.
///
/// `device_count` is called only where the answer depends on it, because it starts the client.
///
/// # Errors
/// [`Error::Argument`] when no device is asked for, [`Error::NoSuchDevice`] when more are than
/// exist, and `device_count`'s own error.
///
/// ```
/// use xla_launch::plan::{Options, plan};
/// let options = Options { devices: Some(2), ..Options::default() };
/// let plan = plan(&options, None, || Ok(4))?;
/// assert_eq!(plan.to_string(), "2 thread(s): rank 0 on xla:0 rank 1 on xla:1");
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn plan(
    options: &Options,
    environment: Option<LaunchMode>,
    device_count: impl FnOnce() -> Result<usize>,
) -> Result<Plan> {
    if options.devices == Some(0) {
        return Err(Error::argument("launch", "devices", "at least 1", 0));
    }
    let debug = options
        .debug_single_process
        .unwrap_or(environment == Some(LaunchMode::Debug));
    if debug {
        return Ok(Plan {
            mode: Mode::Debug,
            devices: vec![Device::new(0)],
        });
    }
    let count = device_count()?;
    let replicas = options.devices.unwrap_or(count);
    if replicas > count {
        return Err(Error::NoSuchDevice {
            asked: replicas - 1,
            count,
        });
    }
    Ok(Plan {
        mode: Mode::Threads,
        devices: (0..replicas).map(Device::new).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plan as text, or the error's.
    fn check(
        devices: impl Into<Option<usize>>,
        debug: impl Into<Option<bool>>,
        environment: impl Into<Option<LaunchMode>>,
        count: usize,
        expected: &str,
    ) {
        let options = Options {
            devices: devices.into(),
            debug_single_process: debug.into(),
        };
        let got = match plan(&options, environment.into(), || Ok(count)) {
            Ok(plan) => plan.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, expected);
    }

    const DEBUG: &str = "single-process debug: rank 0 on xla:0";
    const TWO: &str = "2 thread(s): rank 0 on xla:0 rank 1 on xla:1";

    #[test]
    fn threads_over_all_devices_by_default() {
        check(None, None, None, 1, "1 thread(s): rank 0 on xla:0");
        check(None, None, None, 2, TWO);
        check(2, None, None, 4, TWO);
        check(2, None, LaunchMode::Threads, 4, TWO);
    }

    #[test]
    fn options_come_before_the_environment() {
        check(None, None, LaunchMode::Debug, 2, DEBUG);
        check(None, true, None, 2, DEBUG);
        check(None, true, LaunchMode::Threads, 2, DEBUG);
        check(None, false, LaunchMode::Debug, 2, TWO);
        check(2, true, None, 2, DEBUG);
    }

    #[test]
    fn devices_that_do_not_exist_are_errors() {
        check(
            0,
            None,
            None,
            4,
            "launch: devices: expected at least 1, got 0",
        );
        check(
            5,
            None,
            None,
            4,
            "device xla:4 does not exist: this process addresses 4 device(s), xla:0 to xla:3; set \
             CPU_NUM_DEVICES before the first use for more CPU devices",
        );
    }

    #[test]
    fn debug_mode_starts_no_client() {
        let options = Options {
            debug_single_process: Some(true),
            ..Options::default()
        };
        let plan = plan(&options, None, || unreachable!("not asked")).unwrap();
        assert_eq!((plan.mode, plan.world_size()), (Mode::Debug, 1));
    }
}
