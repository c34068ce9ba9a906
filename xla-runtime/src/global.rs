//! The process's own client, and how to be rid of it again.

use crate::client::Client;
use crate::disk_cache::PersistentCache;
use crate::options::ClientOptions;
use crate::plugin::Plugin;
use crate::{context, kv};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use xla_core::{Config, DeviceKind, Error, Result};

static GLOBAL: RwLock<Option<Client>> = RwLock::new(None);
/// Held while the client is created or destroyed, which readers of [`GLOBAL`] do not wait for.
static CHANGING: Mutex<()> = Mutex::new(());
static HOOKS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

fn current() -> Option<Client> {
    GLOBAL
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn changing() -> MutexGuard<'static, ()> {
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// The process's client, created at the first call from the process's configuration
    /// ([`Config::global`]): the plugin is found and loaded, `CPU_NUM_DEVICES` sets the number of CPU
    /// devices, `XLA_PERSISTENT_CACHE_PATH` where compiled programs are kept; what [`set_cpu_threads`](crate::set_cpu_threads) and
    /// [`set_cluster`](crate::set_cluster) were told is heeded. It lives until
    /// [`Client::release_global`], or as long as the process; at exit, work in flight is waited for.
    ///
    /// # Errors
    /// Those of [`Config::global`], [`Plugin::find`], [`Plugin::load`] and [`Client::create`]. A
    /// later call tries again.
    pub fn global() -> Result<Client> {
        if let Some(client) = current() {
            return Ok(client);
        }
        let _one_at_a_time = changing();
        if let Some(client) = current() {
            return Ok(client);
        }
        let config = Config::global()?;
        let plugin = Plugin::load(&Plugin::find(config)?)?;
        let options = ClientOptions {
            kind: config.device,
            cpu_device_count: config
                .cpu_num_devices
                .filter(|_| config.device == DeviceKind::Cpu),
            cluster: kv::close(config.device),
            persistent_cache: PersistentCache::of(config),
            memory_limit: config.memory_limit,
            ..ClientOptions::default()
        };
        let client = Client::create(&plugin, &options).inspect_err(|_| kv::reopen())?;
        *GLOBAL.write().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    /// Destroys the process's client, so that its devices are free for other processes. The next
    /// [`Client::global`] creates another. Without a client this does nothing.
    ///
    /// Crates that keep something of the client only to be faster are told first
    /// ([`Client::on_release`]). Work in flight is waited for.
    ///
    /// # Errors
    /// [`Error::Launch`] while somebody still has a buffer, program or event of the client, or the
    /// client itself: it stays then, unharmed. [`Error::Deadline`] when what runs on it does not end
    /// within `deadline`; that of a step of the calling thread which has failed meanwhile.
    pub fn release_global(deadline: Duration) -> Result<()> {
        let end = Instant::now() + deadline;
        context::await_work()?;
        let hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks {
            hook();
        }
        let _one_at_a_time = changing();
        let Some(client) = current() else {
            return Ok(());
        };
        if !client.in_flight().drain(end) {
            return Err(Error::Deadline {
                what: "the work on the process's devices".into(),
                after: deadline,
                advice: "",
            });
        }
        let mut global = GLOBAL.write().unwrap_or_else(PoisonError::into_inner);
        // The place itself and the clone above. With the lock held no further one can be made but by
        // an owner that is counted.
        let others = client.owners().saturating_sub(2);
        if others > 0 {
            return Err(Error::Launch {
                reason: format!(
                    "the devices are in use: {others} owner(s) of values or programs on them are alive"
                ),
                advice: "drop all tensors first, or launch before the first use of a device",
            });
        }
        *global = None;
        drop(client);
        kv::reopen();
        Ok(())
    }

    /// Has `hook` called when the process's client is about to be destroyed, to let go of what the
    /// caller keeps of it.
    pub fn on_release(hook: fn()) {
        let mut hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
        if !hooks.iter().any(|known| std::ptr::fn_addr_eq(*known, hook)) {
            hooks.push(hook);
        }
    }
}
