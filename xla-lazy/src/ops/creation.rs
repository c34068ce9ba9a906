//! Tensors made from nothing: constants, fills, ranges.

use super::cast::fits;
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operand, Operator, entry};
use crate::stablehlo::{Func, Value};
use crate::tensor::TensorOptions;
use crate::trace::record_on;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{Category, DType, Device, Error, IntoShape, Result, Shape};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Constant {
    dtype: DType,
    shape: Shape,
    one: bool,
}

impl Operator for Constant {
    const NAME: &'static str = "constant";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, _: &[Value], out: Ty) -> Result<Value> {
        Ok(f.constant(out.dtype(), out.shape(), if self.one { 1.0 } else { 0.0 }))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Full {
    dtype: DType,
    shape: Shape,
}

impl Operator for Full {
    const NAME: &'static str = "full";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let value = f.convert(inputs[0], out.dtype());
        f.broadcast_to(value, out.shape())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Arange {
    dtype: DType,
    len: usize,
}

impl Operator for Arange {
    const NAME: &'static str = "arange";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, &Shape::new(&[self.len])))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        // In the numbers' own dtype, so that a bf16 range is rounded once.
        let wide = inputs[0].dtype();
        let index = f.iota(wide, out.shape(), 0);
        let start = f.broadcast_to(inputs[0], out.shape())?;
        let step = f.broadcast_to(inputs[1], out.shape())?;
        let scaled = f.binary("multiply", index, step);
        let sum = f.binary("add", start, scaled);
        Ok(f.convert(sum, out.dtype()))
    }
}

/// Most elements of a range: no memory holds more.
const MAX_LEN: usize = 1 << 48;

struct Made {
    shape: Shape,
    dtype: DType,
    device: Device,
    options: TensorOptions,
}

fn made(
    op: &'static str,
    shape: impl IntoShape,
    options: impl Into<TensorOptions>,
    default: DType,
    location: &'static Location<'static>,
) -> Result<Made> {
    let options = options.into();
    Ok(Made {
        shape: shape.into_shape(op).map_err(|e| e.at(location))?,
        dtype: options.dtype().unwrap_or(default),
        device: options.device_or_current(op)?,
        options,
    })
}

/// Ones, or zeros.
fn constant(
    op: &'static str,
    shape: impl IntoShape,
    options: impl Into<TensorOptions>,
    one: bool,
    at: &'static Location<'static>,
) -> Result<Tensor> {
    let Made {
        shape,
        dtype,
        device,
        options,
    } = made(op, shape, options, DType::F32, at)?;
    let entry = entry(Constant { dtype, shape, one });
    options.spread(op, record_on(device, entry, &[], at)?, at)
}

impl Tensor {
    /// Zeros. `f32` unless the options name another dtype.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative length, [`Error::NoReplicaContext`].
    #[track_caller]
    pub fn zeros(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        constant("zeros", shape, options, false, Location::caller())
    }

    /// Ones. `f32` unless the options name another dtype.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn ones(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        constant("ones", shape, options, true, Location::caller())
    }

    /// Zeros of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::zeros(self.shape(), self.alike())
    }

    /// Ones of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::ones(self.shape(), self.alike())
    }

    /// Every element `value`, which is data: another value is the same program. The dtype is `f32`
    /// for a float and `i64` for a whole number unless the options name one.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn full(
        shape: impl IntoShape,
        value: impl Into<Number>,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let value = value.into();
        let default = default_dtype(value);
        let Made {
            shape,
            dtype,
            device,
            options,
        } = made("full", shape, options, default, at)?;
        let made = record_on(
            device,
            entry(Full { dtype, shape }),
            &[Operand::Number(value)],
            at,
        )?;
        options.spread("full", made, at)
    }

    /// Every element `value`, in this tensor's shape, dtype and device; see [`Tensor::full`].
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Number>) -> Result<Tensor> {
        Tensor::full(self.shape(), value, self.alike())
    }

    /// A tensor whose elements do not matter yet: zeros, which cost nothing where they are replaced.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn empty(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        Tensor::zeros(shape, options)
    }

    /// A single number, as a tensor of rank 0; see [`Tensor::full`].
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    #[track_caller]
    pub fn scalar(value: impl Into<Number>, options: impl Into<TensorOptions>) -> Result<Tensor> {
        Tensor::full((), value, options)
    }

    /// `start`, `start + step`, … up to but without `end`. Start and step are data; the length is
    /// part of the program. `i64` when all three are whole numbers, else `f32`.
    ///
    /// # Errors
    /// [`Error::Argument`] when the step is 0 or leads away from `end`.
    #[track_caller]
    pub fn arange(
        start: impl Into<Number>,
        end: impl Into<Number>,
        step: impl Into<Number>,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (start, end, step) = (start.into(), end.into(), step.into());
        let whole = [start, end, step]
            .iter()
            .all(|n| n.category() == Category::Integer);
        let span = (end.to_f64() - start.to_f64()) / step.to_f64();
        if !span.is_finite() || span < 0.0 {
            let got = format!(
                "{} to {} by {}",
                start.to_f64(),
                end.to_f64(),
                step.to_f64()
            );
            return Err(Error::argument(
                "arange",
                "step",
                "a step other than 0 that leads from start to end",
                got,
            )
            .at(at));
        }
        let default = if whole { DType::I64 } else { DType::F32 };
        let Made {
            dtype,
            device,
            options,
            ..
        } = made("arange", (), options, default, at)?;
        // Whole numbers are counted exactly: as floats those beyond 2^53 run together.
        let len = match (start, end, step) {
            (Number::Int(start), Number::Int(end), Number::Int(step)) => {
                let (span, step) = (i128::from(end) - i128::from(start), i128::from(step));
                (span + step - step.signum()) / step
            }
            _ => span.ceil() as i128,
        };
        let Some(len) = usize::try_from(len).ok().filter(|n| *n <= MAX_LEN) else {
            let expected = format!("at most {MAX_LEN} elements");
            return Err(Error::argument("arange", "end", expected, len).at(at));
        };
        // One class for both numbers, so that they share a dtype in the program.
        let (start, step) = if whole && dtype.is_integer() {
            (start, step)
        } else {
            (Number::Float(start.to_f64()), Number::Float(step.to_f64()))
        };
        let tensor = record_on(
            device,
            entry(Arange { dtype, len }),
            &[Operand::Number(start), Operand::Number(step)],
            at,
        )?;
        if let (Number::Int(first), Number::Int(by)) = (start, step)
            && len > 0
        {
            let last = first.saturating_add(by.saturating_mul(len as i64 - 1));
            let range = (first.min(last), first.max(last));
            tensor.storage.lock().range = Some(range).filter(|r| fits(r.0, r.1, dtype));
        }
        options.spread("arange", tensor, at)
    }
}

fn default_dtype(value: Number) -> DType {
    match value {
        Number::Int(_) => DType::I64,
        Number::Float(_) => DType::F32,
    }
}
