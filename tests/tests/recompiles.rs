//! The classic traps of lazy tensors: what must not compile again, what must not run twice, and what
//! is said where a program is really another one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tests::alone;
use xla::data::{DataLoader, TensorDataset};
use xla::nn::functional::{Reduction, mse_loss};
use xla::nn::{self, Module};
use xla::optim::lr_scheduler::{LambdaLR, Scheduler};
use xla::optim::{Adam, Optimizer, Sgd};
use xla::testing::{Spent, budget};
use xla::{DType, Literal, Result, Tensor};

fn f32s(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

fn batch() -> (Tensor, Tensor) {
    let x: Vec<f32> = (0..32).map(|i| (i % 7) as f32 - 3.0).collect();
    let y: Vec<f32> = x.chunks(4).map(|row| row.iter().sum()).collect();
    (
        Tensor::from_slice(&x, [8, 4], ()).unwrap(),
        Tensor::from_slice(&y, [8, 1], ()).unwrap(),
    )
}

/// One step up to its sync, which is left to the caller.
fn descend(
    model: &nn::Linear,
    optimizer: &mut dyn Optimizer,
    x: &Tensor,
    y: &Tensor,
) -> Result<Tensor> {
    let loss = mse_loss(&model.forward(x)?, y, Reduction::Mean)?;
    loss.backward()?;
    optimizer.step()?;
    optimizer.zero_grad();
    Ok(loss)
}

fn linear() -> Result<nn::Linear> {
    let model = nn::Linear::new(4, 1, xla::device()?)?;
    xla::sync()?;
    Ok(model)
}

/// What an assertion on a budget says when it fails.
fn complaint<T>(spent: &Spent<T>, assert: impl FnOnce(&Spent<T>)) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| assert(spent))).err();
    let message = failed.expect("more is spent than the budget allows");
    *message.downcast::<String>().expect("a formatted message")
}

#[test]
fn a_learning_rate_that_changes_at_every_step_is_data() {
    alone(|| {
        let (x, y) = batch();
        let model = linear()?;
        let mut optimizer = Sgd::new(model.parameters(), 0.1).momentum(0.9);
        // Through 1 and 0, and back.
        let mut schedule = Scheduler::new(
            &mut optimizer,
            LambdaLR::new(|epoch| [1.0, 0.5, 10.0, 0.0, 0.25, 0.125][epoch as usize % 6]),
        )?;
        budget(|| {
            for _ in 0..12 {
                descend(&model, &mut optimizer, &x, &y)?;
                schedule.step(&mut optimizer)?;
                xla::sync()?;
            }
            Ok(())
        })?
        .compiles(1)
        .executions(12)
        .host_reads(0)
        .donations_missed(0);
        Ok(())
    });
}

#[test]
fn the_count_of_adams_steps_is_data() {
    alone(|| {
        let (x, y) = batch();
        let model = linear()?;
        let mut optimizer = Adam::new(model.parameters(), 0.1).amsgrad(true);
        budget(|| {
            for _ in 0..20 {
                descend(&model, &mut optimizer, &x, &y)?;
                xla::sync()?;
            }
            Ok(())
        })?
        .compiles(1)
        .executions(20)
        .donations_missed(0);
        Ok(())
    });
}

#[test]
fn a_number_that_becomes_zero_or_one_is_data() -> Result<()> {
    let x = f32s(&[1.0, -2.0]);
    let weigh = |w: f64| {
        let y = x.mul(w)?.add(&x.mul(1.0 - w)?)?.div(w + 1.0)?.pow(w)?;
        y.clamp(Some(-w), Some(1.0 + w))?.to_vec::<f32>()
    };
    weigh(0.3)?;
    budget(|| {
        [0.0, 1.0, -1.0, 2.0]
            .into_iter()
            .try_for_each(|w| weigh(w).map(drop))
    })?
    .compiles(0)
    .executions(4);
    Ok(())
}

#[test]
fn a_shorter_last_batch_is_a_second_program_and_says_why() {
    alone(|| {
        let samples: Vec<f32> = (0..40).map(|i| i as f32 / 40.0).collect();
        let data = || {
            TensorDataset::new(
                Literal::from_slice(&samples, [10, 4])?,
                Literal::from_slice(&samples[..10], [10, 1])?,
            )
        };
        let train = |drop_last: bool| -> Result<_> {
            let model = linear()?;
            let mut optimizer = Sgd::new(model.parameters(), 0.1);
            let loader = DataLoader::new(data()?).batch_size(4).drop_last(drop_last);
            budget(|| {
                for _epoch in 0..3 {
                    for batch in &loader {
                        let (x, y) = batch?;
                        descend(&model, &mut optimizer, &x, &y)?;
                        xla::sync()?;
                    }
                }
                Ok(())
            })
        };
        let spent = train(false)?;
        spent.compiles(2).executions(9);
        let said = complaint(&spent, |spent| _ = spent.compiles(1));
        for part in [
            "2 programs compiled where the budget is 1",
            "1 by sync() at tests/tests/recompiles.rs:",
            "parameter of f32[2, 4], was of f32[4, 4] (at ",
            "drop_last",
        ] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        // The program for whole batches is known by now.
        train(true)?.compiles(0).executions(6);
        Ok(())
    });
}

