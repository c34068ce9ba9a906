//! Signs of life, and the guard against taking one's own pause for another's death.

use std::io::{self, Read};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A watcher whose own loop is this late was paused (stopped, swapped out, starved) and knows
/// nothing of the time in between.
const PAUSE: Duration = Duration::from_secs(1);

/// When a peer was last heard of.
#[derive(Default)]
pub(crate) struct LastSeen(AtomicU64);

impl LastSeen {
    pub(crate) fn now() -> LastSeen {
        let seen = LastSeen::default();
        seen.renew();
        seen
    }

    pub(crate) fn renew(&self) {
        self.0.store(clock(), Ordering::Relaxed);
    }

    /// How long ago that was.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(clock().saturating_sub(self.0.load(Ordering::Relaxed)))
    }
}

/// Milliseconds since some moment in this process.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Reads, and notes each time that bytes came: a long frame is a sign of life before its end.
pub(crate) struct Watched<'a, R> {
    pub(crate) reader: R,
    pub(crate) seen: &'a LastSeen,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.seen.renew();
        Ok(n)
    }
}

/// Tells a watcher whether its own loop was paused.
pub(crate) struct Punctuality {
    period: Duration,
    last: Instant,
}

impl Punctuality {
    /// For a loop that comes round about once a period.
    pub(crate) fn new(period: Duration) -> Punctuality {
        Punctuality {
            period,
            last: Instant::now(),
        }
    }

    /// Whether the time since the last call was longer than the loop can explain.
    pub(crate) fn was_paused(&mut self) -> bool {
        let now = Instant::now();
        let took = now.duration_since(self.last);
        self.last = now;
        took > self.period + PAUSE
    }
}

/// How often a heartbeat is sent where one is missed after `silence`.
pub(crate) fn interval(silence: Duration) -> Duration {
    (silence / 5).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_knows_its_own_pause() {
        let period = Duration::from_millis(10);
        let mut punctuality = Punctuality::new(period);
        std::thread::sleep(PAUSE + 2 * period);
        assert!(punctuality.was_paused());
        assert!(!punctuality.was_paused());
    }

    #[test]
    fn heartbeats_are_several_to_a_silence_and_at_most_a_second_apart() {
        assert_eq!(interval(Duration::from_secs(5)), Duration::from_secs(1));
        assert_eq!(interval(Duration::from_secs(60)), Duration::from_secs(1));
        assert_eq!(interval(Duration::from_secs(1)), Duration::from_millis(200));
    }
}
