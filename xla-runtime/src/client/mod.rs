//! A plugin's client: the devices of this process, and what is made on them.

mod compile;
mod upload;

use crate::call::{Api, Extended, array, string};
use crate::device::{self, DevicePtr, MemoryStats, RealDevice};
use crate::disk_cache::DiskCache;
use crate::exit::{self, Held, InFlight, Running};
use crate::handle::Handle;
use crate::kv::Lent;
use crate::live::Live;
use crate::options::ClientOptions;
use crate::plugin::Plugin;
use crate::threads::{self, Threads};
use crate::{flags, host_memory, named_value};
use pjrt_sys as sys;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;
use xla_core::{DeviceKind, Error, Result};

/// Arrays from this many bytes on are lent to the device, and by it to the host, rather than copied.
pub(crate) const LEND_FROM: usize = 16 << 10;

/// A client with its devices. Clones are the same client; it is destroyed with the last clone,
/// buffer, executable and event of it, after what still runs.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

pub(crate) struct Inner {
    in_flight: Arc<InFlight>,
    // Leaked rather than destroyed when work outlasts the wait for it. The client goes before the
    // store that it may ask.
    handle: ManuallyDrop<(Handle<sys::PJRT_Client>, Option<Lent>)>,
    plugin: Plugin,
    platform_name: String,
    platform_version: String,
    process_index: usize,
    devices: Vec<RealDevice>,
    addressable: Vec<DevicePtr>,
    ids: Vec<i32>,
    is_cpu: bool,
    live: Live,
    memory_limit: Option<u64>,
    disk_cache: Option<DiskCache>,
    _threads: Option<Threads>,
}

impl Client {
    /// Whether this process has created a client, even if it is gone by now: what is fixed at the
    /// first one can no longer change.
    pub fn any() -> bool {
        crate::exit::any_client()
    }

    /// Creates a client.
    ///
    /// The first CPU client of a process also adds to `XLA_FLAGS`, so that XLA's own time-outs of
    /// collectives, which end the process, lie far beyond this library's deadlines; flags that the
    /// user has given stay as they are. How many threads a CPU client has is what
    /// [`set_cpu_threads`](crate::set_cpu_threads) says.
    ///
    /// # Errors
    /// [`Error::Argument`] for an option that would end the process; [`Error::Pjrt`] with the
    /// plugin's reason.
    pub fn create(plugin: &Plugin, options: &ClientOptions) -> Result<Client> {
        let values = options.named_values()?;
        let threads = (options.kind == DeviceKind::Cpu).then(|| {
            flags::prepare(plugin);
            host_memory::keep();
            threads::prepare(options.cpu_device_count.unwrap_or(1))
        });
        let api = plugin.api();
        let raw_values = named_value::write(&values);
        let mut args = Extended::<sys::PJRT_Client_Create_Args>::new(|a| {
            a.create_options = raw_values.as_ptr();
            a.num_options = raw_values.len();
        });
        let store = options
            .cluster
            .as_ref()
            .map(|cluster| Lent::new(Arc::clone(&cluster.store)));
        if let Some(store) = &store {
            let appended = store.offer(&mut args);
            args.set_appended(0, appended[0]);
            args.set_appended(1, appended[1]);
        }
        // SAFETY: the options point into `values`, which outlives the call, and so does the store,
        // which the client handed out takes along; that client is owned by the caller.
        let handle = unsafe {
            api.PJRT_Client_Create(&mut args)?;
            Handle::new(api, args.client)?
        };
        let threads = threads.map(|prepared| prepared.created());
        let mut inner = Inner::new(plugin.clone(), handle, store)?;
        inner.disk_cache = options
            .persistent_cache
            .as_ref()
            .map(|cache| DiskCache::new(cache, threads.as_ref().map(Threads::count)));
        inner.memory_limit = options.memory_limit;
        inner._threads = threads;
        let inner = Arc::new(inner);
        exit::register(&inner);
        Ok(Client(inner))
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.handle.0.api()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::PJRT_Client {
        self.0.handle.0.as_ptr()
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.0.is_cpu
    }

    pub(crate) fn begin(&self) -> Result<Running<'_>> {
        self.0.in_flight.begin()
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    /// How much may be used of each device ([`ClientOptions::memory_limit`]).
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        self.0.memory_limit
    }

    /// Makes the end of the process, and of the client, wait for work on another thread.
    pub(crate) fn hold(&self) -> Result<Held> {
        self.0.in_flight.hold()
    }

    pub(crate) fn same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Everything that keeps the client: its clones, and what was made by it.
    pub(crate) fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn device_ptr(&self, ordinal: usize) -> Result<*mut sys::PJRT_Device> {
        match self.0.addressable.get(ordinal) {
            Some(device) => Ok(device.as_ptr()),
            None => Err(Error::NoSuchDevice {
                asked: ordinal,
                count: self.0.addressable.len(),
            }),
        }
    }

