//! What convolutions, pooling and interpolation refuse, at the call, and rules at their edges.

use tests::with_devices;
use xla::nn::functional::{
    self as f, AvgPoolOptions, ConvOptions, ConvTransposeOptions, FoldOptions, InterpolateMode,
    InterpolateOptions, MaxPoolOptions, Padding, Target,
};
use xla::{DType, Error, Result, Tensor};

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, ()).unwrap()
}

/// That a call is refused with a message that holds these words and this file's name.
fn refused(result: Result<Tensor>, words: &[&str]) {
    let error = result.expect_err(&format!("no error that says {words:?}"));
    let text = error.to_string();
    for word in words.iter().chain(&["window_errors.rs"]) {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn convolutions_say_what_does_not_fit() {
    with_devices(1, || {
        let (x, w) = (zeros(&[2, 4, 5, 5]), zeros(&[6, 4, 3, 3]));
        let plain = ConvOptions::default;
        let conv = |x: &Tensor, w: &Tensor, options| f::conv2d(x, w, None, options);
        refused(conv(&zeros(&[5, 5]), &w, plain()), &["conv2d", "[5, 5]"]);
        refused(
            conv(&x, &zeros(&[6, 4, 3]), plain()),
            &["[6, 4, 3]", "4 axes"],
        );
        refused(
            conv(&x, &zeros(&[6, 3, 3, 3]), plain()),
            &["[6, 3, 3, 3]", "[2, 4, 5, 5]"],
        );
        refused(
            conv(&x, &zeros(&[6, 4, 6, 3]), plain()),
            &["[6, 4, 6, 3]", "6 elements"],
        );
        refused(conv(&x, &zeros(&[6, 4, 0, 3]), plain()), &["[6, 4, 0, 3]"]);
        refused(
            f::conv2d(&x, &w, Some(&zeros(&[4])), plain()),
            &["[6]", "[4]"],
        );
        let whole = Tensor::zeros([2, 4, 5, 5], DType::I32).unwrap();
        refused(conv(&whole, &w, plain()), &["floating-point", "i32"]);
        let double = Tensor::zeros([6, 4, 3, 3], DType::F64).unwrap();
        refused(conv(&x, &double, plain()), &["f32", "f64"]);
        for (options, words) in [
            (
                ConvOptions {
                    stride: 0.into(),
                    ..plain()
                },
                ["stride", "[0]"],
            ),
            (
                ConvOptions {
                    dilation: 0.into(),
                    ..plain()
                },
                ["dilation", "[0]"],
            ),
            (
                ConvOptions {
                    padding: (-1).into(),
                    ..plain()
                },
                ["padding", "[-1]"],
            ),
            (
                ConvOptions {
                    stride: [1, 1, 1].into(),
                    ..plain()
                },
                ["stride", "[1, 1, 1]"],
            ),
            (
                ConvOptions {
                    groups: 0,
                    ..plain()
                },
                ["groups", "0"],
            ),
            (
                ConvOptions {
                    groups: 4,
                    ..plain()
                },
                ["groups", "4 and 6"],
            ),
            (
                ConvOptions {
                    stride: 2.into(),
                    padding: Padding::Same,
                    ..plain()
                },
                ["stride", "same"],
            ),
            (
                ConvOptions {
                    dilation: i64::MAX.into(),
                    ..plain()
                },
                ["dilation", "at least 1"],
            ),
            (
                ConvOptions {
                    padding: i64::MAX.into(),
                    ..plain()
                },
                ["padding", "at least 0"],
            ),
        ] {
            refused(conv(&x, &w, options), &words);
        }
    });
}

#[test]
fn transposed_convolutions_say_what_does_not_fit() {
    with_devices(1, || {
        let (x, w) = (zeros(&[2, 4, 5, 5]), zeros(&[4, 3, 2, 2]));
        let plain = ConvTransposeOptions::default;
        let call = |x: &Tensor, w: &Tensor, o| f::conv_transpose2d(x, w, None, o);
        refused(
            call(&x, &zeros(&[5, 3, 2, 2]), plain()),
            &["[4, ..]", "[5, 3, 2, 2]"],
        );
        refused(call(&zeros(&[2, 4, 0, 5]), &w, plain()), &["[2, 4, 0, 5]"]);
        refused(
            f::conv_transpose2d(&x, &w, Some(&zeros(&[4])), plain()),
            &["[3]", "[4]"],
        );
        let more = ConvTransposeOptions {
            output_padding: 1.into(),
            ..plain()
        };
        refused(
            call(&x, &w, more),
            &["output_padding", "less than the stride"],
        );
        let cut = ConvTransposeOptions {
            padding: 3.into(),
            ..plain()
        };
        refused(call(&x, &w, cut), &["padding", "at least one"]);
        let groups = ConvTransposeOptions {
            groups: 3,
            ..plain()
        };
        refused(call(&x, &w, groups), &["groups", "4 and 4"]);
    });
}

#[test]
fn pools_say_what_does_not_fit() {
    with_devices(1, || {
        let x = zeros(&[1, 2, 4, 4]);
        let plain = MaxPoolOptions::default;
        refused(
            f::max_pool2d(&zeros(&[4, 4]), 2, plain()),
            &["max_pool2d", "[4, 4]"],
        );
        refused(
            f::max_pool2d(&x, 5, plain()),
            &["5 elements", "[1, 2, 4, 4]"],
        );
        refused(f::max_pool2d(&x, 0, plain()), &["kernel_size", "[0]"]);
        refused(
            f::max_pool2d(&x, [2, 2, 2], plain()),
            &["kernel_size", "[2, 2, 2]"],
        );
        let padded = MaxPoolOptions {
            padding: 2.into(),
            ..plain()
        };
        refused(f::max_pool2d(&x, 3, padded), &["padding", "half"]);
        let stride = MaxPoolOptions {
            stride: Some(0.into()),
            ..plain()
        };
        refused(f::max_pool2d(&x, 2, stride), &["stride", "[0]"]);
        let truth = Tensor::zeros([1, 2, 4, 4], DType::Bool).unwrap();
        refused(f::max_pool2d(&truth, 2, plain()), &["bool"]);
        let divisor = AvgPoolOptions {
            divisor_override: Some(0),
            ..Default::default()
        };
        refused(f::avg_pool2d(&x, 2, divisor), &["divisor_override"]);
        let small = Tensor::zeros([1, 2, 4, 4], DType::I32).unwrap();
        refused(
            f::avg_pool2d(&small, 2, AvgPoolOptions::default()),
            &["i32"],
        );
        refused(f::adaptive_avg_pool2d(&x, -1), &["output_size", "[-1]"]);
        refused(
            f::adaptive_avg_pool2d(&x, [Some(1)]),
            &["output_size", "2 sizes"],
        );
        refused(
            f::adaptive_max_pool2d(&zeros(&[1, 2, 0, 4]), 1),
            &["[1, 2, 0, 4]"],
        );
    });
}

#[test]
fn moves_and_interpolation_say_what_does_not_fit() {
    with_devices(1, || {
        let x = zeros(&[1, 3, 4, 4]);
        refused(f::pixel_shuffle(&x, 2), &["pixel_shuffle", "4 divides"]);
        refused(f::pixel_shuffle(&x, 0), &["upscale_factor"]);
        refused(f::pixel_unshuffle(&x, 3), &["pixel_unshuffle", "3 divides"]);
        refused(
            f::unfold(&x, 5, FoldOptions::default()),
            &["unfold", "at most the 4"],
        );
        refused(
            f::fold(&x, 4, 2, FoldOptions::default()),
            &["fold", "channels * 4, 9"],
        );
        let with = |mode| InterpolateOptions {
            mode,
            ..Default::default()
        };
        let size = |n: i64| Target::Size(n.into());
        let call = |target, options| f::interpolate(&x, target, options);
        refused(
            call(size(8), with(InterpolateMode::Linear)),
            &["Linear", "[1, 3, 4, 4]"],
        );
        refused(
            call(size(0), with(InterpolateMode::Nearest)),
            &["size", "[0]"],
        );
        let scale = |by: f64| Target::scale([by]);
        for by in [0.1, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            refused(
                call(scale(by), with(InterpolateMode::Nearest)),
                &["scale_factor"],
            );
        }
        let corners = InterpolateOptions {
            align_corners: true,
            ..Default::default()
        };
        refused(call(size(8), corners), &["align_corners"]);
        let smooth = InterpolateOptions {
            antialias: true,
            ..Default::default()
        };
        refused(call(size(8), smooth), &["antialias"]);
        let again = InterpolateOptions {
            recompute_scale_factor: true,
            ..Default::default()
        };
        refused(call(size(8), again), &["recompute_scale_factor"]);
    });
}

#[test]
fn a_convolution_is_differentiated_twice() {
    with_devices(1, || {
        let run = || -> Result<()> {
            // y = x * w with one element each: d(y²)/dx = 2 x w², whose derivative by w is 4 x w.
            let x = Tensor::from_slice(&[3.0f64], [1, 1, 1, 1], ())?.requires_grad_(true)?;
            let w = Tensor::from_slice(&[5.0f64], [1, 1, 1, 1], ())?.requires_grad_(true)?;
            let y = f::conv2d(&x, &w, None, ConvOptions::default())?.square()?;
            let options = xla::GradOptions {
                create_graph: true,
                ..Default::default()
            };
            let first = xla::grad(&[&y.sum((), false)?], &[&x], options)?;
            let slope = first[0].as_ref().ok_or_else(missing)?;
            assert_eq!(slope.to_vec::<f64>()?, [150.0]);
            slope.sum((), false)?.backward()?;
            let second = w.grad().ok_or_else(missing)?;
            assert_eq!(second.to_vec::<f64>()?, [60.0]);
            Ok(())
        };
        run().unwrap();
    });
}

fn missing() -> Error {
    Error::argument("test", "gradient", "one", "none")
}
