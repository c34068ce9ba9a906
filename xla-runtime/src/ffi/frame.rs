//! From the C call to the Rust handler: what the plugin calls is here.

use super::call::{Call, Input, Output};
use super::raw::{self, BufferView, CallFrame, FfiApi, FfiError, MetadataExtension, Operands};
use crate::call::array;
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use xla_core::DType;

/// The C function behind the handler `F`.
///
/// # Safety
/// `frame` must be null or a call frame of XLA's FFI, live during the call. A value of `F`, which has
/// no size, must have been given to `register`.
pub(super) unsafe extern "C" fn enter<F>(frame: *mut CallFrame) -> *mut FfiError
where
    F: Fn(&mut Call<'_>) + Copy + Send + Sync + 'static,
{
    // SAFETY: `F` has no size, so that any aligned pointer is one to a value of it, and a copy of
    // the value that was registered may be used on any thread.
    let handler: &F = unsafe { NonNull::<F>::dangling().as_ref() };
    // SAFETY: the caller vouches for the frame.
    unsafe { handle(frame, handler) }
}

/// # Safety
/// `frame` must be null or a call frame of XLA's FFI, live during the call.
unsafe fn handle(frame: *mut CallFrame, handler: &dyn Fn(&mut Call<'_>)) -> *mut FfiError {
    // SAFETY: the caller vouches for the frame; its table is static in the plugin.
    let Some((frame, api)) = (unsafe { frame.as_ref().and_then(|f| Some((f, f.api.as_ref()?))) })
    else {
        return ptr::null_mut();
    };
    if !api.is_usable() {
        return api.error(c"this handler needs version 0.2 or later of XLA's FFI");
    }
    // SAFETY: as above.
    if unsafe { answer_probe(frame, api) } || frame.stage != raw::EXECUTE {
        return ptr::null_mut();
    }
    // SAFETY: as above; the frame is in its execution stage, when arguments are readable.
    let mut call = match unsafe { open(frame, api) } {
        Ok(call) => call,
        // The same on every replica, so nobody is left waiting for this one.
        Err(reason) => return api.error(reason),
    };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| handler(&mut call))) {
        for output in call.outputs() {
            output.bytes.fill(0);
        }
        report(&*payload);
        // Dropping a payload runs code of its own, which may panic again.
        std::mem::forget(payload);
    }
    ptr::null_mut()
}

/// Says which version the handler is written for, if that is what the call asks: the plugin's own,
/// since only what all versions share is used. Returns whether it was.
///
/// # Safety
/// `frame` must be live, with its extensions.
unsafe fn answer_probe(frame: &CallFrame, api: &FfiApi) -> bool {
    let mut next = frame.extension_start;
    while !next.is_null() {
        // SAFETY: extensions are linked structs that all start with these fields, and the one of
        // this kind has a pointer to what is to be filled in.
        unsafe {
            if (*next).kind == raw::METADATA {
                let metadata = (*next.cast::<MetadataExtension>()).metadata;
                if let Some(metadata) = metadata.as_mut() {
                    metadata.api_version.major = api.version.major;
                    metadata.api_version.minor = api.version.minor;
                    metadata.traits = 0;
                }
                return true;
            }
            next = (*next).next;
        }
    }
    false
}

/// # Safety
/// `frame` must be live for `'a`, in its execution stage, and `api` its table.
unsafe fn open<'a>(frame: &'a CallFrame, api: &FfiApi) -> Result<Call<'a>, &'static CStr> {
    const NOT_ARRAYS: &CStr =
        c"arguments and results of a custom call must be arrays of a known dtype";
    // SAFETY: the caller vouches for the frame, which holds lists of live arrays.
    unsafe {
        let views = |operands: &'a Operands| views(operands).ok_or(NOT_ARRAYS);
        let (inputs, outputs) = (views(&frame.inputs)?, views(&frame.outputs)?);
        if overlap(&inputs, &outputs) {
            return Err(c"a result of a custom call must not share memory with its arguments");
        }
        let (Some(run_id), Some(device_ordinal)) =
            (api.run_id(frame.context), api.device_ordinal(frame.context))
        else {
            return Err(c"a custom call needs a run id and a device");
        };
        Ok(Call {
            run_id,
            device_ordinal,
            inputs: inputs
                .iter()
                .map(|view| Input {
                    dtype: view.dtype,
                    dims: view.dims,
                    bytes: array(view.data, view.len),
                })
                .collect(),
            outputs: outputs
                .iter()
                .map(|view| Output {
                    dtype: view.dtype,
                    dims: view.dims,
                    bytes: if view.len == 0 {
                        &mut []
                    } else {
                        // Live, of this length, and overlapped by nothing else.
                        std::slice::from_raw_parts_mut(view.data, view.len)
                    },
                })
                .collect(),
            attributes: &frame.attributes,
        })
    }
}

