//! Recording a loop.

use super::derivative::{self, Origin};
use super::hub::Kind;
use super::looped::{Loop, LoopResult};
use crate::Tensor;
use crate::intern::Interned;
use crate::op::{Number, OpEntry, entry};
use crate::trace::{self, Argument, NumberClass, Recorded, is_grad_enabled, record_region};
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Device, Error, Result, Shape};

/// A loop to be recorded.
pub(super) struct Plan<'a> {
    pub(super) kind: Kind,
    pub(super) length: Option<usize>,
    pub(super) reverse: bool,
    pub(super) device: Device,
    pub(super) init: &'a [Tensor],
    pub(super) sequences: &'a [Tensor],
    /// How many of `length` iterations there are, where that is data.
    pub(super) count: Option<&'a Tensor>,
    pub(super) at: &'static Location<'static>,
}

/// What a loop returned: the carries at its end, and its outputs of all iterations.
pub(super) type Returned = (Vec<Tensor>, Vec<Tensor>);

/// Tells when a loop goes on, from its carries.
pub(super) type Condition<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<Tensor>;

impl Plan<'_> {
    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn arguments(&self) -> Vec<Argument> {
        let grad = is_grad_enabled();
        let whole = self.init.iter().map(Tensor::ty);
        let elements = self.sequences.iter().map(|s| row(s.ty()));
        let types = whole.chain(elements);
        types.map(|ty| Argument { ty, grad }).collect()
    }

    /// Records the loop and returns what it returns.
    ///
    /// # Errors
    /// Those of the functions; [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for a carry that
    /// changes its type, or a condition that is no `bool`.
    pub(super) fn run(
        &self,
        condition: Option<Condition<'_>>,
        body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<Returned>,
    ) -> Result<Returned> {
        let arguments = self.arguments();
        let carries = self.init.len();
        let mut body = record_region(
            self.name(),
            self.device,
            &arguments,
            carries,
            self.at,
            |given| {
                let (carried, outputs) = body(&given[..carries], &given[carries..])?;
                self.check(&carried)?;
                Ok(carried.into_iter().chain(outputs).collect())
            },
        )?;
        let mut init = self.init.to_vec();
        init.extend(body.changed.iter().map(|(_, before)| before.clone()));
        let condition = match condition {
            None => None,
            Some(condition) => Some(self.condition(condition, &arguments[..carries], &body)?),
        };
        if self.length == Some(0) {
            return self.nothing(&body);
        }
        let wants = is_grad_enabled()
            && init
                .iter()
                .chain(self.sequences)
                .chain(&body.captures)
                .any(Tensor::requires_grad);
        let new = Loop {
            length: self.length,
            reverse: self.reverse,
            counted: self.count.is_some(),
            carries: init.len(),
            sequences: self.sequences.len(),
            saves: wants && self.length.is_some(),
            body: body.region.clone(),
            condition: condition.as_ref().map(|c| c.region.clone()),
        };
        let looped = Interned::new("loop", new);
        let captures = body.captures.clone();
        let of_condition = condition.as_ref().map_or(&[][..], |c| &c.captures);
        let tensors: Vec<&Tensor> = init
            .iter()
            .chain(self.sequences)
            .chain(self.count)
            .chain(&captures)
            .chain(of_condition)
            .collect();
        let mut numbers = classed(&body);
        numbers.extend(condition.iter().flat_map(classed));
        let entries: Vec<_> = (0..looped.results())
            .map(|index| self.result(looped, index))
            .collect();
        let mut results = trace::record_classed(&entries, &tensors, &numbers, self.at)?;
        let visible = init.len() + looped.outputs();
        let mut saved = results.split_off(visible);
        let changed = std::mem::take(&mut body.changed);
        if wants {
            let count = match (self.count, saved.pop()) {
                (Some(given), _) => Some(given.clone()),
                (None, count) => count.filter(|_| condition.is_some()),
            };
            let flows: Vec<bool> = (0..visible).map(|i| body.flows(i)).collect();
            let origin = Origin {
                plan: self,
                looped: looped.get(),
                init: &init,
                saved: &saved,
                count: count.as_ref(),
            };
            results = derivative::attach(&origin, body, results, &flows)?;
        }
        let explicit = self.init.len();
        let mut carried: Vec<Tensor> = results.drain(..init.len()).collect();
        for ((storage, _), after) in changed.iter().zip(carried.drain(explicit..)) {
            trace::rebind(self.name(), storage, &after, self.at)?;
        }
        Ok((carried, results))
    }

    fn check(&self, carried: &[Tensor]) -> Result<()> {
        if carried.len() != self.init.len() {
            let expected = format!("{} carried tensors, as it was given", self.init.len());
            let error = Error::argument(self.name(), "body", expected, carried.len());
            return Err(error.at(self.at));
        }
        for (index, (new, old)) in carried.iter().zip(self.init).enumerate() {
            if new.dtype() != old.dtype() {
                let expected = format!("{} for carry {index}, as before", old.dtype());
                return Err(Error::dtype(self.name(), expected, new.dtype()).at(self.at));
            }
            if new.shape() != old.shape() {
                let expected = format!("shape {} for carry {index}, as before", old.shape());
                return Err(Error::shape(self.name(), expected, new.shape()).at(self.at));
            }
        }
        Ok(())
    }

    fn condition(
        &self,
        condition: Condition<'_>,
        arguments: &[Argument],
        body: &Recorded,
    ) -> Result<Recorded> {
        let mut recorded = record_region(
            self.name(),
            self.device,
            arguments,
            arguments.len(),
            self.at,
            |carried| Ok(vec![trace::no_grad(|| condition(carried))?]),
        )?;
        if !recorded.changed.is_empty() {
            let expected = "a function that changes no tensor in place";
            let error = Error::argument(self.name(), "condition", expected, "one that does");
            return Err(error.at(self.at));
        }
        let returned = recorded.region.result(0);
        if returned != ty(DType::Bool, &Shape::scalar()) {
            let expected = "a condition that returns one bool";
            return Err(Error::shape(self.name(), expected, returned).at(self.at));
        }
        // What the body changes in place is a carry to the condition too.
        for (at, (storage, _)) in body.changed.iter().enumerate() {
            let same = |c: &Tensor| c.view.is_none() && std::sync::Arc::ptr_eq(&c.storage, storage);
            if let Some(capture) = recorded.captures.iter().position(same) {
                recorded.captures.remove(capture);
                let argument = arguments.len() + at;
                recorded.region.promote(capture as u32, argument as u32);
            }
        }
        Ok(recorded)
    }

    /// What a loop without iterations returns.
    fn nothing(&self, body: &Recorded) -> Result<Returned> {
        let outputs = self.init.len() + body.changed.len()..body.region.results.len();
        let empty = |i: usize| {
            let element = body.region.result(i);
            let mut dims = vec![0];
            dims.extend_from_slice(element.shape().dims());
            Tensor::zeros(dims.as_slice(), (element.dtype(), self.device))
        };
        let outputs = outputs.map(empty).collect::<Result<_>>()?;
        Ok((self.init.to_vec(), outputs))
    }

    fn result(&self, looped: Interned<Loop>, index: usize) -> &'static OpEntry {
        match self.kind {
            Kind::While => entry(LoopResult::<true> { looped, index }),
            _ => entry(LoopResult::<false> { looped, index }),
        }
    }
}

/// The type of an element along the first axis.
fn row(sequence: Ty) -> Ty {
    ty(sequence.dtype(), &Shape::new(&sequence.shape().dims()[1..]))
}

fn classed(of: &Recorded) -> Vec<(NumberClass, Number)> {
    let classes = of.region.numbers.iter().copied();
    classes.zip(of.numbers.iter().copied()).collect()
}
