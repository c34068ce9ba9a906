//! How a backward pass behaves.

use tests::differences::{grad_of, leaf};
use tests::with_devices;
use xla::metrics::Scope;
use xla::{BackwardOptions, DType, Error, GradOptions, Result, Tensor, no_grad};

#[test]
fn gradients_accumulate_until_they_are_forgotten() -> Result<()> {
    let w = leaf(&[3.0]);
    for total in [6.0, 12.0, 18.0] {
        w.square()?.sum((), false)?.backward()?;
        assert_eq!(grad_of(&w), [total]);
    }
    w.zero_grad();
    assert!(w.grad().is_none());
    (&w + &w)?.backward()?;
    xla::sync()?;
    (&w * 5)?.backward()?;
    assert_eq!(grad_of(&w), [7.0]);
    Ok(())
}

#[test]
fn one_graph_is_passed_once_unless_retained() -> Result<()> {
    for executed in [false, true] {
        let w = leaf(&[2.0]);
        let y = w.exp()?.square()?;
        if executed {
            xla::sync()?.wait()?;
        }
        y.backward_with(BackwardOptions {
            retain_graph: true,
            ..Default::default()
        })?;
        let once = grad_of(&w)[0];
        assert!((f64::from(once) - 2.0 * 4f64.exp()).abs() < 1e-4);
        y.backward()?;
        assert_eq!(grad_of(&w), [2.0 * once]);
        let third = y.backward();
        assert!(
            matches!(third, Err(Error::Autograd { op: "backward", .. })),
            "{executed}: {third:?}"
        );
        assert_eq!(grad_of(&w), [2.0 * once]);
    }
    Ok(())
}

#[test]
fn reading_in_the_middle_runs_nothing_twice() -> Result<()> {
    let w = leaf(&[0.5, 2.0]);
    let hidden = w.exp()?;
    let loss = hidden.log()?.mul(&hidden)?.sum((), false)?;
    loss.item::<f32>()?;
    let scope = Scope::new();
    loss.backward()?;
    let grad = grad_of(&w);
    for (g, x) in grad.iter().zip([0.5f64, 2.0]) {
        assert!((f64::from(*g) - x.exp() * (1.0 + x)).abs() < 1e-4);
    }
    assert_eq!((scope.compiles(), scope.executions()), (1, 1));
    Ok(())
}

fn retained() -> GradOptions {
    GradOptions {
        retain_graph: true,
        ..GradOptions::default()
    }
}

#[test]
fn grad_leaves_leaves_alone() -> Result<()> {
    let (a, b, c) = (leaf(&[2.0]), leaf(&[3.0]), leaf(&[4.0]));
    let y = (&a * &b)?;
    let grads = xla::grad(
        &[&y],
        &[&a, &b, &c],
        GradOptions {
            retain_graph: true,
            allow_unused: true,
            ..Default::default()
        },
    )?;
    let read: Vec<Option<f32>> = grads
        .iter()
        .map(|g| g.as_ref().map(|g| g.item().unwrap()))
        .collect();
    assert_eq!(read, [Some(3.0), Some(2.0), None]);
    assert!(a.grad().is_none() && b.grad().is_none());
    let unused = xla::grad(&[&y], &[&a, &c], retained());
    assert!(matches!(unused, Err(Error::Autograd { op: "grad", .. })));
    let constant = Tensor::ones(1, ())?;
    assert!(matches!(
        xla::grad(&[&y], &[&constant], retained()),
        Err(Error::Autograd { op: "grad", .. })
    ));
    let seeded = |grads: Vec<Tensor>| GradOptions {
        grad_outputs: Some(grads),
        ..retained()
    };
    let few = xla::grad(&[&y, &y], &[&a], seeded(vec![constant]));
    assert!(matches!(few, Err(Error::Argument { op: "grad", .. })));
    let wide = xla::grad(&[&y], &[&a], seeded(vec![Tensor::ones(2, ())?]));
    assert!(matches!(wide, Err(Error::ShapeMismatch { op: "grad", .. })));
    // With respect to a tensor between the leaves and the output, and of two outputs.
    let z = y.square()?;
    let grads = xla::grad(&[&z, &y], &[&y, &a], GradOptions::default())?;
    let read: Vec<f32> = grads
        .iter()
        .map(|g| g.as_ref().unwrap().item().unwrap())
        .collect();
    assert_eq!(read, [13.0, 39.0]);
    Ok(())
}

#[test]
fn what_no_gradient_passes() -> Result<()> {
    let w = leaf(&[2.0, -1.0]);
    let y = no_grad(|| w.exp())?;
    assert!(!y.requires_grad() && !w.detach()?.requires_grad() && !w.gt(0)?.requires_grad());
    assert!(matches!(
        y.sum((), false)?.backward(),
        Err(Error::Autograd { .. })
    ));
    let loss = w.detach()?.mul(&w)?.sum((), false)?;
    loss.backward()?;
    assert_eq!(grad_of(&w), [2.0, -1.0]);
    assert!(w.argmax(None, false)?.dtype().is_integer());
    // Integers have no gradients, also not on the way.
    w.zero_grad();
    w.to_dtype(DType::I32)?
        .to_dtype(DType::F32)?
        .mul(&w)?
        .sum((), false)?
        .backward()?;
    assert_eq!(grad_of(&w), [2.0, -1.0]);
    let floor = w.floor()?.sum((), false)?;
    w.zero_grad();
    floor.backward()?;
    assert_eq!(grad_of(&w), [0.0, 0.0]);
    Ok(())
}

