//! Runs the replicas of a plan, each on its thread, and reports how each ended.

use crate::failure::{Failure, Outcome};
use crate::{BoxError, Plan, panics};
use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use xla_runtime::context::{self, ActiveLaunch, Launch, Mode, ReplicaContext, Standing};
use xla_runtime::metrics;

/// A replica gets the stack that a main thread has by default, since code written for one moves
/// to the other.
const STACK: usize = 8 << 20;

/// Runs every replica that the plan has in this process to its end. `ended` hears of each, before
/// the others can.
pub(crate) fn run<F, T, E>(
    plan: &Plan,
    deadline: Duration,
    f: F,
    ended: impl Fn(&Outcome<T>) + Sync,
) -> Vec<Outcome<T>>
where
    F: Fn(usize) -> Result<T, E> + Send + Sync,
    T: Send,
    E: Into<BoxError>,
{
    panics::note_places();
    let launch = Launch::spanning(plan.mode, plan.topology, deadline);
    let ranks = plan.topology.local_ranks();
    let count = AtomicUsize::new(0);
    let replica = |rank: usize| {
        let device = plan.device(rank - ranks.start);
        let context = ReplicaContext::new(Arc::clone(&launch), device, rank);
        one(&context, &count, &f, &ended)
    };
    if matches!(plan.mode, Mode::Debug | Mode::Spmd) {
        return vec![replica(ranks.start)];
    }
    let _active = ActiveLaunch::new();
    let scopes = metrics::inherit();
    let (report, outcomes) = bounded(ranks.len());
    thread::scope(|scope| {
        for rank in ranks.clone() {
            let (scopes, replica) = (scopes.clone(), &replica);
            let started = thread::Builder::new()
                .name(format!("replica-{rank}"))
                .stack_size(STACK)
                .spawn_scoped(scope, {
                    let report = report.clone();
                    move || {
                        scopes.adopt();
                        // Nobody takes reports any more only if the collector panicked.
                        let _ = report.send(replica(rank));
                    }
                });
            if let Err(error) = started {
                let failure = Failure::new(format!("its thread could not be started: {error}"));
                let outcome = end(&launch, rank, &count, Err(failure), &ended);
                let _ = report.send(outcome);
            }
        }
        drop(report);
        collect(&outcomes, ranks.clone(), deadline)
    })
}

/// Runs one replica on the calling thread and tells how it ended.
fn one<F, T, E>(
    context: &Arc<ReplicaContext>,
    count: &AtomicUsize,
    f: &F,
    ended: &(impl Fn(&Outcome<T>) + Sync),
) -> Outcome<T>
where
    F: Fn(usize) -> Result<T, E>,
    E: Into<BoxError>,
{
    let rank = context.rank();
    let entered = context.enter();
    // The function is called once and its captures are only read through `&F`; whatever state a
    // panic left behind is behind the user's own locks, which are poisoned.
    let result = match catch_unwind(AssertUnwindSafe(|| f(rank))) {
        // An error of the last step, which nobody has waited for, must not go unseen.
        Ok(Ok(value)) => match context::await_work() {
            Ok(()) => Ok(value),
            Err(error) => Err(Failure::of(rank, &error)),
        },
        Ok(Err(error)) => Err(Failure::of(rank, &*error.into())),
        Err(payload) => Err(Failure::panic(&*payload)),
    };
    drop(entered);
    end(context.launch(), rank, count, result, ended)
}

/// Tells everybody how a replica ended, those first who judge it.
fn end<T>(
    launch: &Launch,
    rank: usize,
    count: &AtomicUsize,
    result: Result<T, Failure>,
    ended: &(impl Fn(&Outcome<T>) + Sync),
) -> Outcome<T> {
    let standing = match &result {
        Ok(_) => Standing::Left,
        Err(failure) => Standing::Failed(failure.message().to_owned()),
    };
    // Numbered before the others can know, so that a failure caused by this one counts as later.
    let outcome = Outcome {
        rank,
        order: count.fetch_add(1, Ordering::AcqRel),
        result,
    };
    ended(&outcome);
    launch.leave(rank, standing);
    outcome
}

