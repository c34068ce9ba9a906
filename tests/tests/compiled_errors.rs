//! What compiled functions refuse, and what they fall back from.

use std::cell::Cell;
use tests::with_devices;
use xla::nn::{Linear, Module};
use xla::optim::Sgd;
use xla::{Error, Result, Tensor};

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], ()).unwrap()
}

fn line_of(error: &Error) -> u32 {
    let at = error.location().expect("a line");
    assert_eq!(at.file(), file!());
    at.line()
}

#[test]
fn a_full_graph_refuses_whatever_executes_with_its_line() {
    with_devices(1, || {
        let x = vector(&[1.0, 2.0]);
        let line = line!() + 2;
        let mut read = xla::compile_fn(|x: Tensor| {
            let largest = x.amax((), false)?.item::<f32>()?;
            x.mul(largest)
        })
        .name("read")
        .full_graph(true);
        let error = read.call(&x).unwrap_err();
        assert!(
            matches!(&error, Error::GraphBreak { function, reason, .. }
            if function == "read" && reason.contains("item")),
            "{error}"
        );
        assert_eq!(line_of(&error), line);

        let line = line!() + 2;
        let mut printed = xla::compile_fn(|x: Tensor| {
            let _ = x.to_vec::<f32>()?;
            Ok(x)
        })
        .full_graph(true);
        assert_eq!(line_of(&printed.call(&x).unwrap_err()), line);

        let line = line!() + 2;
        let mut synced = xla::compile_fn(|x: Tensor| {
            xla::sync()?;
            x.add(1)
        })
        .full_graph(true);
        assert_eq!(line_of(&synced.call(&x).unwrap_err()), line);

        // Also what is left somewhere else, at the line where it was made.
        let kept = Cell::new(None);
        let line = line!() + 2;
        let mut leaks = xla::compile_fn(|x: Tensor| {
            kept.set(Some(x.exp()?));
            x.add(1)
        })
        .full_graph(true);
        let error = leaks.call(&x).unwrap_err();
        assert!(matches!(error, Error::GraphBreak { .. }), "{error}");
        assert_eq!(line_of(&error), line);
        // What goes on outside is as it was.
        assert_eq!(x.add(1).unwrap().to_vec::<f32>().unwrap(), [2.0, 3.0]);
    });
}

#[test]
fn without_a_full_graph_it_is_ordinary_code() {
    with_devices(1, || {
        let mut state = vector(&[1.0, 4.0]);
        let mut grow = xla::compile(|state: &mut Tensor, by: Tensor| {
            state.add_(&by)?;
            let largest = state.amax((), false)?.item::<f32>()?;
            state.div(largest)
        })
        .verify_every(0);
        for step in 1..=4 {
            let shown = grow.call(&mut state, 1.0).unwrap().to_vec::<f32>().unwrap();
            let (low, high) = (1.0 + step as f32, 4.0 + step as f32);
            assert_eq!(shown, [low / high, 1.0]);
            assert_eq!(state.to_vec::<f32>().unwrap(), [low, high]);
            assert_eq!(grow.recordings(), step);
        }
    });
}

#[test]
fn too_many_graphs_is_an_error_that_says_how_they_differ() {
    with_devices(1, || {
        let mut double = xla::compile_fn(|x: Tensor| x.mul(2.0)).max_different_graphs(2);
        for values in [&[1.0_f32] as &[f32], &[1.0, 2.0], &[3.0]] {
            double.call(vector(values)).unwrap();
        }
        let error = double.call(vector(&[1.0, 2.0, 3.0])).unwrap_err();
        assert!(
            matches!(&error, Error::TooManyGraphs { limit: 2, difference, .. }
                if difference.contains("f32[3]")),
            "{error}"
        );
        let known = double.call(vector(&[4.0, 5.0])).unwrap();
        assert_eq!(known.to_vec::<f32>().unwrap(), [8.0, 10.0]);
    });
}

#[test]
fn a_captured_number_that_changed_is_found_with_its_line() {
    with_devices(1, || {
        let calls = Cell::new(0);
        let line = line!() + 3;
        let mut scaled = xla::compile_fn(|x: Tensor| {
            calls.set(calls.get() + 1);
            x.mul(f64::from(calls.get()))
        })
        .verify_every(3);
        let x = vector(&[1.0]);
        for _ in 0..3 {
            let y = scaled.call(&x).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [1.0]);
        }
        let error = scaled.call(&x).unwrap_err();
        match &error {
            Error::CapturedNumber { recorded, now, .. } => {
                assert_eq!((*recorded, *now), (1.0, 2.0))
            }
            other => panic!("{other}"),
        }
        assert_eq!(line_of(&error), line);

        let squares = Cell::new(false);
        let line = line!() + 3;
        let mut chosen = xla::compile_fn(|x: Tensor| match squares.get() {
            false => x.exp(),
            true => x.square(),
        })
        .verify_every(1);
        chosen.call(&x).unwrap();
        squares.set(true);
        let error = chosen.call(&x).unwrap_err();
        assert!(matches!(&error, Error::CapturedChoice { .. }), "{error}");
        assert_eq!(line_of(&error), line);
    });
}

