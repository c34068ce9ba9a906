//! Gradients through an operation with many results and a region, which is computed again.
//!
//! Such an operation has many results and a node one gradient. So the results that gradients flow to
//! are nodes after a hub, which all that the derivative needs are operands of. They leave their
//! gradients in a place that they share with it, and a backward pass, which goes from later nodes to
//! earlier ones, comes to the hub when all have.

use crate::grad::{self, Flow, Function, Gradients, Vjp};
use crate::op::{Derivative, InputType, Number, OpEntry, Operand, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::{self, Region, Tape, enable_grad, flag};
use crate::ty::{Ty, ty};
use crate::{Tensor, ops::COPY};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{DType, Error, Result, Shape};

/// The operation, as the user called it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum Kind {
    Scan,
    While,
    ShardMap,
}

impl Kind {
    const NAMES: [&'static str; 3] = ["scan", "while_loop", "shard_map"];

    pub(in crate::ops) const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    fn hub(self) -> &'static OpEntry {
        match self {
            Kind::Scan => entry(Origin::<0>),
            Kind::While => entry(Origin::<1>),
            Kind::ShardMap => entry(Origin::<2>),
        }
    }

    fn through(self) -> &'static OpEntry {
        match self {
            Kind::Scan => entry(Through::<0>),
            Kind::While => entry(Through::<1>),
            Kind::ShardMap => entry(Through::<2>),
        }
    }
}

/// What the results of an operation depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Origin<const KIND: usize>;

impl<const KIND: usize> Operator for Origin<KIND> {
    const NAME: &'static str = Kind::NAMES[KIND];
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |_, _| Err(own(Self::NAME)),
    };

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(token())
    }

    fn lower(&self, f: &mut Func, _: &[Value], out: Ty) -> Result<Value> {
        Ok(f.constant(out.dtype(), out.shape(), 0.0))
    }
}

/// A result, with the hub that its gradient flows to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Through<const KIND: usize>;

impl<const KIND: usize> Operator for Through<KIND> {
    const NAME: &'static str = Kind::NAMES[KIND];
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, _| Err(own(Self::NAME)),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, _: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(inputs[0])
    }
}

fn own(what: &'static str) -> Error {
    Error::Internal {
        what,
        expected: "the node's own derivative".into(),
    }
}

fn token() -> Ty {
    ty(DType::F32, &Shape::scalar())
}

/// The derivative of an operation.
pub(in crate::ops) trait Backward: Send + Sync {
    /// From the gradients of results, by their positions, to those of the hub's operands. A result that
    /// is not among them has none.
    ///
    /// # Errors
    /// Those of what is recorded.
    fn backward(
        self: Arc<Self>,
        vjp: &Vjp<'_>,
        gradients: BTreeMap<usize, Tensor>,
    ) -> Result<Gradients>;
}

/// The gradients of the results, by backward pass.
#[derive(Default)]
struct Collected(Mutex<HashMap<u64, BTreeMap<usize, Tensor>>>);

impl Collected {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<u64, BTreeMap<usize, Tensor>>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Leaves the gradient of one result.
struct Leave {
    collected: Arc<Collected>,
    index: usize,
}

impl Function for Leave {
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        self.collected.with(|all| {
            let gradients = all.entry(vjp.pass()).or_default();
            gradients.insert(self.index, vjp.grad().clone())
        });
        let token = Tensor::zeros((), (DType::F32, vjp.grad().device()))?;
        Ok(Flow::Inputs(Gradients::from_iter([None, Some(token)])))
    }
}

/// Takes the gradients of the results that came to a hub.
struct Arrive {
    collected: Arc<Collected>,
    derivative: Arc<dyn Backward>,
}

impl Function for Arrive {
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        let gradients = self.collected.with(|all| all.remove(&vjp.pass()));
        let derivative = Arc::clone(&self.derivative);
        let gradients = derivative.backward(vjp, gradients.unwrap_or_default())?;
        Ok(Flow::Inputs(gradients))
    }
}

/// The node that results of an operation flow to.
pub(in crate::ops) struct Hub {
    kind: Kind,
    node: Tensor,
    collected: Arc<Collected>,
    at: &'static Location<'static>,
}

