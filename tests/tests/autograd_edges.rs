//! Gradients where a function has a kink, and of nothing.

use tests::differences::{grad_of, leaf};
use xla::{DType, Result, Tensor};

#[test]
fn at_kinks() -> Result<()> {
    let w = leaf(&[0.0, 1.0, -1.0]);
    w.relu()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0, 1.0, 0.0]);
    w.zero_grad();
    w.abs()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0, 1.0, -1.0]);
    w.zero_grad();
    w.maximum(&w.detach()?)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.5; 3]);
    let ties = leaf(&[4.0, 1.0, 4.0]);
    ties.amax((), false)?.backward()?;
    assert_eq!(grad_of(&ties), [0.5, 0.0, 0.5]);
    let zero = leaf(&[0.0, 0.0]);
    let exponents = Tensor::from_slice(&[0.0f32, 2.0], 2, ())?.requires_grad_(true)?;
    zero.pow(&exponents)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&zero), [0.0, 0.0]);
    assert_eq!(grad_of(&exponents), [0.0, 0.0]);
    Ok(())
}

#[test]
fn of_indices_out_of_range() -> Result<()> {
    let computed = Tensor::from_slice(&[0i64, 2, -3, 300], 4, ())?.add(1)?; // 1, 3, -2, 301
    let byte = Tensor::from_slice(&[254u8, 0], 2, ())?.add(1)?; // 255, 1
    let w = leaf(&[1.0, 2.0, 3.0]);
    for indices in [&computed, &byte] {
        for picked in [w.index_select(0, indices)?, w.gather(0, indices)?] {
            w.zero_grad();
            picked.mul(5)?.sum((), false)?.backward()?;
            assert_eq!(grad_of(&w), [0.0, 5.0, 0.0]);
        }
    }
    let long = Tensor::zeros(300, ())?.requires_grad_(true)?;
    for picked in [long.index_select(0, &byte)?, long.gather(0, &byte)?] {
        long.zero_grad();
        picked.sum((), false)?.backward()?;
        let grad = grad_of(&long);
        assert_eq!(
            (grad[255], grad[1], grad.iter().sum::<f32>()),
            (1.0, 1.0, 2.0)
        );
    }
    Ok(())
}

#[test]
fn where_there_are_no_elements() -> Result<()> {
    let none = Tensor::zeros([0, 3], ())?.requires_grad_(true)?;
    let w = leaf(&[1.0, 2.0, 3.0]);
    (&none * &w)?.exp()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    assert_eq!(none.grad().map(|g| g.dims().to_vec()), Some(vec![0, 3]));
    let rows = Tensor::zeros(0, DType::I64)?;
    w.zero_grad();
    w.index_select(0, &rows)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    w.zero_grad();
    w.gather(0, &rows)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    Ok(())
}

#[test]
fn of_a_batch_of_products_of_nothing() -> Result<()> {
    let whole = |dims: &[usize]| Tensor::zeros(dims, ())?.copy()?.requires_grad_(true);
    let (a, b) = (whole(&[2, 3, 0])?, whole(&[0, 4])?);
    a.matmul(&b)?.sum((), false)?.backward()?;
    let dims = |x: &Tensor| x.grad().expect("there is a gradient").dims();
    assert_eq!((dims(&a), dims(&b)), (&[2, 3, 0][..], &[0, 4][..]));
    Ok(())
}