#[test]
fn printing_the_loss_is_one_read_and_no_other_program() {
    alone(|| {
        let (x, y) = batch();
        let model = linear()?;
        let mut optimizer = Sgd::new(model.parameters(), 0.1);
        let mut losses = Vec::new();
        let spent = budget(|| {
            for _ in 0..5 {
                let loss = descend(&model, &mut optimizer, &x, &y)?;
                xla::sync()?;
                losses.push(loss.item::<f32>()?);
            }
            Ok(())
        })?;
        spent
            .compiles(1)
            .executions(5)
            .host_reads(5)
            .bytes_read(20)
            .donations_missed(0);
        assert!(losses[4] < losses[0], "{losses:?}");
        let said = complaint(&spent, |spent| _ = spent.host_reads(0));
        let line = "\n  5 by item() at tests/tests/recompiles.rs:";
        assert!(said.contains(line), "{said}");
        Ok(())
    });
}

#[test]
fn a_value_read_before_sync_runs_everything_once() {
    alone(|| {
        let (x, y) = batch();
        let model = linear()?;
        let mut optimizer = Sgd::new(model.parameters(), 0.1);
        budget(|| {
            for _ in 0..4 {
                let loss = descend(&model, &mut optimizer, &x, &y)?;
                loss.item::<f32>()?;
                xla::sync()?;
            }
            Ok(())
        })?
        .compiles(1)
        .executions(4)
        .donations_missed(0);
        Ok(())
    });
}

#[test]
fn losses_that_are_kept_are_no_part_of_later_programs() {
    alone(|| {
        let (x, y) = batch();
        let model = linear()?;
        let mut optimizer = Sgd::new(model.parameters(), 0.1);
        let mut total = Tensor::zeros((), DType::F32)?;
        xla::sync()?;
        let mut losses = Vec::new();
        budget(|| {
            for _ in 0..6 {
                let loss = descend(&model, &mut optimizer, &x, &y)?.detach()?;
                total = total.add(&loss)?;
                losses.push(loss);
                xla::sync()?;
            }
            Ok(())
        })?
        .compiles(1)
        .executions(6);
        let sum: f32 = losses.iter().map(|l| l.item::<f32>().unwrap()).sum();
        assert!((total.item::<f32>()? - sum).abs() < 1e-4 * sum);
        Ok(())
    });
}

