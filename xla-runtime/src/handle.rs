//! Owning pointers to the plugin's objects: destroyed exactly once, when their owner is dropped.
//!
//! Nothing here keeps the client alive. Whoever owns a handle also holds the client, in a field
//! declared after the handle, so that the client goes last.

use crate::call::{Api, Extended};
use pjrt_sys as sys;
use std::ptr::NonNull;
use xla_core::{Error, Result};

/// An object that the plugin hands out and wants back.
///
/// # Safety
/// `destroy` must free the object with the API's function for it and nothing else.
pub(crate) unsafe trait Object {
    /// The C name, for error messages.
    const NAME: &'static str;

    /// Frees the object.
    ///
    /// # Safety
    /// `raw` must be live, owned by the caller and not used afterwards.
    unsafe fn destroy(api: &Api, raw: *mut Self) -> Result<()>;
}

macro_rules! objects {
    ($($object:ident: $function:ident($args:ident).$field:ident;)*) => {$(
        // SAFETY: the function is the API's destructor of this very type.
        unsafe impl Object for sys::$object {
            const NAME: &'static str = stringify!($object);

            unsafe fn destroy(api: &Api, raw: *mut Self) -> Result<()> {
                let mut args = Extended::<sys::$args>::new(|a| a.$field = raw);
                // SAFETY: the caller owns the object and does not use it again.
                unsafe { api.$function(&mut args) }
            }
        }
    )*};
}

objects! {
    PJRT_Client: PJRT_Client_Destroy(PJRT_Client_Destroy_Args).client;
    PJRT_Event: PJRT_Event_Destroy(PJRT_Event_Destroy_Args).event;
    PJRT_Buffer: PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args).buffer;
    PJRT_Executable: PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args).executable;
    PJRT_LoadedExecutable:
        PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args).executable;
}

/// An object of the plugin with exactly one owner.
pub(crate) struct Handle<T: Object> {
    raw: NonNull<T>,
    api: &'static Api,
}

// SAFETY: the PJRT C API allows its functions on clients, events, buffers and executables from any
// thread, and freeing on another thread than the one that created; the handle adds no state.
unsafe impl<T: Object> Send for Handle<T> {}
// SAFETY: as above: concurrent calls on one object are synchronised by the plugin, and the only call
// that needs exclusive access, the destructor, runs in `Drop`, which has it.
unsafe impl<T: Object> Sync for Handle<T> {}

impl<T: Object> Handle<T> {
    /// Takes ownership.
    ///
    /// # Errors
    /// [`Error::Internal`] when the plugin reported success but handed out nothing.
    ///
    /// # Safety
    /// `raw` must be null or a live object that nobody else frees.
    pub(crate) unsafe fn new(api: &'static Api, raw: *mut T) -> Result<Self> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Handle { raw, api }),
            None => Err(Error::Internal {
                what: T::NAME,
                expected: "an object where the plugin reported success".into(),
            }),
        }
    }

    /// The object, for a call; it stays owned here.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// The table to call it through.
    pub(crate) fn api(&self) -> &'static Api {
        self.api
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: this handle is the only owner and is going away.
        if let Err(error) = unsafe { T::destroy(self.api, self.raw.as_ptr()) } {
            tracing::warn!(%error, "a plugin object could not be freed");
        }
    }
}
