//! Reading a buffer from the host: copied, or in place where the device's memory is the host's.

use super::{Buffer, GONE, State};
use crate::call::{Extended, array};
use crate::client::LEND_FROM;
use crate::event::{Event, on_ready};
use crate::handle::Handle;
use crate::metrics::{self, Counter, Metric};
use crate::signature::byte_len;
use pjrt_sys as sys;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{mem, ptr, slice};
use xla_core::{Error, Literal, Result};

impl Buffer {
    /// The contents on the host, in 64-byte aligned memory.
    ///
    /// # Errors
    /// [`Error::Deadline`] when they are not there within `timeout`; the error of the execution that
    /// should have computed them; [`Error::BufferDeleted`] after donation.
    pub fn to_literal(&self, timeout: Duration) -> Result<Literal> {
        let start = Instant::now();
        let _reading = self.begin_read("Buffer::to_literal")?;
        // The outcome too, not just the arrival: the pointer to a failed buffer looks as good as any.
        self.ready()?.wait(timeout)?;
        let bytes = byte_len(self.dtype, &self.shape);
        metrics::add(Counter::Download, 1);
        metrics::add(Counter::DownloadBytes, bytes as u64);
        let watch = Metric::TransferFromDeviceTime.start();
        let literal = if self.client.is_cpu() && self.is_row_major() {
            self.copy_in_place()
        } else {
            self.transfer(timeout.saturating_sub(start.elapsed()))
        }?;
        watch.stop_with(Metric::InboundData, bytes as f64);
        Ok(literal)
    }

    /// The contents without a copy where the host can read the device's memory and they are large
    /// enough for that to matter; otherwise as [`Buffer::to_literal`].
    ///
    /// While the literal or a clone of it lives, an execution that this buffer is a donated argument
    /// of copies it instead of writing over it.
    ///
    /// # Errors
    /// As [`Buffer::to_literal`].
    pub fn lend(self: &Arc<Self>, timeout: Duration) -> Result<Literal> {
        let len = byte_len(self.dtype, &self.shape);
        if len < LEND_FROM || !self.client.is_cpu() || !self.is_row_major() {
            return self.to_literal(timeout);
        }
        let reading = self.begin_read("Buffer::lend")?;
        self.ready()?.wait(timeout)?;
        metrics::add(Counter::Download, 1);
        metrics::add(Counter::DownloadBytes, len as u64);
        Metric::InboundData.record(len as f64);
        let address = self.address()?;
        // From here on it is the view that counts as a reader.
        mem::forget(reading);
        let view = View {
            buffer: Arc::clone(self),
            address,
            len,
        };
        Literal::from_owner(self.dtype, &self.shape, view)
    }

    /// Copies straight from the device's memory, which is the host's: a transfer through the plugin
    /// costs a thread hop of tens of microseconds.
    fn copy_in_place(&self) -> Result<Literal> {
        let from: *const u8 = ptr::with_exposed_provenance(self.address()?);
        Literal::from_fill(self.dtype, &self.shape, |to| {
            if !to.is_empty() {
                // SAFETY: on a CPU the pointer leads to the dense row-major array that dtype and
                // shape describe (the layout was checked), which is `to.len()` bytes; it is computed
                // (the ready event was waited for); the reading count keeps it from being donated,
                // and `self` from being freed.
                unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
            }
            Ok(())
        })
    }

    /// Where the contents are, or will be, in the device's memory.
    fn address(&self) -> Result<usize> {
        let mut args =
            Extended::<sys::PJRT_Buffer_UnsafePointer_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live.
        unsafe { self.handle.api().PJRT_Buffer_UnsafePointer(&mut args) }?;
        Ok(args.buffer_pointer)
    }

    fn is_row_major(&self) -> bool {
        let mut args =
            Extended::<sys::PJRT_Buffer_GetMemoryLayout_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live.
        if unsafe { self.handle.api().PJRT_Buffer_GetMemoryLayout(&mut args) }.is_err()
            || args.layout.type_
                != sys::PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled
        {
            return false;
        }
        // SAFETY: the type says that `tiled` is set; its arrays belong to the buffer.
        unsafe {
            let tiled = args.layout.__bindgen_anon_1.tiled;
            let order = array(tiled.minor_to_major, tiled.minor_to_major_size);
            tiled.num_tiles == 0
                && order.len() == self.shape.rank()
                && order
                    .iter()
                    .rev()
                    .enumerate()
                    .all(|(i, axis)| *axis == i as i64)
        }
    }

    /// Has the plugin copy, row-major, into memory that outlives the transfer whatever happens.
    fn transfer(&self, timeout: Duration) -> Result<Literal> {
        let len = byte_len(self.dtype, &self.shape);
        let mut staging = vec![0u8; len];
        let order: SmallVec<[i64; 6]> = (0..self.shape.rank() as i64).rev().collect();
        let mut layout = Extended::<sys::PJRT_Buffer_MemoryLayout>::new(|l| {
            l.type_ = sys::PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled;
            l.__bindgen_anon_1.tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
                struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout_Tiled>(),
                minor_to_major: order.as_ptr(),
                minor_to_major_size: order.len(),
                ..Default::default()
            };
        });
        let mut args = Extended::<sys::PJRT_Buffer_ToHostBuffer_Args>::new(|a| {
            a.src = self.as_ptr();
            a.host_layout = layout.as_mut_ptr();
            a.dst = staging.as_mut_ptr().cast();
            a.dst_size = len;
        });
        // SAFETY: buffer and layout are live during the call, `dst` is as long as stated and lives
        // until the event is ready (see below); the event is owned by the caller.
        let event = unsafe {
            self.handle.api().PJRT_Buffer_ToHostBuffer(&mut args)?;
            Handle::new(self.handle.api(), args.event)?
        };
        let event = Event::from_handle(&self.client, "copying a buffer to the host", event);
        match event.wait(timeout) {
            Ok(()) => Literal::from_fill(self.dtype, &self.shape, |to| {
                to.copy_from_slice(&staging);
                Ok(())
            }),
            Err(error) => {
                if !matches!(event.is_ready(), Ok(true)) {
                    // The plugin still writes: the memory lives until it says that it is done.
                    on_ready(event.handle(), move || drop(staging))?;
                }
                Err(error)
            }
        }
    }

    fn begin_read(&self, what: &'static str) -> Result<Reading<'_>> {
        let state = self.state.0.fetch_add(1, Ordering::AcqRel);
        let reading = Reading(&self.state);
        if state & GONE != 0 {
            Err(Error::BufferDeleted { what })
        } else {
            Ok(reading)
        }
    }
}

/// A buffer's memory, read in place for as long as this lives.
struct View {
    buffer: Arc<Buffer>,
    address: usize,
    len: usize,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        let from: *const u8 = ptr::with_exposed_provenance(self.address);
        // SAFETY: on a CPU the address is that of the dense row-major array that the buffer's dtype
        // and shape describe (the layout was checked), which is `len` bytes and not none; it is
        // computed (the ready event was waited for), so that nothing writes to it any more; the
        // reading count keeps it from being donated or deleted, and `buffer` from being freed.
        unsafe { slice::from_raw_parts(from, self.len) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        drop(Reading(&self.buffer.state));
    }
}

/// One reader of the memory in place.
struct Reading<'a>(&'a State);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