    /// Position of a device among this process's, by the plugin's pointer.
    pub(crate) fn ordinal(&self, device: *mut sys::PJRT_Device) -> Option<usize> {
        self.0.addressable.iter().position(|d| d.as_ptr() == device)
    }

    /// The plugin it was made from.
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// The platform's name in lower case: `cpu`, `cuda`, `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The platform's version, as the plugin words it.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Which of the processes that share the platform's devices this is; 0 when there is one.
    pub fn process_index(&self) -> usize {
        self.0.process_index
    }

    /// The devices that this process can address, by ordinal.
    pub fn devices(&self) -> &[RealDevice] {
        &self.0.devices
    }

    /// Number of devices over all processes.
    pub fn global_device_count(&self) -> usize {
        self.0.ids.len()
    }

    /// What a device says about its memory; `None` where the plugin does not count.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`]; [`Error::Pjrt`] when the plugin counts but fails to say.
    pub fn device_memory(&self, ordinal: usize) -> Result<Option<MemoryStats>> {
        // SAFETY: the pointer is one of this live client's devices.
        unsafe { device::memory_stats(self.api(), self.device_ptr(ordinal)?) }
    }

    /// Bytes of the arrays that this client's owners hold on a device, on every plugin; what programs
    /// need while they run is not among them.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`].
    pub fn live_bytes(&self, ordinal: usize) -> Result<u64> {
        self.device_ptr(ordinal)?;
        Ok(self.0.live.bytes(ordinal))
    }

    pub(crate) fn live(&self) -> &Live {
        &self.0.live
    }
}

impl Inner {
    fn new(plugin: Plugin, handle: Handle<sys::PJRT_Client>, store: Option<Lent>) -> Result<Self> {
        let api = handle.api();
        let raw = handle.as_ptr();
        let mut name = Extended::<sys::PJRT_Client_PlatformName_Args>::new(|a| a.client = raw);
        let mut version =
            Extended::<sys::PJRT_Client_PlatformVersion_Args>::new(|a| a.client = raw);
        let mut process = Extended::<sys::PJRT_Client_ProcessIndex_Args>::new(|a| a.client = raw);
        let mut all = Extended::<sys::PJRT_Client_Devices_Args>::new(|a| a.client = raw);
        let mut own = Extended::<sys::PJRT_Client_AddressableDevices_Args>::new(|a| a.client = raw);
        // SAFETY: the client is live; names and device lists belong to it and are copied, the device
        // pointers in them stay valid as long as the client.
        unsafe {
            api.PJRT_Client_PlatformName(&mut name)?;
            api.PJRT_Client_PlatformVersion(&mut version)?;
            api.PJRT_Client_ProcessIndex(&mut process)?;
            api.PJRT_Client_Devices(&mut all)?;
            api.PJRT_Client_AddressableDevices(&mut own)?;
            let platform_name =
                string(name.platform_name, name.platform_name_size).to_ascii_lowercase();
            let own = array(own.addressable_devices, own.num_addressable_devices);
            let devices = own
                .iter()
                .enumerate()
                .map(|(ordinal, d)| device::describe(api, *d, ordinal, &platform_name))
                .collect::<Result<Vec<_>>>()?;
            let ids = array(all.devices, all.num_devices)
                .iter()
                .map(|d| device::id(api, *d))
                .collect::<Result<Vec<_>>>()?;
            Ok(Inner {
                live: Live::new(devices.len()),
                in_flight: Arc::new(InFlight::new(devices.len())),
                is_cpu: platform_name == "cpu",
                platform_name,
                platform_version: string(version.platform_version, version.platform_version_size),
                process_index: usize::try_from(process.process_index).unwrap_or(0),
                devices,
                addressable: own.iter().map(|d| DevicePtr::new(*d)).collect(),
                ids,
                plugin,
                handle: ManuallyDrop::new((handle, store)),
                memory_limit: None,
                disk_cache: None,
                _threads: None,
            })
        }
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.in_flight.drain(Instant::now() + exit::PATIENCE) {
            // SAFETY: dropped here and nowhere else; everything made by the client holds it, so
            // nothing of it is left.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        } else {
            tracing::warn!("a client is leaked: its devices are still at work");
        }
    }
}

impl PartialEq for Client {
    /// Whether both are clones of one client.
    fn eq(&self, other: &Self) -> bool {
        self.same(other)
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("platform", &self.platform_name())
            .field("devices", &self.devices().len())
            .field("plugin", self.plugin())
            .finish()
    }
}
