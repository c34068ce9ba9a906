//! Gloo's TCP transport, made safe: the only unsafe code of this crate.
//!
//! From its start until it is freed, Gloo's thread may read or write a message's memory; freeing it
//! waits for that thread to let go. A [`Scope`] owns its messages, and [`Context::scope`] frees them
//! before it returns, also when it unwinds. The memory is borrowed for `'env`, a parameter of that
//! function, which therefore outlives the call.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

mod sys {
    use super::{c_char, c_int};

    #[repr(C)]
    pub(super) struct Context([u8; 0]);
    #[repr(C)]
    pub(super) struct Message([u8; 0]);

    pub(super) const DONE: c_int = 0;
    pub(super) const ABORTED: c_int = 1;

    unsafe extern "C" {
        pub(super) fn xla_gloo_listen(
            rank: c_int,
            size: c_int,
            address: *const c_char,
            interface: *const c_char,
            connect_ms: i64,
            out: *mut *mut Context,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
        pub(super) fn xla_gloo_address(
            context: *mut Context,
            peer: c_int,
            out: *mut u8,
            length: *mut usize,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
        pub(super) fn xla_gloo_connect(
            context: *mut Context,
            peer: c_int,
            address: *const u8,
            length: usize,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
        pub(super) fn xla_gloo_start(
            context: *mut Context,
            receives: bool,
            peer: c_int,
            slot: u64,
            memory: *mut u8,
            length: usize,
            out: *mut *mut Message,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
        pub(super) fn xla_gloo_wait(
            message: *mut Message,
            ms: i64,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
        pub(super) fn xla_gloo_abort(message: *mut Message);
        pub(super) fn xla_gloo_free_message(message: *mut Message);
        pub(super) fn xla_gloo_close(context: *mut Context);
        pub(super) fn xla_gloo_free(context: *mut Context);
        pub(super) fn xla_gloo_own_all_reduce(
            context: *mut Context,
            tag: u32,
            numbers: *mut f32,
            length: usize,
            ms: i64,
            error: *mut c_char,
            capacity: usize,
        ) -> c_int;
    }
}

/// How a wait ended.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// [`Context::wake`] ended it.
    Woken,
    /// Gloo's words: the connection is gone, or the time is over.
    Failed(String),
}

/// In Gloo's words for a connection that it closed since a wait of this very process was overdue.
const OWN_WAIT_OVERDUE: &str = "Application timeout";

/// The slot of the byte with which a process says goodbye.
const FAREWELL: u64 = u64::MAX;

/// One process's end of its connections with all others.
pub(super) struct Context {
    raw: NonNull<sys::Context>,
    size: usize,
    /// The messages that may be waited for, with the peer of each.
    active: Mutex<Vec<(usize, Raw)>>,
}

/// A message that Gloo knows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Raw(NonNull<sys::Message>);

// SAFETY: Gloo's objects lock themselves, and what the shim keeps beside them never changes.
unsafe impl Send for Raw {}
// SAFETY: as above; `active` has its own lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Listens at a numeric address, or at an interface if one is named.
    pub(super) fn listen(
        index: usize,
        size: usize,
        address: &CStr,
        interface: &CStr,
        connect_within: Duration,
    ) -> Result<Self, String> {
        let mut out = std::ptr::null_mut();
        let (rank, count) = (index_of(index)?, index_of(size)?);
        checked(|error, capacity| {
            // SAFETY: both strings end with a zero, and `out` is a place for the result.
            unsafe {
                sys::xla_gloo_listen(
                    rank,
                    count,
                    address.as_ptr(),
                    interface.as_ptr(),
                    milliseconds(connect_within),
                    &mut out,
                    error,
                    capacity,
                )
            }
        })?;
        Ok(Context {
            raw: NonNull::new(out).ok_or("Gloo made no context")?,
            size,
            active: Mutex::default(),
        })
    }

    /// The address, in Gloo's form, at which a peer reaches this process.
    pub(super) fn address(&self, peer: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; 1024];
        let mut length = bytes.len();
        let peer = self.peer(peer)?;
        checked(|error, capacity| {
            // SAFETY: the context is alive, and `length` says how much `bytes` holds.
            unsafe {
                sys::xla_gloo_address(
                    self.raw.as_ptr(),
                    peer,
                    bytes.as_mut_ptr(),
                    &mut length,
                    error,
                    capacity,
                )
            }
        })?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Connects to a peer at the address that it has for this process.
    pub(super) fn connect(&self, peer: usize, address: &[u8]) -> Result<(), String> {
        let peer = self.peer(peer)?;
        checked(|error, capacity| {
            // SAFETY: the context is alive, and the address is read during the call only.
            unsafe {
                sys::xla_gloo_connect(
                    self.raw.as_ptr(),
                    peer,
                    address.as_ptr(),
                    address.len(),
                    error,
                    capacity,
                )
            }
        })
    }

    /// Calls `work` with a place for its messages. All of them are given up when it returns.
    pub(super) fn scope<'env, R>(&self, work: impl FnOnce(&mut Scope<'_, 'env>) -> R) -> R {
        work(&mut Scope {
            context: self,
            messages: Vec::new(),
            env: PhantomData,
        })
    }

    /// Waits in the background for a peer's goodbye.
    pub(super) fn farewell_of(&self, peer: usize) -> Result<Farewell<'_>, String> {
        let byte = Box::new(AtomicU8::new(0));
        // SAFETY: `Farewell` frees the message before the byte; if it is leaked, so is the byte.
        let message = unsafe { self.start(true, peer, FAREWELL, byte.as_ptr(), 1) }?;
        Ok(Farewell {
            message,
            byte,
            context: PhantomData,
        })
    }

    /// Says goodbye to a peer.
    pub(super) fn farewell_to(&self, peer: usize, within: Duration) -> Result<(), String> {
        static LAST: [u8; 1] = [1];
        self.scope(|scope| {
            let ticket = scope.send(peer, FAREWELL, &LAST)?;
            match scope.wait(ticket, within) {
                Ok(_) => Ok(()),
                Err(Unfinished::Woken) => Err("woken".into()),
                Err(Unfinished::Failed(reason)) => Err(reason),
            }
        })
    }

    /// Ends the waits for all messages from and to the peers that `which` picks, in any thread; a
    /// message that is not being waited for fails when it is.
    pub(super) fn wake(&self, which: impl Fn(usize) -> bool) {
        for (_, message) in self.active().iter().filter(|(peer, _)| which(*peer)) {
            // SAFETY: a message is freed after it was taken out of `active`, which is locked.
            unsafe { sys::xla_gloo_abort(message.0.as_ptr()) }
        }
    }

    /// Resets all connections.
    pub(super) fn close(&self) {
        // SAFETY: the context is alive.
        unsafe { sys::xla_gloo_close(self.raw.as_ptr()) }
    }

    /// Gloo's own ring algorithm: the sum of all processes' numbers, in place.
    pub(super) fn own_all_reduce(
        &self,
        tag: u32,
        numbers: &mut [f32],
        within: Duration,
    ) -> Result<(), String> {
        checked(|error, capacity| {
            // SAFETY: the context is alive, and Gloo lets go of the memory before it returns.
            unsafe {
                sys::xla_gloo_own_all_reduce(
                    self.raw.as_ptr(),
                    tag,
                    numbers.as_mut_ptr(),
                    numbers.len(),
                    milliseconds(within),
                    error,
                    capacity,
                )
            }
        })
    }

    /// # Safety
    /// `length` bytes at `memory` stay valid until the message is freed, and until then nobody
    /// writes to them, nor, if it receives, reads them (but atomically).
    unsafe fn start(
        &self,
        receives: bool,
        peer: usize,
        slot: u64,
        memory: *mut u8,
        length: usize,
    ) -> Result<Raw, String> {
        let mut out = std::ptr::null_mut();
        let peer = self.peer(peer)?;
        checked(|error, capacity| {
            // SAFETY: the context is alive; the caller answers for the memory.
            unsafe {
                sys::xla_gloo_start(
                    self.raw.as_ptr(),
                    receives,
                    peer,
                    slot,
                    memory,
                    length,
                    &mut out,
                    error,
                    capacity,
                )
            }
        })?;
        Ok(Raw(NonNull::new(out).ok_or("Gloo made no message")?))
    }

    fn peer(&self, peer: usize) -> Result<c_int, String> {
        if peer >= self.size {
            return Err(format!("process {peer} of {}", self.size));
        }
        index_of(peer)
    }

    fn active(&self) -> MutexGuard<'_, Vec<(usize, Raw)>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: messages borrow the context, so none is left.
        unsafe { sys::xla_gloo_free(self.raw.as_ptr()) }
    }
}

