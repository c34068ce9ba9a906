//! Products.

use super::{accumulator, reduced, summed, with_axes};
use crate::Tensor;
use crate::autocast::full;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::ops::only;
use crate::ops::scan::{cumulative_product, shift};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use xla_core::{Dims, IntoAxes, Result};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Prod {
    axis: usize,
    keepdim: bool,
}

impl Operator for Prod {
    const NAME: &'static str = "prod";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        // The product of all others, as that of those before times that of those after: a quotient
        // would be NaN at zeros.
        rule: |op, vjp| {
            let (x, axis) = (vjp.input(0)?, op.axis);
            let grad = with_axes(vjp, vjp.grad(), &[axis])?;
            let before = shift(&cumulative_product(x, axis, false)?, axis, false, 1.0)?;
            let after = shift(&cumulative_product(x, axis, true)?, axis, true, 1.0)?;
            vjp.only(before.mul(&after)?.mul(&grad))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let shape = reduced(input.shape(), &[self.axis], self.keepdim);
        Ok(ty(summed(input.dtype()), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let product = f.reduce(Reduction::Product, x, &[self.axis]);
        let product = f.convert(product, out.dtype());
        Ok(f.reshape(product, out.shape()))
    }
}

impl Tensor {
    /// The product over these axes (`()` for all). Integers and `bool` multiply as `i64`; half
    /// precision is multiplied in `f32`. The gradient is exact with any number of zeros.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn prod(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("prod", dims)?;
        let this = &*full(self)?;
        if axes.len() == self.rank() {
            let op = Prod {
                axis: 0,
                keepdim: false,
            };
            let product = record_op(op, &[(&this.reshape([-1])?).into()])?;
            return match keepdim {
                true => product.reshape(Dims::from_elem(1, self.rank()).as_slice()),
                false => Ok(product),
            };
        }
        let mut product = this.clone();
        for &axis in axes.iter().rev() {
            product = record_op(Prod { axis, keepdim }, &[(&product).into()])?;
        }
        Ok(product)
    }
}
