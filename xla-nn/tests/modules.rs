//! Layers, the module trait and losses, against values worked out by hand.

use std::sync::Arc;
use xla_core::{DType, Error, Literal, Result};
use xla_lazy::Tensor;
use xla_nn::{Flatten, Forward, Linear, Module, Relu, Sequential, Training, cross_entropy, init};

fn tensor(data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape, ()).unwrap()
}

fn labels(data: &[i64]) -> Tensor {
    Tensor::from_slice(data, [data.len()], ()).unwrap()
}

#[track_caller]
fn assert_close(got: &Tensor, expected: &[f32]) {
    let got = got.to_vec::<f32>().unwrap();
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!(
            (g - e).abs() <= 1e-6 * e.abs().max(1.0),
            "{got:?} is not {expected:?}"
        );
    }
}

/// Weight `[[1, 2, 3], [4, 5, 6]]`, bias `[0.5, -0.5]`.
fn linear() -> Linear {
    let linear = Linear::new(3, 2, ()).unwrap();
    linear
        .weight()
        .set_data(&tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]))
        .unwrap();
    linear
        .bias()
        .unwrap()
        .set_data(&tensor(&[0.5, -0.5], &[2]))
        .unwrap();
    linear
}

#[test]
fn linear_multiplies_by_the_transposed_weight_and_adds_the_bias() {
    let y = linear()
        .forward(&tensor(&[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], &[2, 3]))
        .unwrap();
    assert_eq!(y.dims(), [2, 2]);
    assert_close(&y, &[-1.5, -2.5, 12.5, 29.5]);
    // Any number of leading axes, or none.
    let vector = linear().forward(&tensor(&[1.0, 1.0, 1.0], &[3])).unwrap();
    assert_eq!(vector.dims(), [2]);
    assert_close(&vector, &[6.5, 14.5]);
    let deep = linear().forward(&tensor(&[1.0; 12], &[2, 2, 3])).unwrap();
    assert_eq!(deep.dims(), [2, 2, 2]);
    assert_close(&deep, &[6.5, 14.5, 6.5, 14.5, 6.5, 14.5, 6.5, 14.5]);
}

#[test]
fn linear_has_gradients() {
    let layer = linear();
    let x = tensor(&[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], &[2, 3]);
    layer
        .forward(&x)
        .unwrap()
        .sum((), false)
        .unwrap()
        .backward()
        .unwrap();
    // Each output's weight gradient is the sum of the inputs, each bias gradient the batch size.
    assert_close(
        &layer.weight().grad().unwrap(),
        &[3.0, 2.0, 1.0, 3.0, 2.0, 1.0],
    );
    assert_close(&layer.bias().unwrap().grad().unwrap(), &[2.0, 2.0]);
}

#[test]
fn linear_starts_from_pytorchs_distribution() {
    let layer = Linear::new(400, 300, ()).unwrap();
    let bound = 1.0 / 20.0;
    let weight = layer.weight().to_vec::<f32>().unwrap();
    assert!(weight.iter().all(|w| w.abs() <= bound));
    let n = weight.len() as f32;
    let mean = weight.iter().sum::<f32>() / n;
    let variance = weight.iter().map(|w| w * w).sum::<f32>() / n;
    // A uniform distribution's variance is bound² / 3; the standard error of the mean of 120,000
    // values is 8e-5.
    assert!(mean.abs() < 5e-4, "{mean}");
    assert!(
        (variance / (bound * bound / 3.0) - 1.0).abs() < 0.02,
        "{variance}"
    );
    let bias = layer.bias().unwrap().to_vec::<f32>().unwrap();
    assert!(bias.iter().all(|b| b.abs() <= bound) && bias.iter().any(|b| b.abs() > bound / 2.0));
    assert!(layer.weight().requires_grad() && layer.weight().is_leaf());
    let half = Linear::without_bias(4, 2, DType::BF16).unwrap();
    assert_eq!(half.weight().dtype(), DType::BF16);
    assert!(half.bias().is_none());
}

#[test]
fn bad_input_is_an_error_at_the_callers_line() {
    let layer = linear();
    let line = line!() + 1;
    let error = layer.forward(&tensor(&[1.0, 2.0], &[1, 2])).unwrap_err();
    assert!(
        matches!(&error, Error::ShapeMismatch { op: "linear", .. }),
        "{error}"
    );
    assert_eq!(error.location().map(|l| l.line()), Some(line));
    assert!(matches!(
        init::kaiming_uniform([3], 0.0, ()),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        init::uniform([3], 1.0, 0.0, ()),
        Err(Error::Argument { .. })
    ));
    assert!(init::uniform([3], f64::NAN, 0.0, ()).is_err());
}

#[test]
fn a_sequence_reports_the_line_that_called_it() {
    #[derive(Module, Forward)]
    struct Mine;
    const INSIDE: u32 = line!() + 3;
    impl Mine {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            input.reshape([-1, 7])
        }
    }
    let x = tensor(&[1.0, 2.0, 3.0], &[1, 3]);
    let model = Sequential::new().add(Sequential::new().add(linear()).add(linear()));
    let line = line!() + 1;
    let error = model.forward(&x).unwrap_err();
    assert!(
        matches!(&error, Error::ShapeMismatch { op: "linear", .. }),
        "{error}"
    );
    assert_eq!(
        error.location().map(|l| (l.file(), l.line())),
        Some((file!(), line))
    );
    // In a user's own module, the line is the one in it.
    let error = Sequential::new().add(Mine).forward(&x).unwrap_err();
    assert_eq!(error.location().map(|l| l.line()), Some(INSIDE), "{error}");
}

