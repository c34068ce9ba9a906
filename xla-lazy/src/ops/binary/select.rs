//! Choosing between two tensors.

use super::*;
use xla_core::Shape;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Where;

impl Operator for Where {
    const NAME: &'static str = "where";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0),
        rule: |_, vjp| {
            let condition = vjp.input(0)?;
            let part = |index: usize, mask: Result<Tensor>| -> Result<Option<Tensor>> {
                if !vjp.needs(index) {
                    return Ok(None);
                }
                vjp.reduce(index, &mask?.select_from(vjp.grad(), 0)?)
                    .map(Some)
            };
            Ok(smallvec::smallvec![
                None,
                part(1, Ok(condition.clone()))?,
                part(2, condition.logical_not())?
            ])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let condition = inputs[0].tensor(Self::NAME)?;
        if condition.dtype() != DType::Bool {
            return Err(Error::dtype(
                Self::NAME,
                "a bool condition",
                condition.dtype(),
            ));
        }
        let shape: Shape = broadcast(Self::NAME, inputs)?;
        Ok(ty(promote(&inputs[1..]), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let condition = f.broadcast_to(inputs[0], out.shape())?;
        let branches = f.align(&inputs[1..], out.dtype(), out.shape())?;
        Ok(f.select(condition, branches[0], branches[1]))
    }
}

impl Tensor {
    /// `on_true` where this `bool` tensor is true, else `on_false`: PyTorch's
    /// `torch.where(condition, on_true, on_false)`. All three broadcast.
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] when this tensor is not `bool`,
    /// [`xla_core::Error::Broadcast`].
    #[track_caller]
    pub fn select_from<'a>(
        &self,
        on_true: impl Into<Operand<'a>>,
        on_false: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Where);
        record(&ENTRY, &[self.into(), on_true.into(), on_false.into()])
    }

    /// This tensor where `condition` (`bool`) is true, else `other`: PyTorch's
    /// `x.where(condition, other)`.
    ///
    /// # Errors
    /// As [`Tensor::select_from`].
    #[track_caller]
    pub fn where_<'a>(
        &'a self,
        condition: &Tensor,
        other: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        condition.select_from(self, other)
    }
}
