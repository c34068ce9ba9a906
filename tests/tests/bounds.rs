//! Where values begin and end: ranges of indices, of numbers, of steps, of sizes.

use xla::{DType, Result, Tensor};

fn i64s(data: &[i64]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

#[test]
fn a_part_of_the_indices_is_judged_by_itself() -> Result<()> {
    let indices = i64s(&[0, 1, 99]);
    let x = Tensor::from_slice(&[5.0f32, 6.0], 2, ())?;
    let part = indices.narrow(0, 0, 2)?;
    assert_eq!(x.index_select(0, &part)?.to_vec::<f32>()?, [5.0, 6.0]);
    assert_eq!(part.one_hot(None)?.to_vec::<i64>()?, [1, 0, 0, 1]);
    // All of them in another arrangement are still known to be wrong.
    assert!(
        x.index_select(0, &indices.reshape([3, 1])?.squeeze(1)?)
            .is_err()
    );
    Ok(())
}

#[test]
fn ranges_of_large_numbers() -> Result<()> {
    let start = 1i64 << 60;
    let range = Tensor::arange(start, start + 5, 2, ())?;
    assert_eq!(range.to_vec::<i64>()?, [start, start + 2, start + 4]);
    let down = Tensor::arange(start, start - 2, -1, ())?;
    assert_eq!(down.to_vec::<i64>()?, [start, start - 1]);
    assert!(Tensor::arange(0, i64::MAX, 1, ()).is_err());
    let wide = Tensor::arange(i64::MIN, i64::MAX, i64::MAX, ())?;
    assert_eq!(wide.to_vec::<i64>()?, [i64::MIN, -1, i64::MAX - 1]);
    // In 8 bits the numbers wrap, so the largest is 255.
    let bytes = Tensor::arange(0, 257, 1, DType::U8)?;
    assert_eq!(bytes.one_hot(None)?.dims(), [257, 256]);
    Ok(())
}

#[test]
fn steps_longer_than_the_axis() -> Result<()> {
    let x = Tensor::arange(0.0, 16.0, 1.0, ())?.reshape([4, 4])?;
    for step in [4, 1 << 62, usize::MAX] {
        let first = x.slice(0, 0, 4, step)?;
        assert_eq!(first.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0], "{step}");
    }
    Ok(())
}

#[test]
fn a_bad_axis_of_stack_is_at_the_callers_line() {
    let x = i64s(&[1]);
    let error = Tensor::stack(&[&x, &x], 7).unwrap_err().to_string();
    assert!(error.contains(file!()), "{error}");
}

#[test]
fn sizes_beyond_any_memory_are_errors() -> Result<()> {
    let side = 1usize << 40;
    for made in [
        Tensor::zeros([side, side], ()),
        Tensor::rand([side, side], ()),
        Tensor::zeros([1, 1], ())?.expand([side, side]),
        Tensor::zeros([side, 1], ())?.add(&Tensor::zeros([side], ())?),
    ] {
        let error = made.unwrap_err().to_string();
        assert!(error.contains(file!()), "{error}");
    }
    // What could be counted but not allocated fails when it is computed.
    for large in [1usize << 40, 1 << 60, (1 << 61) - 1] {
        let x = Tensor::zeros(large, ())?;
        assert!(x.to_literal().is_err(), "{large}");
    }
    Ok(())
}
