//! Names of devices: the logical ones that programs use and the kinds of real ones.

use std::fmt;

/// A logical device: what a tensor lives on and a replica drives. Printed `xla:0`, `xla:1`, …, or
/// `xla:spmd` for a virtual one, which stands for all devices of a mesh.
///
/// It is a name only; whether the device exists is checked where the name is made from a number
/// (`xla::device_at`) or a mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(usize);

impl Device {
    /// The device with this ordinal among those that this process can address.
    pub const fn new(ordinal: usize) -> Self {
        Device(ordinal << 1)
    }

    /// The virtual device that stands for a mesh, by the number that the process gave the mesh.
    pub const fn of_mesh(index: usize) -> Self {
        Device(index << 1 | 1)
    }

    /// Position among the devices that this process can address; `None` for a virtual device.
    pub const fn ordinal(self) -> Option<usize> {
        match self.is_virtual() {
            true => None,
            false => Some(self.0 >> 1),
        }
    }

    /// The number of the mesh that a virtual device stands for; `None` for a real one.
    pub const fn mesh_index(self) -> Option<usize> {
        match self.is_virtual() {
            true => Some(self.0 >> 1),
            false => None,
        }
    }

    /// Whether it stands for several devices.
    pub const fn is_virtual(self) -> bool {
        self.0 & 1 == 1
    }

    /// A small number that no other device, real or virtual, has.
    pub const fn number(self) -> usize {
        self.0
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mesh_index() {
            None => write!(f, "xla:{}", self.0 >> 1),
            Some(0) => f.write_str("xla:spmd"),
            Some(mesh) => write!(f, "xla:spmd{mesh}"),
        }
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
