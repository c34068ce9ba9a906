//! What layers refuse, at the caller's line, and what their parameters are drawn from.

use std::panic::Location;
use tests::check::{f32s, values};
use tests::with_devices;
use xla::nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d, BatchNorm2d, Conv2d, ConvTranspose2d, Dropout,
    Dropout2d, Embedding, GroupNorm, Gru, LayerNorm, Linear, Lstm, LstmCell, MaxPool2d, Module,
    MultiheadAttention, MultiheadAttentionOptions, Sequential, Unflatten,
};
use xla::{DType, Error, Result, Tensor};

/// The error is one of these, and its line the caller's.
#[track_caller]
fn refused<T>(result: Result<T>, fits: fn(&Error) -> bool) {
    let error = result.err().expect("an error");
    assert!(fits(&error), "{error}");
    let (call, line) = (Location::caller(), error.location().expect("a line"));
    // The argument may be written some lines below the call.
    let near = (call.line()..call.line() + 8).contains(&line.line());
    assert!(near && line.file() == call.file(), "{error}");
}

fn shape(error: &Error) -> bool {
    matches!(error, Error::ShapeMismatch { .. })
}

fn argument(error: &Error) -> bool {
    matches!(error, Error::Argument { .. })
}

fn dtype(error: &Error) -> bool {
    matches!(error, Error::DTypeMismatch { .. })
}

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, ()).unwrap()
}

#[test]
fn making_a_layer_of_numbers_that_do_not_fit() {
    with_devices(1, || {
        refused(Linear::new(2, 2, DType::I32), dtype);
        refused(LayerNorm::new(4, DType::I64), dtype);
        refused(Embedding::new(4, 2, DType::Bool), dtype);
        refused(Embedding::builder(4, 2).padding_idx(4).build(()), argument);
        refused(Linear::from_parameters(&zeros(&[4]), None), shape);
        let (weight, bias) = (zeros(&[4, 2]), zeros(&[2]));
        refused(Linear::from_parameters(&weight, Some(&bias)), shape);
        refused(GroupNorm::new(3, 4, ()), argument);
        refused(GroupNorm::new(0, 4, ()), argument);
        refused(Conv2d::builder(3, 4, 3).groups(2).build(()), argument);
        refused(Conv2d::builder(4, 4, 3).groups(0).build(()), argument);
        refused(Conv2d::new(4, 4, [3, 3, 3], ()), argument);
        refused(ConvTranspose2d::new(4, 4, 0, ()), argument);
        refused(MultiheadAttention::new(8, 3, ()), argument);
        refused(
            MultiheadAttention::builder(8, 2).dropout(1.5).build(()),
            argument,
        );
        refused(Lstm::new(3, 0, ()), argument);
        refused(Lstm::builder(3, 4).proj_size(4).build(()), argument);
        refused(Gru::builder(3, 4).num_layers(0).build(()), argument);
        refused(Gru::builder(3, 4).dropout(-0.1).build(()), argument);
    });
}

#[test]
fn calling_a_layer_with_what_it_cannot_take() {
    with_devices(1, || {
        refused(
            BatchNorm2d::new(3, ()).unwrap().forward(&zeros(&[2, 3])),
            shape,
        );
        refused(
            BatchNorm1d::new(3, ()).unwrap().forward(&zeros(&[2, 4])),
            shape,
        );
        refused(
            BatchNorm1d::new(3, ()).unwrap().forward(&zeros(&[1, 3])),
            shape,
        );
        refused(
            GroupNorm::new(2, 4, ()).unwrap().forward(&zeros(&[2, 6])),
            shape,
        );
        refused(
            LayerNorm::new(4, ()).unwrap().forward(&zeros(&[2, 3])),
            shape,
        );
        refused(
            Conv2d::new(3, 4, 3, ())
                .unwrap()
                .forward(&zeros(&[1, 2, 5, 5])),
            shape,
        );
        refused(
            Conv2d::new(3, 4, 3, ())
                .unwrap()
                .forward(&zeros(&[1, 3, 2, 5])),
            shape,
        );
        refused(MaxPool2d::new(3).forward(&zeros(&[1, 3, 2, 5])), shape);
        refused(
            MaxPool2d::new(2).stride(0).forward(&zeros(&[1, 3, 4, 4])),
            argument,
        );
        let table = Embedding::new(4, 2, ()).unwrap();
        refused(table.forward(&f32s(&[1.0])), dtype);
        let beyond = Tensor::from_slice(&[4i64], [1], ()).unwrap();
        refused(table.forward(&beyond), |e| {
            matches!(e, Error::IndexOutOfRange { .. })
        });
        refused(Dropout::new(1.5).forward(&zeros(&[2])), argument);
        refused(Dropout2d::new(0.5).forward(&zeros(&[2])), shape);
        refused(AvgPool2d::new(3).forward(&zeros(&[1, 3, 2, 5])), shape);
        refused(AdaptiveAvgPool2d::new([1, 1]).forward(&zeros(&[3])), shape);
        let unflatten = Unflatten::new(1, [2, 2]);
        refused(unflatten.forward(&zeros(&[2, 5])), |_| true);

        let lstm = Lstm::new(3, 4, ()).unwrap();
        refused(lstm.forward(&zeros(&[5, 2, 2]), None), shape);
        refused(lstm.forward(&zeros(&[0, 2, 3]), None), shape);
        let (h, c) = (zeros(&[1, 2, 4]), zeros(&[1, 2, 3]));
        refused(lstm.forward(&zeros(&[5, 2, 3]), Some((&h, &c))), shape);
        refused(
            LstmCell::new(3, 4, ())
                .unwrap()
                .forward(&zeros(&[2, 2]), None),
            shape,
        );

        let attention = MultiheadAttention::new(4, 2, ()).unwrap();
        let options = MultiheadAttentionOptions::default();
        let (q, k) = (zeros(&[3, 2, 4]), zeros(&[5, 2, 4]));
        refused(attention.forward(&q, &k, &q, options), shape);
        refused(
            attention.forward(&q, &zeros(&[5, 2, 3]), &k, options),
            shape,
        );
        let mask = zeros(&[5, 3]);
        let masked = MultiheadAttentionOptions {
            attn_mask: Some(&mask),
            ..options
        };
        refused(attention.forward(&q, &k, &k, masked), shape);
        let mask = Tensor::zeros([3, 5], DType::I32).unwrap();
        let masked = MultiheadAttentionOptions {
            attn_mask: Some(&mask),
            ..options
        };
        refused(attention.forward(&q, &k, &k, masked), dtype);
        let masked = MultiheadAttentionOptions {
            key_padding_mask: Some(&q),
            ..options
        };
        refused(attention.forward(&q, &k, &k, masked), shape);

        // Through a sequence the line is the one that called it.
        let model = Sequential::new().add(Conv2d::new(3, 4, 3, ()).unwrap());
        refused(model.forward(&zeros(&[1, 2, 5, 5])), shape);
    });
}

