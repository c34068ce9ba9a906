//! Operators in place: the tensor and a view of it hold what the operator alone returns.

use super::unary::rounding;
use super::{Call, Draw, Property, Run};
use ndarray::IxDyn;
use xla::{Result, Tensor};

/// A drawn tensor, or the view of a part of one, changed by what another operand says.
fn changed(
    draw: &mut Draw<'_>,
    in_place: fn(&Tensor, &Tensor) -> Result<Tensor>,
    reference: fn(f64, f64) -> f64,
) -> Result<Call> {
    let dtype = draw.dtype();
    let mut dims = draw.dims(3);
    dims.insert(0, 2 + draw.below(2));
    let viewed = draw.once_in(2);
    let part = dims[usize::from(viewed)..].to_vec();
    let like = draw.dims_like(&part);
    let other = if draw.once_in(4) { draw.dtype() } else { dtype };
    let (a, b) = (draw.finite(dtype, &dims), draw.finite(other, &like));
    let base = a.leaf()?.copy()?;
    let with = b.leaf()?;
    let target = if viewed {
        base.select(0, 1)?
    } else {
        base.clone()
    };
    in_place(&target, &with)?;
    let float = dtype.is_float() && other.is_float();
    let hosts = a.nd().zip(b.nd()).filter(|_| float);
    let expected = hosts.and_then(|(mut host, b)| {
        let b = b.broadcast(IxDyn(&part))?.to_owned();
        let change = |mut view: ndarray::ArrayViewMutD<'_, f64>| {
            view.zip_mut_with(&b, |x, &y| *x = reference(*x, y));
        };
        match viewed {
            true => change(host.index_axis_mut(ndarray::Axis(0), 1)),
            false => change(host.view_mut()),
        }
        Some(host)
    });
    let tolerance = 4.0 * rounding(dtype).max(rounding(other));
    Ok(Call::new(vec![with], vec![base]).expect(expected, tolerance))
}

/// A tensor filled through a view.
fn filled(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(3));
    let axis = draw.axis(dims.len());
    let (start, length) = (draw.int(3), draw.size(3));
    let base = draw.finite(dtype, &dims).leaf()?.copy()?;
    let value = draw.operand();
    base.narrow(axis, start, length)?.fill_(value)?;
    Ok(Call::new(Vec::new(), vec![base]))
}

fn zeroed(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(3));
    let array = draw.array(dtype, &dims);
    let base = array.leaf()?.copy()?;
    base.zero_()?;
    let zeros = array.nd().map(|host| host.mapv(|_| 0.0));
    Ok(Call::new(Vec::new(), vec![base]).expect(zeros, 0.0))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 7] = [
        ("add_", |draw| changed(draw, |x, y| x.add_(y), |x, y| x + y)),
        ("sub_", |draw| changed(draw, |x, y| x.sub_(y), |x, y| x - y)),
        ("mul_", |draw| changed(draw, |x, y| x.mul_(y), |x, y| x * y)),
        ("div_", |draw| changed(draw, |x, y| x.div_(y), |x, y| x / y)),
        ("copy_", |draw| changed(draw, |x, y| x.copy_(y), |_, y| y)),
        ("fill_", filled),
        ("zero_", zeroed),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
