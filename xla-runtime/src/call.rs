//! The one gate to the plugin: every C function is called here, with an argument struct that is
//! long enough for any API version and an error that is converted and freed.

use pjrt_sys as sys;
use std::ptr;
use std::slice;
use xla_core::{Error, Result};

/// Words of zeros behind every argument struct.
///
/// The API only ever appends fields, and zero always means "not given". A plugin newer than the
/// header checks `struct_size` against its own, longer struct and reads zeros in the part that this
/// crate does not know; an older one ignores it.
const TAIL: usize = 32;

/// An argument struct with room for the fields that later API versions appended.
#[repr(C)]
pub(crate) struct Extended<T> {
    args: T,
    tail: [usize; TAIL],
}

/// An argument struct of the C API.
///
/// # Safety
/// The type must be a `repr(C)` struct whose first field is its `struct_size: usize` and for which
/// all zeros is a valid value.
pub(crate) unsafe trait Args: Sized {}

impl<T: Args> Extended<T> {
    /// Zeros but for the size and what `fill` sets.
    pub(crate) fn new(fill: impl FnOnce(&mut T)) -> Self {
        // SAFETY: `Args` promises that zeros are a valid `T`; the tail is plain words.
        let mut this: Self = unsafe { std::mem::zeroed() };
        // SAFETY: `Args` promises that `struct_size: usize` is the first field of `T`, which is the
        // first field of this `repr(C)` struct.
        unsafe {
            ptr::from_mut(&mut this)
                .cast::<usize>()
                .write(size_of::<Self>())
        };
        fill(&mut this.args);
        this
    }

    /// The struct as the C API wants it. The pointer covers the tail too.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut T {
        ptr::from_mut(self).cast()
    }

    /// Sets the `index`th word behind the struct of the header: a field of a later API version.
    pub(crate) fn set_appended(&mut self, index: usize, word: usize) {
        self.tail[index] = word;
    }
}

impl<T> std::ops::DerefMut for Extended<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.args
    }
}

impl<T> std::ops::Deref for Extended<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.args
    }
}

/// The plugin's function table, copied into one of the header's length so that a function the
/// plugin lacks reads as absent.
pub(crate) struct Api {
    table: sys::PJRT_Api,
    version: (i32, i32),
}

// SAFETY: the table is never written after construction, and its only pointers lead to functions
// and to the plugin's static extension list; the library is never unloaded.
unsafe impl Send for Api {}
// SAFETY: as above; the C API states that its functions may be called from any thread.
unsafe impl Sync for Api {}

macro_rules! functions {
    ($($function:ident($args:ident);)*) => {
        $(
            // SAFETY: generated from the C header: `repr(C)`, `struct_size` first, and every field an
            // integer, a pointer or an optional function pointer, for which zero is valid.
            unsafe impl Args for sys::$args {}
        )*

        /// One method for each function of the table that this crate uses, under the C name.
        #[allow(non_snake_case)]
        impl Api {
            $(
                /// # Safety
                /// Every pointer in `args` must be null where the API allows it, or point to what the
                /// field's type says, live for as long as the API demands.
                pub(crate) unsafe fn $function(&self, args: &mut Extended<sys::$args>) -> Result<()> {
                    let Some(function) = self.table.$function else {
                        return Err(missing(stringify!($function)));
                    };
                    // SAFETY: the struct has the size it states, and the caller vouches for the
                    // pointers in it.
                    let error = unsafe { function(args.as_mut_ptr()) };
                    if error.is_null() {
                        return Ok(());
                    }
                    // SAFETY: a non-null return is an error that the caller owns.
                    Err(unsafe { self.take_error(stringify!($function), error) })
                }
            )*
        }
    };
}

functions! {
    PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args);
    PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args);
    PJRT_Event_Destroy(PJRT_Event_Destroy_Args);
    PJRT_Event_IsReady(PJRT_Event_IsReady_Args);
    PJRT_Event_Error(PJRT_Event_Error_Args);
    PJRT_Event_OnReady(PJRT_Event_OnReady_Args);
    PJRT_Client_Create(PJRT_Client_Create_Args);
    PJRT_Client_Destroy(PJRT_Client_Destroy_Args);
    PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args);
    PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args);
    PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args);
    PJRT_Client_Devices(PJRT_Client_Devices_Args);
    PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args);
    PJRT_Client_Compile(PJRT_Client_Compile_Args);
    PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args);
    PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args);
    PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args);
    PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args);
    PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args);
    PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args);
    PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args);
    PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args);
    PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args);
    PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args);
    PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args);
    PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args);
    PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args);
    PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args);
    PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args);
    PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args);
    PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args);
    PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args);
    PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args);
    PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args);
    PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args);
    PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args);
    PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args);
    PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args);
    PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args);
    PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args);
    PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args);
    PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args);
    PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args);
    PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args);
    PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args);
}

macro_rules! structs {
    ($($args:ident),* $(,)?) => {$(
        // SAFETY: generated from the C header: `repr(C)`, `struct_size` first, and every field an
        // integer, a pointer, a union of those or an optional function pointer.
        unsafe impl Args for sys::$args {}
    )*};
}

// Called by hand below, or handed to a function inside another struct.
structs! {
    PJRT_Error_Destroy_Args,
    PJRT_Error_Message_Args,
    PJRT_Error_GetCode_Args,
    PJRT_Program,
    PJRT_ExecuteOptions,
    PJRT_Buffer_MemoryLayout,
}

