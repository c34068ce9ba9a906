//! Tensors of places, and what picks one of two numbers: values by PyTorch.

use tests::check::{close, counted, f32s, i64s, same, values};
use tests::differences::{grad_of, leaf};
use tests::with_devices;
use xla::nn::{self, Module};
use xla::{DType, Error, MeshgridIndexing, Result, Tensor, no_grad};

#[test]
fn places() {
    with_devices(1, || {
        let (f, i) = (DType::F32, DType::I64);
        let eye = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        same(Tensor::eye(2, 3, ()), &[2, 3], f, &eye);
        same(Tensor::eye(0, 3, DType::Bool), &[0, 3], DType::Bool, &[]);
        let line = [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0];
        same(Tensor::linspace(-1, 2, 7, ()), &[7], f, &line);
        same(Tensor::linspace(1, 2, 1, ()), &[1], f, &[1.0]);
        same(Tensor::linspace(0, 1, 0, ()), &[0], f, &[]);
        let whole = Tensor::linspace(-3, 4, 4, i);
        same(whole, &[4], i, &[-3.0, 0.0, 1.0, 4.0]);
        let half = [0.0, 1.0, 2.0, 3.0];
        let spaced = Tensor::linspace(0, 3, 4, DType::BF16);
        same(spaced, &[4], DType::BF16, &half);
        let powers = Tensor::logspace(-1, 2, 4, 10, ()).unwrap();
        close(
            "logspace",
            &values(&powers).unwrap(),
            &[0.1, 1.0, 10.0, 100.0],
            1e-6,
        );
        let lower = Tensor::tril_indices(3, 4, -1, ());
        same(lower, &[2, 3], i, &[1., 2., 2., 0., 0., 1.]);
        let upper = Tensor::triu_indices(2, 4, 1, ());
        same(upper, &[2, 5], i, &[0., 0., 0., 1., 1., 1., 2., 3., 2., 3.]);
        same(Tensor::tril_indices(2, 2, -2, ()), &[2, 0], i, &[]);
        same(i64s(&[1, 2]).full_like(7.9), &[2], i, &[7.0, 7.0]);
        assert_eq!(Tensor::empty([2, 0], i).unwrap().dims(), [2, 0]);
    });
}

#[test]
fn grids() {
    with_devices(1, || {
        let (a, b) = (f32s(&[1.0, 2.0, 3.0]), f32s(&[4.0, 5.0]));
        let [x, y] = &Tensor::meshgrid(&[&a, &b], MeshgridIndexing::Ij).unwrap()[..] else {
            panic!("two tensors");
        };
        same(
            Ok(x.clone()),
            &[3, 2],
            DType::F32,
            &[1., 1., 2., 2., 3., 3.],
        );
        same(
            Ok(y.clone()),
            &[3, 2],
            DType::F32,
            &[4., 5., 4., 5., 4., 5.],
        );
        let [x, y] = &Tensor::meshgrid(&[&a, &b], MeshgridIndexing::Xy).unwrap()[..] else {
            panic!("two tensors");
        };
        same(
            Ok(x.clone()),
            &[2, 3],
            DType::F32,
            &[1., 2., 3., 1., 2., 3.],
        );
        same(
            Ok(y.clone()),
            &[2, 3],
            DType::F32,
            &[4., 4., 4., 5., 5., 5.],
        );

        let grid = |tensors: &[&Tensor]| Tensor::meshgrid(tensors, MeshgridIndexing::Ij);
        assert!(matches!(grid(&[]), Err(Error::Argument { .. })));
        let matrix = grid(&[&counted(&[2, 2])]);
        assert!(matches!(matrix, Err(Error::ShapeMismatch { .. })));
        let mixed = grid(&[&a, &i64s(&[1])]);
        assert!(matches!(mixed, Err(Error::DTypeMismatch { .. })));
        let endless = Tensor::linspace(0, 1, usize::MAX, ());
        assert!(
            matches!(endless, Err(Error::Argument { .. })),
            "{endless:?}"
        );
        let wide = Tensor::eye(1, usize::MAX / 2, ());
        assert!(matches!(wide, Err(Error::Argument { .. })), "{wide:?}");
    });
}

/// An operator, its values, and the gradients of its two operands.
type Pick = (
    fn(&Tensor, &Tensor) -> Result<Tensor>,
    [f64; 5],
    [f32; 5],
    [f32; 5],
);

