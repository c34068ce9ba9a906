//! The other processes of a world: what they tell, and what they are told.

use super::World;
use super::plugin::{self, Neighbours};
use crate::gang::{Control, Hello, Layout, Message, News, Shared, absent};
use crate::transport::{self, Transport};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use xla_core::{Config, Error, Result};
use xla_runtime::context::{Launch, Standing};
use xla_store::{Event, Membership, Store};

/// Most messages that wait for a group to be made here.
const EARLY: usize = 1 << 16;

pub(super) struct Beyond {
    membership: OnceLock<Membership>,
    /// The launch that drives this process's replicas, where it knows the others too.
    outer: Weak<Launch>,
    /// Whether the others lose the store when this process ends.
    host: bool,
    state: Mutex<State>,
}

struct State {
    hellos: Vec<Option<Hello>>,
    /// Which processes are not in the world any more.
    gone: Vec<bool>,
    groups: HashMap<u64, Slot>,
}

/// What is known here of a group.
enum Slot {
    Here(Weak<Shared>),
    /// It is not made here yet. What others told, with their places in the world.
    Early(Vec<(usize, News)>),
    /// It has no members here, or none in other processes.
    Ignored,
}

/// Worlds whose store this process hosts: it stays until the others have left them.
static HOSTED: Mutex<Vec<Arc<World>>> = Mutex::new(Vec::new());

fn hosted() -> MutexGuard<'static, Vec<Arc<World>>> {
    HOSTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worlds that this process has not left.
static JOINED: Mutex<Vec<Weak<World>>> = Mutex::new(Vec::new());

/// Joins the control channel of the world of `launch`, and waits until all processes have.
pub(super) fn join(
    call: &'static str,
    outer: &Arc<Launch>,
    launch: Arc<Launch>,
    store: Store,
    host: bool,
) -> Result<Arc<World>> {
    let topology = launch.topology();
    let same = outer.topology() == topology;
    let world = Arc::new(World {
        launch,
        store: store.clone(),
        beyond: Some(Beyond {
            membership: OnceLock::new(),
            outer: if same {
                Arc::downgrade(outer)
            } else {
                Weak::new()
            },
            host,
            state: Mutex::new(State {
                hellos: vec![None; topology.processes],
                gone: vec![false; topology.processes],
                groups: HashMap::new(),
            }),
        }),
    });
    let heard = Arc::downgrade(&world);
    let (index, processes) = (topology.process_index, topology.processes);
    let membership = store.join("processes", index, processes, move |event| {
        if let Some(world) = heard.upgrade() {
            world.hear(event);
        }
    })?;
    let beyond = world.beyond.as_ref().ok_or(Error::Internal {
        what: "world",
        expected: "other processes".into(),
    })?;
    let membership = beyond.membership.get_or_init(|| membership);
    if let Err(error) = beyond.greet(call, &world) {
        membership.fail(&error.to_string());
        return Err(error);
    }
    // Only now, so that an end that others are told of belongs to a world that was there.
    let watched = Arc::downgrade(&world);
    let local = outer.local_ranks();
    outer.on_change(move |rank, standing| {
        if let Some(world) = watched.upgrade()
            && local.contains(&rank)
        {
            world.local_ended(rank - local.start, standing);
        }
    });
    if host {
        let mut hosted = hosted();
        hosted.retain(|world| !world.others_are_gone());
        hosted.push(Arc::clone(&world));
    }
    JOINED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Arc::downgrade(&world));
    xla_runtime::when_main_ends(say_farewell);
    Ok(world)
}

/// Leaves all worlds in order. A process that hosts a store first waits for the others to leave.
fn say_farewell() {
    let joined = std::mem::take(&mut *JOINED.lock().unwrap_or_else(PoisonError::into_inner));
    for world in joined.iter().filter_map(Weak::upgrade) {
        for rank in world.launch.local_ranks() {
            world.depart(rank);
        }
    }
    for world in std::mem::take(&mut *hosted()) {
        // At the deadline there is nothing left to be done.
        let _ = world
            .launch
            .wait_until("the end of the other processes", |_| {
                world.others_are_gone().then_some(())
            });
        world.leave();
    }
}

