//! Initial values whose elements depend on each other.

use std::panic::Location;
use xla_core::{DType, Error, Literal, Result, Shape};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Tensor, Ty, no_grad, record_op, ty};

/// Orthonormal rows that span those of a matrix with no more rows than columns.
///
/// With `A Aᵀ = L Lᵀ` (Cholesky) the rows of `L⁻¹ A` are orthonormal; a second round takes away what
/// rounding left. The diagonal of `L` is positive, so for a matrix of normal numbers the result is
/// uniformly distributed (Mezzadri, "How to generate random matrices from the classical compact
/// groups", 2007).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Orthonormal;

impl Operator for Orthonormal {
    const NAME: &'static str = "orthonormal";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let mut rows = inputs[0];
        let square = Shape::new(&[rows.shape()[0]; 2]);
        let product = ty(rows.dtype(), &square);
        for _ in 0..2 {
            let gram = f.dot_general(rows, rows, (&[], &[]), (&[1], &[1]));
            let factor = f.call(
                format_args!("\"stablehlo.cholesky\"({gram}) <{{lower = true}}>"),
                &[gram],
                product,
            );
            rows = f.call(
                format_args!(
                    "\"stablehlo.triangular_solve\"({factor}, {rows}) <{{left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}}>"
                ),
                &[factor, rows],
                rows.ty(),
            );
        }
        Ok(rows)
    }
}

/// Fills with `gain` times a random matrix whose rows, or columns where there are fewer of them, are
/// orthonormal; axes after the first count as one (Saxe et al., "Exact solutions to the nonlinear
/// dynamics of learning in deep linear neural networks", 2013).
///
/// # Errors
/// [`Error::ShapeMismatch`] for fewer than two axes, [`Error::DTypeMismatch`] for a dtype that is not
/// floating-point.
#[track_caller]
pub fn orthogonal_(tensor: &Tensor, gain: f64) -> Result<Tensor> {
    const OP: &str = "init::orthogonal_";
    let at = Location::caller();
    if tensor.rank() < 2 {
        let error = Error::shape(OP, "a tensor of at least two axes", tensor.shape());
        return Err(error.at(at));
    }
    if !tensor.dtype().is_float() {
        return Err(Error::dtype(OP, "a floating-point dtype", tensor.dtype()).at(at));
    }
    if tensor.numel() == 0 {
        return Ok(tensor.clone());
    }
    let rows = tensor.dims()[0];
    let columns = tensor.numel() / rows;
    no_grad(|| {
        // In f64: the product squares how far the rows are from orthogonal.
        let normal = Tensor::randn(
            [rows.min(columns), rows.max(columns)],
            (DType::F64, tensor.device()),
        )?;
        let flat = record_op(Orthonormal, &[(&normal).into()])?;
        let flat = if rows > columns { flat.t()? } else { flat };
        tensor.copy_(&flat.mul(gain)?.reshape(tensor.shape())?)
    })
}

/// Fills a matrix with the identity: 1 on the diagonal, else 0.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a tensor that is no matrix.
#[track_caller]
pub fn eye_(tensor: &Tensor) -> Result<Tensor> {
    let at = Location::caller();
    let [rows, columns] = *tensor.dims() else {
        return Err(Error::shape("init::eye_", "a matrix", tensor.shape()).at(at));
    };
    let diagonal: Vec<usize> = (0..rows.min(columns)).map(|i| i * columns + i).collect();
    with_ones(tensor, &diagonal)
}

/// Sets these elements, by their place in row-major order, to 1 and all others to 0.
fn with_ones(tensor: &Tensor, places: &[usize]) -> Result<Tensor> {
    let mut data = vec![0f32; tensor.numel()];
    for &place in places {
        data[place] = 1.0;
    }
    let literal = Literal::from_vec(data, tensor.shape())?;
    let values = Tensor::from_literal(literal, (tensor.dtype(), tensor.device()))?;
    no_grad(|| tensor.copy_(&values))
}

/// Fills the kernel of a convolution, `[out, in, ..]` with one to three axes of a window, so that it
/// passes as many channels as it can through unchanged, in each of `groups` groups of output channels:
/// 1 in the window's middle where the channels are equal, else 0.
///
/// # Errors
/// [`Error::ShapeMismatch`] for another number of axes, [`Error::Argument`] when the output channels do
/// not split into so many groups.
#[track_caller]
pub fn dirac_(tensor: &Tensor, groups: usize) -> Result<Tensor> {
    const OP: &str = "init::dirac_";
    let at = Location::caller();
    let [outputs, inputs, window @ ..] = tensor.dims() else {
        return Err(Error::shape(OP, "3, 4 or 5 axes", tensor.shape()).at(at));
    };
    if !(1..=3).contains(&window.len()) {
        return Err(Error::shape(OP, "3, 4 or 5 axes", tensor.shape()).at(at));
    }
    if groups == 0 || !outputs.is_multiple_of(groups) {
        let expected = format!("a divisor of the {outputs} output channels");
        return Err(Error::argument(OP, "groups", expected, groups).at(at));
    }
    if tensor.numel() == 0 {
        return Ok(tensor.clone());
    }
    let size: usize = window.iter().product();
    let middle = window.iter().fold(0, |place, &d| place * d + d / 2);
    let each = outputs / groups;
    let places: Vec<usize> = (0..groups)
        .flat_map(|group| {
            (0..each.min(*inputs)).map(move |channel| (group * each + channel, channel))
        })
        .map(|(output, input)| (output * inputs + input) * size + middle)
        .collect();
    with_ones(tensor, &places)
}

/// Fills a matrix with numbers of the normal distribution of this deviation, and sets a fraction
/// `sparsity` of each column, rounded up, to 0 (Martens, "Deep learning via Hessian-free optimization",
/// 2010).
///
/// # Errors
/// [`Error::ShapeMismatch`] for a tensor that is no matrix, [`Error::Argument`] for a fraction outside 0
/// to 1 or a negative deviation.
#[track_caller]
pub fn sparse_(tensor: &Tensor, sparsity: f64, std: f64) -> Result<Tensor> {
    const OP: &str = "init::sparse_";
    let at = Location::caller();
    let [rows, columns] = *tensor.dims() else {
        return Err(Error::shape(OP, "a matrix", tensor.shape()).at(at));
    };
    if !(0.0..=1.0).contains(&sparsity) {
        let expected = "a fraction from 0 to 1";
        return Err(Error::argument(OP, "sparsity", expected, sparsity).at(at));
    }
    let zeros = (sparsity * rows as f64).ceil() as usize;
    let options = (tensor.dtype(), tensor.device());
    if zeros == 0 || tensor.numel() == 0 {
        return super::normal_(tensor, 0.0, std);
    }
    no_grad(|| {
        // Weights all alike: each row of positions is a random order of the column's elements.
        let weights = Tensor::ones([columns, rows], (DType::F32, tensor.device()))?;
        let order = weights.multinomial(rows, false)?;
        let kept = order.ge(zeros as i64)?.t()?;
        let normal = Tensor::normal(0.0, std, tensor.shape(), options)?;
        tensor.copy_(&kept.select_from(&normal, 0)?)
    })
}
