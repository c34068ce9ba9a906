//! The CPU plugins that can be installed, and where each goes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;

use super::cache;
use super::install::Target;
use crate::error::{Error, Result};
use crate::process;

const DOWNLOAD_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// A row of the table of plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PluginId {
    /// The default of x86-64.
    A,
    /// A second build, of an older PJRT API.
    B,
    /// The oldest; also built for aarch64, where it is the default.
    C,
}

/// A plugin published as a Python package of which one file matters.
struct Plugin {
    id: PluginId,
    package: &'static str,
    version: &'static str,
    /// The plugin's path inside the wheel.
    member: &'static str,
    builds: &'static [Build],
}

/// One machine's wheel of a plugin; both digests are SHA-256, in lower-case hexadecimal.
struct Build {
    arch: &'static str,
    wheel_sha256: &'static str,
    library_sha256: &'static str,
}

const PLUGINS: [Plugin; 3] = [
    Plugin {
        id: PluginId::A,
        package: "lammps-jax-pjrt-cpu",
        version: "0.11.2",
        member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        builds: &[Build {
            arch: "x86_64",
            wheel_sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
            library_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
        }],
    },
    Plugin {
        id: PluginId::B,
        package: "fastatomstruct-xla-cpu",
        version: "2026.6.23",
        member: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
        builds: &[Build {
            arch: "x86_64",
            wheel_sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
            library_sha256: "0a0fe56ca17be9efc7b942e89e534e5e0ad4a0f1e369b66d27b62184509015b9",
        }],
    },
    Plugin {
        id: PluginId::C,
        package: "xla-cpu-pjrt",
        version: "0.0.1",
        member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        builds: &[
            Build {
                arch: "x86_64",
                wheel_sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
                library_sha256: "88c3f28c5900f48ad4a82cab9e79bba9537809743395e341485f8794268820dc",
            },
            Build {
                arch: "aarch64",
                wheel_sha256: "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
                library_sha256: "fcf411f3e8ff635c2b2cf87215aa7016f460e66d236c3db08309e7486583532d",
            },
        ],
    },
];

/// What to install on this machine: `wanted`, or the machine's default.
///
/// # Errors
/// [`Error::NoPlugin`] if it was never built for this machine, [`Error::NoCacheFolder`].
pub(super) fn target(wanted: Option<PluginId>) -> Result<Target> {
    let plugins = cache::folder()?.join("plugins");
    target_for(env::consts::OS, env::consts::ARCH, wanted, &plugins)
}

fn target_for(os: &str, arch: &str, wanted: Option<PluginId>, plugins: &Path) -> Result<Target> {
    let default = if arch == "aarch64" {
        PluginId::C
    } else {
        PluginId::A
    };
    let id = wanted.unwrap_or(default);
    let found = PLUGINS
        .iter()
        .find(|plugin| plugin.id == id)
        .and_then(|plugin| {
            let build = plugin.builds.iter().find(|build| build.arch == arch)?;
            (os == "linux").then_some((plugin, build))
        });
    let Some((plugin, build)) = found else {
        return Err(Error::NoPlugin {
            wanted: match wanted {
                Some(id) => format!("CPU plugin {id:?}"),
                None => "a CPU plugin".to_owned(),
            },
            machine: format!("{os} on {arch}"),
        });
    };
    let folder = plugins.join(format!("{}-{}", plugin.package, plugin.version));
    let file = Path::new(plugin.member).file_name().unwrap_or_default();
    Ok(Target {
        package: plugin.package.to_owned(),
        version: plugin.version.to_owned(),
        member: plugin.member.to_owned(),
        library: folder.join(file),
        wheel_sha256: build.wheel_sha256.to_owned(),
        library_sha256: build.library_sha256.to_owned(),
    })
}

/// Downloads the wheel into `folder` with pip; `again` passes by pip's own cache, which may be
/// what is damaged.
pub(super) fn download(target: &Target, folder: &Path, again: bool) -> Result<PathBuf> {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-input"]);
    command.args(["--disable-pip-version-check", "--progress-bar", "off"]);
    command.args(["--no-deps", "--only-binary=:all:"]);
    if again {
        command.arg("--no-cache-dir");
    }
    command.arg("-d").arg(folder);
    command.arg(format!("{}=={}", target.package, target.version));
    process::quiet(&mut command, DOWNLOAD_DEADLINE)?;
    let entries = folder.read_dir().map_err(Error::file("list", folder))?;
    let wheel = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or_else(|| Error::NoWheel {
        package: target.package.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(os: &str, arch: &str, wanted: Option<PluginId>) -> Result<PathBuf> {
        target_for(os, arch, wanted, Path::new("/p")).map(|target| target.library)
    }

    #[test]
    fn each_machine_has_its_plugin_in_its_place() {
        assert_eq!(
            library("linux", "x86_64", None).unwrap(),
            Path::new("/p/lammps-jax-pjrt-cpu-0.11.2/pjrt_c_api_cpu_plugin.so")
        );
        assert_eq!(
            library("linux", "x86_64", Some(PluginId::B)).unwrap(),
            Path::new("/p/fastatomstruct-xla-cpu-2026.6.23/libpjrt_cpu.so")
        );
        let arm = target_for("linux", "aarch64", None, Path::new("/p")).unwrap();
        assert_eq!(
            arm.library,
            Path::new("/p/xla-cpu-pjrt-0.0.1/xla_cpu_pjrt.so")
        );
        assert!(arm.wheel_sha256.starts_with("8f613be6"));
    }

    #[test]
    fn a_machine_without_a_build_is_named() {
        for (os, arch, wanted) in [
            ("linux", "riscv64", None),
            ("macos", "aarch64", None),
            ("linux", "aarch64", Some(PluginId::A)),
        ] {
            let error = library(os, arch, wanted).unwrap_err().to_string();
            assert!(error.contains(&format!("{os} on {arch}")), "{error}");
            assert!(error.contains("PJRT_LIBRARY_PATH"), "{error}");
        }
    }

    #[test]
    fn digests_are_whole_and_all_different() {
        let mut digests: Vec<&str> = PLUGINS
            .iter()
            .flat_map(|plugin| plugin.builds)
            .flat_map(|build| [build.wheel_sha256, build.library_sha256])
            .collect();
        let hexadecimal = |digest: &&str| {
            digest.len() == 64
                && digest
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        assert!(digests.iter().all(hexadecimal));
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 8);
    }
}