impl Beyond {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, message: &Message) {
        if let (Some(membership), Ok(bytes)) = (self.membership.get(), message.encode()) {
            // What cannot be sent any more is told by the channel's own end.
            let _ = membership.send(&bytes);
        }
    }

    /// Says who this process is and waits until all others have.
    fn greet(&self, call: &'static str, world: &World) -> Result<()> {
        let topology = world.launch.topology();
        let own = Hello {
            machine: machine(),
            replicas: topology.replicas,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        self.tell(&Message::Hello(own.clone()));
        let ranks: Vec<usize> = (0..topology.world_size()).collect();
        let process_of = |rank: usize| topology.process_of(rank);
        let came = |state: &State, process: usize| {
            process == topology.process_index || state.hellos[process].is_some()
        };
        let hellos = world
            .launch
            .wait_until(call, |standings| {
                let state = self.lock();
                if (0..topology.processes).all(|process| came(&state, process)) {
                    return Some(Ok(state.hellos.clone()));
                }
                absent(call, standings, &ranks, |rank| {
                    came(&state, process_of(rank))
                })
                .map(Err)
            })
            .unwrap_or_else(|timeout| {
                let state = self.lock();
                let missing = ranks.iter().copied();
                let missing = missing.filter(|rank| !came(&state, process_of(*rank)));
                Err(crate::gang::named(timeout, call, missing))
            })?;
        let mut neighbours = Neighbours { here: 1, before: 0 };
        for (process, hello) in hellos.into_iter().enumerate() {
            let Some(other) = hello else { continue };
            if other.machine == own.machine {
                neighbours.here += 1;
                neighbours.before += usize::from(process < topology.process_index);
            }
            if (other.replicas, &other.version) != (own.replicas, &own.version) {
                return Err(Error::ProcessGroup {
                    what: call,
                    state: format!(
                        "process {process} has {} replica(s) of version {}, this one {} of {}",
                        other.replicas, other.version, own.replicas, own.version
                    ),
                    advice: "start the same program with the same options in every process",
                });
            }
        }
        let kind = Config::global()?.device;
        plugin::prepare(kind, topology, neighbours, &world.store)
    }

    /// Connects the processes of a group. A process that ends meanwhile is an error at once.
    pub(super) fn connect(
        &self,
        call: &'static str,
        world: &World,
        child: u64,
        layout: &Layout,
    ) -> Result<Arc<dyn Transport>> {
        let made: Arc<OnceLock<Result<Arc<dyn Transport>>>> = Arc::default();
        let store = world.store.prefixed(&format!("transport-{child}"));
        let (own, processes) = (layout.own(), layout.processes());
        let (launch, result) = (Arc::clone(&world.launch), Arc::clone(&made));
        // Given up with the wait, it ends at its own deadline.
        std::thread::Builder::new()
            .name("xla-connect".into())
            .spawn(move || {
                let connected = transport::connect(&store, own, processes, launch.deadline());
                let _ = result.set(connected);
                launch.notify();
            })
            .map_err(|error| Error::Launch {
                reason: format!("a thread could not be started: {error}"),
                advice: "raise the limit on threads",
            })?;
        world
            .launch
            .wait_until(call, |standings| match made.get() {
                Some(connected) => Some(connected.clone()),
                None => absent(call, standings, layout.ranks(), |_| false).map(Err),
            })?
    }

    /// Makes a group known to which others may have told something already.
    pub(super) fn register(&self, child: u64, gang: &Arc<Shared>, ranks: &[usize]) {
        let news = News::Formed(ranks.to_vec());
        self.tell(&Message::Group { group: child, news });
        let mut state = self.lock();
        let here = Slot::Here(Arc::downgrade(gang));
        if let Some(Slot::Early(early)) = state.groups.insert(child, here) {
            // Under the lock: what comes now comes after.
            for (process, news) in early {
                gang.hear(process, news);
            }
        }
    }

    /// Takes no notice of a group.
    pub(super) fn ignore(&self, child: u64) {
        self.lock().groups.insert(child, Slot::Ignored);
    }

    /// A replica has destroyed its default group.
    pub(super) fn depart(&self, world: &World, rank: usize) {
        world.launch.leave(rank, Standing::Left);
        self.tell(&Message::Departed { rank });
        world.leave_when_done();
    }
}

/// What tells this machine from others, as it is running now.
fn machine() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

impl Control for World {
    fn tell(&self, message: &Message) {
        if let Some(beyond) = &self.beyond {
            beyond.tell(message);
        }
    }
}

