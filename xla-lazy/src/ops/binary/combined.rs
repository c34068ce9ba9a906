//! Two steps in one operator: interpolation, and products and quotients that are added.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lerp;

impl Operator for Lerp {
    const NAME: &'static str = "lerp";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |_, vjp| {
            vjp.each(|index| {
                let weight = tensor_of(vjp, 2)?;
                let gradient = match index {
                    0 => vjp.grad().mul(&weight.rsub(1)?)?,
                    1 => vjp.grad().mul(&weight)?,
                    _ => {
                        let way = tensor_of(vjp, 1)?.sub(vjp.operand(0)?)?;
                        vjp.grad().mul(&way)?
                    }
                };
                vjp.reduce(index, &gradient)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let dtype = floating(Self::NAME, inputs, promote(&inputs[..2]))?;
        let dtype = floating(Self::NAME, inputs, dtype.promote(promote(inputs)))?;
        Ok(ty(dtype, &broadcast(Self::NAME, inputs)?))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let operands = f.align(inputs, wide(out.dtype()), out.shape())?;
        let [start, end, weight] = operands[..] else {
            return Err(Error::Internal {
                what: Self::NAME,
                expected: "three operands".into(),
            });
        };
        // From the nearer end, so that weights 0 and 1 give the ends exactly.
        let way = f.binary("subtract", end, start);
        let half = f.constant(weight.dtype(), weight.shape(), 0.5);
        let first = f.compare(Compare::Lt, weight, half);
        let part = f.binary("multiply", weight, way);
        let forward = f.binary("add", start, part);
        let one = f.constant(weight.dtype(), weight.shape(), 1.0);
        let rest = f.binary("subtract", one, weight);
        let part = f.binary("multiply", way, rest);
        let backward = f.binary("subtract", end, part);
        let y = f.select(first, forward, backward);
        Ok(f.convert(y, out.dtype()))
    }
}

/// `x + value * a * b`, or `x + value * a / b`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AddCombined {
    divide: bool,
}

impl AddCombined {
    const fn name(&self) -> &'static str {
        if self.divide { "addcdiv" } else { "addcmul" }
    }
}

impl Operator for AddCombined {
    const NAME: &'static str = "addcmul, addcdiv";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| {
            vjp.each(|index| {
                let scaled = || vjp.grad().mul(vjp.operand(3)?);
                let gradient = match (index, op.divide) {
                    (0, _) => vjp.grad().clone(),
                    (1, false) => scaled()?.mul(vjp.operand(2)?)?,
                    (1, true) => scaled()?.div(vjp.operand(2)?)?,
                    (_, false) => scaled()?.mul(vjp.operand(1)?)?,
                    (_, true) => {
                        let b = vjp.input(2)?;
                        scaled()?.mul(vjp.operand(1)?)?.div(&b.square()?)?.neg()?
                    }
                };
                vjp.reduce(index, &gradient)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let (name, tensors) = (self.name(), &inputs[..3]);
        let dtype = number(name, tensors, promote(tensors))?;
        let quotient = promote(&tensors[1..]);
        if self.divide && !quotient.is_float() {
            let expected = "a floating-point dividend or divisor";
            return Err(Error::dtype(name, expected, quotient));
        }
        if let InputType::Number(value) = inputs[3]
            && value > dtype.category()
        {
            let expected = "a floating-point result, or an integer value";
            return Err(Error::dtype(name, expected, dtype));
        }
        Ok(ty(dtype, &broadcast(name, tensors)?))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let operands = f.align(inputs, wide(out.dtype()), out.shape())?;
        let scaled = f.binary("multiply", operands[1], operands[3]);
        let mnemonic = if self.divide { "divide" } else { "multiply" };
        let combined = f.binary(mnemonic, scaled, operands[2]);
        let sum = f.binary("add", operands[0], combined);
        Ok(f.convert(sum, out.dtype()))
    }
}

impl Tensor {
    /// The point between this tensor (`weight` 0) and `end` (1), or beyond:
    /// `x + weight * (end - x)`. `weight` is a number, which is data, or a tensor; all broadcast.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] for integers and `bool`.
    #[track_caller]
    pub fn lerp<'a>(&self, end: &Tensor, weight: impl Into<Operand<'a>>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Lerp);
        record(&ENTRY, &[self.into(), end.into(), weight.into()])
    }

    /// `x + value * tensor1 * tensor2`; all broadcast, and `value` is data.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] for `bool`, and for integers with a fractional
    /// `value`.
    #[track_caller]
    pub fn addcmul(
        &self,
        tensor1: &Tensor,
        tensor2: &Tensor,
        value: impl Into<Number>,
    ) -> Result<Tensor> {
        let value = Operand::Number(value.into());
        let operands = [self.into(), tensor1.into(), tensor2.into(), value];
        record_op(AddCombined { divide: false }, &operands)
    }

    /// `x + value * tensor1 / tensor2`; all broadcast, and `value` is data.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] where `tensor1` and `tensor2` are both of
    /// integers.
    #[track_caller]
    pub fn addcdiv(
        &self,
        tensor1: &Tensor,
        tensor2: &Tensor,
        value: impl Into<Number>,
    ) -> Result<Tensor> {
        let value = Operand::Number(value.into());
        let operands = [self.into(), tensor1.into(), tensor2.into(), value];
        record_op(AddCombined { divide: true }, &operands)
    }
}
