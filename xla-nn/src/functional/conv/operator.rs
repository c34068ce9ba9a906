//! The operator: a convolution and its adjoints.

use crate::functional::{accumulator, window::Window};
use xla_core::{DType, Dims, Result, Shape};
use xla_lazy::stablehlo::{ConvolutionWindow, Func, Value};
use xla_lazy::{
    Derivative, InputType, MatmulPrecision, Operator, Saves, Tensor, Ty, Vjp, record_op, ty,
};

/// Which of the three tensors of a convolution is computed from the other two. Each of the three is
/// linear in both others, so that the derivatives of any of them are the others.
pub(super) const OUTPUT: u8 = 0;
pub(super) const INPUT: u8 = 1;
const WEIGHT: u8 = 2;

/// A convolution, or its adjoint with respect to its input or weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Convolution<const OF: u8> {
    pub(super) window: Window,
    pub(super) groups: usize,
    pub(super) precision: MatmulPrecision,
}

impl<const OF: u8> Convolution<OF> {
    fn of<const OTHER: u8>(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let op = Convolution::<OTHER> {
            window: self.window.clone(),
            groups: self.groups,
            precision: self.precision,
        };
        record_op(op, &[a.into(), b.into()])
    }
}

impl<const OF: u8> Operator for Convolution<OF> {
    const NAME: &'static str = match OF {
        OUTPUT => "convolution",
        INPUT => "convolution_input",
        _ => "convolution_weight",
    };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::CROSSWISE,
        rule: |op, vjp: &Vjp<'_>| {
            let g = vjp.grad();
            vjp.each(|i| match (OF, i) {
                (OUTPUT, 0) => op.of::<INPUT>(g, vjp.input(1)?),
                (OUTPUT, _) => op.of::<WEIGHT>(vjp.input(0)?, g),
                (INPUT, 0) => op.of::<OUTPUT>(g, vjp.input(1)?),
                (INPUT, _) => op.of::<WEIGHT>(g, vjp.input(0)?),
                (_, 0) => op.of::<INPUT>(vjp.input(1)?, g),
                _ => op.of::<OUTPUT>(vjp.input(0)?, g),
            })
        },
    };

    /// The operands are input and weight, output and weight, or input and output.
    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let (a, b) = (inputs[0].tensor(Self::NAME)?, inputs[1].tensor(Self::NAME)?);
        let dims: Dims = match OF {
            OUTPUT => [a.shape()[0], b.shape()[0]]
                .iter()
                .chain(&self.window.output)
                .copied()
                .collect(),
            INPUT => [a.shape()[0], b.shape()[1] * self.groups]
                .iter()
                .chain(&self.window.input)
                .copied()
                .collect(),
            _ => [b.shape()[1], a.shape()[1] / self.groups]
                .iter()
                .chain(&self.window.kernel)
                .copied()
                .collect(),
        };
        Ok(ty(a.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (a, b) = (inputs[0], inputs[1]);
        if a.shape().numel() == 0 || b.shape().numel() == 0 || out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let wide = accumulator(out.dtype());
        let (a, b) = (f.convert(a, wide), f.convert(b, wide));
        let value = f.with_precision(self.precision, |f| match OF {
            OUTPUT => self.lower_output(f, a, b),
            INPUT => self.lower_input(f, a, b),
            _ if self.correlates(a) => self.lower_correlation(f, a, b),
            _ => self.lower_weight(f, a, b, out.shape()),
        });
        Ok(f.convert(value, out.dtype()))
    }
}

