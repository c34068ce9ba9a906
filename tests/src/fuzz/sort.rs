//! Sorting, order statistics and search, compared with sorts and loops on the host.

use super::scan::along;
use super::{Array, Call, Draw, Property, Run};
use std::cmp::Ordering;
use xla::{Result, Tensor};

/// The order of elements: a NaN after all others.
fn order(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

/// Where the elements of a sorted line were; equal ones stay in their order.
fn places(line: &[f64], descending: bool) -> Vec<f64> {
    let mut places: Vec<usize> = (0..line.len()).collect();
    places.sort_by(|&a, &b| match descending {
        true => order(line[b], line[a]),
        false => order(line[a], line[b]),
    });
    places.into_iter().map(|i| i as f64).collect()
}

fn sorted(line: &[f64], descending: bool) -> Vec<f64> {
    let of = |&i: &f64| line[i as usize];
    places(line, descending).iter().map(of).collect()
}

fn pair((values, places): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![values, places]
}

fn drawn(draw: &mut Draw<'_>) -> (Array, i64) {
    let (dtype, dims) = (draw.dtype(), draw.dims(3));
    let axis = draw.axis(dims.len());
    (draw.array(dtype, &dims), axis)
}

fn sort(draw: &mut Draw<'_>, values: bool) -> Result<Call> {
    let (array, axis) = drawn(draw);
    let descending = draw.once_in(2);
    let x = array.leaf()?;
    let outputs = match values {
        true => x.sort(axis, descending).map(pair)?,
        false => vec![x.argsort(axis, descending)?],
    };
    let host = array.nd();
    let by = |of: fn(&[f64], bool) -> Vec<f64>| {
        host.as_ref()
            .and_then(|h| along(h, axis, |line| of(line, descending)))
    };
    let call = Call::new(vec![x], outputs);
    Ok(match values {
        true => call.expect(by(sorted), 0.0).expect(by(places), 0.0),
        false => call.expect(by(places), 0.0),
    })
}

fn topk(draw: &mut Draw<'_>) -> Result<Call> {
    let (array, axis) = drawn(draw);
    let (k, largest) = (draw.size(3), !draw.once_in(2));
    let x = array.leaf()?;
    let outputs = x.topk(k, axis, largest).map(pair)?;
    let expected = array.nd().filter(|h| h.ndim() > 0).and_then(|host| {
        let all = along(&host, axis, |line| sorted(line, largest))?;
        let at = super::reduce::resolved(axis, host.ndim())?;
        let first = ndarray::Slice::from(0..k);
        Some(all.slice_axis(ndarray::Axis(at), first).to_owned())
    });
    Ok(Call::new(vec![x], outputs).expect(expected, 0.0))
}

/// What an order statistic is of a line.
type Statistic = Box<dyn Fn(&[f64]) -> f64>;

fn statistic(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, i64, bool) -> Result<(Tensor, Tensor)>,
    of: Statistic,
) -> Result<Call> {
    let (array, axis) = drawn(draw);
    let keepdim = draw.once_in(2);
    let x = array.leaf()?;
    let outputs = call(&x, axis, keepdim).map(pair)?;
    let expected = array
        .nd()
        .and_then(|host| super::reduce::reduce(&host, &[axis], keepdim, of));
    Ok(Call::new(vec![x], outputs).expect(expected, 0.0))
}

fn kthvalue(draw: &mut Draw<'_>) -> Result<Call> {
    let k = draw.size(3);
    let of = move |line: &[f64]| sorted(line, false)[k - 1];
    statistic(draw, |x, dim, keep| x.kthvalue(k, dim, keep), Box::new(of))
}

fn median(draw: &mut Draw<'_>) -> Result<Call> {
    let of = |line: &[f64]| match line.iter().any(|x| x.is_nan()) {
        true => f64::NAN,
        false => sorted(line, false)[(line.len() - 1) / 2],
    };
    statistic(draw, Tensor::median, Box::new(of))
}

fn nanmedian(draw: &mut Draw<'_>) -> Result<Call> {
    let of = |line: &[f64]| {
        let numbers: Vec<f64> = line.iter().copied().filter(|x| !x.is_nan()).collect();
        match numbers.len().checked_sub(1) {
            Some(last) => sorted(&numbers, false)[last / 2],
            None => f64::NAN,
        }
    };
    statistic(draw, Tensor::nanmedian, Box::new(of))
}

/// Where values would be put into a sorted sequence.
fn search(draw: &mut Draw<'_>, bucketize: bool) -> Result<Call> {
    let dtype = draw.dtype();
    let right = draw.once_in(2);
    let number = draw.once_in(4).then(|| draw.around(6) as f64 / 2.0);
    let batch = draw.once_in(3).then(|| draw.length());
    let mut dims = vec![draw.length()];
    let mut wanted = draw.dims(2);
    if let Some(batch) = batch {
        dims.insert(0, batch);
        wanted = vec![batch, draw.length()];
    }
    let mut sequence = draw.finite(dtype, &dims);
    if let Some(values) = &mut sequence.values {
        let line = dims.last().copied().unwrap_or(1).max(1);
        values
            .chunks_mut(line)
            .for_each(|l| l.sort_by(f64::total_cmp));
    }
    let values = draw.finite(dtype, &wanted);
    let mut inputs = vec![sequence.tensor()?];
    let output = match number {
        Some(number) if !bucketize => inputs[0].searchsorted(number, right)?,
        _ => {
            inputs.push(values.tensor()?);
            match bucketize {
                true => inputs[1].bucketize(&inputs[0], right)?,
                false => inputs[0].searchsorted(&inputs[1], right)?,
            }
        }
    };
    let held = sequence
        .values
        .filter(|_| inputs.len() == 2 && batch.is_none());
    let expected = held.zip(values.nd()).map(|(sequence, values)| {
        values.mapv(|v| match right {
            true => sequence.partition_point(|&s| s <= v) as f64,
            false => sequence.partition_point(|&s| s < v) as f64,
        })
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 0.0))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 8] = [
        ("argsort", |draw| sort(draw, false)),
        ("bucketize", |draw| search(draw, true)),
        ("kthvalue", kthvalue),
        ("median", median),
        ("nanmedian", nanmedian),
        ("searchsorted", |draw| search(draw, false)),
        ("sort", |draw| sort(draw, true)),
        ("topk", topk),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
