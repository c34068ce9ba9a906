//! Asking for capsules: a program with its arguments in a file, to be run again with `xla-replay`.

use crate::debug::log;
use crate::sync::{Cause, sync_at};
use crate::trace;
use std::cell::RefCell;
use std::panic::Location;
use std::path::Path;
use xla_core::{Config, Error, Result};
use xla_runtime::Capsule;

/// What the calling thread has asked for.
enum Wish {
    Nothing,
    /// The last program that runs, or the first that fails; the error where it cannot be kept.
    Last(Option<Result<Box<Capsule>>>),
}

thread_local! {
    static WISH: RefCell<Wish> = const { RefCell::new(Wish::Nothing) };
}

/// Runs `f`, then what it has recorded, and writes the last program that the calling thread executed
/// meanwhile, or the one that failed, to a file: the program, how it is compiled, its arguments and
/// results, and what it ran on. `cargo run -p xla-runtime --bin xla-replay FILE` runs, times and
/// compares it again, with any plugin.
///
/// Where several replicas run the program together, one of them is enough to ask: the arguments of all
/// are written, and the results of the one that asked.
///
/// With `XLA_DEBUG=capsule` each program that fails is written to a file
/// `xla-capsule-PROCESS-NUMBER.safetensors` in the current folder. Either way the arguments of every
/// program are copied to the host first, and each is waited for.
///
/// ```no_run
/// use xla_lazy::{Tensor, debug};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
/// let y = debug::capsule("slow.safetensors", || x.matmul(&x))?;
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// Those of `f` and of [`crate::sync`], after the file is written; [`Error::Argument`] where no program
/// ran, or one with collectives of several processes, which nobody would answer when it is run again;
/// [`Error::Io`] for the file.
#[track_caller]
pub fn capsule<T>(path: impl AsRef<Path>, f: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Gives the wish around this one back, also after a panic.
    struct Outer(Option<Wish>);
    impl Drop for Outer {
        fn drop(&mut self) {
            if let Some(wish) = self.0.take() {
                WISH.set(wish);
            }
        }
    }
    let cause = Cause::Sync {
        at: trace::recorder(Location::caller()),
    };
    // What was recorded before is not part of it.
    sync_at(cause)?;
    let _outer = Outer(Some(WISH.replace(Wish::Last(None))));
    let value = f().and_then(|value| sync_at(cause).map(|_| value));
    match (WISH.replace(Wish::Nothing), value) {
        (Wish::Last(Some(Err(refused))), value) => value.and(Err(refused)),
        (Wish::Last(Some(Ok(capsule))), value) => {
            let saved = capsule.save(path);
            let value = value?;
            saved?;
            Ok(value)
        }
        (_, Ok(_)) => Err(Error::argument(
            "debug::capsule",
            "f",
            "a function that makes the calling thread execute a program",
            "one that executes none",
        )),
        (_, Err(error)) => Err(error),
    }
}

/// Whether somebody wants the next program.
pub(crate) fn is_wanted() -> bool {
    WISH.with_borrow(|wish| matches!(wish, Wish::Last(_))) || on_failure()
}

fn on_failure() -> bool {
    Config::global().is_ok_and(|config| config.debug.capsule)
}

/// Takes a capsule, filled with what came of it.
pub(crate) fn take(capsule: Box<Capsule>) {
    if on_failure() && capsule.error.is_some() {
        write(&capsule);
    }
    grant(Ok(capsule));
}

/// Says why the next program cannot be kept.
pub(crate) fn refuse(error: Error) {
    grant(Err(error));
}

fn grant(capsule: Result<Box<Capsule>>) {
    WISH.with_borrow_mut(|wish| {
        if let Wish::Last(last) = wish
            && !matches!(last, Some(Ok(known)) if known.error.is_some())
        {
            *last = Some(capsule);
        }
    });
}

fn write(capsule: &Capsule) {
    match capsule.save_in(Path::new(".")) {
        Ok(path) => log::print(format_args!(
            "a program failed and was written to {}; run it again with xla-replay",
            path.display()
        )),
        Err(error) => log::print(format_args!("a program failed; no capsule: {error}")),
    }
}
