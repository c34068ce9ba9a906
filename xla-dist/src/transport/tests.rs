//! The transport between threads, each with a context of its own, and between processes.

use super::collectives::{self, Block, Party};
use super::reduce::Reduce;
use super::{Channel, Failure, Transport, connect};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xla_core::{DType, Error};
use xla_lazy::stablehlo::Reduction;
use xla_store::{ConnectOptions, Server, ServerOptions, Store};

const LONG: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Runs `member` once for each of `count` processes, here threads, and returns what they return.
pub(crate) fn among<R: Send>(
    count: usize,
    member: impl Fn(Arc<dyn Transport>) -> R + Sync,
) -> Vec<R> {
    let server = Server::bind(&ServerOptions::default()).unwrap();
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                let (address, member) = (&address, &member);
                scope.spawn(move || member(join(address, index, count)))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn join(address: &str, index: usize, count: usize) -> Arc<dyn Transport> {
    let store = Store::connect(address, &ConnectOptions::default()).unwrap();
    connect(&store.prefixed("set"), index, count, LONG).unwrap()
}

fn party<'a>(transport: &'a dyn Transport, processes: &'a [usize], tag: u32) -> Party<'a> {
    Party {
        transport,
        processes,
        channel: Channel::new(tag, &[]),
        end: soon(),
    }
}

fn sum() -> Reduce {
    Reduce::new(DType::F32, Reduction::Sum).unwrap()
}

/// What member `member` of a process holds: small whole numbers, so that sums are exact.
fn values(member: usize, length: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7 + member * 13) % 31) as f32;
    (0..length).map(value).collect()
}

fn bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

#[test]
fn sums_of_every_length_are_right_on_every_process() {
    for (count, members) in [(2, 1), (3, 1), (4, 2)] {
        let processes: Vec<usize> = (0..count).collect();
        among(count, |transport| {
            let transport = &*transport;
            let own = transport.index();
            // Nothing, small, at the limit, pieces of unequal length, several rows.
            for (tag, length) in [0, 1, 7, 4096, 4097, 100_003, 1_300_001]
                .into_iter()
                .enumerate()
            {
                let all: Vec<Vec<f32>> = (0..count * members)
                    .map(|member| values(member, length))
                    .collect();
                let inputs: Vec<&[u8]> = all[own * members..][..members]
                    .iter()
                    .map(|v| bytes(v))
                    .collect();
                let mut outputs = vec![vec![f32::NAN; length]; members];
                let party = party(transport, &processes, tag as u32);
                let results = outputs
                    .iter_mut()
                    .map(|output| bytemuck::cast_slice_mut(output));
                collectives::all_reduce(&party, sum(), &inputs, results.collect()).unwrap();
                for output in outputs {
                    let right = output
                        .iter()
                        .enumerate()
                        .all(|(i, x)| *x == all.iter().map(|v| v[i]).sum::<f32>());
                    assert!(right, "{count} processes, {members} members, {length}");
                }
            }
        });
    }
}

#[test]
fn each_process_gets_its_blocks_of_a_sum() {
    // Blocks in an order that is not the processes', of unequal number and length.
    let lengths = [5, 400_000, 1, 0, 123_457];
    let owners = [2, 0, 2, 1, 0];
    let total: usize = lengths.iter().sum();
    for members in [1, 2] {
        among(3, |transport| {
            let transport = &*transport;
            let own = transport.index();
            let all: Vec<Vec<f32>> = (0..3 * members).map(|m| values(m, total)).collect();
            let inputs: Vec<&[u8]> = all[own * members..][..members]
                .iter()
                .map(|v| bytes(v))
                .collect();
            let mut start = 0;
            let mut blocks = Vec::new();
            for (length, process) in lengths.into_iter().zip(owners) {
                blocks.push(Block {
                    process,
                    range: start * 4..(start + length) * 4,
                });
                start += length;
            }
            let mine = blocks.iter().filter(|block| block.process == own);
            let mut outputs: Vec<(usize, Vec<f32>)> = mine
                .map(|b| (b.range.start / 4, vec![f32::NAN; b.range.len() / 4]))
                .collect();
            let results = outputs
                .iter_mut()
                .map(|(_, output)| bytemuck::cast_slice_mut(output));
            let party = party(transport, &[0, 1, 2], 1);
            collectives::reduce_scatter(&party, sum(), &inputs, &blocks, results.collect())
                .unwrap();
            for (start, output) in outputs {
                let right = output
                    .iter()
                    .enumerate()
                    .all(|(i, x)| *x == all.iter().map(|v| v[start + i]).sum::<f32>());
                assert!(right, "block at {start}, {members} members");
            }
        });
    }
}

#[test]
fn messages_arrive_in_order_and_calls_do_not_mix() {
    among(2, |transport| {
        let transport = &*transport;
        let (own, other) = (transport.index(), 1 - transport.index());
        std::thread::scope(|scope| {
            for tag in 0..8_u32 {
                scope.spawn(move || {
                    for round in 0..20_u8 {
                        let of = |process: usize, k: u8| [process as u8, tag as u8, round, k];
                        let sends = [0, 1, 2].map(|k| of(own, k));
                        let sends: Vec<(usize, &[u8])> =
                            sends.iter().map(|s| (other, &s[..])).collect();
                        let mut got = [[0; 4]; 3];
                        let receives = got.iter_mut().map(|g| (other, &mut g[..])).collect();
                        let party = party(transport, &[0, 1], tag);
                        collectives::exchange(&party, &sends, receives).unwrap();
                        assert_eq!(got, [0, 1, 2].map(|k| of(other, k)));
                    }
                });
            }
        });
    });
}

