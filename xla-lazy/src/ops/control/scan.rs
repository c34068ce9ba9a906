//! Loops of a known length.

use super::hub::Kind;
use super::run::{Plan, Returned};
use crate::Tensor;
use std::panic::Location;
use xla_core::{DType, Device, Error, Result};

/// How [`scan_with`] goes through its sequences.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// How many iterations there are; needed where there is no sequence.
    pub length: Option<usize>,
    /// From the last element to the first. Outputs are where the elements are.
    pub reverse: bool,
}

/// `body(carry, elements)` for each element of the sequences `xs` along their first axis, with what it
/// carried to the next one: the carry at the end, and its outputs, stacked. As `jax.lax.scan` and
/// PyTorch's `scan`.
///
/// The body is recorded once, whatever the length, and runs on the device as one loop. It may read
/// any tensor. What it changes in place, such as the state of the generator that dropout draws from,
/// is carried too. Numbers in it are data, and the same at each iteration.
///
/// Gradients flow to `init`, `xs` and whatever the body reads. The carries before each iteration are
/// kept for them, and each iteration is computed once more in the backward pass, as by
/// [`checkpoint`](crate::checkpoint).
///
/// # Errors
/// Those of `body`. [`Error::ShapeMismatch`] for sequences of different lengths, and, as
/// [`Error::DTypeMismatch`], for a carry that changes its type; [`Error::Argument`] where there is
/// neither a sequence nor a length; [`Error::InBody`] when the body reads values on the host, syncs or
/// calls a collective.
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor, w: &xla_lazy::Tensor, h: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// // A recurrent layer over `x`, [length, batch, features].
/// let (last, all) = xla_lazy::scan(&[h], &[x], |carry, x| {
///     let h = x[0].add(&carry[0].matmul(w)?)?.tanh()?;
///     Ok((vec![h.clone()], vec![h]))
/// })?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn scan(
    init: &[&Tensor],
    xs: &[&Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    scan_with(ScanOptions::default(), init, xs, body)
}

/// [`scan()`] with a length, or from the end.
///
/// # Errors
/// As [`scan()`].
#[track_caller]
pub fn scan_with(
    options: ScanOptions,
    init: &[&Tensor],
    xs: &[&Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let at = Location::caller();
    let length = length(&options, xs).map_err(|e| e.at(at))?;
    let device = device(init.iter().chain(xs), at)?;
    run(options.reverse, length, device, init, xs, body, at)
}

fn run(
    reverse: bool,
    length: usize,
    device: Device,
    init: &[&Tensor],
    xs: &[&Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<Returned>,
    at: &'static Location<'static>,
) -> Result<Returned> {
    let owned = |all: &[&Tensor]| -> Vec<Tensor> { all.iter().map(|&t| t.clone()).collect() };
    let plan = Plan {
        kind: Kind::Scan,
        length: Some(length),
        reverse,
        device,
        init: &owned(init),
        sequences: &owned(xs),
        count: None,
        at,
    };
    plan.run(None, body)
}

/// `body(i, carry)` for `i` from 0 to `count - 1`, a scalar `i64` tensor: what it carried at the end.
/// As `jax.lax.fori_loop`, with gradients; otherwise as [`scan()`].
///
/// # Errors
/// As [`scan()`].
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// // x to the 16th.
/// let power = xla_lazy::fori_loop(4, &[x], |_, carry| Ok(vec![carry[0].mul(&carry[0])?]))?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn fori_loop(
    count: usize,
    init: &[&Tensor],
    body: impl FnOnce(&Tensor, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let device = device(init.iter(), at)?;
    let indices = Tensor::arange(0, count as i64, 1, (DType::I64, device))?;
    let each = |carry: &[Tensor], i: &[Tensor]| Ok((body(&i[0], carry)?, Vec::new()));
    let (carry, _) = run(false, count, device, init, &[&indices], each, at)?;
    Ok(carry)
}

/// The device of the first tensor, or the calling replica's.
pub(super) fn device<'a>(
    mut tensors: impl Iterator<Item = &'a &'a Tensor>,
    at: &'static Location<'static>,
) -> Result<Device> {
    match tensors.next() {
        None => crate::spmd::default_device("scan"),
        Some(first) => match tensors.find(|t| t.device() != first.device()) {
            None => Ok(first.device()),
            Some(other) => {
                let (left, right) = (first.device(), other.device());
                Err(crate::spmd::apart("scan", left, right, at))
            }
        },
    }
}

fn length(options: &ScanOptions, xs: &[&Tensor]) -> Result<usize> {
    let mut length = options.length;
    for x in xs {
        let Some(&own) = x.dims().first() else {
            let expected = "sequences of at least one axis";
            return Err(Error::shape("scan", expected, x.shape()));
        };
        match length {
            Some(length) if length != own => {
                let expected = format!("a first axis of length {length}");
                return Err(Error::shape("scan", expected, x.shape()));
            }
            _ => length = Some(own),
        }
    }
    let expected = "a length where there is no sequence";
    length.ok_or_else(|| Error::argument("scan", "length", expected, "none"))
}
