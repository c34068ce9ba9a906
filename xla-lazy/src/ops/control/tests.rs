use super::{ScanOptions, fori_loop, scan_with};
use crate::lower::{self, Extent};
use crate::trace::Trace;
use crate::{MatmulPrecision, Tensor, optimization_barrier, with_matmul_precision};
use xla_core::{DType, Device, Result};

/// The text of everything that the thread has recorded, with the last `results` nodes returned.
fn text(results: usize) -> Result<String> {
    let trace = Trace::of_thread(Device::new(0));
    let state = trace.lock();
    let len = state.recording.nodes.len();
    let extent = Extent {
        len,
        live: (len - results..len).map(|i| i as u32).collect(),
        donors: Vec::new(),
        ordered: false,
    };
    Ok(lower::lower(
        &state.recording,
        &extent,
        &crate::sync::Placement::Portable,
        "test",
    )?
    .text)
}

fn on_a_thread_of_its_own<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// A scan with its gradients, of this length.
fn program(length: usize) -> Result<String> {
    on_a_thread_of_its_own(|| {
        let w = Tensor::ones([4, 4], DType::F32)?.requires_grad_(true)?;
        let x = Tensor::ones([length, 4], DType::F32)?;
        let options = ScanOptions {
            length: Some(length),
            reverse: false,
        };
        let h = Tensor::zeros(4, DType::F32)?;
        let (last, _) = scan_with(options, &[&h], &[&x], |h, x| {
            let h = h[0].matmul(&w)?.add(&x[0])?.tanh()?;
            Ok((vec![h.clone()], vec![h]))
        })?;
        last[0].sum((), false)?.backward()?;
        let gradient = w.grad().expect("a gradient").mul(1)?;
        drop((last, gradient));
        text(1)
    })
}

#[test]
fn the_program_does_not_grow_with_the_length() -> Result<()> {
    let (short, long) = (program(10)?, program(1_000_000)?);
    assert_eq!(short.lines().count(), long.lines().count());
    // Forward and backward.
    assert_eq!(short.matches("stablehlo.while").count(), 2);
    assert_eq!(short.matches("stablehlo.tanh").count(), 2);
    Ok(())
}

#[test]
fn results_of_one_loop_share_it() -> Result<()> {
    let text = on_a_thread_of_its_own(|| {
        let x = Tensor::ones(3, DType::F32)?;
        let carried = fori_loop(5, &[&x, &x], |_, c| Ok(vec![c[1].clone(), c[0].add(1)?]))?;
        let _sum = carried[0].add(&carried[1])?;
        text(1)
    })?;
    assert_eq!(text.matches("stablehlo.while").count(), 1);
    Ok(())
}

#[test]
fn a_barrier_holds_all_its_tensors_at_once() -> Result<()> {
    let text = on_a_thread_of_its_own(|| {
        let x = Tensor::ones(3, DType::F32)?.requires_grad_(true)?;
        let both = optimization_barrier(&[&x.exp()?, &x.sin()?])?;
        assert!(both.iter().all(Tensor::requires_grad));
        let _sum = both[0].add(&both[1])?;
        text(1)
    })?;
    assert_eq!(text.matches("stablehlo.optimization_barrier").count(), 1);
    Ok(())
}

#[test]
fn precision_is_part_of_a_product_and_of_its_gradient() -> Result<()> {
    let text = |precision| {
        on_a_thread_of_its_own(|| {
            let w = Tensor::ones([4, 4], DType::F32)?.requires_grad_(true)?;
            let y = with_matmul_precision(precision, || w.matmul(&w))?;
            y.sum((), false)?.backward()?;
            let _gradient = w.grad().expect("a gradient").mul(1)?;
            text(1)
        })
    };
    let counts = |precision, word| -> Result<usize> {
        Ok(text(precision)?
            .matches(&format!("precision = [{word}, {word}]"))
            .count())
    };
    // Both factors are the same, so there are two products in the gradient.
    assert_eq!(counts(MatmulPrecision::Highest, "HIGHEST")?, 2);
    assert_eq!(counts(MatmulPrecision::High, "HIGH")?, 2);
    assert!(!text(MatmulPrecision::Medium)?.contains("precision"));
    Ok(())
}
