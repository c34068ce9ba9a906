//! An optimizer whose state is divided among the ranks.

use super::Optimizer;
use crate::StateDict;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};
use xla_dist::{self as dist, ProcessGroup, ReduceOp};
use xla_lazy::{StateVisitor, Tensor, no_grad};

/// Divides an optimizer's state among the ranks of data-parallel training: each keeps what is
/// remembered of its part of every parameter, updates that part, and gets the others' from the
/// others. Stage 1 of [ZeRO](https://arxiv.org/abs/1910.02054).
///
/// With `n` ranks, a rank keeps `1/n` of what the optimizer would remember (plus its part of the
/// parameters). A parameter is divided as it lies in memory, into `n` parts of equal length, the last
/// padded with zeros: so every rank records the same operators, whatever the parameters' sizes.
/// PyTorch's `ZeroRedundancyOptimizer` deals whole parameters to ranks instead, whose programs would
/// differ.
///
/// As in PyTorch the gradients are those that [`DistributedDataParallel`](crate::DistributedDataParallel)
/// has averaged. Without it, [`average_gradients`](Self::average_gradients) has the step average them
/// itself, which moves half as much data.
///
/// ```no_run
/// # fn replica(model: xla_nn::Linear, loss: xla_lazy::Tensor) -> xla_core::Result<()> {
/// use xla_nn::Module;
/// use xla_nn::optim::{AdamW, ZeroRedundancyOptimizer};
/// let model = xla_nn::DistributedDataParallel::new(model)?;
/// let mut optimizer =
///     ZeroRedundancyOptimizer::new(model.parameters(), |parts| Ok(AdamW::new(parts, 1e-3)))?;
/// loss.backward()?;
/// optimizer.step()?;
/// optimizer.zero_grad();
/// # Ok(())
/// # }
/// ```
///
/// An optimizer that treats a parameter as one thing, by its norm say, gives another result here: it
/// is given the parts.
#[derive(Debug)]
pub struct ZeroRedundancyOptimizer<O> {
    optimizer: O,
    parameters: Vec<Divided>,
    group: Arc<ProcessGroup>,
    average: bool,
}

/// A parameter and this rank's part of it.
#[derive(Debug)]
struct Divided {
    whole: Tensor,
    part: Tensor,
}

impl Divided {
    /// `[ranks, length of a part]`: a tensor of the parameter's shape, padded.
    fn divide(&self, tensor: &Tensor, ranks: usize) -> Result<Tensor> {
        let (flat, length) = (tensor.reshape([-1_i64])?, self.part.numel());
        let missing = (ranks * length - flat.numel()) as i64;
        let padded = match missing {
            0 => flat,
            _ => flat.pad([0, missing], 0.0)?,
        };
        padded.reshape([ranks as i64, length as i64])
    }

    /// The reverse: a tensor of the parameter's shape.
    fn unite(&self, parts: &Tensor) -> Result<Tensor> {
        parts
            .reshape([-1_i64])?
            .narrow(0, 0, self.whole.numel())?
            .reshape(self.whole.shape())
    }
}

impl<O: Optimizer> ZeroRedundancyOptimizer<O> {
    /// Divides `parameters` among the ranks of the default group. `optimizer` makes the optimizer of
    /// this rank's parts, which come in the parameters' order and are flat tensors.
    ///
    /// # Errors
    /// [`Error::ProcessGroup`] without a process group; what `optimizer` and the operators return.
    #[track_caller]
    pub fn new(
        parameters: Vec<Tensor>,
        optimizer: impl FnOnce(Vec<Tensor>) -> Result<O>,
    ) -> Result<Self> {
        Self::with_group(parameters, dist::default_group()?, optimizer)
    }

    /// Divides `parameters` among the members of a group.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[track_caller]
    pub fn with_group(
        parameters: Vec<Tensor>,
        group: Arc<ProcessGroup>,
        optimizer: impl FnOnce(Vec<Tensor>) -> Result<O>,
    ) -> Result<Self> {
        let here = Location::caller();
        let ranks = group.size();
        let divide = |whole: Tensor| -> Result<Divided> {
            let length = whole.numel().div_ceil(ranks);
            let mut divided = Divided {
                part: Tensor::zeros([length], (whole.dtype(), whole.device()))?,
                whole,
            };
            let own = own_part(&group, &divided.divide(&divided.whole.detach()?, ranks)?)?;
            divided.part = own.copy()?.requires_grad_(true)?;
            Ok(divided)
        };
        let parameters = no_grad(|| {
            parameters
                .into_iter()
                .map(divide)
                .collect::<Result<Vec<_>>>()
        })
        .map_err(|e| e.at(here))?;
        let parts = parameters.iter().map(|p| p.part.clone()).collect();
        Ok(ZeroRedundancyOptimizer {
            optimizer: optimizer(parts)?,
            parameters,
            group,
            average: false,
        })
    }

    /// Whether the step averages the gradients over the ranks, for training without
    /// [`DistributedDataParallel`](crate::DistributedDataParallel): `false` unless set. A parameter's
    /// own gradient stays what the rank computed.
    #[must_use]
    pub fn average_gradients(mut self, average: bool) -> Self {
        self.average = average;
        self
    }

