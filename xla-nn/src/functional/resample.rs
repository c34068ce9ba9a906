//! Linear maps of one axis: what interpolation and adaptive averages do to each spatial axis.

use super::accumulator;
use xla_core::{DType, Dims, Result, Shape};
use xla_lazy::stablehlo::{Compare, Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_op, ty};

/// How an output element is made of input elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Filter {
    /// The element at or before the place; `exact` takes the place of an element to be its middle.
    Nearest { exact: bool },
    /// Weighted by the distance to the two nearest.
    Linear,
    /// The cubic convolution of the four nearest (Keys 1981, with a = -0.75).
    Cubic,
    /// The mean of the input elements that the output element covers, in part or whole.
    Area,
}

/// One axis at another length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Axis {
    pub axis: usize,
    pub input: usize,
    pub output: usize,
    pub filter: Filter,
    /// Whether the first and last elements of input and output are at the same places.
    pub align_corners: bool,
    /// Whether the filter widens when the axis shrinks, as in Pillow.
    pub antialias: bool,
    /// The bits of the factor that the user gave, where it says how places relate.
    pub scale: Option<u64>,
}

/// One input element of each output element, and its weight.
struct Tap {
    index: Vec<i64>,
    weight: Vec<f64>,
}

/// Arithmetic in `f32`, as PyTorch's for all dtypes but `f64`: a place halfway between two elements
/// must fall to the same side.
fn rounded(single: bool, value: f64) -> f64 {
    if single {
        f64::from(value as f32)
    } else {
        value
    }
}

