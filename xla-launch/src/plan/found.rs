//! What decides a plan.

use std::fmt;
use xla_store::Source;

/// What a plan was decided by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// An option of the program: this method of [`Launcher`](crate::Launcher).
    Option(&'static str),
    /// A variable of the environment.
    Variable(&'static str),
    /// A launch of the process with this id, which has started this one.
    Parent(u32),
    /// Another launcher.
    Launcher(Source),
    /// A notebook.
    Notebook(Notebook),
    /// Nothing in particular.
    Nothing,
}

/// A kind of notebook, by what gave it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Notebook {
    /// The Rust kernel.
    Evcxr,
    /// Google Colab.
    Colab,
    /// Kaggle.
    Kaggle,
    /// A kernel of Jupyter.
    Jupyter,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Option(method) => write!(f, "Launcher::{method}"),
            Found::Variable(name) => f.write_str(name),
            Found::Parent(pid) => write!(f, "spawned by process {pid}"),
            Found::Launcher(source) => f.write_str(match source {
                Source::Torchrun { .. } => "torchrun",
                Source::XlaRun => "xlarun",
                Source::Slurm => "Slurm",
                Source::OpenMpi => "Open MPI",
                Source::Kubernetes => "Kubernetes",
                _ => "RANK, WORLD_SIZE and MASTER_ADDR",
            }),
            Found::Notebook(kind) => write!(f, "{kind:?}"),
            Found::Nothing => f.write_str("no launcher, notebook or option says otherwise"),
        }
    }
}