impl Hub {
    /// One with these operands, whose gradients `derivative` computes.
    ///
    /// # Errors
    /// Those of recording.
    pub(in crate::ops) fn new(
        kind: Kind,
        derivative: Arc<dyn Backward>,
        operands: &[Tensor],
        at: &'static Location<'static>,
    ) -> Result<Hub> {
        let all: Vec<Operand<'_>> = operands.iter().map(Operand::Tensor).collect();
        let node = trace::record_at(kind.hub(), &all, at)?;
        let collected = Arc::new(Collected::default());
        let function = Arrive {
            collected: Arc::clone(&collected),
            derivative,
        };
        let hub = Hub {
            kind,
            node,
            collected,
            at,
        };
        hub.give(&hub.node, Arc::new(function))?;
        Ok(hub)
    }

    /// A result as one that its gradient flows from.
    ///
    /// # Errors
    /// Those of recording.
    pub(in crate::ops) fn result(&self, index: usize, result: &Tensor) -> Result<Tensor> {
        let operands = [Operand::Tensor(result), Operand::Tensor(&self.node)];
        let through = trace::record_at(self.kind.through(), &operands, self.at)?;
        let leave = Leave {
            collected: Arc::clone(&self.collected),
            index,
        };
        self.give(&through, Arc::new(leave))?;
        Ok(through)
    }

    /// All results, those of them through the hub that gradients flow to.
    ///
    /// # Errors
    /// Those of recording.
    pub(in crate::ops) fn attach(
        &self,
        results: Vec<Tensor>,
        flows: &[bool],
    ) -> Result<Vec<Tensor>> {
        let attached = results.into_iter().zip(flows).enumerate();
        attached
            .map(
                |(index, (result, &flows))| match flows && result.dtype().is_float() {
                    true => self.result(index, &result),
                    false => Ok(result),
                },
            )
            .collect()
    }

    /// Gives the node of a tensor a derivative of its own.
    fn give(&self, tensor: &Tensor, function: Arc<dyn Function>) -> Result<()> {
        trace::with_node(self.kind.name(), tensor, self.at, |_, state, index| {
            state.recording.nodes[index as usize].flags |= flag::GRAD;
            state.recording.functions.insert(index, function);
        })
    }
}

/// A region that is computed again, to be differentiated.
pub(in crate::ops) struct Again<'a> {
    pub(in crate::ops) kind: Kind,
    pub(in crate::ops) region: &'a Region,
    pub(in crate::ops) tape: &'a Tape,
    pub(in crate::ops) numbers: &'a [Number],
    pub(in crate::ops) at: &'static Location<'static>,
}

impl Again<'_> {
    /// The same values as something to differentiate by.
    ///
    /// # Errors
    /// Those of recording.
    pub(in crate::ops) fn variables<'t>(
        &self,
        values: impl IntoIterator<Item = &'t Tensor>,
    ) -> Result<Vec<Tensor>> {
        let variable = |of: &Tensor| {
            let copy = trace::record_at(&COPY, &[Operand::Tensor(of)], self.at)?;
            if copy.dtype().is_float() {
                trace::with_node(self.kind.name(), &copy, self.at, |_, state, index| {
                    state.recording.nodes[index as usize].flags |= flag::GRAD;
                })?;
            }
            Ok(copy)
        };
        enable_grad(|| values.into_iter().map(variable).collect())
    }

    /// The gradients by `sources`, which are among the arguments and captures, given those of some of
    /// the region's results.
    ///
    /// # Errors
    /// Those of the derivative rules.
    pub(in crate::ops) fn gradients(
        &self,
        arguments: &[Tensor],
        captures: &[Tensor],
        seeds: &[(usize, &Tensor)],
        sources: &[&Tensor],
        create: bool,
    ) -> Result<Vec<Tensor>> {
        let (name, at) = (self.kind.name(), self.at);
        let body = (self.region, self.tape, self.numbers);
        let results = enable_grad(|| trace::replay(name, body, arguments, captures, at))?;
        let mut nodes = Vec::with_capacity(sources.len());
        for source in sources {
            nodes.push(trace::with_node(name, source, at, |_, _, index| index)?);
        }
        let roots: Vec<(&Tensor, &Tensor)> = seeds
            .iter()
            .map(|(result, gradient)| (&results[*result], *gradient))
            .collect();
        let found = grad::of_nodes(name, &roots, &nodes, create, at)?;
        let all = sources.iter().zip(found);
        all.map(|(source, gradient)| gradient.map_or_else(|| zeros(source), Ok))
            .collect()
    }
}

/// Zeros of a tensor's type.
pub(in crate::ops) fn zeros(like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(like.shape(), (like.dtype(), like.device()))
}
