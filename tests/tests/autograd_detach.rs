//! `detach`: the same storage, without the history.

use tests::check::{close, values};
use tests::differences::{grad_of, leaf};
use xla::{Error, Result, no_grad};

/// `x.detach().requires_grad_()` is a leaf of its own that shares `x`'s value, in one program or in
/// several.
#[test]
fn a_detached_tensor_can_be_a_leaf() -> Result<()> {
    for synced in [false, true] {
        let sync = || match synced {
            true => xla::sync()?.wait(),
            false => Ok(()),
        };
        let w = leaf(&[2.0, 3.0]);
        let h = w.mul(2)?;
        sync()?;
        let x = h.detach()?;
        assert!(x.is_leaf() && !x.requires_grad());
        x.requires_grad_(true)?;
        assert!(x.is_leaf() && x.requires_grad() && !h.is_leaf());
        let part = x.narrow(0, 1, 1)?;
        assert!(part.requires_grad() && !part.is_leaf());
        sync()?;
        part.square()?
            .add(&x.mul(&h)?)?
            .sum((), false)?
            .backward()?;
        // By x: h at both elements, once more 2 x[1] as the part is broadcast; by w: 2 x.
        sync()?;
        assert_eq!(grad_of(&x), [4.0, 6.0 + 24.0]);
        assert_eq!(grad_of(&w), [8.0, 12.0]);

        let refused = x.mul_(2);
        assert!(
            matches!(refused, Err(Error::Autograd { .. })),
            "{refused:?}"
        );
        let refused = part.mul_(2);
        assert!(
            matches!(refused, Err(Error::Autograd { .. })),
            "{refused:?}"
        );
        no_grad(|| x.sub_(1))?;
        close("the base", &values(&h)?, &[3.0, 5.0], 0.0);
        x.zero_grad();
        x.square()?.sum((), false)?.backward()?;
        assert_eq!(grad_of(&x), [6.0, 10.0]);
        x.requires_grad_(false)?;
        assert!(!x.requires_grad() && !part.requires_grad());
    }
    Ok(())
}

/// A gradient that would be lost is an error, not silence.
#[test]
fn a_detached_tensor_takes_no_history() -> Result<()> {
    let (w, x) = (leaf(&[2.0]), leaf(&[5.0]));
    let detached = x.mul(1)?.detach()?;
    let refused = detached.mul_(&w);
    assert!(
        matches!(refused, Err(Error::Autograd { op: "mul_", .. })),
        "{refused:?}"
    );
    no_grad(|| detached.mul_(&w))?;
    detached.add_(1)?;
    close("", &values(&detached)?, &[11.0], 0.0);
    Ok(())
}
