//! Layers against PyTorch's: the names of their parameters, their results and their gradients.
//! `tests/data/modules/generate.py` writes what is expected.

use std::path::Path;
use tests::check::{close, values};
use tests::with_devices;
use xla::nn::{
    BatchNorm, BatchNorm1d, BatchNorm2d, Conv1d, Conv2d, ConvTranspose2d, Embedding, GroupNorm,
    Gru, GruCell, LayerNorm, Lstm, LstmCell, Module, MultiheadAttention, MultiheadAttentionOptions,
    RmsNorm, Rnn, RnnCell, StateDict, functional,
};
use xla::{Result, Tensor};

const TOLERANCE: f64 = 2e-5;

struct Case<'a> {
    file: &'a StateDict,
    name: &'static str,
}

impl Case<'_> {
    fn get(&self, kind: &str, key: &str) -> Option<&Tensor> {
        self.file.get(&format!("{}/{kind}/{key}", self.name))
    }

    fn input(&self, i: usize) -> &Tensor {
        self.get("in", &i.to_string()).unwrap()
    }

    /// Gives the module PyTorch's parameters, which must have the names and the order of its own.
    fn load(&self, module: &impl Module) {
        let names = &self.file.metadata()[&format!("{}/keys", self.name)];
        let names: Vec<&str> = names.split_whitespace().collect();
        let own = module.state_dict().unwrap();
        assert_eq!(own.keys().collect::<Vec<_>>(), names, "{}", self.name);
        let state = names
            .into_iter()
            .map(|name| (name, self.get("state", name).unwrap().clone()));
        module.load_state_dict(&state.collect(), true).unwrap();
    }

    fn same(&self, outputs: &[&Tensor]) {
        for (i, output) in outputs.iter().enumerate() {
            let what = format!("{} output {i}", self.name);
            let expected = self.get("out", &i.to_string()).unwrap();
            assert_eq!(output.dims(), expected.dims(), "{what}");
            close(
                &what,
                &values(output).unwrap(),
                &values(expected).unwrap(),
                TOLERANCE,
            );
        }
        assert!(self.get("out", &outputs.len().to_string()).is_none());
    }

    /// The gradients of the sum of all outputs' squares.
    fn same_gradients(&self, module: &impl Module, outputs: &[&Tensor]) {
        let sum = |x: &Tensor| x.square()?.sum((), false);
        let mut loss = sum(outputs[0]).unwrap();
        for output in &outputs[1..] {
            loss = loss.add(&sum(output).unwrap()).unwrap();
        }
        loss.backward().unwrap();
        for (name, parameter) in module.named_parameters() {
            let what = format!("{} gradient of {name}", self.name);
            let got = values(&parameter.grad().unwrap()).unwrap();
            let expected = values(self.get("grad", &name).unwrap()).unwrap();
            close(&what, &got, &expected, 10.0 * TOLERANCE);
        }
    }
}

/// Runs a test on one device with PyTorch's file.
fn with_file(test: impl FnOnce(&dyn Fn(&'static str) -> Case<'static>)) {
    with_devices(1, || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/modules/layers.safetensors");
        let file: &'static StateDict = Box::leak(Box::new(StateDict::load(path, ()).unwrap()));
        test(&|name| Case { file, name });
    });
}