#[test]
fn relu_and_flatten_in_sequence() {
    let model = Sequential::new().add(Flatten).add(linear()).add(Relu);
    let y = model
        .forward(&tensor(&[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], &[2, 3, 1]))
        .unwrap();
    assert_close(&y, &[0.0, 0.0, 12.5, 29.5]);
    let x = tensor(&[-1.0, 2.0], &[2]);
    assert_close(&Sequential::new().forward(&x).unwrap(), &[-1.0, 2.0]);
}

#[test]
fn parameters_have_paths_and_are_listed_once() {
    let shared = Arc::new(linear());
    let model = Sequential::new()
        .add(Arc::clone(&shared))
        .add(Relu)
        .add(Sequential::new().add(Linear::without_bias(2, 3, ()).unwrap()))
        .add(shared);
    let names: Vec<String> = model
        .named_parameters()
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names, ["0.weight", "0.bias", "2.0.weight"]);
    assert_eq!(model.parameters().len(), 3);
    assert_eq!(model.parameters()[2].dims(), [3, 2]);
}

#[test]
fn training_and_evaluation_reach_every_module() {
    #[derive(Default, Module, Forward)]
    struct Doubles(Training);
    impl Doubles {
        fn forward(&self, input: &Tensor) -> Result<Tensor> {
            if self.0.get() {
                input.mul(2.0)
            } else {
                Ok(input.clone())
            }
        }
    }
    let model = Sequential::new().add(Sequential::new().add(Doubles::default()));
    let x = tensor(&[3.0], &[1]);
    assert_close(&model.forward(&x).unwrap(), &[6.0]);
    model.eval();
    assert_close(&model.forward(&x).unwrap(), &[3.0]);
    model.train(true);
    assert_close(&model.forward(&x).unwrap(), &[6.0]);
}

#[test]
fn cross_entropy_of_known_probabilities() {
    // exp of the rows: 1 2 3 and 4 4 4; -ln(3/6) = ln 2, -ln(4/12) = ln 3.
    let logits = tensor(
        &[0.0, 2f32.ln(), 3f32.ln(), 4f32.ln(), 4f32.ln(), 4f32.ln()],
        &[2, 3],
    );
    logits.requires_grad_(true).unwrap();
    let loss = cross_entropy(&logits, &labels(&[2, 0])).unwrap();
    assert_eq!(loss.dims(), [0usize; 0]);
    assert_close(&loss, &[(2f32.ln() + 3f32.ln()) / 2.0]);
    // The gradient is (softmax - one_hot) / batch.
    loss.backward().unwrap();
    let sixth = 1.0 / 6.0;
    assert_close(
        &logits.grad().unwrap(),
        &[sixth / 2.0, sixth, -0.25, -1.0 / 3.0, sixth, sixth],
    );
}

#[test]
fn cross_entropy_of_extreme_logits_is_finite_and_exact() {
    let logits = tensor(&[1000.0, 0.0, -1000.0, 1000.0], &[2, 2]);
    assert_close(&cross_entropy(&logits, &labels(&[0, 1])).unwrap(), &[0.0]);
    assert_close(
        &cross_entropy(&logits, &labels(&[1, 0])).unwrap(),
        &[1500.0],
    );
    // A class that is ruled out counts for nothing unless it is the label.
    let masked = tensor(&[0.0, f32::NEG_INFINITY], &[1, 2]);
    assert_close(&cross_entropy(&masked, &labels(&[0])).unwrap(), &[0.0]);
    let wrong = cross_entropy(&masked, &labels(&[1]))
        .unwrap()
        .item::<f32>()
        .unwrap();
    assert_eq!(wrong, f32::INFINITY);
}

#[test]
fn cross_entropy_takes_narrow_labels_and_keeps_the_logits_dtype() {
    let logits = Tensor::zeros([2, 4], DType::F64).unwrap();
    let narrow = Tensor::from_literal(Literal::from_slice(&[3u8, 0], [2]).unwrap(), ()).unwrap();
    let loss = cross_entropy(&logits, &narrow).unwrap();
    assert_eq!(loss.dtype(), DType::F64);
    assert!((loss.item::<f64>().unwrap() - 4f64.ln()).abs() < 1e-15);
}

#[test]
fn cross_entropy_rejects_what_it_cannot_mean() {
    let logits = tensor(&[0.0; 6], &[2, 3]);
    let line = line!() + 1;
    let error = cross_entropy(&logits, &labels(&[0, 1, 2])).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::ShapeMismatch {
                op: "cross_entropy",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.location().map(|l| l.line()), Some(line));
    let float_labels = tensor(&[0.0, 1.0], &[2]);
    assert!(matches!(
        cross_entropy(&logits, &float_labels),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(
        cross_entropy(&labels(&[1, 2]).reshape([1, 2]).unwrap(), &labels(&[0])),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(
        cross_entropy(&tensor(&[0.0; 3], &[3]), &labels(&[0])),
        Err(Error::ShapeMismatch { .. })
    ));
    for label in [3, -1, -99] {
        let error = cross_entropy(&logits, &labels(&[0, label])).unwrap_err();
        assert!(
            matches!(&error, Error::IndexOutOfRange { op: "cross_entropy", index, size: 3, .. } if *index == label),
            "{error}"
        );
    }
}