fn cubic(a: f64, x: f64) -> f64 {
    let x = x.abs();
    match x {
        _ if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        _ if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

impl Axis {
    /// Input elements an output element.
    fn step(&self, single: bool) -> f64 {
        let (input, output) = (self.input as f64, self.output as f64);
        let step = match self.scale.map(f64::from_bits) {
            _ if self.align_corners && self.output > 1 => (input - 1.0) / (output - 1.0),
            _ if self.align_corners => 0.0,
            Some(scale) => 1.0 / scale,
            None => input / output,
        };
        rounded(single, step)
    }

    /// For each output element its input elements and their weights.
    fn contributions(&self, single: bool) -> Vec<Vec<(usize, f64)>> {
        let r = |value| rounded(single, value);
        let (step, last) = (self.step(single), self.input - 1);
        let at = |i: f64| (i.max(0.0) as usize).min(last);
        // The place of output element `o` among the input's.
        let place = |o: usize| match self.align_corners {
            true => r(step * o as f64),
            false => r(r(step * (o as f64 + 0.5)) - 0.5),
        };
        let of = |o: usize| match self.filter {
            Filter::Nearest { exact } => {
                let middle = if exact { 0.5 } else { 0.0 };
                vec![(at(r(step * (o as f64 + middle)).floor()), 1.0)]
            }
            Filter::Area => {
                let start = o * self.input / self.output;
                let end = ((o + 1) * self.input).div_ceil(self.output);
                let share = 1.0 / (end - start) as f64;
                (start..end).map(|i| (i, share)).collect()
            }
            Filter::Linear | Filter::Cubic if self.antialias => {
                let (size, a) = match self.filter {
                    Filter::Linear => (1.0, None),
                    _ => (2.0, Some(-0.5)),
                };
                let wide = step.max(1.0);
                let (support, center) = (size * wide, step * (o as f64 + 0.5));
                let start = at((center - support + 0.5).floor());
                let end = ((center + support + 0.5).max(0.0) as usize).min(self.input);
                let weigh = |i: usize| {
                    let x = (i as f64 - center + 0.5) / wide;
                    a.map_or((1.0 - x.abs()).max(0.0), |a| cubic(a, x))
                };
                let end = end.max(start + 1);
                let total: f64 = (start..end).map(weigh).sum();
                (start..end).map(|i| (i, weigh(i) / total)).collect()
            }
            Filter::Linear => {
                let place = place(o).max(0.0);
                let (first, second) = (at(place.floor()), at(place.floor() + 1.0));
                let part = r(place - first as f64).clamp(0.0, 1.0);
                vec![(first, r(1.0 - part)), (second, part)]
            }
            Filter::Cubic => {
                let place = place(o);
                let (base, part) = (place.floor(), r(place - place.floor()));
                (-1..=2)
                    .map(|k| (at(base + f64::from(k)), cubic(-0.75, part - f64::from(k))))
                    .collect()
            }
        };
        (0..self.output).map(of).collect()
    }

    /// The contributions as lists with one entry an output element, as few as suffice.
    fn taps(&self, dtype: DType) -> Vec<Tap> {
        let all = self.contributions(dtype != DType::F64);
        let most = all.iter().map(Vec::len).max().unwrap_or(0);
        // An element that is used already, with weight 0, brings in no infinity of its own.
        let nth = |of: &Vec<(usize, f64)>, t: usize| of.get(t).copied().unwrap_or((of[0].0, 0.0));
        (0..most)
            .map(|t| Tap {
                index: all.iter().map(|of| nth(of, t).0 as i64).collect(),
                weight: all.iter().map(|of| nth(of, t).1).collect(),
            })
            .collect()
    }
}

/// The linear map, or its adjoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Resample<const ADJOINT: bool>(Axis);

impl<const ADJOINT: bool> Resample<ADJOINT> {
    /// The weighted sum of what the taps select.
    fn gather(&self, f: &mut Func, x: Value, taps: &[Tap]) -> Option<Value> {
        let axis = self.0.axis;
        let mut sum = None;
        for tap in taps {
            let index = f.constant_indices(&tap.index);
            let mut part = f.take(x, index, axis);
            if tap.weight.iter().any(|&w| w != 1.0) {
                let weight = f.constant_list(x.dtype(), &tap.weight);
                let weight = f.broadcast_in_dim(weight, part.shape(), &[axis]);
                part = f.binary("multiply", part, weight);
            }
            sum = Some(match sum {
                Some(sum) => f.binary("add", sum, part),
                None => part,
            });
        }
        sum
    }

    /// The product with the map's matrix: a sum over what each input element went to would be a
    /// scatter, which processors do one element after the other.
    fn spread(&self, f: &mut Func, g: Value, taps: &[Tap]) -> Value {
        let Axis {
            axis,
            input,
            output,
            ..
        } = self.0;
        let square = Shape::new(&[output, input]);
        let column = f.iota(DType::I64, &square, 1);
        let zero = f.constant(g.dtype(), &square, 0.0);
        let mut matrix = zero;
        for tap in taps {
            let index = f.constant_indices(&tap.index);
            let index = f.broadcast_in_dim(index, &square, &[0]);
            let weight = f.constant_list(g.dtype(), &tap.weight);
            let weight = f.broadcast_in_dim(weight, &square, &[0]);
            let here = f.compare(Compare::Eq, column, index);
            let part = f.select(here, weight, zero);
            matrix = f.binary("add", matrix, part);
        }
        let x = f.dot_general(g, matrix, (&[], &[]), (&[axis], &[0]));
        // The contracted axis comes back as the last one.
        let rank = x.shape().rank();
        let order: Dims = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
        f.transpose(x, &order)
    }
}

impl<const ADJOINT: bool> Operator for Resample<ADJOINT> {
    const NAME: &'static str = if ADJOINT {
        "resample_adjoint"
    } else {
        "resample"
    };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let g = [vjp.grad().into()];
            vjp.only(if ADJOINT {
                record_op(Resample::<false>(op.0.clone()), &g)
            } else {
                record_op(Resample::<true>(op.0.clone()), &g)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let mut dims = Dims::from(x.shape().dims());
        dims[self.0.axis] = if ADJOINT { self.0.input } else { self.0.output };
        Ok(ty(x.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let zero = f.constant(out.dtype(), out.shape(), 0.0);
        if inputs[0].shape().numel() == 0 || out.shape().numel() == 0 {
            return Ok(zero);
        }
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let taps = self.0.taps(x.dtype());
        let y = if ADJOINT {
            self.spread(f, x, &taps)
        } else {
            self.gather(f, x, &taps).unwrap_or(zero)
        };
        Ok(f.convert(y, out.dtype()))
    }
}

/// `input` with one axis at another length.
#[track_caller]
pub(super) fn resample(input: &Tensor, axis: Axis) -> Result<Tensor> {
    record_op(Resample::<false>(axis), &[input.into()])
}
