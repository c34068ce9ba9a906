//! `all_to_all` of parts of different lengths, padded to one.

use super::{AllToAllOptions, all_gather, all_to_all, list as lists};
use crate::group::{Members, ProcessGroup, fresh};
use xla_core::{DType, Error, Result};
use xla_lazy::{Tensor, no_grad};

const NAME: &str = "all_to_all";

/// Row `i`: how much member `i` sends to each.
type Sizes = Vec<Vec<usize>>;

/// One tensor for each member, and what came from each.
pub(super) fn list(
    group: &ProcessGroup,
    members: Option<&Members>,
    tensors: &[&Tensor],
    options: &AllToAllOptions,
) -> Result<Vec<Tensor>> {
    lists::check_count(NAME, tensors, group.size())?;
    lists::check_dtypes(NAME, tensors)?;
    let rest = |t: &Tensor| t.dims().get(1..).map(<[usize]>::to_vec);
    for tensor in tensors {
        if tensor.rank() == 0 || rest(tensor) != rest(tensors[0]) {
            let expected = format!(
                "{} as of the first tensor, but for the first axis",
                tensors[0].shape()
            );
            return Err(Error::shape(NAME, expected, tensor.shape()));
        }
    }
    let lengths: Vec<usize> = tensors.iter().map(|t| t.dims()[0]).collect();
    if let Some(sizes) = options
        .input_split_sizes
        .as_ref()
        .filter(|s| **s != lengths)
    {
        let expected = format!("{lengths:?}, the tensors' lengths");
        return Err(Error::argument(
            NAME,
            "input_split_sizes",
            expected,
            format!("{sizes:?}"),
        ));
    }
    let options = AllToAllOptions {
        input_split_sizes: Some(lengths),
        ..options.clone()
    };
    let all = Tensor::cat(tensors, 0)?;
    let (received, sizes) = exchanged(group, members, &all, &options)?;
    received.split_with_sizes(&sizes, 0)
}

/// What came from the other members, and how much of it from each.
pub(super) fn exchanged(
    group: &ProcessGroup,
    members: Option<&Members>,
    tensor: &Tensor,
    options: &AllToAllOptions,
) -> Result<(Tensor, Vec<usize>)> {
    group.check_replicas(NAME, "pad the parts to one length")?;
    let own = own_sizes(group, tensor, options)?;
    let sizes = match &options.all_split_sizes {
        Some(sizes) => given(group, sizes, &own, options)?,
        None => asked(group, members, own, options)?,
    };
    let Some(members) = members else {
        return Ok((fresh(tensor)?, vec![tensor.dims()[0]]));
    };
    let (me, count) = (group.position().unwrap_or(0), group.size());
    let received: Vec<usize> = sizes.iter().map(|row| row[me]).collect();
    let longest = sizes.iter().flatten().copied().max().unwrap_or(0);
    let padded = longest.next_power_of_two();
    let mut dims = tensor.dims().to_vec();
    dims[0] = padded;
    let mut start = 0;
    let mut blocks = Vec::with_capacity(count);
    for &len in &sizes[me] {
        let part = tensor.narrow(0, start, len)?;
        start += len as i64;
        let mut fill = vec![0_i64; 2 * dims.len()];
        // The last pair of `pad` is the first axis.
        fill[2 * dims.len() - 1] = (padded - len) as i64;
        blocks.push(part.pad(fill, 0.0)?);
    }
    let sent = Tensor::cat(&blocks.iter().collect::<Vec<_>>(), 0)?;
    let came = all_to_all::record(members, &sent, 0, 0, true)?;
    let mut parts = Vec::with_capacity(count);
    for (i, &len) in received.iter().enumerate() {
        parts.push(came.narrow(0, (i * padded) as i64, len)?);
    }
    let joined = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
    Ok((joined, received))
}

