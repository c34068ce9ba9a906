//! Normalisation: centred and scaled to unit variance over some axes, then an affine map.

use super::{accumulator, floating};
use std::panic::Location;
use xla_core::{DType, Dims, Error, IntoShape, Result, Shape};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, Vjp, no_grad, record_op, ty};

/// Over which axes, and how, elements are normalised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Over {
    axes: Dims,
    /// The bits of what is added to the mean square.
    eps: u64,
    /// Whether the mean is subtracted.
    centred: bool,
}

impl Over {
    fn new(axes: impl IntoIterator<Item = usize>, eps: f64, centred: bool) -> Self {
        Over {
            axes: axes.into_iter().collect(),
            eps: eps.to_bits(),
            centred,
        }
    }

    /// The mean over the axes, which vanish.
    fn mean(&self, f: &mut Func, x: Value) -> Value {
        let sum = f.reduce(Reduction::Sum, x, &self.axes);
        let count: usize = self
            .axes
            .iter()
            .map(|&a| x.shape()[a])
            .fold(1, usize::saturating_mul);
        let count = f.constant(sum.dtype(), sum.shape(), count as f64);
        f.binary("divide", sum, count)
    }

    fn spread(&self, f: &mut Func, reduced: Value, shape: &Shape) -> Value {
        let kept: Dims = (0..shape.rank())
            .filter(|i| !self.axes.contains(i))
            .collect();
        f.broadcast_in_dim(reduced, shape, &kept)
    }

    /// `x` as its accumulator, less its mean if that is asked for, and `1 / sqrt(mean square + eps)`.
    fn moments(&self, f: &mut Func, x: Value) -> (Value, Value) {
        let mut x = f.convert(x, accumulator(x.dtype()));
        if self.centred {
            let mean = self.mean(f, x);
            let mean = self.spread(f, mean, x.shape());
            x = f.binary("subtract", x, mean);
        }
        let square = f.binary("multiply", x, x);
        let variance = self.mean(f, square);
        let eps = f.constant(variance.dtype(), variance.shape(), f64::from_bits(self.eps));
        let variance = f.binary("add", variance, eps);
        (x, f.unary("rsqrt", variance))
    }

    /// The gradient less what lies along the directions that normalisation removes: the
    /// normalised values `y` and, where the mean is subtracted, the constants.
    fn project(&self, gradient: &Tensor, y: &Tensor) -> Result<Tensor> {
        let axes = self.axes.as_slice();
        let along = gradient.mul(y)?.mean(axes, true)?;
        let rest = gradient.sub(&y.mul(&along)?)?;
        match self.centred {
            true => rest.sub(&gradient.mean(axes, true)?),
            false => Ok(rest),
        }
    }
}

/// The type that values of this one are normalised in.
fn wide(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let x = inputs[0].tensor(op)?;
    Ok(ty(accumulator(x.dtype()), x.shape()))
}

/// `(x - mean) / sqrt(variance + eps)`, in the accumulator's dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Standardize(Over);

