//! Gradients through a loop: a loop in the other direction.
//!
//! The carries before each iteration are kept. The reverse loop computes each iteration again from
//! them, differentiates it, and carries the gradients of the carries and, summed, those of what the
//! body captures. It is a loop like any other, so gradients can be differentiated again.
//!
//! A loop has many results and a node one gradient. So the results that gradients flow to are nodes
//! after a hub, which all that the derivative needs are operands of. They leave their gradients in a
//! place that they share with it, and a backward pass, which goes from later nodes to earlier ones,
//! comes to the hub when all have.

use super::looped::Loop;
use super::run::Plan;
use crate::grad::{self, Flow, Function, Gradients, Vjp};
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::{self, Recorded, Region, Tape, enable_grad, flag, is_grad_enabled};
use crate::ty::{Ty, ty};
use crate::{Tensor, ops::COPY};
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{DType, Error, Result, Shape};

/// What the results of a loop depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Hub<const WHILE: bool>;

impl<const WHILE: bool> Operator for Hub<WHILE> {
    const NAME: &'static str = if WHILE { "while_loop" } else { "scan" };
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

/// A result of a loop, with the hub that its gradient flows to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Through<const WHILE: bool>;

impl<const WHILE: bool> Operator for Through<WHILE> {
    const NAME: &'static str = Hub::<WHILE>::NAME;
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

/// The gradients of a loop's results, by backward pass: of the carries, the outputs, and the carries
/// before each iteration.
#[derive(Default)]
struct Collected(Mutex<HashMap<u64, BTreeMap<usize, Tensor>>>);

/// Leaves the gradient of one result.
struct Leave {
    collected: Arc<Collected>,
    index: usize,
}

impl Function for Leave {
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        let mut all = self
            .collected
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let gradients = all.entry(vjp.pass()).or_default();
        gradients.insert(self.index, vjp.grad().clone());
        drop(all);
        let token = Tensor::zeros((), (DType::F32, vjp.grad().device()))?;
        Ok(Flow::Inputs(Gradients::from_iter([None, Some(token)])))
    }
}

/// A loop whose results are to have gradients.
pub(super) struct Origin<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) looped: &'static Loop,
    /// The first values of all carries.
    pub(super) init: &'a [Tensor],
    pub(super) saved: &'a [Tensor],
    pub(super) count: Option<&'a Tensor>,
}

/// The results of a loop as tensors that gradients flow through, where they do.
pub(super) fn attach(
    origin: &Origin<'_>,
    body: Recorded,
    results: Vec<Tensor>,
    flows: &[bool],
) -> Result<Vec<Tensor>> {
    match origin.plan.whiles {
        true => attach_to::<true>(origin, body, results, flows),
        false => attach_to::<false>(origin, body, results, flows),
    }
}

fn attach_to<const WHILE: bool>(
    origin: &Origin<'_>,
    body: Recorded,
    results: Vec<Tensor>,
    flows: &[bool],
) -> Result<Vec<Tensor>> {
    let operands: Vec<Tensor> = origin
        .init
        .iter()
        .chain(origin.plan.sequences)
        .chain(&body.captures)
        .chain(origin.saved)
        .chain(origin.count)
        .cloned()
        .collect();
    let reverse = Reverse {
        whiles: WHILE,
        length: origin
            .looped
            .saves
            .then_some(origin.looped.length)
            .flatten(),
        reverse: origin.looped.reverse,
        carries: origin.init.len(),
        sequences: origin.plan.sequences.len(),
        captures: body.captures.len(),
        counted: origin.count.is_some(),
        region: body.region,
        tape: body.tape,
        numbers: body.numbers,
        at: origin.plan.at,
    };
    let hub = reverse_hub::<WHILE>(&Arc::new(reverse), &operands)?;
    let attached = results.into_iter().zip(flows).enumerate();
    attached
        .map(
            |(index, (result, &flows))| match flows && result.dtype().is_float() {
                true => hub.result::<WHILE>(index, &result),
                false => Ok(result),
            },
        )
        .collect()
}

/// The node that results of a loop flow to.
struct Flowing {
    hub: Tensor,
    collected: Arc<Collected>,
    reverse: Arc<Reverse>,
}

