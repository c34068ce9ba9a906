//! How exactly matrix products and convolutions of `f32` are computed.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};
use xla_core::{Error, Result};

/// How exactly a device that has faster, less exact units computes products of `f32`. A CPU has none:
/// there all three give the same program, bits and time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum MatmulPrecision {
    /// In `f32`.
    #[default]
    Highest,
    /// In TensorFloat-32, or as the sum of three products of `bf16`.
    High,
    /// In `bf16`, or whatever is fastest.
    Medium,
}

impl MatmulPrecision {
    /// What the program asks for: `None` leaves it to the compiler.
    pub(crate) fn stablehlo(self) -> Option<&'static str> {
        match self {
            MatmulPrecision::Highest => Some("HIGHEST"),
            MatmulPrecision::High => Some("HIGH"),
            MatmulPrecision::Medium => None,
        }
    }

    const ALL: [MatmulPrecision; 3] = [
        MatmulPrecision::Highest,
        MatmulPrecision::High,
        MatmulPrecision::Medium,
    ];
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatmulPrecision::Highest => "highest",
            MatmulPrecision::High => "high",
            MatmulPrecision::Medium => "medium",
        })
    }
}

impl FromStr for MatmulPrecision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = MatmulPrecision::ALL;
        let found = all.into_iter().find(|p| p.to_string() == text);
        found.ok_or_else(|| {
            let expected = "highest, high or medium";
            Error::argument("set_float32_matmul_precision", "precision", expected, text)
        })
    }
}

static FOR_ALL: AtomicU8 = AtomicU8::new(MatmulPrecision::Highest as u8);

thread_local! {
    static WITHIN: Cell<Option<MatmulPrecision>> = const { Cell::new(None) };
}

/// How exactly matrix products and convolutions of `f32` recorded from now on are computed:
/// `"highest"`, which it is at first, `"high"` or `"medium"`, as
/// `torch.set_float32_matmul_precision`. It holds for all threads, and is part of the programs: a
/// gradient is computed as the product it belongs to.
///
/// XLA's CPU code computes all three alike, in `f32`.
///
/// # Errors
/// [`Error::Argument`] for another word.
///
/// ```
/// xla_lazy::set_float32_matmul_precision("high")?;
/// assert_eq!(xla_lazy::get_float32_matmul_precision().to_string(), "high");
/// assert!(xla_lazy::set_float32_matmul_precision("low").is_err());
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn set_float32_matmul_precision(precision: &str) -> Result<()> {
    let at = std::panic::Location::caller();
    let precision: MatmulPrecision = precision.parse().map_err(|e: Error| e.at(at))?;
    FOR_ALL.store(precision as u8, Ordering::Relaxed);
    Ok(())
}

/// How exactly products recorded now by this thread are computed.
pub fn get_float32_matmul_precision() -> MatmulPrecision {
    let for_all = usize::from(FOR_ALL.load(Ordering::Relaxed));
    WITHIN.get().unwrap_or(MatmulPrecision::ALL[for_all])
}

/// Runs `f`, whose products are recorded with this precision, whatever holds for all: for single
/// operators.
///
/// ```no_run
/// # use xla_lazy::{MatmulPrecision, Tensor, with_matmul_precision};
/// # fn demo(x: &Tensor, w: &Tensor) -> xla_core::Result<()> {
/// let y = with_matmul_precision(MatmulPrecision::Medium, || x.matmul(w))?;
/// # Ok(())
/// # }
/// ```
pub fn with_matmul_precision<T>(precision: MatmulPrecision, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<MatmulPrecision>);
    impl Drop for Restore {
        fn drop(&mut self) {
            WITHIN.set(self.0);
        }
    }
    let _restore = Restore(WITHIN.replace(Some(precision)));
    f()
}
