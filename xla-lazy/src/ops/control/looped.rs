//! The loop as an operator, and its lowering.

use crate::intern::Interned;
use crate::op::{Derivative, InputType, Operator};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::Region;
use crate::ty::{Ty, ty};
use std::fmt;
use xla_core::{DType, Dims, Error, Result, Shape};

/// A loop. Its operands are the carries' first values, the sequences, the number of iterations where
/// that is data, what body and condition capture, and their numbers. Its results are the carries'
/// last values, the body's outputs of all iterations, and, where they are saved, the carries before
/// each iteration and the number of iterations.
///
/// The body's arguments are the carries and an element of each sequence; it returns the carries and
/// the outputs.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Loop {
    /// Most iterations; `None` where only the condition ends the loop.
    pub(super) length: Option<usize>,
    /// Whether the sequences are gone through from their end.
    pub(super) reverse: bool,
    /// Whether an operand says how many iterations there are, at most `length`.
    pub(super) counted: bool,
    pub(super) carries: usize,
    pub(super) sequences: usize,
    /// Whether the carries before each iteration are results.
    pub(super) saves: bool,
    pub(super) body: Region,
    /// Of the carries; a loop without one runs to its length.
    pub(super) condition: Option<Region>,
}

/// Where the operands of a loop begin.
struct Places {
    sequences: usize,
    count: usize,
    body: usize,
    condition: usize,
    body_numbers: usize,
    condition_numbers: usize,
    end: usize,
}

impl Loop {
    /// The outputs of the body that are stacked.
    pub(super) fn outputs(&self) -> usize {
        self.body.results.len() - self.carries
    }

    /// Number of results.
    pub(super) fn results(&self) -> usize {
        let saved = if self.saves { self.carries + 1 } else { 0 };
        self.carries + self.outputs() + saved
    }

    fn stacked(&self, element: Ty) -> Ty {
        let mut dims = Dims::from_elem(self.length.unwrap_or_default(), 1);
        dims.extend_from_slice(element.shape().dims());
        ty(element.dtype(), &Shape::from(dims))
    }

    /// The type of a result.
    fn result(&self, index: usize) -> Ty {
        let outputs = self.outputs();
        match index {
            i if i < self.carries => self.body.result(i),
            i if i < self.carries + outputs => self.stacked(self.body.result(i)),
            i if i < 2 * self.carries + outputs => {
                self.stacked(self.body.result(i - self.carries - outputs))
            }
            _ => index_type(),
        }
    }

    fn places(&self) -> Places {
        let condition = self.condition.as_ref();
        let captures = |r: &Region| r.captures as usize;
        let sequences = self.carries;
        let count = sequences + self.sequences;
        let body = count + usize::from(self.counted);
        let of_condition = body + captures(&self.body);
        let body_numbers = of_condition + condition.map_or(0, captures);
        let condition_numbers = body_numbers + self.body.numbers.len();
        Places {
            sequences,
            count,
            body,
            condition: of_condition,
            body_numbers,
            condition_numbers,
            end: condition_numbers + condition.map_or(0, |r| r.numbers.len()),
        }
    }

