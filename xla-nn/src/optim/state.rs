//! What an optimizer saves, and a run that continues from it.

use super::stepping::{Memory, Slot};
use super::{Algorithm, Optim};
use crate::StateDict;
use std::panic::Location;
use xla_core::{Error, Literal, Result};
use xla_lazy::{Tensor, no_grad, spmd};

const LOAD: &str = "load_state_dict";

impl<A: Algorithm> Optim<A> {
    /// See [`Optimizer::state_dict`](super::Optimizer::state_dict).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        for (index, slot) in self.slots().enumerate() {
            let memory = &slot.memory;
            if memory.steps == 0 && memory.is_empty() {
                continue;
            }
            for name in A::NUMBERS {
                let number = match *name {
                    // As PyTorch keeps it.
                    "step" => Literal::scalar(memory.steps as f32),
                    _ => match memory.numbers.iter().find(|(n, _)| n == name) {
                        Some((_, value)) => Literal::scalar(*value),
                        None => continue,
                    },
                };
                let number = Tensor::from_literal(number, slot.param.device())?;
                state.insert(key(index, name), number);
            }
            for (name, tensor) in &memory.tensors {
                state.insert(key(index, name), tensor.detach()?);
            }
        }
        for (index, group) in self.groups.iter().enumerate() {
            let words = state.metadata_mut();
            let params = group.slots.len().to_string();
            words.insert(format!("param_groups.{index}.params"), params);
            for option in group.options.clone().hyperparameters() {
                let name = format!("param_groups.{index}.{option}");
                words.insert(name, option.get().to_string());
            }
        }
        Ok(state)
    }

    /// For all that may be remembered of a parameter, the parameter, under the name that
    /// [`state_dict`](Self::state_dict) gives it.
    pub(crate) fn remembered(&self) -> StateDict {
        let slots = self.slots().enumerate();
        slots
            .flat_map(|(index, slot)| {
                let names = A::STATE.iter();
                names.map(move |name| (key(index, name), slot.param.clone()))
            })
            .collect()
    }

    /// See [`Optimizer::load_state_dict`](super::Optimizer::load_state_dict).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let here = Location::caller();
        let load = || -> Result<_> {
            let options = self.saved_options(state)?;
            let memories = self
                .slots()
                .enumerate()
                .map(|(index, slot)| saved_memory::<A>(index, slot, state))
                .collect::<Result<Vec<_>>>()?;
            Ok((options, memories))
        };
        let (options, memories) = no_grad(load).map_err(|e| e.at(here))?;
        for (group, options) in self.groups.iter_mut().zip(options) {
            group.options = options;
        }
        let slots = self.groups.iter_mut().flat_map(|group| &mut group.slots);
        for (slot, memory) in slots.zip(memories) {
            slot.memory = memory;
        }
        Ok(())
    }

    fn saved_options(&self, state: &StateDict) -> Result<Vec<A>> {
        let words = state.metadata();
        let count = self.groups.len();
        if words.contains_key(&format!("param_groups.{count}.params")) {
            let expected = format!("{count} groups");
            return Err(Error::argument(LOAD, "param_groups", expected, "more"));
        }
        let mut all = Vec::with_capacity(count);
        for (index, group) in self.groups.iter().enumerate() {
            let number = |name: &str| -> Result<f64> {
                let name = format!("param_groups.{index}.{name}");
                let word = words.get(&name);
                word.and_then(|word| word.parse().ok()).ok_or_else(|| {
                    let expected = format!("a number under {name}");
                    Error::argument(LOAD, "param_groups", expected, format!("{word:?}"))
                })
            };
            let (expected, got) = (group.slots.len() as f64, number("params")?);
            if expected != got {
                let expected = format!("{expected} parameters in group {index}");
                return Err(Error::argument(LOAD, "params", expected, got));
            }
            let mut options = group.options.clone();
            for mut option in options.hyperparameters() {
                let value = number(&option.to_string())?;
                option.set(LOAD, value)?;
            }
            options.check()?;
            all.push(options);
        }
        Ok(all)
    }
}

fn key(index: usize, name: &str) -> String {
    format!("state.{index}.{name}")
}

/// What a state says of one parameter, in its dtype and on its device.
fn saved_memory<A: Algorithm>(index: usize, slot: &Slot, state: &StateDict) -> Result<Memory> {
    let param = &slot.param;
    let mut memory = Memory::default();
    for name in A::NUMBERS {
        let Some(tensor) = state.get(&key(index, name)) else {
            continue;
        };
        match *name {
            "step" => memory.steps = tensor.item::<f64>()? as u64,
            _ => memory.numbers.push((name, tensor.item()?)),
        }
    }
    for name in A::STATE {
        let Some(tensor) = state.get(&key(index, name)) else {
            continue;
        };
        if tensor.shape() != param.shape() {
            let expected = format!("shape {} under {}", param.shape(), key(index, name));
            return Err(Error::argument(LOAD, "state", expected, tensor.shape()));
        }
        // A tensor of its own: the optimizer changes it in place.
        let tensor = tensor.to((param.dtype(), param.device()))?.copy()?;
        if let Some(sharding) = spmd::marked(param) {
            spmd::mark_sharding(&tensor, &sharding.mesh(), sharding.spec())?;
        }
        memory.tensors.push((name, tensor));
    }
    Ok(memory)
}
