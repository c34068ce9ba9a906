//! What a compiled function may change: modules, optimizers, generators, tensors.

use crate::hash::{self, Hash128};
use crate::{Generator, Tensor};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xla_core::{Error, Result};

/// What a compiled function is passed by `&mut` at each call and may read and change: a module, an
/// optimizer, a generator, a tensor, or a tuple of such, also of references to them.
///
/// The values are found by storage: whatever a state's tensors hold when the function is called is
/// what it computes with, and what it leaves in them is there afterwards. Modules have this by
/// `#[derive(Module)]`.
pub trait State {
    /// Shows the visitor every tensor, and every fact that decides what the function records: a
    /// training flag, say. The order must not change.
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>);

    /// Does what the function would have done to the numbers that the host keeps, when a recorded
    /// program is run in its place. `notes` has what [`Notes::leave`] was given while the function
    /// was recorded.
    ///
    /// # Errors
    /// What makes the numbers unfit; the program is not run then.
    fn replay(&mut self, notes: &Notes) -> Result<()> {
        let _ = notes;
        Ok(())
    }
}

/// What [`State::visit_state`] shows a state's belongings to.
pub struct StateVisitor<'a> {
    pub(super) tensors: Vec<&'a Tensor>,
    pub(super) facts: Hash128,
    pub(super) owners: Vec<OwnerId>,
}

impl<'a> StateVisitor<'a> {
    pub(super) fn new() -> Self {
        StateVisitor {
            tensors: Vec::new(),
            facts: hash::SEED,
            owners: Vec::new(),
        }
    }

    /// A tensor of the state, with its gradient if it is a leaf.
    pub fn tensor(&mut self, tensor: &'a Tensor) {
        self.tensors.push(tensor);
    }

    /// A fact that decides what the function records: for each value it records a graph.
    pub fn fact(&mut self, fact: u64) {
        self.facts = hash::fold(self.facts, fact, 0);
    }

    /// Who takes part in [`State::replay`].
    pub fn owner(&mut self, id: OwnerId) {
        self.owners.push(id);
    }
}

/// Names one state that leaves notes, for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(u64);

impl OwnerId {
    /// One that no other state has.
    #[allow(clippy::new_without_default)] // each is another
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        OwnerId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

type Note = Arc<dyn Any + Send + Sync>;

/// What states have noted while a function was recorded, for its later calls.
#[derive(Clone, Default)]
pub struct Notes(pub(super) Vec<(OwnerId, &'static str, Note)>);

impl Notes {
    /// Leaves a note with the function that the calling thread is recording, if it is. `what` is
    /// what errors call the change: the function that made it.
    pub fn leave<T: Send + Sync + 'static>(owner: OwnerId, what: &'static str, note: T) {
        super::tracing::with(|noted| noted.notes.0.push((owner, what, Arc::new(note))));
    }

    /// The notes of one state, oldest first.
    pub fn of<T: 'static>(&self, owner: OwnerId) -> impl Iterator<Item = &T> {
        let own = self.0.iter().filter(move |(by, ..)| *by == owner);
        own.filter_map(|(.., note)| note.downcast_ref())
    }
}

impl State for () {
    fn visit_state<'a>(&'a self, _: &mut StateVisitor<'a>) {}
}

impl State for Tensor {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        visitor.tensor(self);
    }
}

impl State for Generator {
    fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
        visitor.tensor(self.state_tensor());
    }
}

/// What is shared keeps no numbers that change.
fn refuse<S: State + ?Sized>(state: &S, notes: &Notes) -> Result<()> {
    let mut visitor = StateVisitor::new();
    state.visit_state(&mut visitor);
    let changed = notes.0.iter().find(|(by, ..)| visitor.owners.contains(by));
    match changed {
        None => Ok(()),
        Some((_, what, _)) => Err(Error::argument(
            what,
            "state",
            "a state that is passed by &mut, since it keeps numbers",
            "one that is shared",
        )),
    }
}

macro_rules! shared {
    ($($pointer:ty),*) => {$(
        impl<S: State + ?Sized> State for $pointer {
            fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
                (**self).visit_state(visitor);
            }

            fn replay(&mut self, notes: &Notes) -> Result<()> {
                refuse(&**self, notes)
            }
        }
    )*};
}

shared!(&S, Arc<S>);

macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<S: State + ?Sized> State for $pointer {
            fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
                (**self).visit_state(visitor);
            }

            fn replay(&mut self, notes: &Notes) -> Result<()> {
                (**self).replay(notes)
            }
        }
    )*};
}

through!(&mut S, Box<S>);

macro_rules! several {
    ($($list:ty),*) => {$(
        impl<S: State> State for $list {
            fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
                self.iter().for_each(|item| item.visit_state(visitor));
            }

            fn replay(&mut self, notes: &Notes) -> Result<()> {
                self.iter_mut().try_for_each(|item| item.replay(notes))
            }
        }
    )*};
}

several!(Vec<S>, Option<S>, [S]);

macro_rules! tuples {
    ($(($($t:ident $i:tt)+))*) => {$(
        impl<$($t: State),+> State for ($($t,)+) {
            fn visit_state<'a>(&'a self, visitor: &mut StateVisitor<'a>) {
                $(self.$i.visit_state(visitor);)+
            }

            fn replay(&mut self, notes: &Notes) -> Result<()> {
                $(self.$i.replay(notes)?;)+
                Ok(())
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0 B 1)
    (A 0 B 1 C 2)
    (A 0 B 1 C 2 D 3)
    (A 0 B 1 C 2 D 3 E 4)
    (A 0 B 1 C 2 D 3 E 4 F 5)
}
