//! Sliding blocks as columns, and back.

use super::window::{LIMIT, PerAxis, Window, batched, covered};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_op, ty};

/// The arguments of [`unfold`] and [`fold`] beside the sizes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FoldOptions {
    /// Distance of a block's elements; 1.
    pub dilation: PerAxis,
    /// Zeros around the image; 0.
    pub padding: PerAxis,
    /// Distance between two blocks; 1.
    pub stride: PerAxis,
}

impl Default for FoldOptions {
    fn default() -> Self {
        FoldOptions {
            dilation: 1.into(),
            padding: 0.into(),
            stride: 1.into(),
        }
    }
}

/// Blocks of `[batch, channels, height, width]` as columns, or the adjoint: their sum.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Blocks<const ADJOINT: bool>(Window);

impl<const ADJOINT: bool> Blocks<ADJOINT> {
    fn block(&self) -> usize {
        self.0.kernel.iter().product()
    }

    fn blocks(&self) -> usize {
        self.0.output.iter().product()
    }

    fn columns(&self, f: &mut Func, x: Value) -> Value {
        let zero = f.constant(x.dtype(), &Shape::scalar(), 0.0);
        let mut taps = vec![x];
        for axis in 0..self.0.axes() {
            let of = |x: Value| self.0.taps(f, x, zero, (axis, self.0.place_of(x, axis)));
            taps = taps.into_iter().flat_map(of).collect();
        }
        let (batch, channels) = (x.shape()[0], x.shape()[1]);
        let rows = Shape::new(&[batch, channels, 1, self.blocks()]);
        let rows: Vec<Value> = taps.iter().map(|&tap| f.reshape(tap, &rows)).collect();
        f.concatenate(&rows, 2)
    }

    fn sum(&self, f: &mut Func, columns: Value, out: &Shape) -> Value {
        let (batch, channels) = (out[0], out[1]);
        let limit = [batch, channels, self.block(), self.blocks()];
        let columns = f.reshape(columns, &Shape::new(&limit));
        let mut tap: Dims = [batch, channels].into_iter().collect();
        tap.extend_from_slice(&self.0.output);
        let tap = Shape::from(tap);
        let mut taps: Vec<Value> = (0..self.block())
            .map(|k| {
                let (start, end) = ([0, 0, k, 0], [batch, channels, k + 1, limit[3]]);
                let row = f.slice(columns, &start, &end, &[1; 4]);
                f.reshape(row, &tap)
            })
            .collect();
        for axis in (0..self.0.axes()).rev() {
            let several = taps.chunks(self.0.kernel[axis]);
            let place = (axis, 2 + axis);
            let sum = |some: &[Value]| self.0.untaps(f, some, place);
            taps = several.filter_map(sum).collect();
        }
        taps[0]
    }
}

