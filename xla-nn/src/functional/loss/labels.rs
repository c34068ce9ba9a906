//! Losses of labels: one class for each position.

use super::Reduction;
use crate::functional::{accumulator, floating};
use smallvec::smallvec;
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};
use xla_lazy::autocast::full;
use xla_lazy::stablehlo::{Compare, Func, Reduction as Combine, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, Vjp, record_op, ty};

/// A label for each position but one axis, that of the classes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Labels {
    axis: usize,
    classes: usize,
}

impl Labels {
    /// The labels as the narrowest dtype that holds every class, and -1 where they are none.
    fn narrow(&self, f: &mut Func, labels: Value) -> (Value, Value) {
        let (shape, dtype) = (labels.shape(), labels.dtype());
        let zero = f.constant_int(dtype, shape, 0);
        let classes = f.constant_int(dtype, shape, self.classes as i64);
        let low = f.compare(Compare::Ge, labels, zero);
        let high = f.compare(Compare::Lt, labels, classes);
        let valid = f.binary("and", low, high);
        let none = f.constant_int(dtype, shape, -1);
        let labels = f.select(valid, labels, none);
        let narrow = match i32::try_from(self.classes) {
            Ok(_) => DType::I32,
            Err(_) => DType::I64,
        };
        (f.convert(labels, narrow), valid)
    }

    /// `x` at each label; NaN where there is no such class.
    fn pick(&self, f: &mut Func, x: Value, labels: Value) -> Value {
        let shape = labels.shape();
        if x.shape().numel() == 0 {
            return f.constant(x.dtype(), shape, f64::NAN);
        }
        let (labels, valid) = self.narrow(f, labels);
        let inner: usize = x.shape()[self.axis + 1..].iter().product();
        let outer: usize = x.shape()[..self.axis].iter().product();
        let dtype = match i32::try_from(x.shape().numel()) {
            Ok(_) => DType::I32,
            Err(_) => DType::I64,
        };
        // Positions in the flattened array, so that single elements are taken from one axis.
        let grid = Shape::new(&[outer, inner]);
        let labels = f.convert(labels, dtype);
        let labels = f.reshape(labels, &grid);
        let scaled = |f: &mut Func, index: Value, by: usize| {
            let by = f.constant_int(dtype, &grid, by as i64);
            f.binary("multiply", index, by)
        };
        let row = f.iota(dtype, &grid, 0);
        let row = scaled(f, row, self.classes * inner);
        let class = scaled(f, labels, inner);
        let column = f.iota(dtype, &grid, 1);
        let position = f.binary("add", row, class);
        let position = f.binary("add", position, column);
        let position = f.reshape(position, &Shape::new(&[outer * inner]));
        let flat = f.reshape(x, &Shape::new(&[x.shape().numel()]));
        let picked = f.take(flat, position, 0);
        let picked = f.reshape(picked, shape);
        let missing = f.constant(x.dtype(), shape, f64::NAN);
        f.select(valid, picked, missing)
    }

    fn others(&self, rank: usize) -> Dims {
        (0..rank).filter(|&i| i != self.axis).collect()
    }
}

/// One element a position: the input at the label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pick(Labels);