/// An array whose type was checked.
struct View<'a> {
    dtype: DType,
    dims: &'a [i64],
    data: *mut u8,
    len: usize,
}

/// The arrays of a list; nothing where one is no array, or one that cannot be in memory.
///
/// # Safety
/// The list must be live for `'a`.
unsafe fn views(operands: &Operands) -> Option<SmallVec<[View<'_>; 4]>> {
    let size = usize::try_from(operands.size).ok()?;
    // SAFETY: both lists are `size` long, each item of this kind points to this struct, and its
    // dimensions are `rank` long.
    unsafe {
        let kinds = array(operands.kinds, size);
        let items = array(operands.items, size);
        kinds
            .iter()
            .zip(items)
            .map(|(kind, item)| {
                let view = item.cast::<BufferView>();
                if *kind != raw::BUFFER {
                    return None;
                }
                let view = view.as_ref()?;
                let dtype = raw::dtype(view.dtype)?;
                let dims = array(view.dims, usize::try_from(view.rank).ok()?);
                let len = dims.iter().try_fold(dtype.size(), |len, dim| {
                    len.checked_mul(usize::try_from(*dim).ok()?)
                })?;
                (len == 0 || !view.data.is_null()).then_some(View {
                    dtype,
                    dims,
                    data: view.data.cast(),
                    len,
                })
            })
            .collect()
    }
}

/// Whether a result lies over another result or an argument: XLA plans that only where a program asks
/// for it, and a handler could not hold such references.
fn overlap(inputs: &[View<'_>], outputs: &[View<'_>]) -> bool {
    let range = |written: bool| move |v: &View<'_>| (v.data.addr(), v.len, written);
    let mut ranges: SmallVec<[(usize, usize, bool); 8]> = inputs
        .iter()
        .map(range(false))
        .chain(outputs.iter().map(range(true)))
        .filter(|(_, len, _)| *len > 0)
        .collect();
    ranges.sort_unstable();
    // Furthest ends so far, of anything and of what is written.
    let (mut end, mut written_end) = (0, 0);
    ranges.into_iter().any(|(start, len, written)| {
        let hit = start < written_end || (written && start < end);
        end = end.max(start + len);
        if written {
            written_end = written_end.max(start + len);
        }
        hit
    })
}

fn report(payload: &(dyn Any + Send)) {
    let text = payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text");
    // A subscriber is foreign code, too.
    let _ = catch_unwind(|| {
        tracing::error!(
            panic = text,
            "a custom call panicked; its results are zeros"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(start: usize, len: usize) -> View<'static> {
        View {
            dtype: DType::U8,
            dims: &[],
            data: ptr::without_provenance_mut(start),
            len,
        }
    }

    #[test]
    fn only_what_is_written_may_not_overlap() {
        let (a, b) = (|| view(64, 8), || view(72, 8));
        assert!(!overlap(&[a(), a(), b()], &[view(80, 8)]));
        assert!(overlap(&[a()], &[view(71, 8)]));
        assert!(overlap(&[view(71, 8)], &[a()]));
        assert!(overlap(&[], &[a(), b(), view(64, 16)]));
        // Nested: the long argument still covers the result after a short one has ended.
        assert!(overlap(&[view(0, 100), view(1, 1)], &[view(50, 1)]));
        // What has no bytes is nowhere.
        assert!(!overlap(&[a()], &[view(66, 0), view(0, 0)]));
    }
}