/// All positions of a kernel of this size, the last axis fastest.
fn positions(kernel: &[usize]) -> Vec<Dims> {
    let mut all = vec![Dims::new()];
    for &n in kernel {
        let longer = |p: &Dims| -> Vec<Dims> {
            (0..n)
                .map(|k| p.iter().copied().chain([k]).collect())
                .collect()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

impl<const OF: u8> Convolution<OF> {
    fn lower_output(&self, f: &mut Func, x: Value, weight: Value) -> Value {
        let w = &self.window;
        let axes: Dims = (2..w.axes() + 2).chain([1, 0]).collect();
        let kernel = f.transpose(weight, &axes);
        let x = w.channels_last(f, x);
        let ones = vec![1; w.axes()];
        let y = f.convolution(
            x,
            kernel,
            ConvolutionWindow {
                stride: &w.stride,
                low: &w.before(),
                high: &w.after(),
                input_dilation: &ones,
                kernel_dilation: &w.dilation,
                groups: self.groups,
            },
        );
        self.window.channels_first(f, y)
    }

    /// The convolution of the output's gradient, spread by the stride, with the reversed kernel.
    fn lower_input(&self, f: &mut Func, grad: Value, weight: Value) -> Value {
        let w = &self.window;
        let (n, shape) = (w.axes(), weight.shape());
        let (outs, ins) = (shape[0] / self.groups, shape[1]);
        let grouped: Dims = [self.groups, outs, ins]
            .iter()
            .chain(&w.kernel)
            .copied()
            .collect();
        let kernel = f.reshape(weight, &Shape::from(grouped));
        let axes: Dims = (3..n + 3).chain([1, 0, 2]).collect();
        let kernel = f.transpose(kernel, &axes);
        let joined: Dims = w
            .kernel
            .iter()
            .copied()
            .chain([outs, self.groups * ins])
            .collect();
        let kernel = f.reshape(kernel, &Shape::from(joined));
        let spatial: Dims = (0..n).collect();
        let kernel = f.reverse(kernel, &spatial);
        let low = |i: usize| (w.covered(i) - 1) as i64 - w.low[i] as i64;
        let high = |i: usize| {
            let spread = (w.output[i] - 1) * w.stride[i] + 1;
            w.input[i] as i64 + w.low[i] as i64 - spread as i64
        };
        let grad = self.window.channels_last(f, grad);
        let x = f.convolution(
            grad,
            kernel,
            ConvolutionWindow {
                stride: &vec![1; n],
                low: &(0..n).map(low).collect::<Vec<_>>(),
                high: &(0..n).map(high).collect::<Vec<_>>(),
                input_dilation: &w.stride,
                kernel_dilation: &w.dilation,
                groups: self.groups,
            },
        );
        self.window.channels_first(f, x)
    }

    /// Whether the weight's gradient is computed as a convolution, and not from columns. On a CPU the
    /// convolution took from an eighth to about all of the columns' time on kernels of 3, 5 and 7
    /// (batch times space from 400 to 50 000, 1 to 256 channels), and two thirds of their
    /// compilation. Columns were as fast or faster where they cost no copies, on a kernel of one
    /// element; for strides over 64 channels or more (up to a half); and in `f64`. Groups are
    /// batches of the columns' matrix product.
    fn correlates(&self, x: Value) -> bool {
        let w = &self.window;
        let strided = w.stride.iter().any(|&n| n > 1);
        self.groups == 1
            && x.dtype() == DType::F32
            && w.kernel.iter().any(|&n| n > 1)
            && !(strided && x.shape()[1] >= 64)
    }

    /// A matrix product: what each position of the kernel sees of the input, as columns, times the
    /// output's gradient. The columns are made in parts, so that a large kernel does not multiply
    /// the memory.
    fn lower_weight(&self, f: &mut Func, x: Value, grad: Value, out: &Shape) -> Value {
        const COLUMNS: usize = 1 << 25;
        let w = &self.window;
        let (n, groups) = (w.axes(), self.groups);
        let x = self.window.channels_last(f, x);
        let (low, high) = (w.before(), w.after());
        let around = |edge: &[i64]| -> Vec<i64> { [&[0], edge, &[0]].concat() };
        let x = if low.iter().chain(&high).all(|&n| n == 0) {
            x
        } else {
            let zero = f.constant(x.dtype(), &Shape::scalar(), 0.0);
            f.pad(x, zero, &around(&low), &around(&high), &vec![0; n + 2])
        };
        let channels = x.shape()[n + 1];
        let grad = self.window.channels_last(f, grad);
        let rows: usize = grad.shape()[..n + 1].iter().product();
        let outs = grad.shape()[n + 1];
        let grad = f.reshape(grad, &Shape::new(&[rows, groups, outs / groups]));
        let step: Dims = [1].iter().chain(&w.stride).chain(&[1]).copied().collect();
        let places = positions(&w.kernel);
        let at_once = (COLUMNS / (rows * channels)).max(1);
        let mut products = Vec::new();
        for some in places.chunks(at_once) {
            let seen: Vec<Value> = some
                .iter()
                .map(|place| {
                    let (mut start, mut limit) = (vec![0; n + 2], x.shape().dims().to_vec());
                    for i in 0..n {
                        start[i + 1] = place[i] * w.dilation[i];
                        limit[i + 1] = start[i + 1] + (w.output[i] - 1) * w.stride[i] + 1;
                    }
                    f.slice(x, &start, &limit, &step)
                })
                .collect();
            let columns = f.concatenate(&seen, n + 1);
            let columns = f.reshape(
                columns,
                &Shape::new(&[rows, some.len(), groups, channels / groups]),
            );
            // `[groups, places, channels / groups, outs / groups]`.
            products.push(f.dot_general(columns, grad, (&[2], &[1]), (&[0], &[0])));
        }
        let product = f.concatenate(&products, 1);
        let product = f.transpose(product, &[0, 3, 2, 1]);
        f.reshape(product, out)
    }

    /// The convolution of the input, its channels as the batch, with the output's gradient, spread
    /// by the stride, as the kernel.
    fn lower_correlation(&self, f: &mut Func, x: Value, grad: Value) -> Value {
        let w = &self.window;
        let n = w.axes();
        let channels_batch: Dims = [1].into_iter().chain(2..n + 2).chain([0]).collect();
        let x = f.transpose(x, &channels_batch);
        let kernel: Dims = (2..n + 2).chain([0, 1]).collect();
        let kernel = f.transpose(grad, &kernel);
        let high = |i: usize| {
            let spread = (w.output[i] - 1) * w.stride[i] + w.covered(i);
            spread as i64 - w.low[i] as i64 - w.input[i] as i64
        };
        let product = f.convolution(
            x,
            kernel,
            ConvolutionWindow {
                stride: &w.dilation,
                low: &w.before(),
                high: &(0..n).map(high).collect::<Vec<_>>(),
                input_dilation: &vec![1; n],
                kernel_dilation: &w.stride,
                groups: 1,
            },
        );
        // `[channels, kernel.., outs]`.
        let axes: Dims = [n + 1].into_iter().chain(0..n + 1).collect();
        f.transpose(product, &axes)
    }
}
