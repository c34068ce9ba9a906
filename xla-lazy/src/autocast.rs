//! Automatic mixed precision: which operators compute in `bf16`, which in `f32`, by PyTorch's lists
//! for CPUs.
//!
//! An operator of a list says so where it is called: [`lower`], [`full`] or [`widest`] on its
//! operands. Outside of [`autocast()`](crate::autocast()) these are the operands as they are.

use crate::Tensor;
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::Location;
use xla_core::{DType, Error, Result};

/// How [`autocast_with`] casts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutocastOptions {
    /// Whether anything is cast; `false` ends an outer scope's casts for a while.
    pub enabled: bool,
    /// The lower precision: [`DType::BF16`] or [`DType::F16`].
    pub dtype: DType,
}

impl Default for AutocastOptions {
    fn default() -> Self {
        AutocastOptions {
            enabled: true,
            dtype: DType::BF16,
        }
    }
}

thread_local! {
    static LOWER: Cell<Option<DType>> = const { Cell::new(None) };
}

fn within<T>(lower: Option<DType>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<DType>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOWER.set(self.0);
        }
    }
    let _restore = Restore(LOWER.replace(lower));
    f()
}

/// Runs `f`, in which matrix products, convolutions and attention compute in `bf16`, and losses and
/// other operators that need it in `f32`, whatever their operands are: `torch.autocast("cpu")`, with
/// its lists. All other operators compute in the dtype of their operands.
///
/// Parameters stay in `f32`, and so do their gradients: a cast is an operator with a derivative. The
/// backward pass belongs outside, and is not affected inside. No scaling of the loss is needed,
/// since `bf16` has the range of `f32`.
///
/// * In lower precision: `matmul`, `mm`, `bmm`, `addmm`, `baddbmm`, `einsum`, `tensordot`, `linear`,
///   convolutions, transposed ones, `prelu`, `scaled_dot_product_attention`, layers of LSTM.
/// * In `f32`: losses, `prod`, `trace`, `cdist`, `cholesky`, `cholesky_solve`, pooling over three
///   axes, `pad` by replication, and by reflection of one or two axes.
/// * In the widest dtype of their operands: `cat`, `stack`, `index_copy`.
///
/// ```no_run
/// # use xla_lazy::Tensor;
/// # fn demo(x: &Tensor, w: &Tensor) -> xla_core::Result<()> {
/// let y = xla_lazy::autocast(|| x.matmul(w))?;
/// assert_eq!(y.dtype(), xla_core::DType::BF16);
/// # Ok(())
/// # }
/// ```
pub fn autocast<T>(f: impl FnOnce() -> T) -> T {
    within(Some(DType::BF16), f)
}

/// [`autocast`] to another dtype, or none.
///
/// # Errors
/// [`Error::DTypeMismatch`] for a dtype other than `bf16` and `f16`; those of `f`.
#[track_caller]
pub fn autocast_with<T>(options: AutocastOptions, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let AutocastOptions { enabled, dtype } = options;
    if !matches!(dtype, DType::BF16 | DType::F16) {
        return Err(Error::dtype("autocast", "bf16 or f16", dtype).at(Location::caller()));
    }
    within(enabled.then_some(dtype), f)
}

/// What the calling thread casts to, inside of [`autocast()`](crate::autocast()).
pub(crate) fn dtype() -> Option<DType> {
    LOWER.get()
}

/// Whether the calling thread is inside of [`autocast()`](crate::autocast()).
pub fn is_autocast_enabled() -> bool {
    LOWER.get().is_some()
}

/// Runs `f` without casts: what an operator of a list is made of.
pub fn off<T>(f: impl FnOnce() -> T) -> T {
    within(None, f)
}

fn cast(x: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>> {
    let kept = !x.dtype().is_float() || matches!(x.dtype(), DType::F64) || x.dtype() == dtype;
    match kept {
        true => Ok(Cow::Borrowed(x)),
        false => x.to_dtype(dtype).map(Cow::Owned),
    }
}

/// An operand of an operator that computes in lower precision. `f64` stays, as in PyTorch.
///
/// # Errors
/// Those of the cast.
pub fn lower(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    match LOWER.get() {
        None => Ok(Cow::Borrowed(x)),
        Some(dtype) => cast(x, dtype),
    }
}

/// An operand of an operator that computes in `f32`.
///
/// # Errors
/// Those of the cast.
pub fn full(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    match LOWER.get() {
        None => Ok(Cow::Borrowed(x)),
        Some(_) => cast(x, DType::F32),
    }
}

/// The dtype that the operands of an operator are cast to.
#[derive(Debug, Clone, Copy)]
pub struct Widest(Option<DType>);

/// That of an operator which computes in the widest floating-point dtype of these operands.
pub fn widest(all: &[&Tensor]) -> Widest {
    let has = |wanted: DType| all.iter().any(|x| x.dtype() == wanted);
    Widest(LOWER.get().map(|lower| match has(DType::F32) {
        true => DType::F32,
        false => lower,
    }))
}

impl Widest {
    /// One of the operands in it.
    ///
    /// # Errors
    /// Those of the cast.
    pub fn of(self, x: &Tensor) -> Result<Cow<'_, Tensor>> {
        match self.0 {
            None => Ok(Cow::Borrowed(x)),
            Some(dtype) => cast(x, dtype),
        }
    }
}
