//! Writes through views, compared with a buffer that views index by strides.

use tests::check::{close, counted, f32s, i64s, same, values};
use tests::with_devices;
use xla::{DType, Index, Result, Tensor, no_grad};

/// What is known of a view: where each of its elements lies in the buffer.
#[derive(Clone)]
struct Places {
    dims: Vec<usize>,
    at: Vec<usize>,
}

impl Places {
    /// The view that has `dims`, each element being the one of this view that `source` names.
    fn pick(&self, dims: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Places {
        let count = dims.iter().product();
        let at = (0..count).map(|mut flat| {
            let mut position = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                position[axis] = flat % dims[axis];
                flat /= dims[axis];
            }
            let from = source(&position);
            let flat = from.iter().zip(&self.dims).fold(0, |n, (&p, &d)| n * d + p);
            self.at[flat]
        });
        let at = at.collect();
        Places { dims, at }
    }
}

/// Whole numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// A view of a view, and where its elements lie.
fn derive(dice: &mut Dice, x: &Tensor, places: &Places) -> Result<(Tensor, Places)> {
    let dims = places.dims.clone();
    if dims.is_empty() {
        return Ok((x.unsqueeze(0)?, places.pick(vec![1], |_| vec![])));
    }
    let axis = dice.below(dims.len());
    let (dim, size) = (axis as i64, dims[axis]);
    let with = |len: usize| {
        let mut dims = dims.clone();
        dims[axis] = len;
        dims
    };
    let moved = |position: &[usize], to: usize| {
        let mut position = position.to_vec();
        position[axis] = to;
        position
    };
    Ok(match dice.below(8) {
        0 if size > 0 => {
            let index = dice.below(size);
            let mut rest = dims.clone();
            rest.remove(axis);
            let source = |p: &[usize]| {
                let mut p = p.to_vec();
                p.insert(axis, index);
                p
            };
            (
                x.select(dim, index as i64 - size as i64)?,
                places.pick(rest, source),
            )
        }
        1 => {
            let start = dice.below(size + 1);
            let len = dice.below(size - start + 1);
            let source = |p: &[usize]| moved(p, p[axis] + start);
            (
                x.narrow(dim, start as i64, len)?,
                places.pick(with(len), source),
            )
        }
        2 => {
            let (start, step) = (dice.below(size + 1), 1 + dice.below(3));
            let len = (size - start).div_ceil(step);
            let source = |p: &[usize]| moved(p, start + p[axis] * step);
            (
                x.slice(dim, start as i64, i64::MAX, step)?,
                places.pick(with(len), source),
            )
        }
        3 => {
            let other = dice.below(dims.len());
            let mut swapped = dims.clone();
            swapped.swap(axis, other);
            let source = |p: &[usize]| {
                let mut p = p.to_vec();
                p.swap(axis, other);
                p
            };
            (
                x.transpose(dim, other as i64)?,
                places.pick(swapped, source),
            )
        }
        4 if dims.len() > 1 => {
            let (rows, columns) = (0, dims.len() - 1);
            let offset = dice.below(3) as i64 - 1;
            let view = x.diagonal(offset, rows as i64, columns as i64)?;
            let mut rest: Vec<usize> = dims[1..columns].to_vec();
            rest.push(*view.dims().last().unwrap_or(&0));
            let (row, column) = ((-offset).max(0) as usize, offset.max(0) as usize);
            let source = |p: &[usize]| {
                let (&i, middle) = p.split_last().unwrap();
                let mut from = vec![i + row];
                from.extend_from_slice(middle);
                from.push(i + column);
                from
            };
            (view, places.pick(rest, source))
        }
        5 if size > 1 => {
            let window = 1 + dice.below(size - 1);
            let view = x.unfold(dim, window, window)?;
            let mut longer = with(size / window);
            longer.push(window);
            let source = |p: &[usize]| {
                let (&offset, position) = p.split_last().unwrap();
                moved(position, p[axis] * window + offset)
            };
            (view, places.pick(longer, source))
        }
        6 if size % 2 == 0 && size > 0 => {
            let view = x.unflatten(dim, [2, -1])?;
            let mut longer = with(size / 2);
            longer.insert(axis, 2);
            let source = |p: &[usize]| {
                let mut from = p.to_vec();
                let half = from.remove(axis);
                from[axis] += half * (size / 2);
                from
            };
            (view, places.pick(longer, source))
        }
        _ => {
            let part = 1 + dice.below(size.max(1));
            let parts = x.split(part, dim)?;
            let which = dice.below(parts.len());
            let len = parts[which].dims()[axis];
            let source = |p: &[usize]| moved(p, which * part + p[axis]);
            (parts[which].clone(), places.pick(with(len), source))
        }
    })
}

