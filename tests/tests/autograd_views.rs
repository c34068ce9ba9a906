//! Gradients of views: each program that reads a view derives it anew, which nobody notices.

use tests::check::{close, values};
use tests::differences::leaf;
use xla::{GradOptions, Result, Tensor, grad};

fn gradient_of(output: &Tensor, input: &Tensor) -> Result<Option<Vec<f64>>> {
    let options = GradOptions {
        retain_graph: true,
        allow_unused: true,
        ..GradOptions::default()
    };
    let found = grad(&[&output.sum((), false)?], &[input], options)?;
    found[0].as_ref().map(values).transpose()
}

#[test]
fn of_a_view_that_several_programs_read() -> Result<()> {
    let w = leaf(&[1.0, 2.0, 3.0]);
    let view = w.narrow(0, 1, 2)?;
    let kept = view.unsqueeze(0)?;
    assert_eq!(gradient_of(&w.square()?, &view)?, None);
    let first = view.square()?;
    xla::sync()?.wait()?;
    // By the operators of the first program only, then by both, then by a view of the view.
    assert_eq!(gradient_of(&first, &view)?, Some(vec![4.0, 6.0]));
    let both = first.add(&view.mul(3)?)?;
    assert_eq!(gradient_of(&both, &view)?, Some(vec![7.0, 9.0]));
    xla::sync()?.wait()?;
    let all = both.add(&kept.mul(10)?)?;
    assert_eq!(gradient_of(&all, &view)?, Some(vec![17.0, 19.0]));
    assert_eq!(gradient_of(&all, &kept)?, Some(vec![10.0, 10.0]));
    assert_eq!(gradient_of(&all, &w)?, Some(vec![0.0, 17.0, 19.0]));
    Ok(())
}

/// After a change in place a view is another value: what read the one before does not depend on it.
#[test]
fn of_a_view_whose_base_changes() -> Result<()> {
    for synced in [false, true] {
        let base = leaf(&[1.0, 2.0]).mul(1)?;
        let view = base.narrow(0, 0, 1)?;
        let before = view.mul(5)?;
        base.mul_(2)?;
        if synced {
            xla::sync()?.wait()?;
        }
        let sum = before.add(&view.mul(7)?)?;
        assert_eq!(gradient_of(&sum, &view)?, Some(vec![7.0]));
    }
    Ok(())
}

#[test]
fn hooks_of_a_view_outlive_the_program() -> Result<()> {
    let w = leaf(&[1.0, 2.0]);
    let view = w.narrow(0, 0, 1)?;
    view.retain_grad()?;
    let doubled = view.register_hook(|grad| grad.mul(2).map(Some))?;
    let first = view.mul(3)?;
    xla::sync()?.wait()?;
    first.add(&view.mul(4)?)?.sum((), false)?.backward()?;
    close("view", &values(&view.grad().unwrap())?, &[14.0], 0.0);
    close("leaf", &values(&w.grad().unwrap())?, &[14.0, 0.0], 0.0);
    doubled.remove();
    xla::sync()?.wait()?;
    view.zero_grad();
    view.mul(4)?.sum((), false)?.backward()?;
    close("view", &values(&view.grad().unwrap())?, &[4.0], 0.0);
    Ok(())
}