#[test]
fn one_of_two() -> Result<()> {
    let n = f32::NAN;
    let cases: [Pick; 2] = [
        (
            Tensor::fmax,
            [1.0, -0.0, 3.0, 0.0, f64::NAN],
            [1., 0., 0., 1., 0.],
            [0., 1., 1., 0., 0.],
        ),
        (
            Tensor::fmin,
            [1.0, -2.0, 3.0, 0.0, f64::NAN],
            [1., 1., 0., 1., 0.],
            [0., 0., 1., 0., 0.],
        ),
    ];
    for (pick, expected, by_x, by_y) in cases {
        let (x, y) = (leaf(&[1.0, -2.0, n, 0.0, n]), leaf(&[1.0, -0.0, 3.0, n, n]));
        let picked = pick(&x, &y)?;
        picked.nansum((), false)?.backward()?;
        close("picked", &values(&picked)?, &expected, 0.0);
        assert_eq!((grad_of(&x), grad_of(&y)), (by_x.to_vec(), by_y.to_vec()));
    }
    let (x, y) = (leaf(&[1.0, -2.0, 0.0, 3.0]), f32s(&[-1.0, 2.0, -0.0, -0.0]));
    let signed = x.copysign(&y)?;
    signed.sum((), false)?.backward()?;
    let bits = signed.signbit()?.to_vec::<bool>()?;
    assert_eq!(bits, [true, false, true, true]);
    close("copysign", &values(&signed)?, &[-1.0, 2.0, -0.0, -3.0], 0.0);
    assert_eq!(grad_of(&x), [-1.0, -1.0, 0.0, -1.0]);
    same(i64s(&[1, -2]).copysign(-1), &[2], DType::F32, &[-1.0, -2.0]);
    let mismatch = x.fmax(&f32s(&[1.0, 2.0]));
    assert!(
        matches!(mismatch, Err(Error::Broadcast { op: "fmax", .. })),
        "{mismatch:?}"
    );
    Ok(())
}

#[test]
fn logits_and_sines() -> Result<()> {
    let x = leaf(&[0.25, 0.9, 0.0, 1.5]);
    let y = x.logit(0.1)?;
    y.sum((), false)?.backward()?;
    let expected = [-1.0986123, 2.1972246, -2.1972246, 2.1972246];
    close("logit", &values(&y)?, &expected, 1e-6);
    let slopes = values(&x.grad().unwrap())?;
    close("slopes", &slopes, &[5.3333335, 11.111109, 0.0, 0.0], 1e-5);
    let open = values(&x.logit(None)?)?;
    assert!(open[2] == f64::NEG_INFINITY && open[3].is_nan());

    let x = leaf(&[0.0, 0.5, -1.25]);
    let y = x.sinc()?;
    y.sum((), false)?.backward()?;
    close("sinc", &values(&y)?, &[1.0, 0.63661975, -0.18006328], 1e-6);
    let slopes = values(&x.grad().unwrap())?;
    close("slopes", &slopes, &[0.0, -1.2732396, 0.4216347], 1e-5);
    Ok(())
}

#[test]
fn learned_slopes() -> Result<()> {
    let layer = nn::PRelu::new(2, 0.25, ())?;
    let slopes = f32s(&[0.25, 0.5]);
    no_grad(|| layer.weight().copy_(&slopes))?;
    let x = leaf(&[-1.0, 2.0, 0.0, -3.0]);
    let y = layer.forward(&x.reshape([2, 2])?)?;
    y.sum((), false)?.backward()?;
    close("prelu", &values(&y)?, &[-0.25, 2.0, 0.0, -1.5], 0.0);
    assert_eq!(grad_of(&x), [0.25, 1.0, 0.25, 0.5]);
    assert_eq!(grad_of(layer.weight()), [-1.0, -3.0]);
    let names: Vec<_> = layer
        .named_parameters()
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names, ["weight"]);
    let channels = layer.forward(&counted(&[2, 3]));
    assert!(
        matches!(channels, Err(Error::ShapeMismatch { .. })),
        "{channels:?}"
    );
    let dtype = layer.forward(&i64s(&[1]));
    assert!(
        matches!(dtype, Err(Error::DTypeMismatch { .. })),
        "{dtype:?}"
    );
    Ok(())
}
