//! A module's state: out, in, and to other places.

use super::Module;
use super::visitor::{Item, walk};
use crate::StateDict;
use std::panic::Location;

use xla_core::{Error, Result, ShapeConflict};
use xla_lazy::{Tensor, TensorOptions, no_grad};

/// Which keys did not meet when a state was loaded without being strict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncompatibleKeys {
    /// What the module has and the state has not.
    pub missing: Vec<String>,
    /// What the state has and the module has not.
    pub unexpected: Vec<String>,
}

/// The saved tensors with their paths. A module's buffers come after its parameters, wherever its
/// fields are.
fn saved<M: Module + ?Sized>(module: &M) -> Vec<(String, &Tensor)> {
    let mut found = Vec::new();
    let mut buffers = Vec::new();
    walk(module, &mut |path, item| match item {
        Item::Parameter(tensor) => found.push((path.to_owned(), tensor)),
        Item::Buffer { tensor, persistent } => {
            if persistent {
                buffers.push((path.to_owned(), tensor));
            }
        }
        Item::Module(_) => found.append(&mut buffers),
        Item::Training(_) => {}
    });
    found.append(&mut buffers);
    found
}

pub(super) fn state_of<M: Module + ?Sized>(
    module: &M,
    here: &'static Location<'static>,
) -> Result<StateDict> {
    saved(module)
        .into_iter()
        .map(|(path, tensor)| {
            let value = tensor.detach().map_err(|error| error.relocated(here))?;
            Ok((path, value))
        })
        .collect()
}

pub(super) fn load<M: Module + ?Sized>(
    module: &M,
    state: &StateDict,
    strict: bool,
    here: &'static Location<'static>,
) -> Result<IncompatibleKeys> {
    let targets = saved(module);
    let mut keys = IncompatibleKeys::default();
    let mut mismatched = Vec::new();
    let mut pairs = Vec::new();
    for (path, target) in &targets {
        match state.get(path) {
            None => keys.missing.push(path.clone()),
            Some(value) if value.shape() != target.shape() => mismatched.push(ShapeConflict {
                key: path.clone(),
                expected: target.dims().to_vec(),
                got: value.dims().to_vec(),
            }),
            Some(value) => pairs.push((*target, value)),
        }
    }
    let known: std::collections::HashSet<&str> =
        targets.iter().map(|(path, _)| path.as_str()).collect();
    let unknown = |key: &&str| !known.contains(key);
    keys.unexpected = state.keys().filter(unknown).map(str::to_owned).collect();
    let incompatible = !(keys.missing.is_empty() && keys.unexpected.is_empty());
    if !mismatched.is_empty() || strict && incompatible {
        return Err(Error::StateDict {
            op: "load_state_dict",
            missing: if strict { keys.missing } else { Vec::new() },
            unexpected: if strict { keys.unexpected } else { Vec::new() },
            mismatched,
            mistyped: Vec::new(),
            at: here.into(),
        });
    }
    let assign = || {
        // All are converted and moved before the first is assigned: that can fail.
        let values: Vec<(&Tensor, Tensor)> = pairs
            .into_iter()
            .map(|(target, value)| Ok((target, value.to((target.dtype(), target.device()))?)))
            .collect::<Result<_>>()?;
        for (target, value) in values {
            target.set_data(&value)?;
        }
        Ok(())
    };
    no_grad(assign).map_err(|error: Error| error.relocated(here))?;
    Ok(keys)
}

pub(super) fn move_to<M: Module>(
    module: &M,
    options: TensorOptions,
    here: &'static Location<'static>,
) -> Result<()> {
    if let Some(dtype) = options.dtype().filter(|dtype| !dtype.is_float()) {
        return Err(Error::dtype("to", "a float dtype", dtype).at(here));
    }
    let mut tensors = module.parameters();
    tensors.extend(module.buffers());
    let moved = |tensor: &Tensor| -> Result<Tensor> {
        let float = tensor.dtype().is_float();
        let dtype = options.dtype().filter(|_| float).unwrap_or(tensor.dtype());
        let device = options.device().unwrap_or(tensor.device());
        no_grad(|| tensor.detach()?.to((dtype, device)))
    };
    let replace = || {
        // All are recorded before the first is computed, so that one program converts them.
        let values: Vec<Tensor> = tensors.iter().map(moved).collect::<Result<_>>()?;
        for (tensor, value) in tensors.iter().zip(&values) {
            tensor.replace_data(value)?;
        }
        Ok(())
    };
    replace().map_err(|error: Error| error.relocated(here))
}
