//! What all optimizers have in common: groups of parameters, what is remembered of each parameter,
//! and the step that walks over them.

use super::options::{Hyperparameter, Setting};
use super::replay::Plan;
use super::step::{NumberKind, Shared, Step};
use super::{Moment, Optimizer};
use crate::StateDict;
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{HostNumber, OwnerId, Tensor, no_grad};

/// A rule by which a gradient changes a parameter, with its options: the part that distinguishes one
/// optimizer from another.
///
/// ```no_run
/// use xla_core::Result;
/// use xla_nn::optim::{Algorithm, Hyperparameter, Limit, Moment, Optim, Setting, Step};
///
/// /// Follows the gradient's sign.
/// #[derive(Debug, Clone, Default)]
/// struct SignOptions {
///     lr: f64,
/// }
///
/// impl Algorithm for SignOptions {
///     const NAME: &'static str = "Sign::step";
///     const STATE: &'static [&'static str] = &[];
///     const NUMBERS: &'static [&'static str] = &[];
///     fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
///         let setting = Setting::Number(&mut self.lr, Limit::NotNegative);
///         vec![Hyperparameter { name: "lr", index: None, setting }]
///     }
///     fn numbers(&self, at: &mut Moment<'_>) {
///         at.number("rate", -self.lr);
///     }
///     fn update(&self, step: &mut Step<'_>) -> Result<()> {
///         let sign = step.grad().sign()?;
///         step.add(&sign, "rate")
///     }
/// }
///
/// type Sign = Optim<SignOptions>;
/// # let _ = Sign::new(vec![], 0.1);
/// ```
pub trait Algorithm: Clone + fmt::Debug + Send {
    /// The function that errors name.
    const NAME: &'static str;

