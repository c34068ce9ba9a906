//! Groups that span processes, with real processes: each test starts itself again as the processes of
//! a world, by the variables that torchrun sets.
#![cfg(feature = "gloo")]

use std::fmt::Write;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xla_core::{Device, Error, Result};
use xla_dist::{
    ReduceOp, all_gather_into_tensor, all_reduce, barrier, broadcast, destroy_process_group,
    get_rank, get_world_size, init_process_group, new_group, new_subgroups,
    new_subgroups_by_enumeration,
};
use xla_lazy::{Tensor, sync};
use xla_runtime::context::{ActiveLaunch, Launch, Mode, ReplicaContext, Standing, Topology};

/// Tells a process of a world that it is one.
const WORKER: &str = "XLA_DIST_TEST_WORKER";

/// Replicas in a process of those worlds that have several.
const REPLICAS: usize = 2;

/// How long a world may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// How one process ended.
struct End {
    /// What `work` returned, as text.
    said: String,
    output: String,
}

/// Runs `work` in so many processes and returns what each said; in such a process, runs it and ends.
fn world(
    test: &str,
    processes: usize,
    deadline: u32,
    work: fn(usize) -> Result<String>,
) -> Vec<End> {
    if std::env::var_os(WORKER).is_some() {
        let rank = std::env::var("RANK").unwrap().parse().unwrap();
        let said = match work(rank) {
            Ok(text) => text,
            Err(error) => format!("{error:?}"),
        };
        println!("\nSAID {said}");
        return Vec::new();
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(WORKER, "1")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", processes.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("XLA_DEADLINE_SECONDS", deadline.to_string())
            .env("CPU_NUM_DEVICES", REPLICAS.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..processes).map(start).collect();
    let end = Instant::now() + PATIENCE;
    let mut waiting = true;
    while waiting && Instant::now() < end {
        waiting = children.iter_mut().any(|c| c.try_wait().unwrap().is_none());
        // One that stopped itself is waited for by nobody.
        let stopped = |pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.contains(") T ")
        };
        let pids: Vec<u32> = children
            .iter_mut()
            .filter_map(|c| c.try_wait().unwrap().is_none().then(|| c.id()))
            .collect();
        if waiting && pids.iter().all(|pid| stopped(*pid)) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    children
        .iter_mut()
        .map(|child| {
            let late = child.try_wait().unwrap().is_none();
            let _ = child.kill();
            let mut output = String::new();
            child
                .stdout
                .take()
                .unwrap()
                .read_to_string(&mut output)
                .unwrap();
            let _ = child.wait();
            let said = output.lines().find_map(|line| line.strip_prefix("SAID "));
            let mut said = said.unwrap_or_default().to_owned();
            if late {
                let _ = write!(said, " (did not end)");
            }
            End { said, output }
        })
        .collect()
}

/// What all processes said, once they are the parent's.
fn expect(ends: &[End], expected: impl Fn(usize) -> Vec<&'static str>) {
    for (rank, end) in ends.iter().enumerate() {
        for part in expected(rank) {
            assert!(
                end.said.contains(part),
                "rank {rank} said {:?}, without {part:?}; all of it:\n{}",
                end.said,
                end.output
            );
        }
    }
}

/// Runs `replica` on a thread for each replica of this process, as a launch does, and returns what
/// each said; a failure is told to the others.
fn replicas(
    process: usize,
    replica: impl Fn(usize) -> Result<String> + Send + Sync,
) -> Result<String> {
    let _active = ActiveLaunch::new();
    let deadline = xla_core::Config::global()?.deadline;
    let topology = Topology {
        processes: std::env::var("WORLD_SIZE").unwrap().parse().unwrap(),
        process_index: process,
        replicas: REPLICAS,
    };
    let launch = Launch::spanning(Mode::External, topology, deadline);
    let said: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = launch
            .local_ranks()
            .enumerate()
            .map(|(device, rank)| {
                let (launch, replica) = (&launch, &replica);
                scope.spawn(move || {
                    let device = Device::new(device);
                    let context = ReplicaContext::new(Arc::clone(launch), device, rank);
                    let _entered = context.enter();
                    let said = replica(rank).and_then(|said| {
                        xla_runtime::context::await_work()?;
                        Ok(said)
                    });
                    let standing = match &said {
                        Ok(_) => Standing::Left,
                        Err(error) => Standing::Failed(error.to_string()),
                    };
                    launch.leave(rank, standing);
                    said.unwrap_or_else(|error| format!("{error:?}"))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    Ok(said.join(" | "))
}

fn vector(values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(values, [values.len()], ())
}

#[test]
fn collectives_have_their_closed_forms() {
    let ends = world("collectives_have_their_closed_forms", 2, 60, |rank| {
        init_process_group("xla", "env://")?;
        assert_eq!((get_rank()?, get_world_size()?), (rank, 2));
        let r = rank as f32;
        let sum = all_reduce(&vector(&[1.0 + 2.0 * r, 2.0 + 2.0 * r])?, ReduceOp::Sum)?;
        let max = all_reduce(&vector(&[r, -r])?, ReduceOp::Max)?;
        let second = broadcast(&vector(&[r, 7.0 * r])?, 1)?;
        let rows = all_gather_into_tensor(&vector(&[r, 10.0 + r])?.reshape([1, 2])?, 0)?;
        let columns = all_gather_into_tensor(&vector(&[r, 10.0 + r])?.reshape([2, 1])?, 1)?;
        assert_eq!(sum.to_vec::<f32>()?, [4.0, 6.0]);
        assert_eq!(max.to_vec::<f32>()?, [1.0, 0.0]);
        assert_eq!(second.to_vec::<f32>()?, [1.0, 7.0]);
        assert_eq!(rows.to_vec::<f32>()?, [0.0, 10.0, 1.0, 11.0]);
        assert_eq!(columns.to_vec::<f32>()?, [0.0, 1.0, 10.0, 11.0]);
        // A group of its own, whose collectives come between the others'.
        let pair = new_group(&[1, 0])?;
        for step in 0..20 {
            let x = vector(&[r + step as f32])?;
            let all = all_reduce(&x, ReduceOp::Sum)?;
            let also = pair.all_reduce(&all, ReduceOp::Product)?;
            sync()?;
            if step % 7 == rank {
                assert_eq!(also.to_vec::<f32>()?, [(1.0 + 2.0 * step as f32).powi(2)]);
            }
        }
        let x = vector(&[1.0 + r])?.requires_grad_(true)?;
        let y = all_reduce(&x.mul(&x)?, ReduceOp::Sum)?;
        y.mul(1.0 + r)?.sum((), false)?.backward()?;
        // d/dx of (1 + 2) x²: each rank's gradient is 1 + rank, and they are added.
        let gradient = x.grad().unwrap().to_vec::<f32>()?;
        assert_eq!(gradient, [6.0 * (1.0 + r)]);
        barrier()?;
        // A group may be destroyed and made again.
        destroy_process_group()?;
        assert_eq!((get_rank()?, get_world_size()?), (0, 1));
        init_process_group("xla", "env://")?;
        let again = all_reduce(&vector(&[r])?, ReduceOp::Sum)?.to_vec::<f32>()?;
        Ok(format!("{again:?}"))
    });
    expect(&ends, |_| vec!["[1.0]"]);
}

#[test]
fn a_rank_may_read_its_loss_early() {
    let ends = world("a_rank_may_read_its_loss_early", 3, 60, |rank| {
        init_process_group("xla", "xla://")?;
        let mut losses = Vec::new();
        let mut weight = vector(&[1.0])?;
        for step in 0..12 {
            let loss = all_reduce(&weight.mul(step as f32)?, ReduceOp::Sum)?;
            if rank == 0 {
                losses.push(loss.item::<f32>()?);
            }
            let gradient = all_reduce(&weight.mul(rank as f32)?, ReduceOp::Mean)?;
            // Nobody reads this one: it is executed all the same.
            drop(all_reduce(&vector(&[9.0])?, ReduceOp::Sum)?);
            weight = weight.add(&gradient)?;
            if rank != 2 || step % 2 == 1 {
                sync()?;
            }
        }
        Ok(format!("{:?} {losses:?}", weight.to_vec::<f32>()?))
    });
    // The weight doubles each step.
    expect(&ends, |rank| match rank {
        0 => vec!["[4096.0] [0.0, 6.0, 24.0, 72.0, 192.0, 480.0, 1152.0"],
        _ => vec!["[4096.0] []"],
    });
}

#[test]
fn what_differs_is_named_on_every_rank() {
    let ends = world("what_differs_is_named_on_every_rank", 2, 60, |rank| {
        init_process_group("xla", "env://")?;
        let op = if rank == 0 {
            ReduceOp::Sum
        } else {
            ReduceOp::Min
        };
        let first = all_reduce(&vector(&[1.0])?, op)?
            .to_vec::<f32>()
            .unwrap_err();
        destroy_process_group()?;
        init_process_group("xla", "env://")?;
        // Of two known programs each rank takes another: nobody waits before it starts.
        let (a, b) = (vector(&[1.0])?, vector(&[1.0, 2.0])?);
        for x in [&a, &b] {
            all_reduce(x, ReduceOp::Sum)?.to_vec::<f32>()?;
        }
        let second = all_reduce(if rank == 0 { &a } else { &b }, ReduceOp::Sum)?
            .to_vec::<f32>()
            .unwrap_err();
        let third = all_reduce(&a, ReduceOp::Sum)?.to_vec::<f32>().unwrap_err();
        assert_eq!(second.to_string(), third.to_string());
        // What has nothing to do with the group goes on.
        assert_eq!(a.add(1.0)?.to_vec::<f32>()?, [2.0]);
        Ok(format!("{first:?} / {second:?}"))
    });
    expect(&ends, |_| {
        vec![
            "Divergence { index: 0, rank: 1",
            "Min",
            "Sum",
            "processes.rs:",
            "/ Divergence { index: 2, rank: 1",
            "f32[2]",
            "f32[1]",
        ]
    });
}

/// Rank 1 ends in some way at its fourth step; rank 0 says which error it got, and when.
fn ends_at_the_fourth_step(rank: usize, end: fn()) -> Result<String> {
    init_process_group("xla", "env://")?;
    let mut begin = Instant::now();
    for step in 0..1000 {
        let x = vector(&[1.0])?;
        if step == 3 && rank == 1 {
            end();
        }
        begin = Instant::now();
        let value = all_reduce(&x, ReduceOp::Sum).and_then(|y| y.to_vec::<f32>());
        match value {
            Ok(value) => assert_eq!(value, [2.0]),
            Err(error) => {
                let soon = begin.elapsed() < Duration::from_secs(15);
                return Ok(format!("soon: {soon}, {step}, {error:?}"));
            }
        }
    }
    Ok(format!("nothing in {:?}", begin.elapsed()))
}

#[test]
fn a_killed_process_is_an_error_at_once() {
    let ends = world("a_killed_process_is_an_error_at_once", 2, 60, |rank| {
        ends_at_the_fourth_step(rank, || {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        })
    });
    expect(&ends[..1.min(ends.len())], |_| {
        vec!["soon: true, 3, ReplicaFailed { rank: 1"]
    });
}

#[test]
fn a_process_that_exits_is_an_error_at_once() {
    let ends = world("a_process_that_exits_is_an_error_at_once", 2, 60, |rank| {
        ends_at_the_fourth_step(rank, || std::process::exit(1))
    });
    expect(&ends[..1.min(ends.len())], |_| {
        vec!["soon: true, 3, Replica", "rank: 1"]
    });
}

#[test]
fn a_stopped_process_is_an_error_within_seconds() {
    let ends = world(
        "a_stopped_process_is_an_error_within_seconds",
        2,
        60,
        |rank| {
            ends_at_the_fourth_step(rank, || {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::STOP);
            })
        },
    );
    // Its threads stop one by one: it may still take part in some steps.
    expect(&ends[..1.min(ends.len())], |_| {
        vec!["soon: true, ", ", ReplicaFailed { rank: 1"]
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let ends = world(
        "a_rank_that_does_not_come_is_named_at_the_deadline",
        2,
        10,
        |rank| {
            init_process_group("xla", "env://")?;
            let x = vector(&[1.0])?;
            if rank == 1 {
                // Comes, but too late: it hears why the others have gone on.
                std::thread::sleep(Duration::from_secs(13));
            }
            let late = all_reduce(&x, ReduceOp::Sum)?.to_vec::<f32>().unwrap_err();
            match late {
                Error::Deadline { .. } => Ok(late.to_string()),
                other => Ok(format!("not the deadline but {other:?}")),
            }
        },
    );
    expect(&ends, |_| vec!["rank(s) [1] did not come to"]);
}

#[test]
fn two_processes_of_two_replicas_are_a_world_of_four() {
    let test = "two_processes_of_two_replicas_are_a_world_of_four";
    let ends = world(test, 2, 60, |process| {
        replicas(process, |rank| {
            init_process_group("xla", "xla://")?;
            assert_eq!((get_rank()?, get_world_size()?), (rank, 4));
            let r = rank as f32;
            let device = xla_runtime::context::current("test")?.device();
            assert_eq!(device.ordinal(), Some(rank % 2));
            // Even and odd ranks cross the processes; neighbours are in one; and a group of its own
            // has one member of the first process and both of the second.
            let (parity, _) = new_subgroups_by_enumeration(&[vec![0, 2], vec![1, 3]])?;
            let (neighbours, _) = new_subgroups(2)?;
            let three = new_group(&[1, 2, 3])?;
            let mut seen = Vec::new();
            for step in 0..10 {
                let x = vector(&[r, step as f32])?;
                let all = all_reduce(&x, ReduceOp::Sum)?;
                let parity = parity.as_ref().unwrap().all_reduce(&x, ReduceOp::Sum)?;
                let near = neighbours.all_reduce(&x, ReduceOp::Sum)?;
                let parts = all_gather_into_tensor(&x, 0)?;
                if three.is_member() {
                    let some = three.all_reduce(&x, ReduceOp::Sum)?;
                    sync()?;
                    assert_eq!(some.to_vec::<f32>()?, [6.0, 3.0 * step as f32]);
                }
                if step % 4 == rank {
                    seen = all.to_vec::<f32>()?;
                }
                sync()?;
                let step = step as f32;
                assert_eq!(
                    parity.to_vec::<f32>()?,
                    [if rank % 2 == 0 { 2.0 } else { 4.0 }, 2.0 * step]
                );
                assert_eq!(
                    near.to_vec::<f32>()?,
                    [if rank < 2 { 1.0 } else { 5.0 }, 2.0 * step]
                );
                assert_eq!(
                    parts.to_vec::<f32>()?,
                    [0.0, step, 1.0, step, 2.0, step, 3.0, step]
                );
            }
            barrier()?;
            Ok(format!("{:?}", seen[0]))
        })
    });
    expect(&ends, |_| vec!["6.0 | 6.0"]);
}

#[test]
fn the_error_of_one_replica_is_known_in_every_process() {
    let test = "the_error_of_one_replica_is_known_in_every_process";
    let ends = world(test, 2, 60, |process| {
        replicas(process, |rank| {
            init_process_group("xla", "xla://")?;
            for step in 0..5 {
                let x = vector(&[1.0])?;
                if (step, rank) == (3, 2) {
                    return Err(Error::argument("the test", "paper", "some", "none"));
                }
                all_reduce(&x, ReduceOp::Sum)?.to_vec::<f32>()?;
            }
            Ok("nothing".into())
        })
    });
    expect(&ends, |process| match process {
        0 => vec![
            "ReplicaFailed { rank: 2, message: \"the test: paper: expected some, got none\" } | \
             ReplicaFailed { rank: 2,",
        ],
        _ => vec![
            "Argument { op: \"the test\"",
            "| ReplicaFailed { rank: 2, message: \"the test",
        ],
    });
}
