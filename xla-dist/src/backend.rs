//! The backends that a default group may be made with, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use xla_core::{Error, Result};
use xla_store::Store;

/// The world that a backend sets a process up for.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BackendWorld<'a> {
    /// What its processes have in common; keys are this world's own.
    pub store: &'a Store,
    /// This process among all, from 0.
    pub process_index: usize,
    /// How many there are.
    pub processes: usize,
    /// How long it may wait for the others.
    pub deadline: Duration,
}

type SetUp = dyn Fn(&BackendWorld<'_>) -> Result<()> + Send + Sync;

/// `xla` needs nothing: it is there without being registered.
static BACKENDS: LazyLock<Mutex<BTreeMap<String, Arc<SetUp>>>> = LazyLock::new(|| {
    let xla: Arc<SetUp> = Arc::new(|_| Ok(()));
    Mutex::new(BTreeMap::from([("xla".into(), xla)]))
});

/// Adds a backend to those that [`init_process_group`](crate::init_process_group) knows.
///
/// Collectives are operators of the compiled program whatever the backend; it says what a process
/// has to do before its first one. `set_up` is called once in each process whenever a default group
/// is made with this name, when the processes have met and before they are connected.
///
/// # Errors
/// [`Error::Config`] for a name that is taken.
///
/// ```
/// xla_dist::register_backend("logged", |world| {
///     println!("process {} of {}", world.process_index, world.processes);
///     Ok(())
/// })?;
/// xla_dist::init_process_group("logged", "xla://")?;
/// # xla_dist::destroy_process_group()?;
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn register_backend(
    name: &str,
    set_up: impl Fn(&BackendWorld<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let mut backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    if backends.contains_key(name) {
        return Err(Error::Config {
            name: "backend",
            expected: "a name that no other backend has".into(),
            got: name.into(),
        });
    }
    backends.insert(name.to_owned(), Arc::new(set_up));
    Ok(())
}

/// A backend that is known.
#[derive(Clone)]
pub(crate) struct Backend {
    pub(crate) name: String,
    set_up: Arc<SetUp>,
}

impl Backend {
    /// # Errors
    /// [`Error::Config`] for a name that nobody has registered.
    pub(crate) fn named(name: &str) -> Result<Backend> {
        let backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
        match backends.get(name) {
            Some(set_up) => Ok(Backend {
                name: name.to_owned(),
                set_up: Arc::clone(set_up),
            }),
            None => Err(Error::Config {
                name: "backend",
                expected: format!("one of {:?}", backends.keys().collect::<Vec<_>>()),
                got: name.into(),
            }),
        }
    }

    pub(crate) fn set_up(&self, world: &BackendWorld<'_>) -> Result<()> {
        (self.set_up)(world)
    }
}
