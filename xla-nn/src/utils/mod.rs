//! What a training loop does with parameters besides stepping: PyTorch's `torch.nn.utils`.

mod clip_grad;

pub use clip_grad::{ClipOptions, clip_grad_norm_, clip_grad_value_, get_total_norm};
