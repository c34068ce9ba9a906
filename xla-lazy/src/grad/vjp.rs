//! What a derivative rule is given.

use crate::Tensor;
use crate::gang::Gang;
use crate::op::{Number, OpEntry, Operand};
use crate::ty::Ty;
use smallvec::SmallVec;
use std::sync::Arc;
use xla_core::{Error, Result, Shape};

/// One gradient for each input of an operator; `None` where there is none.
pub type Gradients = SmallVec<[Option<Tensor>; 3]>;

/// An operand of a derivative rule.
#[derive(Clone)]
pub(super) enum SavedInput {
    Tensor {
        ty: Ty,
        value: Option<Tensor>,
        needs: bool,
    },
    Number(Number),
}

/// What a derivative rule is given: the output's gradient, and the values it said it reads.
pub struct Vjp<'a> {
    pub(super) entry: &'static OpEntry,
    pub(super) grad: &'a Tensor,
    pub(super) inputs: &'a [SavedInput],
    pub(super) output: Option<&'a Tensor>,
    pub(super) output_type: Ty,
    pub(super) gang: Option<&'a Arc<dyn Gang>>,
    pub(super) pass: u64,
}

impl Vjp<'_> {
    /// The gradient of the output.
    pub fn grad(&self) -> &Tensor {
        self.grad
    }

    /// A number that only this backward pass has.
    pub(crate) fn pass(&self) -> u64 {
        self.pass
    }

    /// Number of operands.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether the operator has no operands.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// An input that is a tensor or a number.
    ///
    /// # Errors
    /// [`Error::Internal`] when the operator did not declare that its rule reads this input.
    pub fn operand(&self, index: usize) -> Result<Operand<'_>> {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor {
                value: Some(value), ..
            }) => Ok(Operand::Tensor(value)),
            Some(SavedInput::Number(number)) => Ok(Operand::Number(*number)),
            _ => Err(self.undeclared(format!("input {index} among the saved values"))),
        }
    }

    /// An input that is a tensor.
    ///
    /// # Errors
    /// As [`Vjp::operand`]; also when it is a number.
    pub fn input(&self, index: usize) -> Result<&Tensor> {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor {
                value: Some(value), ..
            }) => Ok(value),
            _ => Err(self.undeclared(format!("tensor input {index} among the saved values"))),
        }
    }

    /// The inputs from `first` on, all of them tensors.
    ///
    /// # Errors
    /// As [`Vjp::input`].
    pub(crate) fn tensors(&self, first: usize) -> Result<Vec<Tensor>> {
        (first..self.len())
            .map(|i| self.input(i).cloned())
            .collect()
    }

    /// The output.
    ///
    /// # Errors
    /// [`Error::Internal`] when the operator did not declare that its rule reads the output.
    pub fn output(&self) -> Result<&Tensor> {
        self.output
            .ok_or_else(|| self.undeclared("the output among the saved values".into()))
    }

    /// The output's type.
    pub fn output_type(&self) -> Ty {
        self.output_type
    }

    /// The shape of an input; a scalar's for a number.
    pub fn shape(&self, index: usize) -> Shape {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor { ty, .. }) => ty.shape().clone(),
            _ => Shape::scalar(),
        }
    }

    /// The dtype of a tensor input; the output's for a number.
    pub fn dtype(&self, index: usize) -> xla_core::DType {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor { ty, .. }) => ty.dtype(),
            _ => self.output_type.dtype(),
        }
    }

    /// A number operand.
    pub fn number(&self, index: usize) -> Option<Number> {
        match self.inputs.get(index) {
            Some(SavedInput::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// The gang that the operator was recorded with, for a collective: its derivative's collectives
    /// belong to the same.
    ///
    /// # Errors
    /// [`Error::Internal`] for an operator that is no collective.
    pub fn gang(&self) -> Result<&Arc<dyn Gang>> {
        self.gang
            .ok_or_else(|| self.undeclared("to be recorded as a collective".into()))
    }

    /// Whether the gradient of this input is wanted.
    pub fn needs(&self, index: usize) -> bool {
        matches!(
            self.inputs.get(index),
            Some(SavedInput::Tensor { needs: true, .. })
        )
    }

    /// Zeros of an input's shape and dtype, on the gradient's device.
    ///
    /// # Errors
    /// The error of recording them.
    pub fn zeros(&self, index: usize) -> Result<Tensor> {
        Tensor::zeros(self.shape(index), (self.dtype(index), self.grad.device()))
    }

    /// The gradients of an operator with one tensor input.
    ///
    /// # Errors
    /// The error of computing it.
    pub fn only(&self, gradient: Result<Tensor>) -> Result<Gradients> {
        Ok(smallvec::smallvec![Some(gradient?)])
    }

    /// One gradient for each input, computed only where it is wanted.
    ///
    /// # Errors
    /// The first error of `gradient`.
    pub fn each(&self, mut gradient: impl FnMut(usize) -> Result<Tensor>) -> Result<Gradients> {
        (0..self.len())
            .map(|i| {
                if self.needs(i) {
                    gradient(i).map(Some)
                } else {
                    Ok(None)
                }
            })
            .collect()
    }

    /// `gradient`, which has the output's shape, summed over the axes that broadcasting added and
    /// converted, so that it fits input `index`.
    ///
    /// # Errors
    /// The error of recording that.
    pub fn reduce(&self, index: usize, gradient: &Tensor) -> Result<Tensor> {
        gradient
            .sum_to_size(&self.shape(index))?
            .to_dtype(self.dtype(index))
    }

    fn undeclared(&self, expected: String) -> Error {
        Error::Internal {
            what: self.entry.name,
            expected,
        }
    }
}
