//! Elementwise operators on 16 by 16 `f32`s, recorded anew in every step.

use super::Step;
use xla::{Result, Tensor};

pub(super) fn step(operators: usize, grad: bool) -> Result<Step> {
    let x = Tensor::ones([16, 16], ())?.requires_grad_(grad)?;
    xla::sync()?.wait()?;
    Ok(Box::new(move || {
        let mut y = x.clone();
        for _ in 0..operators / 2 {
            y = y.mul(1.0001)?.add(0.5)?;
        }
        // What a step of training leaves behind: the value, not its history.
        let value = if grad { y.detach()?.copy()? } else { y.clone() };
        drop(y);
        xla::sync()?;
        Ok(value)
    }))
}
