//! A plugin's client: the devices of this process, and what is made on them.

use crate::buffer::Buffer;
use crate::call::{Api, Extended, array, string};
use crate::device::{self, DevicePtr, MemoryStats, RealDevice};
use crate::disk_cache::{DiskCache, Source};
use crate::event::on_ready;
use crate::executable::Executable;
use crate::exit::{self, Held, InFlight, Running};
use crate::handle::Handle;
use crate::kv::Lent;
use crate::live::Live;
use crate::metrics::{self, Counter, Metric};
use crate::options::{ClientOptions, CompileOptions};
use crate::plugin::Plugin;
use crate::signature::{Signature, buffer_type, byte_len, describe};
use crate::threads::{self, Threads};
use crate::{blob, flags, host_memory, named_value};
use pjrt_sys as sys;
use smallvec::SmallVec;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use xla_core::{DType, DeviceKind, Error, Literal, Result, Shape};

/// Stack of the thread that compiles. XLA's passes recurse along chains of operators, and 8 MB
/// overflow at some tens of thousands; the memory is reserved, not used, until then.
const COMPILE_STACKS: [usize; 2] = [1 << 30, 64 << 20];

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

    /// Compiles a program written in StableHLO's text form, or loads it from the persistent cache
    /// ([`ClientOptions::persistent_cache`]), where it was compiled by an equal client before.
    ///
    /// `signature` says what the program takes and returns on one device. Results are checked
    /// against the compiled program; arguments cannot be (the API does not tell), so they are what
    /// executions are checked against.
    ///
    /// # Errors
    /// [`Error::Argument`] for options that would end the process or contradict each other;
    /// [`Error::Compile`] with the compiler's words; [`Error::Internal`] when the program's results
    /// are not those of the signature.
    pub fn compile(
        &self,
        stablehlo_text: &str,
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let _running = self.begin()?;
        let encoded = options.encode(signature, &self.0.ids)?;
        let compile = || {
            let watch = Metric::CompileTime.start();
            let loaded = on_large_stack(|| self.compile_here(stablehlo_text, &encoded))?
                .map_err(|error| describe_failure(error, stablehlo_text))?;
            watch.stop();
            metrics::add(Counter::Compile, 1);
            if self.is_cpu() {
                host_memory::trim();
            }
            Executable::new(self, loaded, signature, options)
        };
        let Some(cache) = &self.0.disk_cache else {
            return compile();
        };
        let source = Source {
            text: stablehlo_text,
            encoded: &encoded,
            signature,
            options,
        };
        cache.get_or_compile(self, &source, compile)
    }

    fn compile_here(
        &self,
        text: &str,
        options: &[u8],
    ) -> Result<Handle<sys::PJRT_LoadedExecutable>> {
        const FORMAT: &str = "mlir";
        let mut program = Extended::<sys::PJRT_Program>::new(|p| {
            // The field is writable for the calls that fill a program in; this one only reads.
            p.code = text.as_ptr().cast_mut().cast();
            p.code_size = text.len();
            p.format = FORMAT.as_ptr().cast();
            p.format_size = FORMAT.len();
        });
        let mut args = Extended::<sys::PJRT_Client_Compile_Args>::new(|a| {
            a.client = self.as_ptr();
            a.program = program.as_mut_ptr();
            a.compile_options = options.as_ptr().cast();
            a.compile_options_size = options.len();
        });
        // SAFETY: client, program and options are live during the call, and the options hold counts
        // of at least one; the executable handed out is owned by the caller.
        unsafe {
            self.api().PJRT_Client_Compile(&mut args)?;
            Handle::new(self.api(), args.executable)
        }
    }

    /// Loads what [`Executable::serialize`] gave, with the signature and options of its compilation.
    ///
    /// # Errors
    /// [`Error::Argument`] when the bytes are damaged or were made by another build of the plugin
    /// (loading such a blob can corrupt memory, so the plugin never sees it) or when the options are
    /// unsound; [`Error::Pjrt`] with the plugin's words.
    pub fn load_serialized(
        &self,
        bytes: &[u8],
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let _running = self.begin()?;
        let payload = blob::open(bytes, &self.0.plugin.sha256()?)?;
        let encoded = options.encode(signature, &self.0.ids)?;
        let loaded = on_large_stack(|| {
            let mut args = Extended::<sys::PJRT_Executable_DeserializeAndLoad_Args>::new(|a| {
                a.client = self.as_ptr();
                a.serialized_executable = payload.as_ptr().cast();
                a.serialized_executable_size = payload.len();
            });
            // Two fields that the API gained later: compile options in place of the serialised ones,
            // and their length. An older plugin keeps the serialised ones.
            args.set_appended(0, encoded.as_ptr().expose_provenance());
            args.set_appended(1, encoded.len());
            // SAFETY: client, bytes and options are live during the call; the bytes are what this
            // very build of the plugin wrote; the executable handed out is owned by the caller.
            unsafe {
                self.api().PJRT_Executable_DeserializeAndLoad(&mut args)?;
                Handle::new(self.api(), args.loaded_executable)
            }
        })??;
        Executable::new(self, loaded, signature, options)
    }

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

/// Runs `work` on a thread of its own with a stack that XLA's recursion does not exhaust.
fn on_large_stack<T: Send>(work: impl Fn() -> T + Sync) -> Result<T> {
    let mut refusal = None;
    for stack in COMPILE_STACKS {
        let result = thread::scope(|scope| {
            let builder = thread::Builder::new()
                .name("xla-compile".into())
                .stack_size(stack);
            builder
                .spawn_scoped(scope, &work)
                .map(thread::ScopedJoinHandle::join)
        });
        match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => refusal = Some(error),
        }
    }
    Err(Error::Unsupported {
        what: "a thread to compile on",
        since: (0, 0),
    })
    .inspect_err(|_| {
        tracing::warn!(?refusal, "the system refuses a thread");
    })
}

/// The compiler's error with the program's name and size.
fn describe_failure(error: Error, text: &str) -> Error {
    let Error::Pjrt { message, .. } = error else {
        return error;
    };
    let name = text
        .split_once("module @")
        .and_then(|(_, rest)| rest.split(|c: char| c.is_whitespace() || c == '{').next())
        .unwrap_or("a program");
    Error::Compile {
        name: name.to_owned(),
        nodes: text
            .lines()
            .filter(|l| l.trim_start().starts_with('%'))
            .count(),
        message,
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
