//! Dropout, initial values and the clipping of gradients.

use tests::alone;
use tests::check::{close, counted, f32s, values};
use tests::differences::{grad_of, leaf};
use xla::metrics::Scope;
use xla::nn::functional as F;
use xla::nn::init::{self, FanMode, KaimingOptions, Nonlinearity};
use xla::nn::utils::{ClipOptions, clip_grad_norm_, clip_grad_value_};
use xla::{DType, Error, Result, Tensor};

/// Mean and variance.
fn moments(x: &Tensor) -> Result<(f64, f64)> {
    let x = values(x)?;
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let square = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    Ok((mean, square / x.len() as f64))
}

#[test]
fn dropout_zeros_and_scales_values_and_gradients() {
    alone(|| {
        xla::manual_seed(1)?;
        for synced in [false, true] {
            let x = Tensor::full(10_000, 3.0, ())?
                .copy()?
                .requires_grad_(true)?;
            let y = F::dropout(&x, 0.25, true)?;
            if synced {
                xla::sync()?.wait()?;
            }
            y.sum((), false)?.backward()?;
            let (y, grad) = (values(&y)?, values(&x.grad().expect("it is a leaf"))?);
            let zeros = y.iter().filter(|y| **y == 0.0).count();
            assert!((2300..2700).contains(&zeros), "{zeros}");
            assert!(y.iter().zip(&grad).all(|(y, g)| match *y {
                0.0 => *g == 0.0,
                y => (y - 4.0).abs() < 1e-6 && (g - 4.0 / 3.0).abs() < 1e-6,
            }));
        }
        let x = leaf(&[1.0, f32::INFINITY, f32::NAN]);
        let none = F::dropout(&x, 1.0, true)?;
        none.sum((), false)?.backward()?;
        assert_eq!((values(&none)?, grad_of(&x)), (vec![0.0; 3], vec![0.0; 3]));
        let x = counted(&[2, 3]);
        for kept in [F::dropout(&x, 0.0, true)?, F::dropout(&x, 0.9, false)?] {
            assert_eq!(values(&kept)?, values(&x)?);
        }
        let half = F::dropout(&x.to_dtype(DType::BF16)?, 0.5, true)?;
        assert_eq!(half.dtype(), DType::BF16);
        Ok(())
    });
}

#[test]
fn each_step_has_a_mask_of_its_own_and_one_program() {
    alone(|| {
        let x = Tensor::ones(1000, ())?.copy()?;
        xla::manual_seed(1)?;
        xla::sync()?;
        let scope = Scope::new();
        let mut masks = Vec::new();
        for p in [0.5, 0.5, 0.1, 1.0] {
            let mask = values(&F::dropout(&x, p, true)?.ne(0)?)?;
            assert!(!masks.contains(&mask));
            let dropped = 1000.0 - mask.iter().sum::<f64>();
            assert!((dropped - 1000.0 * p).abs() < 80.0, "{p}: {dropped}");
            masks.push(mask);
        }
        assert_eq!(scope.compiles(), 1);
        Ok(())
    });
}

#[test]
fn whole_channels_are_dropped() {
    alone(|| {
        xla::manual_seed(1)?;
        type Drop = fn(&Tensor, f64, bool) -> Result<Tensor>;
        let cases: [(Drop, &[usize], usize); 7] = [
            (F::dropout1d, &[200, 3, 5], 600),
            (F::dropout1d, &[600, 5], 600),
            (F::dropout2d, &[200, 3, 5, 2], 600),
            (F::dropout2d, &[200, 3, 5], 600),
            (F::dropout3d, &[200, 3, 5, 1, 2], 600),
            (F::dropout3d, &[600, 5, 1, 2], 600),
            (F::feature_alpha_dropout, &[200, 3, 5], 600),
        ];
        for (i, (drop, dims, channels)) in cases.into_iter().enumerate() {
            let x = Tensor::ones(dims, ())?;
            let rows = drop(&x, 0.5, true)?.reshape([channels as i64, -1])?;
            let (least, most) = (
                values(&rows.amin(1, false)?)?,
                values(&rows.amax(1, false)?)?,
            );
            assert_eq!(least, most, "{i}: a channel is kept or not");
            let kept = least.iter().filter(|v| **v > 1.0 - 1e-3).count();
            let alpha = i == 6;
            assert!(alpha || (230..370).contains(&kept), "{i}: {kept}");
        }
        Ok(())
    });
}

