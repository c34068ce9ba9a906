//! Checkpoints: written and read whole, in blocks and in other layouts, by one that dies and by several
//! at a time, and training that goes on from one.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tests::check::{close, counted, f32s, i64s, values};
use tests::{replicas, with_devices};
use xla::nn::functional as F;
use xla::nn::state::{Checkpoint, CheckpointManager, Stateful};
use xla::nn::{Linear, Module, StateDict};
use xla::optim::AdamW;
use xla::optim::lr_scheduler::{ExponentialLR, Scheduler};
use xla::spmd::{Mesh, NamedSharding, PartitionSpec, mark_sharding};
use xla::{DType, Error, Generator, Literal, Result, Tensor, bf16};

/// Names the folder of a test to the processes that it starts.
const FOLDER: &str = "XLA_TEST_FOLDER";

fn several() -> StateDict {
    let bools = Tensor::from_slice(&[true, false, true], [3], ()).unwrap();
    let halves: Vec<bf16> = [1.5, -2.25, 0.0, 1e30].map(bf16::from_f32).into();
    let halves = Tensor::from_vec(halves, [2, 2], ()).unwrap();
    let empty = Tensor::zeros([0, 4], DType::F32).unwrap();
    let mut state = StateDict::from_iter([
        ("w", counted(&[5, 7])),
        ("longs", i64s(&[i64::MIN, -1, i64::MAX])),
        ("bools", bools),
        ("halves", halves),
        (
            "scalar",
            Tensor::from_slice(&[2.5_f64], [0_usize; 0], ()).unwrap(),
        ),
        ("empty", empty),
        ("__metadata__", f32s(&[1.0])),
        ("w[0:5,0:7]", f32s(&[2.0])),
    ]);
    state.metadata_mut().insert("epoch".into(), "3".into());
    state
}

fn literals(state: &StateDict) -> Vec<(String, Literal)> {
    let literal = |(name, tensor): (&str, &Tensor)| (name.into(), tensor.to_literal().unwrap());
    state.iter().map(literal).collect()
}

/// The names in a folder, but for the file that managers lock.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".writer")
        .collect();
    names.sort();
    names
}

#[test]
fn every_dtype_and_shape_comes_back_bit_for_bit() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let state = several();
        Checkpoint::save(&path, &state).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded = checkpoint.load(()).unwrap();
        assert_eq!(literals(&loaded), literals(&state));
        assert_eq!(loaded.metadata()["epoch"], "3");
        let half = checkpoint.load(DType::F16).unwrap();
        assert_eq!(half.get("w").unwrap().dtype(), DType::F16);
        assert_eq!(half.get("longs").unwrap().dtype(), DType::I64);

        // Any block, of which the values are known.
        let block = checkpoint.read_block("w", &[1..4, 2..5]).unwrap();
        let expected: Vec<f32> = (1..4)
            .flat_map(|r| (2..5).map(move |c| (7 * r + c) as f32))
            .collect();
        assert_eq!(block, Literal::from_vec(expected, [3, 3]).unwrap());
        for bad in [vec![0..6, 0..7], vec![0..5; 1], vec![0..1; 3]] {
            let error = checkpoint.read_block("w", &bad).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        assert!(
            checkpoint
                .read("v")
                .unwrap_err()
                .to_string()
                .contains("missing: v")
        );

        // One of the name is replaced, something else is not.
        Checkpoint::save(&path, &StateDict::from_iter([("x", f32s(&[1.0]))])).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().tensors().count(), 1);
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("index.json"), "{}").unwrap();
        let error = Checkpoint::save(&foreign, &state).unwrap_err();
        assert!(matches!(error, Error::FileFormat { .. }), "{error}");
        assert_eq!(names(folder.path()), ["foreign", "saved"]);
        assert_eq!(names(&foreign), ["index.json"]);
    });
}

#[test]
fn large_tensors_are_written_in_pieces_and_read_across_them() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        // 160 MiB: more than one piece, of which each is more than a file's worth.
        let (rows, columns) = (5 * 1024, 8 * 1024);
        let data: Vec<f32> = (0..rows * columns).map(|i| (i % 9973) as f32).collect();
        let large = Tensor::from_vec(data, [rows, columns], ()).unwrap();
        Checkpoint::save(&path, &StateDict::from_iter([("large", large)])).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let pieces = checkpoint.get("large").unwrap().blocks().count();
        assert!(pieces > 1, "{pieces}");
        // A column goes across all pieces, rows across a border, and many bytes lie between.
        for block in [
            [0..rows, 4099..4101],
            [4000..4200, 0..columns],
            [1..2, 3..4],
        ] {
            let expected: Vec<f32> = block[0]
                .clone()
                .flat_map(|r| {
                    block[1]
                        .clone()
                        .map(move |c| ((r * columns + c) % 9973) as f32)
                })
                .collect();
            let dims = [block[0].len(), block[1].len()];
            let read = checkpoint.read_block("large", &block).unwrap();
            assert!(
                read == Literal::from_vec(expected, dims).unwrap(),
                "{block:?}"
            );
        }
    });
}

