//! What all optimizers have in common: groups of parameters, what is remembered of each parameter,
//! and the step that walks over them.

use super::Optimizer;
use super::options::{Hyperparameter, Setting};
use crate::StateDict;
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;
use xla_core::{DType, Device, Error, Literal, Result};
use xla_lazy::{Tensor, no_grad};

/// A rule by which a gradient changes a parameter, with its options: the part that distinguishes one
/// optimizer from another.
///
/// ```no_run
/// use xla_core::Result;
/// use xla_nn::optim::{Algorithm, Hyperparameter, Limit, Optim, Setting, Step};
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
///     fn update(&self, step: &mut Step<'_>) -> Result<()> {
///         let sign = step.grad().sign()?;
///         step.add(&sign, -self.lr)
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

    /// Changes one parameter that has a gradient.
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
        }
    }

    /// An optimizer of several groups of parameters, each with its own options.
    ///
    /// # Errors
    /// As [`Optim::add_param_group`].
    #[track_caller]
    pub fn with_groups(groups: impl IntoIterator<Item = ParamGroup<A>>) -> Result<Self> {
        let here = Location::caller();
        let mut optimizer = Optim { groups: Vec::new() };
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
        let mut step = || {
            for group in &self.groups {
                group.check()?;
            }
            self.groups.iter_mut().try_for_each(Group::step)
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
    fn check(&self) -> Result<()> {
        let mut options = self.options.clone();
        for option in options.hyperparameters() {
            option.check(A::NAME)?;
        }
        self.options.check()
    }

    fn step(&mut self) -> Result<()> {
        let mut numbers = Vec::new();
        for slot in &mut self.slots {
            let Some(grad) = slot.param.grad() else {
                continue;
            };
            let first = slot.memory.is_empty();
            slot.memory.steps += 1;
            self.options.update(&mut Step {
                kind: NumberKind::of(&slot.param, first, slot.memory.steps),
                param: &slot.param,
                grad,
                first,
                memory: &mut slot.memory,
                shared: &mut numbers,
                used: 0,
            })?;
        }
        Ok(())
    }
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
    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.numbers.is_empty()
    }
}

/// What must be equal for a formula's numbers to be those of another parameter of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NumberKind {
    steps: u64,
    first: bool,
    dtype: DType,
    device: Device,
}

impl NumberKind {
    fn of(param: &Tensor, first: bool, steps: u64) -> Self {
        NumberKind {
            steps,
            first,
            // Half-precision tensors meet numbers in `f32`.
            dtype: match param.dtype() {
                DType::F64 => DType::F64,
                _ => DType::F32,
            },
            device: param.device(),
        }
    }
}

/// The numbers of a formula, in the order asked for.
struct SharedNumbers {
    kind: NumberKind,
    tensors: Vec<Tensor>,
}

/// One step of one parameter, as an algorithm sees it.
pub struct Step<'a> {
    param: &'a Tensor,
    grad: Tensor,
    first: bool,
    memory: &'a mut Memory,
    kind: NumberKind,
    shared: &'a mut Vec<SharedNumbers>,
    used: usize,
}

impl Step<'_> {
    /// The parameter.
    pub fn param(&self) -> &Tensor {
        self.param
    }

    /// Its gradient.
    pub fn grad(&self) -> &Tensor {
        &self.grad
    }

    /// The gradient to descend along: negated to maximise, and with that of the penalty
    /// `weight_decay / 2 · |p|²`.
    ///
    /// # Errors
    /// What the operators return.
    pub fn descent(&mut self, maximize: bool, weight_decay: f64) -> Result<Tensor> {
        let mut grad = self.grad.clone();
        if maximize {
            grad = grad.neg()?;
        }
        if weight_decay != 0.0 {
            let rate = self.number(weight_decay)?;
            grad = grad.add(&self.param.mul(&rate)?)?;
        }
        Ok(grad)
    }

    /// Which step of this parameter this is, from 1.
    pub fn count(&self) -> f64 {
        self.memory.steps as f64
    }

    /// Whether nothing is remembered of this parameter yet.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// A number of the formula, as a scalar tensor. It is data of the program. Parameters of a group
    /// share it, so an update must ask for the same numbers in the same order whenever it is at the
    /// same step.
    ///
    /// # Errors
    /// What [`Tensor::scalar`] returns.
    pub fn number(&mut self, value: f64) -> Result<Tensor> {
        let kind = self.kind;
        let at = match self.shared.iter().position(|s| s.kind == kind) {
            Some(at) => at,
            None => {
                let tensors = Vec::new();
                self.shared.push(SharedNumbers { kind, tensors });
                self.shared.len() - 1
            }
        };
        let tensors = &mut self.shared[at].tensors;
        self.used += 1;
        if let Some(tensor) = tensors.get(self.used - 1) {
            return Ok(tensor.clone());
        }
        let tensor = Tensor::scalar(value, (kind.dtype, kind.device))?;
        tensors.push(tensor.clone());
        Ok(tensor)
    }

    /// What is remembered under a name: a tensor like the parameter, at first filled with `initial`.
    ///
    /// # Errors
    /// What sending the first one to the device returns.
    pub fn state(&mut self, name: &'static str, initial: f64) -> Result<Tensor> {
        if let Some((_, tensor)) = self.memory.tensors.iter().find(|(n, _)| *n == name) {
            return Ok(tensor.clone());
        }
        let param = self.param;
        // From the host, not a recorded constant: then the first step's program, for which it is an
        // argument, is that of all steps.
        let tensor = Tensor::from_literal(filled(param, initial)?, param.device())?;
        self.memory.tensors.push((name, tensor.clone()));
        Ok(tensor)
    }

    /// A number that is remembered under a name, at first `initial`.
    pub fn remembered(&mut self, name: &'static str, initial: f64) -> &mut f64 {
        let numbers = &mut self.memory.numbers;
        let at = match numbers.iter().position(|(n, _)| *n == name) {
            Some(at) => at,
            None => {
                numbers.push((name, initial));
                numbers.len() - 1
            }
        };
        &mut numbers[at].1
    }

    /// `p ← p · factor`.
    ///
    /// # Errors
    /// What the operators return.
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let factor = self.number(factor)?;
        self.param.copy_(&self.param.mul(&factor)?).map(drop)
    }

    /// `p ← p + rate · direction`.
    ///
    /// # Errors
    /// What the operators return.
    pub fn add(&mut self, direction: &Tensor, rate: f64) -> Result<()> {
        let rate = self.number(rate)?;
        let moved = self.param.add(&direction.mul(&rate)?)?;
        self.param.copy_(&moved).map(drop)
    }
}

/// A literal of the parameter's shape and dtype.
fn filled(param: &Tensor, value: f64) -> Result<Literal> {
    if value == 0.0 {
        return Literal::from_fill(param.dtype(), param.shape(), |_| Ok(()));
    }
    let values = vec![value; param.numel()];
    Ok(Literal::from_vec(values, param.shape())?.cast(param.dtype()))
}
