//! Loops on the device: values and gradients are those of the loop written out.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tests::check::{close, values};
use tests::with_devices;
use xla::metrics::Scope;
use xla::{
    DType, Error, GradOptions, Result, ScanOptions, Tensor, WhileOptions, fori_loop, no_grad, scan,
    scan_with, while_loop, while_loop_with,
};

fn tensor(data: &[f64], dims: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(data, dims, ())
}

fn noise(dims: &[usize]) -> Result<Tensor> {
    Tensor::randn(dims, DType::F64)?.mul(0.5)
}

fn grad(of: &Tensor) -> Result<Vec<f64>> {
    values(&of.grad().expect("a gradient"))
}

/// A recurrent layer: `h' = tanh(x w + h u + 0.1)`, with the outputs `h'^2`.
fn cell(h: &Tensor, x: &Tensor, w: &Tensor, u: &Tensor) -> Result<(Tensor, Tensor)> {
    let new = (x.matmul(w)?.add(&h.matmul(u)?)? + 0.1)?.tanh()?;
    let out = new.mul(&new)?;
    Ok((new, out))
}

struct Layer {
    w: Tensor,
    u: Tensor,
    h: Tensor,
    x: Tensor,
}

impl Layer {
    fn new() -> Result<Layer> {
        xla::manual_seed(5)?;
        let leaf = |dims: &[usize]| noise(dims)?.requires_grad_(true);
        Ok(Layer {
            w: leaf(&[3, 4])?,
            u: leaf(&[4, 4])?,
            h: leaf(&[2, 4])?,
            x: leaf(&[3, 2, 3])?,
        })
    }

    fn run(&self, scanned: bool, reverse: bool) -> Result<(Tensor, Tensor)> {
        // Operators between the leaves and the loop, so that gradients flow on.
        let (w, x) = (self.w.mul(1.5)?, self.x.sin()?);
        if scanned {
            let options = ScanOptions {
                reverse,
                ..ScanOptions::default()
            };
            let (carry, outs) = scan_with(options, &[&self.h], &[&x], |h, x| {
                let (h, out) = cell(&h[0], &x[0], &w, &self.u)?;
                Ok((vec![h], vec![out]))
            })?;
            return Ok((carry[0].clone(), outs[0].clone()));
        }
        let mut h = self.h.clone();
        let mut outs = vec![None; 3];
        for step in 0..3 {
            let at = if reverse { 2 - step } else { step };
            let (new, out) = cell(&h, &x.select(0, at as i64)?, &w, &self.u)?;
            h = new;
            outs[at] = Some(out);
        }
        let outs: Vec<&Tensor> = outs.iter().flatten().collect();
        Ok((h, Tensor::stack(&outs, 0)?))
    }

    fn leaves(&self) -> [&Tensor; 4] {
        [&self.w, &self.u, &self.h, &self.x]
    }
}

#[test]
fn a_scan_is_the_loop_written_out() {
    with_devices(1, || {
        for (reverse, synced) in [(true, false), (false, true)] {
            let run = |scanned| -> Result<Vec<Vec<f64>>> {
                let layer = Layer::new()?;
                let (last, outs) = layer.run(scanned, reverse)?;
                let weight = noise(&[3, 2, 4])?;
                let loss = last.exp()?.sum((), false)?;
                let loss = loss.add(&outs.mul(&weight)?.sum((), false)?)?;
                if synced {
                    xla::sync()?.wait()?;
                }
                loss.backward()?;
                let mut all = vec![values(&last)?, values(&outs)?];
                for leaf in layer.leaves() {
                    all.push(grad(leaf)?);
                }
                Ok(all)
            };
            for (got, expected) in run(true).unwrap().iter().zip(run(false).unwrap()) {
                close(&format!("{reverse} {synced}"), got, &expected, 1e-12);
            }
        }
    });
}