#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    alone(|| {
        xla::manual_seed(1)?;
        let x = Tensor::randn(100_000, ())?;
        let (mean, variance) = moments(&F::alpha_dropout(&x, 0.3, true)?)?;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03,
            "{mean} {variance}"
        );
        assert_eq!(moments(&F::alpha_dropout(&x, 1.0, true)?)?, (0.0, 0.0));
        assert_eq!(values(&F::alpha_dropout(&x, 0.0, true)?)?, values(&x)?);
        Ok(())
    });
}

#[test]
fn what_cannot_be_dropped() {
    alone(|| {
        let x = counted(&[2, 3]);
        for p in [-0.1, 1.1, f64::NAN] {
            for result in [F::dropout(&x, p, true), F::alpha_dropout(&x, p, false)] {
                assert!(matches!(result, Err(Error::Argument { .. })), "{result:?}");
            }
        }
        let whole = F::dropout(&Tensor::zeros(2, DType::I64)?, 0.5, true);
        assert!(matches!(
            whole,
            Err(Error::DTypeMismatch { op: "dropout", .. })
        ));
        for result in [
            F::dropout2d(&x, 0.5, true),
            F::dropout3d(&x, 0.5, true),
            F::dropout1d(&f32s(&[1.0]), 0.5, true),
            F::feature_alpha_dropout(&f32s(&[1.0]), 0.5, true),
        ] {
            assert!(
                matches!(result, Err(Error::ShapeMismatch { .. })),
                "{result:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn initial_values_have_the_papers_variances() {
    alone(|| {
        xla::manual_seed(2)?;
        let weight = Tensor::zeros([100, 50, 3, 2], ())?
            .copy()?
            .requires_grad_(true)?;
        let out = KaimingOptions {
            mode: FanMode::FanOut,
            nonlinearity: Nonlinearity::Relu,
        };
        // The fans are 300 and 600.
        type Fill = Box<dyn Fn(&Tensor) -> Result<Tensor>>;
        let cases: [(&str, Fill, f64); 6] = [
            ("uniform_", Box::new(|w| init::uniform_(w, -3, 3)), 3.0),
            ("normal_", Box::new(|w| init::normal_(w, 0, 2)), 4.0),
            (
                "xavier_uniform_",
                Box::new(|w| init::xavier_uniform_(w, 3.0)),
                9.0 * 2.0 / 900.0,
            ),
            (
                "xavier_normal_",
                Box::new(|w| init::xavier_normal_(w, 1.0)),
                2.0 / 900.0,
            ),
            (
                "kaiming_uniform_",
                Box::new(|w| init::kaiming_uniform_(w, KaimingOptions::default())),
                2.0 / 300.0,
            ),
            (
                "kaiming_normal_",
                Box::new(move |w| init::kaiming_normal_(w, out)),
                2.0 / 600.0,
            ),
        ];
        for (what, fill, variance) in cases {
            let before = weight.version();
            fill(&weight)?;
            let (mean, got) = moments(&weight)?;
            assert!(weight.version() > before && weight.requires_grad() && weight.is_leaf());
            assert!(mean.abs() < 0.05 * variance.sqrt(), "{what}: mean {mean}");
            assert!(
                (got / variance - 1.0).abs() < 0.05,
                "{what}: {got} for {variance}"
            );
        }
        init::constant_(&weight, 7)?;
        assert_eq!(moments(&weight)?, (7.0, 0.0));
        init::ones_(&weight)?;
        init::zeros_(&weight)?;
        assert_eq!(moments(&weight)?, (0.0, 0.0));
        for refused in [
            init::xavier_normal_(&f32s(&[1.0]), 1.0),
            init::kaiming_uniform_(&f32s(&[1.0]), out),
            init::eye_(&f32s(&[1.0])),
            init::orthogonal_(&f32s(&[1.0]), 1.0),
            init::dirac_(&counted(&[2, 2]), 1),
            init::sparse_(&f32s(&[1.0]), 0.1, 1.0),
        ] {
            assert!(
                matches!(refused, Err(Error::ShapeMismatch { .. })),
                "{refused:?}"
            );
        }
        assert!(init::dirac_(&counted(&[3, 2, 1]), 2).is_err());
        Ok(())
    });
}

#[test]
fn initial_values_with_a_structure() {
    alone(|| {
        xla::manual_seed(2)?;
        for dims in [&[3, 5][..], &[5, 3], &[40, 40], &[4, 2, 3]] {
            let w = Tensor::zeros(dims, DType::F64)?;
            init::orthogonal_(&w, 2.0)?;
            let w = w.reshape([dims[0] as i64, -1])?;
            let (rows, columns) = (w.dims()[0], w.dims()[1]);
            let gram = match rows <= columns {
                true => w.matmul(&w.t()?)?,
                false => w.t()?.matmul(&w)?,
            };
            let n = rows.min(columns);
            let expected: Vec<f64> = (0..n * n)
                .map(|i| if i % (n + 1) == 0 { 4.0 } else { 0.0 })
                .collect();
            close(&format!("{dims:?}"), &values(&gram)?, &expected, 1e-12);
        }
        let eye = counted(&[2, 3]);
        init::eye_(&eye)?;
        assert_eq!(values(&eye)?, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        // A convolution with it, in two groups, passes the first channel through twice.
        let kernel = Tensor::zeros([2, 1, 3], ())?;
        init::dirac_(&kernel, 2)?;
        assert_eq!(values(&kernel)?, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        let kernel = Tensor::zeros([2, 3, 2, 1], ())?;
        init::dirac_(&kernel, 1)?;
        let ones: Vec<usize> = (0..12)
            .filter(|i| values(&kernel).unwrap()[*i] == 1.0)
            .collect();
        assert_eq!(ones, [1, 9]);
        let sparse = Tensor::zeros([10, 50], ())?;
        init::sparse_(&sparse, 0.25, 3.0)?;
        assert_eq!(values(&sparse.eq(0)?.sum(0, false)?)?, [3.0; 50]);
        let (mean, variance) = moments(&sparse)?;
        assert!(
            mean.abs() < 0.5 && (variance - 9.0 * 0.7).abs() < 1.5,
            "{mean} {variance}"
        );
        Ok(())
    });
}

#[test]
fn gradients_are_clipped_to_a_norm_or_a_value() {
    alone(|| {
        let (a, b, unused) = (leaf(&[0.0; 2]), leaf(&[0.0]), leaf(&[0.0]));
        let set = || {
            a.set_grad(Some(f32s(&[2.0, -3.0])));
            b.set_grad(Some(f32s(&[6.0])));
        };
        let parameters = [a.clone(), b.clone(), unused.clone()];
        for (order, norm) in [
            (2.0, 7.0),
            (1.0, 11.0),
            (3.0, 251f64.cbrt()),
            (f64::INFINITY, 6.0),
        ] {
            for max in [1.0, 100.0] {
                set();
                let scope = Scope::new();
                let total = clip_grad_norm_(&parameters, max, order)?;
                assert_eq!(scope.downloads(), 0);
                let scale = (max / (norm + 1e-6)).min(1.0);
                close(
                    "gradient",
                    &values(&a.grad().unwrap())?,
                    &[2.0 * scale, -3.0 * scale],
                    1e-6,
                );
                close(
                    "gradient",
                    &values(&b.grad().unwrap())?,
                    &[6.0 * scale],
                    1e-6,
                );
                close("norm", &values(&total)?, &[norm], 1e-6);
            }
        }
        set();
        clip_grad_value_(&parameters, 2.5)?;
        assert_eq!((grad_of(&a), grad_of(&b)), (vec![2.0, -2.5], vec![2.5]));
        assert!(unused.grad().is_none());
        a.set_grad(Some(f32s(&[f32::NAN, 1.0])));
        let strict = ClipOptions {
            error_if_nonfinite: true,
            ..ClipOptions::default()
        };
        assert!(matches!(
            clip_grad_norm_(&parameters, 1.0, strict),
            Err(Error::Argument { .. })
        ));
        assert!(clip_grad_norm_(&parameters, -1.0, 2.0).is_err());
        assert!(clip_grad_value_(&parameters, f64::NAN).is_err());
        assert_eq!(values(&clip_grad_norm_(&[unused], 1.0, 2.0)?)?, [0.0]);
        Ok(())
    });
}
