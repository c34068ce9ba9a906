//! The devices of a client.

use crate::call::{Api, Extended, string};
use crate::named_value::{self, AttributeValue};
use pjrt_sys as sys;
use std::collections::BTreeMap;
use std::fmt;
use xla_core::{Error, Result};

/// PJRT's code for a function that the platform does not implement.
const UNIMPLEMENTED: i32 = 12;

/// A device as the plugin knows it, printed `CPU:0`: platform and position in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct RealDevice {
    ordinal: usize,
    id: i32,
    process_index: usize,
    local_hardware_id: i32,
    platform: String,
    kind: String,
    debug_string: String,
    attributes: BTreeMap<String, AttributeValue>,
}

impl RealDevice {
    /// Position among the devices that this process can address.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The id that no other device has, over all processes.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The process that addresses it.
    pub fn process_index(&self) -> usize {
        self.process_index
    }

    /// Its number on its host, -1 where the plugin has none.
    pub fn local_hardware_id(&self) -> i32 {
        self.local_hardware_id
    }

    /// The vendor's name of the device: `cpu`, `NVIDIA H100`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The plugin's own description.
    pub fn debug_string(&self) -> &str {
        &self.debug_string
    }

    /// Further properties, under the plugin's names.
    pub fn attributes(&self) -> &BTreeMap<String, AttributeValue> {
        &self.attributes
    }
}

impl fmt::Display for RealDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.platform, self.ordinal)
    }
}

/// What a device says about its memory, in bytes where not stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// In use now.
    pub bytes_in_use: u64,
    /// The most that was in use.
    pub peak_bytes_in_use: Option<u64>,
    /// Allocations made (a count).
    pub num_allocs: Option<u64>,
    /// The largest allocation made.
    pub largest_alloc_size: Option<u64>,
    /// The most that may be in use.
    pub bytes_limit: Option<u64>,
}

/// A device pointer that a live client vouches for.
pub(crate) struct DevicePtr(*mut sys::PJRT_Device);

// SAFETY: devices are immutable objects that live as long as their client, whose owner keeps this;
// the API allows its functions on them from any thread.
unsafe impl Send for DevicePtr {}
// SAFETY: as above.
unsafe impl Sync for DevicePtr {}

impl DevicePtr {
    pub(crate) fn new(raw: *mut sys::PJRT_Device) -> Self {
        DevicePtr(raw)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::PJRT_Device {
        self.0
    }
}

/// # Safety
/// `raw` must be a device of a live client.
unsafe fn description(
    api: &Api,
    raw: *mut sys::PJRT_Device,
) -> Result<*mut sys::PJRT_DeviceDescription> {
    let mut args = Extended::<sys::PJRT_Device_GetDescription_Args>::new(|a| a.device = raw);
    // SAFETY: the caller vouches for the device.
    unsafe { api.PJRT_Device_GetDescription(&mut args) }?;
    Ok(args.device_description)
}

/// # Safety
/// `raw` must be a device of a live client.
pub(crate) unsafe fn id(api: &Api, raw: *mut sys::PJRT_Device) -> Result<i32> {
    // SAFETY: the caller vouches for the device; its description lives as long.
    unsafe {
        let description = description(api, raw)?;
        let mut args = Extended::<sys::PJRT_DeviceDescription_Id_Args>::new(|a| {
            a.device_description = description;
        });
        api.PJRT_DeviceDescription_Id(&mut args)?;
        Ok(args.id)
    }
}

/// # Safety
/// `raw` must be a device of a live client.
pub(crate) unsafe fn describe(
    api: &Api,
    raw: *mut sys::PJRT_Device,
    ordinal: usize,
    platform_name: &str,
) -> Result<RealDevice> {
    // SAFETY: the caller vouches for the device; its description lives as long, and texts and
    // attributes belong to it and are copied.
    unsafe {
        let d = description(api, raw)?;
        let mut process = Extended::<sys::PJRT_DeviceDescription_ProcessIndex_Args>::new(|a| {
            a.device_description = d;
        });
        let mut kind = Extended::<sys::PJRT_DeviceDescription_Kind_Args>::new(|a| {
            a.device_description = d;
        });
        let mut debug = Extended::<sys::PJRT_DeviceDescription_DebugString_Args>::new(|a| {
            a.device_description = d;
        });
        let mut attributes = Extended::<sys::PJRT_DeviceDescription_Attributes_Args>::new(|a| {
            a.device_description = d;
        });
        let mut hardware =
            Extended::<sys::PJRT_Device_LocalHardwareId_Args>::new(|a| a.device = raw);
        api.PJRT_DeviceDescription_ProcessIndex(&mut process)?;
        api.PJRT_DeviceDescription_Kind(&mut kind)?;
        api.PJRT_DeviceDescription_DebugString(&mut debug)?;
        api.PJRT_DeviceDescription_Attributes(&mut attributes)?;
        let local_hardware_id = match api.PJRT_Device_LocalHardwareId(&mut hardware) {
            Ok(()) => hardware.local_hardware_id,
            Err(_) => -1,
        };
        Ok(RealDevice {
            ordinal,
            id: id(api, raw)?,
            process_index: usize::try_from(process.process_index).unwrap_or(0),
            local_hardware_id,
            platform: platform_name.to_ascii_uppercase(),
            kind: string(kind.device_kind, kind.device_kind_size),
            debug_string: string(debug.debug_string, debug.debug_string_size),
            attributes: named_value::read(attributes.attributes, attributes.num_attributes),
        })
    }
}

/// # Safety
/// `raw` must be a device of a live client.
pub(crate) unsafe fn memory_stats(
    api: &Api,
    raw: *mut sys::PJRT_Device,
) -> Result<Option<MemoryStats>> {
    let mut a = Extended::<sys::PJRT_Device_MemoryStats_Args>::new(|a| a.device = raw);
    // SAFETY: the caller vouches for the device.
    match unsafe { api.PJRT_Device_MemoryStats(&mut a) } {
        Err(
            Error::Pjrt {
                code: UNIMPLEMENTED,
                ..
            }
            | Error::Unsupported { .. },
        ) => return Ok(None),
        other => other?,
    }
    let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
    let given = |set: bool, value: i64| set.then(|| bytes(value));
    Ok(Some(MemoryStats {
        bytes_in_use: bytes(a.bytes_in_use),
        peak_bytes_in_use: given(a.peak_bytes_in_use_is_set, a.peak_bytes_in_use),
        num_allocs: given(a.num_allocs_is_set, a.num_allocs),
        largest_alloc_size: given(a.largest_alloc_size_is_set, a.largest_alloc_size),
        bytes_limit: given(a.bytes_limit_is_set, a.bytes_limit),
    }))
}
