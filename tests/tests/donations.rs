//! What is not overwritten for the sake of another replica or of what comes later, and why.

use tests::{multiples, replicas, with_devices};
use xla::debug::{NotDonated, donations};
use xla::dist::{self, ReduceOp};
use xla::{Result, Tensor};

/// A program is one for all replicas, and what one of them does not write over none does.
#[test]
fn a_value_that_another_replica_does_not_replace_is_named() {
    with_devices(2, || {
        replicas(2, |rank| {
            let state = Tensor::full([256], 1.0, ())?;
            xla::sync()?.wait()?;
            let ((sum, state), audit) = donations(|| {
                let sum = dist::all_reduce(&multiples(rank)?, ReduceOp::Sum)?;
                state.mul_(2.0)?;
                Ok((sum, (rank == 0).then_some(state)))
            })?;
            assert_eq!(sum.to_vec::<f32>()?, [3.0, 6.0]);
            assert_eq!(audit.donated, 0, "{audit}");
            if let Some(state) = state {
                assert_eq!(state.to_vec::<f32>()?, [2.0; 256]);
                let other = |missed: &&xla::debug::MissedDonation| {
                    missed.reason == NotDonated::OtherReplica && missed.bytes == 1024
                };
                assert_eq!(audit.missed.iter().filter(other).count(), 1, "{audit}");
                assert!(audit.to_string().contains("on all replicas"), "{audit}");
            }
            // The same tensors on all replicas: each is written over.
            let ((), audit) = donations(|| {
                let total = dist::all_reduce(&sum, ReduceOp::Sum)?;
                sum.mul_(&total)?;
                Ok(())
            })?;
            assert_eq!(audit.donated, 1, "{audit}");
            assert_eq!(sum.to_vec::<f32>()?, [18.0, 72.0]);
            Ok(())
        });
    });
}

/// A replica that is ahead runs what the others have recorded too; its change comes in the rest.
#[test]
fn a_value_that_is_changed_only_later_is_named() {
    with_devices(2, || {
        replicas(2, |rank| {
            let state = Tensor::full([256], 1.0, ())?;
            xla::sync()?.wait()?;
            let (sum, audit) = donations(|| {
                let sum = dist::all_reduce(&state, ReduceOp::Sum)?;
                if rank == 1 {
                    xla::sync()?;
                }
                state.add_(1.0)?;
                Ok(sum)
            })?;
            assert_eq!(sum.to_vec::<f32>()?, [2.0; 256]);
            assert_eq!(state.to_vec::<f32>()?, [2.0; 256]);
            let later = |missed: &&xla::debug::MissedDonation| {
                missed.reason == NotDonated::ReadLater && missed.bytes == 1024
            };
            let found = audit.missed.iter().filter(later).count();
            assert_eq!(found, usize::from(rank == 0), "rank {rank}: {audit}");
            Ok(())
        });
    });
}

/// The state of a compiled function is overwritten at each call.
#[test]
fn a_compiled_function_leaves_no_memory_behind() {
    with_devices(1, || {
        const N: usize = 1000;
        let live = || -> Result<u64> {
            xla::sync()?.wait()?;
            xla_runtime::Client::global()?.live_bytes(0)
        };
        let run = || -> Result<()> {
            let mut count = xla::compile(|(total, last): &mut (Tensor, Tensor), x: Tensor| {
                total.add_(&x)?;
                last.copy_(&x)?;
                total.mean((), false)
            })
            .full_graph(true)
            .verify_every(0);
            let mut state = (Tensor::zeros([1024], ())?, Tensor::zeros([1024], ())?);
            let x = Tensor::ones([1024], ())?;
            for _ in 0..20 {
                count.call(&mut state, x.clone())?;
            }
            let before = live()?;
            let (_, audit) = donations(|| count.call(&mut state, x.clone()))?;
            assert_eq!(audit.donated, 1, "{audit}");
            let mut largest = None;
            for _ in 0..N {
                largest = Some(count.call(&mut state, x.clone())?);
            }
            let largest = largest.map(|largest| largest.item::<f32>()).transpose()?;
            assert_eq!(largest, Some(1021.0));
            assert_eq!(live()?, before);
            assert_eq!(count.recordings(), 1);
            assert_eq!(state.0.to_vec::<f32>()?, [1021.0; 1024]);
            assert_eq!(state.1.to_vec::<f32>()?, [1.0; 1024]);
            Ok(())
        };
        run().unwrap();
    });
}
