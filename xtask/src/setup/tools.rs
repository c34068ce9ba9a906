//! Programs of others that tests run: PyTorch's launcher and a notebook's session.
//!
//! Each is installed once, in its pinned version, into a folder of its own in the cache. It counts
//! as installed when it answers; a folder that an ended run left half-filled is emptied first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::cache::{self, Installing};
use super::packages::{self, Need};
use crate::error::{Error, Result};
use crate::{note, process, workspace};

const ANSWER_DEADLINE: Duration = Duration::from_secs(2 * 60);
const INSTALL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// A program to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    /// PyTorch's `torchrun`.
    Torchrun,
    /// `evcxr`, which runs Rust line by line as a notebook does.
    Evcxr,
}

const TORCH: &str = "2.14.1";
const EVCXR: &str = "0.22.0";

/// What pip installs for torchrun: torch with what it imports to launch processes, without what
/// else it declares. The libraries for NVIDIA's GPUs are only those that torch's own are linked
/// with, since it loads on no machine without them; Triton, sympy and others stay away.
const TORCH_PACKAGES: [&str; 15] = [
    "torch==2.14.1",
    "typing-extensions==4.16.0",
    "nvidia-cublas==13.1.1.3",
    "nvidia-cuda-cupti==13.0.85",
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cudnn-cu13==9.24.0.43",
    "nvidia-cufft==12.0.0.61",
    "nvidia-cufile==1.15.1.6",
    "nvidia-curand==10.4.0.35",
    "nvidia-cusparse==12.6.3.3",
    "nvidia-cusparselt-cu13==0.8.1",
    "nvidia-nccl-cu13==2.30.7",
    "nvidia-nvjitlink==13.5.37",
    "nvidia-nvshmem-cu13==3.4.5",
];

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Torchrun => "torchrun",
            Tool::Evcxr => "evcxr",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Tool::Torchrun => TORCH,
            Tool::Evcxr => EVCXR,
        }
    }

    /// How much there is to wait for.
    fn effort(self) -> &'static str {
        match self {
            Tool::Torchrun => "about 2 GB to download, 4 GB on disk",
            Tool::Evcxr => "compiled from source: minutes",
        }
    }

    /// The environment variable that tells tests where the program is.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Tool::Torchrun => "XLA_TEST_TORCHRUN",
            Tool::Evcxr => "XLA_TEST_EVCXR",
        }
    }

    /// Makes sure of the program and returns its path.
    ///
    /// # Errors
    /// What keeps it from being installed, or from answering once it is.
    pub(crate) fn ensure(self) -> Result<PathBuf> {
        let folder = cache::folder()?.join(format!("{}-{}", self.name(), self.version()));
        let program = folder.join("bin").join(self.name());
        let _installing = Installing::begin(&folder, INSTALL_DEADLINE)?;
        if self.answers(&program).is_ok() {
            note(format_args!("{} ready: {}", self.name(), program.display()));
            return Ok(program);
        }
        let (name, version, effort) = (self.name(), self.version(), self.effort());
        note(format_args!("installing {name} {version} ({effort})"));
        let started = Instant::now();
        empty(&folder)?;
        match self {
            Tool::Torchrun => install_torchrun(&folder)?,
            Tool::Evcxr => install_evcxr(&folder)?,
        }
        self.answers(&program)?;
        let seconds = started.elapsed().as_secs_f64();
        note(format_args!(
            "{name} installed in {seconds:.0} s: {}",
            program.display()
        ));
        Ok(program)
    }

    /// Runs the program in a way that loads all of it and does nothing.
    fn answers(self, program: &Path) -> Result<String> {
        let mut command = Command::new(program);
        command.arg(match self {
            Tool::Torchrun => "--help",
            Tool::Evcxr => "--version",
        });
        process::quiet(&mut command, ANSWER_DEADLINE)
    }
}

fn empty(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn install_torchrun(folder: &Path) -> Result<()> {
    packages::ensure(&[Need::Venv])?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(folder);
    process::quiet(&mut venv, ANSWER_DEADLINE)?;
    let mut pip = Command::new(folder.join("bin").join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input"]);
    pip.args(["--disable-pip-version-check", "--progress-bar", "off"]);
    // Wheels of this size are not worth keeping twice, and few of their modules are ever run.
    pip.args(["--no-cache-dir", "--no-compile"]);
    pip.args(["--no-deps", "--only-binary=:all:"]);
    process::quiet(pip.args(TORCH_PACKAGES), INSTALL_DEADLINE)?;
    Ok(())
}

fn install_evcxr(folder: &Path) -> Result<()> {
    let target = tempfile::tempdir().map_err(Error::file("create a folder in", folder))?;
    let mut cargo = workspace::cargo();
    cargo.args(["install", "--quiet", "--locked", "--no-default-features"]);
    cargo.args(["evcxr_repl", "--version", EVCXR]);
    cargo.arg("--root").arg(folder);
    cargo.arg("--target-dir").arg(target.path());
    // Most of it is rust-analyzer, which looks at every crate of a session: slow without any
    // optimisation, and slow to compile with all.
    cargo.args(["--debug", "--config", "profile.dev.opt-level=1"]);
    cargo.args(["--config", "profile.dev.debug=false"]);
    cargo.env("CARGO_INCREMENTAL", "0");
    process::quiet(&mut cargo, INSTALL_DEADLINE)?;
    Ok(())
}
