//! Whole models against PyTorch's: names, outputs, gradients and the parameters after a few steps.
//! The models are those of `xla/examples`; `tests/data/models/generate.py` writes what is expected.

use std::path::Path;
use tests::check::{close, values};
use tests::with_devices;
use xla::nn::functional::{Reduction, mse_loss};
use xla::nn::utils::clip_grad_norm_;
use xla::nn::{self, Module, StateDict};
use xla::optim::{Adam, AdamW, AdamWOptions, Optimizer, ParamGroup, Sgd};
use xla::{DType, Result, Tensor};

#[path = "../../xla/examples/gpt/model.rs"]
mod gpt;
#[path = "../../xla/examples/resnet/model.rs"]
mod resnet;
#[path = "../../xla/examples/unet/model.rs"]
mod unet;

const TOLERANCE: f64 = 1e-4;

/// What PyTorch wrote of one model.
struct Expected(StateDict);

impl Expected {
    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join(format!("data/models/{name}.safetensors"));
        Expected(StateDict::load(path, ()).unwrap())
    }

    fn get(&self, name: &str) -> &Tensor {
        let found = self.0.get(name);
        found.unwrap_or_else(|| panic!("the file has no {name}"))
    }

    /// The tensors whose names begin so, by the rest of their names.
    fn within(&self, prefix: &str) -> StateDict {
        let rest = |(name, tensor): (&str, &Tensor)| {
            Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))
        };
        self.0.iter().filter_map(rest).collect()
    }

    fn same(&self, name: &str, got: &Tensor) {
        let expected = self.get(name);
        assert_eq!(got.dims(), expected.dims(), "{name}");
        let (got, expected) = (values(got).unwrap(), values(expected).unwrap());
        close(name, &got, &expected, TOLERANCE);
    }

    /// Gives the model PyTorch's state and takes PyTorch's steps with it.
    fn train(
        &self,
        model: &impl Module,
        optimizer: &mut dyn Optimizer,
        clip: Option<f64>,
        loss: impl Fn() -> Result<(Tensor, Tensor)>,
    ) {
        // Names and their order; shapes are checked where the state is loaded.
        let names: Vec<&str> = self.0.metadata()["keys"].split_whitespace().collect();
        let own = model.state_dict().unwrap();
        assert_eq!(own.keys().collect::<Vec<_>>(), names);
        model.load_state_dict(&self.within("state/"), true).unwrap();

        let losses = values(self.get("losses")).unwrap();
        for (step, expected) in losses.into_iter().enumerate() {
            optimizer.zero_grad();
            let (output, loss) = loss().unwrap();
            loss.backward().unwrap();
            if step == 0 {
                self.same("output", &output);
                for (name, parameter) in model.named_parameters() {
                    let name = format!("grad/{name}");
                    if self.0.contains_key(&name) {
                        self.same(&name, &parameter.grad().unwrap());
                    }
                }
            }
            if let Some(clip) = clip {
                let norm = clip_grad_norm_(&model.parameters(), clip, 2.0).unwrap();
                if step == 0 {
                    self.same("norm", &norm);
                }
            }
            optimizer.step().unwrap();
            xla::sync().unwrap();
            close("loss", &values(&loss).unwrap(), &[expected], TOLERANCE);
        }
        for (name, got) in model.state_dict().unwrap() {
            self.same(&format!("final/{name}"), &got);
        }
    }
}

#[test]
fn resnet() {
    with_devices(1, || {
        let expected = Expected::load("resnet");
        let config = resnet::Config {
            channels: 3,
            width: 2,
            blocks: [2, 1, 1, 1],
            classes: 5,
        };
        let model = resnet::ResNet::new(config, ()).unwrap();
        let mut optimizer = Sgd::new(model.parameters(), 0.05)
            .momentum(0.9)
            .nesterov(true)
            .weight_decay(5e-4);
        expected.train(&model, &mut optimizer, None, || {
            let logits = model.forward(expected.get("in/0"))?;
            let loss = nn::cross_entropy(&logits, expected.get("in/1"))?;
            Ok((logits, loss))
        });
    });
}

/// The head shares the table of embeddings, so its name is in the state too, and its gradient is a
/// part of the table's.
fn train_gpt(checkpoint: bool) {
    let expected = Expected::load("gpt");
    let config = gpt::Config {
        vocabulary: 17,
        context: 9,
        layers: 2,
        heads: 2,
        features: 16,
        dropout: 0.0,
        checkpoint,
    };
    let model = gpt::Gpt::new(config, ()).unwrap();
    let (matrices, vectors) = model
        .parameters()
        .into_iter()
        .partition(|parameter| parameter.rank() >= 2);
    let group = |parameters: Vec<Tensor>, weight_decay| {
        let options = AdamWOptions {
            lr: 1e-2,
            betas: (0.9, 0.95),
            eps: 1e-3,
            weight_decay,
            ..Default::default()
        };
        ParamGroup::new(parameters, options)
    };
    let mut optimizer = AdamW::with_groups([group(matrices, 0.1), group(vectors, 0.0)]).unwrap();
    expected.train(&model, &mut optimizer, Some(1.0), || {
        let logits = model.forward(expected.get("in/0"))?;
        let targets = expected.get("in/1").flatten(0, 1)?;
        let loss = nn::cross_entropy(&logits.flatten(0, 1)?, &targets)?;
        Ok((logits, loss))
    });
}

#[test]
fn gpt() {
    with_devices(1, || train_gpt(false));
}

#[test]
fn gpt_with_blocks_computed_again() {
    with_devices(1, || train_gpt(true));
}

/// The prompt is kept, every token is one of the vocabulary, and the window moves on.
#[test]
fn gpt_writes() {
    with_devices(1, || {
        xla::manual_seed(1).unwrap();
        let config = gpt::Config {
            vocabulary: 5,
            context: 4,
            layers: 1,
            heads: 1,
            features: 4,
            dropout: 0.5,
            checkpoint: false,
        };
        let model = gpt::Gpt::new(config, DType::F32).unwrap();
        model.eval();
        let written = xla::no_grad(|| model.generate(&[3, 1], 6, 1.0)).unwrap();
        assert_eq!((written.len(), &written[..2]), (8, &[3, 1][..]));
        assert!(written.iter().all(|token| (0..5).contains(token)));
    });
}

#[test]
fn unet() {
    with_devices(1, || {
        let expected = Expected::load("unet");
        let config = unet::Config {
            channels: 2,
            widths: vec![4, 6, 8],
            groups: 2,
            time: 6,
        };
        let model = unet::UNet::new(&config, ()).unwrap();
        let mut optimizer = Adam::new(model.parameters(), 1e-2).eps(1e-3);
        expected.train(&model, &mut optimizer, None, || {
            let found = model.forward(expected.get("in/0"), expected.get("in/1"))?;
            let loss = mse_loss(&found, expected.get("in/2"), Reduction::Mean)?;
            Ok((found, loss))
        });
    });
}
