//! What makes no sense is an error at the caller's line, and communicates nothing.

use xla::dist::{self, AllToAllOptions, ReduceOp, Transfer};
use xla::{DType, Error, Result, Tensor};

/// Wrong arguments to every collective.
///
/// # Errors
/// Those of what is right.
pub fn mistakes(rank: usize, world: usize) -> xla::Result<()> {
    let x = Tensor::full([world, 2], rank as i64, DType::F32)?;
    let whole = Tensor::full([2], 1, DType::I64)?;
    let scalar = Tensor::full((), 1, DType::F32)?;
    let even = AllToAllOptions::default();
    let sizes = |sizes: &[usize]| AllToAllOptions {
        input_split_sizes: Some(sizes.to_vec()),
        ..AllToAllOptions::default()
    };

    argument("source", dist::broadcast(&x, world));
    argument("source", dist::broadcast_(&x, world));
    argument("destination", dist::reduce(&x, world, ReduceOp::Sum));
    argument("destination", dist::gather(&x, world));
    argument("source", dist::scatter(&x, None, world));
    let given = [&x; 1];
    let list = (rank != 0).then_some(given.as_slice());
    argument("list", dist::scatter(&x, list, 0));
    argument("source", dist::collective_permute(&x, &[(world, 0)]));
    argument("destination", dist::collective_permute(&x, &[(0, world)]));
    argument(
        "pairs",
        dist::collective_permute(&x, &[(0, 0), (0, world - 1)]),
    );
    let transfer = Transfer {
        tensor: &x,
        source: 0,
        destination: world,
    };
    argument("destination", dist::send_recv(&[transfer]));
    argument("tensors", dist::reduce_scatter(&[], ReduceOp::Sum));
    argument("tensors", dist::all_to_all(&vec![&x; world + 1], &even));
    argument(
        "input_split_sizes",
        dist::all_to_all_single(&x, &sizes(&[])),
    );
    let long = dist::all_to_all_single(&x, &sizes(&vec![usize::MAX; world]));
    argument("input_split_sizes", long);
    let matrix = AllToAllOptions {
        input_split_sizes: Some(vec![1; world]),
        all_split_sizes: Some(vec![vec![1; world]; world + 1]),
        ..AllToAllOptions::default()
    };
    argument("all_split_sizes", dist::all_to_all_single(&x, &matrix));
    argument("bucket_cap_mb", dist::all_gather_bucketed(&[&x], -1.0));
    argument(
        "bucket_cap_mb",
        dist::all_reduce_bucketed(&[&x], ReduceOp::Sum, f64::NAN),
    );
    argument("ranks", dist::new_group(&[]));
    argument("ranks", dist::new_group(&[0, 0]));
    argument("ranks", dist::new_group(&[world]));
    argument("group_size", dist::new_subgroups(0));
    argument("group_size", dist::new_subgroups(world + 1));
    let twice = [vec![0], vec![0]];
    argument("ranks", dist::new_subgroups_by_enumeration(&twice));
    let group = dist::default_group()?;
    argument("global_rank", group.group_rank(world));
    argument("group_rank", group.global_rank(world));

    dtype(dist::all_reduce(&whole, ReduceOp::Mean));
    dtype(dist::all_reduce(&x, ReduceOp::And));
    dtype(dist::all_reduce_(&x, ReduceOp::Or));
    dtype(dist::reduce(&whole, 0, ReduceOp::Mean));
    dtype(dist::reduce_scatter_tensor(&x, 0, ReduceOp::And));
    if world > 1 {
        let mut mixed = vec![&x; world];
        mixed[world - 1] = &whole;
        dtype(dist::reduce_scatter(&mixed, ReduceOp::Sum));
        dtype(dist::all_to_all(&mixed, &even));
        let narrow = x.narrow(1, 0, 1)?;
        mixed[world - 1] = &narrow;
        shape(dist::reduce_scatter(&mixed, ReduceOp::Sum));
        shape(dist::all_to_all(&mixed, &even));
        shape(dist::all_to_all(&mixed, &sizes(&vec![world; world])));
        let indivisible = Tensor::ones([world + 1], DType::F32)?;
        shape(dist::reduce_scatter_tensor(&indivisible, 0, ReduceOp::Sum));
        shape(dist::reduce_scatter_tensor(&indivisible, 0, ReduceOp::Max));
        shape(dist::reduce_scatter_many(&[&indivisible], ReduceOp::Sum));
        shape(dist::all_to_all_single(&indivisible, &even));
        shape(dist::all_to_all_tensor(&indivisible, 0, 0));
    }
    axis(dist::all_gather_into_tensor(&x, 2));
    axis(dist::all_gather_into_tensor(&scalar, 0));
    axis(dist::all_gather_many(&[&scalar]));
    axis(dist::reduce_scatter_tensor(&x, -3, ReduceOp::Sum));
    axis(dist::all_to_all_single(&scalar, &even));
    axis(dist::all_to_all_tensor(&x, 0, 2));
    dist::barrier()
}

/// The error, which says where it was called.
fn error<T>(result: Result<T>) -> Error {
    let error = result.err().expect("a mistake is an error");
    assert!(error.to_string().contains("mistakes.rs"), "{error}");
    error
}

fn argument<T>(name: &str, result: Result<T>) {
    let error = error(result);
    let right = matches!(&error, Error::Argument { argument, .. } if *argument == name);
    assert!(right, "{name}: {error:?}");
}

fn dtype<T>(result: Result<T>) {
    let error = error(result);
    assert!(matches!(error, Error::DTypeMismatch { .. }), "{error:?}");
}

fn shape<T>(result: Result<T>) {
    let error = error(result);
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error:?}");
}

fn axis<T>(result: Result<T>) {
    let error = error(result);
    assert!(matches!(error, Error::Axis { .. }), "{error:?}");
}
