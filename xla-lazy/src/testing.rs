//! Assertions on what a piece of a program costs, for tests.

use std::collections::HashMap;
use std::fmt::Write as _;
use xla_core::Result;
use xla_runtime::metrics::{Counter, Entry, Scope};

/// Runs `f` and keeps what it spends, to be asserted with [`Spent`]'s methods.
///
/// What counts is the calling thread's work, and that of the replicas of a launch inside `f`. What
/// `f` has recorded and not synced is not run.
///
/// ```no_run
/// use xla_lazy::{Tensor, sync, testing};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
/// let step = |factor: f32| {
///     x.mul_(factor)?;
///     sync()
/// };
/// step(0.5)?;
/// // Another factor is no other program.
/// testing::budget(|| step(0.25))?
///     .compiles(0)
///     .executions(1)
///     .host_reads(0)
///     .donations_missed(0);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// Those of `f`.
pub fn budget<T>(f: impl FnOnce() -> Result<T>) -> Result<Spent<T>> {
    let scope = Scope::listing();
    let value = f()?;
    Ok(Spent {
        value,
        compiled: scope.compiles(),
        entries: scope.entries(),
    })
}

/// What a function has spent; see [`budget`]. Each method asserts that it was no more than so much.
#[derive(Debug, Clone)]
#[must_use = "nothing is asserted yet"]
#[non_exhaustive]
pub struct Spent<T> {
    /// What the function returned.
    pub value: T,
    compiled: u64,
    entries: Vec<Entry>,
}

impl<T> Spent<T> {
    /// At most so many programs were compiled, or loaded from the persistent cache.
    ///
    /// # Panics
    /// When there were more, with each one's line and how it differs from the nearest program that
    /// the same line had run before.
    #[track_caller]
    pub fn compiles(&self, most: u64) -> &Self {
        // The tensors' layer knows the reason; what is compiled without it knows none.
        let by = match self.sum(Counter::UncachedCompile) {
            0 => Counter::Compile,
            _ => Counter::UncachedCompile,
        };
        self.assert(most, self.compiled, "programs compiled", by)
    }

    /// At most so many programs were started; each device that runs one counts.
    ///
    /// # Panics
    /// When there were more, with the lines that started them.
    #[track_caller]
    pub fn executions(&self, most: u64) -> &Self {
        let spent = self.sum(Counter::Execute);
        self.assert(most, spent, "programs started", Counter::Execute)
    }

    /// At most so many arrays were read back to the host.
    ///
    /// # Panics
    /// When there were more, with the lines that read them.
    #[track_caller]
    pub fn host_reads(&self, most: u64) -> &Self {
        let spent = self.sum(Counter::Download);
        self.assert(most, spent, "arrays read", Counter::Download)
    }

    /// At most so many bytes were read back to the host.
    ///
    /// # Panics
    /// When there were more, with the lines that read them.
    #[track_caller]
    pub fn bytes_read(&self, most: u64) -> &Self {
        let spent = self.sum(Counter::DownloadBytes);
        self.assert(most, spent, "bytes read", Counter::DownloadBytes)
    }

    /// At most so many values were copied although their new values could have overwritten them.
    ///
    /// # Panics
    /// When there were more, with each one's type, lines and the reason.
    #[track_caller]
    pub fn donations_missed(&self, most: u64) -> &Self {
        let spent = self.sum(Counter::DonationMissed);
        self.assert(most, spent, "donations missed", Counter::DonationMissed)
    }

    fn of(&self, counter: Counter) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |e| e.counter == counter)
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.of(counter).map(|entry| entry.amount).sum()
    }

    #[track_caller]
    fn assert(&self, most: u64, spent: u64, what: &str, by: Counter) -> &Self {
        assert!(
            spent <= most,
            "{spent} {what} where the budget is {most}:{}",
            self.lines(by)
        );
        self
    }

    /// Who spent it: a line each, with how much.
    fn lines(&self, counter: Counter) -> String {
        let mut at: HashMap<String, usize> = HashMap::new();
        let mut spenders: Vec<(String, u64)> = Vec::new();
        for entry in self.of(counter) {
            let mut line = match entry.origin {
                Some(origin) => origin.to_string(),
                None => "no line known".into(),
            };
            if let Some(detail) = &entry.detail {
                let _ = write!(line, ": {detail}");
            }
            let index = *at.entry(line.clone()).or_insert(spenders.len());
            match spenders.get_mut(index) {
                Some((_, amount)) => *amount += entry.amount,
                None => spenders.push((line, entry.amount)),
            }
        }
        spenders
            .iter()
            .fold(String::new(), |mut text, (line, amount)| {
                let _ = write!(text, "\n  {amount} by {line}");
                text
            })
    }
}
