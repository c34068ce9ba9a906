//! Training runs: the model and the optimizer of a run's name are trained from its initial tensors
//! on its batches, and losses, gradient norms and final tensors are compared step by step.
//!
//! A run is `name.json` (losses, and a note that says the sizes and rates) beside
//! `name.safetensors` with the tensors `init.*`, `final.*`, `x.N` and `y.N`.

use super::{Failure, Report, Tensors, compare};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use xla::nn::functional::{
    self as f, AttentionOptions, BatchNormOptions, ConvOptions, CrossEntropyOptions, MaxPoolOptions,
};
use xla::nn::utils::{ClipOptions, clip_grad_norm_};
use xla::optim::lr_scheduler::{CosineAnnealingLR, Scheduler};
use xla::optim::{Adam, AdamW, Optimizer, Sgd};
use xla::{Error, Result, Tensor};

/// What losses and gradient norms may differ by, relative to the expected value.
const TOLERANCE: f64 = 1e-4;

#[derive(Debug, Deserialize)]
struct Run {
    name: String,
    note: String,
    steps: usize,
    losses: Vec<f64>,
    #[serde(default)]
    grad_norms: Vec<f64>,
}

/// Replays the run that a file describes.
pub(super) fn train(file: &Path, filter: Option<&str>, report: &mut Report) -> Result<(), String> {
    let error = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| error(&e))?;
    let run: Run = serde_json::from_str(&text).map_err(|e| error(&e))?;
    if filter.is_none_or(|f| run.name.contains(f)) {
        let tensors = Tensors::open(&file.with_extension("safetensors"))?;
        report.note(&run.name, replay(&run, &tensors));
    }
    Ok(())
}

/// The tensors of a model by their names.
struct Weights<'a> {
    tensors: BTreeMap<String, Tensor>,
    note: Note<'a>,
}

impl Weights<'_> {
    fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| {
            Error::argument("conformance", "tensors", format!("init.{name}"), "none")
        })
    }

    /// The weight and the bias of a layer.
    fn affine(&self, layer: &str) -> Result<(&Tensor, &Tensor)> {
        Ok((
            self.get(&format!("{layer}.weight"))?,
            self.get(&format!("{layer}.bias"))?,
        ))
    }

    fn linear(&self, layer: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.affine(layer)?;
        f::linear(x, weight, Some(bias))
    }

    fn layer_norm(&self, layer: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = self.affine(layer)?;
        f::layer_norm(x, weight.shape(), Some(weight), Some(bias), 1e-5)
    }

    /// Everything with a gradient: what is neither a running statistic nor a count.
    fn parameters(&self) -> Vec<Tensor> {
        self.tensors
            .iter()
            .filter(|(name, tensor)| tensor.dtype().is_float() && !name.contains("running_"))
            .map(|(_, tensor)| tensor.clone())
            .collect()
    }
}

/// A run's note: sizes and rates beside the words for them.
#[derive(Clone, Copy)]
struct Note<'a>(&'a str);

impl Note<'_> {
    /// The number that stands `offset` words from the last of some words that follow each other.
    fn near(self, words: &[&str], offset: isize) -> Result<f64> {
        let separates = |c: char| c.is_whitespace() || ",;()".contains(c);
        let all: Vec<&str> = self.0.split(separates).filter(|w| !w.is_empty()).collect();
        let at = all.windows(words.len()).position(|w| w == words);
        at.and_then(|at| (at + words.len() - 1).checked_add_signed(offset))
            .and_then(|at| all.get(at)?.parse().ok())
            .ok_or_else(|| {
                let expected = format!("a number near {:?}", words.join(" "));
                Error::argument("conformance", "note", expected, self.0)
            })
    }

    fn after(self, words: &[&str]) -> Result<f64> {
        self.near(words, 1)
    }
}

