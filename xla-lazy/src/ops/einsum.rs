//! Einstein's summation.

use super::matmul::{Labelled, contract};
use crate::Tensor;
use crate::autocast::{lower, widest};
use std::collections::BTreeMap;
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result};

const OP: &str = "einsum";

/// Labels below this are letters; the axes that an ellipsis stands for are numbered from here, the
/// last one first, so that they line up from the right.
const ELLIPSIS: usize = 256;

/// One term of an equation: letters before and after the ellipsis, if there is one.
#[derive(Debug)]
struct Term {
    before: Vec<usize>,
    after: Option<Vec<usize>>,
}

impl Term {
    fn parse(text: &str) -> Result<Term> {
        let (before, after) = match text.split_once("...") {
            Some((before, after)) => (before, Some(after)),
            None => (text, None),
        };
        let letters = |part: &str| -> Result<Vec<usize>> {
            part.chars()
                .map(|c| match c.is_ascii_alphabetic() {
                    true => Ok(c as usize),
                    false => Err(equation("letters, at most one ellipsis a term", c)),
                })
                .collect()
        };
        Ok(Term {
            before: letters(before)?,
            after: after.map(letters).transpose()?,
        })
    }

    /// The label of each axis, where the ellipsis stands for so many axes.
    fn labels(&self, hidden: usize) -> Vec<usize> {
        let mut labels = self.before.clone();
        if let Some(after) = &self.after {
            labels.extend((0..hidden).rev().map(|i| ELLIPSIS + i));
            labels.extend(after);
        }
        labels
    }

    fn letters(&self) -> usize {
        self.before.len() + self.after.as_ref().map_or(0, Vec::len)
    }
}

fn equation(expected: impl Into<String>, got: impl std::fmt::Display) -> Error {
    Error::argument(OP, "equation", expected, got)
}

fn name(label: usize) -> String {
    match u8::try_from(label) {
        Ok(letter) => format!("label {}", char::from(letter)),
        Err(_) => format!("axis -{} of the ellipsis", label - ELLIPSIS + 1),
    }
}

/// The operands' labels and the output's.
fn parse(text: &str, operands: &[&Tensor]) -> Result<(Vec<Vec<usize>>, Vec<usize>)> {
    let text: String = text.chars().filter(|c| *c != ' ').collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let terms: Vec<Term> = left.split(',').map(Term::parse).collect::<Result<_>>()?;
    if terms.len() != operands.len() {
        let expected = format!("{} operands, one for each term of {text}", terms.len());
        return Err(Error::argument(OP, "operands", expected, operands.len()));
    }
    let mut labels = Vec::new();
    let mut hidden = 0;
    for (i, (term, operand)) in terms.iter().zip(operands).enumerate() {
        let covered = operand.rank().checked_sub(term.letters());
        let rest = match (covered, &term.after) {
            (Some(rest), Some(_)) => rest,
            (Some(0), None) => 0,
            _ => {
                let at_least = if term.after.is_some() {
                    "at least "
                } else {
                    ""
                };
                let expected = format!("operand {i} with {at_least}{} axes", term.letters());
                return Err(Error::shape(OP, expected, operand.shape()));
            }
        };
        hidden = hidden.max(rest);
        labels.push(term.labels(rest));
    }
    let out = match right {
        Some(right) => Term::parse(right)?.labels(hidden),
        None => {
            let mut counts = BTreeMap::new();
            for &label in labels.iter().flatten() {
                *counts.entry(label).or_insert(0) += 1;
            }
            // The map is sorted: letters as PyTorch orders them, capitals first.
            let once = counts
                .iter()
                .filter(|(label, count)| **label < ELLIPSIS && **count == 1);
            let ellipsis = (0..hidden).rev().map(|i| ELLIPSIS + i);
            ellipsis.chain(once.map(|(label, _)| *label)).collect()
        }
    };
    for (i, label) in out.iter().enumerate() {
        if out[..i].contains(label) {
            return Err(equation("each label once in the output", name(*label)));
        }
        if !labels.iter().any(|l| l.contains(label)) {
            let expected = "output labels that an operand has";
            return Err(equation(expected, name(*label)));
        }
    }
    Ok((labels, out))
}

/// The length of each label: the only one other than 1 that its axes have.
fn lengths(labels: &[Vec<usize>], operands: &[&Tensor]) -> Result<BTreeMap<usize, usize>> {
    let mut lengths = BTreeMap::new();
    for (i, (labels, operand)) in labels.iter().zip(operands).enumerate() {
        for (&label, &size) in labels.iter().zip(operand.dims()) {
            let known = lengths.entry(label).or_insert(size);
            if *known == 1 {
                *known = size;
            } else if size != 1 && size != *known {
                let expected = format!("length {known} for {} of operand {i}", name(label));
                return Err(Error::shape(OP, expected, operand.shape()));
            }
        }
    }
    Ok(lengths)
}

