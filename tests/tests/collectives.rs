//! Every collective on threads: 1, 2, 4 and 8 replicas, against closed forms.

use tests::collectives as cases;
use tests::{replicas, with_devices};

/// Runs a check on every rank of worlds of 1, 2, 4 and 8.
fn worlds(case: fn(usize, usize) -> xla::Result<()>) {
    with_devices(8, || {
        for world in [1, 2, 4, 8] {
            replicas(world, |rank| case(rank, world));
        }
    });
}

#[test]
fn reductions_have_their_closed_forms() {
    worlds(cases::reductions);
}

#[test]
fn what_is_moved_arrives() {
    worlds(cases::movement);
}

#[test]
fn one_rank_sends_or_receives() {
    worlds(cases::rooted);
}

#[test]
fn many_tensors_travel_in_buckets() {
    worlds(cases::many);
}

#[test]
fn gradients_go_back_the_way_the_values_came() {
    worlds(cases::gradients);
}

#[test]
fn parts_may_differ_in_length() {
    worlds(cases::uneven);
}

#[test]
fn mistakes_are_errors_at_the_call() {
    worlds(cases::mistakes);
}
