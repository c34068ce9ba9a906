//! `all_to_all` of parts of different lengths.

use super::Checks;
use xla::dist::{self, AllToAllOptions, ReduceOp};
use xla::{DType, Error, Tensor};

/// How much rank `from` sends to rank `to`: some nothing at all.
fn length(from: usize, to: usize) -> usize {
    (from + 2 * to) % 4
}

/// Sizes asked for and given, lists, gradients, and contradictions.
///
/// # Errors
/// Those of the collectives.
pub fn uneven(rank: usize, world: usize) -> xla::Result<()> {
    let sent: Vec<usize> = (0..world).map(|to| length(rank, to)).collect();
    let received: Vec<usize> = (0..world).map(|from| length(from, rank)).collect();
    let matrix = (0..world).map(|from| (0..world).map(|to| length(from, to)).collect());
    // Rows of two: 10 · source + destination, and its half.
    let value = |from: usize, to: usize| (10 * from + to) as f64;
    let row = |v: f64| [v, v / 2.0];
    let rows = (0..world).flat_map(|to| std::iter::repeat_n(row(value(rank, to)), sent[to]));
    let rows: Vec<f32> = rows.flatten().map(|v| v as f32).collect();
    let x = Tensor::from_slice(&rows, [rows.len() / 2, 2], ())?;
    let expected: Vec<f64> = (0..world)
        .flat_map(|from| std::iter::repeat_n(row(value(from, rank)), received[from]))
        .flatten()
        .collect();
    for options in [
        AllToAllOptions {
            input_split_sizes: Some(sent.clone()),
            output_split_sizes: Some(received.clone()),
            ..AllToAllOptions::default()
        },
        AllToAllOptions {
            input_split_sizes: Some(sent.clone()),
            ..AllToAllOptions::default()
        },
        AllToAllOptions {
            all_split_sizes: Some(matrix.collect()),
            ..AllToAllOptions::default()
        },
    ] {
        let mut checks = Checks::default();
        let leaf = x.detach()?.requires_grad_(true)?;
        let y = dist::all_to_all_single(&leaf, &options)?;
        assert_eq!(y.dims(), [expected.len() / 2, 2]);
        checks.expect("what came", &y, expected.clone());
        // Rank r weighs what it got by r + 1.
        let loss = (&y.sum((), false)? * (rank as f64 + 1.0))?;
        loss.backward()?;
        let gradient = leaf.grad().expect("a leaf that was used");
        let weights = (0..world).flat_map(|to| vec![to as f64 + 1.0; 2 * sent[to]]);
        checks.expect("the gradient", &gradient, weights);
        checks.verify()?;
        // The world goes on.
        let sum = dist::all_reduce(&Tensor::ones([1], DType::F32)?, ReduceOp::Sum)?;
        assert_eq!(sum.to_vec::<f32>()?, [world as f32]);
    }
    let parts = x.split_with_sizes(&sent, 0)?;
    let parts: Vec<&Tensor> = parts.iter().collect();
    let options = AllToAllOptions {
        output_split_sizes: Some(received.clone()),
        ..AllToAllOptions::default()
    };
    let came = dist::all_to_all(&parts, &options)?;
    let mut checks = Checks::default();
    for (from, part) in came.iter().enumerate() {
        assert_eq!(part.dims(), [received[from], 2]);
        let expected = std::iter::repeat_n(row(value(from, rank)), received[from]).flatten();
        checks.expect("a part", part, expected);
    }
    checks.verify()?;
    // What contradicts what is sent is the same error on every rank.
    let wrong = AllToAllOptions {
        input_split_sizes: Some(sent),
        output_split_sizes: Some(
            received
                .iter()
                .map(|n| n + usize::from(rank == 0))
                .collect(),
        ),
        ..AllToAllOptions::default()
    };
    let error = dist::all_to_all_single(&x, &wrong).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Argument { argument: "output_split_sizes", expected, .. }
                if expected.contains("rank 0")
        ),
        "{error}"
    );
    assert!(error.to_string().contains("uneven.rs"), "{error}");
    dist::barrier()
}