/// Waits for every replica; once one has failed, names those that still run each time `patience`
/// has passed.
fn collect<T>(
    outcomes: &Receiver<Outcome<T>>,
    ranks: std::ops::Range<usize>,
    patience: Duration,
) -> Vec<Outcome<T>> {
    let mut ended: Vec<Outcome<T>> = Vec::with_capacity(ranks.len());
    loop {
        // A healthy program may run for weeks; only after a failure is waiting suspicious.
        let failed = ended.iter().any(|outcome| outcome.result.is_err());
        let next = if failed {
            outcomes.recv_timeout(patience)
        } else {
            outcomes.recv().map_err(RecvTimeoutError::from)
        };
        match next {
            Ok(outcome) => ended.push(outcome),
            Err(RecvTimeoutError::Disconnected) => return ended,
            Err(RecvTimeoutError::Timeout) => {
                let running: Vec<usize> = ranks
                    .clone()
                    .filter(|rank| ended.iter().all(|outcome| outcome.rank != *rank))
                    .collect();
                tracing::warn!(?running, "a replica has failed; these still run");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::first_failure;
    use crate::plan::Found;
    use xla_core::{Device, Error};
    use xla_runtime::context::{self, Topology};

    fn plan(mode: Mode, n: usize) -> Plan {
        Plan {
            mode,
            start: None,
            found: Found::Nothing,
            topology: Topology::one_process(n),
        }
    }

    /// Every value by rank, or the first failure.
    fn run<T, E>(
        plan: &Plan,
        deadline: Duration,
        f: impl Fn(usize) -> Result<T, E> + Send + Sync,
    ) -> Vec<Outcome<T>>
    where
        T: Send,
        E: Into<BoxError>,
    {
        super::run(plan, deadline, f, |_| ())
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn each_replica_has_its_rank_device_and_thread() {
        let caller = thread::current().id();
        let seen = first_failure(run(&plan(Mode::Threads, 4), SOON, |rank| {
            let context = context::current("test")?;
            assert_ne!(thread::current().id(), caller);
            assert_eq!(
                thread::current().name(),
                Some(format!("replica-{rank}").as_str())
            );
            Ok::<_, Error>((context.rank(), context.world_size(), context.device(), rank))
        }));
        let expected: Vec<_> = (0..4).map(|i| (i, 4, Device::new(i), i)).collect();
        assert_eq!(seen.unwrap(), expected);
    }

    #[test]
    fn ranks_count_on_from_those_of_earlier_processes() {
        let part = Plan {
            topology: Topology {
                processes: 3,
                process_index: 1,
                replicas: 2,
            },
            ..plan(Mode::External, 2)
        };
        let seen = first_failure(run(&part, SOON, |rank| {
            let context = context::current("test")?;
            Ok::<_, Error>((rank, context.world_size(), context.device()))
        }));
        let expected = [(2, 6, Device::new(0)), (3, 6, Device::new(1))];
        assert_eq!(seen.unwrap(), expected);
    }

    #[test]
    fn debug_mode_stays_on_the_calling_thread() {
        let caller = thread::current().id();
        let seen = first_failure(run(&plan(Mode::Debug, 1), SOON, |rank| {
            let context = context::current("test")?;
            Ok::<_, Error>((rank, context.world_size(), thread::current().id()))
        }));
        assert_eq!(seen.unwrap(), [(0, 1, caller)]);
        assert!(!context::in_launch());
    }

    #[test]
    fn a_failing_replica_wakes_who_waits_and_its_error_is_the_launchs() {
        let failed = first_failure(run(&plan(Mode::Threads, 4), SOON, |rank| {
            if rank == 2 {
                return Err("disk full".to_string());
            }
            let launch = Arc::clone(
                context::current("test")
                    .map_err(|e| e.to_string())?
                    .launch(),
            );
            let standing = launch.wait_until("a test", |members| {
                (members[2] != Standing::Running).then(|| members[2].clone())
            });
            assert_eq!(standing.unwrap(), Standing::Failed("disk full".into()));
            Ok(())
        }));
        match failed {
            Err(Error::ReplicaFailed { rank: 2, message }) => assert_eq!(message, "disk full"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_panic_is_that_ranks_error_and_the_next_run_works() {
        let all = plan(Mode::Threads, 2);
        let failed = first_failure(run(&all, SOON, |rank| {
            assert!(rank != 1, "rank {rank} gives up");
            Ok::<_, Error>(())
        }));
        match failed {
            Err(Error::ReplicaFailed { rank: 1, message }) => {
                let line = format!("panicked: rank 1 gives up (at {}:", file!());
                assert!(message.starts_with(&line), "{message}");
            }
            other => panic!("{other:?}"),
        }
        assert!(first_failure(run(&all, SOON, |_| Ok::<_, Error>(()))).is_ok());
    }

    #[test]
    fn replicas_continue_the_callers_metrics_scopes() {
        let _scope = metrics::Scope::new();
        let all = plan(Mode::Threads, 2);
        let handed = first_failure(run(&all, SOON, |_| {
            Ok::<_, Error>(format!("{:?}", metrics::inherit()))
        }));
        let own = format!("{:?}", metrics::inherit());
        assert_eq!(handed.unwrap(), [own.clone(), own]);
    }
}
