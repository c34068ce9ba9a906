//! Bad input to products, linear algebra, norms, losses and attention: the right error, with the
//! operator's name, at the caller's line.

use xla::nn::functional::{
    self, AttentionOptions, BatchNormOptions, CrossEntropyOptions, NllLossOptions, Reduction,
};
use xla::{DType, Error, Result, SolveTriangularOptions, Tensor};

fn f32s(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, ()).unwrap()
}

/// What an error is, by its variant.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::ShapeMismatch { .. } => "shape",
        Error::DTypeMismatch { .. } => "dtype",
        Error::Argument { .. } => "argument",
        Error::Broadcast { .. } => "broadcast",
        Error::IndexOutOfRange { .. } => "index",
        Error::Axis { .. } => "axis",
        _ => "another",
    }
}

/// Checks that a call fails with this kind of error under this name, here.
#[track_caller]
fn refused(expected: &str, op: &str, result: Result<Tensor>) {
    let here = std::panic::Location::caller();
    let error = result.expect_err("bad input was taken");
    let text = error.to_string();
    assert_eq!(kind(&error), expected, "{text}");
    assert!(text.starts_with(op), "{text}");
    let at = error.location().expect("a line");
    assert_eq!(at.file(), here.file(), "{text}");
    // The call may be on a line of its own, below the assertion's.
    let lines = here.line()..here.line() + 6;
    assert!(lines.contains(&at.line()), "{text}");
}

#[test]
fn products_that_do_not_fit() {
    let (a, b) = (f32s(&[2, 3]), f32s(&[4, 5]));
    let batch = f32s(&[2, 3, 4]);
    refused("shape", "mm", a.mm(&b));
    refused("shape", "mm", a.mm(&batch));
    refused("shape", "bmm", batch.bmm(&f32s(&[3, 4, 5])));
    refused("shape", "mv", a.mv(&f32s(&[2])));
    refused("shape", "dot", f32s(&[2]).dot(&f32s(&[3])));
    refused("shape", "outer", a.outer(&f32s(&[3])));
    refused("shape", "addmm", f32s(&[3]).addmm(&a, &f32s(&[3, 4]), 1, 1));
    refused("shape", "tensordot", a.tensordot(&b, 1, 0));
    refused("argument", "tensordot", a.tensordot(&b, [0, 1], 0));
    refused("axis", "tensordot", a.tensordot(&b, 2, 0));
    refused("shape", "linear", functional::linear(&b, &a, None));
    let bias = f32s(&[3]);
    refused("shape", "linear", functional::linear(&a, &a, Some(&bias)));
}

#[test]
fn equations_without_meaning() {
    let (a, b) = (f32s(&[2, 3]), f32s(&[4, 5]));
    refused("argument", "einsum", Tensor::einsum("ij,jk->ik", &[&a]));
    refused("argument", "einsum", Tensor::einsum("ij->ik", &[&a]));
    refused("argument", "einsum", Tensor::einsum("ij->ii", &[&a]));
    refused("argument", "einsum", Tensor::einsum("i1->i", &[&a]));
    refused("argument", "einsum", Tensor::einsum("", &[]));
    refused("shape", "einsum", Tensor::einsum("ijk->i", &[&a]));
    refused("shape", "einsum", Tensor::einsum("ij,jk->ik", &[&a, &b]));
    refused("shape", "einsum", Tensor::einsum("ii->i", &[&a]));
    let whole = Tensor::zeros([2, 3], DType::I64).unwrap();
    refused("dtype", "einsum", Tensor::einsum("ij,ij->", &[&a, &whole]));
}

#[test]
fn matrices_that_cannot_be_solved() {
    let (a, square) = (f32s(&[2, 3]), f32s(&[3, 3]));
    let options = SolveTriangularOptions::default();
    refused("shape", "cholesky", a.cholesky(false));
    refused("shape", "cholesky", f32s(&[3]).cholesky(false));
    let half = Tensor::zeros([2, 2], DType::BF16).unwrap();
    refused("dtype", "cholesky", half.cholesky(false));
    refused(
        "shape",
        "solve_triangular",
        square.solve_triangular(&a, options),
    );
    refused("shape", "trace", f32s(&[3]).trace());
    refused("shape", "cross", a.cross(&a, 0));
    refused("shape", "cdist", a.cdist(&f32s(&[2, 4]), 2.0));
    refused("argument", "cdist", a.cdist(&a, -1.0));
}

