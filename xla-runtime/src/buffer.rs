//! Arrays on a device.

use crate::call::{Extended, array};
use crate::client::Client;
use crate::event::{Event, on_ready};
use crate::handle::Handle;
use crate::metrics::{self, Counter, Metric};
use crate::signature::byte_len;
use pjrt_sys as sys;
use smallvec::SmallVec;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use xla_core::{DType, Error, Literal, Result, Shape};

/// An array in a device's memory, possibly still being computed.
///
/// Its memory may be given away: to an execution that the buffer is a donated argument of, or by
/// [`Buffer::delete`]. Every use after that is [`Error::BufferDeleted`]. Dropping a buffer while work
/// on it is pending is fine; the plugin frees the memory when that ends.
pub struct Buffer {
    // Before the client: it must go first.
    handle: Handle<sys::PJRT_Buffer>,
    state: State,
    dtype: DType,
    shape: Shape,
    device: usize,
    client: Client,
}

/// Whether the memory is gone, and how many threads read it in place just now.
///
/// A thread that reads through the raw pointer must not see the memory donated and overwritten
/// under it. So donation is granted only while nobody reads; otherwise the execution copies.
struct State(AtomicU32);

const GONE: u32 = 1 << 31;

/// What became of a wish to donate a buffer.
pub(crate) enum Claim {
    /// The caller may give the memory away; nobody else can use the buffer any more.
    Granted,
    /// Somebody reads it: the execution must copy.
    InUse,
    /// It is gone already.
    Gone,
}

impl Buffer {
    /// Takes ownership of a buffer of this client.
    ///
    /// # Safety
    /// `raw` must be null or a live buffer of `client` on its `device`th addressable device that
    /// nobody else frees, of this dtype and shape.
    pub(crate) unsafe fn new(
        client: &Client,
        raw: *mut sys::PJRT_Buffer,
        dtype: DType,
        shape: Shape,
        device: usize,
    ) -> Result<Self> {
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::new(client.api(), raw) }?;
        Ok(Buffer {
            handle,
            state: State(AtomicU32::new(0)),
            dtype,
            shape,
            device,
            client: client.clone(),
        })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The device it is on, by position among this process's devices.
    pub fn device(&self) -> usize {
        self.device
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::PJRT_Buffer {
        self.handle.as_ptr()
    }

    /// Whether the memory was given away.
    pub fn is_deleted(&self) -> bool {
        self.state.0.load(Ordering::Acquire) & GONE != 0
    }

    pub(crate) fn claim(&self) -> Claim {
        match self
            .state
            .0
            .compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Claim::Granted,
            Err(state) if state & GONE != 0 => Claim::Gone,
            Err(_) => Claim::InUse,
        }
    }

    /// Takes back a granted claim before anything was done with it.
    pub(crate) fn release(&self) {
        self.state.0.fetch_and(!GONE, Ordering::AcqRel);
    }

    /// After a failed execution: asks the plugin whether it took the memory all the same. Only the
    /// thread whose claim was granted may find that it did not; to others the buffer may be gone for
    /// another reason.
    pub(crate) fn reconcile(&self, claimed: bool) {
        let mut args =
            Extended::<sys::PJRT_Buffer_IsDeleted_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live.
        let asked = unsafe { self.handle.api().PJRT_Buffer_IsDeleted(&mut args) };
        if asked.is_err() || args.is_deleted {
            self.state.0.fetch_or(GONE, Ordering::AcqRel);
        } else if claimed {
            self.release();
        }
    }

    fn alive(&self, what: &'static str) -> Result<()> {
        if self.is_deleted() {
            Err(Error::BufferDeleted { what })
        } else {
            Ok(())
        }
    }

    /// Frees the memory now rather than when the buffer is dropped. Pending work on it still
    /// completes.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] when it is gone already; [`Error::Argument`] while another thread
    /// reads it.
    pub fn delete(&self) -> Result<()> {
        match self.claim() {
            Claim::Granted => {}
            Claim::Gone => {
                return Err(Error::BufferDeleted {
                    what: "Buffer::delete",
                });
            }
            Claim::InUse => {
                return Err(Error::argument(
                    "Buffer::delete",
                    "self",
                    "a buffer that nobody reads",
                    "one that another thread reads just now",
                ));
            }
        }
        let mut args = Extended::<sys::PJRT_Buffer_Delete_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live.
        unsafe { self.handle.api().PJRT_Buffer_Delete(&mut args) }
    }

    /// An event that is ready once the contents are; it carries the error of the execution that
    /// should have computed them.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] after donation.
    pub fn ready(&self) -> Result<Event> {
        self.alive("Buffer::ready")?;
        let mut args =
            Extended::<sys::PJRT_Buffer_ReadyEvent_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live; the event handed out is owned by the caller.
        unsafe {
            self.handle.api().PJRT_Buffer_ReadyEvent(&mut args)?;
            Event::new(&self.client, "computing a buffer", args.event)
        }
    }

    /// Bytes it takes on the device, padding included.
    ///
    /// # Errors
    /// [`Error::BufferDeleted`] after donation.
    pub fn size_bytes(&self) -> Result<usize> {
        self.alive("Buffer::size_bytes")?;
        let mut args = Extended::<sys::PJRT_Buffer_OnDeviceSizeInBytes_Args>::new(|a| {
            a.buffer = self.as_ptr();
        });
        // SAFETY: the handle is live.
        unsafe { self.handle.api().PJRT_Buffer_OnDeviceSizeInBytes(&mut args) }?;
        Ok(args.on_device_size_in_bytes)
    }

    /// A copy on another device of the same client (or the same one), by position among this
    /// process's devices. It is made asynchronously.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`]; [`Error::BufferDeleted`] after donation.
    pub fn copy_to_device(&self, device: usize) -> Result<Buffer> {
        let _running = self.client.begin()?;
        let destination = self.client.device_ptr(device)?;
        self.alive("Buffer::copy_to_device")?;
        let mut args = Extended::<sys::PJRT_Buffer_CopyToDevice_Args>::new(|a| {
            a.buffer = self.as_ptr();
            a.dst_device = destination;
        });
        // SAFETY: buffer and device are live and of one client; the copy is owned by the caller.
        let copy = unsafe {
            self.handle.api().PJRT_Buffer_CopyToDevice(&mut args)?;
            Buffer::new(
                &self.client,
                args.dst_buffer,
                self.dtype,
                self.shape.clone(),
                device,
            )?
        };
        self.client
            .in_flight()
            .push(device, copy.ready()?.pending());
        Ok(copy)
    }

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
        Metric::InboundData.record(bytes as f64);
        let watch = Metric::TransferFromDeviceTime.start();
        let literal = if self.client.is_cpu() && self.is_row_major() {
            self.copy_in_place()
        } else {
            self.transfer(timeout.saturating_sub(start.elapsed()))
        }?;
        watch.stop();
        Ok(literal)
    }

    /// Copies straight from the device's memory, which is the host's: a transfer through the plugin
    /// costs a thread hop of tens of microseconds.
    fn copy_in_place(&self) -> Result<Literal> {
        let mut args =
            Extended::<sys::PJRT_Buffer_UnsafePointer_Args>::new(|a| a.buffer = self.as_ptr());
        // SAFETY: the handle is live.
        unsafe { self.handle.api().PJRT_Buffer_UnsafePointer(&mut args) }?;
        let from: *const u8 = ptr::with_exposed_provenance(args.buffer_pointer);
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

/// One thread that reads the memory in place.
struct Reading<'a>(&'a State);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("device", &self.device)
            .field("deleted", &self.is_deleted())
            .finish()
    }
}