#[test]
fn recurrent_layers() {
    with_file(|case| {
        let lstm = Lstm::builder(3, 4)
            .num_layers(2)
            .bidirectional(true)
            .build(())
            .unwrap();
        let c = case("lstm");
        c.load(&lstm);
        let (y, (h, m)) = lstm
            .forward(c.input(0), Some((c.input(1), c.input(2))))
            .unwrap();
        c.same(&[&y, &h, &m]);
        c.same_gradients(&lstm, &[&y, &h, &m]);

        let lstm = Lstm::builder(3, 4)
            .num_layers(2)
            .bias(false)
            .proj_size(2)
            .build(())
            .unwrap();
        let c = case("lstm_proj");
        c.load(&lstm);
        let (y, (h, m)) = lstm.forward(c.input(0), None).unwrap();
        c.same(&[&y, &h, &m]);

        let gru = Gru::builder(3, 4)
            .num_layers(2)
            .bidirectional(true)
            .build(())
            .unwrap();
        let c = case("gru");
        c.load(&gru);
        let (y, h) = gru.forward(c.input(0), Some(c.input(1))).unwrap();
        c.same(&[&y, &h]);
        c.same_gradients(&gru, &[&y, &h]);

        let gru = Gru::builder(3, 4)
            .batch_first(true)
            .bias(false)
            .build(())
            .unwrap();
        let c = case("gru_batch_first");
        c.load(&gru);
        let (y, h) = gru.forward(c.input(0), None).unwrap();
        c.same(&[&y, &h]);

        let rnn = Rnn::new(3, 4, ()).unwrap();
        let c = case("rnn");
        c.load(&rnn);
        let (y, h) = rnn.forward(c.input(0), None).unwrap();
        c.same(&[&y, &h]);
        c.same_gradients(&rnn, &[&y, &h]);

        let rnn = Rnn::builder(3, 4).relu().build(()).unwrap();
        let c = case("rnn_relu");
        c.load(&rnn);
        let (y, h) = rnn.forward(c.input(0), None).unwrap();
        c.same(&[&y, &h]);
    });
}

#[test]
fn recurrent_cells() {
    with_file(|case| {
        let lstm = LstmCell::new(3, 4, ()).unwrap();
        let c = case("lstm_cell");
        c.load(&lstm);
        let (h, m) = lstm
            .forward(c.input(0), Some((c.input(1), c.input(2))))
            .unwrap();
        c.same(&[&h, &m]);

        let gru = GruCell::new(3, 4, ()).unwrap();
        let c = case("gru_cell");
        c.load(&gru);
        c.same(&[&gru.forward(c.input(0), Some(c.input(1))).unwrap()]);

        let rnn = RnnCell::without_bias(3, 4, ()).unwrap();
        let c = case("rnn_cell");
        c.load(&rnn);
        c.same(&[&rnn.forward(c.input(0), None).unwrap()]);
    });
}

#[test]
fn attention() {
    with_file(|case| {
        let attention = MultiheadAttention::builder(8, 2)
            .batch_first(true)
            .build(())
            .unwrap();
        let c = case("attention");
        c.load(&attention);
        let options = MultiheadAttentionOptions {
            key_padding_mask: Some(c.input(3)),
            attn_mask: Some(c.input(4)),
            ..Default::default()
        };
        let [q, k, v] = [0, 1, 2].map(|i| c.input(i));
        let (y, w) = attention.forward(q, k, v, options).unwrap();
        let w = w.unwrap();
        c.same(&[&y, &w]);
        c.same_gradients(&attention, &[&y, &w]);
        // Without weights the result is the same.
        let options = MultiheadAttentionOptions {
            need_weights: false,
            ..options
        };
        let (fast, none) = attention.forward(q, k, v, options).unwrap();
        close("", &values(&fast).unwrap(), &values(&y).unwrap(), TOLERANCE);
        assert!(none.is_none());

        let attention = MultiheadAttention::builder(8, 2)
            .kdim(6)
            .vdim(7)
            .bias(false)
            .build(())
            .unwrap();
        let c = case("attention_dims");
        c.load(&attention);
        let options = MultiheadAttentionOptions {
            attn_mask: Some(c.input(3)),
            average_attn_weights: false,
            ..Default::default()
        };
        let [q, k, v] = [0, 1, 2].map(|i| c.input(i));
        let (y, w) = attention.forward(q, k, v, options).unwrap();
        c.same(&[&y, &w.unwrap()]);

        let attention = MultiheadAttention::new(8, 4, ()).unwrap();
        let c = case("attention_alone");
        c.load(&attention);
        let options = MultiheadAttentionOptions {
            need_weights: false,
            ..Default::default()
        };
        let x = c.input(0);
        c.same(&[&attention.forward(x, x, x, options).unwrap().0]);
    });
}

