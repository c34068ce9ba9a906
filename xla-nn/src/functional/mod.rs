//! What modules compute, as functions: PyTorch's `torch.nn.functional`.
//!
//! | family | functions |
//! | --- | --- |
//! | features | [`linear`], [`embedding`], [`scaled_dot_product_attention`], [`glu`] |
//! | convolution | [`conv2d`], [`conv_transpose2d`], both over 1 and 3 axes too; [`unfold`], [`fold`] |
//! | pooling | [`max_pool2d`], [`avg_pool2d`], [`adaptive_avg_pool2d`], [`adaptive_max_pool2d`], over 1 and 3 axes too |
//! | size of images | [`interpolate`], [`pixel_shuffle`], [`pixel_unshuffle`] |
//! | normalisation | [`batch_norm`], [`layer_norm`], [`group_norm`], [`instance_norm`], [`rms_norm`], [`normalize`] |
//! | dropout | [`dropout`], [`dropout2d`], [`alpha_dropout`], [`feature_alpha_dropout`] |
//! | losses of classes | [`cross_entropy`], [`nll_loss`], [`binary_cross_entropy`], [`binary_cross_entropy_with_logits`], [`kl_div`] |
//! | losses of numbers | [`mse_loss`], [`l1_loss`], [`smooth_l1_loss`], [`huber_loss`], [`poisson_nll_loss`], [`gaussian_nll_loss`] |
//! | losses of pairs | [`cosine_embedding_loss`], [`triplet_margin_loss`], [`margin_ranking_loss`], [`hinge_embedding_loss`] |
//! | similarity | [`cosine_similarity`], [`pairwise_distance`] |
//!
//! What PyTorch has here and as a method of its tensors too is a method only: [`Tensor::relu`],
//! [`Tensor::gelu`] and the other activations, [`Tensor::softmax`], [`Tensor::log_softmax`],
//! [`Tensor::pad`], [`Tensor::one_hot`].
//!
//! Arguments that have a default in PyTorch are the fields of an options struct, which has the same
//! defaults.
//!
//! ```no_run
//! use xla_lazy::Tensor;
//! use xla_nn::functional::{self, ConvOptions, MaxPoolOptions};
//! let images = Tensor::zeros([64, 1, 28, 28], ())?;
//! let weight = Tensor::zeros([32, 1, 3, 3], ())?;
//! let options = ConvOptions { padding: 1.into(), ..Default::default() };
//! let features = functional::conv2d(&images, &weight, None, options)?;
//! let pooled = functional::max_pool2d(&features, 2, MaxPoolOptions::default())?;
//! assert_eq!(pooled.dims(), [64, 32, 14, 14]);
//! # Ok::<(), xla_core::Error>(())
//! ```

mod attention;
mod conv;
mod dropout;
mod embedding;
mod fold;
mod gate;
mod interpolate;
mod linear;
mod loss;
mod norm;
mod pixel;
mod pool;
mod resample;
mod similarity;
mod window;

pub use attention::{AttentionOptions, scaled_dot_product_attention};
pub use conv::{
    ConvOptions, ConvTransposeOptions, Padding, conv_transpose1d, conv_transpose2d,
    conv_transpose3d, conv1d, conv2d, conv3d,
};
pub use dropout::{alpha_dropout, dropout, dropout1d, dropout2d, dropout3d, feature_alpha_dropout};
pub use embedding::{EmbeddingOptions, embedding};
pub use fold::{FoldOptions, fold, unfold};
pub use gate::{glu, prelu};
pub use interpolate::{InterpolateMode, InterpolateOptions, Target, interpolate};
pub use linear::linear;
pub use loss::{
    BceOptions, BceWithLogitsOptions, CrossEntropyOptions, GaussianNllOptions, KlDivOptions,
    KlDivReduction, NllLossOptions, PoissonNllOptions, Reduction, TripletMarginOptions,
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy,
    gaussian_nll_loss, hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss,
    mse_loss, nll_loss, poisson_nll_loss, smooth_l1_loss, soft_margin_loss, triplet_margin_loss,
};
pub use norm::{
    BatchNormOptions, InstanceNormOptions, batch_norm, group_norm, instance_norm, layer_norm,
    rms_norm,
};
pub use pixel::{pixel_shuffle, pixel_unshuffle};
pub use pool::{
    AvgPoolOptions, MaxPoolOptions, OutputSize, adaptive_avg_pool1d, adaptive_avg_pool2d,
    adaptive_avg_pool3d, adaptive_max_pool1d, adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d, adaptive_max_pool2d_with_indices, adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices, avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d,
    max_pool1d_with_indices, max_pool2d, max_pool2d_with_indices, max_pool3d,
    max_pool3d_with_indices,
};
pub use similarity::{cosine_similarity, normalize, pairwise_distance};
pub use window::PerAxis;

use xla_core::{DType, Error, Result};
use xla_lazy::Tensor;

/// The dtype that sums over many elements are kept in: half precision is added up in `f32`.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// An error unless the tensor is of a floating-point dtype.
fn floating(op: &'static str, what: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::dtype(
        op,
        format!("{what} of a floating-point dtype"),
        tensor.dtype(),
    ))
}
