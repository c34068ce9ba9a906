//! Images and other grids at another size.

use super::floating;
use super::pool::adaptive_avg;
use super::resample::{Axis, Filter, resample};
use super::window::{LIMIT, PerAxis};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result};
use xla_lazy::Tensor;

/// How [`interpolate`] makes an element of its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InterpolateMode {
    /// The neighbour before it.
    #[default]
    Nearest,
    /// The neighbour that is nearest, as in scikit-image and Pillow.
    NearestExact,
    /// Weighted by distance; one spatial axis.
    Linear,
    /// Weighted by distance; two spatial axes.
    Bilinear,
    /// The cubic convolution of 16 neighbours; two spatial axes.
    Bicubic,
    /// Weighted by distance; three spatial axes.
    Trilinear,
    /// The mean of the elements that it covers.
    Area,
}

/// The size that [`interpolate`] gives the spatial axes.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// These lengths, one for all axes or one for each.
    Size(PerAxis),
    /// The lengths times these factors, rounded down; one for all axes or one for each.
    Scale(Vec<f64>),
}

impl Target {
    /// The lengths times these factors.
    pub fn scale(factors: impl Into<Vec<f64>>) -> Self {
        Target::Scale(factors.into())
    }
}

/// The arguments of [`interpolate`] beside input and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct InterpolateOptions {
    /// How an element is made.
    pub mode: InterpolateMode,
    /// Whether the middles of the first and last elements stay where they are, rather than their
    /// outer edges; for the linear modes and bicubic.
    pub align_corners: bool,
    /// Whether places relate by the quotient of the sizes also where a scale was given.
    pub recompute_scale_factor: bool,
    /// Whether a smaller output is made of all elements that it covers; bilinear and bicubic.
    pub antialias: bool,
}

/// The spatial axes of `[batch, channels, spatial..]` at another size.
///
/// Half precision is computed in `f32`. Numbers of elements, places and weights are PyTorch's.
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::functional::{self, InterpolateMode, InterpolateOptions, Target};
/// let image = Tensor::zeros([1, 3, 32, 48], ())?;
/// let options = InterpolateOptions { mode: InterpolateMode::Bilinear, ..Default::default() };
/// let large = functional::interpolate(&image, Target::scale([2.0]), options)?;
/// assert_eq!(large.dims(), [1, 3, 64, 96]);
/// let small = functional::interpolate(&image, Target::Size([8, 12].into()), options)?;
/// assert_eq!(small.dims(), [1, 3, 8, 12]);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::ShapeMismatch`] for a rank that the mode does not take, or an empty axis other than the
/// batch; [`Error::Argument`] for sizes or factors that are not one or one an axis, or that leave
/// nothing, and for options that the mode does not have; [`Error::DTypeMismatch`] for a dtype that
/// is not floating-point (`nearest` modes also take `u8`).
#[track_caller]
pub fn interpolate(input: &Tensor, target: Target, options: InterpolateOptions) -> Result<Tensor> {
    let here = Location::caller();
    let plan = plan(input, &target, options).map_err(|e| e.at(here))?;
    if options.mode == InterpolateMode::Area {
        let size = plan
            .iter()
            .map(|axis| axis.output)
            .collect::<Vec<_>>()
            .into();
        return match plan.len() {
            1 => adaptive_avg::<1>(OP, input, &size),
            2 => adaptive_avg::<2>(OP, input, &size),
            _ => adaptive_avg::<3>(OP, input, &size),
        }
        .map_err(|e| e.at(here));
    }
    let mut y = input.clone();
    for axis in plan {
        y = resample(&y, axis)?;
    }
    Ok(y)
}

const OP: &str = "interpolate";

/// What happens to each spatial axis.
fn plan(input: &Tensor, target: &Target, options: InterpolateOptions) -> Result<Vec<Axis>> {
    use InterpolateMode as Mode;
    let mode = options.mode;
    let ranks = match mode {
        Mode::Nearest | Mode::NearestExact | Mode::Area => 3..=5,
        Mode::Linear => 3..=3,
        Mode::Bilinear | Mode::Bicubic => 4..=4,
        Mode::Trilinear => 5..=5,
    };
    if !ranks.contains(&input.rank()) || input.dims()[1..].contains(&0) {
        let expected = format!(
            "a non-empty input of shape [batch, channels, spatial..] with {} to {} spatial axes for mode {mode:?}",
            ranks.start() - 2,
            ranks.end() - 2
        );
        return Err(Error::shape(OP, expected, input.shape()));
    }
    let nearest = matches!(mode, Mode::Nearest | Mode::NearestExact);
    if !(nearest && input.dtype() == DType::U8) {
        floating(OP, "an input", input)?;
    }
    if options.align_corners && (nearest || mode == Mode::Area) {
        let expected = "false for a mode that is neither linear nor cubic";
        return Err(Error::argument(OP, "align_corners", expected, true));
    }
    if options.antialias && !matches!(mode, Mode::Bilinear | Mode::Bicubic) {
        let expected = "false for a mode that is neither bilinear nor bicubic";
        return Err(Error::argument(OP, "antialias", expected, true));
    }
    let before = &input.dims()[2..];
    let n = before.len();
    let (after, scales) = match target {
        Target::Size(_) if options.recompute_scale_factor => {
            let expected = "false where a size is given";
            return Err(Error::argument(
                OP,
                "recompute_scale_factor",
                expected,
                true,
            ));
        }
        Target::Size(size) => (size.resolve(OP, "size", n, 1)?, None),
        Target::Scale(factors) => {
            let factors = match factors.as_slice() {
                [factor] => vec![*factor; n],
                factors => factors.to_vec(),
            };
            let length = |(&n, &by): (&usize, &f64)| {
                let length = (n as f64 * by).floor();
                (length >= 1.0 && length < LIMIT as f64).then_some(length as usize)
            };
            let after: Option<Dims> = before.iter().zip(&factors).map(length).collect();
            match after {
                Some(after) if factors.len() == n => (after, Some(factors)),
                _ => {
                    let expected =
                        format!("one factor or {n}, each leaving an element of {before:?}");
                    let got = format!("{factors:?}");
                    return Err(Error::argument(OP, "scale_factor", expected, got));
                }
            }
        }
    };
    let scales = scales.filter(|_| !options.recompute_scale_factor);
    let filter = match mode {
        Mode::Nearest => Filter::Nearest { exact: false },
        Mode::NearestExact => Filter::Nearest { exact: true },
        Mode::Linear | Mode::Bilinear | Mode::Trilinear => Filter::Linear,
        Mode::Bicubic => Filter::Cubic,
        Mode::Area => Filter::Area,
    };
    let axis = |i: usize| Axis {
        axis: i + 2,
        input: before[i],
        output: after[i],
        filter,
        align_corners: options.align_corners,
        antialias: options.antialias,
        scale: scales.as_ref().map(|scales| scales[i].to_bits()),
    };
    Ok((0..n).map(axis).collect())
}
