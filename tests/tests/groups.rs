//! Groups of some of the ranks, on threads.

use tests::collectives as cases;
use tests::{replicas, with_devices};
use xla::Error;
use xla::dist;

fn worlds(case: fn(usize, usize) -> xla::Result<()>) {
    with_devices(8, || {
        for world in [1, 2, 4, 8] {
            replicas(world, |rank| case(rank, world));
        }
    });
}

#[test]
fn even_and_odd_ranks_have_groups_of_their_own() {
    worlds(cases::groups);
}

#[test]
fn a_partition_shares_the_worlds_programs() {
    worlds(cases::partitions);
}

#[test]
fn a_model_may_use_two_groups() {
    worlds(cases::two_groups_in_one_model);
}

#[test]
fn different_ranks_in_one_turn_are_an_error_on_all() {
    with_devices(2, || {
        let seen = replicas(2, |rank| {
            let ranks = if rank == 0 { vec![0, 1] } else { vec![1] };
            Ok(dist::new_group(&ranks).err())
        });
        for error in seen.into_iter().flatten() {
            let text = error.to_string();
            let known = matches!(
                error,
                Error::ProcessGroup { .. } | Error::ReplicaLeft { rank: 1, .. }
            );
            assert!(known, "{text}");
        }
    });
}