/// A model and how it is trained.
struct Recipe {
    logits: fn(&Weights<'_>, &Tensor) -> Result<Tensor>,
    optimizer: fn(Vec<Tensor>, Note<'_>) -> Result<Box<dyn Optimizer>>,
    clips: bool,
    anneals: bool,
    /// What the elements of final tensors may differ by, relative to the expected ones and
    /// absolutely: at least [`TOLERANCE`].
    finals: f64,
    /// Tensors whose gradient is nothing but rounding, which Adam scales up to whole steps, and
    /// what is computed from them only: they are compared up to the way that two runs can go apart.
    adrift: &'static [&'static str],
}

fn recipe(name: &str) -> Option<Recipe> {
    Some(match name {
        "mlp_sgd" => Recipe {
            logits: mlp,
            optimizer: |parameters, note| {
                let sgd = Sgd::new(parameters, note.after(&["lr"])?)
                    .momentum(note.after(&["momentum"])?)
                    .weight_decay(note.after(&["weight", "decay"])?);
                Ok(Box::new(sgd.nesterov(true)))
            },
            clips: false,
            anneals: false,
            finals: TOLERANCE,
            adrift: &[],
        },
        "cnn_adam" => Recipe {
            logits: cnn,
            optimizer: |parameters, note| {
                let betas = (note.after(&["betas"])?, note.near(&["betas"], 2)?);
                let adam = Adam::new(parameters, note.after(&["lr"])?).betas(betas);
                Ok(Box::new(adam))
            },
            clips: false,
            anneals: false,
            finals: 1e-3,
            // The normalisation takes the convolution's bias away. Two runs of PyTorch differ in it
            // by 8e-3, with one thread and with two.
            adrift: &["0.bias", "1.running_mean"],
        },
        "lm_adamw" => Recipe {
            logits: lm,
            optimizer: |parameters, note| {
                let adamw = AdamW::new(parameters, note.after(&["lr"])?)
                    .weight_decay(note.after(&["weight", "decay"])?);
                Ok(Box::new(adamw))
            },
            clips: true,
            anneals: true,
            finals: TOLERANCE,
            adrift: &[],
        },
        _ => return None,
    })
}

/// Flatten, Linear, ReLU, Linear.
fn mlp(w: &Weights<'_>, x: &Tensor) -> Result<Tensor> {
    let x = x.flatten(1, -1)?;
    w.linear("3", &w.linear("1", &x)?.relu()?)
}

/// Conv, BatchNorm, ReLU, MaxPool, Conv, ReLU, Flatten, Linear.
fn cnn(w: &Weights<'_>, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = w.affine("0")?;
    let options = ConvOptions {
        padding: 1.into(),
        ..Default::default()
    };
    let x = f::conv2d(x, weight, Some(bias), options)?;
    let (weight, bias) = w.affine("1")?;
    let options = BatchNormOptions {
        weight: Some(weight),
        bias: Some(bias),
        training: true,
        ..Default::default()
    };
    let (mean, variance) = (w.get("1.running_mean")?, w.get("1.running_var")?);
    let x = f::batch_norm(&x, Some(mean), Some(variance), options)?.relu()?;
    w.get("1.num_batches_tracked")?.add_(1)?;
    let x = f::max_pool2d(&x, 2, MaxPoolOptions::default())?;
    let (weight, bias) = w.affine("4")?;
    let options = ConvOptions {
        stride: 2.into(),
        ..Default::default()
    };
    let x = f::conv2d(&x, weight, Some(bias), options)?.relu()?;
    w.linear("7", &x.flatten(1, -1)?)
}

/// Pre-norm causal transformer blocks between a token and a position embedding and a head that is
/// tied to the former.
fn lm(w: &Weights<'_>, x: &Tensor) -> Result<Tensor> {
    let (tokens, positions) = (w.get("tok.weight")?, w.get("pos.weight")?);
    let [batch, length] = x.dims() else {
        return Err(Error::shape("lm", "[batch, length]", x.shape()));
    };
    let (width, heads) = (tokens.size(-1)?, w.note.near(&["heads"], -1)? as usize);
    let mut h = tokens
        .index_select(0, &x.flatten(0, -1)?)?
        .reshape([*batch, *length, width])?
        .add(&positions.narrow(0, 0, *length)?)?;
    for block in 0.. {
        let layer = |name: &str| format!("blocks.{block}.{name}");
        if w.affine(&layer("ln1")).is_err() {
            break;
        }
        let qkv = w.linear(&layer("qkv"), &w.layer_norm(&layer("ln1"), &h)?)?;
        let qkv = qkv
            .reshape([*batch, *length, 3, heads, width / heads])?
            .permute([2, 0, 3, 1, 4])?;
        let options = AttentionOptions {
            is_causal: true,
            ..Default::default()
        };
        let [q, k, v] = [qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?];
        let attended = f::scaled_dot_product_attention(&q, &k, &v, options)?
            .transpose(1, 2)?
            .reshape([*batch, *length, width])?;
        h = h.add(&w.linear(&layer("proj"), &attended)?)?;
        let wide = w.linear(&layer("fc"), &w.layer_norm(&layer("ln2"), &h)?)?;
        h = h.add(&w.linear(&layer("out"), &wide.gelu(Default::default())?)?)?;
    }
    f::linear(&w.layer_norm("ln", &h)?, tokens, None)
}

fn replay(run: &Run, file: &Tensors) -> Result<(), Failure> {
    let recipe = recipe(&run.name).ok_or_else(|| format!("no model for {}", run.name))?;
    let told = |e: Error| e.to_string();
    let note = Note(&run.note);
    let mut tensors = BTreeMap::new();
    for name in file.names("init.") {
        tensors.insert(name.clone(), file.get(&format!("init.{name}"))?);
    }
    let weights = Weights { tensors, note };
    let parameters = weights.parameters();
    for parameter in &parameters {
        parameter.requires_grad_(true).map_err(told)?;
    }
    let mut optimizer = (recipe.optimizer)(parameters.clone(), note).map_err(told)?;
    let mut scheduler = match recipe.anneals {
        true => {
            let steps = note.after(&["over"]).map_err(told)? as u64;
            let schedule = CosineAnnealingLR::new(steps);
            Some(Scheduler::new(optimizer.as_mut(), schedule).map_err(told)?)
        }
        false => None,
    };
    for step in 0..run.steps {
        let (x, y) = (
            file.get(&format!("x.{step}"))?,
            file.get(&format!("y.{step}"))?,
        );
        let mut one = || -> Result<(Tensor, Option<Tensor>)> {
            let logits = (recipe.logits)(&weights, &x)?.flatten(0, -2)?;
            let options = CrossEntropyOptions::default();
            let loss = f::cross_entropy(&logits, &y.flatten(0, -1)?, options)?;
            optimizer.zero_grad();
            loss.backward()?;
            let norm = match recipe.clips {
                true => {
                    let max = note.after(&["norm"])?;
                    Some(clip_grad_norm_(&parameters, max, ClipOptions::default())?)
                }
                false => None,
            };
            optimizer.step()?;
            if let Some(scheduler) = &mut scheduler {
                scheduler.step(optimizer.as_mut())?;
            }
            xla::sync()?;
            Ok((loss, norm))
        };
        let (loss, norm) = one().map_err(|e| format!("step {step}: {e}"))?;
        let loss = loss.item().map_err(told)?;
        near(step, "loss", loss, run.losses.get(step).copied())?;
        if let (Some(norm), Some(expected)) = (norm, run.grad_norms.get(step)) {
            let norm = norm.item().map_err(told)?;
            near(step, "gradient norm", norm, Some(*expected))?;
        }
    }
    for (name, tensor) in &weights.tensors {
        let expected = file.get(&format!("final.{name}"))?;
        let what = format!("final {name}");
        let close = |got: &Tensor, expected: &Tensor, tolerance| {
            let expected = expected.to_literal().map_err(told)?;
            compare(&what, got, &expected, tolerance, tolerance)
        };
        if name.ends_with(".qkv.bias") {
            // A key's bias adds the same to all scores of a query, which softmax takes away: its
            // gradient is rounding, which Adam scales up to steps of nearly the learning rate.
            // PyTorch's own runs differ in it by 4e-4 between two ways to compute attention.
            let third = |x: &Tensor, i| x.chunk(3, 0)?.swap_remove(i).copy();
            for (i, tolerance) in [recipe.finals, 2e-3, recipe.finals].into_iter().enumerate() {
                let got = third(tensor, i).map_err(told)?;
                close(&got, &third(&expected, i).map_err(told)?, tolerance)?;
            }
        } else if recipe.adrift.contains(&name.as_str()) {
            let way = 2.0 * note.after(&["lr"]).map_err(told)? * run.steps as f64;
            close(tensor, &expected, way)?;
        } else {
            close(tensor, &expected, recipe.finals)?;
        }
    }
    Ok(())
}

fn near(step: usize, what: &str, got: f64, expected: Option<f64>) -> Result<(), Failure> {
    let expected = expected.ok_or_else(|| format!("step {step}: no {what} to compare with"))?;
    let error = (got - expected).abs() / expected.abs();
    if got == expected || error <= TOLERANCE {
        return Ok(());
    }
    Err(format!(
        "step {step}: {what}: expected {expected:e}, got {got:e}, relative error {error:.3e}"
    ))
}
