//! How the clients of several processes find each other, where the plugin itself connects them.
//!
//! A plugin for GPUs makes one machine of the devices of several processes: its clients tell each
//! other what they have, and later how to reach it, through a key-value store that its caller
//! brings. [`Cluster`] holds that store with the process's place; [`set_cluster`] is for the
//! process's own client ([`Client::global`](crate::Client::global)).
//!
//! | kind | is given |
//! | --- | --- |
//! | CUDA, ROCm and others | `node_id`, `num_nodes`, `visible_devices`, and the store |
//! | TPU | the store: its plugin learns from its own environment which host this is |
//! | CPU | nothing: its plugin connects no processes |
//!
//! The calls were run against a plugin that records them, with two clients; on no GPU and no TPU.

use crate::call::array;
use crate::named_value::AttributeValue;
use pjrt_sys as sys;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xla_core::{DeviceKind, Error, Result};

/// A store that all processes of a cluster share. Its keys should be apart from those of others,
/// also from those of an earlier attempt.
pub trait KeyValueStore: Send + Sync {
    /// The value of a key, once some process has put it.
    ///
    /// # Errors
    /// [`Error::Deadline`] when none has within `deadline`; others as the store has them.
    fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>>;

    /// The value of a key, if some process has put it already.
    ///
    /// # Errors
    /// As the store has them.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Sets a key.
    ///
    /// # Errors
    /// As the store has them.
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;
}

/// The place of this process among those whose devices the plugin connects.
#[derive(Clone)]
pub struct Cluster {
    /// Which process this is, from 0.
    pub node_id: usize,
    /// How many there are.
    pub node_count: usize,
    /// What they share.
    pub store: Arc<dyn KeyValueStore>,
    /// The devices of this host that are this process's, by the numbers that the vendor gives them;
    /// all when `None`.
    pub visible_devices: Option<Vec<usize>>,
}

/// What the process's own client is given.
struct Choice {
    cluster: Option<Cluster>,
    /// There is, or is about to be, such a client.
    closed: bool,
}

static CHOICE: Mutex<Choice> = Mutex::new(Choice {
    cluster: None,
    closed: false,
});

/// Says what [`Client::global`](crate::Client::global) connects to, where the plugin connects
/// processes. To be called before that client exists; afterwards, the same place once more is
/// accepted and changes nothing.
///
/// # Errors
/// [`Error::Argument`] for a node id that is not below the node count; [`Error::Launch`] once the
/// client exists, with another place or none.
pub fn set_cluster(cluster: Cluster) -> Result<()> {
    cluster.check("set_cluster")?;
    let mut choice = choice();
    if choice.closed {
        if choice
            .cluster
            .as_ref()
            .is_some_and(|c| c.same_place(&cluster))
        {
            return Ok(());
        }
        return Err(Error::Launch {
            reason: "the PJRT client exists already, without the other processes' devices".into(),
            advice: "launch, or init_process_group, before the first use of a device",
        });
    }
    choice.cluster = Some(cluster);
    Ok(())
}

fn choice() -> MutexGuard<'static, Choice> {
    CHOICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the process's client is to be given. From now on it cannot be changed.
pub(crate) fn close(kind: DeviceKind) -> Option<Cluster> {
    let mut choice = choice();
    choice.closed = true;
    choice.cluster.clone().filter(|_| kind != DeviceKind::Cpu)
}

/// There is no such client (any more).
pub(crate) fn reopen() {
    choice().closed = false;
}

impl Cluster {
    fn check(&self, op: &'static str) -> Result<()> {
        if self.node_id < self.node_count {
            return Ok(());
        }
        Err(Error::argument(
            op,
            "node_id",
            format!("below the node count, {}", self.node_count),
            self.node_id,
        ))
    }

    fn same_place(&self, other: &Self) -> bool {
        (self.node_id, self.node_count, &self.visible_devices)
            == (other.node_id, other.node_count, &other.visible_devices)
    }

