//! What users have called with gradients, and gradients of values that are no leaves.

use std::sync::{Arc, Mutex};
use tests::differences::{grad_of, leaf};
use xla::{BackwardOptions, Error, GradOptions, Result, Tensor, no_grad};

type Log = Arc<Mutex<Vec<&'static str>>>;

fn noting(log: &Log, what: &'static str) -> impl Fn(&Tensor) -> Result<Option<Tensor>> + use<> {
    let log = Arc::clone(log);
    move |_| {
        log.lock().unwrap().push(what);
        Ok(None)
    }
}

#[test]
fn hooks_are_called_in_order_and_replace_gradients() -> Result<()> {
    for synced in [false, true] {
        let log = Log::default();
        let w = leaf(&[3.0]);
        w.register_hook(noting(&log, "leaf"))?;
        w.register_hook(|g| g.add(1).map(Some))?;
        let h = w.mul(2)?;
        let first = h.register_hook(noting(&log, "first"))?;
        h.register_hook(|g| g.mul(10).map(Some))?;
        h.register_hook(noting(&log, "last"))?;
        // Two ways from h to the loss: hooks see the sum of their gradients.
        let loss = h.add(&h)?;
        if synced {
            xla::sync()?.wait()?;
        }
        loss.register_hook(noting(&log, "loss"))?;
        loss.backward_with(BackwardOptions {
            retain_graph: true,
            ..Default::default()
        })?;
        assert_eq!(grad_of(&w), [41.0], "synced: {synced}");
        assert_eq!(
            *log.lock().unwrap(),
            ["loss", "first", "last", "leaf"],
            "synced: {synced}"
        );
        first.remove();
        first.remove();
        log.lock().unwrap().clear();
        w.zero_grad();
        let grads = xla::grad(&[&loss], &[&w, &h], GradOptions::default())?;
        let read = |g: &Option<Tensor>| g.as_ref().unwrap().item::<f32>().unwrap();
        assert_eq!(grads.iter().map(read).collect::<Vec<_>>(), [41.0, 20.0]);
        assert_eq!(*log.lock().unwrap(), ["loss", "last", "leaf"]);
        assert!(w.grad().is_none());
    }
    Ok(())
}

#[test]
fn what_a_hook_may_not_do() -> Result<()> {
    let w = leaf(&[3.0]);
    let constant = w.detach()?.mul(2)?;
    let refused = constant.register_hook(|_| Ok(None)).map(drop);
    assert!(matches!(
        refused,
        Err(Error::Autograd {
            op: "register_hook",
            ..
        })
    ));
    let no_leaf = w.mul(2)?.register_post_accumulate_grad_hook(|_| Ok(()));
    assert!(matches!(no_leaf.map(drop), Err(Error::Autograd { .. })));
    w.register_hook(|_| Tensor::ones(2, ()).map(Some))?;
    let wrong = w.mul(2)?.backward();
    assert!(
        matches!(wrong, Err(Error::ShapeMismatch { op: "backward", .. })),
        "{wrong:?}"
    );
    assert!(w.grad().is_none());
    let other = leaf(&[3.0]);
    other.register_hook(|_| Err(Error::argument("hook", "this", "nothing", "something")))?;
    let failed = other.mul(2)?.backward();
    assert!(matches!(failed, Err(Error::Argument { op: "hook", .. })));
    Ok(())
}

#[test]
fn an_optimizer_may_step_when_a_gradient_is_there() -> Result<()> {
    let w = leaf(&[3.0]);
    let handle = w.register_post_accumulate_grad_hook(|w| {
        let gradient = w.grad().expect("it was accumulated");
        no_grad(|| w.add_scaled_(&gradient, -0.25))?;
        w.zero_grad();
        Ok(())
    })?;
    for expected in [1.5, 0.75] {
        w.mul(&w)?.backward()?;
        assert_eq!(w.item::<f32>()?, expected);
        assert!(w.grad().is_none());
    }
    handle.remove();
    w.square()?.backward()?;
    assert_eq!(grad_of(&w), [1.5]);
    Ok(())
}

#[test]
fn gradients_between_leaves_are_kept_where_asked_for() -> Result<()> {
    for synced in [false, true] {
        let w = leaf(&[3.0, 4.0]);
        let (h, part) = (w.mul(2)?, w.mul(3)?.narrow(0, 1, 1)?);
        for kept in [&h, &part] {
            kept.retain_grad()?;
            kept.retain_grad()?;
        }
        let squares = part.square()?.sum((), false)?;
        let loss = h.square()?.sum((), false)?.add(&squares)?;
        if synced {
            xla::sync()?.wait()?;
        }
        assert!(h.grad().is_none());
        loss.backward()?;
        assert_eq!(grad_of(&h), [12.0, 16.0], "synced: {synced}");
        assert_eq!(grad_of(&part), [24.0]);
        assert_eq!(grad_of(&w), [24.0, 32.0 + 72.0]);
        // It follows the tensor when that changes.
        let h = w.mul(2)?;
        h.retain_grad()?;
        h.mul_(5)?;
        h.sum((), false)?.backward()?;
        assert_eq!(grad_of(&h), [1.0, 1.0]);
    }
    Ok(())
}

#[test]
fn a_function_with_a_derivative_of_its_own() -> Result<()> {
    for synced in [false, true] {
        let (w, x) = (leaf(&[2.4, -1.6]), leaf(&[1.0, 1.0]));
        let y = xla::function(
            &[&w, &x],
            |inputs| inputs[0].round()?.mul(&inputs[1]),
            |context| {
                let through = context.grad.mul(&context.inputs[1])?;
                Ok(vec![Some(through), Some(context.output.mul(10)?)])
            },
        )?;
        let loss = y.square()?.sum((), false)?;
        if synced {
            xla::sync()?.wait()?;
        }
        loss.backward()?;
        assert_eq!(grad_of(&w), [4.0, -4.0], "synced: {synced}");
        assert_eq!(grad_of(&x), [20.0, -20.0]);
    }
    let w = leaf(&[1.0]);
    let y = xla::function(&[&w], |inputs| inputs[0].exp(), |_| Ok(Vec::new()))?;
    assert!(matches!(
        y.backward(),
        Err(Error::Argument { op: "function", .. })
    ));
    Ok(())
}