impl Operator for Pick {
    const NAME: &'static str = "nll_loss";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp: &Vjp<'_>| {
            let put = record_op(Put(op.0.clone()), &[vjp.grad().into(), vjp.operand(1)?])?;
            Ok(smallvec![Some(put), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        Ok(ty(x.dtype(), inputs[1].tensor(Self::NAME)?.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(self.0.pick(f, inputs[0], inputs[1]))
    }
}

/// Each element at its label along the axis of the classes, zeros elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Put(Labels);

impl Operator for Put {
    const NAME: &'static str = "nll_loss_backward";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp: &Vjp<'_>| {
            let pick = record_op(Pick(op.0.clone()), &[vjp.grad().into(), vjp.operand(1)?])?;
            Ok(smallvec![Some(pick), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let mut dims: Dims = x.shape().dims().into();
        dims.insert(self.0.axis, self.0.classes);
        Ok(ty(x.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let others = self.0.others(out.rank());
        let (labels, _) = self.0.narrow(f, inputs[1]);
        let labels = f.broadcast_in_dim(labels, out.shape(), &others);
        let classes = f.iota(labels.dtype(), out.shape(), self.0.axis);
        let hit = f.compare(Compare::Eq, labels, classes);
        let values = f.broadcast_in_dim(inputs[0], out.shape(), &others);
        let zeros = f.constant(out.dtype(), out.shape(), 0.0);
        Ok(f.select(hit, values, zeros))
    }
}

/// `-log_softmax(x)` at each label, in the accumulator's dtype. It writes nothing of the input's
/// size: the logarithm of the sum less the one logit, both after subtraction of the largest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CrossEntropy(Labels);

impl Operator for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        // (softmax - one_hot) * gradient
        rule: |op, vjp: &Vjp<'_>| {
            let axis = op.0.axis as i64;
            let x = vjp.input(0)?.to_dtype(vjp.grad().dtype())?;
            let put = record_op(Put(op.0.clone()), &[vjp.grad().into(), vjp.operand(1)?])?;
            let spread = x.softmax(axis)?.mul(&vjp.grad().unsqueeze(axis)?)?;
            Ok(smallvec![
                Some(spread.sub(&put)?.to_dtype(vjp.dtype(0))?),
                None
            ])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let labels = inputs[1].tensor(Self::NAME)?;
        Ok(ty(accumulator(x.dtype()), labels.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let axes = [self.0.axis];
        let x = f.convert(inputs[0], out.dtype());
        let highest = f.reduce(Combine::Max, x, &axes);
        let others = self.0.others(x.shape().rank());
        let spread = f.broadcast_in_dim(highest, x.shape(), &others);
        let shifted = f.binary("subtract", x, spread);
        let exponential = f.unary("exponential", shifted);
        let sum = f.reduce(Combine::Sum, exponential, &axes);
        let log = f.unary("log", sum);
        let picked = self.0.pick(f, x, inputs[1]);
        let picked = f.binary("subtract", picked, highest);
        Ok(f.binary("subtract", log, picked))
    }
}

/// The axis of the classes: the only one, or that behind the batch.
fn class_axis(op: &'static str, input: &Tensor) -> Result<usize> {
    floating(op, "an input", input)?;
    match input.rank() {
        0 => {
            let expected = "an input of shape [classes] or [batch, classes, ..]";
            Err(Error::shape(op, expected, input.shape()))
        }
        1 => Ok(0),
        _ => Ok(1),
    }
}

/// An error unless the weights of classes are one for each.
fn class_weights(op: &'static str, weight: Option<&Tensor>, classes: usize) -> Result<()> {
    let Some(weight) = weight else {
        return Ok(());
    };
    floating(op, "a weight", weight)?;
    if weight.dims() == [classes] {
        return Ok(());
    }
    let expected = format!("a weight of shape [{classes}], one for each class");
    Err(Error::shape(op, expected, weight.shape()))
}

/// The labels as `i64`, after checks of their shape and dtype, and of their values where they came
/// from the host.
fn labels_of(
    op: &'static str,
    input: &Tensor,
    target: &Tensor,
    axis: usize,
    ignore: i64,
) -> Result<Tensor> {
    let mut dims = input.dims().to_vec();
    let classes = dims.remove(axis);
    if target.dims() != dims {
        let expected = format!(
            "labels of shape {dims:?} for an input of shape {}",
            input.shape()
        );
        return Err(Error::shape(op, expected, target.shape()));
    }
    if !target.dtype().is_integer() {
        return Err(Error::dtype(
            op,
            "labels of an integer dtype",
            target.dtype(),
        ));
    }
    // The ignored label may be the lowest or the highest; what is beside it is then unknown.
    target.check_index_range(move |range| {
        let limit = i64::try_from(classes).unwrap_or(i64::MAX);
        let wrong = |&label: &i64| label != ignore && !(0..limit).contains(&label);
        let beyond = range.and_then(|(low, high)| [low, high].into_iter().find(wrong));
        match beyond {
            None => Ok(()),
            Some(index) => Err(Error::IndexOutOfRange {
                op,
                index,
                axis,
                size: classes,
                at: xla_core::Site::NONE,
            }),
        }
    })?;
    target.to_dtype(DType::I64)
}

/// The losses of labels, given those of each position: weighted, without the ignored ones, and
/// reduced. The mean is over the weights of what is not ignored.
#[track_caller]
fn reduce_labelled(
    losses: &Tensor,
    labels: &Tensor,
    weight: Option<&Tensor>,
    ignore: i64,
    reduction: Reduction,
) -> Result<Tensor> {
    let counted = labels.ne(ignore)?;
    let Some(weight) = weight else {
        let losses = counted.select_from(losses, 0)?;
        return match reduction {
            Reduction::Mean => losses
                .sum((), false)?
                .div(&counted.sum((), false)?.to_dtype(losses.dtype())?),
            other => other.apply(&losses),
        };
    };
    let weight = weight.to_dtype(losses.dtype())?;
    let weights = weight.index_select(0, &labels.reshape([-1])?);
    let weights = counted.select_from(&weights?.reshape(labels.shape())?, 0)?;
    // Not a product with a weight of 0: an ignored loss may be NaN.
    let losses = counted.select_from(&losses.mul(&weights)?, 0)?;
    match reduction {
        Reduction::Mean => losses.sum((), false)?.div(&weights.sum((), false)?),
        other => other.apply(&losses),
    }
}

/// How [`cross_entropy`] weighs classes and labels; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyOptions<'a> {
    /// A weight for each class, `[classes]`.
    pub weight: Option<&'a Tensor>,
    /// A label that counts for nothing. It is data of the program.
    pub ignore_index: i64,
    /// What becomes of the single losses.
    pub reduction: Reduction,
    /// How much of each label is spread evenly over all classes, from 0 to 1. It is data of the
    /// program, except for whether it is 0.
    pub label_smoothing: f64,
}

impl Default for CrossEntropyOptions<'_> {
    fn default() -> Self {
        CrossEntropyOptions {
            weight: None,
            ignore_index: -100,
            reduction: Reduction::Mean,
            label_smoothing: 0.0,
        }
    }
}

/// `-log softmax(input)[label]`, or the cross entropy with given probabilities of the classes.
///
/// The input, `[classes]` or `[batch, classes, ..]` of a float dtype, holds logits that are not
/// normalised. The target is one of
///
/// * labels: integers of the input's shape without the axis of the classes, each in `0..classes` or
///   the ignored one. The mean is over the labels that are not ignored, weighted by their classes;
///   it is NaN when there are none.
/// * probabilities: floats of the input's shape. The mean is over the positions; no label is
///   ignored.
///
/// Labels that come from the host are checked at the call as far as their least and greatest tell.
/// A label that was computed on the device and is out of range makes the loss NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`] for other shapes, [`Error::DTypeMismatch`] for other dtypes,
/// [`Error::IndexOutOfRange`] for a label that is no class, [`Error::Argument`] for a smoothing
/// outside of `0..=1`.
#[track_caller]
pub fn cross_entropy(
    input: &Tensor,
    target: &Tensor,
    options: CrossEntropyOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "cross_entropy";
    let at = Location::caller();
    let input = &*full(input)?;
    let axis = class_axis(OP, input).map_err(|e| e.at(at))?;
    let classes = input.dims()[axis];
    class_weights(OP, options.weight, classes).map_err(|e| e.at(at))?;
    let smoothing = options.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        let expected = "a number from 0 to 1";
        return Err(Error::argument(OP, "label_smoothing", expected, smoothing).at(at));
    }
    if target.dtype().is_float() && target.dims() == input.dims() {
        return with_probabilities(input, target, axis, options);
    }
    let ignore = options.ignore_index;
    let labels = labels_of(OP, input, target, axis, ignore).map_err(|e| e.at(at))?;
    let places = Labels { axis, classes };
    let losses = record_op(CrossEntropy(places), &[input.into(), (&labels).into()])?;
    let hard = reduce_labelled(&losses, &labels, options.weight, ignore, options.reduction)?;
    if smoothing == 0.0 {
        return hard.to_dtype(input.dtype());
    }
    let logs = input.to_dtype(losses.dtype())?.log_softmax(axis as i64)?;
    let spread = weighted(&logs, options.weight, axis)?
        .sum(axis, false)?
        .neg()?;
    let counted = labels.ne(ignore)?;
    let spread = counted.select_from(&spread, 0)?;
    let spread = match (options.reduction, options.weight) {
        (Reduction::Mean, Some(weight)) => {
            let ones = losses.ones_like()?;
            let weights = reduce_labelled(&ones, &labels, Some(weight), ignore, Reduction::Sum)?;
            spread.sum((), false)?.div(&weights)?
        }
        (Reduction::Mean, None) => spread
            .sum((), false)?
            .div(&counted.sum((), false)?.to_dtype(losses.dtype())?)?,
        (other, _) => other.apply(&spread)?,
    };
    hard.mul(1.0 - smoothing)?
        .add(&spread.mul(smoothing / classes.max(1) as f64)?)?
        .to_dtype(input.dtype())
}

/// Each class's values times its weight, if there are weights.
#[track_caller]
fn weighted(values: &Tensor, weight: Option<&Tensor>, axis: usize) -> Result<Tensor> {
    let Some(weight) = weight else {
        return Ok(values.clone());
    };
    let mut dims = vec![1; values.rank()];
    dims[axis] = weight.numel();
    values.mul(&weight.reshape(dims.as_slice())?)
}

#[track_caller]
fn with_probabilities(
    input: &Tensor,
    target: &Tensor,
    axis: usize,
    options: CrossEntropyOptions<'_>,
) -> Result<Tensor> {
    let classes = input.dims()[axis];
    let wide = accumulator(input.dtype());
    let logs = input.to_dtype(wide)?.log_softmax(axis as i64)?;
    let mut target = target.to_dtype(wide)?;
    if options.label_smoothing > 0.0 {
        let even = options.label_smoothing / classes.max(1) as f64;
        target = target.mul(1.0 - options.label_smoothing)?.add(even)?;
    }
    let losses = weighted(&logs.mul(&target)?, options.weight, axis)?
        .sum(axis, false)?
        .neg()?;
    options.reduction.apply(&losses)?.to_dtype(input.dtype())
}

/// How [`nll_loss`] weighs classes and labels; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct NllLossOptions<'a> {
    /// A weight for each class, `[classes]`.
    pub weight: Option<&'a Tensor>,
    /// A label that counts for nothing. It is data of the program.
    pub ignore_index: i64,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

impl Default for NllLossOptions<'_> {
    fn default() -> Self {
        NllLossOptions {
            weight: None,
            ignore_index: -100,
            reduction: Reduction::Mean,
        }
    }
}

/// `-input[label]`, of logarithms of probabilities: [`cross_entropy`] of labels without its
/// `log_softmax`, with the same shapes.
///
/// # Errors
/// As [`cross_entropy`].
#[track_caller]
pub fn nll_loss(input: &Tensor, target: &Tensor, options: NllLossOptions<'_>) -> Result<Tensor> {
    const OP: &str = "nll_loss";
    let at = Location::caller();
    let input = &*full(input)?;
    let axis = class_axis(OP, input).map_err(|e| e.at(at))?;
    let classes = input.dims()[axis];
    class_weights(OP, options.weight, classes).map_err(|e| e.at(at))?;
    let ignore = options.ignore_index;
    let labels = labels_of(OP, input, target, axis, ignore).map_err(|e| e.at(at))?;
    let input = input.to_dtype(accumulator(input.dtype()))?;
    let places = Labels { axis, classes };
    let losses = record_op(Pick(places), &[(&input).into(), (&labels).into()])?.neg()?;
    reduce_labelled(&losses, &labels, options.weight, ignore, options.reduction)
}