    /// Adds what plugins call these things.
    pub(crate) fn named_values(
        &self,
        kind: DeviceKind,
        values: &mut BTreeMap<String, AttributeValue>,
    ) -> Result<()> {
        const OP: &str = "Client::create";
        self.check(OP)?;
        if kind == DeviceKind::Cpu {
            return Err(Error::argument(
                OP,
                "cluster",
                "none for a CPU client, whose plugin connects no processes",
                format_args!("node {} of {}", self.node_id, self.node_count),
            ));
        }
        if kind == DeviceKind::Tpu {
            return Ok(());
        }
        let int = |value: usize| {
            i64::try_from(value)
                .map_err(|_| Error::argument(OP, "cluster", "numbers below 2^63", value))
        };
        values.insert("node_id".into(), AttributeValue::Int(int(self.node_id)?));
        values.insert(
            "num_nodes".into(),
            AttributeValue::Int(int(self.node_count)?),
        );
        if let Some(devices) = &self.visible_devices {
            let devices = devices.iter().map(|d| int(*d)).collect::<Result<_>>()?;
            values.insert("visible_devices".into(), AttributeValue::IntList(devices));
        }
        Ok(())
    }
}

impl PartialEq for Cluster {
    /// The same place with the same store.
    fn eq(&self, other: &Self) -> bool {
        self.same_place(other) && Arc::ptr_eq(&self.store, &other.store)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("node_id", &self.node_id)
            .field("node_count", &self.node_count)
            .field("visible_devices", &self.visible_devices)
            .finish_non_exhaustive()
    }
}

/// A store as the plugin holds it, by address: to be kept until its client is destroyed, since a
/// plugin also asks it later, when processes first exchange something.
pub(crate) struct Lent(Box<Arc<dyn KeyValueStore>>);

/// Arguments of a try-get, which the API gained after the header: those of a get without its
/// time-out.
#[repr(C)]
struct TryGetArgs {
    struct_size: usize,
    extension_start: *mut sys::PJRT_Extension_Base,
    key: *const c_char,
    key_size: usize,
    callback_error: *mut sys::PJRT_CallbackError,
    user_arg: *mut c_void,
    value: *mut c_char,
    value_size: usize,
    value_deleter_callback: sys::PJRT_KeyValueGetCallback_ValueDeleter,
}

impl Lent {
    pub(crate) fn new(store: Arc<dyn KeyValueStore>) -> Self {
        Lent(Box::new(store))
    }

    /// Names the store to a client to be created; the words are those that the API appended to its
    /// arguments: the function for a try-get and its own argument.
    pub(crate) fn offer(&self, args: &mut sys::PJRT_Client_Create_Args) -> [usize; 2] {
        let user = ptr::from_ref::<Arc<dyn KeyValueStore>>(&self.0)
            .cast_mut()
            .cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = user;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = user;
        let try_get: unsafe extern "C" fn(*mut TryGetArgs) -> *mut sys::PJRT_Error = try_get;
        [
            (try_get as *const ()).expose_provenance(),
            user.expose_provenance(),
        ]
    }
}

unsafe extern "C" fn get(args: *mut sys::PJRT_KeyValueGetCallback_Args) -> *mut sys::PJRT_Error {
    // SAFETY: the plugin passes its arguments for the length of the call, with the address that
    // `offer` gave it.
    unsafe {
        let args = &mut *args;
        let deadline = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(0));
        let value = call(args.user_arg, args.key, args.key_size, |store, key| {
            give(&store.get(key, deadline)?)
        });
        match value {
            Ok(value) => {
                (args.value, args.value_size) = value;
                args.value_deleter_callback = Some(take_back);
                ptr::null_mut()
            }
            Err(error) => refuse(args.callback_error, &error),
        }
    }
}

