//! In-place methods: they make the tensor's storage the value of a newly recorded operator, so that
//! every handle on it and every view of it sees the change.

use super::{NanToNum, RoundingMode};
use crate::Tensor;
use crate::op::{Number, Operand};
use crate::sync::{self, Cause};
use crate::trace::no_grad;
use std::panic::Location;
use xla_core::{Error, Result};

/// In-place forms, `x.f_(…)` from `x.f(…)`.
macro_rules! in_place {
    ($($(#[$doc:meta])* $method:ident = $op:ident $(<$($life:lifetime),+>)? ($($argument:ident: $type:ty),*);)*) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($op), "`] in place.")]
            $(#[$doc])*
            ///
            /// Returns a handle on this tensor.
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($op), "`];")]
            /// [`Error::ShapeMismatch`] when the result would have another shape;
            /// [`Error::DTypeMismatch`] when it cannot be kept in this tensor's dtype;
            /// [`Error::Autograd`] for a leaf that requires a gradient, outside
            /// [`crate::no_grad`].
            #[track_caller]
            pub fn $method $(<$($life),+>)? (&self, $($argument: $type),*) -> Result<Tensor> {
                let value = self.$op($($argument),*).map_err(|e| e.named(stringify!($method)))?;
                self.assign_result(stringify!($method), value)
            }
        )*}
    };
}

in_place! {
    /// `x += other`.
    add_ = add<'a>(other: impl Into<Operand<'a>>);
    /// `x -= other`.
    sub_ = sub<'a>(other: impl Into<Operand<'a>>);
    /// `x *= other`.
    mul_ = mul<'a>(other: impl Into<Operand<'a>>);
    /// `x /= other`.
    div_ = div<'a>(other: impl Into<Operand<'a>>);
    div_rounded_ = div_rounded<'a>(other: impl Into<Operand<'a>>, rounding_mode: RoundingMode);
    floor_divide_ = floor_divide<'a>(other: impl Into<Operand<'a>>);
    fmod_ = fmod<'a>(other: impl Into<Operand<'a>>);
    remainder_ = remainder<'a>(other: impl Into<Operand<'a>>);
    pow_ = pow<'a>(exponent: impl Into<Operand<'a>>);
    atan2_ = atan2<'a>(other: impl Into<Operand<'a>>);
    hypot_ = hypot<'a>(other: impl Into<Operand<'a>>);
    /// `x += alpha * other`, with `alpha` as data.
    add_scaled_ = add_scaled<'a>(other: impl Into<Operand<'a>>, alpha: impl Into<Number>);
    /// `x -= alpha * other`, with `alpha` as data.
    sub_scaled_ = sub_scaled<'a>(other: impl Into<Operand<'a>>, alpha: impl Into<Number>);
    lerp_ = lerp<'a>(end: &Tensor, weight: impl Into<Operand<'a>>);
    addcmul_ = addcmul(tensor1: &Tensor, tensor2: &Tensor, value: impl Into<Number>);
    addcdiv_ = addcdiv(tensor1: &Tensor, tensor2: &Tensor, value: impl Into<Number>);
    clamp_ = clamp<'a, 'b>(min: Option<impl Into<Operand<'a>>>, max: Option<impl Into<Operand<'b>>>);
    clamp_min_ = clamp_min<'a>(min: impl Into<Operand<'a>>);
    clamp_max_ = clamp_max<'a>(max: impl Into<Operand<'a>>);
    nan_to_num_ = nan_to_num(options: NanToNum);
    bitwise_and_ = bitwise_and<'a>(other: impl Into<Operand<'a>>);
    bitwise_or_ = bitwise_or<'a>(other: impl Into<Operand<'a>>);
    bitwise_xor_ = bitwise_xor<'a>(other: impl Into<Operand<'a>>);
    bitwise_left_shift_ = bitwise_left_shift<'a>(other: impl Into<Operand<'a>>);
    bitwise_right_shift_ = bitwise_right_shift<'a>(other: impl Into<Operand<'a>>);
    bitwise_not_ = bitwise_not();
    logical_not_ = logical_not();
    neg_ = neg();
    abs_ = abs();
    sign_ = sign();
    square_ = square();
    sqrt_ = sqrt();
    rsqrt_ = rsqrt();
    reciprocal_ = reciprocal();
    exp_ = exp();
    exp2_ = exp2();
    expm1_ = expm1();
    log_ = log();
    log2_ = log2();
    log10_ = log10();
    log1p_ = log1p();
    sin_ = sin();
    cos_ = cos();
    tan_ = tan();
    sinh_ = sinh();
    cosh_ = cosh();
    tanh_ = tanh();
    asin_ = asin();
    acos_ = acos();
    atan_ = atan();
    erf_ = erf();
    erfc_ = erfc();
    erfinv_ = erfinv();
    floor_ = floor();
    ceil_ = ceil();
    round_ = round();
    trunc_ = trunc();
    frac_ = frac();
    sigmoid_ = sigmoid();
    relu_ = relu();
    leaky_relu_ = leaky_relu(negative_slope: impl Into<Number>);
    elu_ = elu(alpha: impl Into<Number>);
    selu_ = selu();
    hardtanh_ = hardtanh(min_val: impl Into<Number>, max_val: impl Into<Number>);
}

