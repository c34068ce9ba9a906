//! Autocast computes in the dtypes that PyTorch's does on a CPU: `torch.autocast("cpu")` of 2.9.0.

use DType::{BF16, F32, F64};
use tests::check::{close, values};
use tests::with_devices;
use xla::nn::functional as f;
use xla::nn::{Gru, Linear, Lstm};
use xla::{
    AutocastOptions, DType, Error, PadMode, Result, SolveTriangularOptions, Tensor, autocast,
    autocast_with, is_autocast_enabled,
};

fn t(dims: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::full(dims, 0.5, dtype)
}

fn square(dtype: DType) -> Result<Tensor> {
    Tensor::eye(3, 3, dtype)
}

type Case = (&'static str, fn(DType) -> Result<Tensor>, [DType; 2]);

/// The dtype of the result for operands of `f32` and `bf16`. Of `f64` it is `f64` each time.
const CASES: &[Case] = &[
    (
        "matmul",
        |d| t(&[2, 3], d)?.matmul(&t(&[3, 4], d)?),
        [BF16, BF16],
    ),
    (
        "matmul of vectors",
        |d| t(&[3], d)?.matmul(&t(&[3], d)?),
        [BF16, BF16],
    ),
    ("mm", |d| t(&[2, 3], d)?.mm(&t(&[3, 4], d)?), [BF16, BF16]),
    ("mv", |d| t(&[2, 3], d)?.mv(&t(&[3], d)?), [F32, BF16]),
    ("dot", |d| t(&[3], d)?.dot(&t(&[3], d)?), [F32, BF16]),
    ("outer", |d| t(&[3], d)?.outer(&t(&[3], d)?), [F32, BF16]),
    (
        "bmm",
        |d| t(&[2, 2, 3], d)?.bmm(&t(&[2, 3, 4], d)?),
        [BF16, BF16],
    ),
    (
        "addmm",
        |d| t(&[4], d)?.addmm(&t(&[2, 3], d)?, &t(&[3, 4], d)?, 1, 1),
        [BF16, BF16],
    ),
    (
        "addmv",
        |d| t(&[2], d)?.addmv(&t(&[2, 3], d)?, &t(&[3], d)?, 1, 1),
        [F32, BF16],
    ),
    (
        "baddbmm",
        |d| t(&[2, 2, 4], d)?.baddbmm(&t(&[2, 2, 3], d)?, &t(&[2, 3, 4], d)?, 1, 1),
        [BF16, BF16],
    ),
    (
        "einsum",
        |d| Tensor::einsum("ij,jk->ik", &[&t(&[2, 3], d)?, &t(&[3, 4], d)?]),
        [BF16, BF16],
    ),
    (
        "einsum, elementwise",
        |d| Tensor::einsum("i,i->i", &[&t(&[3], d)?, &t(&[3], d)?]),
        [F32, BF16],
    ),
    (
        "einsum of one",
        |d| Tensor::einsum("ij->ji", &[&t(&[2, 3], d)?]),
        [F32, BF16],
    ),
    (
        "tensordot",
        |d| t(&[2, 3], d)?.tensordot(&t(&[3, 4], d)?, 1, 0),
        [BF16, BF16],
    ),
    (
        "linear",
        |d| f::linear(&t(&[2, 3], d)?, &t(&[4, 3], d)?, Some(&t(&[4], d)?)),
        [BF16, BF16],
    ),
    (
        "conv1d",
        |d| {
            f::conv1d(
                &t(&[1, 2, 5], d)?,
                &t(&[3, 2, 3], d)?,
                None,
                Default::default(),
            )
        },
        [BF16, BF16],
    ),
    (
        "conv2d",
        |d| {
            f::conv2d(
                &t(&[1, 2, 5, 5], d)?,
                &t(&[3, 2, 3, 3], d)?,
                Some(&t(&[3], d)?),
                Default::default(),
            )
        },
        [BF16, BF16],
    ),
    (
        "conv_transpose2d",
        |d| {
            f::conv_transpose2d(
                &t(&[1, 2, 5, 5], d)?,
                &t(&[2, 3, 3, 3], d)?,
                None,
                Default::default(),
            )
        },
        [BF16, BF16],
    ),
    (
        "prelu",
        |d| f::prelu(&t(&[2, 3], d)?, &t(&[1], d)?),
        [BF16, BF16],
    ),
    (
        "scaled_dot_product_attention",
        |d| {
            let x = t(&[1, 2, 3, 4], d)?;
            f::scaled_dot_product_attention(&x, &x, &x, Default::default())
        },
        [BF16, BF16],
    ),
    (
        "mse_loss",
        |d| f::mse_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "l1_loss",
        |d| f::l1_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "smooth_l1_loss",
        |d| f::smooth_l1_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default(), 1),
        [F32, F32],
    ),
    (
        "huber_loss",
        |d| f::huber_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default(), 1),
        [F32, F32],
    ),
    (
        "kl_div",
        |d| f::kl_div(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "poisson_nll_loss",
        |d| f::poisson_nll_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "gaussian_nll_loss",
        |d| f::gaussian_nll_loss(&t(&[3], d)?, &t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, BF16],
    ),
    (
        "cross_entropy",
        |d| {
            f::cross_entropy(
                &t(&[2, 3], d)?,
                &Tensor::from_slice(&[1_i64, 2], [2], ())?,
                Default::default(),
            )
        },
        [F32, F32],
    ),
    (
        "nll_loss",
        |d| {
            f::nll_loss(
                &t(&[2, 3], d)?,
                &Tensor::from_slice(&[1_i64, 2], [2], ())?,
                Default::default(),
            )
        },
        [F32, F32],
    ),
    (
        "binary_cross_entropy",
        |d| f::binary_cross_entropy(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "binary_cross_entropy_with_logits",
        |d| f::binary_cross_entropy_with_logits(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "hinge_embedding_loss",
        |d| f::hinge_embedding_loss(&t(&[3], d)?, &Tensor::ones(3, d)?, 1, Default::default()),
        [F32, F32],
    ),
    (
        "margin_ranking_loss",
        |d| {
            f::margin_ranking_loss(
                &t(&[3], d)?,
                &t(&[3], d)?,
                &Tensor::ones(3, d)?,
                0,
                Default::default(),
            )
        },
        [F32, F32],
    ),
    (
        "soft_margin_loss",
        |d| f::soft_margin_loss(&t(&[3], d)?, &t(&[3], d)?, Default::default()),
        [F32, F32],
    ),
    (
        "cosine_embedding_loss",
        |d| {
            let target = Tensor::from_slice(&[1_i64, -1], [2], ())?;
            f::cosine_embedding_loss(
                &t(&[2, 3], d)?,
                &t(&[2, 3], d)?,
                &target,
                0,
                Default::default(),
            )
        },
        [F32, F32],
    ),
    (
        "triplet_margin_loss",
        |d| {
            f::triplet_margin_loss(
                &t(&[2, 3], d)?,
                &t(&[2, 3], d)?,
                &t(&[2, 3], d)?,
                Default::default(),
            )
        },
        [F32, F32],
    ),
    ("prod", |d| t(&[3], d)?.prod((), false), [F32, F32]),
    (
        "prod over an axis",
        |d| t(&[3, 2], d)?.prod(0, false),
        [F32, F32],
    ),
    ("trace", |d| square(d)?.trace(), [F32, F32]),
    (
        "cdist",
        |d| t(&[2, 3], d)?.cdist(&t(&[4, 3], d)?, 2.0),
        [F32, F32],
    ),
    ("cholesky", |d| square(d)?.cholesky(false), [F32, F32]),
    (
        "cholesky_solve",
        |d| t(&[3, 1], d)?.cholesky_solve(&square(d)?, false),
        [F32, F32],
    ),
    (
        "avg_pool3d",
        |d| f::avg_pool3d(&t(&[1, 1, 4, 4, 4], d)?, 2, Default::default()),
        [F32, F32],
    ),
    (
        "avg_pool2d",
        |d| f::avg_pool2d(&t(&[1, 1, 4, 4], d)?, 2, Default::default()),
        [F32, BF16],
    ),
    (
        "max_pool3d",
        |d| f::max_pool3d(&t(&[1, 1, 4, 4, 4], d)?, 2, Default::default()),
        [F32, F32],
    ),
    (
        "max_pool2d",
        |d| f::max_pool2d(&t(&[1, 1, 4, 4], d)?, 2, Default::default()),
        [F32, BF16],
    ),
    (
        "adaptive_avg_pool3d",
        |d| f::adaptive_avg_pool3d(&t(&[1, 1, 4, 4, 4], d)?, 2),
        [F32, F32],
    ),
    (
        "adaptive_max_pool3d",
        |d| f::adaptive_max_pool3d(&t(&[1, 1, 4, 4, 4], d)?, 2),
        [F32, F32],
    ),
    (
        "adaptive_avg_pool2d",
        |d| f::adaptive_avg_pool2d(&t(&[1, 1, 4, 4], d)?, 2),
        [F32, BF16],
    ),
    (
        "pad by reflection",
        |d| t(&[1, 2, 4], d)?.pad([1, 1], PadMode::Reflect),
        [F32, F32],
    ),
    (
        "the same of two axes",
        |d| t(&[1, 2, 4, 4], d)?.pad([1, 1, 1, 1], PadMode::Reflect),
        [F32, F32],
    ),
    (
        "the same of three axes",
        |d| t(&[1, 2, 4, 4, 4], d)?.pad([1, 1, 1, 1, 1, 1], PadMode::Reflect),
        [F32, BF16],
    ),
    (
        "pad by replication",
        |d| t(&[1, 2, 4], d)?.pad([1, 1], PadMode::Replicate),
        [F32, F32],
    ),
    (
        "circular pad",
        |d| t(&[1, 2, 4], d)?.pad([1, 1], PadMode::Circular),
        [F32, BF16],
    ),
    (
        "cat",
        |d| Tensor::cat(&[&t(&[2], BF16)?, &t(&[2], d)?], 0),
        [F32, BF16],
    ),
    (
        "stack",
        |d| Tensor::stack(&[&t(&[2], BF16)?, &t(&[2], d)?], 0),
        [F32, BF16],
    ),
    ("softmax", |d| t(&[3], d)?.softmax(0), [F32, BF16]),
    ("exp", |d| t(&[3], d)?.exp(), [F32, BF16]),
    (
        "logsumexp",
        |d| t(&[3], d)?.logsumexp(0, false),
        [F32, BF16],
    ),
    ("sum", |d| t(&[3], d)?.sum((), false), [F32, BF16]),
    (
        "cosine_similarity",
        |d| f::cosine_similarity(&t(&[2, 3], d)?, &t(&[2, 3], d)?, 1, 1e-8),
        [F32, BF16],
    ),
];

#[test]
fn dtypes_are_pytorchs() {
    with_devices(1, || {
        for (name, call, expected) in CASES {
            for (dtype, expected) in
                [F32, BF16, F64]
                    .into_iter()
                    .zip([expected[0], expected[1], F64])
            {
                let result = autocast(|| call(dtype)).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(result.dtype(), expected, "{name} of {dtype}");
                if dtype != BF16 {
                    assert_eq!(call(dtype).unwrap().dtype(), dtype, "{name} outside");
                }
            }
        }
        let layers = || -> Result<[DType; 2]> {
            let x = t(&[2, 1, 3], F32)?;
            let lstm = Lstm::new(3, 4, ())?.forward(&x, None)?;
            let gru = Gru::new(3, 4, ())?.forward(&x, None)?;
            Ok([lstm.0.dtype(), gru.0.dtype()])
        };
        assert_eq!(autocast(layers).unwrap(), [BF16, F32]);
    });
}

#[test]
fn a_step_keeps_parameters_and_gradients_in_f32() {
    with_devices(1, || {
        let run = || -> Result<()> {
            xla::manual_seed(4)?;
            let (first, second) = (Linear::new(8, 16, ())?, Linear::new(16, 4, ())?);
            let x = Tensor::randn([32, 8], ())?;
            let loss = |x: &Tensor| -> Result<Tensor> {
                let y = second.forward(&first.forward(x)?.relu()?)?;
                f::mse_loss(&y, &Tensor::zeros([32, 4], ())?, Default::default())
            };
            let exact = loss(&x)?;
            let lowered = autocast(|| loss(&x))?;
            assert_eq!(lowered.dtype(), F32);
            lowered.backward()?;
            let gradient = first.weight().grad().expect("a gradient");
            assert_eq!(gradient.dtype(), F32);
            let mixed = values(&gradient)?;
            first.weight().zero_grad();
            exact.backward()?;
            let full = values(&first.weight().grad().expect("a gradient"))?;
            // bf16 has 8 bits of precision, and the gradients are below 1.
            close("gradient", &mixed, &full, 0.01);
            close("loss", &values(&lowered)?, &values(&exact)?, 0.01);
            assert_ne!(values(&lowered)?, values(&exact)?);
            assert!(!is_autocast_enabled());
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn scopes_nest_and_other_dtypes_are_errors() {
    with_devices(1, || {
        let off = AutocastOptions {
            enabled: false,
            ..AutocastOptions::default()
        };
        let half = AutocastOptions {
            dtype: DType::F16,
            ..AutocastOptions::default()
        };
        let wrong = AutocastOptions {
            dtype: F32,
            ..AutocastOptions::default()
        };
        let product = || t(&[2, 3], F32)?.matmul(&t(&[3, 2], F32)?);
        autocast(|| {
            assert_eq!(autocast_with(off, product).unwrap().dtype(), F32);
            assert_eq!(autocast_with(half, product).unwrap().dtype(), DType::F16);
            assert_eq!(product().unwrap().dtype(), BF16);
        });
        let error = autocast_with(wrong, product).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        // What needs f32 has it, whatever was computed before.
        let solved = autocast(|| {
            let factor = square(BF16)?.cholesky(false)?;
            factor.solve_triangular(&t(&[3, 1], F32)?, SolveTriangularOptions::default())
        });
        assert_eq!(solved.unwrap().dtype(), F32);
    });
}