fn reverse_hub<const WHILE: bool>(reverse: &Arc<Reverse>, operands: &[Tensor]) -> Result<Flowing> {
    let at = reverse.at;
    let all: Vec<Operand<'_>> = operands.iter().map(Operand::Tensor).collect();
    let hub = trace::record_at(entry(Hub::<WHILE>), &all, at)?;
    let collected = Arc::new(Collected::default());
    let function = Arrive {
        collected: Arc::clone(&collected),
        reverse: Arc::clone(reverse),
    };
    attach_function(&hub, Arc::new(function), at)?;
    Ok(Flowing {
        hub,
        collected,
        reverse: Arc::clone(reverse),
    })
}

impl Flowing {
    /// A result as one that its gradient flows from.
    fn result<const WHILE: bool>(&self, index: usize, result: &Tensor) -> Result<Tensor> {
        let at = self.reverse.at;
        let operands = [Operand::Tensor(result), Operand::Tensor(&self.hub)];
        let through = trace::record_at(entry(Through::<WHILE>), &operands, at)?;
        let leave = Leave {
            collected: Arc::clone(&self.collected),
            index,
        };
        attach_function(&through, Arc::new(leave), at)?;
        Ok(through)
    }
}

/// Gives the node of a tensor a derivative of its own.
fn attach_function(
    tensor: &Tensor,
    function: Arc<dyn Function>,
    at: &'static Location<'static>,
) -> Result<()> {
    trace::with_node("scan", tensor, at, |_, state, index| {
        state.recording.nodes[index as usize].flags |= flag::GRAD;
        state.recording.functions.insert(index, function);
    })
}

/// The derivative of a loop, as recorded.
struct Reverse {
    whiles: bool,
    /// `None` where the carries are not kept, because nothing bounds the iterations.
    length: Option<usize>,
    reverse: bool,
    carries: usize,
    sequences: usize,
    captures: usize,
    counted: bool,
    region: Region,
    tape: Tape,
    numbers: Vec<Number>,
    at: &'static Location<'static>,
}

/// Takes the gradients of the results that came to a hub.
struct Arrive {
    collected: Arc<Collected>,
    reverse: Arc<Reverse>,
}

impl Function for Arrive {
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        let mut all = self
            .collected
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let gradients = all.remove(&vjp.pass()).unwrap_or_default();
        drop(all);
        if self.reverse.length.is_none() {
            return Err(Error::Autograd {
                op: "while_loop",
                reason: "nothing bounds the number of iterations whose values would be kept".into(),
                advice: "give it max_iterations, or use scan or fori_loop",
                at: self.reverse.at.into(),
            });
        }
        match self.reverse.whiles {
            true => run::<true>(&self.reverse, vjp, &gradients),
            false => run::<false>(&self.reverse, vjp, &gradients),
        }
        .map(Flow::Inputs)
    }
}

/// Which positions of a list a gradient is computed for.
type Places = Vec<usize>;

