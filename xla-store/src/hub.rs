//! Scopes and their members: who is there, who ended and how, and the messages between them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::queue::{Queue, Rejected};
use crate::wire::MAX_VALUE;

/// Most bytes that wait for one member, and most that a scope keeps for those still to come.
pub(crate) const MAX_BACKLOG: usize = 2 * MAX_VALUE;

/// What a waiting item costs besides its bytes.
pub(crate) const ITEM: usize = 64;

/// Most members of a scope.
pub const MAX_MEMBERS: usize = 64 << 10;

/// Most scopes that are not over.
const MAX_SCOPES: usize = 64 << 10;

/// What one member is told of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    Message {
        from: usize,
        bytes: Arc<[u8]>,
    },
    Failed {
        member: usize,
        reason: Arc<str>,
    },
    Left {
        member: usize,
    },
    /// The last one: the member itself is taken for failed.
    Expelled {
        reason: Arc<str>,
    },
}

impl Notice {
    pub(crate) fn bytes(&self) -> usize {
        ITEM + match self {
            Notice::Message { bytes, .. } => bytes.len(),
            Notice::Failed { reason, .. } | Notice::Expelled { reason } => reason.len(),
            Notice::Left { .. } => 0,
        }
    }

    /// Whom it is about.
    fn member(&self) -> Option<usize> {
        match self {
            Notice::Message { from, .. } => Some(*from),
            Notice::Failed { member, .. } | Notice::Left { member } => Some(*member),
            Notice::Expelled { .. } => None,
        }
    }
}

/// What waits for a member.
pub(crate) type Outbox = Queue<Notice>;

#[derive(Default)]
pub(crate) struct Hub(Mutex<HashMap<String, Scope>>);

struct Scope {
    seats: Vec<Seat>,
    /// What members that have not joined yet are still to be told; empty once all have.
    log: Vec<Notice>,
    log_bytes: usize,
}

enum Seat {
    Empty,
    Taken(Arc<Outbox>),
    /// Left or failed: the scope is over when all are.
    Over,
}

/// How a member's time in a scope ends.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    Left,
    Failed(String),
}

impl Hub {
    /// Takes a member in, with what it has missed already in its outbox.
    pub(crate) fn join(
        &self,
        scope: &str,
        member: usize,
        size: usize,
    ) -> Result<Arc<Outbox>, String> {
        if size > MAX_MEMBERS || member >= size {
            return Err(format!(
                "member {member} of {size}: members count from 0, at most {MAX_MEMBERS}"
            ));
        }
        let mut scopes = self.lock();
        if !scopes.contains_key(scope) {
            if scopes.len() == MAX_SCOPES {
                return Err(format!("{MAX_SCOPES} scopes are open, which is the most"));
            }
            let fresh = Scope {
                seats: (0..size).map(|_| Seat::Empty).collect(),
                log: Vec::new(),
                log_bytes: 0,
            };
            scopes.insert(scope.to_owned(), fresh);
        }
        let Some(entry) = scopes.get_mut(scope) else {
            return Err(format!("scope {scope:?} is over"));
        };
        if entry.seats.len() != size {
            return Err(format!(
                "scope {scope:?} has {} members, not {size}",
                entry.seats.len()
            ));
        }
        let outbox = Arc::new(Outbox::new(MAX_BACKLOG + size * ITEM));
        match entry.seats.get_mut(member) {
            Some(seat @ Seat::Empty) => *seat = Seat::Taken(Arc::clone(&outbox)),
            _ => return Err(format!("member {member} of {scope:?} has joined before")),
        }
        for notice in &entry.log {
            // Fits: the log is bounded as the outbox is.
            let _ = outbox.push(notice.bytes(), notice.clone());
        }
        if !entry.seats.iter().any(|seat| matches!(seat, Seat::Empty)) {
            entry.log = Vec::new();
            entry.log_bytes = 0;
        }
        Ok(outbox)
    }

    /// Gives a member's message to all others, those to come included.
    ///
    /// An error, in words, when the member's time is over or too much waits already.
    pub(crate) fn send(&self, scope: &str, member: usize, bytes: &[u8]) -> Result<(), String> {
        let mut scopes = self.lock();
        let Some(entry) = scopes.get_mut(scope) else {
            return Err("the scope is over".into());
        };
        if !matches!(entry.seats.get(member), Some(Seat::Taken(_))) {
            return Err("the member has left or failed".into());
        }
        let notice = Notice::Message {
            from: member,
            bytes: bytes.into(),
        };
        if entry.waits_for_some() && entry.log_bytes + notice.bytes() > MAX_BACKLOG {
            return Err(format!(
                "more than {MAX_BACKLOG} bytes of messages wait for members that have not joined"
            ));
        }
        entry.tell(notice);
        Hub::tidy(&mut scopes, scope);
        Ok(())
    }

    /// Ends a member's time, once, and tells the others.
    pub(crate) fn end(&self, scope: &str, member: usize, ending: Ending) {
        let mut scopes = self.lock();
        if let Some(entry) = scopes.get_mut(scope) {
            entry.end(member, ending);
            Hub::tidy(&mut scopes, scope);
        }
    }

    /// Ends every scope without a word: a store that stops says nothing of its members.
    pub(crate) fn stop(&self) {
        for (_, scope) in self.lock().drain() {
            for seat in scope.seats {
                if let Seat::Taken(outbox) = seat {
                    outbox.close();
                }
            }
        }
    }

    /// Forgets a scope that is over.
    fn tidy(scopes: &mut HashMap<String, Scope>, scope: &str) {
        let over = |entry: &Scope| entry.seats.iter().all(|seat| matches!(seat, Seat::Over));
        if scopes.get(scope).is_some_and(over) {
            scopes.remove(scope);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Scope>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scope {
    fn waits_for_some(&self) -> bool {
        self.seats.iter().any(|seat| matches!(seat, Seat::Empty))
    }

    /// Puts a notice into everybody's outbox but that of the member it is about.
    ///
    /// A member whose outbox is full does not read: it is taken for failed, which is told too.
    fn tell(&mut self, notice: Notice) {
        let mut pending = vec![notice];
        while let Some(notice) = pending.pop() {
            let mut stuck = Vec::new();
            for (member, seat) in self.seats.iter().enumerate() {
                if let Seat::Taken(outbox) = seat
                    && notice.member() != Some(member)
                    && outbox.push(notice.bytes(), notice.clone()) == Err(Rejected::Full)
                {
                    stuck.push(member);
                }
            }
            if self.waits_for_some() {
                self.log_bytes += notice.bytes();
                self.log.push(notice);
            }
            for member in stuck {
                let reason = "it does not read what the others send";
                pending.extend(self.close(member, Ending::Failed(reason.into())));
            }
        }
    }

    fn end(&mut self, member: usize, ending: Ending) {
        if let Some(notice) = self.close(member, ending) {
            self.tell(notice);
        }
    }

    /// Empties a seat that is taken; returns what the others are to be told.
    fn close(&mut self, member: usize, ending: Ending) -> Option<Notice> {
        let seat = self.seats.get_mut(member)?;
        let Seat::Taken(outbox) = seat else {
            return None;
        };
        let outbox = Arc::clone(outbox);
        *seat = Seat::Over;
        match ending {
            Ending::Left => {
                outbox.close();
                Some(Notice::Left { member })
            }
            Ending::Failed(reason) => {
                let reason: Arc<str> = reason.into();
                outbox.finish(Notice::Expelled {
                    reason: Arc::clone(&reason),
                });
                Some(Notice::Failed { member, reason })
            }
        }
    }
}