impl World {
    /// What happens to the other processes.
    fn hear(&self, event: Event) {
        let Some(beyond) = &self.beyond else { return };
        match event {
            Event::Message { from, bytes } => match Message::decode(&bytes) {
                Some(message) => self.hear_message(beyond, from, message),
                None => self.lose(beyond, from, "it speaks another protocol"),
            },
            Event::Failed { member, reason } => {
                self.lose(beyond, member, &reason);
                self.is_gone(beyond, member);
            }
            Event::Left { member } => {
                for rank in self.ranks_in(member) {
                    self.launch.leave(rank, Standing::Left);
                }
                self.is_gone(beyond, member);
            }
            Event::Lost { reason } => {
                let reason = format!("the store that connects the processes is lost: {reason}");
                for process in 0..self.launch.topology().processes {
                    if process != self.launch.topology().process_index {
                        self.lose(beyond, process, &reason);
                        self.is_gone(beyond, process);
                    }
                }
            }
        }
    }

    fn hear_message(&self, beyond: &Beyond, from: usize, message: Message) {
        match message {
            Message::Hello(hello) => {
                if let Some(slot) = beyond.lock().hellos.get_mut(from) {
                    *slot = Some(hello);
                }
                self.launch.notify();
            }
            Message::Group { group, news } => {
                let mut state = beyond.lock();
                let early = || Slot::Early(Vec::new());
                let gang = match state.groups.entry(group).or_insert_with(early) {
                    Slot::Here(gang) => gang.upgrade(),
                    Slot::Early(waiting) => {
                        if waiting.len() < EARLY {
                            waiting.push((from, news));
                            return;
                        }
                        None
                    }
                    Slot::Ignored => None,
                };
                drop(state);
                if let Some(gang) = gang {
                    gang.hear(from, news);
                }
            }
            Message::Ended { rank, failure } => {
                let standing = failure.map_or(Standing::Left, Standing::Failed);
                self.launch.leave(rank, standing.clone());
                if let Some(outer) = beyond.outer.upgrade() {
                    outer.leave(rank, standing);
                }
            }
            Message::Departed { rank } => self.launch.leave(rank, Standing::Left),
        }
    }

    /// A process cannot be reckoned with any more.
    fn lose(&self, beyond: &Beyond, process: usize, reason: &str) {
        let outer = beyond.outer.upgrade();
        for rank in self.ranks_in(process) {
            let standing = Standing::Failed(reason.to_owned());
            self.launch.leave(rank, standing.clone());
            if let Some(outer) = &outer {
                outer.leave(rank, standing);
            }
        }
    }

    /// A process is not in the world any more.
    fn is_gone(&self, beyond: &Beyond, process: usize) {
        if let Some(gone) = beyond.lock().gone.get_mut(process) {
            *gone = true;
        }
        self.launch.notify();
    }

    fn others_are_gone(&self) -> bool {
        let own = self.launch.topology().process_index;
        self.beyond.as_ref().is_none_or(|beyond| {
            let state = beyond.lock();
            let mut others = state.gone.iter().enumerate();
            others.all(|(process, gone)| *gone || process == own)
        })
    }

    fn ranks_in(&self, process: usize) -> std::ops::Range<usize> {
        let replicas = self.launch.topology().replicas;
        process * replicas..(process + 1) * replicas
    }

    /// The function of a replica of this process has ended.
    fn local_ended(&self, position: usize, standing: &Standing) {
        let rank = self.launch.local_ranks().start + position;
        let failure = match standing {
            Standing::Failed(message) => Some(message.clone()),
            Standing::Left | Standing::Running => None,
        };
        // The others first: those here who wait for it fail next, and theirs is to be heard later.
        self.tell(&Message::Ended { rank, failure });
        self.launch.leave(rank, standing.clone());
        self.leave_when_done();
    }

    /// Leaves once all replicas of this process have, unless the others need the store.
    fn leave_when_done(&self) {
        let standings = self.launch.standings();
        let mut local = self.launch.local_ranks();
        let done = local.all(|rank| {
            let standing = standings.get(rank);
            !matches!(standing, None | Some(Standing::Running))
        });
        if done && !self.beyond.as_ref().is_some_and(|beyond| beyond.host) {
            self.leave();
        }
    }

    fn leave(&self) {
        let membership = self.beyond.as_ref().and_then(|b| b.membership.get());
        if let Some(membership) = membership {
            membership.leave();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.leave();
    }
}