#[test]
fn gradients_of_gradients_too() {
    with_devices(1, || {
        let run = |scanned| -> Result<Vec<Vec<f64>>> {
            let layer = Layer::new()?;
            let (last, outs) = layer.run(scanned, false)?;
            let loss = last.sum((), false)?.add(&outs.exp()?.sum((), false)?)?;
            let options = GradOptions {
                create_graph: true,
                ..GradOptions::default()
            };
            let first = xla::grad(&[&loss], &layer.leaves(), options)?;
            let mut norm = Tensor::zeros((), DType::F64)?;
            for gradient in first.iter().flatten() {
                norm = norm.add(&gradient.square()?.sum((), false)?)?;
            }
            norm.backward()?;
            layer.leaves().into_iter().map(grad).collect()
        };
        for (got, expected) in run(true).unwrap().iter().zip(run(false).unwrap()) {
            close("second", got, &expected, 1e-10);
        }
    });
}

#[test]
fn one_program_whose_numbers_are_data() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let x = tensor(&[1.0, 2.0], &[2])?;
            let start = tensor(&[0.0], &[1])?;
            xla::sync()?;
            let scope = Scope::new();
            for rate in [0.5, 0.0, 1.0, 3.0] {
                // (0 * r + x0) * r + x1
                let (carry, _) = scan(&[&start], &[&x], |c, x| {
                    Ok((vec![c[0].mul(rate)?.add(&x[0])?], vec![]))
                })?;
                assert_eq!(carry[0].to_vec::<f64>()?, [rate + 2.0]);
            }
            assert_eq!((scope.compiles(), scope.executions()), (1, 4));
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn loops_in_loops_and_lengths_of_zero_and_one() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let x = tensor(&[0.3], &[1])?.requires_grad_(true)?;
            // x -> x + 0.1 i x, 3 times, within 4 rounds of x -> x^2 + ...
            let looped = fori_loop(4, &[&x], |i, c| {
                let scale = i.to_dtype(DType::F64)?.mul(0.1)?;
                let inner = fori_loop(3, &[&c[0]], |_, c| {
                    Ok(vec![c[0].add(&c[0].mul(&scale)?)?.sin()?])
                })?;
                Ok(vec![inner[0].add(&x)?])
            })?;
            let mut plain = x.clone();
            for i in 0..4 {
                let mut c = plain;
                for _ in 0..3 {
                    c = c.add(&c.mul(0.1 * f64::from(i))?)?.sin()?;
                }
                plain = c.add(&x)?;
            }
            let of = |y: &Tensor| -> Result<Vec<f64>> {
                let options = || GradOptions {
                    create_graph: true,
                    ..GradOptions::default()
                };
                let first = xla::grad(&[y], &[&x], options())?.remove(0).unwrap();
                let second = xla::grad(&[&first], &[&x], options())?.remove(0).unwrap();
                values(&Tensor::cat(&[y, &first, &second], 0)?)
            };
            close("nested", &of(&looped[0])?, &of(&plain)?, 1e-12);
            for length in [0, 1] {
                let xs = tensor(&[5.0; 1][..length], &[length])?;
                let (carry, outs) = scan(&[&x], &[&xs], |c, x| {
                    Ok((vec![c[0].add(&x[0])?], vec![c[0].mul(&x[0])?]))
                })?;
                assert_eq!(outs[0].dims(), [length, 1]);
                let expected = 0.3 + 5.0 * length as f64;
                close("short", &values(&carry[0])?, &[expected], 1e-12);
            }
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn what_the_body_changes_in_place_is_carried() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let total = Tensor::zeros(2, DType::F64)?;
            let xs = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2])?;
            let (_, seen) = scan(&[], &[&xs], |_, x| {
                total.add_(&x[0])?;
                Ok((vec![], vec![total.clone()]))
            })?;
            assert_eq!(seen[0].to_vec::<f64>()?, [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
            assert_eq!(total.to_vec::<f64>()?, [9.0, 12.0]);
            // Random numbers go on as they do in a loop written out.
            let draw = |scanned: bool| -> Result<Vec<f64>> {
                xla::manual_seed(11)?;
                let first = Tensor::rand(1, DType::F64)?;
                let mut all = match scanned {
                    true => {
                        let none = ScanOptions {
                            length: Some(4),
                            ..ScanOptions::default()
                        };
                        let body = |_: &[Tensor], _: &[Tensor]| {
                            Ok((vec![], vec![Tensor::rand(3, DType::F64)?]))
                        };
                        values(&scan_with(none, &[], &[], body)?.1[0])?
                    }
                    false => {
                        let rows: Vec<Tensor> = (0..4)
                            .map(|_| Tensor::rand(3, DType::F64))
                            .collect::<Result<_>>()?;
                        values(&Tensor::stack(&rows.iter().collect::<Vec<_>>(), 0)?)?
                    }
                };
                all.extend(values(&first)?);
                all.extend(values(&Tensor::rand(2, DType::F64)?)?);
                Ok(all)
            };
            assert_eq!(draw(true)?, draw(false)?);
            Ok(())
        };
        run().unwrap();
    });
}