    /// The variables are the iteration, the carries, the stacks under construction, and whatever does
    /// not vary: captures and sequences are handed through, so that every compiler keeps them where
    /// they are.
    fn lower(&self, f: &mut Func, operands: &[Value]) -> Result<Vec<Value>> {
        let at = self.places();
        if operands.len() != at.end {
            return Err(Error::Internal {
                what: "loop",
                expected: format!("{} operands, not {}", at.end, operands.len()),
            });
        }
        let scalar = Shape::scalar();
        let first = f.constant_int(DType::I64, &scalar, 0);
        let mut variables = vec![first];
        variables.extend_from_slice(&operands[..self.carries]);
        let stacks = self.carries..self.results() - usize::from(self.saves);
        for result in stacks.clone() {
            let ty = self.result(result);
            variables.push(f.constant(ty.dtype(), ty.shape(), 0.0));
        }
        let fixed = variables.len() - self.carries;
        variables.extend_from_slice(&operands[self.carries..]);
        let limit = |f: &mut Func, v: &[Value]| match (self.counted, self.length) {
            (true, _) => Some(v[fixed + at.count]),
            (false, Some(n)) => Some(f.constant_int(DType::I64, &Shape::scalar(), n as i64)),
            (false, None) => None,
        };
        let ended = f.while_loop(
            &variables,
            |f, v| {
                let limit = limit(f, v);
                let within = limit.map(|limit| f.compare(Compare::Lt, v[0], limit));
                let goes_on = match &self.condition {
                    None => None,
                    Some(condition) => {
                        let captures = &v[fixed + at.condition..fixed + at.body_numbers];
                        let numbers = &v[fixed + at.condition_numbers..fixed + at.end];
                        let carries = &v[1..=self.carries];
                        condition
                            .lower(f, carries, captures, numbers)?
                            .first()
                            .copied()
                    }
                };
                match (within, goes_on) {
                    (Some(a), Some(b)) => Ok(f.binary("and", a, b)),
                    (Some(one), None) | (None, Some(one)) => Ok(one),
                    (None, None) => Err(Error::Internal {
                        what: "loop",
                        expected: "a length or a condition".into(),
                    }),
                }
            },
            |f, v| {
                let one = f.constant_int(DType::I64, &Shape::scalar(), 1);
                let next = f.binary("add", v[0], one);
                let position = match limit(f, v).filter(|_| self.reverse) {
                    Some(limit) => f.binary("subtract", limit, next),
                    None => v[0],
                };
                let mut arguments = v[1..=self.carries].to_vec();
                for &sequence in &v[fixed + at.sequences..fixed + at.count] {
                    arguments.push(element(f, sequence, position));
                }
                let captures = &v[fixed + at.body..fixed + at.condition];
                let numbers = &v[fixed + at.body_numbers..fixed + at.condition_numbers];
                let mut results = self.body.lower(f, &arguments, captures, numbers)?;
                if self.saves {
                    results.extend_from_slice(&v[1..=self.carries]);
                }
                let mut new = vec![next];
                new.extend_from_slice(&results[..self.carries]);
                for (stack, &value) in stacks.clone().zip(&results[self.carries..]) {
                    new.push(replaced(f, v[1 + stack], value, position));
                }
                new.extend_from_slice(&v[fixed + self.carries..]);
                Ok(new)
            },
        )?;
        let mut results = ended[1..1 + self.results() - usize::from(self.saves)].to_vec();
        results.extend(self.saves.then_some(ended[0]));
        Ok(results)
    }
}

/// The type of iterations.
pub(super) fn index_type() -> Ty {
    ty(DType::I64, &Shape::scalar())
}

fn starts(f: &mut Func, rank: usize, position: Value) -> Vec<Value> {
    let zero = f.constant_int(DType::I64, &Shape::scalar(), 0);
    let mut starts = vec![zero; rank];
    starts[0] = position;
    starts
}

/// `stack[position]`.
fn element(f: &mut Func, stack: Value, position: Value) -> Value {
    let mut sizes: Dims = stack.shape().dims().into();
    sizes[0] = 1;
    let starts = starts(f, sizes.len(), position);
    let slice = f.dynamic_slice(stack, &starts, &sizes);
    f.reshape(slice, &Shape::new(&stack.shape().dims()[1..]))
}

/// `stack` with `value` at `position`.
fn replaced(f: &mut Func, stack: Value, value: Value, position: Value) -> Value {
    let mut dims = Dims::from_elem(1, 1);
    dims.extend_from_slice(value.shape().dims());
    let starts = starts(f, dims.len(), position);
    let row = f.reshape(value, &Shape::from(dims));
    f.dynamic_update_slice(stack, row, &starts)
}

impl fmt::Debug for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            Some(length) => write!(f, "of at most {length} iterations, ")?,
            None => f.write_str("as long as its condition holds, ")?,
        }
        write!(f, "{} operators", self.body.nodes.len())
    }
}

/// One result of a loop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LoopResult<const WHILE: bool> {
    pub(super) looped: Interned<Loop>,
    pub(super) index: usize,
}

impl<const WHILE: bool> Operator for LoopResult<WHILE> {
    const NAME: &'static str = if WHILE { "while_loop" } else { "scan" };
    // Gradients flow through a node beside it, which has the loop's tape.
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(self.looped.result(self.index))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let looped = self.looped;
        let results = f.once(looped.number(), inputs, |f| looped.lower(f, inputs))?;
        Ok(results[self.index])
    }
}
