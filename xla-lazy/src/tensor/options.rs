//! Where and as what a tensor is made.

use super::Tensor;
use crate::spmd::{self, NamedSharding};
use std::panic::Location;
use xla_core::{DType, Device, Result};

/// Where and as what a tensor is made: a dtype, a device or a sharding, both or neither (`()`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorOptions {
    dtype: Option<DType>,
    device: Option<Device>,
    sharding: Option<&'static NamedSharding>,
}

impl TensorOptions {
    /// The dtype asked for.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The device asked for.
    pub fn device(&self) -> Option<Device> {
        self.device
    }

    /// The sharding asked for, over the mesh that the device stands for.
    pub fn sharding(&self) -> Option<&NamedSharding> {
        self.sharding
    }

    /// The device asked for, or the calling replica's.
    ///
    /// # Errors
    /// [`Error::NoReplicaContext`](xla_core::Error::NoReplicaContext) on a thread that belongs to no
    /// replica while a launch runs.
    pub fn device_or_current(&self, op: &'static str) -> Result<Device> {
        match self.device {
            Some(device) => Ok(device),
            None => spmd::default_device(op),
        }
    }

    /// A new tensor as these options have it spread.
    pub(crate) fn spread(
        &self,
        op: &'static str,
        made: Tensor,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        if let Some(sharding) = self.sharding {
            spmd::spread(op, &made, sharding, at)?;
        }
        Ok(made)
    }
}

impl From<&NamedSharding> for TensorOptions {
    fn from(sharding: &NamedSharding) -> Self {
        TensorOptions {
            dtype: None,
            device: Some(sharding.mesh().device()),
            sharding: Some(sharding.interned()),
        }
    }
}

impl From<(DType, &NamedSharding)> for TensorOptions {
    fn from((dtype, sharding): (DType, &NamedSharding)) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            ..TensorOptions::from(sharding)
        }
    }
}

impl From<()> for TensorOptions {
    fn from((): ()) -> Self {
        TensorOptions::default()
    }
}

impl From<DType> for TensorOptions {
    fn from(dtype: DType) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            ..TensorOptions::default()
        }
    }
}

impl From<Device> for TensorOptions {
    fn from(device: Device) -> Self {
        TensorOptions {
            device: Some(device),
            ..TensorOptions::default()
        }
    }
}

impl From<&Device> for TensorOptions {
    fn from(device: &Device) -> Self {
        TensorOptions::from(*device)
    }
}

impl From<(DType, Device)> for TensorOptions {
    fn from((dtype, device): (DType, Device)) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            device: Some(device),
            sharding: None,
        }
    }
}

impl From<(DType, &Device)> for TensorOptions {
    fn from((dtype, device): (DType, &Device)) -> Self {
        TensorOptions::from((dtype, *device))
    }
}

impl Tensor {
    /// Where and as what this tensor is; spread as it is marked, but where each device has blocks of its
    /// own.
    pub(crate) fn alike(&self) -> TensorOptions {
        let spread = self.device().is_virtual() && spmd::manual_mesh().is_none();
        let sharding = match spread && self.view.is_none() {
            true => self.storage.mark(),
            false => None,
        };
        TensorOptions {
            dtype: Some(self.dtype()),
            device: Some(self.device()),
            sharding: sharding.map(|sharding| sharding.interned()),
        }
    }
}
