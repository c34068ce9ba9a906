//! One step of one parameter: what an algorithm is given, and the numbers that parameters share.

use super::stepping::Memory;
use xla_core::{DType, Device, Error, Literal, Result};
use xla_lazy::{HostNumber, Tensor, is_compiling, spmd};

/// One step of one parameter, as an algorithm sees it.
pub struct Step<'a> {
    pub(super) op: &'static str,
    pub(super) param: &'a Tensor,
    pub(super) grad: Tensor,
    pub(super) memory: &'a mut Memory,
    pub(super) shared: &'a mut Shared,
}

impl Step<'_> {
    /// The parameter.
    pub fn param(&self) -> &Tensor {
        self.param
    }

    /// Its gradient.
    pub fn grad(&self) -> &Tensor {
        &self.grad
    }

    /// The gradient to descend along: negated to maximise, and, where the parameter `decays`, with
    /// that of the penalty `weight_decay / 2 · |p|²`, by the number of that name.
    ///
    /// # Errors
    /// What the operators return.
    pub fn descent(&mut self, maximize: bool, decays: bool) -> Result<Tensor> {
        let mut grad = self.grad.clone();
        if maximize {
            grad = grad.neg()?;
        }
        if decays {
            let rate = self.number("weight_decay")?;
            grad = grad.add(&self.param.mul(&rate)?)?;
        }
        Ok(grad)
    }

    /// Which form the formula has at this step, as [`Moment::case`](super::Moment::case) says.
    pub fn case(&self) -> u32 {
        self.shared.case
    }

    /// A number of the formula that [`Algorithm::numbers`](super::Algorithm::numbers) has set, as a
    /// scalar tensor. It is data of the program.
    ///
    /// # Errors
    /// [`Error::Argument`] for a name that it has not set; what [`Tensor::scalar`] returns.
    pub fn number(&mut self, name: &'static str) -> Result<Tensor> {
        let shared = &mut *self.shared;
        if let Some((_, tensor, _)) = shared.tensors.iter().find(|(n, ..)| *n == name) {
            return Ok(tensor.clone());
        }
        let Some((_, value)) = shared.numbers.iter().find(|(n, _)| *n == name) else {
            let expected = "one that Algorithm::numbers sets";
            return Err(Error::argument(self.op, "number", expected, name));
        };
        let options = (shared.kind.dtype, shared.kind.device);
        let host = is_compiling().then(|| HostNumber::new(*value));
        let tensor = match &host {
            Some(host) => host.tensor(options)?,
            None => Tensor::scalar(*value, options)?,
        };
        shared.tensors.push((name, tensor.clone(), host));
        Ok(tensor)
    }

    /// What is remembered under a name: a tensor like the parameter, at first filled with `initial`, and
    /// spread over a mesh as the parameter is.
    ///
    /// # Errors
    /// What sending the first one to the device returns.
    pub fn state(&mut self, name: &'static str, initial: f64) -> Result<Tensor> {
        if let Some((_, tensor)) = self.memory.tensors.iter().find(|(n, _)| *n == name) {
            return Ok(tensor.clone());
        }
        let param = self.param;
        // From the host, not a recorded constant: then the first step's program, for which it is an
        // argument, is that of all steps.
        let initial = filled(param, initial)?;
        let tensor = match spmd::marked(param) {
            Some(sharding) => Tensor::from_literal(initial, &sharding)?,
            None => Tensor::from_literal(initial, param.device())?,
        };
        self.memory.tensors.push((name, tensor.clone()));
        Ok(tensor)
    }

    /// `p ← p · factor`, by the number of that name.
    ///
    /// # Errors
    /// What the operators return.
    pub fn scale(&mut self, factor: &'static str) -> Result<()> {
        let factor = self.number(factor)?;
        self.param.copy_(&self.param.mul(&factor)?).map(drop)
    }

    /// `p ← p + rate · direction`, by the number of that name.
    ///
    /// # Errors
    /// What the operators return.
    pub fn add(&mut self, direction: &Tensor, rate: &'static str) -> Result<()> {
        let rate = self.number(rate)?;
        let moved = self.param.add(&direction.mul(&rate)?)?;
        self.param.copy_(&moved).map(drop)
    }
}

/// What must be equal for a formula's numbers to be those of another parameter of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberKind {
    steps: u64,
    first: bool,
    dtype: DType,
    device: Device,
}

impl NumberKind {
    pub(super) fn of(param: &Tensor, first: bool, steps: u64) -> Self {
        NumberKind {
            steps,
            first,
            // Half-precision tensors meet numbers in `f32`.
            dtype: match param.dtype() {
                DType::F64 => DType::F64,
                _ => DType::F32,
            },
            device: param.device(),
        }
    }
}

/// The numbers of a formula, for all parameters of a kind.
pub(super) struct Shared {
    pub(super) kind: NumberKind,
    pub(super) numbers: Vec<(&'static str, f64)>,
    pub(super) case: u32,
    /// Those that have been asked for.
    pub(super) tensors: Vec<(&'static str, Tensor, Option<HostNumber>)>,
}

impl Shared {
    /// Those that a compiled function reads at each call.
    pub(super) fn host(self) -> Vec<(&'static str, HostNumber)> {
        let tensors = self.tensors.into_iter();
        tensors
            .filter_map(|(name, _, host)| Some((name, host?)))
            .collect()
    }
}

/// A literal of the parameter's shape and dtype.
fn filled(param: &Tensor, value: f64) -> Result<Literal> {
    if value == 0.0 {
        return Literal::from_fill(param.dtype(), param.shape(), |_| Ok(()));
    }
    let values = vec![value; param.numel()];
    Ok(Literal::from_vec(values, param.shape())?.cast(param.dtype()))
}
