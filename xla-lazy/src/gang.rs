//! What recording and syncing know about other replicas: nothing but this trait.
//!
//! XLA's CPU collectives abort the process when one replica does not come. So before a program with
//! collectives runs, its replicas meet here, in two phases, under a deadline. Everything that can
//! fail (lowering, compiling, uploading, checking arguments) lies between the phases; after the
//! vote there is only the execution itself.

use std::any::Any;
use std::panic::Location;
use std::sync::Arc;
use xla_core::Result;

/// A 128-bit hash, equal on every rank for equal operators.
pub type Hash128 = [u64; 2];

/// The pending program of one replica, as the others see it when they meet.
pub trait Proposal: Any + Send + Sync {
    /// Number of operators recorded.
    fn len(&self) -> usize;

    /// Whether nothing is recorded.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hash of the first `n` operators.
    fn chain(&self, n: usize) -> Hash128;

    /// Whether there is a collective among the first `n` operators.
    fn has_collective(&self, n: usize) -> bool;

    /// The collectives among the first `n` operators, in the order recorded.
    fn collectives(&self, n: usize) -> Vec<Collective>;

    /// Operator `index` with its type and the line that recorded it, for error messages.
    fn describe(&self, index: usize) -> String;

    /// The nodes whose values this replica needs when the program is cut after `n` operators,
    /// ascending.
    fn live(&self, n: usize) -> Vec<u32>;

    /// The parameters whose buffers may be overwritten when the program is cut after `n`
    /// operators, ascending.
    fn donors(&self, n: usize) -> Vec<u32>;

    /// The programs without collectives that this replica ran since the gang last met, oldest
    /// first: number of operators and hash. A replica that read a value early recorded the same
    /// operators as the others, in two programs where they have one; one whose `chain(len)` is a
    /// hash listed here by another gets on a level with it by [`Settlement::FlushFirst`].
    fn flushed(&self) -> &[(usize, Hash128)];
}

/// A collective of a [`Proposal`], as other processes are told of it.
#[derive(Debug, Clone, Copy)]
pub struct Collective {
    /// Which operator of the program it is.
    pub index: usize,
    /// Hash of the operator, its attributes, and the types of its operands and its result: equal on
    /// every rank for equal collectives, whatever else the programs hold.
    pub fingerprint: Hash128,
    /// The line that recorded it.
    pub location: &'static Location<'static>,
}

/// What the replicas agree to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The first `len` operators, with these nodes as outputs and these parameters donated.
    Run {
        /// How many: all have recorded these alike.
        len: usize,
        /// Union of the replicas' live nodes, ascending.
        live: Vec<u32>,
        /// Intersection of the replicas' donors, ascending.
        donors: Vec<u32>,
    },
    /// This replica first runs its own first `len` operators, which hold no collective and which
    /// another replica has run already, and then proposes again.
    FlushFirst {
        /// How many.
        len: usize,
    },
}

/// How an execution that goes beyond this process ends.
///
/// What waits for another process inside a running program cannot be cancelled, and a program that
/// fails on one replica leaves the others waiting. So when the other process does not come the
/// program runs on with made-up values, and this tells: it is asked, once the program is over,
/// before a value computed by it, or from it, is given out.
pub trait Outcome: Send + Sync {
    /// `None` until it is settled; then what it is stays so. A failure is settled before the program
    /// is over.
    fn poll(&self) -> Option<Result<()>>;

    /// A member's part of the execution is over; called once for each member.
    fn over(&self);
}

/// The answer to a vote.
#[derive(Clone)]
pub struct Start {
    /// The launch id that all members pass to the runtime: fresh and not zero.
    pub launch_id: i32,
    /// Tells how the execution ended, where the gang spans processes.
    pub outcome: Option<Arc<dyn Outcome>>,
}

/// One member's handle on the replicas that run a program together.
pub trait Gang: Send + Sync {
    /// Ordinals of the devices of this process, in replica order.
    fn devices(&self) -> &[usize];

    /// Whether some members are in other processes. Their programs need not be cut where this
    /// process's are: only the order of the collectives is common to all. So each is executed, in
    /// the order recorded, also after those of earlier programs ([`crate::stablehlo::Func::effect`]).
    fn spans_processes(&self) -> bool;

    /// First phase: waits for every member's proposal and settles what to run.
    ///
    /// # Errors
    /// On every member: divergence, a member that left or failed, the deadline.
    fn settle(&self, proposal: Arc<dyn Proposal>) -> Result<Settlement>;

    /// What was settled on last, as the members of this process have proposed it, in replica order. It
    /// is there until they vote.
    fn proposals(&self) -> Vec<Arc<dyn Proposal>>;

    /// Second phase: reports whether this member is ready to execute and waits for the others.
    ///
    /// # Errors
    /// The member's own error if `ready` is one; otherwise the error of the member that was not
    /// ready, on every member.
    fn vote(&self, ready: Result<()>) -> Result<Start>;

    /// Ends the process because a launched execution passed its deadline: its collectives can be
    /// neither completed nor cancelled. Prints every member's state first.
    fn overdue(&self, what: &str) -> !;
}