#[test]
fn values_are_loaded_in_place_or_nothing_is() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let model = Linear::new(3, 2, ()).unwrap();
        Checkpoint::save(&path, &model.state_dict().unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let other = Linear::new(3, 2, ()).unwrap();
        let weight = other.weight().clone();
        let keys = checkpoint
            .load_into(&other.state_dict().unwrap(), true)
            .unwrap();
        assert_eq!(keys, Default::default());
        assert_eq!(
            weight.to_vec::<f32>().unwrap(),
            model.weight().to_vec::<f32>().unwrap()
        );
        assert!(weight.requires_grad() && weight.is_leaf());

        let into = StateDict::from_iter([
            ("weight", f32s(&[7.0, 7.0])),
            ("bias", i64s(&[7, 7])),
            ("scale", f32s(&[7.0])),
        ]);
        let line = line!() + 1;
        let error = checkpoint.load_into(&into, true).unwrap_err();
        assert_eq!(error.location().map(|l| l.line()), Some(line));
        for part in [
            "missing: scale",
            "weight: expected shape [2], got [2, 3]",
            "bias: expected dtype i64, got f32",
        ] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(
            into.iter()
                .all(|(_, tensor)| values(tensor).unwrap().iter().all(|v| *v == 7.0))
        );
    });
}

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

/// Saves one step after another, each with that step's number in every element, until killed.
fn save_for_ever(folder: &Path) {
    let mut checkpoints = CheckpointManager::new(folder).keep(2);
    let state = |step: u64| {
        let tensor = |_| Tensor::full([512, 1024], step as f64, DType::F32).unwrap();
        StateDict::from_iter((0..8).map(|i| (i.to_string(), tensor(i))))
    };
    let first = checkpoints
        .latest_step()
        .unwrap()
        .map_or(0, |step| step + 1);
    for step in first.. {
        checkpoints
            .save_async(step, &[("state", &state(step))])
            .unwrap();
    }
}

/// A saved step has its number in every element.
fn assert_whole(folder: &Path, step: u64) {
    let checkpoint = Checkpoint::open(folder.join(format!("step-{step}"))).unwrap();
    assert_eq!(checkpoint.tensors().count(), 8);
    for saved in checkpoint.tensors() {
        let values = checkpoint.read(saved.name()).unwrap();
        let values = values.as_slice::<f32>().unwrap();
        assert!(values.iter().all(|value| *value == step as f32));
    }
}

#[test]
fn a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints() {
    const NAME: &str = "a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints";
    with_devices(1, || {
        if let Some(folder) = std::env::var_os(FOLDER) {
            return save_for_ever(Path::new(&folder));
        }
        let folder = tempfile::tempdir().unwrap();
        let reader = CheckpointManager::new(folder.path());
        let begun = || {
            let names = names(folder.path());
            names
                .iter()
                .any(|name| name.starts_with(".unfinished-step-"))
        };
        let mut last = None;
        for round in 0..3 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([NAME, "--exact"])
                .env(FOLDER, folder.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            // In the middle of a save that is not the process's first one.
            let end = Instant::now() + Duration::from_secs(60);
            while (reader.latest_step().unwrap() == last || !begun()) && Instant::now() < end {
                thread::sleep(Duration::from_millis(1 + 4 * round));
            }
            kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
            child.wait().unwrap();
            let now = reader.latest_step().unwrap();
            assert!(now > last, "{now:?} after {last:?}");
            last = now;
            for step in reader.steps().unwrap() {
                assert_whole(folder.path(), step);
            }
        }
        // The next writer removes what the dead have left.
        let last = last.unwrap();
        let mut next = CheckpointManager::new(folder.path()).keep(1);
        let state = StateDict::from_iter([("x", f32s(&[1.0]))]);
        next.save(last + 1, &[("state", &state)]).unwrap();
        assert_eq!(names(folder.path()), [format!("step-{}", last + 1)]);
    });
}