/// The messages of one call.
pub(super) struct Scope<'s, 'env> {
    context: &'s Context,
    messages: Vec<Held>,
    /// Memory comes in and goes out as `&'env mut`.
    env: PhantomData<&'env mut &'env mut [u8]>,
}

/// A message and the memory it was given, which `Scope::wait` gives back.
struct Held {
    raw: Raw,
    memory: NonNull<u8>,
    length: usize,
}

impl<'env> Scope<'_, 'env> {
    /// Starts to send.
    pub(super) fn send(
        &mut self,
        peer: usize,
        slot: u64,
        data: &'env [u8],
    ) -> Result<usize, String> {
        // SAFETY: shared for `'env`, so nobody writes to it. Gloo does not write when it sends.
        unsafe { self.start(false, peer, slot, data.as_ptr().cast_mut(), data.len(), 0) }
    }

    /// Starts to send memory that [`Scope::wait`] gives back.
    pub(super) fn lend(
        &mut self,
        peer: usize,
        slot: u64,
        data: &'env mut [u8],
    ) -> Result<usize, String> {
        let length = data.len();
        // SAFETY: exclusive for `'env`, and given away until `wait`.
        unsafe { self.start(false, peer, slot, data.as_mut_ptr(), length, length) }
    }

    /// Starts to receive.
    pub(super) fn receive(
        &mut self,
        peer: usize,
        slot: u64,
        into: &'env mut [u8],
    ) -> Result<usize, String> {
        let length = into.len();
        // SAFETY: as in `lend`.
        unsafe { self.start(true, peer, slot, into.as_mut_ptr(), length, length) }
    }

    /// Waits for a message, and returns the memory that was lent. When the time is over Gloo closes
    /// every connection.
    pub(super) fn wait(
        &mut self,
        message: usize,
        within: Duration,
    ) -> Result<&'env mut [u8], Unfinished> {
        let Some(held) = self.messages.get_mut(message) else {
            return Err(Unfinished::Failed("no such message".into()));
        };
        wait(held.raw, within)?;
        let length = std::mem::take(&mut held.length);
        // SAFETY: the memory was given away for `'env` as exclusive and the message is complete, so
        // Gloo has let go of it; the length, now zero, keeps it from being given back twice.
        Ok(unsafe { std::slice::from_raw_parts_mut(held.memory.as_ptr(), length) })
    }

    /// # Safety
    /// As [`Context::start`], for `'env`; `lent` bytes of the memory may be given back as exclusive.
    unsafe fn start(
        &mut self,
        receives: bool,
        peer: usize,
        slot: u64,
        memory: *mut u8,
        length: usize,
        lent: usize,
    ) -> Result<usize, String> {
        // SAFETY: the message is freed when the scope ends, before `'env` does.
        let raw = unsafe { self.context.start(receives, peer, slot, memory, length) }?;
        self.context.active().push((peer, raw));
        self.messages.push(Held {
            raw,
            memory: NonNull::new(memory).unwrap_or(NonNull::dangling()),
            length: lent,
        });
        Ok(self.messages.len() - 1)
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        self.context
            .active()
            .retain(|(_, raw)| self.messages.iter().all(|held| held.raw != *raw));
        for held in &self.messages {
            // SAFETY: freed once, and no longer in `active`.
            unsafe { sys::xla_gloo_free_message(held.raw.0.as_ptr()) }
        }
    }
}