#[test]
fn norms_of_other_shapes() {
    let x = f32s(&[2, 6, 4]);
    let w = f32s(&[5]);
    refused(
        "shape",
        "layer_norm",
        functional::layer_norm(&x, [6], None, None, 1e-5),
    );
    refused(
        "shape",
        "layer_norm",
        functional::layer_norm(&x, [4], Some(&w), None, 1e-5),
    );
    refused(
        "argument",
        "group_norm",
        functional::group_norm(&x, 4, None, None, 1e-5),
    );
    refused(
        "argument",
        "group_norm",
        functional::group_norm(&x, 0, None, None, 1e-5),
    );
    let options = BatchNormOptions::default();
    refused(
        "argument",
        "batch_norm",
        functional::batch_norm(&x, None, None, options),
    );
    let training = BatchNormOptions {
        training: true,
        ..options
    };
    let one = f32s(&[1, 3]);
    refused(
        "shape",
        "batch_norm",
        functional::batch_norm(&one, None, None, training),
    );
    refused(
        "shape",
        "batch_norm",
        functional::batch_norm(&x, Some(&w), None, training),
    );
}

#[test]
fn targets_that_do_not_fit() {
    let x = f32s(&[2, 3]);
    let labels = |data: &[i64]| Tensor::from_slice(data, data.len(), ()).unwrap();
    let (entropy, nll) = (CrossEntropyOptions::default(), NllLossOptions::default());
    refused(
        "index",
        "cross_entropy",
        functional::cross_entropy(&x, &labels(&[0, 7]), entropy),
    );
    refused(
        "index",
        "nll_loss",
        functional::nll_loss(&x, &labels(&[-1, 0]), nll),
    );
    refused(
        "shape",
        "nll_loss",
        functional::nll_loss(&x, &labels(&[0]), nll),
    );
    let weighted = CrossEntropyOptions {
        weight: Some(&x),
        ..entropy
    };
    refused(
        "shape",
        "cross_entropy",
        functional::cross_entropy(&x, &labels(&[0, 1]), weighted),
    );
    let smooth = CrossEntropyOptions {
        label_smoothing: 1.5,
        ..entropy
    };
    refused(
        "argument",
        "cross_entropy",
        functional::cross_entropy(&x, &labels(&[0, 1]), smooth),
    );
    let other = f32s(&[4]);
    refused(
        "broadcast",
        "mse_loss",
        functional::mse_loss(&x, &other, Reduction::Mean),
    );
    refused(
        "argument",
        "huber_loss",
        functional::huber_loss(&x, &x, Reduction::Mean, 0),
    );
    let options = Default::default();
    refused(
        "shape",
        "binary_cross_entropy_with_logits",
        functional::binary_cross_entropy_with_logits(&x, &other, options),
    );
    refused("shape", "glu", functional::glu(&x, 1));
}

#[test]
fn attention_that_does_not_fit() {
    const OP: &str = "scaled_dot_product_attention";
    let x = f32s(&[2, 3, 4]);
    let attend = functional::scaled_dot_product_attention;
    let options = AttentionOptions::default();
    refused("shape", OP, attend(&x, &f32s(&[2, 3, 5]), &x, options));
    refused("shape", OP, attend(&x, &x, &f32s(&[2, 5, 4]), options));
    let mask = f32s(&[3, 5]);
    let masked = AttentionOptions {
        attn_mask: Some(&mask),
        ..options
    };
    refused("shape", OP, attend(&x, &x, &x, masked));
    let both = AttentionOptions {
        is_causal: true,
        ..masked
    };
    refused("argument", OP, attend(&x, &x, &x, both));
    let dropped = AttentionOptions {
        dropout_p: 2.0,
        ..options
    };
    refused("argument", OP, attend(&x, &x, &x, dropped));
}