#[test]
fn dropout_keeps_the_mean_and_is_off_in_evaluation() {
    with_devices(1, || {
        let dropout = Dropout::new(0.25);
        let x = Tensor::ones([64, 64], ()).unwrap();
        let y = values(&dropout.forward(&x).unwrap()).unwrap();
        let zeros = y.iter().filter(|y| **y == 0.0).count();
        // The standard deviation of the count is 28.
        assert!((zeros as i64 - 1024).abs() < 150, "{zeros}");
        assert!(y.iter().all(|y| *y == 0.0 || (y * 0.75 - 1.0).abs() < 1e-6));
        dropout.eval();
        assert_eq!(
            values(&dropout.forward(&x).unwrap()).unwrap(),
            values(&x).unwrap()
        );
        assert_eq!(
            values(&Dropout::new(1.0).forward(&x).unwrap()).unwrap(),
            [0.0; 4096]
        );

        // Whole channels, each on its own.
        let y = Dropout2d::new(0.5).forward(&Tensor::ones([8, 8, 2, 2], ()).unwrap());
        let y = values(&y.unwrap()).unwrap();
        assert!(
            y.chunks(4)
                .all(|channel| channel.iter().all(|v| *v == channel[0]))
        );
        let kept = y.chunks(4).filter(|channel| channel[0] == 2.0).count();
        assert!((8..56).contains(&kept), "{kept}");
    });
}

/// Asserts a uniform distribution on `-bound..bound`.
fn uniform(what: &str, x: &Tensor, bound: f64) {
    let x = values(x).unwrap();
    assert!(x.iter().all(|v| v.abs() <= bound * (1.0 + 1e-6)), "{what}");
    let variance = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    // The variance is bound² / 3; that of its estimate from n values, relative to it, 0.8 / n.
    let allowed = 5.0 * (0.8 / x.len() as f64).sqrt();
    assert!(
        (variance / (bound * bound / 3.0) - 1.0).abs() < allowed,
        "{what}: {variance}"
    );
}

#[test]
fn parameters_are_drawn_from_pytorchs_distributions() {
    with_devices(1, || {
        let named = |module: &dyn Module, name: &str| {
            let found = module
                .named_parameters()
                .into_iter()
                .find(|(n, _)| n == name);
            found.unwrap().1
        };
        let conv = Conv2d::builder(8, 64, [3, 5]).groups(2).build(()).unwrap();
        let bound = 1.0 / (4.0f64 * 15.0).sqrt();
        uniform("conv", conv.weight(), bound);
        uniform("conv bias", conv.bias().unwrap(), bound);
        let up = ConvTranspose2d::new(8, 64, 3, ()).unwrap();
        uniform("conv_transpose", up.weight(), 1.0 / (64.0f64 * 9.0).sqrt());
        let lstm = Lstm::builder(16, 25).num_layers(2).build(()).unwrap();
        for name in ["weight_ih_l0", "weight_hh_l1", "bias_hh_l0"] {
            uniform(name, &named(&lstm, name), 0.2);
        }
        let attention = MultiheadAttention::new(32, 4, ()).unwrap();
        uniform(
            "in_proj",
            &named(&attention, "in_proj_weight"),
            (6.0f64 / 128.0).sqrt(),
        );
        uniform(
            "out_proj",
            &named(&attention, "out_proj.weight"),
            1.0 / 32f64.sqrt(),
        );
        for name in ["in_proj_bias", "out_proj.bias"] {
            assert!(
                values(&named(&attention, name))
                    .unwrap()
                    .iter()
                    .all(|v| *v == 0.0)
            );
        }
        let table = values(Embedding::new(100, 50, ()).unwrap().weight()).unwrap();
        let variance = table.iter().map(|v| v * v).sum::<f64>() / 5000.0;
        assert!((variance - 1.0).abs() < 0.1, "{variance}");
        let norm = BatchNorm2d::new(3, ()).unwrap();
        assert_eq!(values(&named(&norm, "weight")).unwrap(), [1.0; 3]);
        assert_eq!(norm.buffers().len(), 3);
    });
}