fn missing(function: &'static str) -> Error {
    Error::Unsupported {
        what: function,
        since: (0, 0),
    }
}

impl Api {
    /// Copies a plugin's table.
    ///
    /// # Safety
    /// `table` must be what the `GetPjrtApi` of a library that is never unloaded returned.
    pub(crate) unsafe fn new(table: *const sys::PJRT_Api) -> Self {
        let mut copy = sys::PJRT_Api::default();
        // SAFETY: the table starts with its size and is valid for as many bytes; no more than the
        // header's struct are copied, and what is left stays zero: absent functions.
        unsafe {
            let len = (*table).struct_size.min(size_of::<sys::PJRT_Api>());
            ptr::copy_nonoverlapping(table.cast::<u8>(), ptr::from_mut(&mut copy).cast(), len);
        }
        let version = copy.pjrt_api_version;
        Api {
            table: copy,
            version: (version.major_version, version.minor_version),
        }
    }

    /// The API version that the plugin was built from.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The kinds of extension that the plugin offers, in its order.
    pub(crate) fn extensions(&self) -> Vec<i32> {
        self.extension_list()
            .map(|(kind, _, _)| i32::try_from(kind).unwrap_or(i32::MAX))
            .collect()
    }

    /// The plugin's extension of this kind, if it has one that is at least this long.
    pub(crate) fn extension(
        &self,
        kind: sys::PJRT_Extension_Type,
        min_size: usize,
    ) -> Option<*const sys::PJRT_Extension_Base> {
        self.extension_list()
            .find(|(found, size, _)| *found == kind && *size >= min_size)
            .map(|(_, _, extension)| extension)
    }

    /// Kind and size of each extension, and the extension.
    fn extension_list(
        &self,
    ) -> impl Iterator<
        Item = (
            sys::PJRT_Extension_Type,
            usize,
            *const sys::PJRT_Extension_Base,
        ),
    > {
        let mut next: *const sys::PJRT_Extension_Base = self.table.extension_start;
        std::iter::from_fn(move || {
            let extension = next;
            // SAFETY: the API's extension list is linked through static structs that all start with
            // `PJRT_Extension_Base` and ends with a null pointer.
            let base = unsafe { extension.as_ref() }?;
            next = base.next;
            Some((base.type_, base.struct_size, extension))
        })
    }

    /// Converts an error that the plugin returned, and frees it.
    ///
    /// # Safety
    /// `error` must be an error that the caller owns; it is gone afterwards.
    pub(crate) unsafe fn take_error(
        &self,
        call: &'static str,
        error: *mut sys::PJRT_Error,
    ) -> Error {
        let mut message = Extended::<sys::PJRT_Error_Message_Args>::new(|a| a.error = error);
        let mut code = Extended::<sys::PJRT_Error_GetCode_Args>::new(|a| a.error = error);
        // SAFETY: the error is live until it is destroyed below.
        let text = unsafe {
            if let Some(function) = self.table.PJRT_Error_Message {
                function(message.as_mut_ptr());
            }
            string(message.message, message.message_size)
        };
        if let Some(function) = self.table.PJRT_Error_GetCode {
            // SAFETY: as above. An error of this call itself is not followed up: it would recurse.
            let nested = unsafe { function(code.as_mut_ptr()) };
            if !nested.is_null() {
                // SAFETY: a non-null return is an error that the caller owns.
                unsafe { self.destroy_error(nested) };
            }
        }
        // SAFETY: the caller owned the error.
        unsafe { self.destroy_error(error) };
        Error::Pjrt {
            call,
            code: i32::try_from(code.code).unwrap_or(i32::MAX),
            message: text,
        }
    }

    /// Frees an error without looking at it.
    ///
    /// # Safety
    /// `error` must be null or an error that the caller owns; it is gone afterwards.
    pub(crate) unsafe fn destroy_error(&self, error: *mut sys::PJRT_Error) {
        if error.is_null() {
            return;
        }
        let mut args = Extended::<sys::PJRT_Error_Destroy_Args>::new(|a| a.error = error);
        if let Some(function) = self.table.PJRT_Error_Destroy {
            // SAFETY: the caller owns the error and does not use it again.
            unsafe { function(args.as_mut_ptr()) };
        }
    }
}

/// Has the plugin make an error for a callback to return; null, which means success, where it gave no
/// function for that.
///
/// # Safety
/// `make` must be null or point to the function that the plugin passed to the callback.
pub(crate) unsafe fn callback_error(
    make: *mut sys::PJRT_CallbackError,
    code: sys::PJRT_Error_Code,
    message: &str,
) -> *mut sys::PJRT_Error {
    // SAFETY: the caller vouches for the function, which copies the text.
    unsafe {
        match make.as_ref().copied().flatten() {
            Some(make) => make(code, message.as_ptr().cast(), message.len()),
            None => ptr::null_mut(),
        }
    }
}

/// Text that the plugin owns, copied; empty for a null pointer.
///
/// # Safety
/// `data` must be null or valid for `len` bytes.
pub(crate) unsafe fn string(data: *const std::ffi::c_char, len: usize) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for pointer and length.
    let bytes = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the plugin owns as a slice; empty for a null pointer.
///
/// # Safety
/// `data` must be null or valid for `len` elements for as long as the slice is used.
pub(crate) unsafe fn array<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for pointer, length and lifetime.
    unsafe { slice::from_raw_parts(data, len) }
}