#[test]
fn a_disk_that_is_full_leaves_the_checkpoint_before() {
    const NAME: &str = "a_disk_that_is_full_leaves_the_checkpoint_before";
    with_devices(1, || {
        if std::env::var_os(FOLDER).is_none() {
            // A process whose files cannot grow beyond a few KiB, and that is told so by an error.
            let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
            let status = Command::new("sh")
                .args(["-c", limited, "sh"])
                .arg(std::env::current_exe().unwrap())
                .args([NAME, "--exact", "--nocapture"])
                .env(FOLDER, "")
                .status()
                .unwrap();
            assert!(status.success(), "{status}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = CheckpointManager::new(folder.path());
        let state = |step: u64, n: usize| {
            let x = Tensor::full([n, 1024], step as f64, DType::F32).unwrap();
            StateDict::from_iter([("x", x)])
        };
        checkpoints.save(1, &[("state", &state(1, 1))]).unwrap();
        let is_full = |error: &Error| matches!(error, Error::Io { path, .. } if path.ends_with("00000-000.safetensors"));
        let error = checkpoints
            .save(2, &[("state", &state(2, 1024))])
            .unwrap_err();
        assert!(is_full(&error), "{error}");
        // Beside the training it is the next call's error.
        assert!(
            checkpoints
                .save_async(3, &[("state", &state(3, 1024))])
                .unwrap()
        );
        let error = checkpoints.wait().unwrap_err();
        assert!(is_full(&error), "{error}");
        checkpoints
            .save_async(4, &[("state", &state(4, 1024))])
            .unwrap();
        let error = checkpoints.save(5, &[("state", &state(5, 1))]).unwrap_err();
        assert!(is_full(&error), "{error}");
        assert_eq!(names(folder.path()), ["step-1"]);
        checkpoints.save(5, &[("state", &state(5, 1))]).unwrap();
        let mut restored = state(0, 1);
        checkpoints
            .restore(1, &mut [("state", &mut restored)])
            .unwrap();
        assert_eq!(values(restored.get("x").unwrap()).unwrap(), [1.0; 1024]);
    });
}

#[test]
fn a_folder_that_cannot_be_written_to_is_an_error_at_the_call() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let state = several();
        for bad in [
            file.clone(),
            file.join("below"),
            PathBuf::from("/proc/no/where"),
        ] {
            let error = Checkpoint::save(&bad, &state).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{error}");
            let mut checkpoints = CheckpointManager::new(&bad);
            let error = checkpoints.save_async(1, &[("state", &state)]).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{error}");
        }
        let mut checkpoints = CheckpointManager::new(folder.path().join("run")).keep(0);
        let line = line!() + 1;
        let error = checkpoints.save(1, &[("state", &state)]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("keep: expected at least 1, got 0"),
            "{error}"
        );
        assert_eq!(error.location().map(|l| l.line()), Some(line));
        for parts in [
            &[("a/b", &state as &dyn Stateful)][..],
            &[("a", &state), ("a", &state)],
        ] {
            let error = CheckpointManager::new(folder.path())
                .save(1, parts)
                .unwrap_err();
            assert!(error.to_string().contains("parts"), "{error}");
        }
    });
}

#[test]
fn a_folder_has_one_writer_and_any_number_of_readers() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDict::from_iter([("x", f32s(&[1.0]))]);
        let mut first = CheckpointManager::new(folder.path());
        first.save(1, &[("state", &state)]).unwrap();
        let mut second = CheckpointManager::new(folder.path());
        let mut restored = StateDict::from_iter([("x", f32s(&[0.0]))]);
        second
            .restore(None, &mut [("state", &mut restored)])
            .unwrap();
        assert_eq!(values(restored.get("x").unwrap()).unwrap(), [1.0]);
        let error = second
            .save(2, &[("state", &state)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("a folder that no other CheckpointManager saves to"),
            "{error}"
        );
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        assert_eq!(second.steps().unwrap(), [1]);
        drop(first);
        second.save(2, &[("state", &state)]).unwrap();
        assert_eq!(second.steps().unwrap(), [1, 2]);
    });
}

