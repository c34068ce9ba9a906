//! Savers that die, disks that are full, folders that others have, files that are damaged.

use crate::{names, several};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tests::check::{f32s, values};
use tests::with_devices;
use xla::nn::StateDict;
use xla::nn::state::{Checkpoint, CheckpointManager, Stateful};
use xla::{DType, Error, Tensor};

/// Names the folder of a test to the processes that it starts.
const FOLDER: &str = "XLA_TEST_FOLDER";

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
    const NAME: &str = "failures::a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints";
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
    const NAME: &str = "failures::a_disk_that_is_full_leaves_the_checkpoint_before";
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
