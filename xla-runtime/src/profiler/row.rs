//! The rows of a timeline.

use crate::context;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a row of the timeline shows. Rows are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Row {
    /// A replica: its thread, by its rank.
    Replica(usize),
    /// A thread that belongs to no replica of a launch.
    Thread(u64),
    /// When a replica or thread, by the number of its row, recorded what it ran then. That goes on
    /// across other spans, so it has a row of its own.
    Recording(u64),
    /// What runs on a device of this process.
    Device(usize),
}

/// Between the numbers of rows of one kind and those of the next.
const APART: u64 = 1 << 20;

/// What threads without a replica are called.
static NAMES: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

impl Row {
    /// That of the calling thread.
    pub(super) fn of_thread() -> Row {
        match context::current("profiler") {
            Ok(context) if context::in_launch() => Row::Replica(context.rank()),
            _ => Row::Thread(number()),
        }
    }

    /// The number that the row has in the file.
    pub(super) fn id(self) -> u64 {
        match self {
            Row::Replica(rank) => rank as u64,
            Row::Thread(number) => APART + number,
            Row::Recording(of) => 2 * APART + of,
            Row::Device(device) => 4 * APART + device as u64,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Row::Replica(rank) => format!("replica {rank}"),
            Row::Thread(number) => {
                let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
                names.get(&number).cloned().unwrap_or_default()
            }
            Row::Recording(of) if of < APART => {
                format!("{}, recording", Row::Replica(of as usize).name())
            }
            Row::Recording(of) => format!("{}, recording", Row::Thread(of - APART).name()),
            Row::Device(device) => format!("xla:{device}"),
        }
    }
}

/// A number that no other thread of the process has.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if NUMBER.get() == 0 {
        let new = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(new);
        let name = std::thread::current().name().map(str::to_owned);
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(new, name.unwrap_or_else(|| format!("thread {new}")));
    }
    NUMBER.get()
}
