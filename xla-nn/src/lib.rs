//! Modules, losses, optimizers, data-parallel training and data loading.
//!
//! A model is a [`Module`]: a function of a tensor that can list its parameters. Layers such as
//! [`Linear`] and containers such as [`Sequential`] are modules, and so is a user's own type after
//! two methods. An optimizer ([`optim`]) takes a list of parameters and knows nothing of modules; a
//! loss ([`cross_entropy`]) is a function. [`DistributedDataParallel`] wraps a module so that its
//! gradients are averaged between replicas, and [`data`] feeds each replica its share.
//!
//! Everything here records operators; nothing here knows how programs are compiled or run. Names,
//! shapes, initial values and update rules follow PyTorch.
#![forbid(unsafe_code)]

pub mod data;
mod ddp;
pub mod init;
mod layers;
mod loss;
mod module;
pub mod optim;

pub use ddp::DistributedDataParallel;
pub use layers::{Flatten, Linear, Relu, Sequential};
pub use loss::cross_entropy;
pub use module::{Module, Training, Visitor};
