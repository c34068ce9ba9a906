//! Matrix products.

use crate::Tensor;
use crate::op::{Derivative, InputType, OpEntry, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// The product of matrices on the last two axes; axes before them broadcast.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Matmul;

fn batch(shape: &Shape) -> Shape {
    Shape::new(&shape.dims()[..shape.rank() - 2])
}

impl Operator for Matmul {
    const NAME: &'static str = "matmul";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::CROSSWISE,
        rule: |_, vjp| {
            let g = vjp.grad();
            let left = || -> Result<Tensor> {
                let product = g.matmul(&vjp.input(1)?.transpose(-2, -1)?)?;
                product.sum_to_size(&vjp.shape(0))?.to_dtype(vjp.dtype(0))
            };
            let right = || -> Result<Tensor> {
                let a = vjp.input(0)?;
                // A matrix shared by a batch gathers from all of it in one product, rather than in
                // one a member, summed afterwards.
                if vjp.shape(1).rank() == 2 && a.rank() > 2 {
                    let count: usize = a.dims()[..a.rank() - 1].iter().product();
                    let rows = a.reshape([count, a.size(-1)?])?;
                    let grads = g.reshape([count, g.size(-1)?])?;
                    return rows.t()?.matmul(&grads)?.to_dtype(vjp.dtype(1));
                }
                let product = a.transpose(-2, -1)?.matmul(g)?;
                product.sum_to_size(&vjp.shape(1))?.to_dtype(vjp.dtype(1))
            };
            vjp.each(|i| if i == 0 { left() } else { right() })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let (a, b) = (inputs[0].tensor(Self::NAME)?, inputs[1].tensor(Self::NAME)?);
        if a.dtype() != b.dtype() {
            return Err(Error::dtype(
                Self::NAME,
                format!("two operands of {}", a.dtype()),
                b.dtype(),
            ));
        }
        if a.dtype() == DType::Bool {
            return Err(Error::dtype(
                Self::NAME,
                "an integer or floating-point dtype",
                a.dtype(),
            ));
        }
        let (m, k) = (a.shape()[a.rank() - 2], a.shape()[a.rank() - 1]);
        let (k2, n) = (b.shape()[b.rank() - 2], b.shape()[b.rank() - 1]);
        if k != k2 {
            let expected = format!("as many columns as rows: {k} equal to {k2}");
            let got = format!("{} x {}", a.shape(), b.shape());
            return Err(Error::shape(Self::NAME, expected, got));
        }
        let mut dims: Dims = batch(a.shape())
            .broadcast(Self::NAME, &batch(b.shape()))?
            .dims()
            .into();
        dims.extend([m, n]);
        Ok(ty(a.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (a, b) = (inputs[0], inputs[1]);
        let (ra, rb) = (a.shape().rank(), b.shape().rank());
        // A matrix on the right: the batch is more rows of one product.
        if rb == 2 {
            return Ok(f.dot_general(a, b, (&[], &[]), (&[ra - 1], &[0])));
        }
        let lead = out.rank() - 2;
        let expanded = |f: &mut Func, x: Value| {
            let mut dims: Dims = out.shape()[..lead].into();
            dims.extend_from_slice(&x.shape()[x.shape().rank() - 2..]);
            f.broadcast_to(x, &Shape::from(dims))
        };
        let (a, b) = (expanded(f, a)?, expanded(f, b)?);
        let axes: Dims = (0..lead).collect();
        Ok(f.dot_general(a, b, (&axes, &axes), (&[lead + 1], &[lead])))
    }
}

impl Tensor {
    /// The matrix product, by PyTorch's rule: two vectors give their inner product, a vector on the
    /// left is a row and one on the right a column whose axis vanishes, axes before the last two
    /// broadcast.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] with both shapes, [`Error::Broadcast`] for the batch axes,
    /// [`Error::DTypeMismatch`] when the dtypes differ.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Matmul);
        if self.rank() == 0 || other.rank() == 0 {
            let got = format!("{} x {}", self.shape(), other.shape());
            return Err(
                Error::shape("matmul", "at least one axis on each side", got)
                    .at(Location::caller()),
            );
        }
        let (row, column) = (self.rank() == 1, other.rank() == 1);
        if !row && !column {
            return record(&ENTRY, &[self.into(), other.into()]);
        }
        let left = if row {
            self.unsqueeze(0)?
        } else {
            self.clone()
        };
        let right = if column {
            other.unsqueeze(1)?
        } else {
            other.clone()
        };
        let mut product = record(&ENTRY, &[(&left).into(), (&right).into()])?;
        if column {
            product = product.squeeze(-1)?;
        }
        if row {
            product = product.squeeze(if column { -1 } else { -2 })?;
        }
        Ok(product)
    }
}
