//! What a change in place does to gradients.

use tests::differences::{grad_of, leaf};
use xla::{BackwardOptions, Error, Result, Tensor, no_grad};

#[test]
fn leaves_change_in_place_only_without_gradients() -> Result<()> {
    let w = leaf(&[2.0, -1.0]);
    let changed = w.add_(1);
    assert!(
        matches!(changed, Err(Error::Autograd { op: "add_", .. })),
        "{changed:?}"
    );
    let part = w.narrow(0, 0, 1)?.zero_();
    assert!(
        matches!(part, Err(Error::Autograd { op: "zero_", .. })),
        "{part:?}"
    );
    no_grad(|| w.add_(1))?;
    assert_eq!(w.to_vec::<f32>()?, [3.0, 0.0]);
    assert!(w.requires_grad() && w.is_leaf());
    w.square()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [6.0, 0.0]);
    Ok(())
}

/// `w x`, whose derivative reads both.
fn product() -> Result<(Tensor, Tensor, Tensor)> {
    let w = leaf(&[3.0]);
    let x = Tensor::from_slice(&[5.0f32], 1, ())?;
    let y = (&w * &x)?;
    Ok((w, x, y))
}

#[track_caller]
fn refused(outcome: Result<()>, saved_by: &str, changed_by: &str) {
    let error = outcome.expect_err("a saved value has changed");
    assert!(matches!(error, Error::Autograd { .. }), "{error:?}");
    let text = error.to_string();
    let saved = format!("derivative of {saved_by} at");
    let changed = format!("in place by {changed_by} at");
    assert!(text.contains(&saved) && text.contains(&changed), "{text}");
    assert_eq!(text.matches(file!()).count(), 3, "{text}");
}

/// A gradient is of the values that the forward pass read, or an error: never of later ones. It does
/// not matter whether a program ran in between, before or after the change.
#[test]
fn a_saved_value_that_changes_is_an_error() -> Result<()> {
    for (before, after) in [(false, false), (true, false), (false, true)] {
        let sync = |really: bool| match really {
            true => xla::sync()?.wait(),
            false => Ok(()),
        };
        let (w, x, y) = product()?;
        sync(before)?;
        x.mul_(100)?;
        sync(after)?;
        refused(y.backward(), "mul", "mul_");
        assert!(w.grad().is_none());
        assert_eq!(x.item::<f32>()?, 500.0);

        let w = leaf(&[3.0]);
        let y = w.exp()?;
        let loss = y.mul(1)?;
        sync(before)?;
        no_grad(|| y.zero_())?;
        sync(after)?;
        refused(loss.backward(), "exp", "zero_");
        assert!(w.grad().is_none());

        // Through a view of what was saved, and of what a saved view shows.
        let (_, x, y) = product()?;
        sync(before)?;
        x.reshape([1, 1])?.add_(1)?;
        sync(after)?;
        refused(y.backward(), "mul", "add_");
        let x = Tensor::from_slice(&[5.0f32, 6.0], 2, ())?;
        let y = leaf(&[3.0]).mul(&x.narrow(0, 0, 1)?)?;
        sync(before)?;
        x.fill_(0)?;
        sync(after)?;
        refused(y.backward(), "mul", "fill_");

        // A second pass after the update of a parameter.
        let w = leaf(&[3.0]);
        let loss = w.square()?;
        loss.backward_with(BackwardOptions {
            retain_graph: true,
            ..Default::default()
        })?;
        sync(before)?;
        no_grad(|| w.sub_(1))?;
        sync(after)?;
        refused(loss.backward(), "square", "sub_");
        w.zero_grad();
        w.square()?.backward()?;
        assert_eq!(grad_of(&w), [4.0]);

        // What no derivative reads may change, also what one reads a copy of.
        let (w, x, y) = product()?;
        let sum = w.add(&x)?.add(&y.detach()?)?;
        sync(before)?;
        x.zero_()?;
        sync(after)?;
        sum.backward()?;
        assert_eq!(grad_of(&w), [1.0]);
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], ())?;
        let w = leaf(&[1.0; 4]);
        let loss = x.t()?.reshape([4])?.mul(&w)?.sum((), false)?;
        sync(before)?;
        x.zero_()?;
        sync(after)?;
        loss.backward()?;
        assert_eq!(grad_of(&w), [1.0, 3.0, 2.0, 4.0]);
    }
    Ok(())
}

/// An in-place operator saves what its target was before, which nobody can change any more.
#[test]
fn an_in_place_operator_may_read_its_own_target() -> Result<()> {
    for synced in [false, true] {
        let w = leaf(&[2.0, 3.0]);
        let y = w.mul(1)?;
        for _ in 0..2 {
            y.mul_(&w)?;
            y.narrow(0, 0, 1)?.mul_(&w.narrow(0, 1, 1)?)?;
            if synced {
                xla::sync()?.wait()?;
            }
        }
        y.sum((), false)?.backward()?;
        // The sum of a³ b² and b³.
        assert_eq!(grad_of(&w), [108.0, 75.0], "synced: {synced}");
    }
    Ok(())
}

/// As in PyTorch, a change that is not recorded does not end a value's history.
#[test]
fn a_change_without_gradients_keeps_the_history() -> Result<()> {
    for synced in [false, true] {
        let w = leaf(&[2.0, 3.0]);
        let h = w.mul(5)?;
        if synced {
            xla::sync()?.wait()?;
        }
        no_grad(|| h.mul_(3))?;
        no_grad(|| h.narrow(0, 0, 1)?.zero_())?;
        assert!(h.requires_grad() && !h.is_leaf());
        if synced {
            xla::sync()?.wait()?;
        }
        h.square()?.sum((), false)?.backward()?;
        assert_eq!(grad_of(&w), [0.0, 2.0 * 45.0 * 5.0], "synced: {synced}");
    }
    Ok(())
}

#[test]
fn a_value_that_is_overwritten_has_gradients_of_zeros() -> Result<()> {
    let w = leaf(&[2.0, 3.0]);
    let h = w.mul(5)?;
    h.zero_()?;
    assert!(h.requires_grad());
    h.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0, 0.0]);
    // What takes over a value with a history has that history.
    let h = Tensor::zeros(2, ())?;
    h.copy_(&w.mul(2)?)?;
    h.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [2.0, 2.0]);
    Ok(())
}

#[test]
fn a_history_is_ended_in_place() -> Result<()> {
    let w = leaf(&[2.0]);
    let h = w.mul(5)?;
    let before = h.square()?;
    h.detach_()?;
    assert!(h.is_leaf() && !h.requires_grad());
    assert!(h.square()?.backward().is_err());
    // What was computed before is differentiated as ever.
    before.backward()?;
    assert_eq!(grad_of(&w), [100.0]);
    assert_eq!(h.item::<f32>()?, 10.0);
    let view = w.mul(2)?.narrow(0, 0, 1)?.detach_();
    assert!(matches!(view, Err(Error::Autograd { op: "detach_", .. })));
    w.detach_()?;
    assert!(!w.requires_grad());
    Ok(())
}
