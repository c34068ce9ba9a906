//! Closures that run after a step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tests::{replicas, with_devices};
use xla::metrics::Scope;
use xla::{Error, Tensor};

#[test]
fn they_run_once_after_the_next_sync_in_order() {
    with_devices(1, || {
        let seen: Arc<Mutex<Vec<(i32, f32)>>> = Arc::default();
        let note = |tag: i32, value: &Tensor| {
            let seen = Arc::clone(&seen);
            xla::add_step_closure(value.clone(), move |value| {
                seen.lock().unwrap().push((tag, value.item()?));
                Ok(())
            });
        };
        let scope = Scope::new();
        let x = Tensor::full([2], 3.0, ()).unwrap();
        let total = x.sum((), false).unwrap();
        note(1, &total);
        let larger = total.mul(2.0).unwrap();
        note(2, &larger);
        assert!(seen.lock().unwrap().is_empty());
        xla::sync().unwrap();
        assert_eq!(*seen.lock().unwrap(), [(1, 6.0), (2, 12.0)]);
        // Reading did not cut the step.
        assert_eq!(scope.executions(), 1);
        xla::sync().unwrap();
        assert_eq!(seen.lock().unwrap().len(), 2);
        // A call of a compiled function is a step as well.
        let mut double = xla::compile_fn(|x: Tensor| x.mul(2.0));
        note(3, &larger);
        double.call(&x).unwrap();
        assert_eq!(seen.lock().unwrap().last(), Some(&(3, 12.0)));
    });
}

#[test]
fn an_error_is_that_of_the_sync_and_stops_no_other() {
    with_devices(1, || {
        let ran = Arc::new(AtomicUsize::new(0));
        for fails in [false, true, false] {
            let ran = Arc::clone(&ran);
            xla::add_step_closure(fails, move |fails| {
                ran.fetch_add(1, Ordering::Relaxed);
                match fails {
                    true => Err(Error::argument("closure", "x", "better", "worse")),
                    false => Ok(()),
                }
            });
        }
        let synced = xla::sync().map(drop);
        assert!(
            matches!(synced, Err(Error::Argument { op: "closure", .. })),
            "{synced:?}"
        );
        assert_eq!(ran.load(Ordering::Relaxed), 3);
        xla::sync().unwrap();
    });
}

#[test]
fn asynchronous_ones_run_elsewhere_and_are_waited_for() {
    with_devices(2, || {
        let sums = replicas(2, |rank| {
            let (main, device) = (std::thread::current().id(), xla::device()?);
            let seen: Arc<Mutex<Vec<f32>>> = Arc::default();
            for step in 0..4 {
                let value = Tensor::full([8], (rank * 10 + step) as f64, ())?;
                let total = value.sum((), false)?;
                let seen = Arc::clone(&seen);
                xla::add_step_closure_async(total, move |total| {
                    assert_ne!(std::thread::current().id(), main);
                    assert_eq!(xla::device()?, device);
                    seen.lock().unwrap().push(total.item()?);
                    Ok(())
                });
                xla::sync()?;
            }
            xla::sync()?.wait()?;
            let seen = seen.lock().unwrap().clone();
            Ok(seen)
        });
        assert_eq!(sums[0], [0.0, 8.0, 16.0, 24.0]);
        assert_eq!(sums[1], [80.0, 88.0, 96.0, 104.0]);
        // Errors and panics come to light.
        xla::add_step_closure_async((), |()| Err(Error::argument("late", "x", "a", "b")));
        let waited = xla::sync().and_then(|handle| handle.wait());
        assert!(
            matches!(waited, Err(Error::Argument { op: "late", .. })),
            "{waited:?}"
        );
        xla::add_step_closure_async((), |()| panic!("as the test asks"));
        let waited = xla::sync().and_then(|handle| handle.wait());
        assert!(matches!(waited, Err(Error::Argument { .. })), "{waited:?}");
        xla::sync().unwrap().wait().unwrap();
    });
}
