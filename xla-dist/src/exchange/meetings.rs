//! Where the handlers of one execution meet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_runtime::meeting::Meeting;

/// Which meeting: collective of the program, call of the collective, group.
pub(super) type Key = (usize, usize, usize);

/// The meetings of one execution on the devices of this process.
#[derive(Debug, Default)]
pub(crate) struct Meetings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Those that not all have joined yet, and how many are to come.
    open: HashMap<Key, (Arc<Meeting>, usize)>,
    called_off: bool,
}

impl Meetings {
    /// The meeting of `expected` threads under this key; each of them asks for it once.
    pub(super) fn join(&self, key: Key, expected: usize) -> Arc<Meeting> {
        let mut state = self.lock();
        let called_off = state.called_off;
        let (meeting, to_come) = state.open.entry(key).or_insert_with(|| {
            let meeting = Meeting::new(expected);
            if called_off {
                meeting.call_off();
            }
            (Arc::new(meeting), expected)
        });
        let joined = Arc::clone(meeting);
        *to_come = to_come.saturating_sub(1);
        if *to_come == 0 {
            state.open.remove(&key);
        }
        joined
    }

    /// Ends every meeting at which not all have come yet, and those that are still to be.
    pub(crate) fn call_off(&self) {
        let mut state = self.lock();
        state.called_off = true;
        for (meeting, _) in state.open.values() {
            meeting.call_off();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use xla_runtime::meeting::{Met, Part};

    fn attend(meetings: &Meetings, key: Key) -> Met {
        let part = Part {
            member: 0,
            input: &[],
            output: &mut [],
        };
        let end = Instant::now() + Duration::from_secs(600);
        meetings.join(key, 2).meet(part, end, |_| ())
    }

    #[test]
    fn those_of_one_key_meet_and_a_call_off_ends_the_rest() {
        let meetings = Meetings::default();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| attend(&meetings, (0, 0, 0)));
            assert_eq!(attend(&meetings, (0, 0, 0)), Met::All);
            assert_eq!(first.join().unwrap(), Met::All);
            let waits = scope.spawn(|| attend(&meetings, (1, 0, 0)));
            while meetings.lock().open.is_empty() {
                std::thread::yield_now();
            }
            meetings.call_off();
            assert_eq!(waits.join().unwrap(), Met::Not);
            // Those that begin later end at once.
            assert_eq!(attend(&meetings, (1, 0, 1)), Met::Not);
        });
    }
}
