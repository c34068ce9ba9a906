//! The C types of XLA's FFI and of PJRT's extension for it, written by hand since no crate has
//! them: those parts that versions 0.2 to 0.4 share. Fields are only ever appended.

use crate::call::{Api, Args, Extended};
use pjrt_sys as sys;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use xla_core::{DType, Error, Result};

/// The kind of PJRT extension that registers handlers.
const FFI_EXTENSION: sys::PJRT_Extension_Type = sys::PJRT_Extension_Type_PJRT_Extension_Type_FFI;

/// The oldest PJRT API whose extension was tried. It lost a field in the middle at some time before,
/// so an older one would misread a registration.
const OLDEST: (i32, i32) = (0, 81);

/// Opaque: an error that one side hands to the other, which frees it.
pub(super) enum FfiError {}

/// Opaque: what the functions for run id and device take.
pub(super) enum Context {}

/// What is registered. Null means success.
pub(super) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut FfiError;

#[repr(C)]
pub(super) struct RegisterArgs {
    struct_size: usize,
    pub(super) target_name: *const c_char,
    pub(super) target_name_size: usize,
    pub(super) handler: *mut c_void,
    pub(super) platform_name: *const c_char,
    pub(super) platform_name_size: usize,
    traits: c_int,
}

// SAFETY: `repr(C)`, `struct_size` first, all other fields integers and pointers.
unsafe impl Args for RegisterArgs {}

#[repr(C)]
struct Extension {
    base: sys::PJRT_Extension_Base,
    type_id_register: *const c_void,
    user_data_add: *const c_void,
    register_handler: Option<unsafe extern "C" fn(*mut RegisterArgs) -> *mut sys::PJRT_Error>,
}

impl Api {
    /// Registers a handler through the plugin's extension.
    ///
    /// # Safety
    /// Names must be valid for their lengths during the call, and the handler a [`Handler`] that
    /// stays valid for good.
    pub(super) unsafe fn register_ffi_handler(
        &self,
        args: &mut Extended<RegisterArgs>,
    ) -> Result<()> {
        let unsupported = Error::Unsupported {
            what: "custom calls (XLA's FFI)",
            since: OLDEST,
        };
        let extension = self.extension(FFI_EXTENSION, size_of::<Extension>());
        let Some(extension) = extension.filter(|_| self.version() >= OLDEST) else {
            return Err(unsupported);
        };
        // SAFETY: an extension of this type and at least this size starts with these fields.
        let function = unsafe { (*extension.cast::<Extension>()).register_handler };
        let Some(function) = function else {
            return Err(unsupported);
        };
        // SAFETY: the struct has the size it states, and the caller vouches for its pointers; a
        // non-null return is an error that the caller owns.
        unsafe {
            let error = function(args.as_mut_ptr());
            if error.is_null() {
                Ok(())
            } else {
                Err(self.take_error("PJRT_FFI_Register_Handler", error))
            }
        }
    }
}

/// Starts every extension of FFI structs.
#[repr(C)]
pub(super) struct ExtensionBase {
    pub(super) struct_size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut ExtensionBase,
}

