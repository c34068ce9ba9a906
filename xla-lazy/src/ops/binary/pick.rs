//! One of two numbers, or one with the sign of the other.

use super::*;
use std::panic::Location;

impl Tensor {
    /// The larger of two numbers, elementwise; where one is NaN, the other. Both broadcast and promote.
    /// Where they are equal the gradient is this tensor's.
    ///
    /// # Errors
    /// As [`Tensor::maximum`].
    #[track_caller]
    pub fn fmax(&self, other: &Tensor) -> Result<Tensor> {
        let picked = || {
            let this = self.ge(other)?.logical_or(&other.isnan()?)?;
            this.select_from(self, other)
        };
        picked().map_err(|e: Error| e.named("fmax").at(Location::caller()))
    }

    /// The smaller of two numbers, elementwise; as [`Tensor::fmax`].
    ///
    /// # Errors
    /// As [`Tensor::fmax`].
    #[track_caller]
    pub fn fmin(&self, other: &Tensor) -> Result<Tensor> {
        let picked = || {
            let this = self.le(other)?.logical_or(&other.isnan()?)?;
            this.select_from(self, other)
        };
        picked().map_err(|e: Error| e.named("fmin").at(Location::caller()))
    }

    /// The size of this number with the sign of the other, elementwise, that of a zero included. Both
    /// broadcast and promote; integers become `f32`. No gradient flows to the other.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn copysign<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        let at = Location::caller();
        let signed = || {
            let made;
            let other = match other.into() {
                Operand::Tensor(other) => other,
                Operand::Number(number) => {
                    made = Tensor::full((), number, self.device())?;
                    &made
                }
            };
            let types = [InputType::Tensor(self.ty()), InputType::Tensor(other.ty())];
            let dtype = match promote(&types) {
                dtype if dtype.is_float() => dtype,
                _ => DType::F32,
            };
            let size = self.abs()?.to_dtype(dtype)?;
            other.signbit()?.select_from(&size.neg()?, &size)
        };
        signed().map_err(|e: Error| e.named("copysign").at(at))
    }
}
