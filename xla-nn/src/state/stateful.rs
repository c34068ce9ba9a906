//! What a checkpoint is made of.

use super::StateDict;
use crate::Module;
use crate::optim::lr_scheduler::{Schedule, Scheduler};
use crate::optim::{Algorithm, Optim, Optimizer, ZeroRedundancyOptimizer};
use xla_core::{Error, Result, Site};
use xla_lazy::{Generator, Tensor};

/// Something with a state to be saved and taken over: a module, an optimizer, a generator, a learning
/// rate's scheduler, a [`StateDict`], or a type of your own.
///
/// ```
/// use xla_core::{Error, Result};
/// use xla_nn::StateDict;
/// use xla_nn::state::Stateful;
///
/// /// Where the reading of the data stands.
/// struct Position {
///     epoch: u64,
/// }
///
/// impl Stateful for Position {
///     fn save_state(&self) -> Result<StateDict> {
///         let mut state = StateDict::new();
///         state.metadata_mut().insert("epoch".into(), self.epoch.to_string());
///         Ok(state)
///     }
///
///     fn load_state(&mut self, state: &StateDict) -> Result<()> {
///         let word = state.metadata().get("epoch");
///         self.epoch = word.and_then(|word| word.parse().ok()).unwrap_or(0);
///         Ok(())
///     }
/// }
/// ```
pub trait Stateful {
    /// The state. Tensors need be no copies.
    ///
    /// # Errors
    /// Whatever keeps it from being told.
    fn save_state(&self) -> Result<StateDict>;

    /// Takes over what [`save_state`](Self::save_state) returned.
    ///
    /// # Errors
    /// A state that does not fit.
    fn load_state(&mut self, state: &StateDict) -> Result<()>;

    /// Tensors like those that [`load_state`](Self::load_state) is to be given: each is loaded where the
    /// one of its name is, spread over its mesh as that one is, and must have its shape and dtype. A
    /// name that is not there is loaded to the current device. The state itself unless said otherwise.
    ///
    /// # Errors
    /// As [`save_state`](Self::save_state).
    fn template(&self) -> Result<StateDict> {
        self.save_state()
    }
}

/// By [`Module::state_dict`]; strict.
impl<M: Module> Stateful for M {
    fn save_state(&self) -> Result<StateDict> {
        self.state_dict()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load_state_dict(state, true).map(drop)
    }
}

/// By [`Optimizer::state_dict`].
impl<A: Algorithm> Stateful for Optim<A> {
    fn save_state(&self) -> Result<StateDict> {
        self.state_dict()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load_state_dict(state)
    }

    /// What is remembered of a parameter is like the parameter, also before the first step.
    fn template(&self) -> Result<StateDict> {
        Ok(self.remembered())
    }
}

/// By [`Optimizer::state_dict`], which all ranks call.
impl<O: Optimizer> Stateful for ZeroRedundancyOptimizer<O> {
    fn save_state(&self) -> Result<StateDict> {
        self.state_dict()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load_state_dict(state)
    }

    fn template(&self) -> Result<StateDict> {
        Ok(StateDict::new())
    }
}

/// By [`Optimizer::state_dict`].
impl Stateful for Box<dyn Optimizer> {
    fn save_state(&self) -> Result<StateDict> {
        self.state_dict()
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load_state_dict(state)
    }
}

/// The steps taken. The rates that they have led to are the optimizer's, and are saved with it.
impl<S: Schedule> Stateful for Scheduler<S> {
    fn save_state(&self) -> Result<StateDict> {
        Ok(self.state_dict())
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load_count(state)
    }
}

/// Key and counter, under the name `state`. One that differs between ranks needs another name on each.
impl Stateful for Generator {
    fn save_state(&self) -> Result<StateDict> {
        Ok(StateDict::from_iter([("state", self.get_state()?)]))
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        match state.get("state") {
            Some(saved) => self.set_state(&saved.to(self.device())?),
            None => Err(incompatible(vec!["state".into()], Vec::new())),
        }
    }
}

/// Must have the same names when it is loaded; each tensor is replaced by the one that was saved.
impl Stateful for StateDict {
    fn save_state(&self) -> Result<StateDict> {
        Ok(self.clone())
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let names = |of: &StateDict, without: &StateDict| -> Vec<String> {
            let names = of.keys().filter(|name| !without.contains_key(name));
            names.map(str::to_owned).collect()
        };
        let (missing, unexpected) = (names(self, state), names(state, self));
        if !(missing.is_empty() && unexpected.is_empty()) {
            return Err(incompatible(missing, unexpected));
        }
        let own: Vec<String> = self.keys().map(str::to_owned).collect();
        for name in own {
            let saved: Option<Tensor> = state.get(&name).cloned();
            if let Some(saved) = saved {
                self.insert(name, saved);
            }
        }
        self.metadata.clone_from(&state.metadata);
        Ok(())
    }
}

fn incompatible(missing: Vec<String>, unexpected: Vec<String>) -> Error {
    Error::StateDict {
        op: "load_state",
        missing,
        unexpected,
        mismatched: Vec::new(),
        mistyped: Vec::new(),
        at: Site::NONE,
    }
}
