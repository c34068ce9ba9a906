//! Names of devices: the logical ones that programs use and the kinds of real ones.

use std::fmt;

/// A logical device, printed `xla:0`, `xla:1`, …: what a tensor lives on and a replica drives.
///
/// It is a name only; whether the device exists is checked where the name is made from a number
/// (`xla::device_at`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(usize);

impl Device {
    /// The device with this ordinal among those that this process can address.
    pub const fn new(ordinal: usize) -> Self {
        Device(ordinal)
    }

    /// Position among the devices that this process can address.
    pub const fn ordinal(self) -> usize {
        self.0
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xla:{}", self.0)
    }
}

impl From<&Device> for Device {
    fn from(device: &Device) -> Self {
        *device
    }
}

/// The kinds of hardware that `PJRT_DEVICE` may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An AMD GPU.
    Rocm,
    /// A Google TPU.
    Tpu,
}

impl DeviceKind {
    /// As `PJRT_DEVICE` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "CPU",
            DeviceKind::Cuda => "CUDA",
            DeviceKind::Rocm => "ROCM",
            DeviceKind::Tpu => "TPU",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