#[test]
fn an_optimizer_must_be_in_the_state() {
    with_devices(1, || {
        let model = Linear::new(2, 1, ()).unwrap();
        let mut optimizer = Sgd::new(model.parameters(), 0.1);
        let mut step = xla::compile_fn(|x: Tensor| {
            model.forward(&x)?.sum((), false)?.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            Ok(())
        })
        .full_graph(true);
        let error = step.call(Tensor::ones([1, 2], ()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("Sgd::step"), "{error}");

        let mut optimizer = &mut Sgd::new(model.parameters(), 0.1);
        let mut step = xla::compile(|optimizer: &mut &mut Sgd, x: Tensor| {
            model.forward(&x)?.sum((), false)?.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            Ok(())
        })
        .full_graph(true);
        for _ in 0..2 {
            step.call(&mut optimizer, Tensor::ones([1, 2], ()).unwrap())
                .unwrap();
        }
        assert_eq!(step.recordings(), 1);
    });
}

#[test]
fn unfit_arguments_are_typed_errors_and_change_nothing() {
    with_devices(2, || {
        let table = vector(&[10.0, 20.0, 30.0]);
        let mut picked = xla::compile_fn(|(index, scale): (Tensor, Tensor)| {
            table.index_select(0, &index)?.mul(&scale)
        })
        .verify_every(0);
        let index = |values: &[i64]| Tensor::from_slice(values, [values.len()], ()).unwrap();
        for (values, expected) in [([0, 2], [20.0, 60.0]), ([1, 1], [40.0, 40.0])] {
            let got = picked.call((index(&values), 2.0)).unwrap();
            assert_eq!(got.to_vec::<f32>().unwrap(), expected);
        }
        assert_eq!(picked.recordings(), 1);
        // The range of an index is checked again.
        let line = line!() + 1;
        let error = picked.call((index(&[1, 3]), 2.0)).unwrap_err();
        assert!(
            matches!(
                error,
                Error::IndexOutOfRange {
                    index: 3,
                    size: 3,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(line_of(&error), line);
        // One that was computed is in no known range: another program, which gives NaN.
        let computed = index(&[0, 2]).add(&index(&[0, 1])).unwrap();
        let got = picked
            .call((&computed, 2.0))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert!(got[0] == 20.0 && got[1].is_nan(), "{got:?}");
        // A part of what came from the host is checked as a part.
        let part = index(&[7, 0, 1]).narrow(0, 1, 2).unwrap();
        let got = picked.call((&part, 1.0)).unwrap();
        assert_eq!(got.to_vec::<f32>().unwrap(), [10.0, 20.0]);
        // Floats are no indices, and tensors of two devices do not meet.
        let error = picked.call((vector(&[1.0]), 2.0)).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        let far = index(&[0, 1]).to(xla::device_at(1).unwrap()).unwrap();
        let error = picked.call((far, 2.0)).unwrap_err();
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        // It goes on.
        let got = picked.call((index(&[2, 2]), 1.0)).unwrap();
        assert_eq!(got.to_vec::<f32>().unwrap(), [30.0, 30.0]);
    });
}

#[test]
fn a_compiler_option_is_the_functions_own() {
    with_devices(1, || {
        let x = vector(&[1.0, 2.0]);
        let mut exp = xla::compile_fn(|x: Tensor| x.exp()?.sum((), false))
            .compiler_option("xla_cpu_enable_fast_math", true);
        let got: f32 = exp.call(&x).unwrap().item().unwrap();
        assert!((got - (1f32.exp() + 2f32.exp())).abs() < 1e-4);
        let plain = x
            .exp()
            .unwrap()
            .sum((), false)
            .unwrap()
            .item::<f32>()
            .unwrap();
        assert!((got - plain).abs() < 1e-4);
        let mut unknown = xla::compile_fn(|x: Tensor| x.exp())
            .name("odd")
            .compiler_option("xla_no_such_option", 1);
        let error = unknown.call(&x).unwrap_err();
        assert!(error.to_string().contains("xla_no_such_option"), "{error}");
        let again = x.exp().unwrap().to_vec::<f32>().unwrap();
        assert!((again[0] - 1f32.exp()).abs() < 1e-6);
    });
}

#[test]
fn an_argument_whose_program_failed_is_that_programs_error() {
    with_devices(1, || {
        let mut state = vector(&[1.0]);
        let mut add = xla::compile(|state: &mut Tensor, by: Tensor| {
            state.add_(&by.sum((), false)?).map(drop)
        });
        add.call(&mut state, vector(&[1.0])).unwrap();
        let huge = Tensor::full([1_usize << 44], 1.0, ()).unwrap();
        let failed: Result<()> = add.call(&mut state, &huge);
        assert!(failed.is_err());
        drop(huge);
        assert_eq!(state.to_vec::<f32>().unwrap(), [2.0]);
        add.call(&mut state, vector(&[3.0])).unwrap();
        assert_eq!(state.to_vec::<f32>().unwrap(), [5.0]);
    });
}
