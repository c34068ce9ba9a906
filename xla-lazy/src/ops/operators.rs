//! `+`, `-`, `*`, `/` and unary `-` on tensors.
//!
//! Operands are tensors, references to tensors, numbers on either side, and results of such
//! expressions next to a tensor, so that `(&a * &b + &c)?` needs one `?`. Rust lets no crate define
//! an operator between `Result<Tensor>` and a number, since neither type is its own: write
//! `((&a * &b)? + 1.0)?`, or put the number next to a tensor.

use crate::Tensor;
use std::ops::{Add, Div, Mul, Neg, Sub};
use xla_core::Result;

macro_rules! with_tensors {
    ($($trait:ident $op:ident $method:ident;)*) => {$(
        with_tensors!(@pair $trait $op $method, &Tensor, &Tensor, |a, b| Tensor::$method(a, b));
        with_tensors!(@pair $trait $op $method, &Tensor, Tensor, |a, b| Tensor::$method(a, &b));
        with_tensors!(@pair $trait $op $method, Tensor, &Tensor, |a, b| Tensor::$method(&a, b));
        with_tensors!(@pair $trait $op $method, Tensor, Tensor, |a, b| Tensor::$method(&a, &b));
        with_tensors!(@pair $trait $op $method, &Tensor, Result<Tensor>, |a, b| Tensor::$method(a, &b?));
        with_tensors!(@pair $trait $op $method, Tensor, Result<Tensor>, |a, b| Tensor::$method(&a, &b?));
        with_tensors!(@pair $trait $op $method, Result<Tensor>, &Tensor, |a, b| Tensor::$method(&a?, b));
        with_tensors!(@pair $trait $op $method, Result<Tensor>, Tensor, |a, b| Tensor::$method(&a?, &b));
    )*};
    (@pair $trait:ident $op:ident $method:ident, $left:ty, $right:ty, |$a:ident, $b:ident| $body:expr) => {
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;
            #[track_caller]
            #[inline]
            fn $op(self, right: $right) -> Result<Tensor> {
                let ($a, $b) = (self, right);
                $body
            }
        }
    };
}

with_tensors! {
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
}

macro_rules! with_numbers {
    ($($number:ty),*) => {$(
        with_numbers!(@right $number, Add add, Sub sub, Mul mul, Div div);
        with_numbers!(@left $number, Tensor, &Tensor);
    )*};
    (@right $number:ty, $($trait:ident $op:ident),*) => {$(
        impl $trait<$number> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            #[inline]
            fn $op(self, right: $number) -> Result<Tensor> { Tensor::$op(self, right) }
        }
        impl $trait<$number> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            #[inline]
            fn $op(self, right: $number) -> Result<Tensor> { Tensor::$op(&self, right) }
        }
    )*};
    (@left $number:ty, $($tensor:ty),*) => {$(
        impl Add<$tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn add(self, right: $tensor) -> Result<Tensor> { Tensor::add(&right, self) }
        }
        impl Mul<$tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn mul(self, right: $tensor) -> Result<Tensor> { Tensor::mul(&right, self) }
        }
        impl Sub<$tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn sub(self, right: $tensor) -> Result<Tensor> { right.rsub(self) }
        }
        impl Div<$tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn div(self, right: $tensor) -> Result<Tensor> { right.rdiv(self) }
        }
    )*};
}

// One type for floats and one for integers: with more, the type of a literal in `(&x * 0.5)?` would
// be ambiguous.
with_numbers!(f64, i64);

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}