#[test]
fn masks_are_data_unless_their_count_is_a_shape() -> Result<()> {
    let x = f32s(&[1.0, 2.0, 3.0, 4.0]);
    let masks = [[true, false, true, false], [false; 4], [true; 4]];
    let masks = masks.map(|mask| Tensor::from_slice(&mask, [4], ()).unwrap());
    let fill = |mask: &Tensor| {
        x.masked_fill(mask, 9.0)?.mul(2.0)?;
        let chosen = x.where_(mask, 0.0)?.sum((), false)?;
        chosen.item::<f32>()
    };
    assert_eq!(fill(&masks[0])?, 4.0);
    let sums = budget(|| Ok([fill(&masks[1])?, fill(&masks[2])?]))?;
    sums.compiles(0);
    assert_eq!(sums.value, [0.0, 10.0]);

    // How many are chosen is a shape, so the mask is read, at a line that is named.
    let spent = budget(|| x.masked_select(&masks[0])?.to_vec::<f32>())?;
    assert_eq!(spent.value, [1.0, 3.0]);
    let said = complaint(&spent, |spent| _ = spent.host_reads(1));
    assert!(
        said.contains("\n  1 by to_vec() at tests/tests/recompiles.rs:"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_loop_that_grows_is_told_to_sync() -> Result<()> {
    let x = f32s(&[1.0, 2.0]);
    let power = |n: usize| {
        let mut y = x.mul(1.0)?;
        for _ in 1..n {
            y = y.mul(&x)?;
        }
        xla::sync()?;
        y.to_vec::<f32>()
    };
    power(1)?;
    let spent = budget(|| (2..5).try_for_each(|n| power(n).map(drop)))?;
    let said = complaint(&spent, |spent| _ = spent.compiles(0));
    assert!(said.contains("3 programs compiled"), "{said}");
    for part in ["the first of them mul", "call it once in each iteration"] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    // With a sync in each iteration there is one program, whatever the count.
    let mut y = x.mul(&x)?;
    xla::sync()?;
    let step = |y: &Tensor| {
        let next = y.mul(&x)?;
        xla::sync()?;
        Ok(next)
    };
    y = step(&y)?;
    budget(|| {
        for _ in 0..7 {
            y = step(&y)?;
        }
        Ok(())
    })?
    .compiles(0)
    .executions(7);
    assert_eq!(y.to_vec::<f32>()?, [1.0, 1024.0]);
    Ok(())
}

#[test]
fn writing_one_element_after_the_other_is_one_program() -> Result<()> {
    let buffer = Tensor::zeros([16], DType::F32)?;
    xla::sync()?;
    let write = |i: i64| {
        buffer.select(0, i)?.fill_(i as f64)?;
        xla::sync().map(drop)
    };
    budget(|| (0..16).try_for_each(write))?
        .compiles(1)
        .executions(16)
        .host_reads(0)
        .donations_missed(0);
    let expected: Vec<f32> = (0..16).map(|i| i as f32).collect();
    assert_eq!(buffer.to_vec::<f32>()?, expected);
    Ok(())
}

/// What is said of the second of two programs that the same line runs.
fn why(first: impl Fn() -> Result<()>, second: impl Fn() -> Result<()>) -> Result<String> {
    let run = |f: &dyn Fn() -> Result<()>| {
        f()?;
        xla::sync()?.wait()
    };
    run(&first)?;
    let spent = budget(|| run(&second))?;
    Ok(complaint(&spent, |spent| _ = spent.compiles(0)))
}

#[test]
fn the_first_difference_is_named() -> Result<()> {
    let x = Tensor::ones([2, 3], DType::F32)?;
    let held = std::cell::RefCell::new(Vec::new());
    let hold = |y: Tensor| held.borrow_mut().push(y);
    xla::sync()?;

    // Operators come with their attributes.
    let said = why(|| x.softmax(0).map(hold), || x.softmax(1).map(hold))?;
    assert!(said.contains("Softmax { axis: 1"), "{said}");
    assert!(said.contains("was Softmax { axis: 0"), "{said}");
    assert!(said.contains("passed as a number operand"), "{said}");

    let said = why(|| x.add(1.0).map(hold), || x.sub(1.0).map(hold))?;
    assert!(
        said.contains("operator 1, sub, was add (at tests/tests/recompiles.rs"),
        "{said}"
    );
    assert!(said.contains("where_"), "{said}");

    let said = why(|| x.mul(3.5).map(hold), || x.mul(3).map(hold))?;
    assert!(
        said.contains("mul takes a whole number, took a float"),
        "{said}"
    );

    let said = why(
        || Tensor::zeros([7], DType::F32)?.exp().map(hold),
        || Tensor::zeros([9], DType::F32)?.exp().map(hold),
    )?;
    assert!(
        said.contains("shape: [9]") && said.contains("shape: [7]"),
        "{said}"
    );
    assert!(said.contains("pad to one length"), "{said}");

    let said = why(
        || {
            let y = x.exp()?;
            y.sin().map(hold)
        },
        || {
            let y = x.exp()?;
            hold(y.clone());
            y.sin().map(hold)
        },
    )?;
    assert!(said.contains("the value of exp is kept, was not"), "{said}");
    Ok(())
}

#[test]
fn a_value_that_is_not_donated_is_named() -> Result<()> {
    use xla::debug::{NotDonated, donations};
    let weights = Tensor::ones([256], DType::F32)?;
    xla::sync()?.wait()?;
    let (_, audit) = donations(|| weights.mul_(0.5))?;
    assert_eq!((audit.donated, audit.donated_bytes), (1, 1024));
    assert_eq!(audit.missed, []);

    // Two tensors have one value: what is changed has to leave the other as it is.
    let other = Tensor::ones([256], DType::F64)?;
    weights.replace_data(&other)?;
    let (_, audit) = donations(|| weights.mul_(0.5))?;
    assert_eq!((audit.donated, audit.missed.len()), (0, 1));
    let missed = audit.missed[0];
    assert_eq!((missed.reason, missed.bytes), (NotDonated::Shared, 2048));
    let changed = missed.changed.map(|(op, at)| (op, at.file()));
    assert_eq!(changed, Some(("mul_", file!())));
    assert_eq!(other.to_vec::<f64>()?, [1.0; 256]);

    // Changed out of place: nothing can be overwritten, and the advice says what can.
    let mut state = Tensor::ones([64], DType::F32)?;
    let (_, audit) = donations(|| {
        state = state.mul(0.5)?;
        Ok(())
    })?;
    assert_eq!(audit.missed[0].reason, NotDonated::Replaced);
    assert!(audit.to_string().contains("add_"), "{audit}");
    Ok(())
}
