//! Optimizers: what turns gradients into steps.
//!
//! An optimizer is [`Optim`] with an [`Algorithm`]: [`Sgd`], [`Adam`], [`AdamW`] and the others are
//! names for such pairs. `Optim` keeps what all have in common (parameters in groups, what is
//! remembered of each, gradients, checks); an algorithm is its options and a formula. Names,
//! defaults and formulas are PyTorch's.
//!
//! | optimizer | of |
//! | --- | --- |
//! | [`Sgd`] | descent, with momentum or Nesterov's |
//! | [`Adam`], [`AdamW`] | means of gradients and of their squares; AdamW shrinks weights apart from that |
//! | [`NAdam`], [`RAdam`] | Adam with Nesterov's momentum; with a rectified variance |
//! | [`RMSprop`], [`Adagrad`], [`Adadelta`] | squares of gradients only |
//! | [`Lion`] | signs of means of gradients |
//!
//! [`ZeroRedundancyOptimizer`] divides the state of any of them among the ranks.
//!
//! [`lr_scheduler`] has the schedules of the learning rate, [`utils`](crate::utils) what clips
//! gradients. A step of training:
//!
//! ```no_run
//! # fn demo(model: impl xla_nn::Forward, x: xla_lazy::Tensor, y: xla_lazy::Tensor) -> xla_core::Result<()> {
//! use xla_nn::optim::Sgd;
//! let mut optimizer = Sgd::new(model.parameters(), 0.1).momentum(0.9).weight_decay(1e-4);
//! for _step in 0..10 {
//!     let loss = xla_nn::cross_entropy(&model.forward(&x)?, &y)?;
//!     loss.backward()?;
//!     optimizer.step()?;
//!     optimizer.zero_grad();
//!     xla_lazy::sync()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Options that differ between parameters are those of groups:
//!
//! ```no_run
//! # fn demo(model: impl xla_nn::Module, head: impl xla_nn::Module) -> xla_core::Result<()> {
//! use xla_nn::optim::{AdamW, AdamWOptions, ParamGroup};
//! let mut optimizer = AdamW::with_groups([
//!     ParamGroup::new(model.parameters(), AdamWOptions { lr: 3e-4, ..Default::default() }),
//!     ParamGroup::new(head.parameters(), AdamWOptions { weight_decay: 0.0, ..Default::default() }),
//! ])?;
//! # Ok(())
//! # }
//! ```
//!
//! All rates are data of the recorded program, as is the number of steps taken: a schedule of any
//! of them recompiles nothing. What is remembered of a parameter is a device buffer before the first
//! step, so that the first program is the one of all steps. Part of the program are flags, and
//! whether momentum and weight decay are used at all.

mod adadelta;
mod adagrad;
mod adam;
mod lion;
pub mod lr_scheduler;
mod moment;
mod nadam;
mod options;
mod radam;
mod replay;
mod rmsprop;
mod sgd;
mod state;
mod step;
mod stepping;
mod zero;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adagrad::{Adagrad, AdagradOptions};
pub use adam::{Adam, AdamOptions, AdamW, AdamWOptions};
pub use lion::{Lion, LionOptions};
pub use moment::Moment;
pub use nadam::{NAdam, NAdamOptions};
pub use options::{Hyperparameter, Limit, Setting};
pub use radam::{RAdam, RAdamOptions};
pub use rmsprop::{RMSprop, RMSpropOptions};
pub use sgd::{Sgd, SgdOptions};
pub use step::Step;
pub use stepping::{Algorithm, Optim, ParamGroup};
pub use zero::ZeroRedundancyOptimizer;

use crate::StateDict;
use xla_core::Result;
use xla_lazy::State;

/// What every optimizer does, for code that does not care which one it is given. It is the [`State`]
/// of compiled functions, which step it at each call. Each also has these
/// methods itself, so that a program with one optimizer need not import the trait.
pub trait Optimizer: State {
    /// Changes the parameters by one step along their gradients. Parameters without a gradient stay
    /// as they are.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] for options without meaning or that exclude each other; what
    /// the operators return.
    fn step(&mut self) -> Result<()>;

    /// Forgets the gradients, so that the next backward pass starts from none.
    fn zero_grad(&mut self);

    /// How many groups of parameters there are.
    fn groups(&self) -> usize;

    /// The names under which [`state_dict`](Optimizer::state_dict) has numbers of a parameter; what it
    /// has under other names are tensors of the parameter's shape.
    fn numbers(&self) -> &'static [&'static str];

    /// The learning rate of the first group; 0 when there is none.
    fn lr(&self) -> f64;

    /// Sets the learning rate of all groups for the steps that follow. It is data, never part of a
    /// program: a schedule does not recompile.
    fn set_lr(&mut self, lr: f64);

    /// A group's option by PyTorch's name, such as `lr`, `momentum` or `betas.0`; flags are 0 or 1.
    fn hyperparameter(&self, group: usize, name: &str) -> Option<f64>;

    /// Sets a group's option for the steps that follow.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] when there is no such group or option, or the value has no
    /// meaning for it.
    fn set_hyperparameter(&mut self, group: usize, name: &str, value: f64) -> Result<()>;

    /// What is remembered of the parameters, numbered over all groups (`state.0.exp_avg`), and, as
    /// words, the options of the groups (`param_groups.0.lr`): PyTorch's layout with its levels
    /// joined by dots. The tensors are no copies.
    ///
    /// # Errors
    /// What detaching the tensors returns.
    fn state_dict(&self) -> Result<StateDict>;

    /// Takes over what [`Optimizer::state_dict`] returned, of an optimizer of the same kind with the
    /// same groups: a run continues as if it had never stopped.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] for another number of groups or parameters, an option that is
    /// missing or has no meaning, and a tensor of another shape; nothing has been changed then. What
    /// moving the values returns.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;
}

/// For a program that chooses its optimizer when it runs.
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        (**self).step()
    }

    fn zero_grad(&mut self) {
        (**self).zero_grad();
    }

    fn groups(&self) -> usize {
        (**self).groups()
    }

    fn numbers(&self) -> &'static [&'static str] {
        (**self).numbers()
    }

    fn lr(&self) -> f64 {
        (**self).lr()
    }

    fn set_lr(&mut self, lr: f64) {
        (**self).set_lr(lr);
    }

    fn hyperparameter(&self, group: usize, name: &str) -> Option<f64> {
        (**self).hyperparameter(group, name)
    }

    #[track_caller]
    fn set_hyperparameter(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        (**self).set_hyperparameter(group, name, value)
    }

    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        (**self).state_dict()
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        (**self).load_state_dict(state)
    }
}
