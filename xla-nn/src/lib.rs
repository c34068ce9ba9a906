//! Modules, losses, optimizers, data-parallel training and data loading.
//!
//! A model is a [`Module`]: a function of a tensor that can list its parameters. Layers such as
//! [`Linear`] and containers such as [`Sequential`] are modules, and so is a user's own type after
//! two methods. What they compute is in [`functional`]. An optimizer ([`optim`]) takes a list of parameters and knows nothing of modules; a
//! loss ([`cross_entropy`]) is a function. [`DistributedDataParallel`] wraps a module so that its
//! gradients are averaged between replicas, and [`data`] feeds each replica its share.
//!
//! Everything here records operators; nothing here knows how programs are compiled or run. Names,
//! shapes, initial values and update rules follow PyTorch.
#![forbid(unsafe_code)]

pub mod data;
mod ddp;
pub mod functional;
pub mod init;
mod layers;
mod module;
pub mod optim;

pub use ddp::DistributedDataParallel;
pub use layers::{Flatten, Linear, Relu, Sequential};
pub use module::{Module, Training, Visitor};

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
