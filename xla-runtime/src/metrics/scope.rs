//! Counts of one thread's work, and of the threads it starts.

use super::counter::{Counter, Counts, TOTALS};
use super::origin::Origin;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// Something counted, with the line that it is put down to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// What was counted.
    pub counter: Counter,
    /// How much of it.
    pub amount: u64,
    /// The call it was done for.
    pub origin: Option<Origin>,
    /// What else is known, for people.
    pub detail: Option<String>,
}

#[derive(Debug)]
struct Seen {
    counts: Counts,
    /// What was counted one by one, where that is asked for.
    entries: Option<Mutex<Vec<Entry>>>,
}

thread_local! {
    static SCOPES: RefCell<Vec<Arc<Seen>>> = const { RefCell::new(Vec::new()) };
}

/// Counts what happens from its creation until it is read.
///
/// ```
/// use xla_runtime::metrics::{Counter, Scope};
/// let scope = Scope::new();
/// assert_eq!(scope.count(Counter::Compile), 0);
/// ```
#[derive(Debug)]
pub struct Scope {
    seen: Arc<Seen>,
    // A scope belongs to the thread whose work it counts.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    /// Starts counting this thread's work.
    #[allow(clippy::new_without_default)] // it registers itself: a default would hide that
    pub fn new() -> Self {
        Scope::register(None)
    }

    /// Also keeps what is counted one by one, each with its line, for [`Scope::entries`]: it grows
    /// for as long as it lives.
    pub fn listing() -> Self {
        Scope::register(Some(Mutex::default()))
    }

    fn register(entries: Option<Mutex<Vec<Entry>>>) -> Self {
        let seen = Arc::new(Seen {
            counts: Counts::new(),
            entries,
        });
        SCOPES.with_borrow_mut(|scopes| scopes.push(Arc::clone(&seen)));
        Scope {
            seen,
            _thread: PhantomData,
        }
    }

    /// How much of this has happened since the scope began.
    pub fn count(&self, counter: Counter) -> u64 {
        self.seen.counts.get(counter)
    }

    /// Programs that had to be made: compiled, or loaded from the persistent cache. So the number is
    /// the same whatever earlier processes have left there.
    pub fn compiles(&self) -> u64 {
        self.count(Counter::Compile) + self.count(Counter::PersistentCacheHit)
    }

    /// Programs started; each device that runs one counts.
    pub fn executions(&self) -> u64 {
        self.count(Counter::Execute)
    }

    /// Arrays that programs returned.
    pub fn outputs(&self) -> u64 {
        self.count(Counter::Output)
    }

    /// Arrays read back to the host.
    pub fn downloads(&self) -> u64 {
        self.count(Counter::Download)
    }

    /// What was counted since the scope began, one by one; nothing unless it is a
    /// [`Scope::listing`].
    pub fn entries(&self) -> Vec<Entry> {
        match &self.seen.entries {
            Some(entries) => entries
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            None => Vec::new(),
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.retain(|c| !Arc::ptr_eq(c, &self.seen)));
    }
}

/// Adds to the process's total and to every scope of the calling thread.
pub fn add(counter: Counter, n: u64) {
    add_entry(counter, n, || None);
}

/// [`add`] with what else is known, which is only made where somebody lists it.
pub fn add_with(counter: Counter, n: u64, detail: impl Fn() -> String) {
    add_entry(counter, n, || Some(detail()));
}

fn add_entry(counter: Counter, n: u64, detail: impl Fn() -> Option<String>) {
    TOTALS.add(counter, n);
    SCOPES.with_borrow(|scopes| {
        for seen in scopes {
            seen.counts.add(counter, n);
            if let Some(entries) = &seen.entries {
                let entry = Entry {
                    counter,
                    amount: n,
                    origin: Origin::current(),
                    detail: detail(),
                };
                entries
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(entry);
            }
        }
    });
}

/// The scopes of a thread, to be continued on a thread it starts.
#[derive(Debug, Clone)]
pub struct Inherited(Vec<Arc<Seen>>);

/// What a thread about to start another hands to it.
pub fn inherit() -> Inherited {
    SCOPES.with_borrow(|scopes| Inherited(scopes.clone()))
}

impl Inherited {
    /// Lets the calling thread's work count in the scopes handed over.
    pub fn adopt(self) {
        SCOPES.with_borrow_mut(|scopes| scopes.extend(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{attribute, total};
    use super::*;
    use std::panic::Location;

    #[test]
    fn scopes_nest_and_threads_join_them() {
        let before = total(Counter::Compile);
        let outer = Scope::new();
        add(Counter::Compile, 1);
        let inner = Scope::new();
        let handed = inherit();
        std::thread::spawn(move || {
            add(Counter::Compile, 100);
            handed.adopt();
            add(Counter::Compile, 1);
        })
        .join()
        .unwrap();
        assert_eq!((outer.compiles(), inner.compiles()), (2, 1));
        drop(inner);
        add(Counter::Compile, 1);
        assert_eq!(outer.compiles(), 3);
        assert!(total(Counter::Compile) >= before + 103);
    }

    #[test]
    fn a_listing_names_the_outermost_call() {
        let scope = Scope::listing();
        let line = Location::caller();
        let outer = attribute("item", line);
        drop(attribute("to_literal", Location::caller()));
        add(Counter::Download, 1);
        drop(outer);
        add_with(Counter::Execute, 2, || "two".into());
        let origins: Vec<_> = scope.entries().iter().map(|e| e.origin).collect();
        let item = Origin {
            what: "item",
            location: line,
        };
        assert_eq!(origins, [Some(item), None]);
        assert_eq!(scope.entries()[1].detail.as_deref(), Some("two"));
    }
}