/// Steps of gradient descent inside of one loop: `w <- w - 0.1 * d/dw (w - x)^2`.
#[test]
fn a_training_loop_is_one_program() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let w = tensor(&[0.0], &[1])?.requires_grad_(true)?;
            let xs = tensor(&[1.0, 2.0, 3.0], &[3, 1])?;
            xla::sync()?;
            let scope = Scope::new();
            let (_, losses) = no_grad(|| {
                scan(&[], &[&xs], |_, x| {
                    let loss = xla::enable_grad(|| w.sub(&x[0])?.square())?;
                    let gradient = xla::grad(&[&loss], &[&w], GradOptions::default())?;
                    let gradient = gradient.into_iter().flatten().next().unwrap();
                    w.sub_(&gradient.mul(0.1)?)?;
                    Ok((vec![], vec![loss.detach()?]))
                })
            })?;
            let (mut expected, mut at) = (Vec::new(), 0.0_f64);
            for x in [1.0, 2.0, 3.0] {
                expected.push((at - x) * (at - x));
                at -= 0.1 * 2.0 * (at - x);
            }
            close("losses", &values(&losses[0])?, &expected, 1e-12);
            close("weight", &values(&w)?, &[at], 1e-12);
            assert!(w.requires_grad() && w.is_leaf());
            assert_eq!(scope.executions(), 1);
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn a_while_loop_ends_with_its_condition() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let limit = tensor(&[1000.0], &[])?;
            let grown = while_loop(
                &[&tensor(&[3.0], &[])?, &Tensor::zeros((), DType::I64)?],
                |c| c[0].lt(&limit),
                |c| Ok(vec![c[0].mul(2)?, c[1].add(1)?]),
            )?;
            // 3 * 2^9 = 1536 is the first that is not below 1000.
            assert_eq!(grown[0].item::<f64>()?, 1536.0);
            assert_eq!(grown[1].item::<i64>()?, 9);
            // Newton's iteration for a square root, with its derivative 1 / (2 sqrt(a)).
            let root = |max_iterations| -> Result<(Tensor, Tensor)> {
                let a = tensor(&[2.0], &[])?.requires_grad_(true)?;
                let options = WhileOptions { max_iterations };
                let found = while_loop_with(
                    options,
                    &[&a.mul(1)?],
                    |c| c[0].square()?.sub(&a)?.abs()?.gt(1e-12),
                    |c| Ok(vec![c[0].add(&a.div(&c[0])?)?.mul(0.5)?]),
                )?;
                Ok((a, found[0].clone()))
            };
            let (a, found) = root(Some(50))?;
            close("root", &values(&found)?, &[2.0_f64.sqrt()], 1e-12);
            found.backward()?;
            close("slope", &grad(&a)?, &[0.5 / 2.0_f64.sqrt()], 1e-9);
            // 1, 1.5, 1.41667: a bound ends it.
            let (_, found) = root(Some(2))?;
            close("bound", &values(&found)?, &[17.0 / 12.0], 1e-12);
            let (_, found) = root(None)?;
            close("unbounded", &values(&found)?, &[2.0_f64.sqrt()], 1e-12);
            let (_, found) = root(None)?;
            let error = found.backward().unwrap_err();
            assert!(matches!(error, Error::Autograd { .. }), "{error}");
            assert!(error.to_string().contains("max_iterations"), "{error}");
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn what_a_body_cannot_do_is_an_error_at_its_line() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let x = tensor(&[1.0, 2.0], &[2])?;
            let outer = x.exp()?;
            let read = scan(&[&x], &[], |_, _| unreachable!());
            assert!(matches!(read, Err(Error::Argument { .. })));
            let read = fori_loop(3, &[&x], |_, c| {
                c[0].to_vec::<f64>()?;
                Ok(c.to_vec())
            });
            let error = read.unwrap_err();
            assert!(matches!(error, Error::InBody { .. }), "{error}");
            assert!(error.to_string().contains("loops.rs"), "{error}");
            let error = fori_loop(3, &[&x], |_, c| {
                outer.to_vec::<f64>()?;
                xla::sync()?;
                Ok(c.to_vec())
            });
            assert!(matches!(error, Err(Error::InBody { .. })));
            let mut leaked = None;
            fori_loop(3, &[&x], |_, c| {
                leaked = Some(c[0].mul(2)?);
                Ok(c.to_vec())
            })?;
            let error = leaked.unwrap().to_vec::<f64>().unwrap_err();
            assert!(matches!(error, Error::InBody { .. }), "{error}");
            let changed = fori_loop(3, &[&x], |_, c| Ok(vec![c[0].sum((), false)?]));
            assert!(matches!(changed, Err(Error::ShapeMismatch { .. })));
            let changed = fori_loop(3, &[&x], |_, c| Ok(vec![c[0].to_dtype(DType::F32)?]));
            assert!(matches!(changed, Err(Error::DTypeMismatch { .. })));
            let number = while_loop(&[&x], |c| c[0].sum((), false), |c| Ok(c.to_vec()));
            assert!(matches!(number, Err(Error::ShapeMismatch { .. })));
            // Whatever happened, what was recorded before is as it was.
            close(
                "after",
                &values(&outer)?,
                &[1.0_f64.exp(), 2.0_f64.exp()],
                1e-12,
            );
            Ok(())
        };
        run().unwrap();
    });
}

