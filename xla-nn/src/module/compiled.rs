//! Modules as the state of compiled functions.

use super::visitor::{Item, walk};
use super::{Forward, Module};
use xla_lazy::{State, StateVisitor};

/// Shows a module's parameters, buffers and training flags: what a derived module's
/// [`State::visit_state`] does.
pub fn visit_module<'a, M: Module + ?Sized>(module: &'a M, visitor: &mut StateVisitor<'a>) {
    walk(module, &mut |_, item| match item {
        Item::Parameter(tensor) | Item::Buffer { tensor, .. } => visitor.tensor(tensor),
        Item::Training(flag) => visitor.fact(flag.get().into()),
        Item::Module(_) => {}
    });
}

/// Makes modules whose `Module` is not derived the state of compiled functions as well.
macro_rules! as_state {
    ($([$($generics:tt)*] $module:ty),* $(,)?) => {$(
        impl<$($generics)*> xla_lazy::State for $module {
            fn visit_state<'a>(&'a self, visitor: &mut xla_lazy::StateVisitor<'a>) {
                $crate::module::visit_module(self, visitor);
            }
        }
    )*};
}
pub(crate) use as_state;

impl State for dyn Module + '_ {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        visit_module(self, visitor);
    }
}

impl State for dyn Forward + '_ {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        visit_module(self, visitor);
    }
}
