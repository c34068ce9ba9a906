//! Products and linear algebra, compared with loops.

use super::binary::common;
use super::unary::{compared, rounding};
use super::{Array, Call, Draw, Property, Run};
use ndarray::{Array2, ArrayD, Axis, Ix2, Ix3, IxDyn};
use std::collections::BTreeMap;
use xla::nn::functional;
use xla::{DType, Result, SolveTriangularOptions, Tensor};

/// Tensors of these shapes, each length being that of its letter, and sometimes another.
fn lettered(draw: &mut Draw<'_>, shapes: &[&str]) -> Vec<Array> {
    let mut lengths = BTreeMap::new();
    let dtype = if draw.once_in(3) {
        draw.dtype()
    } else {
        draw.float()
    };
    let mut arrays = Vec::new();
    for shape in shapes {
        let mut dims: Vec<usize> = Vec::new();
        for letter in shape.chars() {
            let length = *lengths.entry(letter).or_insert_with(|| draw.length());
            dims.push(if draw.once_in(32) {
                draw.length()
            } else {
                length
            });
        }
        let other = if draw.once_in(24) {
            draw.dtype()
        } else {
            dtype
        };
        arrays.push((other, dims));
    }
    let filled = arrays
        .into_iter()
        .map(|(dtype, dims)| draw.finite(dtype, &dims));
    filled.collect()
}

fn leaves(arrays: &[Array]) -> Result<Vec<Tensor>> {
    arrays.iter().map(Array::leaf).collect()
}

/// An einsum by loops over all letters.
fn einsum_of(equation: &str, arrays: &[Array]) -> Option<ArrayD<f64>> {
    let (inputs, output) = equation.split_once("->")?;
    let inputs: Vec<&str> = inputs.split(',').collect();
    let hosts: Vec<ArrayD<f64>> = arrays.iter().map(Array::nd).collect::<Option<_>>()?;
    let mut lengths: BTreeMap<char, usize> = BTreeMap::new();
    for (letters, host) in inputs.iter().zip(&hosts) {
        for (letter, &length) in letters.chars().zip(host.shape()) {
            let known = lengths.entry(letter).or_insert(length);
            *known = if *known == 1 { length } else { *known };
        }
    }
    let letters: Vec<char> = lengths.keys().copied().collect();
    let all: Vec<usize> = lengths.values().copied().collect();
    let dims: Vec<usize> = output.chars().map(|c| lengths[&c]).collect();
    let mut result = ArrayD::zeros(IxDyn(&dims));
    let place = |at: &[usize], of: &str, shape: &[usize]| -> Vec<usize> {
        let letter = |(c, &n): (char, &usize)| {
            let index = letters.iter().position(|&l| l == c).map_or(0, |i| at[i]);
            if n == 1 { 0 } else { index }
        };
        of.chars().zip(shape).map(letter).collect()
    };
    for at in ndarray::indices(IxDyn(&all)) {
        let at = ndarray::Dimension::slice(&at).to_vec();
        let factor = |(of, host): (&&str, &ArrayD<f64>)| {
            host.get(place(&at, of, host.shape()).as_slice()).copied()
        };
        let product: f64 = inputs
            .iter()
            .zip(&hosts)
            .map(factor)
            .product::<Option<f64>>()?;
        *result.get_mut(place(&at, output, &dims).as_slice())? += product;
    }
    Some(result)
}

