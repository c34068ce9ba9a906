//! Installs the prerequisites with the system's package manager, or says how to.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use super::probe;
use crate::error::{Error, Result};
use crate::{note, process};

const UPDATE_DEADLINE: Duration = Duration::from_secs(5 * 60);
const INSTALL_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Something that the build or the download needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// libclang and its headers: bindgen needs both.
    Libclang,
    /// protoc and the standard `.proto` files.
    Protoc,
    /// pip, to download the plugin.
    Pip,
    /// pip for Python environments of their own.
    Venv,
    /// Gloo's library and headers.
    Gloo,
}

impl Need {
    fn what(self) -> &'static str {
        match self {
            Need::Libclang => "libclang with its headers",
            Need::Protoc => "protoc with the standard .proto files",
            Need::Pip => "python3 with pip",
            Need::Venv => "python3 with venv",
            Need::Gloo => "Gloo with its headers",
        }
    }

    fn probe(self) -> std::result::Result<String, String> {
        match self {
            Need::Libclang => probe::libclang_apart(),
            Need::Protoc => probe::protoc(),
            Need::Pip => probe::pip(),
            Need::Venv => probe::venv(),
            Need::Gloo => probe::gloo(),
        }
    }
}

/// A package manager: how it is called and its name for each need.
struct Manager {
    program: &'static str,
    /// Before the packages, as typed.
    install: &'static str,
    needs_root: bool,
    libclang: &'static [&'static str],
    protoc: &'static [&'static str],
    pip: &'static [&'static str],
    venv: &'static [&'static str],
    /// Empty where there is no package.
    gloo: &'static [&'static str],
}

/// In the order in which they are looked for.
///
/// Debian's protobuf-compiler only recommends the package with the standard `.proto` files, so it
/// is named here.
const MANAGERS: [Manager; 5] = [
    Manager {
        program: "apt-get",
        install: "apt-get install -y",
        needs_root: true,
        libclang: &["libclang-dev"],
        protoc: &["protobuf-compiler", "libprotobuf-dev"],
        pip: &["python3-pip"],
        venv: &["python3-venv"],
        gloo: &["libgloo-dev", "g++"],
    },
    Manager {
        program: "dnf",
        install: "dnf install -y",
        needs_root: true,
        libclang: &["clang-devel"],
        protoc: &["protobuf-compiler", "protobuf-devel"],
        pip: &["python3-pip"],
        venv: &["python3"],
        gloo: &["gloo-devel", "gcc-c++"],
    },
    Manager {
        program: "pacman",
        install: "pacman -S --noconfirm",
        needs_root: true,
        libclang: &["clang"],
        protoc: &["protobuf"],
        pip: &["python-pip"],
        venv: &["python"],
        gloo: &[],
    },
    Manager {
        program: "apk",
        install: "apk add",
        needs_root: true,
        libclang: &["clang-dev", "clang-libclang"],
        protoc: &["protoc", "protobuf-dev"],
        pip: &["py3-pip"],
        venv: &["python3"],
        gloo: &[],
    },
    Manager {
        program: "brew",
        install: "brew install",
        needs_root: false,
        libclang: &["llvm"],
        protoc: &["protobuf"],
        pip: &["python"],
        venv: &["python"],
        gloo: &[],
    },
];

impl Manager {
    fn packages(&self, needs: &[Need]) -> Vec<&'static str> {
        let of = |need: &Need| match need {
            Need::Libclang => self.libclang,
            Need::Protoc => self.protoc,
            Need::Pip => self.pip,
            Need::Venv => self.venv,
            Need::Gloo => self.gloo,
        };
        needs.iter().flat_map(of).copied().collect()
    }

    /// The command to type, with `sudo` unless the user is root.
    fn command(&self, needs: &[Need], root: bool) -> String {
        let sudo = if self.needs_root && !root {
            "sudo "
        } else {
            ""
        };
        let mut line = String::new();
        if self.program == "apt-get" {
            let _ = write!(line, "{sudo}apt-get update && ");
        }
        let packages = self.packages(needs).join(" ");
        let _ = write!(line, "{sudo}{} {packages}", self.install);
        line
    }
}

