//! `XLA_DEBUG=nan` and `XLA_DEBUG=index`: what a fused program tells about the values inside of it.

use tests::with_env;
use xla::nn::{Linear, Module};
use xla::{Error, Result, Tensor, optim};

/// Runs `f` where both are looked for.
fn watched(f: impl FnOnce() -> Result<()>) {
    with_env(
        &[("XLA_DEBUG", "nan,index"), ("CPU_NUM_DEVICES", "1")],
        || f().unwrap(),
    );
}

#[test]
fn the_line_that_made_a_nan_is_named() {
    watched(|| {
        let x = Tensor::from_slice(&[1.0_f32, -4.0, 9.0], [3], ())?;
        let shifted = x.mul(2)?.add(1)?;
        let line = line!() + 1;
        let root = shifted.sqrt()?;
        let loss = root.exp()?.sum((), false)?;
        let error = xla::sync().err().expect("a NaN");
        let Error::NotANumber { op, at, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*op, at.location().map(|l| l.line())), ("sqrt", Some(line)));
        // Said once; the values can be looked at.
        assert!(loss.item::<f32>()?.is_nan());
        assert!(root.to_vec::<f32>()?[1].is_nan());
        Ok(())
    });
}

#[test]
fn an_infinity_is_named_as_what_it_came_from() {
    watched(|| {
        let x = Tensor::from_slice(&[0.0_f32, 1.0], [2], ())?;
        let line = line!() + 1;
        let inverse = x.reciprocal()?;
        let error = inverse
            .sub(&inverse)?
            .sum((), false)?
            .item::<f32>()
            .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("sub: produced a NaN"), "{text}");
        assert!(
            text.contains(&format!("reciprocal at tests/tests/watched.rs:{line}")),
            "{text}"
        );
        // An infinity alone is a number, as in a mask.
        assert_eq!(x.reciprocal()?.to_vec::<f32>()?, [f32::INFINITY, 1.0]);
        // What is left out is no NaN of the result.
        let safe = x.gt(0)?.select_from(&x.log()?.mul(&x)?, 0)?;
        assert_eq!(safe.to_vec::<f32>()?, [0.0, 0.0]);
        Ok(())
    });
}

#[test]
fn in_a_training_step_the_backward_pass_counts_as_its_forward_lines() {
    watched(|| {
        let model = Linear::new(2, 2, ())?;
        let mut optimizer = optim::Sgd::new(model.parameters(), 0.1);
        let x = Tensor::zeros([3, 2], ())?;
        let y = model.forward(&x)?.sub(&model.forward(&x)?)?;
        let line = line!() + 1;
        let root = y.sqrt()?;
        // The derivative of a root at 0 is infinite, and times 0 it is NaN.
        root.mul(0.0)?.sum((), false)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        let error = xla::sync().err().expect("a NaN");
        let text = error.to_string();
        assert!(text.contains(&format!("watched.rs:{line}")), "{text}");
        Ok(())
    });
}

#[test]
fn an_index_out_of_range_is_an_error() {
    watched(|| {
        let table = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3], ())?;
        let index = Tensor::from_slice(&[0_i64, 2], [2], ())?;
        assert_eq!(
            table.index_select(0, &index.add(0)?)?.to_vec::<f32>()?,
            [1.0, 3.0]
        );
        let beyond = index.mul(5)?;
        let line = line!() + 1;
        let taken = table.index_select(0, &beyond)?;
        let error = taken.to_vec::<f32>().unwrap_err();
        let Error::IndexOutOfRange {
            index: 10,
            axis: 0,
            size: 3,
            at,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(at.location().map(|l| l.line()), Some(line));
        let written = table.index_add(0, &beyond, &table.narrow(0, 0, 2)?, None)?;
        let error = written.to_vec::<f32>().unwrap_err();
        assert!(
            matches!(error, Error::IndexOutOfRange { index: 10, .. }),
            "{error}"
        );
        Ok(())
    });
}

#[test]
fn in_a_loop_the_line_of_its_body_is_named() {
    watched(|| {
        let start = Tensor::from_slice(&[1.0_f32], [1], ())?;
        let divisors = Tensor::from_slice(&[2.0_f32, 1.0, 0.0, -1.0], [4, 1], ())?;
        let line = line!() + 3;
        let (last, roots) = xla::scan(&[&start], &[&divisors], |carried, each| {
            let next = carried[0].div(&each[0])?;
            let root = next.sqrt()?;
            Ok((vec![next], vec![root]))
        })?;
        // 1 / 2 / 1 / 0 is infinite; divided by -1 it has no root.
        let error = xla::sync().err().expect("a NaN");
        let Error::NotANumber { op, at, note } = &error else {
            panic!("{error}");
        };
        assert_eq!((*op, at.location().map(|l| l.line())), ("sqrt", Some(line)));
        assert!(note.contains("in the body of scan at"), "{note}");
        assert_eq!(last[0].to_vec::<f32>()?, [f32::NEG_INFINITY]);
        assert!(roots[0].to_vec::<f32>()?[3].is_nan());

        // In a loop in a loop; what comes in as a NaN is nobody's there.
        let line = line!() + 5;
        let (outer, _) = xla::scan(&[&start], &[&divisors], |carried, each| {
            let inner = xla::while_loop(
                &[&carried[0], &each[0]],
                |v| v[1].sum((), false)?.gt(0.0),
                |v| Ok(vec![v[0].sub(1.0)?.log()?, v[1].sub(1.0)?]),
            )?;
            Ok((vec![inner[0].add(0.0)?], vec![]))
        })?;
        let error = outer[0].to_vec::<f32>().unwrap_err();
        let Error::NotANumber { op, at, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*op, at.location().map(|l| l.line())), ("log", Some(line)));
        Ok(())
    });
}

#[test]
fn an_index_out_of_range_in_a_loop_is_an_error() {
    watched(|| {
        let table = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3], ())?;
        let run = |indices: &[i64]| -> Result<Vec<f32>> {
            let indices = Tensor::from_slice(indices, [indices.len(), 1], ())?;
            let zero = Tensor::zeros([1], ())?;
            let (sum, _) = xla::scan(&[&zero], &[&indices], |sum, index| {
                let sum = sum[0].add(&table.index_select(0, &index[0])?)?;
                Ok((vec![sum], vec![]))
            })?;
            sum[0].to_vec()
        };
        assert_eq!(run(&[0, 1, 2, 2])?, [9.0]);
        let error = run(&[0, 7, 2, 2]).unwrap_err();
        let Error::IndexOutOfRange {
            op: "index_select",
            index: 7,
            size: 3,
            at,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        let line = at.location().map(|l| l.line());
        assert!(line.is_some_and(|line| line > 150), "{at}");
        Ok(())
    });
}
