//! Values of operators, views and in-place changes, against hand-computed results.

use xla::{DType, Tensor};

#[test]
fn arithmetic_and_broadcasting() -> xla::Result<()> {
    let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], ())?;
    let b = Tensor::from_slice(&[10.0f32, 20.0], [2], ())?;
    let c = (&a * &b + &a)?;
    assert_eq!(c.to_vec::<f32>()?, [11.0, 42.0, 33.0, 84.0]);
    assert_eq!((1.0 - &a)?.to_vec::<f32>()?, [0.0, -1.0, -2.0, -3.0]);
    assert_eq!(a.sum(0, false)?.to_vec::<f32>()?, [4.0, 6.0]);
    assert_eq!(a.mean((), false)?.item::<f64>()?, 2.5);
    assert_eq!(a.matmul(&a)?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
    assert_eq!(a.gt(2)?.dtype(), DType::Bool);
    Ok(())
}

#[test]
fn writes_through_views_reach_base_and_siblings() -> xla::Result<()> {
    let x = Tensor::arange(0, 6, 1, DType::F32)?.reshape([2, 3])?;
    let t = x.t()?;
    let row = x.select(0, 1)?;
    row.add_(10.0)?;
    assert_eq!(t.to_vec::<f32>()?, [0.0, 13.0, 1.0, 14.0, 2.0, 15.0]);
    t.select(0, 0)?.zero_()?;
    xla::sync()?.wait()?;
    t.slice(0, 0, 3, 2)?.mul_(2)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 4.0, 0.0, 14.0, 30.0]);
    Ok(())
}

#[test]
fn a_simple_gradient() -> xla::Result<()> {
    let w = Tensor::from_slice(&[2.0f32, -3.0], [2], ())?.requires_grad_(true)?;
    let y = (&w * &w)?.sum((), false)?;
    y.backward()?;
    assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [4.0, -6.0]);
    Ok(())
}
