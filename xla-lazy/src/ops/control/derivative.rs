//! Gradients through a loop: a loop in the other direction.
//!
//! The carries before each iteration are kept. The reverse loop computes each iteration again from
//! them, differentiates it, and carries the gradients of the carries and, summed, those of what the
//! body captures. It is a loop like any other, so gradients can be differentiated again.

use super::hub::{self, Backward, Hub, Kind};
use super::looped::Loop;
use super::run::Plan;
use crate::Tensor;
use crate::grad::{Gradients, Vjp};
use crate::op::Number;
use crate::trace::{Recorded, Region, Tape, is_grad_enabled};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};

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
        kind: origin.plan.kind,
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
    let hub = Arc::new(reverse).hub(&operands)?;
    hub.attach(results, flows)
}

/// The derivative of a loop, as recorded.
struct Reverse {
    kind: Kind,
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

impl Backward for Reverse {
    fn backward(
        self: Arc<Self>,
        vjp: &Vjp<'_>,
        gradients: BTreeMap<usize, Tensor>,
    ) -> Result<Gradients> {
        if self.length.is_none() {
            return Err(Error::Autograd {
                op: self.kind.name(),
                reason: "nothing bounds the number of iterations whose values would be kept".into(),
                advice: "give it max_iterations, or use scan or fori_loop",
                at: self.at.into(),
            });
        }
        self.run(vjp, &gradients)
    }
}

/// Which positions of a list a gradient is computed for.
type Places = Vec<usize>;

impl Reverse {
    /// The node that the loop's results flow to, which depends on these.
    fn hub(self: &Arc<Self>, operands: &[Tensor]) -> Result<Hub> {
        Hub::new(self.kind, Arc::clone(self) as _, operands, self.at)
    }

    /// The gradients of a hub's operands.
    fn run(
        self: &Arc<Self>,
        vjp: &Vjp<'_>,
        gradients: &BTreeMap<usize, Tensor>,
    ) -> Result<Gradients> {
        let create = is_grad_enabled();
        let operands = vjp.tensors(0)?;
        let (init, rest) = operands.split_at(self.carries);
        let (sequences, rest) = rest.split_at(self.sequences);
        let (captures, rest) = rest.split_at(self.captures);
        let (saved, count) = rest.split_at(self.carries);
        let floats: Places = (0..self.carries)
            .filter(|&i| init[i].dtype().is_float())
            .collect();
        let wanted = |first: usize, all: &[Tensor]| -> Places {
            let is_wanted = |&i: &usize| vjp.needs(first + i) && all[i].dtype().is_float();
            (0..all.len()).filter(is_wanted).collect()
        };
        let from_sequences = wanted(self.carries, sequences);
        let from_captures = wanted(self.carries + self.sequences, captures);
        let visible = self.region.results.len();
        // The outputs' gradients, one an iteration, and those of the carries before it.
        let outputs: Places = gradients
            .range(self.carries..visible)
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
                None => hub::zeros(&init[i])?,
            });
        }
        for &k in &from_captures {
            first.push(hub::zeros(&captures[k])?);
        }
        let mut all = saved.to_vec();
        if create {
            // In the derivative of this derivative they depend on what the loop depended on.
            let flowing = self.hub(&operands)?;
            for &i in &floats {
                all[i] = flowing.result(visible + i, &saved[i])?;
            }
        }
        all.extend_from_slice(sequences);
        all.extend(
            gradients
                .range(self.carries..)
                .map(|(_, gradient)| gradient.clone()),
        );
        let plan = Plan {
            kind: self.kind,
            length: self.length,
            reverse: !self.reverse,
            device: vjp.grad().device(),
            init: &first,
            sequences: &all,
            count: count.first().filter(|_| self.counted),
            at: self.at,
        };
        let (last, stacked) = plan.run(None, |carried, elements| {
            let (before, rest) = elements.split_at(self.carries);
            let (elements, rest) = rest.split_at(self.sequences);
            let (of_outputs, of_befores) = rest.split_at(outputs.len());
            let mut seeds: Vec<(usize, &Tensor)> = floats.iter().copied().zip(carried).collect();
            seeds.extend(outputs.iter().copied().zip(of_outputs));
            let wanted = [&floats, &from_sequences, &from_captures];
            let [mut next, of_elements, of_captures] =
                self.iteration(before, elements, captures, &seeds, wanted, create)?;
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
        let kept = kept.map(|k| self.carries + self.sequences + k);
        for (operand, gradient) in carries.chain(kept).zip(last) {
            all[operand] = vjp.needs(operand).then_some(gradient);
        }
        for (k, gradient) in from_sequences.iter().zip(stacked) {
            all[self.carries + k] = Some(gradient);
        }
        Ok(all)
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
        let again = hub::Again {
            kind: self.kind,
            region: &self.region,
            tape: &self.tape,
            numbers: &self.numbers,
            at: self.at,
        };
        let arguments = again.variables(carries.iter().chain(elements))?;
        let of_carries = wanted[0].iter().map(|&i| &arguments[i]);
        let of_elements = wanted[1].iter().map(|&i| &arguments[self.carries + i]);
        let of_captures = wanted[2].iter().map(|&i| &captures[i]);
        let sources: Vec<&Tensor> = of_carries.chain(of_elements).chain(of_captures).collect();
        let mut found = again
            .gradients(&arguments, captures, seeds, &sources, create)?
            .into_iter();
        Ok(wanted.map(|places| found.by_ref().take(places.len()).collect()))
    }
}
