//! Process groups: which ranks communicate, and the gang that runs their collectives.

mod axes;

pub use axes::axis_group;
pub(crate) use axes::collective;

use crate::backend::Backend;
use crate::ops::ReplicaGroups;
use crate::world::World;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_core::{Device, Error, Result, Site};
use xla_lazy::{Gang, Operand, Operator, Tensor, Vjp, record_collective, record_op, spmd};
use xla_runtime::context::{self, ReplicaContext};
use xla_store::Store;

/// The ranks that communicate, as one of them sees it.
///
/// Ranks are global in every call, also in a group of some of them. A rank that is not a member may
/// hold the group, as in PyTorch; communicating in it is an error.
///
/// In the body of a [`shard_map`](xla_lazy::spmd::shard_map) the members are devices of a mesh instead
/// ([`axis_group`]), all of them driven by the replica that holds it.
pub struct ProcessGroup {
    rank: usize,
    ranks: Vec<usize>,
    device: Device,
    role: Role,
    world: Arc<World>,
    /// Tells it from the world's other groups, in all processes alike.
    name: String,
    destroyed: AtomicBool,
    /// Which of the replica's default groups it is, or is made of.
    generation: u64,
    /// How many further groups the replica has made, in a default group.
    children: AtomicU64,
    /// How many exchanges of objects the replica has had in it.
    exchanges: AtomicU64,
}

/// What a replica is in a group.
enum Role {
    Outside,
    /// The only member, which never waits for anyone.
    Alone,
    Member(Members),
}

/// Where a collective is recorded: the gang that executes it, which of the gang's members
/// communicate, and which of those this replica is.
#[derive(Clone)]
pub(crate) struct Members {
    /// `None` for the devices of a mesh, which run one program of one replica.
    gang: Option<Arc<dyn Gang>>,
    pub(crate) groups: ReplicaGroups,
    /// Position in this replica's own group; of a mesh's devices each knows its own when it runs.
    position: usize,
}

impl Members {
    /// Those of the operator that a derivative rule is for. Its position is there if it is the
    /// operator's second operand.
    pub(crate) fn of(vjp: &Vjp<'_>, groups: &ReplicaGroups) -> Result<Self> {
        let gang = match groups.axes() {
            Some(_) => None,
            None => Some(Arc::clone(vjp.gang()?)),
        };
        Ok(Members {
            gang,
            groups: groups.clone(),
            position: vjp.number(1).map_or(0, |n| n.to_f64() as usize),
        })
    }