#[test]
fn a_view_is_differentiated_like_its_base() -> Result<()> {
    for executed in [false, true] {
        let w = leaf(&[2.0, 3.0]);
        let loss = w.square()?.sum(0, true)?.squeeze(0)?;
        if executed {
            xla::sync()?.wait()?;
        }
        loss.backward()?;
        assert_eq!(grad_of(&w), [4.0, 6.0], "executed: {executed}");
        let part = w.exp()?.select(0, 1)?;
        if executed {
            part.item::<f32>()?;
        }
        let grads = xla::grad(&[&part], &[&w], GradOptions::default())?;
        let got = grads[0]
            .as_ref()
            .expect("it depends on w")
            .to_vec::<f32>()?;
        assert!(
            got[0] == 0.0 && (got[1] - 3f32.exp()).abs() < 1e-4,
            "{got:?}"
        );
    }
    Ok(())
}

#[test]
fn a_view_is_read_again_after_a_backward_pass() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]);
    let matrix = x.reshape([2, 2])?;
    for _ in 0..2 {
        matrix.mul(&matrix)?.sum((), false)?.backward()?;
    }
    assert_eq!(grad_of(&x), [4.0, 8.0, 12.0, 16.0]);
    Ok(())
}

#[test]
fn a_gradient_that_cannot_flow_is_an_error() {
    with_devices(2, || {
        let x = leaf(&[1.0, 2.0]);
        let other = xla::device_at(1).unwrap();
        let error = x.to(other).unwrap_err().to_string();
        assert!(error.contains(file!()), "{error}");
        for moved in [no_grad(|| x.to(other)), x.detach().unwrap().to(other)] {
            let moved = moved.unwrap();
            assert!(!moved.requires_grad());
            assert_eq!(moved.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        }
    });
}

#[test]
fn the_gradient_of_a_view() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let part = x.mul(2.0)?.narrow(0, 1, 2)?;
    let loss = part.mul(&part)?.sum((), false)?;
    let grads = xla::grad(&[&loss], &[&part], retained())?;
    let got = grads[0].clone().expect("the loss depends on it");
    // A read without gradients leaves the view's place in the graph as it is.
    no_grad(|| part.add(1.0))?;
    assert!(xla::grad(&[&loss], &[&part], retained())?[0].is_some());
    assert_eq!(got.to_vec::<f32>()?, [8.0, 12.0]);
    // The program that read the view has run.
    let again = xla::grad(&[&loss], &[&part], retained())?;
    let again = again[0].as_ref().expect("the loss depends on it");
    assert_eq!(again.to_vec::<f32>()?, [8.0, 12.0]);
    Ok(())
}

#[test]
fn each_leaf_has_a_gradient_of_its_own() -> Result<()> {
    let (x, y) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    let gradient = Tensor::from_slice(&[1.0f32, 1.0], 2, ())?;
    let options = BackwardOptions {
        gradient: Some(gradient.clone()),
        ..BackwardOptions::default()
    };
    x.add(&y)?.backward_with(options)?;
    x.grad().expect("there is a gradient").mul_(10.0)?;
    assert_eq!(grad_of(&x), [10.0, 10.0]);
    assert_eq!(grad_of(&y), [1.0, 1.0]);
    assert_eq!(gradient.to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn derivatives_of_derivatives() -> Result<()> {
    let x = leaf(&[2.0, -3.0]);
    let create = || GradOptions {
        create_graph: true,
        ..GradOptions::default()
    };
    for synced in [false, true] {
        let mut y = x.pow(4)?;
        // 4 x³, 12 x², 24 x, 24
        for expected in [[32.0, -108.0], [48.0, 108.0], [48.0, -72.0], [24.0, 24.0]] {
            let total = y.sum((), false)?;
            if synced {
                xla::sync()?.wait()?;
            }
            let mut grads = xla::grad(&[&total], &[&x], create())?;
            y = grads.remove(0).expect("it depends on x");
            assert_eq!(y.to_vec::<f32>()?, expected, "synced: {synced}");
        }
    }
    // For f = sum((A B)²) the gradient of A is 2 A B Bᵀ; its sum has 2 (Aᵀ 1 B + 1ᵀ A B) as that of B,
    // 1 being a matrix of ones.
    let matrix = |data: [f32; 4]| Tensor::from_slice(&data, [2, 2], ())?.requires_grad_(true);
    let (a, b) = (
        matrix([1.0, 2.0, 3.0, 4.0])?,
        matrix([1.0, -1.0, 2.0, 0.5])?,
    );
    let f = a.matmul(&b)?.square()?.sum((), false)?;
    let first = xla::grad(&[&f], &[&a], create())?.remove(0);
    let first = first.expect("it depends on a").sum((), false)?;
    let second = xla::grad(&[&first], &[&b], create())?.remove(0);
    let second = second.expect("it depends on b");
    let ones = Tensor::ones([2, 2], ())?;
    let expected = no_grad(|| {
        let one = a.t()?.matmul(&ones)?.matmul(&b)?;
        one.add(&ones.t()?.matmul(&a.matmul(&b)?)?)?.mul(2)
    })?;
    assert_eq!(second.to_vec::<f32>()?, expected.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn whether_gradients_are_recorded_nests() -> Result<()> {
    let w = leaf(&[2.0]);
    let inner = no_grad(|| {
        assert!(!xla::is_grad_enabled());
        xla::enable_grad(|| {
            assert!(xla::is_grad_enabled());
            xla::set_grad_enabled(false, || assert!(!xla::is_grad_enabled()));
            w.square()
        })
    })?;
    assert!(xla::is_grad_enabled() && inner.requires_grad());
    inner.backward()?;
    assert_eq!(grad_of(&w), [4.0]);
    Ok(())
}