/// A call whose value an equation says.
fn by_equation(
    draw: &mut Draw<'_>,
    equation: &str,
    call: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<Call> {
    let (inputs, _) = equation.split_once("->").unwrap_or((equation, ""));
    let arrays = lettered(draw, &inputs.split(',').collect::<Vec<_>>());
    let inputs = leaves(&arrays)?;
    let output = call(&inputs)?;
    let kind = output.dtype();
    // Truth values are not added up.
    let seen = compared(kind) && kind != DType::Bool;
    let expected = seen.then(|| einsum_of(equation, &arrays)).flatten();
    Ok(Call::new(inputs, vec![output]).expect(expected, 16.0 * rounding(kind)))
}

fn einsum(draw: &mut Draw<'_>) -> Result<Call> {
    let equation = draw.pick(&[
        "ij,jk->ik",
        "bij,bjk->bik",
        "i,i->",
        "i,j->ij",
        "ij->ji",
        "ii->i",
        "ij->",
        "bhqd,bhkd->bhqk",
        "ij,jk,kl->il",
        "ij,ij->i",
        "b,bij->ij",
        "iij->j",
    ]);
    if draw.once_in(16) {
        let odd = draw.pick(&[
            "ij,jk->iz",
            "i",
            "ij,jk",
            "",
            "->",
            "i->ii",
            "i,,j->",
            "...i,...j->...ij",
            "a b",
        ]);
        let arrays = lettered(draw, &["ij", "jk"]);
        let inputs = leaves(&arrays)?;
        let output = Tensor::einsum(odd, &[&inputs[0], &inputs[1]])?;
        return Ok(Call::new(inputs, vec![output]));
    }
    by_equation(draw, equation, |x| {
        Tensor::einsum(equation, &x.iter().collect::<Vec<_>>())
    })
}

/// The product of the matrices on the last two axes.
fn matmul(draw: &mut Draw<'_>) -> Result<Call> {
    let shapes = draw.pick(&[
        ["nk", "km"],
        ["k", "k"],
        ["k", "km"],
        ["nk", "k"],
        ["bnk", "km"],
        ["nk", "bkm"],
        ["bnk", "bkm"],
        ["abnk", "bkm"],
        ["k", "bkm"],
        ["bnk", "k"],
        ["", "k"],
    ]);
    let output = match (shapes[0], shapes[1]) {
        ("k", "k") => "",
        ("k", "km") => "m",
        ("nk", "k") => "n",
        ("nk", "km") => "nm",
        ("k", "bkm") => "bm",
        ("bnk", "k") => "bn",
        ("abnk", _) => "abnm",
        _ => "bnm",
    };
    let equation = format!("{},{}->{output}", shapes[0], shapes[1]);
    by_equation(draw, &equation, |x| x[0].matmul(&x[1]))
}

/// `beta * input + alpha * product`.
fn added(draw: &mut Draw<'_>, equation: &str, input: &str, name: &str) -> Result<Call> {
    let (factors, _) = equation.split_once("->").unwrap_or((equation, ""));
    let mut shapes = vec![if draw.once_in(4) { "" } else { input }];
    shapes.extend(factors.split(','));
    let arrays = lettered(draw, &shapes);
    let inputs = leaves(&arrays)?;
    let (beta, alpha) = (draw.around(3), draw.around(3));
    let (x, a, b) = (&inputs[0], &inputs[1], &inputs[2]);
    let output = match name {
        "addmm" => x.addmm(a, b, beta, alpha)?,
        "addmv" => x.addmv(a, b, beta, alpha)?,
        _ => x.baddbmm(a, b, beta, alpha)?,
    };
    let kind = output.dtype();
    let product = einsum_of(equation, &arrays[1..]).filter(|_| compared(kind));
    let expected = product.zip(arrays[0].nd()).and_then(|(product, x)| {
        let x = x.broadcast(product.shape())?.mapv(|x| beta as f64 * x);
        Some(x + product.mapv(|p| alpha as f64 * p))
    });
    let expected = expected.filter(|_| kind != DType::Bool);
    Ok(Call::new(inputs, vec![output]).expect(expected, 64.0 * rounding(kind)))
}

fn linear(draw: &mut Draw<'_>) -> Result<Call> {
    let x = draw.pick(&["nk", "k", "bnk", ""]);
    let arrays = lettered(draw, &[x, "mk", "m"]);
    let inputs = leaves(&arrays)?;
    let bias = (!draw.once_in(3)).then_some(&inputs[2]);
    let output = functional::linear(&inputs[0], &inputs[1], bias)?;
    let equation = format!("{x},mk->{}m", x.trim_end_matches('k'));
    let expected = einsum_of(&equation, &arrays[..2]).and_then(|product| {
        let Some(_) = bias else { return Some(product) };
        Some(&product + &arrays[2].nd()?.broadcast(product.shape())?)
    });
    let kind = output.dtype();
    Ok(Call::new(inputs, vec![output]).expect(expected, 32.0 * rounding(kind)))
}

/// Square matrices that are far from singular: a positive diagonal, and little beside it.
fn regular(draw: &mut Draw<'_>, dims: &[usize], lower: bool) -> Array {
    let dtype = draw.float();
    let mut array = draw.finite(dtype, dims);
    let n = dims.last().copied().unwrap_or(1).max(1);
    if let (Some(values), true) = (&mut array.values, dims.len() > 1) {
        for (i, value) in values.iter_mut().enumerate() {
            let (row, column) = (i / n % n, i % n);
            let small = (value.abs() % 2.0) / 4.0;
            *value = match row.cmp(&column) {
                std::cmp::Ordering::Equal => 2.0 + small,
                std::cmp::Ordering::Less if lower => 0.0,
                _ => 0.25,
            };
        }
    }
    array
}

/// The shape of square matrices, mostly.
fn square(draw: &mut Draw<'_>) -> Vec<usize> {
    let mut dims = draw.dims(1);
    let n = draw.length();
    let m = if draw.once_in(16) { draw.length() } else { n };
    dims.extend([n, m]);
    if draw.once_in(16) {
        dims.truncate(1);
    }
    dims
}

fn cholesky(draw: &mut Draw<'_>) -> Result<Call> {
    let (dims, upper) = (square(draw), draw.once_in(2));
    let array = regular(draw, &dims, false);
    let x = array.leaf()?;
    let output = x.cholesky(upper)?;
    // The product of the factors is the matrix again.
    let (l, t) = match upper {
        true => (output.transpose(-2, -1)?, output.clone()),
        false => (output.clone(), output.transpose(-2, -1)?),
    };
    let again = l.matmul(&t)?;
    let lower = |m: &Tensor| m.tril(0);
    let (expected, kind) = (array.nd(), output.dtype());
    let expected = expected.map(|mut host| {
        for (index, value) in host.indexed_iter_mut() {
            if let [.., row, column] = ndarray::Dimension::slice(&index)
                && column > row
            {
                *value = 0.0;
            }
        }
        host
    });
    let outputs = vec![lower(&again)?, output];
    Ok(Call::new(vec![x], outputs).expect(expected, 32.0 * rounding(kind)))
}

fn solve(draw: &mut Draw<'_>, cholesky: bool) -> Result<Call> {
    let dims = square(draw);
    let options = SolveTriangularOptions {
        upper: draw.once_in(2),
        left: !draw.once_in(3),
        unitriangular: draw.once_in(3),
    };
    let factor = regular(draw, &dims, false);
    let mut right = dims.clone();
    let columns = draw.length();
    let at = right
        .len()
        .saturating_sub(if options.left || cholesky { 1 } else { 2 });
    right[at] = columns;
    let b = draw.finite(factor.dtype, &right);
    let inputs = vec![factor.leaf()?, b.leaf()?];
    let output = match cholesky {
        true => inputs[1].cholesky_solve(&inputs[0], options.upper)?,
        false => inputs[0].solve_triangular(&inputs[1], options)?,
    };
    Ok(Call::new(inputs, vec![output]))
}

fn tensordot(draw: &mut Draw<'_>) -> Result<Call> {
    let arrays = lettered(draw, &["abc", "bcd"]);
    let inputs = leaves(&arrays)?;
    let dims = draw.pick(&[[1, 2], [-2, -1], [1, 1], [3, 0]]);
    let other = draw.pick(&[[0, 1], [0, 1], [-3, -2], [0, 0]]);
    let output = inputs[0].tensordot(&inputs[1], &dims[..], &other[..])?;
    let kind = output.dtype();
    let plain = dims != [1, 1] && dims != [3, 0] && other != [0, 0];
    let expected = einsum_of("abc,bcd->ad", &arrays).filter(|_| plain && kind.is_float());
    Ok(Call::new(inputs, vec![output]).expect(expected, 32.0 * rounding(kind)))
}

fn trace(draw: &mut Draw<'_>) -> Result<Call> {
    let shape = draw.pick(&["ij", "ij", "ii", "i", "ijk"]);
    let arrays = lettered(draw, &[shape]);
    let x = arrays[0].leaf()?;
    let output = x.trace()?;
    let sum = |host: ArrayD<f64>| {
        let host = host.into_dimensionality::<Ix2>().ok()?;
        Some(ndarray::arr0(host.diag().sum()).into_dyn())
    };
    let kind = output.dtype();
    let expected = arrays[0].nd().and_then(sum).filter(|_| compared(kind));
    Ok(Call::new(vec![x], vec![output]).expect(expected, 8.0 * rounding(kind)))
}

fn kron(draw: &mut Draw<'_>) -> Result<Call> {
    let shapes = draw.pick(&[
        ["ij", "kl"],
        ["i", "k"],
        ["ij", "k"],
        ["i", "klm"],
        ["", "kl"],
    ]);
    let arrays = lettered(draw, &shapes);
    let inputs = leaves(&arrays)?;
    let output = inputs[0].kron(&inputs[1])?;
    let matrices = |array: &Array| array.nd()?.into_dimensionality::<Ix2>().ok();
    let (a, b) = (matrices(&arrays[0]), matrices(&arrays[1]));
    let expected = a.zip(b).map(|(a, b)| {
        let (rows, columns) = b.dim();
        let dims = (a.nrows() * rows, a.ncols() * columns);
        let of = |(i, j)| a[(i / rows, j / columns)] * b[(i % rows, j % columns)];
        Array2::from_shape_fn(dims, of).into_dyn()
    });
    let kind = output.dtype();
    let expected = expected.filter(|_| kind.is_float());
    Ok(Call::new(inputs, vec![output]).expect(expected, rounding(kind)))
}

fn cross(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, mut dims) = (draw.dtype(), draw.dims(3));
    let axis = draw.axis(dims.len());
    if let Some(at) = super::reduce::resolved(axis, dims.len())
        && let Some(dim) = dims.get_mut(at)
        && !draw.once_in(12)
    {
        *dim = 3;
    }
    let like = draw.dims_like(&dims);
    let arrays = [draw.finite(dtype, &dims), draw.finite(dtype, &like)];
    let inputs = leaves(&arrays)?;
    let output = inputs[0].cross(&inputs[1], axis)?;
    let shape = common(&[&dims, &like]);
    let zeros = shape.filter(|_| dims == like && arrays[0].values == arrays[1].values);
    let expected = zeros.map(|dims| ArrayD::zeros(IxDyn(&dims)));
    Ok(Call::new(inputs, vec![output]).expect(expected, 0.0))
}

