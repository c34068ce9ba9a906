//! Programs of others that tests and benchmarks run: PyTorch's launcher, a notebook's session, and
//! Python with a peer.
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

/// For what is installed to say that it is there: the first import of PyTorch reads a gigabyte.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10 * 60);
const INSTALL_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// A program to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    /// PyTorch's `torchrun`.
    Torchrun,
    /// `evcxr`, which runs Rust line by line as a notebook does.
    Evcxr,
    /// A Python that has JAX.
    Jax,
    /// A Python that has PyTorch and PyTorch/XLA.
    Torch,
}

const TORCH: &str = "2.14.1";
const EVCXR: &str = "0.22.0";
const PEER_JAX: &str = "0.10.2";
/// The last one with a PyTorch/XLA for it.
const PEER_TORCH: &str = "2.9.0";

/// What pip installs to measure JAX on the CPU.
const JAX_PACKAGES: [&str; 6] = [
    "jax==0.10.2",
    "jaxlib==0.10.2",
    "ml_dtypes==0.6.0",
    "numpy==2.4.6",
    "opt_einsum==3.4.0",
    "scipy==1.17.1",
];

/// What pip installs to measure PyTorch and PyTorch/XLA, whose optimizers import much of what
/// torch declares. Triton stays away, which only compiles for GPUs.
const PEER_TORCH_PACKAGES: [&str; 33] = [
    "torch==2.9.0",
    "torch-xla==2.9.0",
    "absl-py==2.5.1",
    "certifi==2026.10.19.post1",
    "charset-normalizer==3.5.3",
    "filelock==4.3.1",
    "fsspec==2026.9.0",
    "idna==3.20",
    "Jinja2==3.1.6",
    "MarkupSafe==3.0.4",
    "mpmath==1.3.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "PyYAML==6.0.4",
    "requests==2.34.2",
    "sympy==1.14.0",
    "typing_extensions==4.16.0",
    "urllib3==2.8.0",
    "nvidia-cublas-cu12==12.8.4.1",
    "nvidia-cuda-cupti-cu12==12.8.90",
    "nvidia-cuda-nvrtc-cu12==12.8.93",
    "nvidia-cuda-runtime-cu12==12.8.90",
    "nvidia-cudnn-cu12==9.10.2.21",
    "nvidia-cufft-cu12==11.3.3.83",
    "nvidia-cufile-cu12==1.13.1.3",
    "nvidia-curand-cu12==10.3.9.90",
    "nvidia-cusolver-cu12==11.7.3.90",
    "nvidia-cusparse-cu12==12.5.8.93",
    "nvidia-cusparselt-cu12==0.7.1",
    "nvidia-nccl-cu12==2.27.5",
    "nvidia-nvjitlink-cu12==12.8.93",
    "nvidia-nvshmem-cu12==3.3.20",
    "nvidia-nvtx-cu12==12.8.90",
];

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
            Tool::Jax => "peer-jax",
            Tool::Torch => "peer-torch",
        }
    }

    /// The program's file name.
    fn program(self) -> &'static str {
        match self {
            Tool::Torchrun | Tool::Evcxr => self.name(),
            Tool::Jax | Tool::Torch => "python",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Tool::Torchrun => TORCH,
            Tool::Evcxr => EVCXR,
            Tool::Jax => PEER_JAX,
            Tool::Torch => PEER_TORCH,
        }
    }

    /// How much there is to wait for.
    fn effort(self) -> &'static str {
        match self {
            Tool::Torchrun => "about 2 GB to download, 4 GB on disk",
            Tool::Evcxr => "compiled from source: minutes",
            Tool::Jax => "about 0.15 GB to download, 0.4 GB on disk",
            Tool::Torch => "about 3 GB to download, 6 GB on disk",
        }
    }

    /// The environment variable that tells where the program is: tests, or, where it is set by the
    /// user, the benchmarks.
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Tool::Torchrun => "XLA_TEST_TORCHRUN",
            Tool::Evcxr => "XLA_TEST_EVCXR",
            Tool::Jax | Tool::Torch => "XLA_BENCH_PYTHON",
        }
    }

    /// Makes sure of the program and returns its path.
    ///
    /// # Errors
    /// What keeps it from being installed, or from answering once it is.
    pub(crate) fn ensure(self) -> Result<PathBuf> {
        let folder = cache::folder()?.join(format!("{}-{}", self.name(), self.version()));
        let program = folder.join("bin").join(self.program());
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
            Tool::Torchrun => install_packages(&folder, &TORCH_PACKAGES)?,
            Tool::Jax => install_packages(&folder, &JAX_PACKAGES)?,
            Tool::Torch => install_packages(&folder, &PEER_TORCH_PACKAGES)?,
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
        match self {
            Tool::Torchrun => command.arg("--help"),
            Tool::Evcxr => command.arg("--version"),
            Tool::Jax => command.args(["-c", "import jax; jax.devices()"]),
            Tool::Torch => command.args(["-c", "import torch._dynamo, torch_xla"]),
        };
        command.env("JAX_PLATFORMS", "cpu");
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

/// Makes a Python environment of these packages and nothing else.
fn install_packages(folder: &Path, pinned: &[&str]) -> Result<()> {
    packages::ensure(&[Need::Venv])?;
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(folder);
    process::quiet(&mut venv, INSTALL_DEADLINE)?;
    let mut pip = Command::new(folder.join("bin").join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input"]);
    pip.args(["--disable-pip-version-check", "--progress-bar", "off"]);
    // Wheels of this size are not worth keeping twice, and few of their modules are ever run.
    pip.args(["--no-cache-dir", "--no-compile"]);
    pip.args(["--no-deps", "--only-binary=:all:"]);
    process::quiet(pip.args(pinned), INSTALL_DEADLINE)?;
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
