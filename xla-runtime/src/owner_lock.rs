//! A lock for what one thread uses all the time and others hardly ever.
//!
//! An uncontended mutex costs two atomic read-modify-writes, as much as a third of recording an
//! operator. Here the thread that made the lock says with a plain store that it is inside and then
//! looks whether another thread asks for the lock. Processors may order that store after that load;
//! instead of keeping its own from doing so every time, the owner leaves it to whoever asks:
//! `membarrier(2)` has every core of the process order what it has issued. (Dice, Huang and Yang,
//! "Asymmetric Dekker synchronization", 2001, is the scheme; biased locks are its usual use.)
//! Where the kernel has no such call, the owner does order them.

use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;

/// How often another thread looks whether the owner has left before it lets others run.
const LOOKS: u32 = 100;

/// A mutual exclusion lock that is cheap for the thread that made it. Like `Mutex`, but a panic does
/// not poison it, and its owner's locking it once more inside is a panic.
pub struct OwnerLock<T> {
    owner: u64,
    /// Whether the kernel orders the owner's accesses for who asks.
    asymmetric: bool,
    /// The owner is inside, or is about to see that it may not be.
    inside: AtomicBool,
    /// Another thread is inside, or waits for the owner to leave.
    asked: AtomicBool,
    /// Held by any thread but the owner that is inside or asks, and by an owner that had to wait.
    gate: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the thread that holds the lock (see `lock`), so sharing the
// lock hands the value from thread to thread, which `Send` allows.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    /// A lock whose owner is the calling thread.
    pub fn new(value: T) -> Self {
        OwnerLock {
            owner: thread_token(),
            asymmetric: kernel_orders(),
            inside: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            gate: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// The lock, once no other thread has it.
    ///
    /// # Panics
    /// On the owner's thread, if it has the lock already.
    #[inline]
    pub fn lock(&self) -> OwnerGuard<'_, T> {
        match self.owner == thread_token() && self.enter() {
            true => OwnerGuard::of(self, Way::Owner),
            false => self.lock_behind_gate(),
        }
    }

    /// The lock, unless another thread has it or asks for it.
    ///
    /// # Panics
    /// As [`OwnerLock::lock`].
    pub fn try_lock(&self) -> Option<OwnerGuard<'_, T>> {
        if self.owner == thread_token() && self.enter() {
            return Some(OwnerGuard::of(self, Way::Owner));
        }
        let gate = match self.gate.try_lock() {
            Ok(gate) => gate,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if self.owner == thread_token() {
            return Some(self.enter_by(gate));
        }
        self.ask();
        match self.inside.load(Ordering::Acquire) {
            true => {
                self.asked.store(false, Ordering::Release);
                None
            }
            false => Some(OwnerGuard::of(self, Way::Other(gate))),
        }
    }

    /// Whether the owner, who calls, is inside now: nobody else asks.
    #[inline]
    fn enter(&self) -> bool {
        assert!(
            !self.inside.load(Ordering::Relaxed),
            "a lock is taken by the thread that holds it"
        );
        self.inside.store(true, Ordering::Relaxed);
        match self.asymmetric {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        // What the last other thread did inside comes before what the owner does now.
        let alone = !self.asked.load(Ordering::Acquire);
        if !alone {
            self.inside.store(false, Ordering::Release);
        }
        alone
    }

    /// The owner, who calls, is inside: others ask only with the gate, and have left before they gave
    /// it back.
    fn enter_by<'a>(&'a self, gate: MutexGuard<'a, ()>) -> OwnerGuard<'a, T> {
        // For `enter`, should the owner come once more.
        self.inside.store(true, Ordering::Relaxed);
        OwnerGuard::of(self, Way::Gate(gate))
    }

    /// Says that a thread other than the owner, which holds the gate, wants to be inside. If the
    /// owner has not seen that yet, it has said that it is inside.
    fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.asymmetric {
            // It does not fail in a process that has registered for it.
            let _ordered = membarrier(MembarrierCommand::PrivateExpedited);
        }
    }

    #[cold]
    fn lock_behind_gate(&self) -> OwnerGuard<'_, T> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        if self.owner == thread_token() {
            return self.enter_by(gate);
        }
        self.ask();
        let mut looks = 0;
        while self.inside.load(Ordering::Acquire) {
            looks += 1;
            match looks < LOOKS {
                true => std::hint::spin_loop(),
                false => thread::yield_now(),
            }
        }
        OwnerGuard::of(self, Way::Other(gate))
    }
}

