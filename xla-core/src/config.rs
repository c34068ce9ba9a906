//! Configuration: the environment, read once and checked.

use crate::{DeviceKind, Error, Result};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// How long anything waits before it becomes an error, unless configured: PyTorch's 30 minutes.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// How long a process may be silent before the others take it for gone, unless configured.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);

/// How much the persistent cache may hold, unless configured: 2 GiB.
pub const DEFAULT_PERSISTENT_CACHE_BYTES: u64 = 2 << 30;

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
    /// `XLA_LAUNCH_MODE`: how replicas are run, instead of what the surroundings suggest.
    pub launch_mode: Option<LaunchMode>,
    /// `XLA_LAUNCH_PROCESSES`: how many processes a launch spawns.
    pub launch_processes: Option<usize>,
    /// `XLA_LAUNCH_DEVICES`: how many devices, with a thread each, a launch uses in each process.
    pub launch_devices: Option<usize>,
    /// `XLA_LAUNCH_LOG_PREFIX`: whether each line that a spawned process prints begins with its
    /// rank; it does when unset.
    pub launch_log_prefix: bool,
    /// `XLA_USE_SPMD`: whether programs are partitioned over all devices; not when unset.
    pub use_spmd: bool,
    /// `XLA_USE_SHARDY`: whether such programs are annotated for Shardy, rather than for GSPMD; they
    /// are when unset.
    pub use_shardy: bool,
    /// `XLA_DEADLINE_SECONDS`: how long anything waits before it becomes an error.
    pub deadline: Duration,
    /// `XLA_HEARTBEAT_SECONDS`: how long a process may be silent before the others take it for
    /// gone.
    pub heartbeat: Duration,
    /// `XLA_DEBUG`: what is watched or printed, a list such as `log,nan`; nothing when unset.
    pub debug: Debugging,
    /// `XLA_PERSISTENT_CACHE_PATH`: where compiled programs are kept for other processes.
    pub persistent_cache: PersistentCachePath,
    /// `XLA_MEMORY_LIMIT_MB`: how much tensors and programs may take on each device, here in bytes; as
    /// much as there is when unset.
    pub memory_limit: Option<u64>,
    /// `XLA_PERSISTENT_CACHE_MB`: how much that folder may hold, here in bytes.
    pub persistent_cache_bytes: u64,
}

/// What `XLA_DEBUG` asks for, each a word of its comma-separated list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Debugging {
    /// `log`: every compilation and execution is printed to standard error, with its cause.
    pub log: bool,
    /// `index`: an index computed on the device that is out of range is an error of the
    /// `sync` or read that runs the program.
    pub index: bool,
    /// `nan`: the first operator of a program that produces a NaN is an error of the `sync` or read
    /// that runs it.
    pub nan: bool,
    /// `capsule`: each program that fails is written to a file in the current folder, to be run again
    /// with `xla-replay`.
    pub capsule: bool,
}

impl Debugging {
    /// Reads a list of words separated by commas, in any case and order.
    ///
    /// # Errors
    /// [`Error::Config`] for a word that is none of the known ones, which it names.
    fn parse(text: &str) -> Result<Debugging> {
        let mut debug = Debugging::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "log" => debug.log = true,
                "index" => debug.index = true,
                "nan" => debug.nan = true,
                "capsule" => debug.capsule = true,
                _ => {
                    return Err(Error::Config {
                        name: "XLA_DEBUG",
                        expected: "a comma-separated list of log, index, nan, capsule".into(),
                        got: word.into(),
                    });
                }
            }
        }
        Ok(debug)
    }
}

/// What `XLA_PERSISTENT_CACHE_PATH` may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum PersistentCachePath {
    /// Unset: a folder among the user's caches.
    #[default]
    Default,
    /// Empty or `0`: nothing is kept.
    Off,
    /// A path: that folder, created where it is missing.
    Folder(PathBuf),
}

/// What `XLA_LAUNCH_MODE` may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LaunchMode {
    /// `threads`: one thread of this process for each device.
    Threads,
    /// `debug`: `f(0)` on the calling thread, world size 1.
    Debug,
    /// `processes`: several processes, each with a thread for each of its devices.
    Processes,
    /// `external`: another launcher has started this process and says which one it is.
    External,
    /// `notebook`: as threads, in a kernel that lives on.
    Notebook,
    /// `spmd`: one call, whose programs are partitioned over all devices.
    Spmd,
}

