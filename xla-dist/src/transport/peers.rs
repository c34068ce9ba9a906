//! The [`Transport`] over Gloo: how the processes of a set connect, and how a loss is noticed.

use super::gloo::{Context, Farewell, Peer, Scope, Unfinished};
use super::{Channel, Failure, Messages, Ticket, Transport, Work};
use std::ffi::CString;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use xla_core::{Error, Result};
use xla_store::Store;

/// All have published their addresses when the first connection is made, so none takes long.
const CONNECT_AT_MOST: Duration = Duration::from_secs(60);
/// How often the connections are looked at. Most losses show without this.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// How long a process that leaves waits for its goodbye to be sent.
const FAREWELL_AT_MOST: Duration = Duration::from_millis(200);
/// Where the first message of a connection meets; not a channel's slot.
const HELLO: u64 = u64::MAX - 1;

/// The processes of a set, connected over TCP.
pub(super) struct Peers {
    shared: Arc<Shared>,
    /// Dropped to end the thread that watches.
    watch: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

struct Shared {
    context: Context,
    index: usize,
    processes: usize,
    state: Mutex<State>,
}

struct State {
    /// The first failure: nothing works after it.
    broken: Option<Failure>,
    /// What became of each process.
    peers: Vec<Peer>,
}

impl Peers {
    /// Connects with the others.
    pub(super) fn connect(
        store: &Store,
        index: usize,
        processes: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let end = Instant::now() + deadline;
        let left = || end.saturating_duration_since(Instant::now());
        let failed = |process: usize, reason: String| Error::Transport { process, reason };
        let (address, interface) = local_address(store).map_err(|e| failed(index, e))?;
        let within = deadline.min(CONNECT_AT_MOST);
        let context = Context::listen(index, processes, &address, &interface, within)
            .map_err(|reason| failed(index, reason))?;
        let others = || (0..processes).filter(move |peer| *peer != index);
        for peer in others() {
            let own = context
                .address(peer)
                .map_err(|reason| failed(peer, reason))?;
            store.set(&format!("{index}/for/{peer}"), &own)?;
        }
        let mut addresses = Vec::with_capacity(processes);
        for peer in others() {
            addresses.push((peer, store.get(&format!("{peer}/for/{index}"), left())?));
        }
        for (peer, address) in &addresses {
            context
                .connect(*peer, address)
                .map_err(|reason| failed(*peer, reason))?;
        }
        hello(&context, index, processes, within).map_err(|(peer, reason)| failed(peer, reason))?;
        let shared = Arc::new(Shared {
            context,
            index,
            processes,
            state: Mutex::new(State {
                broken: None,
                peers: vec![Peer::There; processes],
            }),
        });
        let (sender, ended) = mpsc::channel();
        let watching = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("xla-transport".into())
            .spawn(move || watching.watch(&ended))
            .map_err(|error| failed(index, error.to_string()))?;
        Ok(Peers {
            shared,
            watch: Some((sender, thread)),
        })
    }
}

impl Peers {
    /// Gloo's own algorithm, for comparison.
    pub(super) fn own_all_reduce(
        &self,
        tag: u32,
        numbers: &mut [f32],
        within: Duration,
    ) -> Result<(), String> {
        self.shared.context.own_all_reduce(tag, numbers, within)
    }
}

/// Exchanges each process's index with each other: afterwards both ends of every connection know that
/// it is made. (Gloo ends a process whose peer resets a connection that it has not accepted yet.)
fn hello(
    context: &Context,
    index: usize,
    processes: usize,
    within: Duration,
) -> Result<(), (usize, String)> {
    let own = (index as u64).to_le_bytes();
    let mut received = vec![[0; 8]; processes];
    context.scope(|scope| {
        let mut tickets = Vec::new();
        for (peer, bytes) in received.iter_mut().enumerate() {
            if peer != index {
                let of = |reason| (peer, reason);
                tickets.push((peer, scope.receive(peer, HELLO, bytes).map_err(of)?));
                tickets.push((peer, scope.send(peer, HELLO, &own).map_err(of)?));
            }
        }
        for (peer, ticket) in tickets {
            scope.wait(ticket, within).map_err(|e| (peer, words(e)))?;
        }
        Ok(())
    })?;
    let wrong = |(peer, bytes): (usize, &[u8; 8])| {
        let said = u64::from_le_bytes(*bytes);
        (peer != index && said != peer as u64)
            .then(|| (peer, format!("process {said} answered in its place")))
    };
    received
        .iter()
        .enumerate()
        .find_map(wrong)
        .map_or(Ok(()), Err)
}

fn words(unfinished: Unfinished) -> String {
    match unfinished {
        Unfinished::Woken => "the wait was ended".into(),
        Unfinished::Failed(reason) => reason,
    }
}

/// The address to listen at, or the interface: the one that `GLOO_SOCKET_IFNAME` names, else where
/// the system would send to the store from.
fn local_address(store: &Store) -> Result<(CString, CString), String> {
    let text = |text: String| CString::new(text).map_err(|error| error.to_string());
    if let Ok(name) = std::env::var("GLOO_SOCKET_IFNAME")
        && !name.is_empty()
    {
        return Ok((CString::default(), text(name)?));
    }
    // A store in this process has no address.
    let Ok(addresses) = store.address().to_socket_addrs() else {
        return Ok((text("127.0.0.1".into())?, CString::default()));
    };
    let routed = |address: SocketAddr| {
        let any = if address.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let socket = UdpSocket::bind(any)?;
        // Nothing is sent: this only chooses a route.
        socket.connect(address)?;
        socket.local_addr()
    };
    let mut found = Err("it has no address".into());
    for address in addresses {
        found = routed(address).map_err(|error| error.to_string());
        if found.is_ok() {
            break;
        }
    }
    let local = found
        .map_err(|error: String| format!("no route to the store {}: {error}", store.address()))?;
    Ok((text(local.ip().to_string())?, CString::default()))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usable(&self) -> Result<(), Failure> {
        self.state().broken.clone().map_or(Ok(()), Err)
    }

    /// Ends the transport for this reason, unless it has ended for another; returns the reason.
    fn fail(&self, failure: Failure) -> Failure {
        let mut state = self.state();
        if let Some(first) = &state.broken {
            return first.clone();
        }
        state.broken = Some(failure.clone());
        drop(state);
        self.context.wake(|_| true);
        self.context.close();
        failure
    }

    /// Looks after the connections until the transport ends. Gloo itself ends the waits for messages
    /// that have not begun to move when a connection breaks; this ends those of the others.
    fn watch(&self, ended: &mpsc::Receiver<()>) {
        let others = (0..self.processes).filter(|peer| *peer != self.index);
        let mut farewells: Vec<(usize, Farewell<'_>)> = Vec::new();
        for peer in others {
            match self.context.farewell_of(peer) {
                Ok(farewell) => farewells.push((peer, farewell)),
                Err(reason) => self.state().peers[peer] = Peer::Lost(reason),
            }
        }
        while ended.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
            farewells.retain(|(peer, farewell)| {
                let found = farewell.peer();
                let there = found == Peer::There;
                if !there {
                    self.state().peers[*peer] = found;
                }
                there
            });
            let gone: Vec<bool> = {
                let state = self.state();
                state.peers.iter().map(|p| *p != Peer::There).collect()
            };
            // Again at each look: messages may have been started since.
            if gone.contains(&true) {
                self.context.wake(|peer| gone[peer]);
            }
        }
    }

    /// Why a message from or to a process did not complete.
    fn reason(&self, process: usize, unfinished: Unfinished, end: Instant) -> Failure {
        let state = self.state();
        if let Some(failure) = &state.broken {
            return failure.clone();
        }
        let reason = match (&state.peers[process], unfinished) {
            (Peer::Left, _) => "it has ended its part".into(),
            (Peer::Lost(reason), _) => reason.clone(),
            (Peer::There, _) if Instant::now() >= end => return Failure::Late { process },
            (Peer::There, unfinished) => words(unfinished),
        };
        Failure::Lost { process, reason }
    }
}

impl Transport for Peers {
    fn index(&self) -> usize {
        self.shared.index
    }

