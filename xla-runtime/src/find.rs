//! Where plugins are looked for: Python packages and the cache folder.

use crate::cache;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use xla_core::{Config, DeviceKind, Error, Result};

/// The CPU plugin's place in the cache folder. `cargo xtask setup` installs exactly there: the newest
/// build that there is for the processor.
pub(crate) const CACHED_CPU_PLUGIN: &str = if cfg!(target_arch = "aarch64") {
    "plugins/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so"
} else {
    "plugins/lammps-jax-pjrt-cpu-0.11.2/pjrt_c_api_cpu_plugin.so"
};

/// The folders to look in, so that a test can bring its own.
pub(crate) struct Places {
    /// Folders that hold Python packages.
    pub(crate) python: Vec<PathBuf>,
    /// This project's cache folder.
    pub(crate) cache: PathBuf,
}

impl Places {
    /// The usual folders of Python's environments, most specific first. Python itself is not asked:
    /// starting it costs more than loading a plugin.
    pub(crate) fn from_environment() -> Self {
        let mut python: Vec<PathBuf> = Vec::new();
        if let Some(path) = env::var_os("PYTHONPATH") {
            python.extend(env::split_paths(&path).filter(|p| !p.as_os_str().is_empty()));
        }
        let folder = |name: &str| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let mut prefixes: Vec<PathBuf> = Vec::new();
        prefixes.extend(
            ["VIRTUAL_ENV", "CONDA_PREFIX"]
                .into_iter()
                .filter_map(folder),
        );
        let home = folder("HOME");
        let pyenv = folder("PYENV_ROOT").or_else(|| home.as_ref().map(|h| h.join(".pyenv")));
        if let Some(pyenv) = pyenv {
            prefixes.extend(entries(&pyenv.join("versions"), |_| true));
        }
        prefixes.extend(home.map(|h| h.join(".local")));
        prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
        for prefix in prefixes {
            let lib = prefix.join("lib");
            for version in entries(&lib, |name| name.starts_with("python3")) {
                python.extend(["site-packages", "dist-packages"].map(|p| version.join(p)));
            }
        }
        python.retain(|p| p.is_dir());
        let mut seen = std::collections::HashSet::new();
        python.retain(|p| seen.insert(p.clone()));
        Places {
            python,
            cache: cache::folder(),
        }
    }
}

/// As [`Plugin::find`](crate::Plugin::find), looking in these places.
pub(crate) fn find(config: &Config, places: &Places) -> Result<PathBuf> {
    let mut looked_in = Vec::new();
    match &config.pjrt_library_path {
        Some(path) => return Ok(path.clone()),
        None => looked_in.push("PJRT_LIBRARY_PATH: not set".to_owned()),
    }
    if config.device == DeviceKind::Tpu {
        match &config.tpu_library_path {
            Some(path) => return Ok(path.clone()),
            None => looked_in.push("TPU_LIBRARY_PATH: not set".to_owned()),
        }
    }
    for folder in &places.python {
        if let Some(plugin) = in_packages(folder, config.device) {
            return Ok(plugin);
        }
        looked_in.push(format!(
            "{}: no Python package with a plugin",
            folder.display()
        ));
    }
    if config.device == DeviceKind::Cpu {
        let cached = places.cache.join(CACHED_CPU_PLUGIN);
        if cached.is_file() {
            return Ok(cached);
        }
        looked_in.push(format!("{}: no such file", cached.display()));
    }
    Err(Error::PluginNotFound {
        kind: config.device.to_string(),
        looked_in,
        install: match config.device {
            DeviceKind::Cpu => "cargo xtask setup",
            DeviceKind::Cuda => "pip install jax-cuda12-pjrt",
            DeviceKind::Rocm => "pip install jax-rocm60-pjrt",
            DeviceKind::Tpu => "pip install libtpu",
            _ => "pip install PACKAGE, with the package that the device's vendor names",
        }
        .to_owned(),
    })
}

