//! Process groups: which ranks communicate, and the gang that runs their collectives.

use crate::gang::{Shared, ThreadGang, absent};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use xla_core::{Device, Error, Result};
use xla_lazy::{Gang, Tensor};
use xla_runtime::context::{self, ReplicaContext};

/// The ranks that communicate, as one of them sees it.
pub struct ProcessGroup {
    rank: usize,
    ranks: Vec<usize>,
    device: Device,
    /// `None` for a group of one rank, which never waits for anyone.
    gang: Option<Arc<dyn Gang>>,
}

impl ProcessGroup {
    /// Global rank of this member.
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

    /// The gang that a collective on this tensor is recorded with; `None` when there is nobody to
    /// communicate with.
    #[track_caller]
    pub(crate) fn gang_for(
        &self,
        op: &'static str,
        tensor: &Tensor,
    ) -> Result<Option<&Arc<dyn Gang>>> {
        if self.gang.is_some() && tensor.device() != self.device {
            return Err(Error::DeviceMismatch {
                op,
                left: tensor.device(),
                right: self.device,
                at: xla_core::Site::caller(),
            });
        }
        Ok(self.gang.as_ref())
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

/// Makes the default process group of the calling replica, with all replicas of its launch as
/// members, and waits until all of them have called it.
///
/// The backend is `"xla"` and the method `"xla://"`: ranks, world size and addresses come from the
/// launch. Outside a launch, and in debug mode, the group has one member and collectives cost
/// nothing, so the same program runs everywhere.
///
/// A group whose collective failed on some rank stays failed, since its members no longer stand at
/// the same place; all of them may [`destroy_process_group`] and make a new one.
///
/// # Errors
/// [`Error::Config`] for another backend or method, [`Error::ProcessGroup`] when there is a group
/// already, [`Error::ReplicaLeft`] or [`Error::ReplicaFailed`] when a replica ended without
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
    let only = |name, accepted: &str, got: &str| match got == accepted {
        true => Ok(()),
        false => Err(Error::Config {
            name,
            expected: format!("{accepted:?}"),
            got: got.into(),
        }),
    };
    only("backend", "xla", backend)?;
    only("init_method", "xla://", init_method)?;
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
    let gang = gang_of(CALL, &context, generation);
    let mut state = membership.lock();
    state.joining = false;
    state.group = Some(Arc::new(ProcessGroup {
        rank: context.rank(),
        ranks: (0..context.world_size()).collect(),
        device: context.device(),
        gang: gang?,
    }));
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
        Some(_) => {
            state.generation += 1;
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

/// Global rank of the calling replica, from 0; with or without a process group.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
pub fn get_rank() -> Result<usize> {
    context::current("get_rank").map(|context| context.rank())
}

/// Number of replicas; with or without a process group.
///
/// # Errors
/// As [`get_rank`].
pub fn get_world_size() -> Result<usize> {
    context::current("get_world_size").map(|context| context.world_size())
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
#[track_caller]
pub(crate) fn fresh(tensor: &Tensor) -> Result<Tensor> {
    tensor.copy()
}

/// Where the replicas of a launch meet to form a group.
struct Lobby {
    devices: Mutex<Vec<Option<usize>>>,
    gang: OnceLock<Arc<Shared>>,
}

/// Those in use, by launch and generation.
type Lobbies = HashMap<(u64, u64), Weak<Lobby>>;

impl Lobby {
    /// That of a launch's n-th group.
    fn of(context: &ReplicaContext, generation: u64) -> Arc<Lobby> {
        static LOBBIES: OnceLock<Mutex<Lobbies>> = OnceLock::new();
        let lobbies = LOBBIES.get_or_init(Mutex::default);
        let mut lobbies = lobbies.lock().unwrap_or_else(PoisonError::into_inner);
        lobbies.retain(|_, lobby| lobby.strong_count() > 0);
        let key = (context.launch().id(), generation);
        if let Some(lobby) = lobbies.get(&key).and_then(Weak::upgrade) {
            return lobby;
        }
        let lobby = Arc::new(Lobby {
            devices: Mutex::new(vec![None; context.world_size()]),
            gang: OnceLock::new(),
        });
        lobbies.insert(key, Arc::downgrade(&lobby));
        lobby
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Option<usize>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the other replicas of the launch and returns this one's handle on their gang.
fn gang_of(
    what: &'static str,
    context: &ReplicaContext,
    generation: u64,
) -> Result<Option<Arc<dyn Gang>>> {
    if context.world_size() == 1 {
        return Ok(None);
    }
    let launch = context.launch();
    let ranks: Vec<usize> = (0..context.world_size()).collect();
    let lobby = Lobby::of(context, generation);
    {
        let mut devices = lobby.devices();
        devices[context.rank()] = Some(context.device().ordinal());
        if let Some(devices) = devices.iter().copied().collect::<Option<Vec<usize>>>() {
            lobby
                .gang
                .get_or_init(|| Shared::new(Arc::clone(launch), ranks.clone(), devices));
        }
    }
    if lobby.gang.get().is_some() {
        launch.notify();
    }
    let met = launch.wait_until(what, |standings| match lobby.gang.get() {
        Some(gang) => Some(Ok(Arc::clone(gang))),
        None => absent(what, standings, &ranks, |rank| {
            lobby.devices()[rank].is_some()
        })
        .map(Err),
    });
    let shared = met.unwrap_or_else(|timeout| {
        let came = lobby
            .devices()
            .iter()
            .map(Option::is_some)
            .collect::<Vec<_>>();
        Err(crate::gang::named(
            timeout,
            what,
            ranks.iter().copied().filter(|r| !came[*r]),
        ))
    })?;
    Ok(Some(Arc::new(ThreadGang::new(shared, context.rank()))))
}