impl<T> fmt::Debug for OwnerLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerLock").finish_non_exhaustive()
    }
}

/// How a thread came inside, which says how it leaves.
enum Way<'a> {
    /// The owner, without the gate.
    Owner,
    /// The owner, after it had waited.
    #[expect(dead_code, reason = "held, not read")]
    Gate(MutexGuard<'a, ()>),
    /// Another thread.
    #[expect(dead_code, reason = "held, not read")]
    Other(MutexGuard<'a, ()>),
}

/// The right to use what an [`OwnerLock`] guards, until it is dropped.
pub struct OwnerGuard<'a, T> {
    lock: &'a OwnerLock<T>,
    way: Way<'a>,
    /// Only the thread that came inside can leave.
    _not_send: PhantomData<*const ()>,
}

impl<'a, T> OwnerGuard<'a, T> {
    #[inline]
    fn of(lock: &'a OwnerLock<T>, way: Way<'a>) -> Self {
        OwnerGuard {
            lock,
            way,
            _not_send: PhantomData,
        }
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its thread alone is inside.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.way {
            // Before the gate, if there is one, is given back, which is when the guard in it is dropped.
            Way::Owner | Way::Gate(_) => self.lock.inside.store(false, Ordering::Release),
            Way::Other(_) => self.lock.asked.store(false, Ordering::Release),
        }
    }
}

/// Whether the kernel orders the accesses of all threads of this process for one of them.
fn kernel_orders() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

/// A number that names the calling thread, and no other for the life of the process.
#[inline]
pub fn thread_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: Cell<u64> = const { Cell::new(0) };
    }
    match TOKEN.get() {
        0 => {
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            TOKEN.set(new);
            new
        }
        known => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Adds one to a number that is no atomic, in two steps that others must not come between.
    fn add_one(mut guard: OwnerGuard<'_, (u64, u64)>) {
        guard.0 += 1;
        std::hint::black_box(&mut *guard);
        guard.1 += 1;
        assert_eq!(guard.0, guard.1);
    }

    #[test]
    fn the_owner_and_others_take_turns() {
        const OWN: u64 = 400_000;
        const EACH: u64 = 4_000;
        for asymmetric in [kernel_orders(), false] {
            let lock = OwnerLock {
                asymmetric,
                ..OwnerLock::new((0, 0))
            };
            let tried = thread::scope(|scope| {
                let others = [true, false, false].map(|tries| {
                    let lock = &lock;
                    scope.spawn(move || {
                        let mut entered = 0;
                        for _ in 0..EACH {
                            match tries {
                                true => {
                                    entered += lock.try_lock().map_or(0, |guard| {
                                        add_one(guard);
                                        1
                                    })
                                }
                                false => add_one(lock.lock()),
                            }
                        }
                        entered
                    })
                });
                for turn in 0..OWN {
                    match turn % 16 {
                        0 => lock
                            .try_lock()
                            .map_or_else(|| add_one(lock.lock()), add_one),
                        _ => add_one(lock.lock()),
                    }
                }
                others
                    .map(|other| other.join().unwrap())
                    .iter()
                    .sum::<u64>()
            });
            let all = OWN + 2 * EACH + tried;
            assert_eq!(*lock.lock(), (all, all));
        }
    }

    #[test]
    fn who_holds_it_keeps_others_out() {
        let lock = OwnerLock::new(());
        let held = lock.lock();
        thread::scope(|scope| {
            let other = scope.spawn(|| lock.try_lock().is_none());
            assert!(other.join().unwrap(), "while its owner has it");
        });
        drop(held);
        let (taken, leave) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _held = lock.lock();
                taken.wait();
                leave.wait();
            });
            taken.wait();
            assert!(lock.try_lock().is_none(), "while another thread has it");
            leave.wait();
        });
        assert!(lock.try_lock().is_some());
    }

    #[test]
    #[should_panic = "taken by the thread that holds it"]
    fn its_owner_does_not_wait_for_itself() {
        let lock = OwnerLock::new(());
        let _held = lock.lock();
        let _again = lock.lock();
    }

    #[test]
    #[should_panic = "taken by the thread that holds it"]
    fn nor_does_it_come_in_twice_after_it_has_waited() {
        let lock = OwnerLock::new(());
        let _held = lock.lock_behind_gate();
        let _again = lock.lock();
    }

    #[test]
    fn a_panic_inside_leaves_it_open() {
        let lock = OwnerLock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut held = lock.lock();
            *held = 2;
            panic!("inside");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 2);
    }
}
