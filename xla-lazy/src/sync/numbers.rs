//! The numbers of a program, as its arguments.

use super::DeviceValue;
use crate::trace::{NumberClass, Numbers, number_type};
use std::sync::{Mutex, PoisonError};
use xla_core::{Device, Result, Shape};

/// What a program was last started with, for each class of numbers and device. Most steps pass the
/// numbers of the step before; they are on the device already.
#[derive(Default)]
pub(crate) struct LastNumbers(Mutex<Vec<Sent>>);

struct Sent {
    class: NumberClass,
    bytes: Vec<u8>,
    value: DeviceValue,
    device: Device,
}

impl LastNumbers {
    /// The first `len` of the packed numbers of a class on a device, sent there unless they are what
    /// was sent last.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn upload(
        &self,
        numbers: &Numbers,
        len: usize,
        class: NumberClass,
        device: Device,
    ) -> Result<DeviceValue> {
        let bytes: &[u8] = match class {
            NumberClass::F32 => bytemuck::cast_slice(&numbers.f32[..len]),
            NumberClass::F64 => bytemuck::cast_slice(&numbers.f64[..len]),
            NumberClass::I64 => bytemuck::cast_slice(&numbers.i64[..len]),
        };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last
            .iter_mut()
            .find(|sent| sent.class == class && sent.device == device);
        if let Some(sent) = &known
            && sent.bytes == bytes
        {
            return Ok(sent.value.clone());
        }
        let dtype = number_type(class).dtype();
        let shape = Shape::new(&[len]);
        let value = DeviceValue::upload_bytes(bytes, dtype, &shape, device)?;
        match known {
            Some(sent) => {
                sent.bytes.clear();
                sent.bytes.extend_from_slice(bytes);
                sent.value = value.clone();
            }
            None => last.push(Sent {
                class,
                bytes: bytes.to_vec(),
                value: value.clone(),
                device,
            }),
        }
        Ok(value)
    }
}