    /// The tensors of the parameter's shape that are remembered of a parameter, by PyTorch's names.
    const STATE: &'static [&'static str];

    /// The numbers that are remembered of a parameter; `step` is how many steps it has taken.
    const NUMBERS: &'static [&'static str];

    /// All options. One is called `lr`.
    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>>;

    /// Whether the options go together; each by itself has been checked.
    ///
    /// # Errors
    /// [`Error::Argument`].
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Sets the numbers of the formula for one step of one parameter: all that depends on rates and
    /// counts. Also called without [`Algorithm::update`], where a compiled function has recorded that.
    fn numbers(&self, at: &mut Moment<'_>);

    /// Changes one parameter that has a gradient. Which operators it records depends on the options
    /// that are flags, on which numbers but `lr` are 0, and on [`Step::case`], but on no other number.
    ///
    /// # Errors
    /// What the operators return.
    fn update(&self, step: &mut Step<'_>) -> Result<()>;
}

/// Parameters that share their options.
#[derive(Debug, Clone)]
pub struct ParamGroup<A> {
    /// The parameters.
    pub params: Vec<Tensor>,
    /// The algorithm's options.
    pub options: A,
}

impl<A> ParamGroup<A> {
    /// A group.
    pub fn new(params: Vec<Tensor>, options: A) -> Self {
        ParamGroup { params, options }
    }
}

/// An optimizer: groups of parameters, and an algorithm that steps along their gradients.
#[derive(Debug)]
pub struct Optim<A> {
    pub(super) groups: Vec<Group<A>>,
    /// Names it in compiled functions.
    pub(super) id: OwnerId,
}

#[derive(Debug)]
pub(super) struct Group<A> {
    pub(super) options: A,
    pub(super) slots: Vec<Slot>,
}

/// A parameter and what is remembered of it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) param: Tensor,
    pub(super) memory: Memory,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Steps taken.
    pub(super) steps: u64,
    pub(super) tensors: Vec<(&'static str, Tensor)>,
    pub(super) numbers: Vec<(&'static str, f64)>,
}

impl<A: Algorithm> Optim<A> {
    /// An optimizer of these parameters with learning rate `lr`, and PyTorch's defaults otherwise.
    pub fn new(params: Vec<Tensor>, lr: f64) -> Self
    where
        A: Default,
    {
        let mut optimizer = Optim::with_options(params, A::default());
        optimizer.set_lr(lr);
        optimizer
    }

    /// An optimizer of these parameters with these options.
    pub fn with_options(params: Vec<Tensor>, options: A) -> Self {
        let slots = params.into_iter().map(Slot::new).collect();
        Optim {
            groups: vec![Group { options, slots }],
            id: OwnerId::new(),
        }
    }

    /// An optimizer of several groups of parameters, each with its own options.
    ///
    /// # Errors
    /// As [`Optim::add_param_group`].
    #[track_caller]
    pub fn with_groups(groups: impl IntoIterator<Item = ParamGroup<A>>) -> Result<Self> {
        let here = Location::caller();
        let mut optimizer = Optim {
            groups: Vec::new(),
            id: OwnerId::new(),
        };
        for group in groups {
            optimizer.add(group).map_err(|e| e.at(here))?;
        }
        Ok(optimizer)
    }

    /// Adds a group of parameters: layers that are trained from now on, say.
    ///
    /// # Errors
    /// [`Error::Argument`] for options without meaning, and for a parameter that is in a group
    /// already.
    #[track_caller]
    pub fn add_param_group(&mut self, group: ParamGroup<A>) -> Result<()> {
        let here = Location::caller();
        self.add(group).map_err(|e| e.at(here))
    }

    fn add(&mut self, group: ParamGroup<A>) -> Result<()> {
        let ParamGroup { params, options } = group;
        let group = Group {
            options,
            slots: params.into_iter().map(Slot::new).collect(),
        };
        group.check()?;
        let mut seen: HashSet<usize> = self.slots().map(|s| s.param.storage_id()).collect();
        for (i, slot) in group.slots.iter().enumerate() {
            if !seen.insert(slot.param.storage_id()) {
                return Err(Error::argument(
                    A::NAME,
                    "params",
                    "each parameter once, in one group",
                    format!("parameter {i} of group {} again", self.groups.len()),
                ));
            }
        }
        self.groups.push(group);
        Ok(())
    }

    /// With the options of all groups changed.
    pub(super) fn configured(mut self, configure: impl Fn(&mut A)) -> Self {
        for group in &mut self.groups {
            configure(&mut group.options);
        }
        self
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.groups.iter().flat_map(|group| &group.slots)
    }

    /// See [`Optimizer::step`].
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        let here = Location::caller();
        let mut step = || -> Result<()> {
            for group in &self.groups {
                group.check()?;
            }
            let steps = self.groups.iter_mut().map(Group::step);
            let plan = Plan(steps.collect::<Result<_>>()?);
            plan.leave(self.id, A::NAME);
            Ok(())
        };
        no_grad(&mut step).map_err(|e| e.at(here))
    }

    /// See [`Optimizer::zero_grad`].
    pub fn zero_grad(&mut self) {
        for slot in self.slots() {
            slot.param.set_grad(None);
        }
    }

    /// See [`Optimizer::groups`].
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// See [`Optimizer::lr`].
    pub fn lr(&self) -> f64 {
        self.hyperparameter(0, "lr").unwrap_or(0.0)
    }

    /// See [`Optimizer::set_lr`].
    pub fn set_lr(&mut self, lr: f64) {
        for group in &mut self.groups {
            for option in group.options.hyperparameters() {
                // Checked by the step, as what the methods set that configure an optimizer.
                if let ("lr", Setting::Number(place, _)) = (option.name, option.setting) {
                    *place = lr;
                }
            }
        }
    }

    /// See [`Optimizer::hyperparameter`].
    pub fn hyperparameter(&self, group: usize, name: &str) -> Option<f64> {
        let mut options = self.groups.get(group)?.options.clone();
        let all = options.hyperparameters();
        all.iter().find(|o| o.is(name)).map(Hyperparameter::get)
    }

    /// See [`Optimizer::set_hyperparameter`].
    ///
    /// # Errors
    /// As [`Optimizer::set_hyperparameter`].
    #[track_caller]
    pub fn set_hyperparameter(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        let (here, groups) = (Location::caller(), self.groups.len());
        let Some(group) = self.groups.get_mut(group) else {
            let expected = format!("a group below {groups}");
            return Err(Error::argument(A::NAME, "group", expected, group).at(here));
        };
        let mut all = group.options.hyperparameters();
        match all.iter_mut().find(|o| o.is(name)) {
            Some(option) => option.set(A::NAME, value).map_err(|e| e.at(here)),
            None => {
                let names: Vec<String> = all.iter().map(Hyperparameter::to_string).collect();
                let expected = format!("one of {}", names.join(", "));
                Err(Error::argument(A::NAME, "name", expected, name).at(here))
            }
        }
    }
}

impl<A: Algorithm> Optimizer for Optim<A> {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        Optim::step(self)
    }

    fn zero_grad(&mut self) {
        Optim::zero_grad(self);
    }

    fn groups(&self) -> usize {
        Optim::groups(self)
    }

    fn numbers(&self) -> &'static [&'static str] {
        A::NUMBERS
    }

    fn lr(&self) -> f64 {
        Optim::lr(self)
    }

    fn set_lr(&mut self, lr: f64) {
        Optim::set_lr(self, lr);
    }

    fn hyperparameter(&self, group: usize, name: &str) -> Option<f64> {
        Optim::hyperparameter(self, group, name)
    }

    #[track_caller]
    fn set_hyperparameter(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        Optim::set_hyperparameter(self, group, name, value)
    }

    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        Optim::state_dict(self)
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        Optim::load_state_dict(self, state)
    }
}