/// Changes a view in place, and the buffer.
fn change(dice: &mut Dice, x: &Tensor, places: &Places, buffer: &mut [f64]) -> Result<()> {
    let by = dice.below(7) as i64 - 3;
    let new: Box<dyn Fn(f64) -> f64> = match dice.below(5) {
        0 => {
            x.add_(by)?;
            Box::new(move |old| old + by as f64)
        }
        1 => {
            x.mul_(-1)?;
            Box::new(|old| -old)
        }
        2 => {
            x.fill_(by)?;
            Box::new(move |_| by as f64)
        }
        3 => {
            x.masked_fill_(&x.gt(by)?, 0)?;
            Box::new(move |old| if old > by as f64 { 0.0 } else { old })
        }
        _ => {
            x.index_put_(&[(&x.lt(by)?).into()], by, false)
                .or_else(|error| match x.rank() {
                    // A mask needs an axis.
                    0 => x.copy_(&x.maximum(by)?),
                    _ => Err(error),
                })?;
            Box::new(move |old| if old < by as f64 { by as f64 } else { old })
        }
    };
    for &place in &places.at {
        buffer[place] = new(buffer[place]);
    }
    Ok(())
}

#[test]
fn random_programs_of_views_and_writes_agree_with_a_buffer() {
    with_devices(1, || {
        let mut dice = Dice(7);
        for program in 0..200 {
            let dims = vec![2 + dice.below(3), 1 + dice.below(4), 2 + dice.below(2)];
            let base = counted(&dims);
            let count = dims.iter().product();
            let mut buffer: Vec<f64> = (0..count).map(|i| i as f64).collect();
            // Recorded, or straight from the host.
            let base = if program % 2 == 0 {
                base
            } else {
                base.add(0).unwrap()
            };
            let whole = Places {
                dims,
                at: (0..count).collect(),
            };
            let mut views = vec![(base, whole)];
            for _ in 0..8 {
                let (x, places) = views[dice.below(views.len())].clone();
                match dice.below(5) {
                    0 | 1 => change(&mut dice, &x, &places, &mut buffer).unwrap(),
                    2 if program % 4 == 0 => xla::sync().map(drop).unwrap(),
                    _ => views.push(derive(&mut dice, &x, &places).unwrap()),
                }
            }
            // All of them in one program.
            let mut flat = Vec::new();
            let mut expected = Vec::new();
            for (i, (view, places)) in views.iter().enumerate() {
                assert_eq!(view.dims(), places.dims, "program {program}, view {i}");
                flat.push(view.reshape([-1]).unwrap());
                expected.extend(places.at.iter().map(|&place| buffer[place]));
            }
            let all = Tensor::cat(&flat.iter().collect::<Vec<_>>(), 0).unwrap();
            let what = format!("program {program}");
            close(&what, &values(&all).unwrap(), &expected, 0.0);
        }
    });
}

#[test]
fn gradients_pass_by_what_writes_replaced() {
    with_devices(1, || gradients().unwrap());
}