/// Three batches in training and the first again in evaluation, then the running statistics.
fn train_and_evaluate<const D: usize>(c: &Case<'_>, norm: &BatchNorm<D>) {
    c.load(norm);
    let mut outputs: Vec<Tensor> = (0..3).map(|i| norm.forward(c.input(i)).unwrap()).collect();
    norm.eval();
    outputs.push(norm.forward(c.input(0)).unwrap());
    let state = norm.state_dict().unwrap();
    outputs.push(state.get("running_mean").unwrap().clone());
    outputs.push(state.get("running_var").unwrap().clone());
    c.same(&outputs.iter().collect::<Vec<_>>());
    let count = state.get("num_batches_tracked").unwrap();
    assert_eq!(count.item::<i64>().unwrap(), 3);
}

#[test]
fn norms() {
    with_file(|case| {
        train_and_evaluate(&case("batch_norm"), &BatchNorm2d::new(3, ()).unwrap());
        let cumulative = BatchNorm2d::builder(3)
            .momentum(None)
            .affine(false)
            .eps(1e-3)
            .build(())
            .unwrap();
        train_and_evaluate(&case("batch_norm_cumulative"), &cumulative);
        let untracked = BatchNorm1d::builder(3)
            .track_running_stats(false)
            .build(())
            .unwrap();
        let c = case("batch_norm_untracked");
        c.load(&untracked);
        c.same(&[&untracked.forward(c.input(0)).unwrap()]);
        untracked.eval();
        c.same(&[&untracked.forward(c.input(0)).unwrap()]);

        let layer = LayerNorm::builder([2, 2])
            .unwrap()
            .bias(false)
            .build(())
            .unwrap();
        one(&case("layer_norm"), &layer, |x| layer.forward(x));
        let rms = RmsNorm::builder(2)
            .unwrap()
            .eps(Some(1e-3))
            .build(())
            .unwrap();
        one(&case("rms_norm"), &rms, |x| rms.forward(x));
        let group = GroupNorm::new(3, 6, ()).unwrap();
        one(&case("group_norm"), &group, |x| group.forward(x));
    });
}

fn one(c: &Case<'_>, module: &impl Module, forward: impl Fn(&Tensor) -> Result<Tensor>) {
    c.load(module);
    let y = forward(c.input(0)).unwrap();
    c.same(&[&y]);
    c.same_gradients(module, &[&y]);
}

#[test]
fn convolutions_and_embedding() {
    with_file(|case| {
        let conv = Conv2d::builder(4, 6, [3, 2])
            .stride(2)
            .padding([1, 0])
            .dilation([1, 2])
            .groups(2)
            .build(())
            .unwrap();
        one(&case("conv2d"), &conv, |x| conv.forward(x));
        let same = Conv1d::builder(4, 3, 3)
            .padding(functional::Padding::Same)
            .bias(false);
        let same = same.build(()).unwrap();
        let c = case("conv1d");
        c.load(&same);
        c.same(&[&same.forward(c.input(0)).unwrap()]);
        let up = ConvTranspose2d::builder(4, 6, 3)
            .stride(2)
            .padding(1)
            .output_padding(1)
            .groups(2)
            .build(())
            .unwrap();
        one(&case("conv_transpose2d"), &up, |x| up.forward(x));
        let table = Embedding::builder(5, 3).padding_idx(1).build(()).unwrap();
        assert_eq!(
            values(&table.weight().select(0, 1).unwrap()).unwrap(),
            [0.0; 3]
        );
        one(&case("embedding"), &table, |x| table.forward(x));
    });
}