impl<A: Algorithm> Group<A> {
    pub(super) fn check(&self) -> Result<()> {
        let mut options = self.options.clone();
        for option in options.hyperparameters() {
            option.check(A::NAME)?;
        }
        self.options.check()
    }

    /// Returns what a compiled function has to do in its place.
    fn step(&mut self) -> Result<GroupPlan> {
        let mut shared: Vec<Shared> = Vec::new();
        let mut slots = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(grad) = slot.param.grad() else {
                continue;
            };
            let first = slot.memory.is_empty();
            slot.memory.steps += 1;
            let kind = NumberKind::of(&slot.param, first, slot.memory.steps);
            let known = shared.iter().position(|s| s.kind == kind);
            let at = known.unwrap_or(shared.len());
            if known.is_none() || remembers::<A>() {
                let mut moment = Moment::of(&mut slot.memory, first);
                self.options.numbers(&mut moment);
                if known.is_none() {
                    shared.push(Shared {
                        kind,
                        numbers: moment.numbers,
                        case: moment.case,
                        tensors: Vec::new(),
                    });
                }
            }
            slots.push((index, at));
            self.options.update(&mut Step {
                op: A::NAME,
                param: &slot.param,
                grad,
                memory: &mut slot.memory,
                shared: &mut shared[at],
            })?;
        }
        let numbers = shared.into_iter().map(Shared::host).collect();
        Ok(GroupPlan { slots, numbers })
    }
}

/// Whether numbers are remembered of each parameter that change from step to step, besides the count.
pub(super) fn remembers<A: Algorithm>() -> bool {
    A::NUMBERS.iter().any(|name| *name != "step")
}

/// What a step of a group has done, to be done again without the operators.
pub(super) struct GroupPlan {
    /// The parameters that had a gradient, each with whose numbers it takes.
    pub(super) slots: Vec<(usize, usize)>,
    pub(super) numbers: Vec<Vec<(&'static str, HostNumber)>>,
}

impl Slot {
    fn new(param: Tensor) -> Self {
        Slot {
            param,
            memory: Memory::default(),
        }
    }
}

impl Memory {
    /// The numbers alone, at this count.
    pub(super) fn numbers_only(&self, steps: u64) -> Memory {
        Memory {
            steps,
            tensors: Vec::new(),
            numbers: self.numbers.clone(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.numbers.is_empty()
    }
}