impl LaunchMode {
    /// Each mode under the name that `XLA_LAUNCH_MODE` gives it.
    const NAMES: [(&'static str, LaunchMode); 6] = [
        ("threads", LaunchMode::Threads),
        ("debug", LaunchMode::Debug),
        ("processes", LaunchMode::Processes),
        ("external", LaunchMode::External),
        ("notebook", LaunchMode::Notebook),
        ("spmd", LaunchMode::Spmd),
    ];
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
        let launch_mode = match get("XLA_LAUNCH_MODE").map(|v| v.to_ascii_lowercase()) {
            None => None,
            Some(text) => Some(
                LaunchMode::NAMES
                    .iter()
                    .find(|(name, _)| *name == text)
                    .map(|(_, mode)| *mode)
                    .ok_or_else(|| Error::Config {
                        name: "XLA_LAUNCH_MODE",
                        expected: LaunchMode::NAMES.map(|(name, _)| name).join(", "),
                        got: text,
                    })?,
            ),
        };
        let flag = |name: &'static str, default: bool| -> Result<bool> {
            let Some(text) = get(name) else {
                return Ok(default);
            };
            match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "on" | "yes" => Ok(true),
                "0" | "false" | "off" | "no" => Ok(false),
                _ => Err(Error::Config {
                    name,
                    expected: "1 or 0".into(),
                    got: text,
                }),
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
        let seconds = |name: &'static str, default: Duration| -> Result<Duration> {
            let Some(text) = get(name) else {
                return Ok(default);
            };
            text.parse::<f64>()
                .ok()
                .filter(|s| *s > 0.0 && *s <= 1e7)
                .map(Duration::from_secs_f64)
                .ok_or(Error::Config {
                    name,
                    expected: "seconds above 0, at most 1e7".into(),
                    got: text,
                })
        };
        // Unlike elsewhere, an empty value has a meaning here.
        let persistent_cache = match lookup("XLA_PERSISTENT_CACHE_PATH") {
            None => PersistentCachePath::Default,
            Some(path) if matches!(path.trim(), "" | "0") => PersistentCachePath::Off,
            Some(path) => PersistentCachePath::Folder(path.into()),
        };
        let mebibytes = |name: &'static str| -> Result<Option<u64>> {
            let Some(text) = get(name) else {
                return Ok(None);
            };
            let bytes = text.parse::<u64>().ok().filter(|n| *n > 0);
            match bytes.and_then(|n| n.checked_mul(1 << 20)) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(Error::Config {
                    name,
                    expected: "a whole number of mebibytes above 0".into(),
                    got: text,
                }),
            }
        };
        Ok(Config {
            device,
            cpu_num_devices: count("CPU_NUM_DEVICES")?,
            pjrt_library_path: get("PJRT_LIBRARY_PATH").map(PathBuf::from),
            tpu_library_path: get("TPU_LIBRARY_PATH").map(PathBuf::from),
            launch_mode,
            launch_processes: count("XLA_LAUNCH_PROCESSES")?,
            launch_devices: count("XLA_LAUNCH_DEVICES")?,
            launch_log_prefix: flag("XLA_LAUNCH_LOG_PREFIX", true)?,
            use_spmd: flag("XLA_USE_SPMD", false)?,
            use_shardy: flag("XLA_USE_SHARDY", true)?,
            deadline: seconds("XLA_DEADLINE_SECONDS", DEFAULT_DEADLINE)?,
            heartbeat: seconds("XLA_HEARTBEAT_SECONDS", DEFAULT_HEARTBEAT)?,
            debug: Debugging::parse(&get("XLA_DEBUG").unwrap_or_default())?,
            persistent_cache,
            persistent_cache_bytes: mebibytes("XLA_PERSISTENT_CACHE_MB")?
                .unwrap_or(DEFAULT_PERSISTENT_CACHE_BYTES),
            memory_limit: mebibytes("XLA_MEMORY_LIMIT_MB")?,
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
        assert_eq!(config.heartbeat, Duration::from_secs(5));
    }

    #[test]
    fn what_a_launch_reads() {
        let config = with("XLA_LAUNCH_MODE", "Processes").unwrap();
        assert_eq!(config.launch_mode, Some(LaunchMode::Processes));
        assert!(config.launch_log_prefix && !config.use_spmd);
        assert!(with("XLA_USE_SPMD", "1").unwrap().use_spmd);
        assert_eq!(
            with("XLA_LAUNCH_PROCESSES", "4").unwrap().launch_processes,
            Some(4)
        );
    }

    #[test]
    fn what_is_debugged_is_a_list() {
        let debug = with("XLA_DEBUG", " NaN,log,").unwrap().debug;
        assert!(debug.log && debug.nan && !debug.index);
        match with("XLA_DEBUG", "log,nans") {
            Err(Error::Config { expected, got, .. }) => {
                assert!(expected.contains("log, index, nan"), "{expected}");
                assert_eq!(got, "nans");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_persistent_cache_is_on_unless_switched_off() {
        let at = |value| {
            with("XLA_PERSISTENT_CACHE_PATH", value)
                .unwrap()
                .persistent_cache
        };
        let unset = Config::from_lookup(|_| None).unwrap();
        assert_eq!(unset.persistent_cache, PersistentCachePath::Default);
        assert_eq!(unset.persistent_cache_bytes, 2 << 30);
        assert_eq!(at(""), PersistentCachePath::Off);
        assert_eq!(at("0"), PersistentCachePath::Off);
        assert_eq!(at("/a b"), PersistentCachePath::Folder("/a b".into()));
        let small = with("XLA_PERSISTENT_CACHE_MB", "3").unwrap();
        assert_eq!(small.persistent_cache_bytes, 3 << 20);
    }

    #[test]
    fn a_bad_value_names_the_variable() {
        for (name, value) in [
            ("PJRT_DEVICE", "ABACUS"),
            ("CPU_NUM_DEVICES", "0"),
            ("CPU_NUM_DEVICES", "-1"),
            ("CPU_NUM_DEVICES", "many"),
            ("XLA_LAUNCH_MODE", "rockets"),
            ("XLA_LAUNCH_PROCESSES", "0"),
            ("XLA_LAUNCH_DEVICES", "two"),
            ("XLA_USE_SPMD", "maybe"),
            ("XLA_DEADLINE_SECONDS", "0"),
            ("XLA_DEADLINE_SECONDS", "NaN"),
            ("XLA_HEARTBEAT_SECONDS", "-1"),
            ("XLA_DEBUG", "everything"),
            ("XLA_PERSISTENT_CACHE_MB", "0"),
            ("XLA_PERSISTENT_CACHE_MB", "1.5"),
            ("XLA_MEMORY_LIMIT_MB", "-1"),
        ] {
            match with(name, value) {
                Err(Error::Config { name: named, .. }) => assert_eq!(named, name),
                other => panic!("{name}={value}: {other:?}"),
            }
        }
    }
}
