//! [`Store`]: the handle through which a process uses a store, wherever it is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xla_core::config::DEFAULT_DEADLINE;
use xla_core::{Config, Error, Result};

use crate::client::Client;
use crate::member::{self, Event, Membership};
use crate::table::check;
use crate::wire::{Request, Response};
use crate::{Node, environment};

/// How a [`Store`] connects.
#[derive(Clone)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// How long to try while nobody listens at the address.
    pub deadline: Duration,
    /// What the server wants to know; `None` for a server that wants nothing.
    pub token: Option<String>,
    /// How long the server may be silent on a control channel before it is taken for gone; `None`
    /// for `XLA_HEARTBEAT_SECONDS`, or 5 s.
    pub heartbeat: Option<Duration>,
}

impl Default for ConnectOptions {
    /// 30 minutes, and the token in `XLA_STORE_TOKEN`.
    fn default() -> Self {
        ConnectOptions {
            deadline: DEFAULT_DEADLINE,
            token: environment::token(),
            heartbeat: None,
        }
    }
}

impl ConnectOptions {
    /// These options with another deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// These options with another token.
    #[must_use]
    pub fn token(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// These options with another [`heartbeat`](Self::heartbeat).
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("deadline", &self.deadline)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("heartbeat", &self.heartbeat)
            .finish()
    }
}

/// A key-value store that processes, or the threads of one, have in common.
///
/// Clones are the same store. Any number of threads may use one: a call that waits does not keep
/// another from going on. Keys and values are bytes to the store; a counter ([`add`](Store::add))
/// is kept as decimal digits.
///
/// ```
/// use std::time::Duration;
/// let store = xla_store::Store::local().prefixed("attempt-0");
/// store.set("address", b"10.0.0.7:29500")?;
/// assert_eq!(store.get("address", Duration::from_secs(1))?, b"10.0.0.7:29500");
/// assert_eq!(store.keys("")?, ["address"]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Store {
    backend: Backend,
    prefix: Arc<str>,
}

#[derive(Clone)]
enum Backend {
    Local(Arc<Node>),
    Remote {
        client: Arc<Client>,
        heartbeat: Duration,
    },
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("address", &self.address())
            .field("prefix", &self.prefix)
            .finish()
    }
}

impl Store {
    /// A client of the server at `host:port`, tried again until the deadline while nobody listens.
    ///
    /// # Errors
    /// [`Error::Deadline`] when nobody does, [`Error::StoreToken`] when the tokens do not agree,
    /// [`Error::Store`] when something else than a store listens there.
    pub fn connect(address: &str, options: &ConnectOptions) -> Result<Store> {
        let heartbeat = match options.heartbeat {
            Some(heartbeat) => heartbeat,
            None => Config::global()?.heartbeat,
        };
        let client = Client::connect(address, options.token.clone(), options.deadline)?;
        Ok(Store {
            backend: Backend::Remote {
                client: Arc::new(client),
                heartbeat,
            },
            prefix: "".into(),
        })
    }

    /// A store in this process, without a network: for worlds whose replicas are all threads.
    pub fn local() -> Store {
        Store {
            backend: Backend::Local(Arc::default()),
            prefix: "".into(),
        }
    }

    /// Where it is: `host:port`, or `this process`.
    pub fn address(&self) -> &str {
        match &self.backend {
            Backend::Local(_) => "this process",
            Backend::Remote { client, .. } => client.address(),
        }
    }

    /// The same store, where `key` means `prefix/key`; scopes of [`join`](Store::join) too.
    pub fn prefixed(&self, prefix: &str) -> Store {
        Store {
            backend: self.backend.clone(),
            prefix: format!("{}{prefix}/", self.prefix).into(),
        }
    }

