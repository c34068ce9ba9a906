//! The replicas of a default group and the processes that drive them.
//!
//! The replicas of one process meet ([`crate::lobby`]); the last to come meets the other processes,
//! by the method that the user named, and joins the world's control channel. From then on each
//! process knows of every rank whether it still runs, and tells the others of its own.

mod beyond;
mod meeting;
mod plugin;

use crate::backend::{Backend, BackendWorld};
use crate::exchange;
use crate::gang::{Across, Layout, Shared, ThreadGang};
use crate::lobby::{Guest, Lobbies};
use beyond::Beyond;
use std::sync::{Arc, LazyLock};
use xla_core::{Error, Result};
use xla_lazy::Gang;
use xla_runtime::context::{Launch, Mode, ReplicaContext, Topology};
use xla_store::Store;

/// The method that leaves everything to the launch.
pub(crate) const FROM_LAUNCH: &str = "xla://";

/// The replicas of one default group, as their process sees them.
pub(crate) struct World {
    /// Who of them is still there.
    launch: Arc<Launch>,
    store: Store,
    /// Where there are other processes.
    beyond: Option<Beyond>,
}

impl World {
    /// Waits for all replicas and returns their world. `generation` is how many default groups the
    /// calling one has had before.
    pub(crate) fn join(
        call: &'static str,
        context: &Arc<ReplicaContext>,
        generation: u64,
        backend: &Backend,
        url: &str,
    ) -> Result<Arc<World>> {
        static WORLDS: LazyLock<Lobbies<(u64, u64), Arc<World>>> = LazyLock::new(Lobbies::new);
        let launch = context.launch();
        let expected: Vec<usize> = launch.local_ranks().collect();
        let guest = Guest {
            call,
            launch,
            expected: &expected,
            rank: context.rank(),
            device: context.device().ordinal().unwrap_or_default(),
            subject: format!("a default group of {:?} by {url:?}", backend.name),
        };
        WORLDS.meet((launch.id(), generation), &guest, |_| {
            World::form(call, context, backend, url)
        })
    }

    fn form(
        call: &'static str,
        context: &ReplicaContext,
        backend: &Backend,
        url: &str,
    ) -> Result<Arc<World>> {
        let launch = context.launch();
        let topology = launch.topology();
        let told = match context.mode() {
            Mode::Debug => true,
            // Nobody has launched this process from inside; somebody else may have.
            Mode::Single => false,
            _ => url == FROM_LAUNCH && topology.processes == 1,
        };
        let set_up = |store: &Store, processes: usize, process_index: usize| {
            backend.set_up(&BackendWorld {
                store,
                process_index,
                processes,
                deadline: launch.deadline(),
            })
        };
        if told {
            let store = Store::local();
            set_up(&store, 1, 0)?;
            return Ok(World::within(launch, store));
        }
        let meeting = meeting::of_process(url, launch.deadline())?;
        let found = Topology {
            processes: meeting.processes(),
            process_index: meeting.process_index(),
            replicas: topology.replicas,
        };
        if topology.processes > 1 && found != topology {
            return Err(Error::ProcessGroup {
                what: call,
                state: format!(
                    "this is process {} of {} by {url}, and {} of {} by its launch",
                    found.process_index,
                    found.processes,
                    topology.process_index,
                    topology.processes
                ),
                advice: "use \"xla://\" where a launch says who is who",
            });
        }
        let store = meeting.next_world();
        set_up(&store, found.processes, found.process_index)?;
        if found.processes == 1 {
            return Ok(World::within(launch, store));
        }
        let own = Launch::spanning(context.mode(), found, launch.deadline());
        beyond::join(call, launch, own, store, meeting.is_host())
    }

    /// The world of a launch that has no other processes.
    pub(crate) fn within(launch: &Arc<Launch>, store: Store) -> Arc<World> {
        Arc::new(World {
            launch: Arc::clone(launch),
            store,
            beyond: None,
        })
    }

    /// Who of its replicas is still there, in all processes.
    pub(crate) fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Number of replicas.
    pub(crate) fn size(&self) -> usize {
        self.launch.world_size()
    }

    /// The global rank of a replica of this process: the one that the context says where no other
    /// process is known to the launch.
    pub(crate) fn rank_of(&self, context: &ReplicaContext) -> usize {
        let local = context.rank() - context.launch().local_ranks().start;
        self.launch.local_ranks().start + local
    }

    /// The store that its processes have in common, where keys are this world's own.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The replica of this rank is done with the world: it has destroyed its default group.
    pub(crate) fn depart(&self, rank: usize) {
        if let Some(beyond) = &self.beyond {
            beyond.depart(self, rank);
        }
    }

    /// Waits for the members of a group in this process and returns this one's handle on their gang;
    /// `None` where it is alone or not one of them. `child` is the group's number, the same on all
    /// ranks.
    pub(crate) fn gang(
        self: &Arc<Self>,
        call: &'static str,
        context: &ReplicaContext,
        (generation, child): (u64, u64),
        ranks: &[usize],
    ) -> Result<Option<Arc<dyn Gang>>> {
        static GANGS: LazyLock<Lobbies<(u64, u64, u64), Arc<Shared>>> = LazyLock::new(Lobbies::new);
        let rank = self.rank_of(context);
        let local = self.launch.local_ranks();
        let expected: Vec<usize> = ranks
            .iter()
            .copied()
            .filter(|rank| local.contains(rank))
            .collect();
        if ranks.len() == 1 || expected.is_empty() {
            if let Some(beyond) = &self.beyond {
                beyond.ignore(child);
            }
            return Ok(None);
        }
        let guest = Guest {
            call,
            launch: &self.launch,
            expected: &expected,
            rank,
            device: context.device().ordinal().unwrap_or_default(),
            subject: format!("a group of the ranks {ranks:?}"),
        };
        let Ok(member) = expected.binary_search(&rank) else {
            return Ok(None);
        };
        let key = (self.launch.id(), generation, child);
        let shared = GANGS.meet(key, &guest, |devices| {
            self.make_gang(call, child, ranks, expected.clone(), devices)
        })?;
        Ok(Some(Arc::new(ThreadGang::new(shared, member))))
    }

    fn make_gang(
        self: &Arc<Self>,
        call: &'static str,
        child: u64,
        ranks: &[usize],
        local: Vec<usize>,
        devices: Vec<usize>,
    ) -> Result<Arc<Shared>> {
        let launch = Arc::clone(&self.launch);
        let topology = launch.topology();
        let own = topology.process_index;
        let layout = Layout::new(ranks, |rank| topology.process_of(rank), own);
        match (&self.beyond, layout) {
            (Some(beyond), Some(layout)) if layout.processes() > 1 => {
                let layout = Arc::new(layout);
                exchange::register()?;
                let transport = beyond.connect(call, self, child, &layout)?;
                let across = Across::new(child, layout, self.clone(), transport);
                let gang = Shared::spanning(launch, local, devices, across);
                beyond.register(child, &gang, ranks);
                Ok(gang)
            }
            (beyond, _) => {
                if let Some(beyond) = beyond {
                    beyond.ignore(child);
                }
                Ok(Shared::new(launch, local, devices))
            }
        }
    }
}
