//! Arrays on a device.

mod read;

use crate::call::Extended;
use crate::client::Client;
use crate::event::Event;
use crate::handle::Handle;
use crate::signature::byte_len;
use pjrt_sys as sys;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use xla_core::{DType, Error, Result, Shape};

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

/// Whether the memory is gone, and how many readers it has in place: threads that copy it, and
/// literals that show it.
///
/// Whoever reads through the raw pointer must not see the memory donated and overwritten
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
        client.live().add(device, byte_len(dtype, &shape));
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
            Ok(_) => {
                self.count_gone();
                Claim::Granted
            }
            Err(state) if state & GONE != 0 => Claim::Gone,
            Err(_) => Claim::InUse,
        }
    }

    /// Takes back a granted claim before anything was done with it.
    pub(crate) fn release(&self) {
        let bytes = byte_len(self.dtype, &self.shape);
        self.client.live().add(self.device, bytes);
        self.state.0.fetch_and(!GONE, Ordering::AcqRel);
    }

    fn count_gone(&self) {
        let bytes = byte_len(self.dtype, &self.shape);
        self.client.live().remove(self.device, bytes);
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
            if self.state.0.fetch_or(GONE, Ordering::AcqRel) & GONE == 0 {
                self.count_gone();
            }
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
    /// or a literal reads it.
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
                    "one that another thread or a literal reads",
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
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.is_deleted() {
            self.count_gone();
        }
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