#[test]
fn an_abort_wakes_every_waiting_call_and_the_peers() {
    let ends = among(2, |transport| {
        let transport = &*transport;
        let other = 1 - transport.index();
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..4)
                .map(|tag| {
                    scope.spawn(move || {
                        let mut into = [0; 100];
                        let party = party(transport, &[0, 1], tag);
                        collectives::exchange(&party, &[], vec![(other, &mut into)])
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            if transport.index() == 0 {
                transport.abort("rank 1 failed");
            }
            let ends: Vec<_> = waits.into_iter().map(|w| w.join().unwrap()).collect();
            assert!(begun.elapsed() < LONG / 4);
            ends
        })
    });
    assert_eq!(
        ends[0],
        vec![Err(Failure::Aborted("rank 1 failed".into())); 4]
    );
    for end in &ends[1] {
        let lost = matches!(end, Err(Failure::Lost { process: 0, .. }));
        assert!(lost, "{end:?}");
    }
}

#[test]
fn sizes_that_differ_end_at_the_deadline_and_not_in_a_crash() {
    let ends = among(2, |transport| {
        let length = 1000 + transport.index();
        let (input, mut output) = (vec![1_u8; length], vec![0_u8; length]);
        let mut party = party(&*transport, &[0, 1], 1);
        party.end = Instant::now() + Duration::from_millis(500);
        let reduce = Reduce::new(DType::U8, Reduction::Sum).unwrap();
        collectives::all_reduce(&party, reduce, &[&input], vec![&mut output])
    });
    assert!(ends.iter().all(Result::is_err), "{ends:?}");
    let late = |end: &Result<(), Failure>| matches!(end, Err(Failure::Late { .. }));
    assert!(ends.iter().any(late), "{ends:?}");
}

#[test]
fn who_leaves_after_its_part_does_not_disturb_the_others() {
    let ends = among(3, |transport| -> Result<(), Failure> {
        if transport.index() == 0 {
            return Ok(());
        }
        // Long enough for the first to be gone.
        std::thread::sleep(Duration::from_millis(500));
        let (own, mut got) = ([transport.index() as u8], [0]);
        let other = 3 - transport.index();
        let party = party(&*transport, &[1, 2], 1);
        collectives::exchange(&party, &[(other, &own)], vec![(other, &mut got)])?;
        assert_eq!(usize::from(got[0]), other);
        // Who waits for the one that is gone learns it.
        let mut into = [0; 8];
        match collectives::exchange(&party, &[], vec![(0, &mut into)]) {
            Err(Failure::Lost { process: 0, .. }) => Ok(()),
            Err(Failure::Lost { .. }) => Ok(()),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(ends, vec![Ok(()); 3]);
}

#[test]
fn a_process_that_does_not_come_is_a_deadline() {
    let server = Server::bind(&ServerOptions::default()).unwrap();
    let options = ConnectOptions::default();
    let store = Store::connect(&server.address().to_string(), &options).unwrap();
    let error = connect(&store, 0, 2, Duration::from_millis(300)).err();
    assert!(matches!(error, Some(Error::Deadline { .. })), "{error:?}");
}

/// What the tests below run as processes of their own.
const ADDRESS: &str = "XLA_DIST_TEST_STORE";
const BYTES: usize = 64 << 20;

/// Not a test of its own: the other side of the two below, which start it.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let transport = join(&address, 1, 2);
    println!("connected");
    let (input, mut output) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
    let reduce = Reduce::new(DType::U8, Reduction::Sum).unwrap();
    for tag in 0.. {
        let party = party(&*transport, &[0, 1], tag);
        if collectives::all_reduce(&party, reduce, &[&input], vec![&mut output]).is_err() {
            break;
        }
    }
}

/// Reduces with a child process until something goes wrong; `strike` is called after a while, in the
/// middle of a reduction. Returns how it ended, and how long after the strike.
fn until_struck(strike: impl FnOnce(&mut Child) + Send, limit: Duration) -> (Failure, Duration) {
    let server = Server::bind(&ServerOptions::default()).unwrap();
    let address = server.address().to_string();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["transport::tests::child", "--exact", "--nocapture"])
        .env(ADDRESS, &address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let transport = join(&address, 0, 2);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let connected = lines
        .map_while(Result::ok)
        .any(|line| line.ends_with("connected"));
    assert!(connected);
    let (input, mut output) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
    let reduce = Reduce::new(DType::U8, Reduction::Sum).unwrap();
    let end = std::thread::scope(|scope| {
        let striking = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            strike(&mut child);
            Instant::now()
        });
        let failure = (0..)
            .find_map(|tag| {
                let mut party = party(&*transport, &[0, 1], tag);
                party.end = Instant::now() + limit;
                collectives::all_reduce(&party, reduce, &[&input], vec![&mut output]).err()
            })
            .unwrap();
        (failure, striking.join().unwrap().elapsed())
    });
    let _ = child.kill();
    child.wait().unwrap();
    end
}

#[test]
fn a_peer_that_is_killed_ends_the_call_at_once() {
    let (failure, after) = until_struck(|child| child.kill().unwrap(), LONG);
    assert!(
        matches!(failure, Failure::Lost { process: 1, .. }),
        "{failure:?}"
    );
    assert!(after < Duration::from_secs(5), "{after:?}");
}

#[test]
fn a_peer_that_is_stopped_is_late_at_the_deadline() {
    let stop = |child: &mut Child| {
        let pid = child.id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &pid]).status().unwrap();
        assert!(stopped.success());
    };
    let (failure, after) = until_struck(stop, Duration::from_secs(3));
    assert_eq!(failure, Failure::Late { process: 1 });
    assert!(after < Duration::from_secs(10), "{after:?}");
}
