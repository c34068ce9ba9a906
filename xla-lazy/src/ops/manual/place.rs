//! Which device of a mesh runs the program.

use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, entry};
use crate::spmd::{self, SpecAxes};
use crate::stablehlo::{Func, Value};
use crate::trace::record_on;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Result, Shape};

/// A digit of the device's position: the position divided by `after`, modulo `size`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Digit {
    after: usize,
    size: usize,
}

/// The number that digits of the device's position make, the first the most significant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AxisIndex {
    digits: Vec<Digit>,
}

impl Operator for AxisIndex {
    const NAME: &'static str = "axis_index";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(DType::I64, &Shape::scalar()))
    }

    fn lower(&self, f: &mut Func, _: &[Value], out: Ty) -> Result<Value> {
        if self.digits.is_empty() {
            return Ok(f.constant_int(DType::I64, out.shape(), 0));
        }
        let position = f.partition_id();
        let number = |f: &mut Func, n: usize| f.constant_int(DType::U32, out.shape(), n as i64);
        let mut index = number(f, 0);
        for digit in &self.digits {
            let (after, size) = (number(f, digit.after), number(f, digit.size));
            let before = f.binary("divide", position, after);
            let own = f.binary("remainder", before, size);
            let shifted = f.binary("multiply", index, size);
            index = f.binary("add", shifted, own);
        }
        Ok(f.convert(index, DType::I64))
    }
}

/// In the body of a [`shard_map`](super::shard_map): where the device that runs it is along an axis of
/// the mesh, or along several, of which the first counts most. A scalar `i64`. As
/// `jax.lax.axis_index`.
///
/// # Errors
/// [`Error::Argument`](xla_core::Error::Argument) outside of a `shard_map`, for an axis that its mesh
/// does not have, and for one named twice.
///
/// ```no_run
/// # fn demo(mesh: &xla_lazy::spmd::Mesh, x: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// use xla_lazy::spmd;
/// // Each block plus the number of its device.
/// let y = spmd::shard_map(mesh, ["x"], ["x"], &[x], |block| {
///     Ok(vec![block[0].add(&spmd::axis_index("x")?)?])
/// })?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn axis_index(axes: impl Into<SpecAxes>) -> Result<Tensor> {
    let at = Location::caller();
    let mesh = spmd::region_mesh(AxisIndex::NAME).map_err(|e| e.at(at))?;
    let axes = mesh.places(AxisIndex::NAME, &axes.into());
    let digit = |axis: usize| Digit {
        after: mesh.shape()[axis + 1..].iter().product(),
        size: mesh.shape()[axis],
    };
    let axes = axes.map_err(|e| e.at(at))?.into_iter();
    let digits = axes.map(digit).filter(|digit| digit.size > 1).collect();
    record_on(mesh.device(), entry(AxisIndex { digits }), &[], at)
}
