//! What `XLA_DEBUG=nan` and `XLA_DEBUG=index` watch: a program computes, besides its results, which
//! of its values hold a NaN or an infinity, and which indices are out of range.

use crate::stablehlo::{Compare, Func, Origin, Reduction, Value, Watched};
use crate::trace::{Input, Recording, flag};
use std::collections::HashSet;
use std::panic::Location;
use xla_core::{Config, DType, Error, Literal, Result, Shape};

/// Bits of a word that values are packed in.
const WORD: usize = 32;

/// What a program tells about itself. Each part that is not empty is one result more than the program
/// has otherwise, in this order, before the order value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    /// The nodes of which two bits are told, whether they hold a NaN and an infinity.
    values: Vec<u32>,
    /// The operators inside of these nodes, which are loops, each after those that it reads; of each a
    /// bit is told, whether it has made a NaN.
    bodies: Vec<(u32, Origin)>,
    /// What indexes; of each an index out of range is told.
    indices: Vec<Indexing>,
}

/// An operator that indexes.
#[derive(Debug, Clone, Copy)]
struct Indexing {
    node: u32,
    axis: usize,
    /// The axis's length.
    size: usize,
    /// Which operator, where the node is a loop.
    inside: Option<Origin>,
}

/// Whether indices are watched.
pub(crate) fn watches_indices() -> bool {
    Config::global().is_ok_and(|config| config.debug.index)
}

/// Whether values are watched.
pub(crate) fn watches_values() -> bool {
    Config::global().is_ok_and(|config| config.debug.nan)
}

impl Checks {
    /// Adds what is watched to a program whose nodes have these values.
    pub(crate) fn lower(
        f: &mut Func,
        values: &[Option<Value>],
        watched: &[(u32, Watched)],
    ) -> (Checks, Vec<Value>) {
        let mut checks = Checks::default();
        let mut results = Vec::new();
        let mut bits = Vec::new();
        let floats = (0u32..).zip(values).filter_map(|(i, v)| Some((i, (*v)?)));
        for (node, value) in floats.filter(|(_, v)| watches_values() && v.dtype().is_float()) {
            checks.values.push(node);
            bits.extend(not_finite(f, value));
        }
        for (node, seen) in watched {
            for value in &seen.values {
                checks.bodies.push((*node, value.inside));
                bits.push(value.made_nan);
            }
        }
        if !bits.is_empty() {
            results.push(packed(f, &bits));
        }
        let mut outside = Vec::new();
        for (node, seen) in watched {
            for index in &seen.indices {
                outside.push(f.reshape(index.value, &Shape::new(&[1])));
                checks.indices.push(Indexing {
                    node: *node,
                    axis: index.axis,
                    size: index.size,
                    inside: index.inside,
                });
            }
        }
        if !outside.is_empty() {
            results.push(f.concatenate(&outside, 0));
        }
        (checks, results)
    }

    /// Number of results.
    pub(crate) fn results(&self) -> usize {
        usize::from(self.tells_values()) + usize::from(!self.indices.is_empty())
    }

    fn tells_values(&self) -> bool {
        !(self.values.is_empty() && self.bodies.is_empty())
    }

    /// What the results say of a recording that the program was made of, of which `live` nodes were
    /// computed for the user.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for the first index out of range; else [`Error::NotANumber`] where a
    /// result holds a NaN, for the first operator whose NaN came to be in it. One that an operator
    /// leaves out, as a `where` does, is none.
    pub(crate) fn verdict(
        &self,
        recording: &Recording,
        live: &[u32],
        results: &[Literal],
    ) -> Result<()> {
        let mut results = results.iter();
        let mut words: &[u32] = &[];
        if self.tells_values()
            && let Some(told) = results.next()
        {
            words = told.as_slice()?;
        }
        if !self.indices.is_empty()
            && let Some(told) = results.next()
        {
            let told = told.as_slice::<i64>()?;
            let mut all = self.indices.iter().zip(told);
            if let Some((indexing, &index)) = all.find(|(_, told)| **told != i64::MIN) {
                let node = recording.nodes[indexing.node as usize];
                let (op, at) = match indexing.inside {
                    Some(inside) => (inside.op, inside.at),
                    None => (node.entry.name(), node.location),
                };
                return Err(Error::IndexOutOfRange {
                    op,
                    index,
                    axis: indexing.axis,
                    size: indexing.size,
                    at: at.into(),
                });
            }
        }
        let bit = |i: usize| {
            words
                .get(i / WORD)
                .is_some_and(|w| w >> (i % WORD) & 1 == 1)
        };
        let with = |which: usize| -> HashSet<u32> {
            let places = (0..self.values.len()).filter(|i| bit(2 * i + which));
            places.map(|i| self.values[i]).collect()
        };
        let nan = with(0);
        let Some(first) = origin(recording, live, &nan) else {
            return Ok(());
        };
        let made = (0..self.bodies.len()).filter(|i| bit(2 * self.values.len() + i));
        let made = made.map(|i| self.bodies[i]);
        if let Some(inside) = inside(recording, first, made) {
            let node = recording.nodes[first as usize];
            let (op, at) = (node.entry.name(), node.location);
            return Err(Error::NotANumber {
                op: inside.op,
                note: format!("; none of its operands has one, in the body of {op} at {at}"),
                at: inside.at.into(),
            });
        }
        let before = with(1).into_iter().filter(|node| *node < first);
        Err(not_a_number(recording, first, before.min()))
    }
}

