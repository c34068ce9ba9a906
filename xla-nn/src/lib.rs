//! Modules, losses, optimizers, data-parallel training and data loading.
//!
//! A model is a [module](trait@Module): a tree of parameters, which a user's own type becomes by a
//! derive. Layers such as [`Linear`] and containers such as [`Sequential`] are modules that make one
//! tensor of another ([`Forward`](trait@Forward)); what they compute is in [`functional`]. A
//! [`StateDict`] holds what a module saves. An optimizer ([`optim`]) takes a list of parameters and
//! knows nothing of modules; a loss ([`cross_entropy`]) is a function. [`DistributedDataParallel`]
//! wraps a module so that its gradients are averaged between replicas, or its batches split over a mesh,
//! and [`data`] feeds each replica its share.
//!
//! | for | there are |
//! | --- | --- |
//! | features | [`Linear`], [`Embedding`], [`MultiheadAttention`] |
//! | images and signals | [`Conv2d`], [`ConvTranspose2d`], [`MaxPool2d`], [`AvgPool2d`], [`AdaptiveAvgPool2d`], [`Upsample`], [`PixelShuffle`]; the first five also over 1 and 3 axes |
//! | sequences | [`Lstm`], [`Gru`], [`Rnn`], and their cells |
//! | normalisation | [`BatchNorm2d`] (over 1 and 3 axes too), [`LayerNorm`], [`GroupNorm`], [`RmsNorm`] |
//! | activation | [`Relu`], [`Gelu`], [`Silu`], [`Tanh`], [`Sigmoid`], [`Softmax`] and more; each is a method of [`Tensor`] as well |
//! | regularisation | [`Dropout`], [`Dropout2d`], [`AlphaDropout`] |
//! | composition | [`Sequential`], [`ModuleList`], [`ModuleDict`], or a struct of your own |
//! | losses | [`cross_entropy`] here, all others in [`functional`] |
//! | initial values | [`init`] |
//! | gradients | [`utils`] to clip them |
//! | checkpoints of a run | [`state::CheckpointManager`] |
//! | one model over a mesh | [`DistributedDataParallel`] for the batch, [`fully_shard`] for all state, [`parallelize_module`] for layers |
//!
//! A layer with parameters is made by `new`, with PyTorch's defaults, or by `builder`, where each
//! option is a method and `build` draws the parameters. Both end with where and as what: a device,
//! a dtype, both, or `()`.
//!
//! ```no_run
//! use xla_core::{DType, Result};
//! use xla_lazy::{Tensor, TensorOptions};
//! use xla_nn::{BatchNorm2d, Conv2d, Forward, Module};
//!
//! #[derive(Debug, Module, Forward)]
//! struct Block {
//!     conv: Conv2d,
//!     norm: BatchNorm2d,
//! }
//!
//! impl Block {
//!     fn new(channels: usize, options: impl Into<TensorOptions>) -> Result<Self> {
//!         let options = options.into();
//!         Ok(Block {
//!             conv: Conv2d::builder(channels, channels, 3).padding(1).bias(false).build(options)?,
//!             norm: BatchNorm2d::new(channels, options)?,
//!         })
//!     }
//!
//!     fn forward(&self, x: &Tensor) -> Result<Tensor> {
//!         (x + self.norm.forward(&self.conv.forward(x)?))?.relu()
//!     }
//! }
//!
//! let block = Block::new(16, DType::BF16)?;
//! block.eval();
//! # Ok::<(), xla_core::Error>(())
//! ```
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
mod sharded;
pub mod state;
pub mod utils;

pub use ddp::DistributedDataParallel;
pub use layers::*;
pub use module::{Buffer, Forward, IncompatibleKeys, Member, Module, Training, Visitor};
pub use sharded::{
    FullyShardOptions, ParallelStyle, fully_shard, fully_shard_with, parallelize_module,
};
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
    pub use xla_lazy::{State, StateVisitor, Tensor};

    pub use crate::module::visit_module;
}