#[test]
fn what_is_no_whole_checkpoint_is_not_taken_for_one() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoints = CheckpointManager::new(folder.path()).keep(1);
        let state = several();
        checkpoints.save(7, &[("state", &state)]).unwrap();
        let whole = folder.path().join("step-7");
        let index = fs::read(whole.join("index.json")).unwrap();

        // Folders that are called like one: empty, of another program, of another step, misspelt.
        fs::create_dir(folder.path().join("step-8")).unwrap();
        for (name, text) in [
            ("step-9", &b"{\"format\":\"other\",\"saved\":99}"[..]),
            ("step-10", &index[..index.len() / 2]),
            ("step-11", &index[..]),
            ("step-07", &index[..]),
            ("step-+7", &index[..]),
        ] {
            let foreign = folder.path().join(name);
            fs::create_dir(&foreign).unwrap();
            fs::write(foreign.join("index.json"), text).unwrap();
        }
        fs::write(folder.path().join("step-12"), "a file").unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [7]);
        // They are neither replaced nor removed.
        let error = checkpoints.save(9, &[("state", &state)]).unwrap_err();
        assert!(matches!(error, Error::FileFormat { .. }), "{error}");
        let error = checkpoints.save(12, &[("state", &state)]).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert_eq!(checkpoints.latest_step().unwrap(), Some(7));

        // Files that are not what the index says.
        let file = whole.join("00000-000.safetensors");
        let bytes = fs::read(&file).unwrap();
        let mut bool_of_two = bytes.clone();
        if let Some(last) = bool_of_two.last_mut() {
            *last = 2;
        }
        let broken: [Option<&[u8]>; 5] = [
            Some(&bytes[..bytes.len() - 1]),
            Some(&bytes[..9]),
            Some(&[]),
            Some(&[0xff; 64]),
            None,
        ];
        for contents in broken {
            match contents {
                Some(contents) => fs::write(&file, contents).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let error = Checkpoint::open(&whole).unwrap_err();
            let typed = matches!(error, Error::FileFormat { .. } | Error::Io { .. });
            assert!(typed, "{error}");
        }
        fs::write(&file, &bool_of_two).unwrap();
        let read = Checkpoint::open(&whole).unwrap().load(()).map(drop);
        assert!(matches!(read, Err(Error::FileFormat { .. })), "{read:?}");
        fs::write(&file, &bytes).unwrap();

        // Indices that are not what files or memory hold.
        let change = |change: &dyn Fn(&mut Value)| {
            let mut index: Value = serde_json::from_slice(&index).unwrap();
            change(&mut index);
            fs::write(whole.join("index.json"), index.to_string()).unwrap();
            Checkpoint::open(&whole).and_then(|c| c.load(())).map(drop)
        };
        let changes: [&dyn Fn(&mut Value); 7] = [
            &|index| index["tensors"][0]["shape"] = serde_json::json!([5, 8]),
            &|index| index["tensors"][0]["shape"] = serde_json::json!([u64::MAX, u64::MAX]),
            &|index| {
                index["tensors"][0]["blocks"][0]["index"] = serde_json::json!([[0, 5], [7, 0]])
            },
            &|index| index["tensors"][0]["blocks"][0]["file"] = "../escape.safetensors".into(),
            &|index| index["tensors"][0]["dtype"] = "f64".into(),
            &|index| index["tensors"][0]["dtype"] = "f7".into(),
            &|index| index["tensors"][1] = index["tensors"][0].clone(),
        ];
        for (number, broken) in changes.iter().enumerate() {
            let error = change(*broken).unwrap_err();
            assert!(
                matches!(error, Error::FileFormat { .. }),
                "{number}: {error}"
            );
        }
        // Half of the tensor twice.
        let error = change(&|index| {
            let tensor = &mut index["tensors"][0];
            tensor["shape"] = serde_json::json!([10, 7]);
            let block = tensor["blocks"][0].clone();
            tensor["blocks"] = serde_json::json!([block, block]);
        })
        .unwrap_err();
        assert!(matches!(error, Error::FileFormat { .. }), "{error}");
        assert!(change(&|_| {}).is_ok());
    });
}

