//! The arguments of one call: values on a device, and numbers.

use super::graph::Varying;
use super::number::slot_of;
use super::tracing::Check;
use super::tree::{Flat, Leaf, Parts};
use crate::Tensor;
use crate::handle::Handle;
use crate::op::Number;
use crate::storage::{Storage, Value};
use crate::sync::{self, DeviceValue};
use crate::trace::{NumberClass, no_grad};
use crate::ty::Ty;
use std::panic::Location;
use std::sync::{Arc, Weak};
use xla_core::{DType, Device, Result};

/// A part of the arguments.
pub(super) enum Given {
    Tensor {
        ty: Ty,
        device: Device,
        value: DeviceValue,
        /// Smallest and largest element, where known.
        range: Option<(i64, i64)>,
    },
    Number(Number, DType),
}

/// What two calls of one graph have in common of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tensor(Ty, Device),
    Number(DType),
}

impl Given {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Given::Tensor { ty, device, .. } => Kind::Tensor(ty, *device),
            Given::Number(_, dtype) => Kind::Number(*dtype),
        }
    }

    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Given::Number(number, _) => Some(*number),
            Given::Tensor { .. } => None,
        }
    }

    pub(super) fn value(&self) -> Option<&DeviceValue> {
        match self {
            Given::Tensor { value, .. } => Some(value),
            Given::Number(..) => None,
        }
    }

    /// A storage with the argument's value, which is no other tensor's.
    fn storage(&self, as_type: Option<Ty>) -> Option<Storage> {
        let Given::Tensor {
            ty,
            device,
            value,
            range,
        } = self
        else {
            return None;
        };
        let storage = Storage::new(as_type.unwrap_or(ty), *device, Value::Ready(value.clone()));
        storage.lock().range = *range;
        Some(storage)
    }

    /// What a check of indices says of this argument.
    pub(super) fn passes(&self, check: &Check) -> Result<bool> {
        let Some(storage) = self.storage(Some(check.ty)) else {
            return Ok(check.result);
        };
        let tensor = Tensor {
            storage: Handle::new(Arc::new(storage)),
            view: check.view.clone(),
        };
        Ok((check.rule)(&tensor)? == check.result)
    }
}

/// The arguments, computed if they are pending.
///
/// # Errors
/// That of a program that an argument comes from.
pub(super) fn given(flat: Vec<Leaf>, at: &'static Location<'static>) -> Result<Vec<Given>> {
    let range = |leaf: &Leaf| match leaf {
        Leaf::Tensor(tensor) => tensor.index_range_unnoted(),
        Leaf::Number(..) => None,
    };
    let ranges: Vec<_> = flat.iter().map(range).collect();
    let whole = |leaf| match leaf {
        Leaf::Tensor(tensor) if tensor.view.as_ref().is_some_and(|v| !v.shows_all()) => {
            no_grad(|| tensor.copy()).map(Leaf::Tensor)
        }
        leaf => Ok(leaf),
    };
    // All are recorded before the first is asked for: they are computed together.
    let whole: Vec<Leaf> = flat.into_iter().map(whole).collect::<Result<_>>()?;
    let computed = |(leaf, range)| match leaf {
        Leaf::Number(number, dtype) => Ok(Given::Number(number, dtype)),
        Leaf::Tensor(tensor) => Ok(Given::Tensor {
            value: sync::materialise(&tensor, "call", at)?,
            ty: tensor.ty(),
            device: tensor.device(),
            range,
        }),
    };
    whole.into_iter().zip(ranges).map(computed).collect()
}

/// The arguments as the function sees them while it is recorded.
pub(super) struct Inside {
    pub(super) parts: Parts,
    /// The tensors' storages; `None` for numbers.
    pub(super) storages: Vec<Option<Weak<Storage>>>,
    pub(super) numbers: Vec<((NumberClass, u32), Varying)>,
}

impl Inside {
    /// Storages of their own: nothing that the function does to an argument reaches the caller's.
    ///
    /// # Errors
    /// Those of recording a scalar.
    pub(super) fn new(
        given: &[Given],
        words: &[usize],
        device: Device,
        at: &'static Location<'static>,
    ) -> Result<Self> {
        let mut tensors = Vec::with_capacity(given.len());
        let mut storages = Vec::with_capacity(given.len());
        let mut numbers = Vec::new();
        for (index, argument) in given.iter().enumerate() {
            let tensor = match (argument.storage(None), argument) {
                (Some(storage), _) => {
                    storage.lock().argument = u32::try_from(index).ok();
                    Tensor::of(Arc::new(storage))
                }
                (None, Given::Number(number, dtype)) => {
                    let tensor = Tensor::scalar(*number, (*dtype, device))?;
                    if let Some(slot) = slot_of(&tensor, at)? {
                        numbers.push((slot, Varying::Argument(index)));
                    }
                    tensor
                }
                (None, Given::Tensor { .. }) => continue,
            };
            let is_tensor = argument.value().is_some();
            storages.push(is_tensor.then(|| Arc::downgrade(&tensor.storage)));
            tensors.push(tensor);
        }
        Ok(Inside {
            parts: Parts::new(tensors, words.to_vec()),
            storages,
            numbers,
        })
    }
}

/// The arguments of a call within a function that is being recorded: its own.
///
/// # Errors
/// Those of recording a scalar.
pub(super) fn inline(flat: Flat, device: Device) -> Result<Parts> {
    let tensor = |leaf| match leaf {
        Leaf::Tensor(tensor) => Ok(tensor),
        Leaf::Number(number, dtype) => Tensor::scalar(number, (dtype, device)),
    };
    let tensors = flat.leaves.into_iter().map(tensor).collect::<Result<_>>()?;
    Ok(Parts::new(tensors, flat.words))
}
