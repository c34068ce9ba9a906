//! Runs the replicas of a plan, each on its thread, and reports how each ended.

use crate::supervise::{Failure, Outcome, Supervisor};
use crate::{BoxError, Plan};
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

/// Runs every replica of the plan to its end.
pub(crate) fn run<F, T, E>(plan: &Plan, deadline: Duration, f: F) -> Vec<Outcome<T>>
where
    F: Fn(usize) -> Result<T, E> + Send + Sync,
    T: Send,
    E: Into<BoxError>,
{
    let launch = Launch::new(plan.mode, plan.world_size(), deadline);
    let ended = AtomicUsize::new(0);
    let replica = |rank: usize| {
        let context = ReplicaContext::new(Arc::clone(&launch), plan.devices[rank], rank);
        one(&context, &ended, &f)
    };
    if plan.mode == Mode::Debug {
        return vec![replica(0)];
    }
    let _active = ActiveLaunch::new();
    let scopes = metrics::inherit();
    let (report, supervisor) = Supervisor::new(plan.world_size(), deadline);
    thread::scope(|scope| {
        for rank in 0..plan.world_size() {
            let (report, scopes, replica) = (report.clone(), scopes.clone(), &replica);
            let started = thread::Builder::new()
                .name(format!("replica-{rank}"))
                .stack_size(STACK)
                .spawn_scoped(scope, {
                    let report = report.clone();
                    move || {
                        scopes.adopt();
                        report.send(replica(rank));
                    }
                });
            if let Err(error) = started {
                let failure = Failure::new(format!("its thread could not be started: {error}"));
                launch.leave(rank, Standing::Failed(failure.message().to_owned()));
                let order = ended.fetch_add(1, Ordering::Relaxed);
                report.send(Outcome {
                    rank,
                    order,
                    result: Err(failure),
                });
            }
        }
        drop(report);
        supervisor.collect()
    })
}

/// Runs one replica on the calling thread and tells the launch how it ended.
fn one<F, T, E>(context: &Arc<ReplicaContext>, ended: &AtomicUsize, f: &F) -> Outcome<T>
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
    // Numbered before the others can know, so that a failure caused by this one counts as later.
    let order = ended.fetch_add(1, Ordering::AcqRel);
    context.launch().leave(
        rank,
        match &result {
            Ok(_) => Standing::Left,
            Err(failure) => Standing::Failed(failure.message().to_owned()),
        },
    );
    Outcome {
        rank,
        order,
        result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::first_failure;
    use xla_core::{Device, Error};
    use xla_runtime::context;

    fn plan(mode: Mode, n: usize) -> Plan {
        Plan {
            mode,
            devices: (0..n).map(Device::new).collect(),
        }
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
                assert_eq!(message, "panicked: rank 1 gives up");
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