/// What is known of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Peer {
    /// It is connected.
    There,
    /// It said goodbye.
    Left,
    /// The connection broke, in Gloo's words.
    Lost(String),
}

/// The byte that a peer sends when it leaves. Gloo also tells this message when the connection
/// breaks, which it does not tell those that are half sent or half received.
pub(super) struct Farewell<'c> {
    message: Raw,
    byte: Box<AtomicU8>,
    context: PhantomData<&'c Context>,
}

impl Farewell<'_> {
    /// How the peer is; does not wait.
    pub(super) fn peer(&self) -> Peer {
        if self.byte.load(Ordering::Acquire) != 0 {
            return Peer::Left;
        }
        // SAFETY: the message is alive. A wait that is already woken returns at once.
        unsafe { sys::xla_gloo_abort(self.message.0.as_ptr()) }
        match wait(self.message, Duration::from_millis(1)) {
            // Where a wait of this process was overdue, Gloo has closed all of its connections, which
            // says nothing of the peer: it is late, not lost.
            Err(Unfinished::Failed(reason)) if reason.contains(OWN_WAIT_OVERDUE) => Peer::There,
            Err(Unfinished::Failed(reason)) => Peer::Lost(reason),
            Err(Unfinished::Woken) | Ok(()) => Peer::There,
        }
    }
}

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        // SAFETY: freed once, before the byte.
        unsafe { sys::xla_gloo_free_message(self.message.0.as_ptr()) }
    }
}

fn wait(message: Raw, within: Duration) -> Result<(), Unfinished> {
    let mut text = [0; 512];
    // SAFETY: whoever calls this owns the message and has not freed it.
    let status = unsafe {
        sys::xla_gloo_wait(
            message.0.as_ptr(),
            milliseconds(within),
            text.as_mut_ptr(),
            text.len(),
        )
    };
    match status {
        sys::DONE => Ok(()),
        sys::ABORTED => Err(Unfinished::Woken),
        _ => Err(Unfinished::Failed(words(&text))),
    }
}

/// Calls the shim with room for an error's text.
fn checked(call: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<(), String> {
    let mut text = [0; 512];
    match call(text.as_mut_ptr(), text.len()) {
        sys::DONE => Ok(()),
        _ => Err(words(&text)),
    }
}

/// The text without the place in Gloo's source.
fn words(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text
        .iter()
        .map(|c| *c as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    let text = String::from_utf8_lossy(&bytes);
    match text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    {
        Some((_, rest)) => rest.trim().to_owned(),
        None => text.trim().to_owned(),
    }
}

fn index_of(number: usize) -> Result<c_int, String> {
    c_int::try_from(number).map_err(|_| format!("{number} processes are too many"))
}

/// Rounded up, and small enough for Gloo's clock.
fn milliseconds(duration: Duration) -> i64 {
    let week = 7 * 24 * 3_600_000;
    i64::try_from(duration.as_millis() + 1).map_or(week, |ms| ms.min(week))
}
