//! A call as its handler sees it.

use super::raw::{self, Attributes};
use crate::call::array;
use smallvec::SmallVec;
use std::ffi::{c_int, c_void};
use std::fmt;
use xla_core::DType;

/// An argument of a call: an array in host memory, row-major and dense.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Type of its elements.
    pub dtype: DType,
    /// Length along each axis.
    pub dims: &'a [i64],
    /// The elements, in the machine's byte order.
    pub bytes: &'a [u8],
}

/// A result of a call: an array in host memory, row-major and dense, that the handler fills in. What
/// it holds before that is arbitrary.
#[derive(Debug)]
pub struct Output<'a> {
    /// Type of its elements.
    pub dtype: DType,
    /// Length along each axis.
    pub dims: &'a [i64],
    /// The elements, in the machine's byte order; for `bool`, bytes of 0 and 1 only.
    pub bytes: &'a mut [u8],
}

/// One call of a handler by a running program.
pub struct Call<'a> {
    pub(super) run_id: i64,
    pub(super) device_ordinal: usize,
    pub(super) inputs: SmallVec<[Input<'a>; 4]>,
    pub(super) outputs: SmallVec<[Output<'a>; 4]>,
    pub(super) attributes: &'a Attributes,
}

impl<'a> Call<'a> {
    /// The [`launch_id`](crate::ExecuteOptions::launch_id) of the execution: the same on all its
    /// replicas.
    pub fn run_id(&self) -> i64 {
        self.run_id
    }

    /// The device that executes, by position among this process's devices.
    pub fn device_ordinal(&self) -> usize {
        self.device_ordinal
    }

    /// The arguments.
    pub fn inputs(&self) -> &[Input<'a>] {
        &self.inputs
    }

    /// The results, to be filled in.
    pub fn outputs(&mut self) -> &mut [Output<'a>] {
        &mut self.outputs
    }

    /// Arguments and results at once.
    pub fn buffers(&mut self) -> (&[Input<'a>], &mut [Output<'a>]) {
        (&self.inputs, &mut self.outputs)
    }

    /// The attribute of this name, where the call has one and it is an `i64`.
    pub fn attribute_i64(&self, name: &str) -> Option<i64> {
        // SAFETY: `scalar` returns a pointer to a value of the type that it is asked for.
        self.scalar(name, DType::I64)
            .map(|value| unsafe { value.cast::<i64>().read_unaligned() })
    }

    /// The attribute of this name, where the call has one and it is a `bool`.
    pub fn attribute_bool(&self, name: &str) -> Option<bool> {
        // SAFETY: as above; a truth value is one byte.
        self.scalar(name, DType::Bool)
            .map(|value| unsafe { value.cast::<u8>().read() } != 0)
    }

    /// The attribute of this name, where the call has one and it is an array of `i64`.
    pub fn attribute_i64s(&self, name: &str) -> Option<&'a [i64]> {
        let item = self.attribute(name, raw::ARRAY)?.cast::<raw::Array>();
        // SAFETY: an attribute of this type points to this struct, live during the call, whose
        // array has `size` elements of its dtype.
        unsafe {
            let raw::Array { dtype, size, data } = item.read();
            let data = data.cast::<i64>();
            (raw::dtype(dtype) == Some(DType::I64) && data.is_aligned()).then(|| array(data, size))
        }
    }

    /// The attribute of this name, where the call has one and it is text.
    pub fn attribute_str(&self, name: &str) -> Option<&'a str> {
        let item = self.attribute(name, raw::STRING)?.cast::<raw::ByteSpan>();
        // SAFETY: an attribute of this type points to this struct, live during the call, whose
        // text has `len` bytes.
        let bytes = unsafe { array((*item).data.cast::<u8>(), (*item).len) };
        std::str::from_utf8(bytes).ok()
    }

    fn scalar(&self, name: &str, dtype: DType) -> Option<*const c_void> {
        let item = self.attribute(name, raw::SCALAR)?.cast::<raw::Scalar>();
        // SAFETY: an attribute of this type points to this struct, live during the call.
        let raw::Scalar {
            dtype: number,
            value,
        } = unsafe { item.read() };
        (raw::dtype(number) == Some(dtype) && !value.is_null()).then_some(value)
    }

    fn attribute(&self, name: &str, kind: c_int) -> Option<*const c_void> {
        let size = usize::try_from(self.attributes.size).ok()?;
        // SAFETY: the three lists are `size` long and live during the call, and so are the names.
        unsafe {
            let index = array(self.attributes.names, size).iter().position(|span| {
                array((**span).data.cast::<u8>(), (**span).len) == name.as_bytes()
            })?;
            (array(self.attributes.kinds, size)[index] == kind)
                .then(|| array(self.attributes.items, size)[index])
                .filter(|item| !item.is_null())
        }
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("run_id", &self.run_id)
            .field("device_ordinal", &self.device_ordinal)
            .field("inputs", &self.inputs.len())
            .field("outputs", &self.outputs.len())
            .finish_non_exhaustive()
    }
}