impl Operator for Standardize {
    const NAME: &'static str = "standardize";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp: &Vjp<'_>| {
            let scale = record_op(InverseDeviation(op.0.clone()), &[vjp.operand(0)?])?;
            let gradient = op.0.project(vjp.grad(), vjp.output()?)?.mul(&scale)?;
            vjp.only(gradient.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        wide(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let (x, scale) = self.0.moments(f, inputs[0]);
        let scale = self.0.spread(f, scale, x.shape());
        Ok(f.binary("multiply", x, scale))
    }
}

/// `1 / sqrt(variance + eps)`, with the axes kept at length 1. It repeats what [`Standardize`]
/// computes: in one program the two are the same operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InverseDeviation(Over);

impl Operator for InverseDeviation {
    const NAME: &'static str = "inverse_deviation";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        // The derivative of (mean square)^(-1/2) is -r^3 x / n, and r x is the normalised value.
        rule: |op, vjp: &Vjp<'_>| {
            let count: usize =
                op.0.axes
                    .iter()
                    .map(|&a| vjp.shape(0)[a])
                    .fold(1, usize::saturating_mul);
            let scale = vjp.output()?;
            let slope = vjp.grad().mul(&scale.square()?)?.div(-(count as f64))?;
            let y = record_op(Standardize(op.0.clone()), &[vjp.operand(0)?])?;
            vjp.only(y.mul(&slope)?.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = wide(Self::NAME, inputs)?;
        Ok(ty(x.dtype(), &self.kept(x.shape())))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (_, scale) = self.0.moments(f, inputs[0]);
        Ok(f.reshape(scale, out.shape()))
    }
}

impl InverseDeviation {
    fn kept(&self, shape: &Shape) -> Shape {
        let mut dims: Dims = shape.dims().into();
        for &axis in &self.0.axes {
            dims[axis] = 1;
        }
        Shape::from(dims)
    }
}

/// Normalised, multiplied and added to in the accumulator's dtype, then rounded once.
#[track_caller]
fn affine(
    input: &Tensor,
    normalised: Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let mut y = normalised;
    if let Some(weight) = weight {
        y = y.mul(weight)?;
    }
    if let Some(bias) = bias {
        y = y.add(bias)?;
    }
    y.to_dtype(input.dtype())
}

/// An error unless each given tensor has this shape and a floating-point dtype.
fn parameters<const N: usize>(
    op: &'static str,
    shape: &[usize],
    given: [(&'static str, Option<&Tensor>); N],
) -> Result<()> {
    for (name, tensor) in given {
        let Some(tensor) = tensor else { continue };
        floating(op, name, tensor)?;
        if tensor.dims() != shape {
            let expected = format!("{name} of shape {shape:?}");
            return Err(Error::shape(op, expected, tensor.shape()));
        }
    }
    Ok(())
}

/// The axes that `normalized_shape` names, which must be the input's last.
fn trailing(
    op: &'static str,
    input: &Tensor,
    normalized: &Shape,
) -> Result<std::ops::Range<usize>> {
    floating(op, "an input", input)?;
    if normalized.rank() == 0 {
        let expected = "at least one axis";
        return Err(Error::argument(
            op,
            "normalized_shape",
            expected,
            normalized,
        ));
    }
    match input.rank().checked_sub(normalized.rank()) {
        Some(first) if input.dims()[first..] == *normalized.dims() => Ok(first..input.rank()),
        _ => {
            let expected = format!("an input whose last axes are normalized_shape {normalized}");
            Err(Error::shape(op, expected, input.shape()))
        }
    }
}

/// Normalised over the last axes, which `normalized_shape` names: `(x - mean) / sqrt(variance +
/// eps) * weight + bias`, with the biased variance ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
///
/// `weight` and `bias` have the shape `normalized_shape`. Half precision is computed in `f32`.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the input does not end in `normalized_shape` or a parameter has
/// another shape; [`Error::DTypeMismatch`] for dtypes that are not floating-point.
#[track_caller]
pub fn layer_norm(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    const OP: &str = "layer_norm";
    let at = Location::caller();
    let normalized = normalized_shape.into_shape(OP).map_err(|e| e.at(at))?;
    let axes = trailing(OP, input, &normalized).map_err(|e| e.at(at))?;
    let given = [("a weight", weight), ("a bias", bias)];
    parameters(OP, normalized.dims(), given).map_err(|e| e.at(at))?;
    let y = record_op(Standardize(Over::new(axes, eps, true)), &[input.into()])?;
    affine(input, y, weight, bias)
}

/// Divided by the root mean square over the last axes, which `normalized_shape` names:
/// `x / sqrt(mean(x²) + eps) * weight` ([Zhang & Sennrich 2019](https://arxiv.org/abs/1910.07467)).
///
/// Without an `eps` it is the least `e` with `1 + e > 1` in the dtype computed in, which is `f32` for
/// half precision.
///
/// # Errors
/// As [`layer_norm`].
#[track_caller]
pub fn rms_norm(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    weight: Option<&Tensor>,
    eps: Option<f64>,
) -> Result<Tensor> {
    const OP: &str = "rms_norm";
    let at = Location::caller();
    let normalized = normalized_shape.into_shape(OP).map_err(|e| e.at(at))?;
    let axes = trailing(OP, input, &normalized).map_err(|e| e.at(at))?;
    parameters(OP, normalized.dims(), [("a weight", weight)]).map_err(|e| e.at(at))?;
    let eps = eps.unwrap_or(match accumulator(input.dtype()) {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    });
    let y = record_op(Standardize(Over::new(axes, eps, false)), &[input.into()])?;
    affine(input, y, weight, None)
}

/// The number of channels, on axis 1.
fn channels(op: &'static str, input: &Tensor) -> Result<usize> {
    floating(op, "an input", input)?;
    match *input.dims() {
        [_, channels, ..] => Ok(channels),
        _ => {
            let expected = "an input of shape [batch, channels, ..]";
            Err(Error::shape(op, expected, input.shape()))
        }
    }
}

/// A value per channel, to broadcast with an input of this rank.
#[track_caller]
fn by_channel(values: &Tensor, rank: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank];
    dims[1] = values.numel();
    values.reshape(dims.as_slice())
}

/// Normalised over each of `num_groups` groups of channels and all axes behind the channels
/// ([Wu & He 2018](https://arxiv.org/abs/1803.08494)).
///
/// The input is `[batch, channels, ..]`; `weight` and `bias` are `[channels]`. Half precision is
/// computed in `f32`.
///
/// # Errors
/// [`Error::Argument`] when the groups do not divide the channels; otherwise as [`layer_norm`].
#[track_caller]
pub fn group_norm(
    input: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    const OP: &str = "group_norm";
    let at = Location::caller();
    let channels = channels(OP, input).map_err(|e| e.at(at))?;
    if num_groups == 0 || !channels.is_multiple_of(num_groups) {
        let expected = format!("a divisor of the {channels} channels");
        return Err(Error::argument(OP, "num_groups", expected, num_groups).at(at));
    }
    let given = [("a weight", weight), ("a bias", bias)];
    parameters(OP, &[channels], given).map_err(|e| e.at(at))?;
    by_group(input, num_groups, weight, bias, eps)
}

#[track_caller]
fn by_group(
    input: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let rank = input.rank();
    let mut dims: Vec<usize> = input.dims().to_vec();
    dims.splice(1..2, [num_groups, input.dims()[1] / num_groups.max(1)]);
    let groups = input.reshape(dims.as_slice())?;
    let over = Over::new(2..groups.rank(), eps, true);
    let y = record_op(Standardize(over), &[(&groups).into()])?.reshape(input.shape())?;
    let weight = weight.map(|w| by_channel(w, rank)).transpose()?;
    let bias = bias.map(|b| by_channel(b, rank)).transpose()?;
    affine(input, y, weight.as_ref(), bias.as_ref())
}

/// How [`batch_norm`] normalises; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormOptions<'a> {
    /// Multiplies each channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    /// Added to each channel, `[channels]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the batch's own statistics are used, and enter the running ones.
    pub training: bool,
    /// The weight of the batch's statistics in the running ones. It is data of the program.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        BatchNormOptions {
            weight: None,
            bias: None,
            training: false,
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

/// Normalised per channel over the batch and all axes behind the channels
/// ([Ioffe & Szegedy 2015](https://arxiv.org/abs/1502.03167)).
///
/// The input is `[batch, channels, ..]`, the other tensors are `[channels]`. In training the
/// batch's mean and biased variance normalise, and the running mean and variance, if given, are
/// updated in place: `running = (1 - momentum) * running + momentum * batch`, with the unbiased
/// variance. Otherwise the running statistics normalise. Half precision is computed in `f32`.
///
/// # Errors
/// [`Error::ShapeMismatch`] for other shapes, and in training for a batch with one value a
/// channel; [`Error::Argument`] without running statistics outside training;
/// [`Error::DTypeMismatch`] for dtypes that are not floating-point.
#[track_caller]
pub fn batch_norm(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: BatchNormOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "batch_norm";
    let at = Location::caller();
    let checked = || {
        let channels = channels(OP, input)?;
        let given = [
            ("a running_mean", running_mean),
            ("a running_var", running_var),
            ("a weight", options.weight),
            ("a bias", options.bias),
        ];
        parameters(OP, &[channels], given)
    };
    checked().map_err(|e| e.at(at))?;
    let rank = input.rank();
    let weight = options.weight.map(|w| by_channel(w, rank)).transpose()?;
    let bias = options.bias.map(|b| by_channel(b, rank)).transpose()?;
    if options.training {
        let values = input.numel() / input.dims()[1].max(1);
        if values == 1 && input.numel() > 0 {
            let expected = "more than one value per channel in training";
            return Err(Error::shape(OP, expected, input.shape()).at(at));
        }
        let axes: Dims = (0..rank).filter(|&i| i != 1).collect();
        let running = [running_mean, running_var];
        update_statistics(input, &axes, running, options.momentum)?;
        let over = Over::new(axes, options.eps, true);
        let y = record_op(Standardize(over), &[input.into()])?;
        return affine(input, y, weight.as_ref(), bias.as_ref());
    }
    let (Some(mean), Some(variance)) = (running_mean, running_var) else {
        let expected = "both outside training";
        let got = "none";
        return Err(Error::argument(OP, "running_mean, running_var", expected, got).at(at));
    };
    let wide = accumulator(input.dtype());
    let scale = variance.to_dtype(wide)?.add(options.eps)?.rsqrt()?;
    let y = input
        .to_dtype(wide)?
        .sub(&by_channel(mean, rank)?)?
        .mul(&by_channel(&scale, rank)?)?;
    affine(input, y, weight.as_ref(), bias.as_ref())
}

/// Mixes the mean and the unbiased variance over these axes, averaged over the batch where it is
/// not among them, into the running statistics.
#[track_caller]
fn update_statistics(
    input: &Tensor,
    axes: &[usize],
    running: [Option<&Tensor>; 2],
    momentum: f64,
) -> Result<()> {
    if running.iter().all(Option::is_none) {
        return Ok(());
    }
    let at = Location::caller();
    let count: usize = axes
        .iter()
        .map(|&a| input.dims()[a])
        .fold(1, usize::saturating_mul);
    let mix = |running: Option<&Tensor>, batch: Tensor| -> Result<()> {
        let Some(running) = running else {
            return Ok(());
        };
        let batch = match axes.contains(&0) {
            true => batch,
            false => batch.mean(0, true)?,
        };
        let batch = batch.reshape(running.shape())?;
        running
            .mul_(1.0 - momentum)?
            .add_scaled_(&batch, momentum)?;
        Ok(())
    };
    no_grad(|| {
        let x = input.detach()?.to_dtype(accumulator(input.dtype()))?;
        let mean = x.mean(axes, true)?;
        let biased = x.sub(&mean)?.square()?.mean(axes, true)?;
        let unbiased = biased.mul(count as f64 / (count as f64 - 1.0))?;
        mix(running[0], mean)?;
        mix(running[1], unbiased)
    })
    .map_err(|e| e.at(at))
}

/// How [`instance_norm`] normalises; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct InstanceNormOptions<'a> {
    /// Multiplies each channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    /// Added to each channel, `[channels]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the input's own statistics are used, and enter the running ones.
    pub use_input_stats: bool,
    /// The weight of the input's statistics in the running ones. It is data of the program.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for InstanceNormOptions<'_> {
    fn default() -> Self {
        InstanceNormOptions {
            weight: None,
            bias: None,
            use_input_stats: true,
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

/// Normalised per channel of each member of the batch, over all axes behind the channels
/// ([Ulyanov et al. 2016](https://arxiv.org/abs/1607.08022)).
///
/// As [`batch_norm`] otherwise; the running statistics take the mean of the members' statistics.
///
/// # Errors
/// As [`batch_norm`].
#[track_caller]
pub fn instance_norm(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: InstanceNormOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "instance_norm";
    let at = Location::caller();
    let channels = channels(OP, input).map_err(|e| e.at(at))?;
    if !options.use_input_stats {
        let options = BatchNormOptions {
            weight: options.weight,
            bias: options.bias,
            training: false,
            momentum: options.momentum,
            eps: options.eps,
        };
        return batch_norm(input, running_mean, running_var, options);
    }
    let given = [
        ("a running_mean", running_mean),
        ("a running_var", running_var),
        ("a weight", options.weight),
        ("a bias", options.bias),
    ];
    parameters(OP, &[channels], given).map_err(|e| e.at(at))?;
    let values = input.dims()[2..]
        .iter()
        .fold(1usize, |n, &d| n.saturating_mul(d));
    if values == 1 {
        let expected = "more than one value behind the channels";
        return Err(Error::shape(OP, expected, input.shape()).at(at));
    }
    let axes: Dims = (2..input.rank()).collect();
    let running = [running_mean, running_var];
    update_statistics(input, &axes, running, options.momentum)?;
    by_group(input, channels, options.weight, options.bias, options.eps)
}