unsafe extern "C" fn try_get(args: *mut TryGetArgs) -> *mut sys::PJRT_Error {
    // SAFETY: as in `get`.
    unsafe {
        let args = &mut *args;
        let value = call(args.user_arg, args.key, args.key_size, |store, key| {
            give(&store.try_get(key)?.ok_or_else(|| missing(key))?)
        });
        match value {
            Ok(value) => {
                (args.value, args.value_size) = value;
                args.value_deleter_callback = Some(take_back);
                ptr::null_mut()
            }
            Err(error) => refuse(args.callback_error, &error),
        }
    }
}

unsafe extern "C" fn put(args: *mut sys::PJRT_KeyValuePutCallback_Args) -> *mut sys::PJRT_Error {
    // SAFETY: as in `get`; the value is valid for its length during the call.
    unsafe {
        let args = &*args;
        let value = array(args.value.cast::<u8>(), args.value_size);
        let done = call(args.user_arg, args.key, args.key_size, |store, key| {
            store.put(key, value)
        });
        match done {
            Ok(()) => ptr::null_mut(),
            Err(error) => refuse(args.callback_error, &error),
        }
    }
}

/// `absl::StatusCode`s.
const DEADLINE_EXCEEDED: sys::PJRT_Error_Code = 4;
const NOT_FOUND: sys::PJRT_Error_Code = 5;
const INTERNAL: sys::PJRT_Error_Code = 13;

fn internal(expected: &str) -> Error {
    Error::Internal {
        what: "key-value store",
        expected: expected.into(),
    }
}

fn missing(key: &str) -> Error {
    Error::Pjrt {
        call: "try_get",
        code: NOT_FOUND as i32,
        message: format!("no process has put {key:?}"),
    }
}

/// Asks the store; a panic of its is an error.
///
/// # Safety
/// `user` must be what `offer` gave, its [`Lent`] alive, and `key` valid for its length.
unsafe fn call<T>(
    user: *mut c_void,
    key: *const c_char,
    key_size: usize,
    ask: impl FnOnce(&dyn KeyValueStore, &str) -> Result<T>,
) -> Result<T> {
    // SAFETY: the caller vouches for both pointers.
    let (store, key) = unsafe {
        (
            &*user.cast::<Arc<dyn KeyValueStore>>(),
            array(key.cast::<u8>(), key_size),
        )
    };
    let key = std::str::from_utf8(key).map_err(|_| internal("a key in UTF-8"))?;
    // What a panicking store leaves behind is its own to find.
    catch_unwind(AssertUnwindSafe(|| ask(&**store, key)))
        .unwrap_or_else(|_| Err(internal("a store that does not panic")))
}

/// A copy of a value, which the plugin gives back to [`take_back`] without its length.
fn give(value: &[u8]) -> Result<(*mut c_char, usize)> {
    // SAFETY: a length other than zero.
    let memory = unsafe { libc::malloc(value.len().max(1)) }.cast::<u8>();
    if memory.is_null() {
        return Err(internal("memory for a value"));
    }
    // SAFETY: the new memory is at least as long as the value, and apart from it.
    unsafe { memory.copy_from_nonoverlapping(value.as_ptr(), value.len()) };
    Ok((memory.cast(), value.len()))
}

unsafe extern "C" fn take_back(value: *mut c_char) {
    // SAFETY: what `give` handed out comes back once.
    unsafe { libc::free(value.cast()) };
}

/// The store's error as one of the plugin's.
///
/// # Safety
/// `make` must be null or point to the plugin's function for it.
unsafe fn refuse(make: *mut sys::PJRT_CallbackError, error: &Error) -> *mut sys::PJRT_Error {
    let code = match error {
        Error::Deadline { .. } => DEADLINE_EXCEEDED,
        Error::Pjrt { code, .. } if *code == NOT_FOUND as i32 => NOT_FOUND,
        _ => INTERNAL,
    };
    // SAFETY: the caller vouches for the function.
    unsafe { crate::call::callback_error(make, code, &error.to_string()) }
}