fn gradients() -> Result<()> {
    let x = f32s(&[1.0, 2.0, 3.0, 4.0]).requires_grad_(true)?;
    let y = x.mul(2)?;
    y.narrow(0, 0, 2)?.mul_(3)?;
    y.slice(0, 1, 4, 2)?.fill_(5)?;
    y.index_put_(&[(&i64s(&[2, 2])).into()], &f32s(&[7.0, 7.0]), true)?;
    y.mul(&f32s(&[1.0, 10.0, 100.0, 1000.0]))?
        .sum((), false)?
        .backward()?;
    close("y", &values(&y)?, &[6.0, 5.0, 20.0, 5.0], 0.0);
    close(
        "x",
        &values(&x.grad().unwrap())?,
        &[6.0, 0.0, 200.0, 0.0],
        0.0,
    );

    // Changes that autograd does not see leave the history as it was, before and after a sync.
    for synced in [false, true] {
        let x = f32s(&[1.0, 2.0]).requires_grad_(true)?;
        let y = x.mul(4)?;
        if synced {
            xla::sync()?;
        }
        no_grad(|| y.select(0, 0)?.fill_(9))?;
        y.detach()?.narrow(0, 1, 1)?.fill_(8)?;
        assert!(y.requires_grad());
        y.sum((), false)?.backward()?;
        close("y", &values(&y)?, &[9.0, 8.0], 0.0);
        close("x", &values(&x.grad().unwrap())?, &[4.0, 4.0], 0.0);
        x.detach()?.fill_(3)?;
        close("a leaf", &values(&x)?, &[3.0, 3.0], 0.0);
        assert!(x.is_leaf() && x.requires_grad());
    }

    // What a write dropped has no gradient.
    let updates = f32s(&[1.0, 2.0]).requires_grad_(true)?;
    let computed = i64s(&[0, 6]).add(1)?;
    let sum = f32s(&[0.0, 0.0]).index_add(0, &computed, &updates, None)?;
    sum.add(&f32s(&[0.0, 0.0]).scatter_add(0, &computed, &updates)?)?
        .sum((), false)?
        .backward()?;
    close(
        "dropped",
        &values(&updates.grad().unwrap())?,
        &[2.0, 0.0],
        0.0,
    );
    Ok(())
}

#[test]
fn parts_of_an_index() {
    with_devices(1, || {
        let x = counted(&[3, 4]);
        let (rows, f) = (i64s(&[2, -3]), DType::F32);
        same(
            x.index(&[(1..).into()]),
            &[2, 4],
            f,
            &[4., 5., 6., 7., 8., 9., 10., 11.],
        );
        same(
            x.index(&[Index::Ellipsis, (-1).into()]),
            &[3],
            f,
            &[3., 7., 11.],
        );
        same(
            x.index(&[0.into(), Index::NewAxis, Index::from(..3).step(2)]),
            &[1, 2],
            f,
            &[0., 2.],
        );
        same(
            x.index(&[(&rows).into(), (0..=1).into()]),
            &[2, 2],
            f,
            &[8., 9., 0., 1.],
        );
        let column = rows.unsqueeze(1).unwrap();
        same(
            x.index(&[(&column).into(), (&rows).into()]),
            &[2, 2],
            f,
            &[10., 9., 2., 1.],
        );
        // Others lie between: the axes of the index tensors come first.
        let deep = counted(&[2, 3, 2]);
        let picked = deep.index(&[(&i64s(&[1])).into(), (..).into(), (&i64s(&[0])).into()]);
        same(picked, &[1, 3], f, &[6., 8., 10.]);
        // Without tensors it is a view, and a write reaches the base.
        x.index(&[1.into(), (..2).into()])
            .unwrap()
            .add_(100)
            .unwrap();
        x.index_put_(&[(2..).into(), 0.into()], -1, false).unwrap();
        same(
            Ok(x),
            &[3, 4],
            f,
            &[0., 1., 2., 3., 104., 105., 6., 7., -1., 9., 10., 11.],
        );
    });
}