    fn call<'env>(&self, end: Instant, work: &mut Work<'_, 'env>) -> Result<(), Failure> {
        self.shared.usable()?;
        let done = self.shared.context.scope(|scope| {
            work(&mut Started {
                shared: &self.shared,
                scope,
                peers: Vec::new(),
                end,
            })
        });
        // Reported before the messages are freed would be too early: closing may race with them.
        done.map_err(|failure| self.shared.fail(failure))
    }

    fn abort(&self, reason: &str) {
        self.shared.fail(Failure::Aborted(reason.into()));
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if self.shared.usable().is_ok() {
            for peer in 0..self.shared.processes {
                let there = self.shared.state().peers[peer] == Peer::There;
                if peer != self.shared.index && there {
                    // A peer that does not read it finds the connection closed.
                    let _ = self.shared.context.farewell_to(peer, FAREWELL_AT_MOST);
                }
            }
        }
        if let Some((sender, thread)) = self.watch.take() {
            drop(sender);
            // It does not panic, and nothing would be left to do if it had.
            let _ = thread.join();
        }
    }
}

/// A call's messages.
struct Started<'s, 'c, 'env> {
    shared: &'s Shared,
    scope: &'s mut Scope<'c, 'env>,
    /// Of each message.
    peers: Vec<usize>,
    end: Instant,
}