    /// The optimizer of this rank's parts.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    pub(super) fn optimizer_mut(&mut self) -> &mut O {
        &mut self.optimizer
    }

    pub(super) fn show_parameters<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        for parameter in &self.parameters {
            visitor.tensor(&parameter.whole);
            visitor.tensor(&parameter.part);
        }
    }

    /// See [`Optimizer::step`].
    ///
    /// # Errors
    /// As there, and what the collectives return.
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        let here = Location::caller();
        no_grad(|| self.step_here()).map_err(|e| e.at(here))
    }

    fn step_here(&mut self) -> Result<()> {
        let with_gradient: Vec<(&Divided, Tensor)> = self
            .parameters
            .iter()
            .filter_map(|p| Some((p, p.whole.grad()?)))
            .collect();
        let divided = with_gradient
            .iter()
            .map(|(p, g)| p.divide(g, self.group.size()))
            .collect::<Result<Vec<_>>>()?;
        let own = match self.average {
            true => {
                let divided: Vec<&Tensor> = divided.iter().collect();
                self.group.reduce_scatter_many(&divided, ReduceOp::Mean)?
            }
            false => divided
                .iter()
                .map(|rows| own_part(&self.group, rows))
                .collect::<Result<_>>()?,
        };
        for ((p, _), own) in with_gradient.iter().zip(own) {
            p.part.set_grad(Some(own.reshape([-1_i64])?));
        }
        self.optimizer.step()?;
        for (p, _) in &with_gradient {
            p.part.set_grad(None);
        }
        let parts: Vec<&Tensor> = with_gradient.iter().map(|(p, _)| &p.part).collect();
        let united = self.group.all_gather_many(&parts)?;
        for ((p, _), parts) in with_gradient.iter().zip(united) {
            p.whole.copy_(&p.unite(&parts)?)?;
        }
        Ok(())
    }
}

/// This rank's row of `[ranks, length]`. Which row is data: all ranks record the same program.
fn own_part(group: &ProcessGroup, rows: &Tensor) -> Result<Tensor> {
    let member = group.group_rank(group.rank())?;
    rows.narrow(0, member as i64, 1)?.reshape([-1_i64])
}

impl<O: Optimizer> Optimizer for ZeroRedundancyOptimizer<O> {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        ZeroRedundancyOptimizer::step(self)
    }

    fn zero_grad(&mut self) {
        ZeroRedundancyOptimizer::zero_grad(self);
    }

    fn groups(&self) -> usize {
        self.optimizer.groups()
    }

    fn numbers(&self) -> &'static [&'static str] {
        self.optimizer.numbers()
    }

    fn lr(&self) -> f64 {
        ZeroRedundancyOptimizer::lr(self)
    }

    fn set_lr(&mut self, lr: f64) {
        ZeroRedundancyOptimizer::set_lr(self, lr);
    }

    fn hyperparameter(&self, group: usize, name: &str) -> Option<f64> {
        self.optimizer.hyperparameter(group, name)
    }

    #[track_caller]
    fn set_hyperparameter(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        self.optimizer.set_hyperparameter(group, name, value)
    }

    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        ZeroRedundancyOptimizer::state_dict(self)
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        ZeroRedundancyOptimizer::load_state_dict(self, state)
    }
}

impl<O: Optimizer> ZeroRedundancyOptimizer<O> {
    /// See [`Optimizer::zero_grad`].
    pub fn zero_grad(&mut self) {
        for p in &self.parameters {
            p.whole.set_grad(None);
        }
    }

    /// See [`Optimizer::lr`].
    pub fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    /// See [`Optimizer::set_lr`].
    pub fn set_lr(&mut self, lr: f64) {
        self.optimizer.set_lr(lr);
    }

    /// The whole state, as the undivided optimizer would save it: it may be loaded by that one too,
    /// and with another number of ranks. All ranks must call it.
    ///
    /// # Errors
    /// As [`Optimizer::state_dict`], and what the collectives return.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut whole = self.optimizer.state_dict()?;
        no_grad(|| {
            self.map_state(&mut whole, |p, part| {
                p.unite(&self.group.all_gather_into_tensor(part, 0)?)
            })
        })?;
        Ok(whole)
    }

    /// Takes over what [`state_dict`](Self::state_dict) returned, or the undivided optimizer's.
    ///
    /// # Errors
    /// As [`Optimizer::load_state_dict`].
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let mut own = state.clone();
        no_grad(|| {
            self.map_state(&mut own, |p, whole| {
                if whole.shape() != p.whole.shape() {
                    let expected = format!("shape {}", p.whole.shape());
                    return Err(Error::argument(
                        "load_state_dict",
                        "state",
                        expected,
                        whole.shape(),
                    ));
                }
                let whole = whole.to((whole.dtype(), p.whole.device()))?;
                own_part(&self.group, &p.divide(&whole, self.group.size())?)
            })
        })?;
        self.optimizer.load_state_dict(&own)
    }

    /// Replaces what is remembered under `state.{i}.…` of parameter `i`; numbers stay as they are.
    fn map_state(
        &self,
        state: &mut StateDict,
        f: impl Fn(&Divided, &Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let keys: Vec<String> = state.keys().map(str::to_owned).collect();
        for key in keys {
            let Some((index, name)) = key.strip_prefix("state.").and_then(|k| k.split_once('.'))
            else {
                continue;
            };
            let parameter = index
                .parse()
                .ok()
                .and_then(|i: usize| self.parameters.get(i));
            if let (Some(parameter), Some(tensor)) = (parameter, state.get(&key))
                && !self.optimizer.numbers().contains(&name)
            {
                let mapped = f(parameter, tensor)?;
                state.insert(key, mapped);
            }
        }
        Ok(())
    }
}
