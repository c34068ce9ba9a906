//! The tree of a derived module: what its fields are, how they are named, and what reaches them.

use std::marker::PhantomData;
use std::sync::Arc;
use tests::check::{counted, f32s, values};
use tests::with_devices;
use xla::nn::{BatchNorm1d, Forward, Linear, Module, Relu, Sequential, Training};
use xla::{DType, Error, Result, Tensor, optim};

fn linear(inputs: usize, outputs: usize) -> Linear {
    Linear::new(inputs, outputs, ()).unwrap()
}

fn names<T>(named: Vec<(String, T)>) -> Vec<String> {
    named.into_iter().map(|(name, _)| name).collect()
}

/// One field of every kind.
#[derive(Module)]
struct Zoo<M> {
    before: Linear,
    scale: Tensor,
    r#type: Option<Linear>,
    absent: Option<Linear>,
    blocks: Vec<M>,
    pair: (Linear, Relu),
    array: [Linear; 1],
    boxed: Box<dyn Forward>,
    shared: Arc<Linear>,
    #[module(buffer)]
    mean: Tensor,
    #[module(buffer, persistent = false)]
    mask: Option<Tensor>,
    #[module(rename = "renamed")]
    old: Linear,
    #[module(flatten)]
    flat: Flat,
    training: Training,
    rate: f64,
    name: String,
    marker: PhantomData<M>,
    #[module(skip)]
    skipped: Linear,
}

#[derive(Module)]
struct Flat {
    inside: Tensor,
}

fn zoo() -> Zoo<Sequential> {
    let shared = Arc::new(linear(1, 1));
    Zoo {
        before: linear(1, 1),
        scale: f32s(&[1.0]).requires_grad_(true).unwrap(),
        r#type: Some(linear(1, 1)),
        absent: None,
        blocks: vec![
            Sequential::new().add(Relu).add(linear(1, 1)),
            Sequential::new().add(Arc::clone(&shared)),
        ],
        pair: (linear(1, 1), Relu),
        array: [linear(1, 1)],
        boxed: Box::new(linear(1, 1)),
        shared,
        mean: f32s(&[0.0]),
        mask: Some(f32s(&[1.0])),
        old: linear(1, 1),
        flat: Flat {
            inside: f32s(&[2.0]),
        },
        training: Training::new(),
        rate: 0.5,
        name: "zoo".into(),
        marker: PhantomData,
        skipped: linear(1, 1),
    }
}

#[test]
fn every_field_is_what_its_type_says() {
    with_devices(1, || {
        let zoo = zoo();
        let parameters = names(zoo.named_parameters());
        let expected = [
            "scale",
            "inside",
            "before.weight",
            "before.bias",
            "type.weight",
            "type.bias",
            "blocks.0.1.weight",
            "blocks.0.1.bias",
            "blocks.1.0.weight",
            "blocks.1.0.bias",
            "pair.0.weight",
            "pair.0.bias",
            "array.0.weight",
            "array.0.bias",
            "boxed.weight",
            "boxed.bias",
            "renamed.weight",
            "renamed.bias",
        ];
        assert_eq!(parameters, expected);
        assert_eq!(zoo.num_parameters(), expected.len());
        assert_eq!(names(zoo.named_buffers()), ["mean", "mask"]);
        let children = [
            "before", "type", "blocks.0", "blocks.1", "pair.0", "pair.1", "array.0", "boxed",
            "shared", "renamed",
        ];
        assert_eq!(names(zoo.named_children()), children);
        let modules = names(zoo.named_modules());
        assert_eq!(modules.len(), children.len() + 3);
        assert_eq!(modules[2..5], ["blocks.0", "blocks.0.0", "blocks.0.1"]);

        // Shared weights are saved under each of their names, what is not persistent not at all;
        // a module's own tensors come before those of the modules in it, parameters first.
        let state = zoo.state_dict().unwrap();
        let keys: Vec<&str> = state.keys().collect();
        assert_eq!(keys.len(), expected.len() + 1 + 2);
        assert_eq!(keys[..4], ["scale", "inside", "mean", "before.weight"]);
        assert!(state.contains_key("shared.weight") && state.contains_key("blocks.1.0.weight"));
        assert!(!state.contains_key("mask"));
        assert_eq!(
            (zoo.rate, zoo.name.as_str(), zoo.absent.is_none()),
            (0.5, "zoo", true)
        );
        assert_eq!(zoo.skipped.weight().dims(), [1, 1]);

        zoo.eval();
        assert!(!zoo.training.get());
        zoo.train(true);
        assert!(zoo.training.get());
    });
}

#[derive(Module, Forward)]
struct Residual<M> {
    inner: M,
    scale: f64,
}

impl<M: Forward> Residual<M> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.add(&self.inner.forward(x)?.mul(self.scale)?)
    }
}

/// Any arguments, any results.
#[derive(Module)]
struct TwoHeads {
    left: Residual<Relu>,
    right: Linear,
}

impl TwoHeads {
    fn forward(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.left.forward(x)?, self.right.forward(y)?))
    }
}

