//! Axes moved, elements reversed and rotated.

use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::ops::only;
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::Ty;
use smallvec::SmallVec;
use std::panic::Location;
use xla_core::{Axes, Dims, Error, IntoAxes, IntoDims, Result};

/// The elements in reverse order along these axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Flip {
    axes: Dims,
}

impl Operator for Flip {
    const NAME: &'static str = "flip";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record_op(op.clone(), &[vjp.grad().into()])),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        only(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(f.reverse(inputs[0], &self.axes))
    }
}

/// The elements moved on, those that leave an axis at its end entering at its start. The shifts are
/// below the lengths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Roll {
    shifts: Dims,
}

impl Operator for Roll {
    const NAME: &'static str = "roll";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let shape = vjp.shape(0);
            let back = op.shifts.iter().zip(shape.iter());
            let shifts = back
                .map(|(&s, &n)| if s == 0 { 0 } else { n - s })
                .collect();
            vjp.only(record_op(Roll { shifts }, &[vjp.grad().into()]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        only(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (mut x, dims) = (inputs[0], out.shape().dims());
        let ones = Dims::from_elem(1, dims.len());
        for (axis, &shift) in self.shifts.iter().enumerate().filter(|(_, s)| **s != 0) {
            let (mut start, mut limit) = (Dims::from_elem(0, dims.len()), Dims::from(dims));
            start[axis] = dims[axis] - shift;
            let end = f.slice(x, &start, dims, &ones);
            limit[axis] = dims[axis] - shift;
            let front = f.slice(x, &Dims::from_elem(0, dims.len()), &limit, &ones);
            x = f.concatenate(&[end, front], axis);
        }
        Ok(x)
    }
}

impl Tensor {
    /// The elements in reverse order along these axes; a copy.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for an axis named twice.
    #[track_caller]
    pub fn flip(&self, dims: impl IntoAxes) -> Result<Tensor> {
        let at = Location::caller();
        let axes = dims.into_axes().resolve("flip", self.rank());
        let axes = axes.map_err(|e| e.at(at))?;
        record_op(Flip { axes }, &[self.into()])
    }

    /// The elements moved on by `shifts` along `dims`, one shift an axis; what leaves at one end
    /// enters at the other. Without axes (`()`) the flattened tensor is rolled.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] unless there are as many shifts as axes.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], ())?;
    /// assert_eq!(x.roll(1, 0)?.to_vec::<f32>()?, [3.0, 1.0, 2.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: impl IntoDims, dims: impl IntoAxes) -> Result<Tensor> {
        let at = Location::caller();
        let by = shifts.into_dims();
        let (flat, axes) = match dims.into_axes() {
            Axes::List(axes) if !axes.is_empty() => (false, axes),
            _ => (true, smallvec::smallvec![0]),
        };
        if by.len() != axes.len() {
            let expected = format!("{} of them, one an axis", axes.len());
            return Err(Error::argument("roll", "shifts", expected, format!("{by:?}")).at(at));
        }
        if flat && self.rank() != 1 {
            return self.reshape([-1])?.roll(by[0], 0)?.reshape(self.shape());
        }
        let mut shifts = Dims::from_elem(0, self.rank());
        for (&shift, &dim) in by.iter().zip(&axes) {
            let axis = self.shape().axis("roll", dim).map_err(|e| e.at(at))?;
            let size = self.dims()[axis].max(1);
            // Below the size, which fits.
            let shift = i128::from(shift).rem_euclid(size as i128) as usize;
            shifts[axis] = (shifts[axis] + shift) % size;
        }
        record_op(Roll { shifts }, &[self.into()])
    }

    /// Axes moved to other places, the others keeping their order: a view.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for an axis or a place named twice, or more of one than
    /// of the other.
    #[track_caller]
    pub fn movedim(&self, source: impl IntoAxes, destination: impl IntoAxes) -> Result<Tensor> {
        const OP: &str = "movedim";
        let at = Location::caller();
        let (from, to) = (
            self.listed(OP, source, at)?,
            self.listed(OP, destination, at)?,
        );
        if from.len() != to.len() {
            let expected = format!("{} of them, as of the sources", from.len());
            let got = to.len();
            return Err(Error::argument(OP, "destination", expected, got).at(at));
        }
        let mut others = (0..self.rank()).filter(|axis| !from.contains(axis));
        let axes: Option<Dims> = (0..self.rank())
            .map(|place| match to.iter().position(|&t| t == place) {
                Some(i) => from.get(i).copied(),
                None => others.next(),
            })
            .collect();
        match axes {
            Some(axes) => self.permute(axes.as_slice()),
            None => Ok(self.clone()),
        }
    }

    /// [`Tensor::transpose`].
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn swapdims(&self, dim0: i64, dim1: i64) -> Result<Tensor> {
        self.transpose(dim0, dim1)
    }

    /// Distinct axes in the order they were named in.
    fn listed(
        &self,
        op: &'static str,
        dims: impl IntoAxes,
        at: &'static Location<'static>,
    ) -> Result<Dims> {
        let axes = dims.into_axes();
        let sorted = axes.resolve(op, self.rank()).map_err(|e| e.at(at))?;
        let Axes::List(list) = axes else {
            return Ok(sorted);
        };
        let named: SmallVec<[i64; 6]> = list.into_iter().filter(|_| self.rank() > 0).collect();
        named
            .iter()
            .map(|&axis| self.shape().axis(op, axis).map_err(|e| e.at(at)))
            .collect()
    }
}
