//! Recording a region once more.

use super::{Region, Step, Tape};
use crate::op::{Number, OpEntry};
use crate::tensor::Tensor;
use crate::trace::recording::{Input, flag, number_type};
use crate::trace::{State, Trace, is_grad_enabled, with_node};
use crate::ty::Ty;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};

/// Records a region's operators in the open region of the calling thread, so that gradients flow where
/// they flowed: its results for these arguments and captures.
///
/// # Errors
/// Those of tensors whose own program failed; [`Error::ForeignTrace`] for tensors of two traces.
pub(crate) fn replay(
    op: &'static str,
    (region, tape, numbers): (&Region, &Tape, &[Number]),
    arguments: &[Tensor],
    captures: &[Tensor],
    location: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let mut target: Option<Arc<Trace>> = None;
    let mut outside = |tensor: &Tensor| -> Result<u32> {
        let (trace, index) = with_node(op, tensor, location, |trace, _, index| {
            (Arc::clone(trace), index)
        })?;
        let same = target.get_or_insert_with(|| Arc::clone(&trace));
        match Arc::ptr_eq(same, &trace) {
            true => Ok(index),
            false => Err(Error::ForeignTrace {
                op,
                at: location.into(),
            }),
        }
    };
    let arguments = arguments
        .iter()
        .map(&mut outside)
        .collect::<Result<Vec<_>>>()?;
    let captures = captures
        .iter()
        .map(&mut outside)
        .collect::<Result<Vec<_>>>()?;
    let trace = match (target, arguments.first()) {
        (Some(trace), _) => trace,
        (None, _) => Trace::of_thread(crate::spmd::default_device(op)?),
    };
    let mut state = trace.lock();
    let mut values: Vec<u32> = Vec::with_capacity(region.nodes.len());
    let mut known: Vec<Option<Input>> = vec![None; numbers.len()];
    for (at, node) in region.nodes.iter().enumerate() {
        let value = match &node.step {
            Step::Argument(i) => arguments[*i as usize],
            Step::Capture(k) => captures[*k as usize],
            Step::Apply(entry, inputs) => {
                let inputs: Vec<Input> = inputs
                    .iter()
                    .map(|input| match *input {
                        Input::Node(j) => Input::Node(values[j as usize]),
                        Input::Number(class, k) => {
                            let number = numbers[k as usize];
                            let dtype = number_type(class).dtype();
                            let all = &mut state.recording.numbers;
                            *known[k as usize].get_or_insert_with(|| all.push(dtype, number))
                        }
                    })
                    .collect();
                let flows = tape.flows[at];
                let index = state.apply(entry, node.ty, &inputs, flows, node.location);
                if let Some(function) = tape.functions.get(&(at as u32)) {
                    state.recording.nodes[index as usize].flags |= flag::GRAD;
                    let functions = &mut state.recording.functions;
                    functions.insert(index, Arc::clone(function));
                }
                index
            }
        };
        values.push(value);
    }
    let results = region.results.iter();
    Ok(results
        .map(|&result| match &region.nodes[result as usize].step {
            Step::Apply(..) => state.handle(&trace, values[result as usize]),
            // A value from outside as it is: a node of its own begins here.
            _ => {
                let input = values[result as usize];
                let ty = state.recording.nodes[input as usize].ty;
                let copy =
                    state.apply(&crate::ops::COPY, ty, &[Input::Node(input)], true, location);
                state.handle(&trace, copy)
            }
        })
        .collect())
}

impl State {
    /// Appends an operator whose result has this type; `flows` says whether it may record gradients.
    fn apply(
        &mut self,
        entry: &'static OpEntry,
        ty: Ty,
        inputs: &[Input],
        flows: bool,
        location: &'static Location<'static>,
    ) -> u32 {
        let wanted = |input: &Input| match input {
            Input::Node(j) => self.recording.nodes[*j as usize].has(flag::GRAD),
            Input::Number(..) => false,
        };
        let grad = flows
            && entry.differentiable
            && ty.dtype().is_float()
            && is_grad_enabled()
            && inputs.iter().any(wanted);
        let flags = if grad { flag::GRAD } else { 0 };
        self.recording.push(entry, ty, inputs, flags, location)
    }
}