impl Tensor {
    /// Assigns a computed value after PyTorch's checks: the shape is kept, and the dtype may not
    /// rise in category.
    #[track_caller]
    fn assign_result(&self, op: &'static str, value: Tensor) -> Result<Tensor> {
        let at = Location::caller();
        if value.shape() != self.shape() {
            let expected = format!("a result of shape {}", self.shape());
            return Err(Error::shape(op, expected, value.shape()).at(at));
        }
        if value.dtype().category() > self.dtype().category() {
            let expected = format!("a result type that can be cast to {}", self.dtype());
            return Err(Error::dtype(op, expected, value.dtype()).at(at));
        }
        let value = value.to_dtype(self.dtype())?;
        self.assign(op, value)
    }

    /// Takes over the values of `other`, which is broadcast and converted.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when `other` does not broadcast to this shape; otherwise as
    /// [`Tensor::add_`].
    #[track_caller]
    pub fn copy_(&self, other: &Tensor) -> Result<Tensor> {
        let value = other.to_dtype(self.dtype())?.expand(self.shape())?;
        self.assign("copy_", value)
    }

    /// Sets every element to a number, which is data.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Number>) -> Result<Tensor> {
        let value = Tensor::full(self.shape(), value, (self.dtype(), self.device()))?;
        self.assign("fill_", value)
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    #[track_caller]
    pub fn zero_(&self) -> Result<Tensor> {
        let value = self.zeros_like()?;
        self.assign("zero_", value)
    }

    /// Takes over the values of a tensor of the same shape and dtype without recording a gradient:
    /// PyTorch's `x.data = value`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn set_data(&self, value: &Tensor) -> Result<()> {
        let at = Location::caller();
        if value.shape() != self.shape() {
            let expected = format!("shape {}", self.shape());
            return Err(Error::shape("set_data", expected, value.shape()).at(at));
        }
        if value.dtype() != self.dtype() {
            return Err(Error::dtype("set_data", self.dtype().name(), value.dtype()).at(at));
        }
        no_grad(|| self.assign("set_data", value.detach()?)).map(drop)
    }

    /// Makes this tensor, under all of its handles, what `value` is: of its dtype and on its device.
    /// A leaf stays one, its gradient is converted and moved as well. This is how a model moves
    /// without its optimizer noticing.
    ///
    /// Everything recorded so far is run before. A view that was made of the tensor before can no
    /// longer be read if the dtype changes.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another shape, [`Error::Autograd`] for a view or the result of
    /// an operator that a gradient flows through, [`Error::DTypeMismatch`] when a tensor that
    /// requires a gradient would become one of integers; the pending program's.
    #[track_caller]
    pub fn replace_data(&self, value: &Tensor) -> Result<()> {
        const OP: &str = "replace_data";
        let at = Location::caller();
        if value.shape() != self.shape() {
            let expected = format!("shape {}", self.shape());
            return Err(Error::shape(OP, expected, value.shape()).at(at));
        }
        if self.view.is_some() || !self.is_leaf() {
            return Err(Error::Autograd {
                op: OP,
                reason: "the tensor is a view or the result of an operator".into(),
                advice: "call it on a tensor of its own, or on a copy() of its detach()",
                at: at.into(),
            });
        }
        if self.requires_grad() && !value.dtype().is_float() {
            return Err(Error::dtype(OP, "a floating-point dtype", value.dtype()).at(at));
        }
        if value.dtype() == self.dtype() && value.device() == self.device() {
            return self.set_data(value);
        }
        let home = (value.dtype(), value.device());
        let grad = match self.grad() {
            Some(grad) => Some(no_grad(|| grad.detach()?.to(home))?),
            None => None,
        };
        sync::sync_at(Cause::Read { what: OP, at })?;
        let new = sync::materialise(value, OP, at)?;
        sync::materialise(self, OP, at)?;
        self.storage.replace(value.ty(), value.device(), new);
        if grad.is_some() {
            self.set_grad(grad);
        }
        Ok(())
    }
}
