//! Host arrays on their way to a device.

use super::{Client, LEND_FROM};
use crate::buffer::Buffer;
use crate::call::Extended;
use crate::event::on_ready;
use crate::handle::Handle;
use crate::metrics::{self, Counter, Metric};
use crate::signature::{buffer_type, byte_len, describe};
use pjrt_sys as sys;
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use xla_core::{DType, Error, Literal, Result, Shape};

impl Client {
    /// Sends a host array to a device. The bytes are read during the call.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`]; [`Error::ShapeMismatch`] when `bytes` is not as long as dtype and
    /// shape ask for; [`Error::Argument`] for a byte other than 0 and 1 in a `bool` array;
    /// [`Error::Pjrt`] when the device's memory is exhausted.
    pub fn upload(
        &self,
        bytes: &[u8],
        dtype: DType,
        shape: &Shape,
        device: usize,
    ) -> Result<Buffer> {
        let expected = byte_len(dtype, shape);
        if bytes.len() != expected {
            return Err(Error::shape(
                "upload",
                format!("{expected} bytes for {}", describe(dtype, shape)),
                format_args!("{} bytes", bytes.len()),
            ));
        }
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(Error::argument(
                "upload",
                "bytes",
                "0 or 1 for bool",
                "another byte",
            ));
        }
        let semantics =
            sys::PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
        // SAFETY: the length was checked, and with these semantics nothing is read after the call.
        let (buffer, _done) = unsafe { self.send(bytes, dtype, shape, device, semantics) }?;
        Ok(buffer)
    }

    /// Sends a literal to a device: a large, 64-byte aligned one is lent without a copy, and kept
    /// alive for as long as the device needs it.
    ///
    /// # Errors
    /// As [`Client::upload`].
    pub fn upload_owned(&self, literal: Literal, device: usize) -> Result<Buffer> {
        if literal.bytes().len() < LEND_FROM || !literal.can_be_lent() {
            return self.upload(literal.bytes(), literal.dtype(), literal.shape(), device);
        }
        let semantics = sys::PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableZeroCopy;
        self.device_ptr(device)?;
        // Kept apart from the borrow below: whatever goes wrong, the memory must not be freed before
        // the plugin says that it is done with it.
        let lent = ManuallyDrop::new(literal);
        // SAFETY: a literal's bytes are as long as its dtype and shape ask for, never change, and stay
        // where they are; they are released by the callback below alone, once the plugin is done.
        let (buffer, done) =
            unsafe { self.send(lent.bytes(), lent.dtype(), lent.shape(), device, semantics) }?;
        match done {
            Some(done) => on_ready(&done, move || drop(ManuallyDrop::into_inner(lent)))?,
            None => drop(ManuallyDrop::into_inner(lent)),
        }
        Ok(buffer)
    }

    /// # Safety
    /// `bytes` must be the array that dtype and shape describe, and live and unchanged for as long as
    /// `semantics` ask for: until the returned event, where they outlast the call.
    unsafe fn send(
        &self,
        bytes: &[u8],
        dtype: DType,
        shape: &Shape,
        device: usize,
        semantics: sys::PJRT_HostBufferSemantics,
    ) -> Result<(Buffer, Option<Handle<sys::PJRT_Event>>)> {
        let _running = self.begin()?;
        let destination = self.device_ptr(device)?;
        let buffer_type = buffer_type("upload", dtype)?;
        let dims: SmallVec<[i64; 6]> = shape.dims().iter().map(|d| *d as i64).collect();
        let watch = Metric::TransferToDeviceTime.start();
        let mut args = Extended::<sys::PJRT_Client_BufferFromHostBuffer_Args>::new(|a| {
            a.client = self.as_ptr();
            a.data = bytes.as_ptr().cast();
            a.type_ = buffer_type;
            a.dims = dims.as_ptr();
            a.num_dims = dims.len();
            a.host_buffer_semantics = semantics;
            a.device = destination;
        });
        // SAFETY: client and device are live, the dtype is one the API numbers, no strides means
        // dense and row-major; the caller vouches for the bytes. Event and buffer are owned by the
        // caller of the API.
        let (buffer, done) = unsafe {
            self.api().PJRT_Client_BufferFromHostBuffer(&mut args)?;
            let done = (!args.done_with_host_buffer.is_null())
                .then(|| Handle::new(self.api(), args.done_with_host_buffer))
                .transpose()?;
            (
                Buffer::new(self, args.buffer, dtype, shape.clone(), device)?,
                done,
            )
        };
        watch.stop_with(Metric::OutboundData, bytes.len() as f64);
        metrics::add(Counter::Upload, 1);
        metrics::add(Counter::UploadBytes, bytes.len() as u64);
        Ok((buffer, done))
    }
}
