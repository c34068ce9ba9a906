//! A queue between threads that is bounded by the bytes in it, not by their number.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The queue takes no more: closed, or too full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejected {
    Closed,
    Full,
}

/// What [`Queue::pop`] came back with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped<T> {
    Item(T),
    /// Nothing came in time.
    Nothing,
    /// Closed, and everything pushed before has been taken.
    Closed,
}

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    most: usize,
}

struct State<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    closed: bool,
}

impl<T> Queue<T> {
    /// A queue for `most` bytes; an item that alone is longer still fits an empty queue.
    pub(crate) fn new(most: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State {
                items: VecDeque::new(),
                bytes: 0,
                closed: false,
            }),
            changed: Condvar::new(),
            most,
        }
    }

    /// Appends without waiting.
    pub(crate) fn push(&self, bytes: usize, item: T) -> Result<(), Rejected> {
        let mut state = self.lock();
        if state.closed {
            return Err(Rejected::Closed);
        }
        if !state.items.is_empty() && state.bytes + bytes > self.most {
            return Err(Rejected::Full);
        }
        state.bytes += bytes;
        state.items.push_back((bytes, item));
        self.changed.notify_all();
        Ok(())
    }

    /// The next item, waited for at most this long.
    pub(crate) fn pop(&self, patience: Duration) -> Popped<T> {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            if let Some((bytes, item)) = state.items.pop_front() {
                state.bytes -= bytes;
                return Popped::Item(item);
            }
            if state.closed {
                return Popped::Closed;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Popped::Nothing;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Takes nothing more; what is in it can still be taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Throws away what is in it, puts one last item there and closes; nothing if it is closed.
    pub(crate) fn finish(&self, item: T) {
        let mut state = self.lock();
        if !state.closed {
            state.items.clear();
            state.items.push_back((0, item));
            state.bytes = 0;
            state.closed = true;
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