    /// Sets a key, whatever it was before.
    ///
    /// # Errors
    /// [`Error::Store`] when the store is gone or full, or the key (4 KiB) or value (64 MiB) too
    /// long.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = &self.key(key);
        match self.call("Store::set", &Request::Set { key, value }, Duration::ZERO)? {
            Response::Done => Ok(()),
            other => Err(self.unexpected("Store::set", other)),
        }
    }

    /// The value of a key, waited for until it is set.
    ///
    /// # Errors
    /// [`Error::Deadline`] when it is not set in time; as [`set`](Store::set).
    pub fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        const CALL: &str = "Store::get";
        let request = Request::Get {
            key: &self.key(key),
            milliseconds: milliseconds(deadline),
        };
        match self.call(CALL, &request, deadline)? {
            Response::Value(value) => Ok(value.into_vec()),
            Response::Missing(keys) => Err(self.late(CALL, &keys, deadline)),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// The value of a key, `None` while it is not set.
    ///
    /// # Errors
    /// As [`set`](Store::set).
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        const CALL: &str = "Store::try_get";
        let key = &self.key(key);
        match self.call(CALL, &Request::TryGet { key }, Duration::ZERO)? {
            Response::Value(value) => Ok(Some(value.into_vec())),
            Response::Absent => Ok(None),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// Waits until all keys are set.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming those that are not set in time; as [`set`](Store::set).
    pub fn wait(&self, keys: &[&str], deadline: Duration) -> Result<()> {
        match self.missing("Store::wait", keys, deadline)? {
            missing if missing.is_empty() => Ok(()),
            missing => Err(self.late("Store::wait", &missing, deadline)),
        }
    }

    /// Those of the keys that are not set in time.
    pub(crate) fn missing(
        &self,
        call: &'static str,
        keys: &[&str],
        deadline: Duration,
    ) -> Result<Vec<String>> {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        let request = Request::Wait {
            keys: keys.iter().map(String::as_str).collect(),
            milliseconds: milliseconds(deadline),
        };
        match self.call(call, &request, deadline)? {
            Response::Done => Ok(Vec::new()),
            Response::Missing(keys) => Ok(self.stripped(keys)),
            other => Err(self.unexpected(call, other)),
        }
    }

    /// Adds to a counter, which starts at 0, and returns its new value.
    ///
    /// # Errors
    /// [`Error::Store`] when the key holds something else, or the sum is beyond 64 bits; as
    /// [`set`](Store::set).
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        const CALL: &str = "Store::add";
        let key = &self.key(key);
        match self.call(CALL, &Request::Add { key, amount }, Duration::ZERO)? {
            Response::Number(sum) => Ok(sum),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// Sets a key if its value is the expected one (`None`: if it is not set), and returns the
    /// value it then has: `desired` if it was set, now or by another.
    ///
    /// ```
    /// let store = xla_store::Store::local();
    /// assert_eq!(store.compare_and_set("leader", None, b"3")?.as_deref(), Some(&b"3"[..]));
    /// assert_eq!(store.compare_and_set("leader", None, b"5")?.as_deref(), Some(&b"3"[..]));
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Store::set).
    pub fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        desired: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        const CALL: &str = "Store::compare_and_set";
        let request = Request::CompareAndSet {
            key: &self.key(key),
            expected,
            desired,
        };
        match self.call(CALL, &request, Duration::ZERO)? {
            Response::Value(value) => Ok(Some(value.into_vec())),
            Response::Absent => Ok(None),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// The keys that start with a prefix, ascending.
    ///
    /// # Errors
    /// As [`set`](Store::set).
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        const CALL: &str = "Store::keys";
        let prefix = &self.key(prefix);
        match self.call(CALL, &Request::Keys { prefix }, Duration::ZERO)? {
            Response::Keys(keys) => Ok(self.stripped(keys)),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// Removes a key; says whether it was set.
    ///
    /// # Errors
    /// As [`set`](Store::set).
    pub fn delete(&self, key: &str) -> Result<bool> {
        const CALL: &str = "Store::delete";
        let key = &self.key(key);
        match self.call(CALL, &Request::Delete { key }, Duration::ZERO)? {
            Response::Flag(was_set) => Ok(was_set),
            other => Err(self.unexpected(CALL, other)),
        }
    }

    /// Joins a scope's control channel: from now on this process gives signs of life, is told when
    /// another member fails, leaves or is gone, and sends messages to all of them.
    ///
    /// `member` counts from 0 to `size - 1`; each joins once. Events come from a thread of their
    /// own, one after the other; those of one member in the order in which it caused them, and
    /// those from before this one joined too.
    ///
    /// # Errors
    /// [`Error::Store`] when the member has joined before, or the scope has another size; as
    /// [`set`](Store::set).
    ///
    /// ```
    /// use std::sync::mpsc::channel;
    /// use xla_store::{Event, Store};
    ///
    /// let store = Store::local();
    /// let (events, received) = channel();
    /// let zero = store.join("training", 0, 2, |_| {})?;
    /// zero.send(b"ready")?;
    /// let one = store.join("training", 1, 2, move |event| drop(events.send(event)))?;
    /// assert_eq!(received.recv(), Ok(Event::Message { from: 0, bytes: b"ready".to_vec() }));
    /// zero.leave();
    /// assert_eq!(received.recv(), Ok(Event::Left { member: 0 }));
    /// one.leave();
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    pub fn join(
        &self,
        scope: &str,
        member: usize,
        size: usize,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Membership> {
        const CALL: &str = "Store::join";
        let scope = self.key(scope);
        let refused = |reason| self.refused(CALL, reason);
        let (Ok(member_index), Ok(count)) = (u32::try_from(member), u32::try_from(size)) else {
            return Err(refused(format!("member {member} of {size}: too many")));
        };
        let request = Request::Join {
            scope: &scope,
            member: member_index,
            size: count,
        };
        check(&request).map_err(refused)?;
        match &self.backend {
            Backend::Local(node) => {
                let outbox = node.hub.join(&scope, member, size).map_err(refused)?;
                member::local::join(Arc::clone(node), outbox, scope.clone(), member, on_event)
            }
            Backend::Remote { client, heartbeat } => {
                member::remote::join(client, &request, *heartbeat, on_event)
            }
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn stripped(&self, keys: Vec<String>) -> Vec<String> {
        let strip = |key: String| match key.strip_prefix(&*self.prefix) {
            Some(rest) => rest.to_owned(),
            None => key,
        };
        keys.into_iter().map(strip).collect()
    }

    fn call(&self, call: &'static str, request: &Request<'_>, wait: Duration) -> Result<Response> {
        // The server checks too; here it saves sending what would be refused.
        check(request).map_err(|reason| self.refused(call, reason))?;
        match &self.backend {
            Backend::Local(node) => Ok(node.table.answer(request, || false)),
            Backend::Remote { client, .. } => client.call(call, request, wait),
        }
    }

    fn late(&self, call: &'static str, keys: &[String], deadline: Duration) -> Error {
        let keys = self.stripped(keys.to_vec());
        Error::Deadline {
            what: format!("{call}: waiting for {keys:?} at {}", self.address()),
            after: deadline,
            advice: "; did the process that sets it fail, or is it late?",
        }
    }

    fn refused(&self, call: &'static str, reason: String) -> Error {
        Error::Store {
            call,
            address: self.address().to_owned(),
            reason,
            advice: "",
        }
    }

    fn unexpected(&self, call: &'static str, response: Response) -> Error {
        match response {
            Response::Refused(reason) => self.refused(call, reason),
            other => self.refused(
                call,
                format!("it gave an answer of another kind: {other:?}"),
            ),
        }
    }
}

fn milliseconds(deadline: Duration) -> u64 {
    u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)
}
