//! Sums, differences, products and the larger and smaller of two.

use super::*;

/// Differences of truth values have no meaning.
fn difference(op: &'static str, inputs: &[InputType], dtype: DType) -> Result<DType> {
    let is_bool = |t: &InputType| matches!(t, InputType::Tensor(ty) if ty.dtype() == DType::Bool);
    if inputs.iter().any(is_bool) {
        let expected =
            "an integer or floating-point dtype (for bool, see logical_xor and logical_not)";
        return Err(Error::dtype(op, expected, DType::Bool));
    }
    Ok(dtype)
}

/// The derivative of `maximum` and `minimum`: to the operand taken, halved where they are equal.
/// Where one is NaN, it goes to both.
fn extremum(vjp: &Vjp<'_>, loses: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Gradients> {
    let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
    let share = |x: &Tensor, y: &Tensor| {
        let tied = x.eq(y)?.select_from(&vjp.grad().mul(0.5)?, vjp.grad())?;
        loses(x, y)?.select_from(0, &tied)
    };
    both(vjp, || share(&a, &b), || share(&b, &a))
}

binary! {
    /// `x + other`; logical or for `bool`.
    Add add: any,
    |f, a, b| if a.dtype() == DType::Bool { f.binary("or", a, b) } else { f.binary("add", a, b) },
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| {
        both(vjp, || Ok(vjp.grad().clone()), || Ok(vjp.grad().clone()))
    } };

    /// `x - other`. As in PyTorch, no operand may be `bool`.
    Sub sub: difference,
    |f, a, b| f.binary("subtract", a, b),
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| {
        both(vjp, || Ok(vjp.grad().clone()), || vjp.grad().neg())
    } };

    /// `x * other`; logical and for `bool`.
    Mul mul: any,
    |f, a, b| if a.dtype() == DType::Bool { f.binary("and", a, b) } else { f.binary("multiply", a, b) },
    Derivative::Rule { saves: Saves::CROSSWISE, rule: |_, vjp| {
        both(vjp, || vjp.grad().mul(vjp.operand(1)?), || vjp.grad().mul(vjp.operand(0)?))
    } };

    /// The larger of `x` and `other`; NaN where either is.
    Maximum maximum: any,
    |f, a, b| f.binary("maximum", a, b),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| extremum(vjp, |x, y| x.lt(y)) };

    /// The smaller of `x` and `other`; NaN where either is.
    Minimum minimum: any,
    |f, a, b| f.binary("minimum", a, b),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| extremum(vjp, |x, y| x.gt(y)) };
}

/// `x + alpha * y`, in one rounding where half precision is computed in `f32`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AddScaled {
    subtract: bool,
}

impl AddScaled {
    const fn name(&self) -> &'static str {
        if self.subtract { "sub" } else { "add" }
    }
}

impl Operator for AddScaled {
    const NAME: &'static str = "add_scaled";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let scaled = || {
                let scaled = vjp.grad().mul(vjp.operand(2)?)?;
                if op.subtract {
                    scaled.neg()
                } else {
                    Ok(scaled)
                }
            };
            let mut gradients = both(vjp, || Ok(vjp.grad().clone()), scaled)?;
            gradients.push(None);
            Ok(gradients)
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let [x, y, InputType::Number(alpha)] = *inputs else {
            return Err(Error::Internal {
                what: Self::NAME,
                expected: "two tensors and a number".into(),
            });
        };
        let rule: Rule = if self.subtract { difference } else { any };
        let dtype = rule(self.name(), &[x, y], promote(&[x, y]))?;
        if alpha > dtype.category() {
            let expected = "a floating-point result, or an integer alpha";
            return Err(Error::dtype(self.name(), expected, dtype));
        }
        Ok(ty(dtype, &broadcast(self.name(), &[x, y])?))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let operands = f.align(inputs, compute_dtype(inputs, out.dtype()), out.shape())?;
        if out.dtype() == DType::Bool {
            let scaled = f.binary("and", operands[1], operands[2]);
            return Ok(f.binary("or", operands[0], scaled));
        }
        let scaled = f.binary("multiply", operands[1], operands[2]);
        let mnemonic = if self.subtract { "subtract" } else { "add" };
        let sum = f.binary(mnemonic, operands[0], scaled);
        Ok(f.convert(sum, out.dtype()))
    }
}

impl Tensor {
    /// `x + alpha * other`: PyTorch's `add(other, alpha=…)`. `alpha` is data.
    ///
    /// # Errors
    /// As [`Tensor::add`]; [`Error::DTypeMismatch`] for a fractional `alpha` with integers.
    #[track_caller]
    pub fn add_scaled<'a>(
        &self,
        other: impl Into<Operand<'a>>,
        alpha: impl Into<Number>,
    ) -> Result<Tensor> {
        self.scaled(false, other.into(), alpha.into())
    }

    /// `x - alpha * other`: PyTorch's `sub(other, alpha=…)`. `alpha` is data.
    ///
    /// # Errors
    /// As [`Tensor::sub`]; [`Error::DTypeMismatch`] for a fractional `alpha` with integers.
    #[track_caller]
    pub fn sub_scaled<'a>(
        &self,
        other: impl Into<Operand<'a>>,
        alpha: impl Into<Number>,
    ) -> Result<Tensor> {
        self.scaled(true, other.into(), alpha.into())
    }

    #[track_caller]
    fn scaled(&self, subtract: bool, other: Operand<'_>, alpha: Number) -> Result<Tensor> {
        let operands = [self.into(), other, Operand::Number(alpha)];
        record_op(AddScaled { subtract }, &operands)
    }

    /// `number - x`.
    ///
    /// # Errors
    /// As [`Tensor::sub`].
    #[track_caller]
    pub fn rsub(&self, number: impl Into<Number>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Sub);
        record(&ENTRY, &[Operand::Number(number.into()), self.into()])
    }
}