#[test]
fn ranks_save_what_they_share_once_and_what_is_their_own_each() {
    with_devices(2, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        replicas(2, |rank| {
            let mine = format!("rank-{rank}");
            let mut checkpoints = CheckpointManager::new(path).keep(1);
            let shared = StateDict::from_iter([
                ("a", Tensor::full([64], 1.0, DType::F32)?),
                ("b", Tensor::full([64], 2.0, DType::F32)?),
            ]);
            let own = StateDict::from_iter([("c", f32s(&[rank as f32]))]);
            for step in 1..=3 {
                checkpoints.save_async(step, &[("shared", &shared), (&mine, &own)])?;
            }
            checkpoints.wait()?;
            let mut read = StateDict::from_iter([("c", f32s(&[9.0]))]);
            let last = checkpoints.resume(&mut [(&mine, &mut read)])?;
            assert_eq!(last, Some(3));
            assert_eq!(values(read.get("c").unwrap())?, [rank as f64]);

            // What is wrong on one is an error on both, and the checkpoint before stays.
            let different =
                StateDict::from_iter([("a", Tensor::full([1 + rank], 1.0, DType::F32)?)]);
            let error = checkpoints.save(4, &[("shared", &different)]).unwrap_err();
            let text = "shared/a of f32 [1] as on rank 0, got f32 [2] on rank 1";
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(checkpoints.latest_step()?, Some(3));
            let names = [("shared", &shared as &dyn Stateful), ("shared", &shared)];
            let given = if rank == 0 { &names[..1] } else { &names };
            let error = checkpoints.save(4, given).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::ReplicaFailed { rank: 1, .. } | Error::Argument { .. }
                ),
                "{error}"
            );
            Ok(())
        });
        assert_eq!(names(path), ["step-3"]);
        let checkpoint = Checkpoint::open(path.join("step-3")).unwrap();
        let saved: Vec<&str> = checkpoint.tensors().map(|saved| saved.name()).collect();
        assert_eq!(saved, ["shared/a", "shared/b", "rank-0/c", "rank-1/c"]);
        let files = names(&path.join("step-3"));
        assert_eq!(
            files,
            [
                "00000-000.safetensors",
                "00001-000.safetensors",
                "index.json"
            ]
        );
        let sizes: Vec<u64> = files[..2]
            .iter()
            .map(|file| fs::metadata(path.join("step-3").join(file)).unwrap().len())
            .collect();
        // One of the two shared tensors, 256 bytes, an own one, and a header.
        assert!(
            sizes.iter().all(|size| (260..512).contains(size)),
            "{sizes:?}"
        );
    });
}

/// A state on meshes of these shapes, on one device for none; each tensor split as far as it goes.
fn spread(shape: &[usize]) -> StateDict {
    let place = |name: &str, tensor: &Tensor| -> Result<Tensor> {
        let spec: PartitionSpec = match (shape, name) {
            ([], _) => return Ok(tensor.clone()),
            ([_], "w" | "bools") => "x".into(),
            ([_], "halves") => ((), "x").into(),
            ([_, _], "w") => ("x", "y").into(),
            ([_, _], "bools" | "longs") => "y".into(),
            ([_, _], "halves") => ("y", "x").into(),
            _ => PartitionSpec::replicated(),
        };
        let names = &["x", "y"][..shape.len()];
        let mesh = Mesh::new(&[0, 1, 2, 3], shape, names)?;
        tensor.to_sharding(&NamedSharding::new(&mesh, spec)?)
    };
    let mut state = several();
    let placed: Vec<(String, Tensor)> = state
        .iter()
        .map(|(name, tensor)| (name.to_owned(), place(name, tensor).unwrap()))
        .collect();
    state.extend(placed);
    state
}

#[test]
fn what_one_mesh_saved_another_loads() {
    with_devices(4, || {
        let folder = tempfile::tempdir().unwrap();
        let expected = literals(&several());
        let shapes: [&[usize]; 4] = [&[4], &[2, 2], &[], &[4]];
        for (step, shapes) in (1..).zip(shapes.windows(2)) {
            let [from, to] = shapes else { continue };
            let mut checkpoints = CheckpointManager::new(folder.path());
            checkpoints.save(step, &[("state", &spread(from))]).unwrap();
            let checkpoint = Checkpoint::open(folder.path().join(format!("step-{step}"))).unwrap();
            let blocks: Vec<_> = checkpoint.get("state/w").unwrap().blocks().collect();
            match from {
                // Five rows over four devices: blocks of two, of which the last are short or empty.
                [4] => assert_eq!(blocks, [[0..2, 0..7], [2..4, 0..7], [4..5, 0..7]]),
                [2, 2] => assert_eq!(
                    blocks,
                    [[0..3, 0..4], [0..3, 4..7], [3..5, 0..4], [3..5, 4..7]]
                ),
                _ => assert_eq!(blocks, [[0..5, 0..7]]),
            }
            // Whatever there are of replicas, one is saved.
            let scalar = checkpoint.get("state/scalar").unwrap();
            assert_eq!(scalar.blocks().count(), 1);

            let target = spread(to);
            let mut restored: StateDict = target
                .iter()
                .map(|(name, tensor)| (name, tensor.zeros_like().unwrap()))
                .map(
                    |(name, zeros)| match target.get(name).unwrap().sharding().unwrap() {
                        Some(sharding) => (name, zeros.to_sharding(&sharding).unwrap()),
                        None => (name, zeros),
                    },
                )
                .collect();
            checkpoints
                .restore(step, &mut [("state", &mut restored)])
                .unwrap();
            assert_eq!(literals(&restored), expected);
            for (name, tensor) in restored.iter() {
                let like = target.get(name).unwrap();
                assert_eq!(
                    tensor.sharding().unwrap(),
                    like.sharding().unwrap(),
                    "{name}"
                );
            }
        }
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
