//! How the processes of a run find each other, and notice that one of them is gone.
//!
//! Three things, on one TCP connection protocol:
//!
//! * a key-value store ([`Server`], [`Store`]) through which processes exchange addresses and
//!   small values;
//! * a control channel ([`Store::join`]): messages to all other members of a scope, signs of life
//!   from a thread of their own, and an [`Event`] when a member leaves, fails or is gone;
//! * the contract with launchers ([`environment`]) and the methods of [`rendezvous`].
//!
//! [`Store::local`] is the same within one process, without a network.
//!
//! Everything that waits has a deadline. A peer that sends garbage, a token that is wrong, a
//! message that is too long are errors of that one connection; the store goes on for the others.
//! Tokens keep strangers out, but nothing is encrypted: a store belongs into a network that one
//! trusts. Not for bulk data, which goes between the processes directly.
#![forbid(unsafe_code)]

mod client;
pub mod environment;
mod handshake;
mod hub;
mod inherited;
mod member;
mod queue;
mod rendezvous;
mod server;
mod session;
mod store;
mod table;
mod torch;
mod watch;
mod wire;

pub use environment::{External, Source};
pub use hub::MAX_MEMBERS;
pub use member::{Event, Membership};
pub use rendezvous::{LaunchInfo, Rendezvous, register_rendezvous_handler, rendezvous};
pub use server::{Server, ServerOptions};
pub use store::{ConnectOptions, Store};
pub use wire::{MAX_KEY, MAX_KEYS, MAX_VALUE};

/// What a store consists of, wherever it is.
#[derive(Default)]
struct Node {
    table: table::Table,
    hub: hub::Hub,
}

impl Node {
    /// Takes a member for failed.
    fn fail(&self, scope: &str, member: usize, reason: String) {
        self.hub.end(scope, member, hub::Ending::Failed(reason));
    }
}