/// How much this member sends to each.
fn own_sizes(
    group: &ProcessGroup,
    tensor: &Tensor,
    options: &AllToAllOptions,
) -> Result<Vec<usize>> {
    let (len, count) = (tensor.dims()[0], group.size());
    let row = match (&options.input_split_sizes, &options.all_split_sizes) {
        (Some(row), _) => Some(row),
        (None, Some(all)) => group.position().and_then(|me| all.get(me)),
        (None, None) => None,
    };
    let sizes = match row {
        Some(row) => row.clone(),
        None => vec![len / count; count],
    };
    let sum = sizes.iter().fold(0, |sum: usize, &n| sum.saturating_add(n));
    if sizes.len() != count || sum != len {
        let expected = format!("{count} sizes, one for each member, that sum to {len}");
        return Err(Error::argument(
            NAME,
            "input_split_sizes",
            expected,
            format!("{sizes:?}"),
        ));
    }
    Ok(sizes)
}

/// The sizes that the caller gave for all members.
fn given(
    group: &ProcessGroup,
    sizes: &Sizes,
    own: &[usize],
    options: &AllToAllOptions,
) -> Result<Sizes> {
    let count = group.size();
    let me = group.position().unwrap_or(0);
    let square = sizes.len() == count && sizes.iter().all(|row| row.len() == count);
    if !square || sizes[me] != own {
        let expected = format!("{count} rows of {count} sizes, with {own:?} in row {me}");
        return Err(Error::argument(
            NAME,
            "all_split_sizes",
            expected,
            format!("{sizes:?}"),
        ));
    }
    if let Some(output) = &options.output_split_sizes {
        check_output(group, sizes, me, output)?;
    }
    Ok(sizes.clone())
}

/// Asks the other members for theirs. All see the same, so a contradiction is an error on all.
fn asked(
    group: &ProcessGroup,
    members: Option<&Members>,
    own: Vec<usize>,
    options: &AllToAllOptions,
) -> Result<Sizes> {
    let count = group.size();
    let Some(members) = members else {
        if let Some(output) = &options.output_split_sizes {
            check_output(group, std::slice::from_ref(&own), 0, output)?;
        }
        return Ok(vec![own]);
    };
    // How much is sent, and how much expected; -1 where nothing is.
    let output = match &options.output_split_sizes {
        Some(sizes) if sizes.len() == count => sizes.iter().map(|n| *n as i64).collect(),
        Some(sizes) => {
            let expected = format!("{count} sizes, one for each member");
            return Err(Error::argument(
                NAME,
                "output_split_sizes",
                expected,
                format!("{sizes:?}"),
            ));
        }
        None => vec![-1; count],
    };
    let said: Vec<i64> = own.iter().map(|n| *n as i64).chain(output).collect();
    let all = no_grad(|| {
        // What the members have pending may differ in its shapes.
        xla_lazy::sync()?;
        let said = Tensor::from_slice(&said, [1, 2 * count], (DType::I64, group.device()))?;
        all_gather::record(members, &said, 0)?.to_vec::<i64>()
    })?;
    let rows: Vec<&[i64]> = all.chunks(2 * count).collect();
    let length = |n: &i64| usize::try_from(*n).unwrap_or(0);
    let sizes: Sizes = rows
        .iter()
        .map(|row| row[..count].iter().map(length).collect())
        .collect();
    for (member, row) in rows.iter().enumerate() {
        if row[count] >= 0 {
            let output: Vec<usize> = row[count..].iter().map(length).collect();
            check_output(group, &sizes, member, &output)?;
        }
    }
    Ok(sizes)
}

/// Checks that a member expects what the others send it.
fn check_output(
    group: &ProcessGroup,
    sizes: &[Vec<usize>],
    member: usize,
    output: &[usize],
) -> Result<()> {
    let sent: Vec<usize> = sizes.iter().map(|row| row[member]).collect();
    if sent == output {
        return Ok(());
    }
    let expected = format!(
        "{sent:?} on rank {}, as the others send it",
        group.ranks()[member]
    );
    Err(Error::argument(
        NAME,
        "output_split_sizes",
        expected,
        format!("{output:?}"),
    ))
}
