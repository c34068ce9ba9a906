//! Gradients of every differentiable operator against central differences.

use tests::differences::{Leaf, check};
use xla::{DType, Tensor};

#[test]
fn of_one_tensor() {
    const V: &[usize] = &[5];
    check("neg", &[(V, -1.0, 1.0)], |x| x[0].neg());
    check("exp", &[(V, -1.0, 1.0)], |x| x[0].exp());
    check("log", &[(V, 0.5, 2.0)], |x| x[0].log());
    check("log1p", &[(V, -0.5, 2.0)], |x| x[0].log1p());
    check("expm1", &[(V, -1.0, 1.0)], |x| x[0].expm1());
    check("sqrt", &[(V, 0.5, 2.0)], |x| x[0].sqrt());
    check("rsqrt", &[(V, 0.5, 2.0)], |x| x[0].rsqrt());
    check("tanh", &[(V, -1.0, 1.0)], |x| x[0].tanh());
    check("sigmoid", &[(V, -1.0, 1.0)], |x| x[0].sigmoid());
    check("sin", &[(V, -1.0, 1.0)], |x| x[0].sin());
    check("cos", &[(V, 0.5, 2.0)], |x| x[0].cos());
    check("erf", &[(V, -1.0, 1.0)], |x| x[0].erf());
    check("relu above 0", &[(V, 0.1, 1.0)], |x| x[0].relu());
    check("relu around 0", &[(&[40], -1.0, 1.0)], |x| {
        x[0].relu()?.mul(&x[0])
    });
    check("abs", &[(&[40], -1.0, 1.0)], |x| {
        x[0].abs()?.mul(&x[0].exp()?)
    });
    check("square", &[(V, -1.0, 1.0)], |x| x[0].square());
    check("reciprocal", &[(V, 0.5, 2.0)], |x| x[0].reciprocal());
    check("sign, floor, ceil, round", &[(V, 1.1, 1.4)], |x| {
        x[0].sign()?
            .add(&x[0].floor()?)?
            .add(&x[0].ceil()?)?
            .add(&x[0].round()?)?
            .mul(&x[0])
    });
    check("copy", &[(V, -1.0, 1.0)], |x| x[0].copy());
    check("clamp", &[(&[40], -1.0, 1.0)], |x| {
        x[0].clamp(Some(-0.5), Some(0.4))?.mul(&x[0])
    });
    check("to_dtype", &[(V, -1.0, 1.0)], |x| {
        x[0].mul(4.0)?.to_dtype(DType::F64)
    });
}

#[test]
fn of_two_tensors_that_broadcast() {
    const A: Leaf = (&[2, 1, 3], 0.5, 2.0);
    const B: Leaf = (&[4, 1], 0.5, 2.0);
    check("add", &[A, B], |x| &x[0] + &x[1]);
    check("sub", &[A, B], |x| &x[0] - &x[1]);
    check("mul", &[A, B], |x| &x[0] * &x[1]);
    check("div", &[A, B], |x| &x[0] / &x[1]);
    check("pow", &[A, B], |x| x[0].pow(&x[1]));
    check("maximum", &[A, B], |x| x[0].maximum(&x[1])?.mul(&x[1]));
    check("minimum", &[A, B], |x| x[0].minimum(&x[1])?.mul(&x[0]));
    check("where", &[A, B], |x| {
        x[0].lt(&x[1])?.select_from(&x[0].exp()?, &x[1])
    });
    check("with itself", &[A], |x| (&x[0] * &x[0])? / &x[0].exp()?);
    check("numbers", &[A], |x| {
        2.0 / ((1.0 - &x[0])? * 3.0 + &x[0].mul(5)?)?
    });
    check("pow number", &[A], |x| x[0].pow(2.5));
    check("pow of a number", &[A], |x| {
        Tensor::scalar(1.5, DType::F64)?.pow(&x[0])
    });
    check("pow of a negative", &[(&[6], -2.0, -0.5)], |x| x[0].pow(3));
    check("where number", &[A], |x| {
        x[0].gt(1.2)?.select_from(&x[0].square()?, 0.5)
    });
    check("scalar", &[A, (&[], 0.5, 2.0)], |x| {
        x[0].mul(&x[1])?.div(&x[1].exp()?)
    });
}