/// A backward pass that another thread begins in the middle of a body has to wait for the body's end,
/// and the body for nothing: a body that waits for such a pass makes it fail, and goes on.
#[test]
fn another_threads_backward_pass_waits_for_the_body() {
    let variables = [("CPU_NUM_DEVICES", "1"), ("XLA_DEADLINE_SECONDS", "5")];
    tests::with_env(&variables, || {
        let leaf = || Tensor::full([2], 3.0, DType::F32)?.requires_grad_(true);
        let (waits, awaited) = (leaf().unwrap(), leaf().unwrap());
        let [after, within] = [&waits, &awaited].map(|leaf| leaf.mul(2.0)?.sum((), false));
        let (after, within) = (after.unwrap(), within.unwrap());
        let backward = |y: &Tensor| {
            let (y, (begins, begun)) = (y.clone(), mpsc::channel());
            let (ends, ended) = mpsc::channel();
            thread::spawn(move || {
                begins.send(()).unwrap();
                // Nobody hears of it where the test has failed.
                let _ = ends.send(y.backward());
            });
            begun.recv().unwrap();
            ended
        };
        let x = Tensor::full([2], 3.0, DType::F32).unwrap();
        let mut waiting = None;
        let results = fori_loop(3, &[&x], |_, carry| {
            let failed = backward(&within).recv_timeout(Duration::from_secs(60));
            assert!(matches!(failed, Ok(Err(Error::Deadline { .. }))));
            waiting = Some(backward(&after));
            thread::sleep(Duration::from_millis(200));
            // A pass of its own.
            let inner = carry[0].detach()?.requires_grad_(true)?;
            inner.mul(&inner)?.sum((), false)?.backward()?;
            Ok(vec![inner.grad().expect("a gradient")])
        });
        assert_eq!(results.unwrap()[0].to_vec::<f32>().unwrap(), [24.0; 2]);
        let waited = waiting.unwrap().recv_timeout(Duration::from_secs(60));
        waited.unwrap().unwrap();
        let gradient = waits.grad().unwrap();
        assert_eq!(gradient.to_vec::<f32>().unwrap(), [2.0; 2]);
    });
}
