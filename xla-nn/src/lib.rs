//! Modules, losses, optimizers, data-parallel training and data loading.
//!
//! A model is a [module](trait@Module): a tree of parameters, which a user's own type becomes by a
//! derive. Layers such as [`Linear`] and containers such as [`Sequential`] are modules that make one
//! tensor of another ([`Forward`](trait@Forward)); what they compute is in [`functional`]. A
//! [`StateDict`] holds what a module saves. An optimizer ([`optim`]) takes a list of parameters and
//! knows nothing of modules; a loss ([`cross_entropy`]) is a function. [`DistributedDataParallel`]
//! wraps a module so that its gradients are averaged between replicas, and [`data`] feeds each
//! replica its share.
//!
//! Everything here records operators; nothing here knows how programs are compiled or run. Names,
//! shapes, initial values and update rules follow PyTorch.
#![forbid(unsafe_code)]

// So that derived code names this crate alike in here and outside.
extern crate self as xla_nn;

pub mod data;
mod ddp;
pub mod functional;
pub mod init;
mod layers;
mod module;
pub mod optim;
mod state;
pub mod utils;

pub use ddp::DistributedDataParallel;
pub use layers::*;
pub use module::{Buffer, Forward, IncompatibleKeys, Member, Module, Training, Visitor};
pub use state::StateDict;
pub use xla_derive::{Forward, Module};

use xla_core::Result;
use xla_lazy::Tensor;

/// The mean over a batch of `-log softmax(logits)[label]`: [`functional::cross_entropy`] with its
/// defaults.
///
/// # Errors
/// As [`functional::cross_entropy`].
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    functional::cross_entropy(logits, labels, functional::CrossEntropyOptions::default())
}

/// What derived code names besides the traits.
#[doc(hidden)]
pub mod __private {
    pub use xla_core::Result;
    pub use xla_lazy::Tensor;
}
