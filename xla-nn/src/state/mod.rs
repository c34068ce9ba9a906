//! Named tensors, in memory and in files; checkpoints of whole runs.
//!
//! | for | there is |
//! | --- | --- |
//! | the tensors of a module or an optimizer, by name | [`StateDict`] |
//! | one file, which Python's `safetensors` reads | [`StateDict::save`], [`StateDict::load`] |
//! | a state that is spread over devices or ranks | [`Checkpoint`], a folder |
//! | a run that is saved as it goes on, and continued | [`CheckpointManager`] |

mod checkpoint;
mod file;
mod manager;
mod stateful;

pub use checkpoint::{Checkpoint, SavedTensor};
pub use manager::CheckpointManager;
pub use stateful::Stateful;

use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::fmt;
use xla_lazy::Tensor;

/// Tensors by name, in order, with a few words besides: what a module or an optimizer saves.
///
/// ```no_run
/// # fn demo(model: &impl xla_nn::Module) -> xla_core::Result<()> {
/// use xla_nn::{Module, StateDict};
/// model.state_dict()?.save("model.safetensors")?;
/// model.load_state_dict(&StateDict::load("model.safetensors", ())?, true)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct StateDict {
    tensors: IndexMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
}

impl StateDict {
    /// Nothing yet.
    pub fn new() -> Self {
        StateDict::default()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Adds a tensor at the end, or puts it in the place of the one that has the name, which is
    /// returned.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Option<Tensor> {
        self.tensors.insert(name.into(), tensor)
    }

    /// Takes a tensor out; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.tensors.shift_remove(name)
    }

    /// Whether there is a tensor of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The names, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Names and tensors, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The words that are saved beside the tensors.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The words that are saved beside the tensors, to be changed: a step count, a learning rate, a
    /// version.
    pub fn metadata_mut(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.metadata
    }
}

impl<N: Into<String>> FromIterator<(N, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(named: I) -> Self {
        StateDict {
            tensors: named.into_iter().map(|(n, t)| (n.into(), t)).collect(),
            metadata: BTreeMap::new(),
        }
    }
}

impl<N: Into<String>> Extend<(N, Tensor)> for StateDict {
    fn extend<I: IntoIterator<Item = (N, Tensor)>>(&mut self, named: I) {
        self.tensors
            .extend(named.into_iter().map(|(n, t)| (n.into(), t)));
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = indexmap::map::IntoIter<String, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.tensors).finish()
    }
}