/// The plugin for this kind of device among the packages of one folder, in the layouts of the
/// wheels that ship one.
fn in_packages(folder: &Path, kind: DeviceKind) -> Option<PathBuf> {
    if kind == DeviceKind::Tpu {
        let plugin = folder.join("libtpu/libtpu.so");
        return plugin.is_file().then_some(plugin);
    }
    type Fits = fn(&str) -> bool;
    let (package, file): (Fits, Fits) = match kind {
        DeviceKind::Cuda => (|p| p.starts_with("xla_cuda"), |f| f == "xla_cuda_plugin.so"),
        DeviceKind::Rocm => (|p| p.starts_with("xla_rocm"), |f| f == "xla_rocm_plugin.so"),
        _ => (
            |_| true,
            |f| f.ends_with(".so") && f.contains("cpu") && f.contains("pjrt"),
        ),
    };
    // Namespace packages for plugins first: newest package wins, by name.
    for namespace in ["jax_plugins", "xla_plugins"] {
        for package in entries(&folder.join(namespace), package) {
            if let Some(plugin) = entries(&package, file).into_iter().find(|p| p.is_file()) {
                return Some(plugin);
            }
        }
    }
    if kind != DeviceKind::Cpu {
        return None;
    }
    // Packages of their own, by the names that XLA's build gives the library.
    entries(folder, |name| name.contains("pjrt") || name.contains("xla"))
        .into_iter()
        .flat_map(|p| ["pjrt_c_api_cpu_plugin.so", "libpjrt_cpu.so"].map(|f| p.join(f)))
        .find(|p| p.is_file())
}

/// What a folder holds under names that fit, last name first; nothing for a folder that cannot be
/// read.
fn entries(folder: &Path, fits: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_name().to_str().is_some_and(&fits))
        .map(|e| e.path())
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(set: &[(&str, &str)]) -> Config {
        Config::from_lookup(|name| {
            set.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
        .unwrap()
    }

    fn places(root: &Path) -> Places {
        Places {
            python: vec![root.join("site-packages")],
            cache: root.join("cache"),
        }
    }

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn the_users_path_comes_first_then_packages_then_the_cache() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let cached = root.path().join("cache").join(CACHED_CPU_PLUGIN);
        touch(&cached);
        assert_eq!(find(&config(&[]), &places).unwrap(), cached);
        let package = root
            .path()
            .join("site-packages/jax_plugins/my/pjrt_plugin_cpu.so");
        touch(&package);
        assert_eq!(find(&config(&[]), &places).unwrap(), package);
        let users = config(&[("PJRT_LIBRARY_PATH", "/nowhere/plugin.so")]);
        assert_eq!(
            find(&users, &places).unwrap(),
            Path::new("/nowhere/plugin.so")
        );
    }

    #[test]
    fn wheels_for_accelerators_are_found_where_they_put_their_library() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        for (kind, file) in [
            ("CUDA", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
            ("ROCM", "jax_plugins/xla_rocm60/xla_rocm_plugin.so"),
            ("TPU", "libtpu/libtpu.so"),
        ] {
            let config = config(&[("PJRT_DEVICE", kind)]);
            assert!(find(&config, &places).is_err(), "{kind}");
            let plugin = root.path().join("site-packages").join(file);
            touch(&plugin);
            assert_eq!(find(&config, &places).unwrap(), plugin);
        }
        let tpu = config(&[("PJRT_DEVICE", "TPU"), ("TPU_LIBRARY_PATH", "/mine.so")]);
        assert_eq!(find(&tpu, &places).unwrap(), Path::new("/mine.so"));
    }

    #[test]
    fn nothing_found_lists_every_place_and_the_command() {
        let root = tempfile::tempdir().unwrap();
        let text = find(&config(&[]), &places(root.path()))
            .unwrap_err()
            .to_string();
        for part in [
            "PJRT_LIBRARY_PATH",
            "site-packages",
            CACHED_CPU_PLUGIN,
            "cargo xtask setup",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
