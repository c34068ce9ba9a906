//! Launched processes of which one fails while the others wait for it in a collective: the launch ends
//! soon, says who and why, and leaves nobody behind.
#![cfg(feature = "gloo")]

use rustix::process::{Signal, getpid, getppid, kill_process};
use std::error::Error;
use std::fmt::Debug;
use std::io::Write as _;
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;
use tests::{exit_status, processes, with_env};
use xla::dist::{self, ReduceOp};
use xla::{Result, Tensor};

/// Names the folder where ranks write down what the launch does not tell.
const FOLDER: &str = "XLA_TEST_FOLDER";

/// Longer than what has no deadline of its own may take on a busy machine.
const SOON: Duration = Duration::from_secs(20);

type Boxed = Box<dyn Error + Send + Sync>;

/// The sum that a rank takes part in after three that all have taken.
type Turn = fn(usize) -> std::result::Result<Tensor, Boxed>;

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("set for this test").into()
}

/// Writes down in one stroke: the launch may stop this process at any moment.
fn note(name: &str, rank: usize, text: &str) {
    let mut file = tempfile::NamedTempFile::new_in(folder()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.persist(folder().join(format!("{name}-{rank}")))
        .unwrap();
}

/// What ranks have noted under a name.
fn notes(folder: &Path, name: &str) -> Vec<String> {
    let noted = |rank| std::fs::read_to_string(folder.join(format!("{name}-{rank}")));
    (0..8).filter_map(|rank| noted(rank).ok()).collect()
}

fn sum(values: &[f32]) -> Result<Tensor> {
    dist::all_reduce(
        &Tensor::from_slice(values, [values.len()], ())?,
        ReduceOp::Sum,
    )
}

/// What each rank does: sums, of which the fourth is `turn`'s.
fn work(rank: usize, turn: Turn) -> std::result::Result<(), Boxed> {
    note("process", rank, &std::process::id().to_string());
    dist::init_process_group("xla", "xla://")?;
    for step in 0..8 {
        if step == 3 {
            note("turn", rank, "");
        }
        let sum = match step {
            3 => turn(rank)?,
            _ => sum(&[1.0])?,
        };
        let read = xla::sync().and_then(|_| sum.to_vec::<f32>());
        if let Err(error) = read {
            note("error", rank, &error.to_string());
            return Err(error.into());
        }
    }
    Ok(())
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

/// Checks that no noted process is left, or will be in a moment, where so many ranks have noted theirs.
/// A launch that fails early may stop others before they have.
fn assert_gone(folder: &Path, ranks: impl RangeBounds<usize> + Debug) {
    let pids = notes(folder, "process");
    assert!(ranks.contains(&pids.len()), "{ranks:?}: {pids:?}");
    let end = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|pid| is_alive(pid)) {
        assert!(Instant::now() < end, "of {pids:?} some are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Launches so many processes of so many replicas, whose collectives have this deadline, and checks
/// that the launch's error has the words, and what other ranks were told has some too.
fn fails(
    (size, devices): (usize, usize),
    deadline: Duration,
    turn: Turn,
    launch: &[&str],
    others: &[&str],
) {
    let own = TempDir::new().unwrap();
    let path = own.path().to_string_lossy().into_owned();
    with_env(&[("CPU_NUM_DEVICES", "1"), (FOLDER, &path)], || {
        let failed = processes(size, devices)
            .deadline(deadline)
            .run_serialized(|rank| work(rank, turn));
        let error = failed.unwrap_err().to_string();
        let now = SystemTime::now();
        for word in launch {
            assert!(error.contains(word), "without {word:?}: {error}");
        }
        let folder = folder();
        let all = size * devices;
        assert_gone(&folder, all..=all);
        for told in notes(&folder, "error") {
            for word in others {
                assert!(told.contains(word), "without {word:?}: {told}");
            }
        }
        let turned = (0..size * devices).filter_map(|rank| {
            let file = std::fs::metadata(folder.join(format!("turn-{rank}")));
            file.and_then(|file| file.modified()).ok()
        });
        let took = now.duration_since(turned.min().unwrap()).unwrap();
        eprintln!("ended {took:?} after the turn: {error}");
        assert!(took < SOON, "{took:?}");
    });
}

const MINUTE: Duration = Duration::from_secs(60);
const TWO_BY_TWO: (usize, usize) = (2, 2);
const FOUR: (usize, usize) = (4, 1);

fn signal_self(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

#[test]
fn the_error_of_a_rank() {
    let turn: Turn = |rank| match rank {
        2 => Err("disk full".into()),
        _ => Ok(sum(&[1.0])?),
    };
    let told = ["rank 2 failed: disk full"];
    fails(TWO_BY_TWO, MINUTE, turn, &told, &told);
}

#[test]
fn the_panic_of_a_rank_of_a_process_of_two() {
    let turn: Turn = |rank| match rank {
        3 => panic!("out of ideas"),
        _ => Ok(sum(&[1.0])?),
    };
    let told = ["rank 3 failed: panicked: out of ideas (at tests/tests/process_failures.rs:"];
    fails(TWO_BY_TWO, MINUTE, turn, &told, &told);
}

#[test]
fn a_process_that_exits() {
    let turn: Turn = |rank| match rank {
        2 => std::process::exit(1),
        _ => Ok(sum(&[1.0])?),
    };
    let launch = "rank 2 failed: its process ended with exit code 1 before its function had";
    fails(FOUR, MINUTE, turn, &[launch], &["rank 2"]);
}

#[test]
fn a_process_that_is_killed() {
    let turn: Turn = |rank| {
        if rank == 2 {
            signal_self(Signal::KILL);
        }
        Ok(sum(&[1.0])?)
    };
    let launch = "rank 2 failed: its process was killed by SIGKILL";
    fails(FOUR, MINUTE, turn, &[launch], &["rank 2"]);
}

#[test]
fn the_first_process_killed() {
    let turn: Turn = |rank| {
        if rank == 0 {
            // The others are in the collective by then.
            std::thread::sleep(Duration::from_millis(500));
            signal_self(Signal::KILL);
        }
        Ok(sum(&[1.0])?)
    };
    let launch = "rank 0 failed: its process, of ranks 0 to 1, was killed by SIGKILL";
    fails(TWO_BY_TWO, MINUTE, turn, &[launch], &["rank 0"]);
}

#[test]
fn a_process_that_is_stopped() {
    let turn: Turn = |rank| {
        if rank == 2 {
            signal_self(Signal::STOP);
        }
        Ok(sum(&[1.0])?)
    };
    fails(FOUR, MINUTE, turn, &["rank 2 failed"], &["rank 2 failed"]);
}

#[test]
fn another_operator_on_one_rank() {
    let turn: Turn = |rank| match rank {
        2 => {
            let x = Tensor::from_slice(&[1.0_f32], [1], ())?;
            Ok(dist::all_reduce(&x, ReduceOp::Max)?)
        }
        _ => Ok(sum(&[1.0])?),
    };
    let told = ["rank 2", "AllReduce", "Max", "Sum", "process_failures.rs:"];
    fails(TWO_BY_TWO, MINUTE, turn, &told, &told);
}

#[test]
fn another_shape_on_one_rank() {
    let turn: Turn = |rank| match rank {
        1 => Ok(sum(&[1.0, 2.0, 3.0])?),
        _ => Ok(sum(&[1.0])?),
    };
    let told = [
        "rank 1",
        "AllReduce",
        "f32[3]",
        "f32[1]",
        "process_failures.rs:",
    ];
    fails(FOUR, MINUTE, turn, &told, &told);
}

#[test]
fn a_rank_that_is_late_beyond_the_deadline() {
    let turn: Turn = |rank| {
        if rank == 1 {
            std::thread::sleep(Duration::from_secs(14));
        }
        Ok(sum(&[1.0])?)
    };
    let told = ["rank(s) [1] did not come to"];
    fails((2, 1), Duration::from_secs(6), turn, &told, &told);
}

#[test]
fn a_rank_that_returns_while_others_go_on() {
    let own = TempDir::new().unwrap();
    let path = own.path().to_string_lossy().into_owned();
    with_env(&[("CPU_NUM_DEVICES", "1"), (FOLDER, &path)], || {
        let failed = processes(2, 2).deadline(MINUTE).run_serialized(|rank| {
            note("process", rank, &std::process::id().to_string());
            dist::init_process_group("xla", "xla://")?;
            for _ in 0..if rank == 3 { 2 } else { 4 } {
                sum(&[1.0])?.to_vec::<f32>()?;
            }
            Ok::<_, xla::Error>(())
        });
        let error = failed.unwrap_err().to_string();
        assert!(error.contains("rank 3"), "{error}");
        assert_gone(&folder(), 4..=4);
    });
}

/// Checks the error of a launch of two processes of two replicas, some of which make no group.
fn without_a_group(has_none: fn(usize) -> bool, words: &[&str]) {
    let own = TempDir::new().unwrap();
    let path = own.path().to_string_lossy().into_owned();
    with_env(&[("CPU_NUM_DEVICES", "1"), (FOLDER, &path)], || {
        let deadline = Duration::from_secs(6);
        let failed = processes(2, 2).deadline(deadline).run_serialized(|rank| {
            note("process", rank, &std::process::id().to_string());
            if !has_none(rank) {
                dist::init_process_group("xla", "xla://")?;
                sum(&[1.0])?.to_vec::<f32>()?;
            }
            Ok::<_, xla::Error>(())
        });
        let error = failed.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "without {word:?}: {error}");
        }
        assert_gone(&folder(), 1..=4);
    });
}

#[test]
fn one_rank_makes_no_group() {
    without_a_group(|rank| rank == 3, &["init_process_group: rank 3 has left"]);
}

#[test]
fn one_process_makes_no_group() {
    let words = "of 2 processes these did not come in time: 0;";
    without_a_group(|rank| rank < 2, &[words]);
}

#[test]
fn one_rank_destroys_its_group() {
    let turn: Turn = |rank| {
        if rank == 2 {
            dist::destroy_process_group()?;
            std::thread::sleep(MINUTE);
        }
        Ok(sum(&[1.0])?)
    };
    let told = ["rank 2 has left the group"];
    fails(FOUR, MINUTE, turn, &told, &told);
}

#[test]
fn an_interrupt_during_a_collective() {
    let own = TempDir::new().unwrap();
    let path = own.path().to_string_lossy().into_owned();
    let status = exit_status(&[("CPU_NUM_DEVICES", "1"), (FOLDER, &path)], || {
        let ended = processes(2, 2).deadline(MINUTE).run_serialized(|rank| {
            let turn: Turn = |rank| {
                if rank == 3 {
                    std::thread::sleep(Duration::from_millis(500));
                    kill_process(getppid().ok_or("an orphan")?, Signal::INT)?;
                    std::thread::sleep(MINUTE);
                }
                Ok(sum(&[1.0])?)
            };
            work(rank, turn)
        });
        panic!("went on after the interrupt: {ended:?}");
    });
    let Some(status) = status else { return };
    assert_eq!(status.code(), Some(130), "{status}");
    assert_gone(own.path(), 4..=4);
}

#[test]
fn a_launch_inside_a_launch_is_refused() {
    let turn: Turn = |rank| {
        if rank == 1 {
            processes(2, 1).run_serialized(Ok::<usize, xla::Error>)?;
        }
        Ok(sum(&[1.0])?)
    };
    let told = ["rank 1 failed", "inside a replica of another launch"];
    fails((2, 1), MINUTE, turn, &told, &told);
}