fn cdist(draw: &mut Draw<'_>) -> Result<Call> {
    let p = draw.pick(&[2.0, 1.0, 0.0, 3.0, f64::INFINITY, 0.5, -1.0, f64::NAN]);
    let shapes = draw.pick(&[["bnm", "bkm"], ["nm", "km"], ["bnm", "km"], ["m", "km"]]);
    let arrays = lettered(draw, &shapes);
    let inputs = leaves(&arrays)?;
    let output = inputs[0].cdist(&inputs[1], p)?;
    let kind = output.dtype();
    let three = |array: &Array| {
        let host = array.nd()?;
        let host = if host.ndim() == 2 {
            host.insert_axis(Axis(0))
        } else {
            host
        };
        host.into_dimensionality::<Ix3>().ok()
    };
    let expected = three(&arrays[0]).zip(three(&arrays[1])).filter(|_| {
        let half = matches!(kind, DType::F16 | DType::BF16);
        arrays[0].dims.len() == arrays[1].dims.len() && !half
    });
    let expected = expected.and_then(|(a, b)| {
        let batch = output.rank() == 3;
        let distance = |n: usize, i: usize, j: usize| {
            let of = |all: &ndarray::Array3<f64>, i| {
                let rows = all.index_axis(Axis(0), n);
                rows.index_axis(Axis(0), i).to_owned()
            };
            let (x, y) = (of(&a, i), of(&b, j));
            let sizes = x.iter().zip(y).map(|(x, y)| (x - y).abs());
            match p {
                0.0 => sizes.filter(|&d| d != 0.0).count() as f64,
                f64::INFINITY => sizes.fold(0.0, f64::max),
                p => sizes.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p),
            }
        };
        if a.len_of(Axis(0)) != b.len_of(Axis(0)) {
            return None;
        }
        let dims = (a.len_of(Axis(0)), a.len_of(Axis(1)), b.len_of(Axis(1)));
        let all = ndarray::Array3::from_shape_fn(dims, |(n, i, j)| distance(n, i, j)).into_dyn();
        Some(if batch {
            all
        } else {
            all.index_axis_move(Axis(0), 0)
        })
    });
    // Differences of squares lose half of the digits near 0.
    Ok(Call::new(inputs, vec![output]).expect(expected, 128.0 * rounding(kind)))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 20] = [
        ("addmm", |draw| added(draw, "nk,km->nm", "nm", "addmm")),
        ("addmv", |draw| added(draw, "nk,k->n", "n", "addmv")),
        ("baddbmm", |draw| {
            added(draw, "bnk,bkm->bnm", "bnm", "baddbmm")
        }),
        ("bmm", |draw| {
            by_equation(draw, "bnk,bkm->bnm", |x| x[0].bmm(&x[1]))
        }),
        ("cdist", cdist),
        ("cholesky", cholesky),
        ("cholesky_solve", |draw| solve(draw, true)),
        ("cross", cross),
        ("dot", |draw| {
            by_equation(draw, "k,k->", |x| x[0].dot(&x[1]))
        }),
        ("einsum", einsum),
        ("kron", kron),
        ("linear", linear),
        ("matmul", matmul),
        ("mm", |draw| {
            by_equation(draw, "nk,km->nm", |x| x[0].mm(&x[1]))
        }),
        ("mv", |draw| {
            by_equation(draw, "nk,k->n", |x| x[0].mv(&x[1]))
        }),
        ("outer", |draw| {
            by_equation(draw, "n,m->nm", |x| x[0].outer(&x[1]))
        }),
        ("solve_triangular", |draw| solve(draw, false)),
        ("tensordot", tensordot),
        ("trace", trace),
        ("matmul_of_any_ranks", |draw| {
            let arrays: Vec<Array> = (0..2)
                .map(|_| {
                    let (dtype, dims) = (draw.float(), draw.dims(4));
                    draw.finite(dtype, &dims)
                })
                .collect();
            let inputs = leaves(&arrays)?;
            let output = inputs[0].matmul(&inputs[1])?;
            Ok(Call::new(inputs, vec![output]))
        }),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
