//! Configuration: the environment, read once and checked.

use crate::{DeviceKind, Error, Result};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// How long anything waits before it becomes an error, unless configured: PyTorch's 30 minutes.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// What the environment says, under the ecosystem's names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// `PJRT_DEVICE`: the kind of device to use, `CPU` when unset.
    pub device: DeviceKind,
    /// `CPU_NUM_DEVICES`: how many devices the CPU client offers.
    pub cpu_num_devices: Option<usize>,
    /// `PJRT_LIBRARY_PATH`: the plugin to load, before any other.
    pub pjrt_library_path: Option<PathBuf>,
    /// `TPU_LIBRARY_PATH`: the plugin to load for a TPU.
    pub tpu_library_path: Option<PathBuf>,
    /// `XLA_LAUNCH_MODE`: `threads` or `debug`.
    pub launch_mode: Option<LaunchMode>,
    /// `XLA_DEADLINE_SECONDS`: how long anything waits before it becomes an error.
    pub deadline: Duration,
}

/// What `XLA_LAUNCH_MODE` may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaunchMode {
    /// One thread of this process for each device.
    Threads,
    /// `f(0)` on the calling thread, world size 1.
    Debug,
}

impl Config {
    /// The process's configuration, read from the environment at the first call.
    ///
    /// # Errors
    /// [`Error::Config`] naming the variable, what it may be and what it was; the same at every
    /// call.
    pub fn global() -> Result<&'static Config> {
        static GLOBAL: OnceLock<Result<Config>> = OnceLock::new();
        GLOBAL
            .get_or_init(|| Config::from_lookup(|name| std::env::var(name).ok()))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The configuration that a set of variables gives; an empty value counts as unset.
    ///
    /// # Errors
    /// As [`Config::global`].
    ///
    /// ```
    /// use xla_core::Config;
    /// let config = Config::from_lookup(|name| (name == "CPU_NUM_DEVICES").then(|| "4".to_string()))?;
    /// assert_eq!(config.cpu_num_devices, Some(4));
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config> {
        let get = |name: &str| {
            lookup(name)
                .map(|v| v.trim().to_owned())
                .filter(|v| !v.is_empty())
        };
        let device = match get("PJRT_DEVICE")
            .map(|v| v.to_ascii_uppercase())
            .as_deref()
        {
            None | Some("CPU") => DeviceKind::Cpu,
            Some("CUDA" | "GPU") => DeviceKind::Cuda,
            Some("ROCM") => DeviceKind::Rocm,
            Some("TPU") => DeviceKind::Tpu,
            Some(other) => {
                return Err(Error::Config {
                    name: "PJRT_DEVICE",
                    expected: "CPU, CUDA, ROCM or TPU".into(),
                    got: other.into(),
                });
            }
        };
        let launch_mode = match get("XLA_LAUNCH_MODE")
            .map(|v| v.to_ascii_lowercase())
            .as_deref()
        {
            None => None,
            Some("threads") => Some(LaunchMode::Threads),
            Some("debug") => Some(LaunchMode::Debug),
            Some(other) => {
                return Err(Error::Config {
                    name: "XLA_LAUNCH_MODE",
                    expected: "threads or debug".into(),
                    got: other.into(),
                });
            }
        };
        let count = |name: &'static str| -> Result<Option<usize>> {
            let Some(text) = get(name) else {
                return Ok(None);
            };
            match text.parse::<usize>() {
                Ok(n) if (1..=1024).contains(&n) => Ok(Some(n)),
                _ => Err(Error::Config {
                    name,
                    expected: "a whole number from 1 to 1024".into(),
                    got: text,
                }),
            }
        };
        let deadline = match get("XLA_DEADLINE_SECONDS") {
            None => DEFAULT_DEADLINE,
            Some(text) => text
                .parse::<f64>()
                .ok()
                .filter(|s| *s > 0.0 && *s <= 1e7)
                .map(Duration::from_secs_f64)
                .ok_or(Error::Config {
                    name: "XLA_DEADLINE_SECONDS",
                    expected: "seconds above 0, at most 1e7".into(),
                    got: text,
                })?,
        };
        Ok(Config {
            device,
            cpu_num_devices: count("CPU_NUM_DEVICES")?,
            pjrt_library_path: get("PJRT_LIBRARY_PATH").map(PathBuf::from),
            tpu_library_path: get("TPU_LIBRARY_PATH").map(PathBuf::from),
            launch_mode,
            deadline,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Config> {
        Config::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn nothing_set_means_cpu_and_thirty_minutes() {
        let config = Config::from_lookup(|_| None).unwrap();
        assert_eq!(config.device, DeviceKind::Cpu);
        assert_eq!(config.cpu_num_devices, None);
        assert_eq!(config.deadline, Duration::from_secs(1800));
    }

    #[test]
    fn a_bad_value_names_the_variable() {
        for (name, value) in [
            ("PJRT_DEVICE", "ABACUS"),
            ("CPU_NUM_DEVICES", "0"),
            ("CPU_NUM_DEVICES", "-1"),
            ("CPU_NUM_DEVICES", "many"),
            ("XLA_LAUNCH_MODE", "rockets"),
            ("XLA_DEADLINE_SECONDS", "0"),
            ("XLA_DEADLINE_SECONDS", "NaN"),
        ] {
            match with(name, value) {
                Err(Error::Config { name: named, .. }) => assert_eq!(named, name),
                other => panic!("{name}={value}: {other:?}"),
            }
        }
    }
}