#[test]
fn a_derived_forward_is_called_in_a_sequence_and_through_a_box() {
    with_devices(1, || {
        let residual = || Residual {
            inner: Relu,
            scale: 2.0,
        };
        let x = f32s(&[-1.0, 1.0]);
        let y = Sequential::new()
            .add(residual())
            .add(residual())
            .forward(&x);
        assert_eq!(values(&y.unwrap()).unwrap(), [-1.0, 9.0]);
        let boxed: Box<dyn Forward> = Box::new(residual());
        assert_eq!(values(&boxed.forward(&x).unwrap()).unwrap(), [-1.0, 3.0]);

        let heads = TwoHeads {
            left: residual(),
            right: linear(2, 3),
        };
        let (left, right) = heads.forward(&x, &counted(&[4, 2])).unwrap();
        assert_eq!((left.dims(), right.dims()), (&[2][..], &[4, 3][..]));
        assert_eq!(
            names(heads.named_parameters()),
            ["right.weight", "right.bias"]
        );
    });
}

#[test]
fn gradients_are_switched_and_forgotten_for_all() {
    with_devices(1, || {
        let model = Sequential::new().add(linear(2, 2)).add(linear(2, 1));
        let x = counted(&[3, 2]);
        let pass = || {
            model
                .forward(&x)
                .unwrap()
                .sum((), false)
                .unwrap()
                .backward()
        };
        pass().unwrap();
        assert!(model.parameters().iter().all(|p| p.grad().is_some()));
        model.zero_grad();
        assert!(model.parameters().iter().all(|p| p.grad().is_none()));
        model.requires_grad_(false).unwrap();
        assert!(matches!(pass(), Err(Error::Autograd { .. })));
        model.requires_grad_(true).unwrap();
        pass().unwrap();

        #[derive(Module)]
        struct Whole(Tensor);
        let whole = Whole(Tensor::zeros([2], DType::I64).unwrap());
        let line = line!() + 1;
        let error = whole.requires_grad_(true).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        assert_eq!(error.location().map(|l| l.line()), Some(line));
    });
}

#[test]
fn a_module_moves_under_its_optimizer() {
    with_devices(2, || {
        let shared = Arc::new(linear(2, 2));
        let model = Sequential::new()
            .add(Arc::clone(&shared))
            .add(Arc::clone(&shared))
            .add(BatchNorm1d::new(2, ()).unwrap());
        let mut optimizer = optim::Sgd::new(model.parameters(), 0.5);
        let before = values(shared.weight()).unwrap();
        let x = counted(&[3, 2]);
        let train = |x: &Tensor| model.forward(x)?.mul(x)?.sum((), false)?.backward();
        train(&x).unwrap();
        let view = shared.weight().t().unwrap();

        let device = xla::device_at(1).unwrap();
        model.to((DType::F64, device)).unwrap();
        for tensor in model.parameters().iter().chain(&model.buffers()) {
            assert_eq!(tensor.device(), device);
            assert!(tensor.dtype() == DType::F64 || tensor.rank() == 0);
        }
        assert_eq!(values(shared.weight()).unwrap(), before);
        let grad = shared.weight().grad().unwrap();
        assert_eq!((grad.dtype(), grad.device()), (DType::F64, device));
        let error = view.to_literal().unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");

        optimizer.zero_grad();
        train(&x.to((DType::F64, device)).unwrap()).unwrap();
        optimizer.step().unwrap();
        assert_ne!(values(shared.weight()).unwrap(), before);
        assert!(shared.weight().requires_grad() && shared.weight().is_leaf());
        assert!(matches!(
            model.to(DType::I32),
            Err(Error::DTypeMismatch { .. })
        ));
    });
}

#[test]
fn a_sequence_is_collected_and_shows_its_parameters() {
    with_devices(1, || {
        let layers: Result<Sequential> = (1..3).map(|n| Linear::new(n, n + 1, ())).collect();
        let layers = layers.unwrap().add(Relu);
        let x = Tensor::zeros([5, 1], ()).unwrap();
        assert_eq!(layers.forward(&x).unwrap().dims(), [5, 3]);
        let shown = format!("{layers:?}");
        let first = r#"{"0.weight": Tensor f32[2, 1] on xla:0, "0.bias": Tensor f32[2] on xla:0"#;
        assert!(shown.starts_with(first), "{shown}");
    });
}

/// A weight of two layers is one parameter, whose gradient is the sum of both's.
#[test]
fn layers_share_a_weight() {
    with_devices(1, || {
        let inner = Linear::without_bias(2, 2, ()).unwrap();
        let outer = Linear::from_parameters(inner.weight(), None).unwrap();
        let identity = Tensor::from_slice(&[1.0_f32, 0.0, 0.0, 1.0], [2, 2], ()).unwrap();
        inner.weight().set_data(&identity).unwrap();
        let model = Sequential::new().add(inner).add(outer);
        assert_eq!(names(model.named_parameters()), ["0.weight"]);
        let state = model.state_dict().unwrap();
        assert_eq!(state.keys().collect::<Vec<_>>(), ["0.weight", "1.weight"]);

        // The sum of W W x, with W the identity: each use adds x to every row.
        let x = f32s(&[3.0, 5.0]);
        let sum = model.forward(&x).unwrap().sum((), false).unwrap();
        sum.backward().unwrap();
        let gradient = model.parameters()[0].grad().unwrap();
        assert_eq!(values(&gradient).unwrap(), [6.0, 10.0, 6.0, 10.0]);
    });
}