/// An operand with each label once: a repeated one is its diagonal. Axes of length 1 whose label is
/// longer elsewhere are left out, as they only repeat.
fn operand(
    tensor: &Tensor,
    mut labels: Vec<usize>,
    lengths: &BTreeMap<usize, usize>,
    index: usize,
) -> Result<Labelled> {
    let mut tensor = tensor.clone();
    let pair = |labels: &[usize]| {
        labels.iter().enumerate().find_map(|(i, label)| {
            let j = labels[..i].iter().position(|l| l == label)?;
            Some((j, i))
        })
    };
    while let Some((first, second)) = pair(&labels) {
        let (a, b) = (tensor.dims()[first], tensor.dims()[second]);
        if a != b {
            let expected = format!(
                "axes of one length for {}, which operand {index} repeats",
                name(labels[first])
            );
            return Err(Error::shape(OP, expected, tensor.shape()));
        }
        tensor = tensor.diagonal(0, first as i64, second as i64)?;
        let label = labels.remove(second);
        labels.remove(first);
        labels.push(label);
    }
    let longer = |i: usize, label: usize| tensor.dims()[i] != lengths[&label];
    if !labels
        .iter()
        .enumerate()
        .any(|(i, &label)| longer(i, label))
    {
        return Ok(Labelled { tensor, labels });
    }
    let kept: Vec<usize> = (0..labels.len())
        .filter(|&i| !longer(i, labels[i]))
        .collect();
    let dims: Dims = kept.iter().map(|&i| tensor.dims()[i]).collect();
    Ok(Labelled {
        tensor: tensor.reshape(dims.as_slice())?,
        labels: kept.iter().map(|&i| labels[i]).collect(),
    })
}

/// The pair whose product takes the fewest multiplications, the first of equal ones.
fn cheapest(operands: &[Labelled], lengths: &BTreeMap<usize, usize>) -> (usize, usize) {
    let cost = |a: &Labelled, b: &Labelled| -> f64 {
        let others = b.labels.iter().filter(|l| !a.has(**l));
        let all = a.labels.iter().chain(others);
        all.map(|label| lengths[label] as f64).product()
    };
    let pairs = (0..operands.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs
        .map(|(i, j)| (cost(&operands[i], &operands[j]), (i, j)))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or((0, 1), |(_, pair)| pair)
}

#[track_caller]
fn evaluate(text: &str, tensors: &[&Tensor]) -> Result<Tensor> {
    let (labels, out) = parse(text, tensors)?;
    let shared = |l: &usize| labels.iter().filter(|own| own.contains(l)).count() > 1;
    let sums = labels
        .iter()
        .flatten()
        .any(|l| shared(l) && !out.contains(l));
    let widest = widest(tensors);
    let cast = tensors.iter().map(|x| match sums {
        true => lower(x),
        false => widest.of(x),
    });
    let cast = cast.collect::<Result<Vec<_>>>()?;
    let tensors = &cast.iter().map(|x| &**x).collect::<Vec<&Tensor>>()[..];
    for tensor in tensors {
        if tensor.dtype() != tensors[0].dtype() {
            let expected = format!("operands of {}", tensors[0].dtype());
            return Err(Error::dtype(OP, expected, tensor.dtype()));
        }
        if tensor.dtype() == DType::Bool {
            let expected = "operands of an integer or floating-point dtype";
            return Err(Error::dtype(OP, expected, DType::Bool));
        }
    }
    let lengths = lengths(&labels, tensors)?;
    let mut operands: Vec<Labelled> = tensors
        .iter()
        .zip(labels)
        .enumerate()
        .map(|(i, (tensor, labels))| operand(tensor, labels, &lengths, i))
        .collect::<Result<_>>()?;
    while operands.len() > 1 {
        let (i, j) = cheapest(&operands, &lengths);
        let second = operands.remove(j);
        let first = operands.remove(i);
        let wanted = |label: &usize| {
            out.contains(label) || operands.iter().any(|operand| operand.has(*label))
        };
        // The last product has the output's order, the others one that needs no transposition.
        let kept: Vec<usize> = match operands.is_empty() {
            true => out.clone(),
            false => {
                let shared = first.labels.iter().filter(|l| second.has(**l));
                let mine = first.labels.iter().filter(|l| !second.has(**l));
                let theirs = second.labels.iter().filter(|l| !first.has(**l));
                let all = shared.chain(mine).chain(theirs).copied();
                all.filter(wanted).collect()
            }
        };
        let product = contract(first, second, &kept)?;
        operands.insert(i, product);
    }
    match operands.pop() {
        Some(last) => last.summed(|label| out.contains(&label))?.ordered(&out),
        None => Err(equation("at least one operand", text)),
    }
}

impl Tensor {
    /// The sum of products that an equation names: `"bhqd,bhkd->bhqk"`.
    ///
    /// Each operand has a term with a letter an axis. A letter that the output lacks is summed over,
    /// one that an operand repeats takes its diagonal, `...` stands for axes that broadcast, and
    /// spaces mean nothing. Without `->` the output has the ellipsis, then the letters that occur
    /// once, in the order of the alphabet, capitals first. Axes of length 1 broadcast.
    ///
    /// Several operands are multiplied pair by pair, the cheapest pair first.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let queries = Tensor::ones([2, 4, 8], ())?;
    /// let keys = Tensor::ones([2, 6, 8], ())?;
    /// let scores = Tensor::einsum("bqd,bkd->bqk", &[&queries, &keys])?;
    /// assert_eq!(scores.dims(), [2, 4, 6]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an equation without meaning or another number of operands,
    /// [`Error::ShapeMismatch`] when an operand's axes do not fit its term, [`Error::DTypeMismatch`]
    /// when the dtypes differ or are `bool`.
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let at = Location::caller();
        evaluate(equation, operands).map_err(|e| e.relocated(at))
    }
}