/// The gradients of a hub's operands.
fn run<const WHILE: bool>(
    this: &Arc<Reverse>,
    vjp: &Vjp<'_>,
    gradients: &BTreeMap<usize, Tensor>,
) -> Result<Gradients> {
    let create = is_grad_enabled();
    let operands = vjp.tensors(0)?;
    let (init, rest) = operands.split_at(this.carries);
    let (sequences, rest) = rest.split_at(this.sequences);
    let (captures, rest) = rest.split_at(this.captures);
    let (saved, count) = rest.split_at(this.carries);
    let floats: Places = (0..this.carries)
        .filter(|&i| init[i].dtype().is_float())
        .collect();
    let wanted = |first: usize, all: &[Tensor]| -> Places {
        let is_wanted = |&i: &usize| vjp.needs(first + i) && all[i].dtype().is_float();
        (0..all.len()).filter(is_wanted).collect()
    };
    let from_sequences = wanted(this.carries, sequences);
    let from_captures = wanted(this.carries + this.sequences, captures);
    let visible = this.region.results.len();
    // The outputs' gradients, one an iteration, and those of the carries before it.
    let outputs: Places = gradients
        .range(this.carries..visible)
        .map(|(i, _)| *i)
        .collect();
    let befores: Places = gradients
        .range(visible..)
        .map(|(i, _)| i - visible)
        .collect();
    let mut first = Vec::new();
    for &i in &floats {
        first.push(match gradients.get(&i) {
            Some(gradient) => gradient.clone(),
            None => zeros(&init[i])?,
        });
    }
    for &k in &from_captures {
        first.push(zeros(&captures[k])?);
    }
    let mut all = saved.to_vec();
    if create {
        // In the derivative of this derivative they depend on what the loop depended on.
        let flowing = reverse_hub::<WHILE>(this, &operands)?;
        for &i in &floats {
            all[i] = flowing.result::<WHILE>(visible + i, &saved[i])?;
        }
    }
    all.extend_from_slice(sequences);
    all.extend(
        gradients
            .range(this.carries..)
            .map(|(_, gradient)| gradient.clone()),
    );
    let plan = Plan {
        whiles: WHILE,
        length: this.length,
        reverse: !this.reverse,
        device: vjp.grad().device(),
        init: &first,
        sequences: &all,
        count: count.first().filter(|_| this.counted),
        at: this.at,
    };
    let (last, stacked) = plan.run(None, |carried, elements| {
        let (before, rest) = elements.split_at(this.carries);
        let (elements, rest) = rest.split_at(this.sequences);
        let (of_outputs, of_befores) = rest.split_at(outputs.len());
        let mut seeds: Vec<(usize, &Tensor)> = floats.iter().copied().zip(carried).collect();
        seeds.extend(outputs.iter().copied().zip(of_outputs));
        let wanted = [&floats, &from_sequences, &from_captures];
        let [mut next, of_elements, of_captures] =
            this.iteration(before, elements, captures, &seeds, wanted, create)?;
        for (i, gradient) in befores.iter().zip(of_befores) {
            if let Some(at) = floats.iter().position(|f| f == i) {
                next[at] = next[at].add(gradient)?;
            }
        }
        let sums = &carried[floats.len()..];
        for (sum, gradient) in sums.iter().zip(of_captures) {
            next.push(sum.add(&gradient)?);
        }
        Ok((next, of_elements))
    })?;
    let mut all: Gradients = smallvec::smallvec![None; vjp.len()];
    let carries = floats.iter().copied();
    let kept = from_captures.iter();
    let kept = kept.map(|k| this.carries + this.sequences + k);
    for (operand, gradient) in carries.chain(kept).zip(last) {
        all[operand] = vjp.needs(operand).then_some(gradient);
    }
    for (k, gradient) in from_sequences.iter().zip(stacked) {
        all[this.carries + k] = Some(gradient);
    }
    Ok(all)
}

impl Reverse {
    fn name(&self) -> &'static str {
        if self.whiles { "while_loop" } else { "scan" }
    }

    /// The gradients of carries, elements and captures in one iteration, which is computed again.
    fn iteration(
        &self,
        carries: &[Tensor],
        elements: &[Tensor],
        captures: &[Tensor],
        seeds: &[(usize, &Tensor)],
        wanted: [&Places; 3],
        create: bool,
    ) -> Result<[Vec<Tensor>; 3]> {
        let at = self.at;
        let (arguments, results) = enable_grad(|| {
            let arguments = carries
                .iter()
                .chain(elements)
                .map(|argument| variable(argument, at))
                .collect::<Result<Vec<_>>>()?;
            let body = (&self.region, &self.tape, &self.numbers[..]);
            let results = trace::replay(self.name(), body, &arguments, captures, at)?;
            Ok((arguments, results))
        })?;
        let sources: [Vec<&Tensor>; 3] = [
            wanted[0].iter().map(|&i| &arguments[i]).collect(),
            wanted[1]
                .iter()
                .map(|&i| &arguments[self.carries + i])
                .collect(),
            wanted[2].iter().map(|&i| &captures[i]).collect(),
        ];
        let mut nodes = Vec::new();
        for source in sources.iter().flatten() {
            nodes.push(trace::with_node("scan", source, at, |_, _, index| index)?);
        }
        let roots: Vec<(&Tensor, &Tensor)> = seeds
            .iter()
            .map(|(result, gradient)| (&results[*result], *gradient))
            .collect();
        let mut found = grad::of_nodes("scan", &roots, &nodes, create, at)?.into_iter();
        let mut of = |sources: &[&Tensor]| -> Result<Vec<Tensor>> {
            let found = sources.iter().zip(found.by_ref());
            found
                .map(|(source, gradient)| gradient.map_or_else(|| zeros(source), Ok))
                .collect()
        };
        Ok([of(&sources[0])?, of(&sources[1])?, of(&sources[2])?])
    }
}

/// The same value as something to differentiate by.
fn variable(of: &Tensor, at: &'static Location<'static>) -> Result<Tensor> {
    let copy = trace::record_at(&COPY, &[Operand::Tensor(of)], at)?;
    if copy.dtype().is_float() {
        trace::with_node("scan", &copy, at, |_, state, index| {
            state.recording.nodes[index as usize].flags |= flag::GRAD;
        })?;
    }
    Ok(copy)
}

fn zeros(like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(like.shape(), (like.dtype(), like.device()))
}