/// The first node whose NaN came to be in a live one: it has one and its operands have none.
fn origin(recording: &Recording, live: &[u32], nan: &HashSet<u32>) -> Option<u32> {
    let mut seen = HashSet::new();
    let mut pending: Vec<u32> = live.iter().copied().filter(|i| nan.contains(i)).collect();
    let mut first = None;
    while let Some(node) = pending.pop() {
        if !seen.insert(node) {
            continue;
        }
        let operands = recording.inputs(&recording.nodes[node as usize]);
        let before = pending.len();
        pending.extend(operands.filter_map(|operand| match operand {
            Input::Node(j) if nan.contains(&j) => Some(j),
            _ => None,
        }));
        if pending.len() == before {
            first = Some(first.map_or(node, |known: u32| known.min(node)));
        }
    }
    first
}

/// The first operator that has made a NaN in the body of the loop that a node is a result of.
///
/// A loop tells of its body where its first result is lowered, and its results are recorded one after
/// the other, with the same operands.
fn inside(
    recording: &Recording,
    node: u32,
    made: impl Iterator<Item = (u32, Origin)>,
) -> Option<Origin> {
    let result = &recording.nodes[node as usize];
    let is_it = |other: &u32| {
        let told = &recording.nodes[*other as usize];
        let same = recording.inputs(told).eq(recording.inputs(result));
        same && told.entry.name == result.entry.name
    };
    let before = made.filter(|(other, _)| *other <= node && is_it(other));
    let mut found: Option<(u32, Origin)> = None;
    for (other, origin) in before {
        if found.is_none_or(|(nearest, _)| nearest < other) {
            found = Some((other, origin));
        }
    }
    found.map(|(_, origin)| origin)
}

fn not_a_number(recording: &Recording, node: u32, infinity: Option<u32>) -> Error {
    let of = |node: u32| {
        let node = recording.nodes[node as usize];
        (node.entry.name(), node.location, node.has(flag::PARAM))
    };
    let (op, at, given) = of(node);
    let mut note = match given {
        true => "; the program was given it: by an earlier one, or by the host".to_owned(),
        false => "; none of its operands has one".to_owned(),
    };
    if let Some(first) = infinity {
        note += &said(of(first));
    }
    Error::NotANumber {
        op,
        note,
        at: at.into(),
    }
}

fn said((op, at, given): (&'static str, &'static Location<'static>, bool)) -> String {
    match given {
        true => format!(", but an infinity was given to the program, read first at {at}"),
        false => format!(", but {op} at {at} produced an infinity before"),
    }
}

/// Whether a value holds a NaN, and whether an infinity.
fn not_finite(f: &mut Func, x: Value) -> [Value; 2] {
    let all: Vec<usize> = (0..x.shape().rank()).collect();
    let size = f.unary("abs", x);
    let limit = f.constant(x.dtype(), x.shape(), f64::INFINITY);
    let infinite = f.compare(Compare::Eq, size, limit);
    [f.has_nan(x), f.reduce(Reduction::Or, infinite, &all)]
}

/// Scalars of `bool` as the bits of words, the first the lowest of the first word.
fn packed(f: &mut Func, bits: &[Value]) -> Value {
    let one = Shape::new(&[1]);
    let words = bits.len().div_ceil(WORD);
    let mut each: Vec<Value> = bits.iter().map(|bit| f.reshape(*bit, &one)).collect();
    let rest = words * WORD - bits.len();
    if rest > 0 {
        each.push(f.constant(DType::Bool, &Shape::new(&[rest]), 0.0));
    }
    let row = f.concatenate(&each, 0);
    let grid = Shape::new(&[words, WORD]);
    let row = f.reshape(row, &grid);
    let numbers = f.convert(row, DType::U32);
    let places = f.iota(DType::U32, &grid, 1);
    let shifted = f.binary("shift_left", numbers, places);
    f.reduce(Reduction::Or, shifted, &[1])
}