impl<const ADJOINT: bool> Operator for Blocks<ADJOINT> {
    const NAME: &'static str = if ADJOINT { "fold" } else { "unfold" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let g = [vjp.grad().into()];
            vjp.only(if ADJOINT {
                record_op(Blocks::<false>(op.0.clone()), &g)
            } else {
                record_op(Blocks::<true>(op.0.clone()), &g)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let (batch, rows) = (x.shape()[0], x.shape()[1]);
        let dims: Dims = if ADJOINT {
            [batch, rows / self.block()]
                .iter()
                .chain(&self.0.input)
                .copied()
                .collect()
        } else {
            let rows = rows.checked_mul(self.block()).ok_or_else(|| {
                let expected = format!("channels that have {} rows each", self.block());
                Error::shape(Self::NAME, expected, x.shape())
            })?;
            [batch, rows, self.blocks()].into_iter().collect()
        };
        Ok(ty(x.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        if ADJOINT {
            return Ok(self.sum(f, inputs[0], out.shape()));
        }
        let columns = self.columns(f, inputs[0]);
        Ok(f.reshape(columns, out.shape()))
    }
}

fn window(
    op: &'static str,
    sizes: Dims,
    kernel: &PerAxis,
    options: &FoldOptions,
) -> Result<Window> {
    let kernel = kernel.resolve(op, "kernel_size", 2, 1)?;
    let stride = options.stride.resolve(op, "stride", 2, 1)?;
    let low = options.padding.resolve(op, "padding", 2, 0)?;
    let dilation = options.dilation.resolve(op, "dilation", 2, 1)?;
    let mut output = Dims::new();
    for i in 0..2 {
        let reach = covered(kernel[i], dilation[i]);
        let room = sizes[i].saturating_add(2 * low[i]);
        if reach > room || room >= LIMIT {
            let expected =
                format!("at most the {room} elements of spatial axis {i} with its padding");
            return Err(Error::argument(op, "kernel_size", expected, reach));
        }
        output.push((room - reach) / stride[i] + 1);
    }
    Ok(Window {
        input: sizes,
        output,
        kernel,
        stride,
        low,
        dilation,
    })
}

fn numeric(op: &'static str, input: &Tensor) -> Result<()> {
    match input.dtype() {
        DType::Bool => Err(Error::dtype(
            op,
            "an integer or floating-point dtype",
            DType::Bool,
        )),
        _ => Ok(()),
    }
}

/// The blocks that a kernel sees in `[batch, channels, height, width]`, as columns:
/// `[batch, channels * kernel height * kernel width, blocks]`. As in PyTorch, an input without the
/// batch axis gives an output without it.
///
/// # Errors
/// [`Error::ShapeMismatch`] for another rank; [`Error::Argument`] for a kernel, stride or dilation of
/// 0, a negative padding, or a kernel larger than the image; [`Error::DTypeMismatch`] for `bool`.
#[track_caller]
pub fn unfold(
    input: &Tensor,
    kernel_size: impl Into<PerAxis>,
    options: FoldOptions,
) -> Result<Tensor> {
    const OP: &str = "unfold";
    let here = Location::caller();
    let (x, single) = batched::<2>(OP, input).map_err(|e| e.at(here))?;
    numeric(OP, input).map_err(|e| e.at(here))?;
    let sizes = Dims::from(&x.dims()[2..]);
    let window = window(OP, sizes, &kernel_size.into(), &options).map_err(|e| e.at(here))?;
    let columns = record_op(Blocks::<false>(window), &[(&x).into()])?;
    if single {
        columns.squeeze(0)
    } else {
        Ok(columns)
    }
}

/// The adjoint of [`unfold`]: the image of size `output_size` whose elements are the sums of what
/// the blocks, `[batch, channels * kernel height * kernel width, blocks]`, put on them.
///
/// # Errors
/// As [`unfold`]; [`Error::ShapeMismatch`] for an input that is not what [`unfold`] makes of such an
/// image.
#[track_caller]
pub fn fold(
    input: &Tensor,
    output_size: impl Into<PerAxis>,
    kernel_size: impl Into<PerAxis>,
    options: FoldOptions,
) -> Result<Tensor> {
    const OP: &str = "fold";
    let here = Location::caller();
    let check = || {
        numeric(OP, input)?;
        let sizes = output_size.into().resolve(OP, "output_size", 2, 1)?;
        let window = window(OP, sizes, &kernel_size.into(), &options)?;
        let op = Blocks::<true>(window);
        match *input.dims() {
            [.., rows, blocks]
                if input.rank() < 4 && rows % op.block() == 0 && blocks == op.blocks() =>
            {
                Ok(op)
            }
            _ => {
                let (block, blocks) = (op.block(), op.blocks());
                let expected = format!(
                    "an input of shape [batch, channels * {block}, {blocks}] or [channels * {block}, {blocks}]"
                );
                Err(Error::shape(OP, expected, input.shape()))
            }
        }
    };
    let op = check().map_err(|e: Error| e.at(here))?;
    if input.rank() == 2 {
        return record_op(op, &[(&input.unsqueeze(0)?).into()])?.squeeze(0);
    }
    record_op(op, &[input.into()])
}
