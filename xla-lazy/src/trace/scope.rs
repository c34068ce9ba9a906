//! What holds for everything that the calling thread records: whether gradients are, and by which
//! line.

use crate::hash::{self, Hash128};
use crate::{autocast, get_float32_matmul_precision};
use std::cell::Cell;
use std::panic::Location;
use xla_core::Result;

thread_local! {
    static GRAD_DISABLED: Cell<u32> = const { Cell::new(0) };
    static RECORDED_BY: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Whether operators on tensors that require a gradient record one: true unless inside
/// [`no_grad`].
pub fn is_grad_enabled() -> bool {
    GRAD_DISABLED.get() == 0
}

/// Everything here that decides what an operator records, as one value.
pub(crate) fn ambient() -> Hash128 {
    let precision = get_float32_matmul_precision() as u64;
    let state = hash::fold(hash::SEED, is_grad_enabled().into(), precision);
    hash::extend(state, &autocast::dtype())
}

/// Runs `f` without recording gradients, as PyTorch's `torch.no_grad`.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            GRAD_DISABLED.set(GRAD_DISABLED.get() - 1);
        }
    }
    GRAD_DISABLED.set(GRAD_DISABLED.get() + 1);
    let _restore = Restore;
    f()
}

/// Runs `f` recording gradients, whatever [`no_grad`] it is called in, as PyTorch's
/// `torch.enable_grad`.
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            GRAD_DISABLED.set(self.0);
        }
    }
    let _restore = Restore(GRAD_DISABLED.replace(0));
    f()
}

/// Runs `f` recording gradients or not, as PyTorch's `torch.set_grad_enabled`.
pub fn set_grad_enabled<T>(enabled: bool, f: impl FnOnce() -> T) -> T {
    match enabled {
        true => enable_grad(f),
        false => no_grad(f),
    }
}

/// The line that operators recorded now are said to come from, called at `location`.
pub(crate) fn recorder(location: &'static Location<'static>) -> &'static Location<'static> {
    RECORDED_BY.get().unwrap_or(location)
}

/// Runs `f`, whose operators are then said to come from this line, and so are its errors that have
/// none: for a function that records several operators on behalf of its caller.
///
/// # Errors
/// Those of `f`.
pub fn recorded_by<T>(
    location: &'static Location<'static>,
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    struct Restore(Option<&'static Location<'static>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORDED_BY.set(self.0);
        }
    }
    let _restore = Restore(RECORDED_BY.replace(Some(location)));
    f().map_err(|e| e.at(location))
}