#[test]
fn of_reductions() {
    const A: Leaf = (&[2, 3, 4], -1.0, 1.0);
    check("sum", &[A], |x| x[0].sum([0, 2], false));
    check("sum keepdim", &[A], |x| x[0].sum(1, true)?.mul(&x[0]));
    check("sum all", &[A], |x| x[0].square()?.sum((), false));
    check("mean", &[A], |x| x[0].exp()?.mean([1], false));
    check("mean all", &[A], |x| x[0].exp()?.mean((), true));
    check("amax", &[A], |x| x[0].amax([0, 1], false)?.exp());
    check("amin", &[A], |x| x[0].amin((), false)?.exp());
    check("softmax", &[A], |x| x[0].softmax(1));
    check("log_softmax", &[A], |x| x[0].log_softmax(-1));
    check("variance", &[A], |x| {
        x[0].sub(&x[0].mean(1, true)?)?.square()?.mean(1, false)
    });
    check("sum_to_size", &[A, (&[3, 1], -1.0, 1.0)], |x| {
        x[0].square()?.sum_to_size(x[1].shape())?.mul(&x[1])
    });
}

#[test]
fn of_products() {
    check("vectors", &[(&[4], -1.0, 1.0), (&[4], 0.5, 1.0)], |x| {
        x[0].matmul(&x[1])
    });
    check(
        "matrix by vector",
        &[(&[3, 4], -1.0, 1.0), (&[4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "vector by matrix",
        &[(&[3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "matrices",
        &[(&[2, 3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "batch by matrix",
        &[(&[5, 2, 3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "matrix by batch",
        &[(&[2, 3], -1.0, 1.0), (&[5, 3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "batches",
        &[(&[5, 1, 2, 3], -1.0, 1.0), (&[2, 3, 2], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "vector by batch",
        &[(&[3], -1.0, 1.0), (&[5, 3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check("a matrix by itself", &[(&[3, 3], 0.5, 1.0)], |x| {
        x[0].t()?.matmul(&x[0])
    });
}

#[test]
fn of_arrangements_and_selections() {
    const A: Leaf = (&[2, 3, 4], -1.0, 1.0);
    let index = |data: &[i64], dims: &[usize]| Tensor::from_slice(data, dims, ()).unwrap();
    check("reshape", &[A], |x| {
        x[0].reshape([4, 6])?.matmul(&x[0].reshape([6, 4])?)
    });
    check("permute", &[A], |x| x[0].permute([2, 0, 1])?.square());
    check("transpose", &[A], |x| {
        x[0].transpose(0, 2)?.reshape([-1])?.exp()
    });
    check("expand", &[(&[3, 1], -1.0, 1.0)], |x| {
        x[0].expand([2, 3, 4])?.square()
    });
    check("unsqueeze, squeeze", &[A], |x| {
        x[0].unsqueeze(1)?.exp()?.squeeze(1)
    });
    check("narrow", &[A], |x| x[0].narrow(1, 1, 2)?.square());
    check("slice", &[A], |x| x[0].slice(2, 1, 4, 2)?.exp());
    check("select", &[A], |x| {
        x[0].select(1, -1)?.mul(&x[0].select(1, 0)?)
    });
    check("cat", &[A, (&[2, 1, 4], -1.0, 1.0)], |x| {
        Tensor::cat(&[&x[0], &x[1], &x[0]], 1)?.square()
    });
    check("stack", &[A], |x| {
        Tensor::stack(&[&x[0], &x[0].exp()?], 1)?.square()
    });
    let rows = index(&[2, 0, 2], &[3]);
    check("index_select", &[A], |x| {
        x[0].index_select(1, &rows)?.square()
    });
    let computed = index(&[1, -1, 1], &[3]).add(1).unwrap();
    check("index_select computed", &[A], |x| {
        x[0].index_select(1, &computed)?.square()
    });
    let picks = index(&[2, 0, 2, 1], &[1, 2, 2]);
    check("gather", &[A], |x| x[0].gather(1, &picks)?.square());
    let labels = index(&[2, 0], &[2]);
    check("cross_entropy", &[(&[2, 3], -1.0, 1.0)], |x| {
        xla::nn::cross_entropy(&x[0], &labels)
    });
    check("in-place", &[A, (&[3], -1.0, 1.0)], |x| {
        let y = x[0].mul(3)?;
        y.select(2, 1)?.mul_(&x[1])?;
        y.slice(2, 0, 4, 3)?
            .add_(&x[0].slice(2, 0, 4, 3)?.square()?)?;
        y.permute([2, 1, 0])?.square()
    });
}
