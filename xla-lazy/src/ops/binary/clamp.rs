//! Limits.

use super::*;
use std::panic::Location;

/// The first operand, limited by the second and third, or by the second alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Clamp {
    min: bool,
    max: bool,
}

impl Clamp {
    /// Positions of the bounds among the operands.
    fn bounds(&self) -> (Option<usize>, Option<usize>) {
        let min = self.min.then_some(1);
        let max = self.max.then_some(1 + usize::from(self.min));
        (min, max)
    }
}

impl Operator for Clamp {
    const NAME: &'static str = "clamp";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| {
            let x = vjp.input(0)?;
            let (min, max) = op.bounds();
            // The gradient passes at the bounds; where they cross, the upper one is the value.
            vjp.each(|index| {
                let taken = match (index, min, max) {
                    (0, Some(min), None) => x.ge(vjp.operand(min)?)?,
                    (0, None, Some(max)) => x.le(vjp.operand(max)?)?,
                    (0, Some(min), Some(max)) => {
                        let above = x.ge(vjp.operand(min)?)?;
                        above.logical_and(&x.le(vjp.operand(max)?)?)?
                    }
                    (index, Some(min), Some(max)) if index == min => {
                        let bound = tensor_of(vjp, min)?;
                        let below = x.lt(&bound)?;
                        below.logical_and(&bound.lt(vjp.operand(max)?)?)?
                    }
                    (index, Some(min), _) if index == min => x.lt(vjp.operand(min)?)?,
                    (_, Some(min), Some(max)) => {
                        let bound = tensor_of(vjp, max)?;
                        let above = x.gt(&bound)?;
                        above.logical_or(&bound.lt(vjp.operand(min)?)?)?
                    }
                    _ => x.gt(vjp.operand(index)?)?,
                };
                vjp.reduce(index, &taken.select_from(vjp.grad(), 0)?)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(Self::NAME, inputs, number)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = compute_dtype(inputs, out.dtype());
        let operands = f.align(inputs, dtype, out.shape())?;
        let (min, max) = self.bounds();
        let mut x = operands[0];
        if let Some(min) = min {
            x = f.binary("maximum", x, operands[min]);
        }
        if let Some(max) = max {
            x = f.binary("minimum", x, operands[max]);
        }
        Ok(f.convert(x, out.dtype()))
    }
}

impl Tensor {
    /// The elements limited to `min..=max`, which are numbers or tensors; either may be absent.
    /// Where `min` is above `max`, the result is `max`. A NaN stays NaN. The gradient passes at the
    /// bounds.
    ///
    /// # Errors
    /// [`Error::Argument`] when both are absent; [`Error::Broadcast`]; [`Error::DTypeMismatch`] for
    /// `bool`.
    #[track_caller]
    pub fn clamp<'a, 'b>(
        &self,
        min: Option<impl Into<Operand<'a>>>,
        max: Option<impl Into<Operand<'b>>>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (min, max) = (min.map(Into::into), max.map(Into::into));
        let op = Clamp {
            min: min.is_some(),
            max: max.is_some(),
        };
        match (min, max) {
            (Some(min), Some(max)) => record_op(op, &[self.into(), min, max]),
            (Some(bound), None) | (None, Some(bound)) => record_op(op, &[self.into(), bound]),
            (None, None) => {
                let expected = "at least one of them";
                Err(Error::argument("clamp", "min, max", expected, "neither").at(at))
            }
        }
    }

    /// [`Tensor::clamp`] with a lower bound only.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    #[track_caller]
    pub fn clamp_min<'a>(&self, min: impl Into<Operand<'a>>) -> Result<Tensor> {
        self.clamp(Some(min), None::<Number>)
    }

    /// [`Tensor::clamp`] with an upper bound only.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    #[track_caller]
    pub fn clamp_max<'a>(&self, max: impl Into<Operand<'a>>) -> Result<Tensor> {
        self.clamp(None::<Number>, Some(max))
    }
}

/// What [`Tensor::nan_to_num`] puts for each kind of value; PyTorch's names and defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NanToNum {
    /// For NaN.
    pub nan: f64,
    /// For `inf`; the dtype's largest number when absent.
    pub posinf: Option<f64>,
    /// For `-inf`; the dtype's least number when absent.
    pub neginf: Option<f64>,
}

impl Default for NanToNum {
    fn default() -> Self {
        NanToNum {
            nan: 0.0,
            posinf: None,
            neginf: None,
        }
    }
}

/// The first operand, with NaN and those infinities that are so flagged replaced by the following
/// operands, and the others by the dtype's finite limits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Replace {
    posinf: bool,
    neginf: bool,
}

impl Operator for Replace {
    const NAME: &'static str = "nan_to_num";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |_, vjp| {
            let kept = vjp.input(0)?.isfinite()?;
            vjp.each(|_| kept.select_from(vjp.grad(), 0))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = inputs[0];
        if !x.dtype().is_float() {
            return Ok(x);
        }
        let operands = f.align(inputs, out.dtype(), out.shape())?;
        let mut given = operands[2..].iter().copied();
        let largest = match x.dtype() {
            DType::F16 => xla_core::f16::MAX.to_f64(),
            DType::BF16 => xla_core::bf16::MAX.to_f64(),
            DType::F32 => f64::from(f32::MAX),
            _ => f64::MAX,
        };
        let mut y = x;
        for (sign, is_given) in [(1.0, self.posinf), (-1.0, self.neginf)] {
            let infinity = f.constant(x.dtype(), x.shape(), sign * f64::INFINITY);
            let infinite = f.compare(Compare::Eq, x, infinity);
            let limit = f.constant(x.dtype(), x.shape(), sign * largest);
            let value = is_given.then(|| given.next()).flatten().unwrap_or(limit);
            y = f.select(infinite, value, y);
        }
        let nan = f.compare(Compare::Ne, x, x);
        Ok(f.select(nan, operands[1], y))
    }
}

impl Tensor {
    /// The tensor with NaN and infinities replaced by numbers, which are data. The gradient is 0
    /// there.
    ///
    /// # Errors
    /// The error of this tensor's own program, if that failed.
    #[track_caller]
    pub fn nan_to_num(&self, options: NanToNum) -> Result<Tensor> {
        let number = |value: f64| Operand::Number(Number::Float(value));
        let mut operands = vec![self.into(), number(options.nan)];
        operands.extend(options.posinf.map(number));
        operands.extend(options.neginf.map(number));
        let op = Replace {
            posinf: options.posinf.is_some(),
            neginf: options.neginf.is_some(),
        };
        record_op(op, &operands)
    }
}