/// The extension by which the runtime asks a handler for its version.
pub(super) const METADATA: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ApiVersion {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

#[repr(C)]
pub(super) struct Metadata {
    pub(super) struct_size: usize,
    pub(super) api_version: ApiVersion,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct MetadataExtension {
    pub(super) base: ExtensionBase,
    pub(super) metadata: *mut Metadata,
}

/// An array of the program, as an argument or a result.
#[repr(C)]
pub(super) struct BufferView {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

/// The only type of argument and result so far.
pub(super) const BUFFER: c_int = 1;

/// The arguments, or the results.
#[repr(C)]
pub(super) struct Operands {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    pub(super) size: i64,
    pub(super) kinds: *const c_int,
    pub(super) items: *const *const c_void,
}

/// Attributes, sorted by name.
#[repr(C)]
pub(super) struct Attributes {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    pub(super) size: i64,
    pub(super) kinds: *const c_int,
    pub(super) names: *const *const ByteSpan,
    pub(super) items: *const *const c_void,
}

/// Types of attributes.
pub(super) const ARRAY: c_int = 1;
pub(super) const SCALAR: c_int = 3;
pub(super) const STRING: c_int = 4;

#[repr(C)]
pub(super) struct ByteSpan {
    pub(super) data: *const c_char,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub(super) dtype: c_int,
    pub(super) value: *const c_void,
}

#[repr(C)]
pub(super) struct Array {
    pub(super) dtype: c_int,
    pub(super) size: usize,
    pub(super) data: *const c_void,
}

/// The stage in which results are computed; handlers registered through PJRT see no other.
pub(super) const EXECUTE: c_int = 3;

#[repr(C)]
pub(super) struct CallFrame {
    struct_size: usize,
    pub(super) extension_start: *mut ExtensionBase,
    pub(super) api: *const FfiApi,
    pub(super) context: *mut Context,
    pub(super) stage: c_int,
    pub(super) inputs: Operands,
    pub(super) outputs: Operands,
    pub(super) attributes: Attributes,
}

#[repr(C)]
struct CreateErrorArgs {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct DestroyErrorArgs {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    error: *mut FfiError,
}

#[repr(C)]
struct RunIdArgs {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    context: *mut Context,
    run_id: i64,
}

#[repr(C)]
struct DeviceOrdinalArgs {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    context: *mut Context,
    device_ordinal: i32,
}

// SAFETY: `repr(C)`, `struct_size` first, all other fields integers and pointers.
unsafe impl Args for CreateErrorArgs {}
// SAFETY: as above.
unsafe impl Args for DestroyErrorArgs {}
// SAFETY: as above.
unsafe impl Args for RunIdArgs {}
// SAFETY: as above.
unsafe impl Args for DeviceOrdinalArgs {}

type Function<T> = Option<unsafe extern "C" fn(*mut T) -> *mut FfiError>;

/// The functions that a handler may call. Between those that this crate uses lie others.
#[repr(C)]
pub(super) struct FfiApi {
    struct_size: usize,
    extension_start: *mut ExtensionBase,
    pub(super) version: ApiVersion,
    internal: *const c_void,
    error_create: Option<unsafe extern "C" fn(*mut CreateErrorArgs) -> *mut FfiError>,
    error_message: *const c_void,
    error_destroy: Option<unsafe extern "C" fn(*mut DestroyErrorArgs)>,
    others: [*const c_void; 13],
    run_id: Function<RunIdArgs>,
    device_ordinal: Function<DeviceOrdinalArgs>,
}

/// `absl::StatusCode::kFailedPrecondition`.
const FAILED_PRECONDITION: c_int = 9;

impl FfiApi {
    /// Whether the table has everything that handlers use, in the place where it is used. The
    /// order of the table changed last between 0.1 and 0.2.
    pub(super) fn is_usable(&self) -> bool {
        (self.version.major, self.version.minor) >= (0, 2)
            && self.version.major == 0
            && self.struct_size >= size_of::<FfiApi>()
    }

    /// An error to return from a handler; null, which means success, where the table has no
    /// function to make one.
    pub(super) fn error(&self, message: &std::ffi::CStr) -> *mut FfiError {
        let mut args = Extended::<CreateErrorArgs>::new(|a| {
            a.message = message.as_ptr();
            a.code = FAILED_PRECONDITION;
        });
        match self.error_create {
            // SAFETY: the struct has the size it states; the message is copied during the call.
            Some(create) => unsafe { create(args.as_mut_ptr()) },
            None => ptr::null_mut(),
        }
    }

    /// The launch id that the execution was given.
    ///
    /// # Safety
    /// `context` must be that of the frame being handled, and the table usable.
    pub(super) unsafe fn run_id(&self, context: *mut Context) -> Option<i64> {
        let mut args = Extended::<RunIdArgs>::new(|a| a.context = context);
        // SAFETY: the struct has the size it states, and the caller vouches for the context.
        let error = unsafe { self.run_id?(args.as_mut_ptr()) };
        self.succeeded(error).then_some(args.run_id)
    }

    /// The device that executes, by position among this process's.
    ///
    /// # Safety
    /// As [`FfiApi::run_id`].
    pub(super) unsafe fn device_ordinal(&self, context: *mut Context) -> Option<usize> {
        let mut args = Extended::<DeviceOrdinalArgs>::new(|a| a.context = context);
        // SAFETY: the struct has the size it states, and the caller vouches for the context.
        let error = unsafe { self.device_ordinal?(args.as_mut_ptr()) };
        self.succeeded(error)
            .then(|| usize::try_from(args.device_ordinal).ok())
            .flatten()
    }

    fn succeeded(&self, error: *mut FfiError) -> bool {
        if error.is_null() {
            return true;
        }
        let mut args = Extended::<DestroyErrorArgs>::new(|a| a.error = error);
        if let Some(destroy) = self.error_destroy {
            // SAFETY: a non-null return is an error that the caller owns and does not use again.
            unsafe { destroy(args.as_mut_ptr()) };
        }
        false
    }
}

/// The dtype behind one of the FFI's numbers, which are XLA's own and not PJRT's.
pub(super) fn dtype(number: c_int) -> Option<DType> {
    Some(match number {
        1 => DType::Bool,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        16 => DType::BF16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// Offsets and sizes that the C headers give on a 64-bit machine.
    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(size_of::<CallFrame>(), 168);
        assert_eq!(offset_of!(Extension, register_handler), 40);
        assert_eq!(offset_of!(FfiApi, error_create), 48);
        assert_eq!(offset_of!(FfiApi, error_destroy), 64);
        assert_eq!(offset_of!(FfiApi, run_id), 176);
        assert_eq!(offset_of!(FfiApi, device_ordinal), 184);
        assert_eq!(offset_of!(BufferView, dims), 40);
        assert_eq!(offset_of!(Metadata, traits), 32);
    }

    #[test]
    fn every_dtype_has_one_number() {
        for dtype in DType::ALL {
            let numbers: Vec<c_int> = (0..64).filter(|n| self::dtype(*n) == Some(dtype)).collect();
            assert_eq!(numbers.len(), 1, "{dtype}");
        }
    }
}