impl Started<'_, '_, '_> {
    fn ticket(
        &mut self,
        process: usize,
        started: Result<usize, String>,
    ) -> Result<Ticket, Failure> {
        match started {
            Ok(message) => {
                self.peers.resize(message, process);
                self.peers.push(process);
                // Whoever breaks the transport wakes what it finds; this message may be newer.
                self.shared.usable()?;
                Ok(Ticket(Some(message)))
            }
            Err(reason) => Err(self
                .shared
                .reason(process, Unfinished::Failed(reason), self.end)),
        }
    }
}

impl<'env> Messages<'env> for Started<'_, '_, 'env> {
    fn send(
        &mut self,
        process: usize,
        channel: Channel,
        data: &'env [u8],
    ) -> Result<Ticket, Failure> {
        if data.is_empty() {
            return Ok(Ticket(None));
        }
        let started = self.scope.send(process, channel.slot(data.len()), data);
        self.ticket(process, started)
    }

    fn lend(
        &mut self,
        process: usize,
        channel: Channel,
        data: &'env mut [u8],
    ) -> Result<Ticket, Failure> {
        if data.is_empty() {
            return Ok(Ticket(None));
        }
        let started = self.scope.lend(process, channel.slot(data.len()), data);
        self.ticket(process, started)
    }

    fn receive(
        &mut self,
        process: usize,
        channel: Channel,
        into: &'env mut [u8],
    ) -> Result<Ticket, Failure> {
        if into.is_empty() {
            return Ok(Ticket(None));
        }
        let started = self.scope.receive(process, channel.slot(into.len()), into);
        self.ticket(process, started)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<&'env mut [u8], Failure> {
        let Some(message) = ticket.0 else {
            return Ok(&mut []);
        };
        let left = self.end.saturating_duration_since(Instant::now());
        match self.scope.wait(message, left) {
            Ok(memory) => return Ok(memory),
            // A process that is gone may have sent it before.
            Err(Unfinished::Woken) if self.shared.usable().is_ok() => {}
            Err(unfinished) => {
                return Err(self
                    .shared
                    .reason(self.peers[message], unfinished, self.end));
            }
        }
        self.scope
            .wait(message, Duration::ZERO)
            .map_err(|unfinished| {
                self.shared
                    .reason(self.peers[message], unfinished, self.end)
            })
    }
}
