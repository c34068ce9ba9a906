//! Training that goes on from a checkpoint.

use crate::{literals, names};
use tests::check::{close, values};
use tests::with_devices;
use xla::nn::functional as F;
use xla::nn::state::{CheckpointManager, Stateful};
use xla::nn::{Linear, Module, StateDict};
use xla::optim::AdamW;
use xla::optim::lr_scheduler::{ExponentialLR, Scheduler};
use xla::spmd::{Mesh, PartitionSpec, mark_sharding};
use xla::{DType, Generator, Literal, Result, Tensor};

/// A model with dropout in training, and all that its next step depends on.
struct Run {
    model: Linear,
    optimizer: AdamW,
    scheduler: Scheduler<ExponentialLR>,
    generator: Generator,
}

impl Run {
    fn new() -> Result<Run> {
        let model = Linear::new(8, 4, ())?;
        let mut optimizer = AdamW::new(model.parameters(), 0.05);
        Ok(Run {
            scheduler: Scheduler::new(&mut optimizer, ExponentialLR { gamma: 0.9 })?,
            generator: xla::default_generator(xla::device()?)?,
            model,
            optimizer,
        })
    }

    fn step(&mut self) -> Result<()> {
        let x = Tensor::randn([16, 8], ())?;
        let loss = F::dropout(&self.model.forward(&x)?, 0.25, true)?
            .square()?
            .mean((), false)?;
        loss.backward()?;
        self.optimizer.step()?;
        self.optimizer.zero_grad();
        self.scheduler.step(&mut self.optimizer)?;
        xla::sync().map(drop)
    }

    fn parts(&self) -> [(&'static str, &dyn Stateful); 4] {
        [
            ("model", &self.model),
            ("optimizer", &self.optimizer),
            ("scheduler", &self.scheduler),
            ("generator", &self.generator),
        ]
    }

    fn parts_mut(&mut self) -> [(&'static str, &mut dyn Stateful); 4] {
        [
            ("model", &mut self.model),
            ("optimizer", &mut self.optimizer),
            ("scheduler", &mut self.scheduler),
            ("generator", &mut self.generator),
        ]
    }

    fn bits(&self) -> Vec<(String, Literal)> {
        let states = [
            self.model.state_dict().unwrap(),
            self.optimizer.state_dict().unwrap(),
            self.generator.save_state().unwrap(),
        ];
        states.iter().flat_map(literals).collect()
    }
}

#[test]
fn training_that_is_continued_is_the_training_that_was_not_interrupted() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        xla::manual_seed(3).unwrap();
        let mut run = Run::new().unwrap();
        let mut checkpoints = CheckpointManager::new(folder.path())
            .keep(2)
            .save_interval(2);
        for step in 1..=6 {
            run.step().unwrap();
            let due = checkpoints.save_async(step, &run.parts()).unwrap();
            assert_eq!(due, step % 2 == 0);
        }
        checkpoints.wait().unwrap();
        let rate = run.optimizer.lr();
        assert_eq!(names(folder.path()), ["step-4", "step-6"]);
        assert_eq!(checkpoints.latest_step().unwrap(), Some(6));

        // Another run, from elsewhere, which has not taken a step yet.
        xla::manual_seed(4).unwrap();
        let mut other = Run::new().unwrap();
        let from = checkpoints.restore(4, &mut other.parts_mut()).unwrap();
        assert_eq!(from, 4);
        for _step in from..6 {
            other.step().unwrap();
        }
        assert_eq!(other.bits(), run.bits());
        assert_eq!(other.optimizer.lr(), rate);
        assert_eq!(other.scheduler.last_epoch(), 6);

        // What is saved after a return to an earlier step is what the run continues from, and stays.
        checkpoints.save_now(5, &other.parts()).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [5, 6]);
        assert_eq!(checkpoints.resume(&mut other.parts_mut()).unwrap(), Some(5));
        // A part alone is loaded too; one that is not there is said.
        checkpoints
            .restore(6, &mut [("model", &mut other.model)])
            .unwrap();
        let error = checkpoints
            .restore(6, &mut [("head", &mut other.model)])
            .unwrap_err();
        assert!(
            error.to_string().contains("parts: expected one of"),
            "{error}"
        );
        let error = checkpoints.restore(7, &mut other.parts_mut()).unwrap_err();
        assert!(
            error.to_string().contains("one of the steps [5, 6]"),
            "{error}"
        );
    });
}

#[test]
fn training_on_one_mesh_goes_on_on_another() {
    with_devices(4, || {
        let folder = tempfile::tempdir().unwrap();
        let run =
            |mesh: Option<(&[usize], &[&str])>, weights: &StateDict| -> Result<(Linear, AdamW)> {
                let model = Linear::new(8, 4, ())?;
                model.load_state_dict(weights, true)?;
                if let Some((shape, names)) = mesh {
                    let mesh = Mesh::new(&[0, 1, 2, 3], shape, names)?;
                    model.to(mesh.device())?;
                    mark_sharding(
                        model.weight(),
                        &mesh,
                        PartitionSpec::new([Some(names[0]), names.get(1).copied()]),
                    )?;
                }
                let optimizer = AdamW::new(model.parameters(), 0.05);
                Ok((model, optimizer))
            };
        let step = |(model, optimizer): &mut (Linear, AdamW)| -> Result<()> {
            let x = Tensor::arange(0, 128, 1, model.weight().device())?.to_dtype(DType::F32)?;
            let x = (x * 0.37)?.sin()?.reshape([16, 8])?;
            model.forward(&x)?.square()?.mean((), false)?.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            xla::sync().map(drop)
        };
        let first = Linear::new(8, 4, ()).unwrap().state_dict().unwrap();
        let mut whole = run(None, &first).unwrap();
        (0..4).for_each(|_| step(&mut whole).unwrap());
        let meshes: [Option<(&[usize], &[&str])>; 3] =
            [Some((&[4], &["x"])), Some((&[2, 2], &["x", "y"])), None];
        for (done, mesh) in meshes.into_iter().enumerate() {
            let mut checkpoints = CheckpointManager::new(folder.path());
            let mut run = run(mesh, &first).unwrap();
            let (model, optimizer) = &mut run;
            let from = checkpoints.resume(&mut [("model", model), ("optimizer", optimizer)]);
            assert_eq!(from.unwrap(), (done > 0).then_some(done as u64));
            step(&mut run).unwrap();
            if done == 2 {
                step(&mut run).unwrap();
                let values = |model: &Linear| values(model.weight()).unwrap();
                close("weight", &values(&run.0), &values(&whole.0), 1e-5);
                return;
            }
            let (model, optimizer) = &run;
            checkpoints
                .save_async(
                    done as u64 + 1,
                    &[("model", model), ("optimizer", optimizer)],
                )
                .unwrap();
            checkpoints.wait().unwrap();
        }
    });
}
