//! Modules to build others from.

mod activation;
mod attention;
mod builder;
mod containers;
mod conv;
mod dropout;
mod embedding;
mod flatten;
mod linear;
mod norm;
mod pool;
mod recurrent;
mod resize;
mod sequential;

pub use activation::{
    Celu, Elu, Gelu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, Identity, LeakyRelu, LogSigmoid,
    LogSoftmax, Mish, PRelu, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softplus, Softshrink,
    Softsign, Tanh, Tanhshrink,
};
pub use attention::{MultiheadAttention, MultiheadAttentionBuilder, MultiheadAttentionOptions};
pub use containers::{ModuleDict, ModuleList};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvBuilder, ConvTranspose, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTransposeBuilder,
};
pub use dropout::{AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::{Embedding, EmbeddingBuilder};
pub use flatten::{Flatten, Unflatten};
pub use linear::{Linear, LinearBuilder};
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormBuilder, GroupNorm,
    GroupNormBuilder, LayerNorm, LayerNormBuilder, RmsNorm, RmsNormBuilder,
};
pub use pool::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AvgPool, AvgPool1d, AvgPool2d,
    AvgPool3d, MaxPool, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, RecurrentBuilder, Rnn, RnnCell};
pub use resize::{PixelShuffle, PixelUnshuffle, Upsample};
pub use sequential::Sequential;

use std::panic::Location;
use xla_core::Error;

/// A call from a closure, or through a trait object, shows this crate's own code as the caller's
/// line. Such a line helps nobody: `here`, where the layer was called, takes its place. A line in a
/// user's own module stays.
fn at_users_line(error: Error, here: &'static Location<'static>) -> Error {
    let own = file!().strip_suffix("layers/mod.rs").unwrap_or(file!());
    match error.location() {
        Some(line) if !line.file().starts_with(own) => error,
        _ => error.relocated(here),
    }
}
