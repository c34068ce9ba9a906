//! Waiting with deadlines, from one thread and several.

mod common;

use common::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xla_core::{Error, Literal};

#[test]
fn a_deadline_passes_and_the_work_goes_on() {
    let client = client(1);
    let n = 2048;
    let program = matmul(&client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    let run = program.execute(&[&ones], &on(0)).unwrap();
    let start = Instant::now();
    let early = run.done.wait(Duration::from_millis(1));
    let waited = start.elapsed();
    assert!(matches!(early, Err(Error::Deadline { .. })), "{early:?}");
    assert!(waited >= Duration::from_millis(1), "{waited:?}");
    assert!(run.done.poll().is_none() && !run.done.is_ready().unwrap());
    run.done.wait(LONG).unwrap();
    assert!(matches!(run.done.poll(), Some(Ok(()))));
    // Ready now, so even no time at all is enough.
    run.done.wait(Duration::ZERO).unwrap();
}

#[test]
fn many_threads_wait_for_one_event() {
    let client = client(1);
    let n = 1024;
    let program = matmul(&client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    let run = Arc::new(program.execute(&[&ones], &on(0)).unwrap());
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let run = Arc::clone(&run);
            std::thread::spawn(move || {
                run.done.wait(LONG)?;
                run.outputs[0].ready()?.wait(Duration::MAX)
            })
        })
        .collect();
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
}

#[test]
fn events_may_be_dropped_unwaited_for() {
    let client = client(1);
    let n = 512;
    let program = matmul(&client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    for _ in 0..50 {
        let run = program.execute(&[&ones], &on(0)).unwrap();
        let _ = run.done.wait(Duration::ZERO);
    }
    let last = program.execute(&[&ones], &on(0)).unwrap();
    assert_eq!(read(&last.outputs[0]), vec![n as f32; n * n]);
}