    /// Records a collective of these members.
    #[track_caller]
    pub(crate) fn record<O: Operator>(&self, op: O, operands: &[Operand<'_>]) -> Result<Tensor> {
        match &self.gang {
            Some(gang) => record_collective(gang, op, operands),
            None => record_op(op, operands),
        }
    }

    /// Calls `record` with the position of the member that runs the program, as an operand.
    pub(crate) fn with_position<T>(
        &self,
        record: impl FnOnce(Operand<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.groups.axes() {
            Some(axes) => record((&spmd::axis_index(axes.clone())?).into()),
            None => record(self.position.into()),
        }
    }
}

impl ProcessGroup {
    /// The group of these ranks, ascending, on one of them or on another rank. `gang` is that of all
    /// of them, and `None` for less than two members.
    pub(crate) fn new(
        context: &ReplicaContext,
        world: Arc<World>,
        (generation, child): (u64, u64),
        ranks: Vec<usize>,
        gang: Option<Arc<dyn Gang>>,
    ) -> Self {
        let rank = world.rank_of(context);
        let role = match (ranks.binary_search(&rank), gang) {
            (Err(_), _) => Role::Outside,
            (Ok(_), None) => Role::Alone,
            (Ok(position), Some(gang)) => Role::Member(Members {
                groups: ReplicaGroups::all(ranks.len()),
                gang: Some(gang),
                position,
            }),
        };
        ProcessGroup {
            rank,
            ranks,
            device: context.device(),
            role,
            world,
            name: child.to_string(),
            destroyed: AtomicBool::new(false),
            generation,
            children: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        }
    }

    /// Global rank of the replica that holds this. 0 in a group of a mesh's devices, where
    /// [`axis_index`](spmd::axis_index) tells which of them runs the program.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Global ranks of all members, ascending.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The device that this member's tensors are on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Whether the replica that holds this is a member.
    pub fn is_member(&self) -> bool {
        !matches!(self.role, Role::Outside)
    }

    /// Whether members are in several processes, so that what is communicated leaves the program.
    pub fn spans_processes(&self) -> bool {
        matches!(&self.role, Role::Member(members) if members.gang.as_ref().is_some_and(|gang| gang.spans_processes()))
    }

    /// The position among the group's members of a global rank.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rank that is not in the group.
    #[track_caller]
    pub fn group_rank(&self, global_rank: usize) -> Result<usize> {
        let at = Location::caller();
        self.position_of("group_rank", "global_rank", global_rank)
            .map_err(|e| e.at(at))
    }

    /// The global rank of the member at a position.
    ///
    /// # Errors
    /// [`Error::Argument`] for a position beyond the last member.
    #[track_caller]
    pub fn global_rank(&self, group_rank: usize) -> Result<usize> {
        let at = Location::caller();
        let expected = || format!("less than {}, the group's size", self.size());
        self.ranks.get(group_rank).copied().ok_or_else(|| {
            Error::argument("global_rank", "group_rank", expected(), group_rank).at(at)
        })
    }

    /// A group of a partition of this group, recorded in its gang. With one member a group needs none.
    /// `child` is the partition's number among the groups made of this one.
    pub(crate) fn part(
        &self,
        members: &Members,
        groups: ReplicaGroups,
        child: u64,
        ranks: Vec<usize>,
    ) -> ProcessGroup {
        let role = match ranks.binary_search(&self.rank) {
            Err(_) => Role::Outside,
            Ok(_) if groups.size() == 1 => Role::Alone,
            Ok(position) => Role::Member(Members {
                gang: members.gang.clone(),
                groups,
                position,
            }),
        };
        ProcessGroup {
            rank: self.rank,
            name: format!("{child}.{}", ranks.first().copied().unwrap_or(0)),
            ranks,
            device: self.device,
            role,
            world: Arc::clone(&self.world),
            destroyed: AtomicBool::new(false),
            generation: self.generation,
            children: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        }
    }

    /// The key-value store that the group's processes have in common; keys are the group's own.
    ///
    /// Within one process it is kept there, without a network.
    pub fn store(&self) -> Store {
        self.world.store().prefixed(&format!("group-{}", self.name))
    }

    /// The world that the group's ranks belong to.
    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Where it stands among the replica's default groups, or its default group does.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of the next group that is made of this one: from 1, the same on all ranks.
    pub(crate) fn next_child(&self) -> u64 {
        self.children.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of the next exchange of objects: from 0, the same on all members.
    pub(crate) fn next_exchange(&self) -> u64 {
        self.exchanges.fetch_add(1, Ordering::Relaxed)
    }

    /// This replica's position among the members.
    pub(crate) fn position(&self) -> Option<usize> {
        self.ranks.binary_search(&self.rank).ok()
    }

    /// Ends the group: communicating in it is an error from now on, on this replica. Tensors and
    /// recorded collectives stay valid. Dropping the last handle does the same.
    ///
    /// The default group is ended by [`destroy_process_group`].
    pub fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
    }

    /// The position of a global rank, which is an argument of `op`.
    pub(crate) fn position_of(
        &self,
        op: &'static str,
        argument: &'static str,
        global_rank: usize,
    ) -> Result<usize> {
        self.ranks.binary_search(&global_rank).map_err(|_| {
            let expected = format!("one of the group's ranks {:?}", self.ranks);
            Error::argument(op, argument, expected, global_rank)
        })
    }

    /// Where a collective on these tensors is recorded; `None` when there is nobody to communicate
    /// with.
    pub(crate) fn members<'t>(
        &self,
        op: &'static str,
        tensors: impl IntoIterator<Item = &'t Tensor>,
    ) -> Result<Option<&Members>> {
        if self.destroyed.load(Ordering::Relaxed) {
            return Err(Error::ProcessGroup {
                what: op,
                state: format!("the group of the ranks {:?} was destroyed", self.ranks),
                advice: "make a new one",
            });
        }
        let members = match &self.role {
            Role::Outside => {
                let expected = format!("a group that rank {} is a member of", self.rank);
                let got = format!("that of the ranks {:?}", self.ranks);
                return Err(Error::argument(op, "group", expected, got));
            }
            Role::Alone => return Ok(None),
            Role::Member(members) => members,
        };
        for tensor in tensors {
            if tensor.device() != self.device {
                return Err(Error::DeviceMismatch {
                    op,
                    left: tensor.device(),
                    right: self.device,
                    at: Site::NONE,
                });
            }
        }
        Ok(Some(members))
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGroup")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A replica's default group, kept in its context.
#[derive(Default)]
struct Membership(Mutex<State>);

#[derive(Default)]
struct State {
    /// How many default groups this replica has had: its n-th meets the others' n-th.
    generation: u64,
    joining: bool,
    group: Option<Arc<ProcessGroup>>,
}

impl Membership {
    fn of(context: &ReplicaContext) -> Arc<Membership> {
        context.extension(Membership::default)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the default process group of the calling replica, whose members are all replicas of all
/// processes, and waits until each of them has called it.
///
/// The backend is `"xla"`, or one of [`register_backend`](crate::register_backend). The method says
/// how the processes meet ([`xla_store::rendezvous`]):
///
/// | method | |
/// | --- | --- |
/// | `xla://` | as the launch, or a launcher's environment, says; else this process is alone |
/// | `env://` | by `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` |
/// | `tcp://host:port?rank=0&world_size=2` | process 0 listens there |
/// | `file:///path?rank=0&world_size=2` | process 0 writes its address there |
///
/// Ranks there count processes; with several replicas a process those of process `p` have the
/// global ranks `p * replicas` and following. In debug mode the group has one member and collectives
/// cost nothing, so the same program runs everywhere.
///
/// Groups whose members are in one process use XLA's own collectives. Those that span processes
/// exchange over the network, on CPU (cargo feature `gloo`): their collectives are executed in the
/// order recorded, also those whose result nobody reads, and each process may read values, and so
/// end its programs, where it likes. A process that is gone is noticed within
/// `XLA_HEARTBEAT_SECONDS` (5). When `main` returns, the process that hosts the store waits for the
/// others to leave; one that ends otherwise counts as failed.
///
/// A group whose collective failed on some rank stays failed, since its members no longer stand at
/// the same place; all of them may [`destroy_process_group`] and make a new one.
///
/// # Errors
/// [`Error::Config`] for an unknown backend, [`Error::Rendezvous`] for an unknown method or processes
/// that do not come, [`Error::ProcessGroup`] when there is a group already or the processes do not
/// run the same, [`Error::MissingFeature`] in a build without `gloo`, [`Error::ReplicaLeft`] or [`Error::ReplicaFailed`] when a replica ended without
/// calling it, [`Error::Deadline`] naming the ranks that did not come.
///
/// ```
/// xla_dist::init_process_group("xla", "xla://")?;
/// assert_eq!((xla_dist::get_rank()?, xla_dist::get_world_size()?), (0, 1));
/// assert!(xla_dist::init_process_group("xla", "xla://").is_err());
/// xla_dist::destroy_process_group()?;
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn init_process_group(backend: &str, init_method: &str) -> Result<()> {
    const CALL: &str = "init_process_group";
    let backend = Backend::named(backend)?;
    let context = context::current(CALL)?;
    let membership = Membership::of(&context);
    let generation = {
        let mut state = membership.lock();
        if state.joining || state.group.is_some() {
            return Err(Error::ProcessGroup {
                what: CALL,
                state: "this replica has a default process group already".into(),
                advice: "call it once, or destroy_process_group first",
            });
        }
        state.joining = true;
        state.generation
    };
    let made = World::join(CALL, &context, generation, &backend, init_method).and_then(|world| {
        let ranks: Vec<usize> = (0..world.size()).collect();
        let gang = world.gang(CALL, &context, (generation, 0), &ranks)?;
        Ok(ProcessGroup::new(
            &context,
            world,
            (generation, 0),
            ranks,
            gang,
        ))
    });
    let mut state = membership.lock();
    state.joining = false;
    state.group = Some(Arc::new(made?));
    Ok(())
}

/// Ends the calling replica's default process group. Tensors and recorded collectives stay valid.
///
/// # Errors
/// [`Error::ProcessGroup`] when there is none.
pub fn destroy_process_group() -> Result<()> {
    const CALL: &str = "destroy_process_group";
    let membership = Membership::of(&*context::current(CALL)?);
    let mut state = membership.lock();
    match state.group.take() {
        Some(group) => {
            group.destroy();
            state.generation += 1;
            drop(state);
            group.world.depart(group.rank);
            Ok(())
        }
        None => Err(no_group(CALL)),
    }
}

/// Whether the calling replica has a default process group.
pub fn is_initialized() -> bool {
    context::current("is_initialized")
        .is_ok_and(|context| Membership::of(&context).lock().group.is_some())
}

/// Global rank of the calling replica, from 0: that of its default group, or without one that of its
/// launch.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
pub fn get_rank() -> Result<usize> {
    let context = context::current("get_rank")?;
    let group = Membership::of(&context).lock().group.clone();
    Ok(group.map_or(context.rank(), |group| group.rank()))
}

/// Number of replicas: those of the default group, or without one those of the launch.
///
/// # Errors
/// As [`get_rank`].
pub fn get_world_size() -> Result<usize> {
    let context = context::current("get_world_size")?;
    let group = Membership::of(&context).lock().group.clone();
    Ok(group.map_or(context.world_size(), |group| group.size()))
}

/// The calling replica's default group; `what` is the call that needs it.
///
/// # Errors
/// [`Error::ProcessGroup`] when there is none.
pub(crate) fn current(what: &'static str) -> Result<Arc<ProcessGroup>> {
    let membership = Membership::of(&*context::current(what)?);
    let group = membership.lock().group.clone();
    group.ok_or_else(|| no_group(what))
}

fn no_group(what: &'static str) -> Error {
    Error::ProcessGroup {
        what,
        state: "this replica has no default process group".into(),
        advice: "call init_process_group(\"xla\", \"xla://\") first",
    }
}

/// A tensor of the same value that does not share the argument's storage.
pub(crate) fn fresh(tensor: &Tensor) -> Result<Tensor> {
    tensor.copy()
}