/// What may be installed with: apt-get as root or through a sudo that asks no password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    Root,
    Sudo,
    None,
}

/// Makes sure of `needs`, installing what is missing where that is allowed.
///
/// # Errors
/// [`Error::Missing`] with the command to run where it is not allowed; what the package manager
/// said where it failed.
pub(super) fn ensure(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<Need> = missing.iter().map(|(need, _)| *need).collect();
    let root = rustix::process::geteuid().is_root();
    let Some(manager) = MANAGERS
        .iter()
        .find(|manager| probe::on_path(manager.program))
    else {
        return Err(Error::Missing {
            missing: described(&missing),
            command: MANAGERS[0].command(&list, root),
            hint: "(that is for Debian and Ubuntu; other systems have packages of similar names)"
                .to_owned(),
        });
    };
    if manager.packages(&list).is_empty() {
        return Err(Error::NoPackage {
            missing: described(&missing),
            manager: manager.program,
        });
    }
    let command = manager.command(&list, root);
    let rights = if manager.program == "apt-get" {
        rights(root)
    } else {
        Rights::None
    };
    if rights == Rights::None {
        return Err(Error::Missing {
            missing: described(&missing),
            command,
            hint: String::new(),
        });
    }
    for line in described(&missing) {
        note(format_args!("missing: {line}"));
    }
    note(format_args!("running: {command}"));
    apt_get(rights, &manager.packages(&list))?;
    let missing = self::missing(&list);
    if missing.is_empty() {
        note("installed");
        return Ok(());
    }
    Err(Error::StillMissing {
        command,
        missing: described(&missing),
        hint: "LIBCLANG_PATH, BINDGEN_EXTRA_CLANG_ARGS, PROTOC and PROTOC_INCLUDE name \
               installations in other places"
            .to_owned(),
    })
}

fn missing(needs: &[Need]) -> Vec<(Need, String)> {
    let wrong = |need: &Need| need.probe().err().map(|reason| (*need, reason));
    needs.iter().filter_map(wrong).collect()
}

fn described(missing: &[(Need, String)]) -> Vec<String> {
    let line = |(need, reason): &(Need, String)| {
        // What follows the first line only repeats it.
        let reason = reason.lines().next().unwrap_or_default();
        format!("{} ({reason})", need.what())
    };
    missing.iter().map(line).collect()
}

fn rights(root: bool) -> Rights {
    if root {
        return Rights::Root;
    }
    let mut command = Command::new("sudo");
    command.args(["-n", "true"]);
    match process::quiet(&mut command, Duration::from_secs(20)) {
        Ok(_) => Rights::Sudo,
        Err(_) => Rights::None,
    }
}

fn apt_get(rights: Rights, packages: &[&str]) -> Result<()> {
    // Lists that cannot be refreshed may still be good enough to install from; if they are not,
    // the installation says so.
    if let Err(error) = process::quiet(apt_command(rights).arg("update"), UPDATE_DEADLINE) {
        note(error);
    }
    let mut install = apt_command(rights);
    install.args(["install", "-y", "--no-install-recommends"]);
    process::quiet(install.args(packages), INSTALL_DEADLINE)?;
    Ok(())
}

/// `apt-get`, asking nothing and waiting a while for another apt-get to finish.
fn apt_command(rights: Rights) -> Command {
    let mut command = match rights {
        Rights::Sudo => {
            let mut command = Command::new("sudo");
            command.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
            command
        }
        Rights::Root | Rights::None => Command::new("apt-get"),
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=120"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_packages_of_what_is_missing() {
        let apt = &MANAGERS[0];
        assert_eq!(
            apt.command(&[Need::Libclang, Need::Protoc], false),
            "sudo apt-get update && sudo apt-get install -y libclang-dev protobuf-compiler libprotobuf-dev"
        );
        assert_eq!(
            apt.command(&[Need::Pip], true),
            "apt-get update && apt-get install -y python3-pip"
        );
        let brew = &MANAGERS[4];
        assert_eq!(brew.command(&[Need::Libclang], false), "brew install llvm");
    }
}
