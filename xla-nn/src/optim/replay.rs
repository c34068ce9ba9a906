//! Optimizers in compiled functions: their tensors are state, and at each call their numbers move on
//! as a step would have moved them.

use super::options::{Hyperparameter, Setting};
use super::stepping::{Group, GroupPlan, remembers};
use super::{Algorithm, Moment, Optim, Optimizer, ZeroRedundancyOptimizer};
use xla_core::Result;
use xla_lazy::{Notes, OwnerId, State, StateVisitor, is_compiling};

/// What a step has done, of all groups.
pub(super) struct Plan(pub(super) Vec<GroupPlan>);

impl Plan {
    /// Notes the plan where a compiled function is being recorded.
    pub(super) fn leave(self, optimizer: OwnerId, step: &'static str) {
        if is_compiling() {
            Notes::leave(optimizer, step, self);
        }
    }
}

impl<A: Algorithm> State for Optim<A> {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        visitor.owner(self.id);
        for slot in self.slots() {
            visitor.tensor(&slot.param);
        }
        for (_, tensor) in self.slots().flat_map(|slot| &slot.memory.tensors) {
            visitor.tensor(tensor);
        }
        for group in &self.groups {
            group.show_facts(visitor);
        }
    }

    fn replay(&mut self, notes: &Notes) -> Result<()> {
        for Plan(groups) in notes.of::<Plan>(self.id) {
            for (group, plan) in self.groups.iter_mut().zip(groups) {
                group.check()?;
                group.replay(plan);
            }
        }
        Ok(())
    }
}

impl<A: Algorithm> Group<A> {
    /// Which flags are set, which numbers but the learning rate are 0, and which form the next step's
    /// formula has.
    fn show_facts(&self, visitor: &mut StateVisitor<'_>) {
        let fact = |option: &Hyperparameter<'_>| match &option.setting {
            Setting::Number(value, _) => u64::from(**value == 0.0),
            Setting::Flag(value) => u64::from(**value),
        };
        let mut options = self.options.clone();
        let all = options.hyperparameters();
        let decisive = all.iter().filter(|option| option.name != "lr");
        decisive.for_each(|option| visitor.fact(fact(option)));
        let mut last = None;
        for slot in &self.slots {
            let steps = slot.memory.steps + 1;
            if last != Some(steps) {
                last = Some(steps);
                let mut next = slot.memory.numbers_only(steps);
                let mut moment = Moment::of(&mut next, slot.memory.is_empty());
                self.options.numbers(&mut moment);
                visitor.fact(moment.case.into());
            }
        }
    }

    fn replay(&mut self, plan: &GroupPlan) {
        let mut set = vec![false; plan.numbers.len()];
        for &(index, shared) in &plan.slots {
            let (Some(slot), Some(hosts)) = (self.slots.get_mut(index), plan.numbers.get(shared))
            else {
                continue;
            };
            let first = slot.memory.is_empty();
            slot.memory.steps += 1;
            if set[shared] && !remembers::<A>() {
                continue;
            }
            let mut moment = Moment::of(&mut slot.memory, first);
            self.options.numbers(&mut moment);
            if !std::mem::replace(&mut set[shared], true) {
                for (name, host) in hosts {
                    if let Some((_, value)) = moment.numbers.iter().find(|(n, _)| n == name) {
                        host.set(*value);
                    }
                }
            }
        }
    }
}

impl<O: Optimizer> State for ZeroRedundancyOptimizer<O> {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        self.show_parameters(visitor);
        self.optimizer().visit_state(visitor);
    }

    fn replay(&mut self, notes: &Notes) -> Result<()> {
        self.optimizer_mut().replay(notes)
    }
}
