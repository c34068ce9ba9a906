//! Threads that meet, so that one of them works with the memory of all.
//!
//! The handlers of one custom call run on a thread for each replica, and each is lent the memory of
//! its own replica only. Here they wait for each other, and the last to come sees what all of them
//! brought.

use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What one thread brings.
#[derive(Debug)]
pub struct Part<'a> {
    /// Which of the threads it is, in their own counting.
    pub member: usize,
    /// Memory to be read.
    pub input: &'a [u8],
    /// Memory to be written.
    pub output: &'a mut [u8],
}

/// How a meeting ended for one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// All came, and the last one has worked with what they brought.
    All,
    /// Some did not come before the deadline, or somebody called it off. The outputs are as they
    /// were.
    Not,
}

/// A meeting of a number of threads, once.
#[derive(Debug)]
pub struct Meeting {
    expected: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    Gathering(Vec<Raw>),
    /// The parts are with the last thread that came.
    Working,
    Over(Met),
}

/// A [`Part`] without its lifetime.
#[derive(Debug)]
struct Raw {
    member: usize,
    input: NonNull<[u8]>,
    output: NonNull<[u8]>,
}

// SAFETY: it stands for a shared and an exclusive slice of bytes, both of which may be sent.
unsafe impl Send for Raw {}

impl Raw {
    /// # Safety
    /// The part that it was made of must not be used during `'a`, nor must another copy of this.
    unsafe fn part<'a>(self) -> Part<'a> {
        // SAFETY: made of references; the caller vouches that they live on, alone.
        unsafe {
            Part {
                member: self.member,
                input: self.input.as_ref(),
                output: { self.output }.as_mut(),
            }
        }
    }
}

impl Meeting {
    /// A meeting of this many threads.
    pub fn new(expected: usize) -> Self {
        Meeting {
            expected,
            state: Mutex::new(State::Gathering(Vec::with_capacity(expected))),
            changed: Condvar::new(),
        }
    }

    /// Brings a part and waits for the others, until `end` at most. The thread that comes last calls
    /// `work` with all parts, in the order of their members; the others wait until it is done,
    /// however long that takes.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use xla_runtime::meeting::{Meeting, Met, Part};
    ///
    /// let meeting = Meeting::new(2);
    /// let end = Instant::now() + Duration::from_secs(60);
    /// let bring = |member: usize| {
    ///     let (input, mut output) = ([member as u8 + 1; 2], [0; 2]);
    ///     let part = Part { member, input: &input, output: &mut output };
    ///     let met = meeting.meet(part, end, |mut parts| {
    ///         let sum = parts.iter().map(|part| part.input[0]).sum();
    ///         parts.iter_mut().for_each(|part| part.output.fill(sum));
    ///     });
    ///     (met, output)
    /// };
    /// let (a, b) = std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| bring(1));
    ///     (bring(0), other.join().unwrap())
    /// });
    /// assert_eq!(a, (Met::All, [3, 3]));
    /// assert_eq!(a, b);
    /// ```
    pub fn meet(
        &self,
        part: Part<'_>,
        end: Instant,
        work: impl for<'p> FnOnce(Vec<Part<'p>>),
    ) -> Met {
        let mut state = self.lock();
        match &mut *state {
            State::Gathering(parts) => parts.push(Raw {
                member: part.member,
                input: part.input.into(),
                output: part.output.into(),
            }),
            State::Working => return Met::Not,
            State::Over(_) => return Met::Not,
        }
        if let State::Gathering(parts) = &mut *state
            && parts.len() == self.expected
        {
            let mut parts = std::mem::take(parts);
            *state = State::Working;
            drop(state);
            let _over = Ending(self);
            parts.sort_unstable_by_key(|part| part.member);
            // SAFETY: each was made of the part that a thread brought, which waits in this function
            // without using it until the state is `Over`: not before `work` has returned, or
            // unwound, and with it the parts are gone, since it takes them for any lifetime.
            work(parts.into_iter().map(|raw| unsafe { raw.part() }).collect());
            return Met::All;
        }
        loop {
            match &*state {
                State::Over(met) => return *met,
                State::Working => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                State::Gathering(_) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        *state = State::Over(Met::Not);
                        self.changed.notify_all();
                        return Met::Not;
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Ends the meeting for those who wait and those who come, unless all have come.
    pub fn call_off(&self) {
        let mut state = self.lock();
        if let State::Gathering(_) = *state {
            *state = State::Over(Met::Not);
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the others go, also when the work panics.
struct Ending<'m>(&'m Meeting);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        *self.0.lock() = State::Over(Met::All);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn part<'a>(member: usize, output: &'a mut [u8]) -> Part<'a> {
        Part {
            member,
            input: &[],
            output,
        }
    }

    #[test]
    fn who_waits_alone_goes_at_the_deadline_and_who_comes_later_at_once() {
        let meeting = Meeting::new(2);
        let end = Instant::now() + Duration::from_millis(50);
        let mut output = [7; 3];
        assert_eq!(meeting.meet(part(0, &mut output), end, |_| ()), Met::Not);
        assert_eq!(output, [7; 3]);
        let late = Instant::now() + Duration::from_secs(600);
        assert_eq!(meeting.meet(part(1, &mut [1]), late, |_| ()), Met::Not);
    }

    #[test]
    fn a_meeting_that_is_called_off_is_over_for_those_who_wait() {
        let meeting = Meeting::new(3);
        let end = Instant::now() + Duration::from_secs(600);
        std::thread::scope(|scope| {
            let waits = [0, 1].map(|m| {
                let meeting = &meeting;
                scope.spawn(move || meeting.meet(part(m, &mut [m as u8]), end, |_| ()))
            });
            std::thread::sleep(Duration::from_millis(50));
            meeting.call_off();
            for wait in waits {
                assert_eq!(wait.join().unwrap(), Met::Not);
            }
        });
    }

    #[test]
    fn a_panic_of_the_one_that_works_lets_the_others_go() {
        let meeting = Meeting::new(2);
        let end = Instant::now() + Duration::from_secs(600);
        let panics = std::thread::scope(|scope| {
            let members = [0, 1].map(|m| {
                let meeting = &meeting;
                scope.spawn(move || {
                    meeting.meet(part(m, &mut [0]), end, |_| panic!("the work failed"))
                })
            });
            members.map(|member| member.join().is_err())
        });
        assert_eq!(panics.into_iter().filter(|p| *p).count(), 1);
    }
}
