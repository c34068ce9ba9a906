//! The persistent cache: compiled programs kept in a folder, for this process's successors and for
//! the others that run the same program at the same time.
//!
//! An entry is found by what it was made of: the program's text, how it was compiled, the build of
//! the plugin, and the machine ([`key`]). What is read is checked before the plugin sees a byte
//! ([`entry`]). Entries appear whole or not at all, and those not used for longest make room
//! ([`folder`]). Whatever goes wrong with the folder costs a compilation and one warning, never a
//! run.
//!
//! A program that several processes need at once is compiled by the first that asks, while the
//! others wait for its entry.

mod entry;
mod folder;
mod key;
mod machine;
mod warning;

use crate::cache;
use crate::client::Client;
use crate::executable::Executable;
use crate::metrics::{self, Counter, Metric};
use crate::options::CompileOptions;
use crate::signature::Signature;
use folder::{Folder, Turn};
use key::{Context, Key};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use warning::Warning;
use xla_core::Config;
use xla_core::config::PersistentCachePath;

/// Stack of the thread that serialises: deep programs nest, and what is not touched costs nothing.
const STACK: usize = 64 << 20;

/// Where a client keeps compiled programs for other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentCache {
    /// The folder; created where it is missing. Several processes, users and versions of this
    /// library may share it. Whoever can write to it can have this process execute code.
    pub folder: PathBuf,
    /// How many bytes it may hold; beyond that, what was not used for longest is removed.
    pub max_bytes: u64,
}

impl PersistentCache {
    /// What the configuration asks for: by default `programs` in this library's folder among the
    /// user's caches (`$XDG_CACHE_HOME/xla-rs` or `~/.cache/xla-rs`). `None` where it is switched
    /// off, or where the user has no such folder.
    pub fn of(config: &Config) -> Option<Self> {
        let folder = match &config.persistent_cache {
            PersistentCachePath::Off => return None,
            PersistentCachePath::Folder(folder) => std::path::absolute(folder).ok()?,
            // Never below the folder for temporary files: others can write there.
            PersistentCachePath::Default => cache::private_folder()?.join("programs"),
        };
        Some(PersistentCache {
            folder,
            max_bytes: config.persistent_cache_bytes,
        })
    }
}

/// A client's persistent cache.
pub(crate) struct DiskCache {
    folder: Arc<Folder>,
    context: Context,
    /// The context's part of every key; `None` where programs of this machine cannot be told from
    /// those of another.
    digest: OnceLock<Option<[u8; 32]>>,
    writes: Arc<AtomicBool>,
}

impl DiskCache {
    /// The cache of a client that was created just now with so many threads.
    pub(crate) fn new(options: &PersistentCache, cpu_threads: Option<usize>) -> Self {
        DiskCache {
            folder: Arc::new(Folder::new(options.folder.clone(), options.max_bytes)),
            context: Context::capture(cpu_threads),
            digest: OnceLock::new(),
            writes: Arc::new(AtomicBool::new(true)),
        }
    }

    /// The program from the cache, or else what `compile` makes, which is then kept.
    ///
    /// # Errors
    /// Those of `compile`.
    pub(crate) fn get_or_compile(
        &self,
        client: &Client,
        program: &Source<'_>,
        compile: impl FnOnce() -> xla_core::Result<Executable>,
    ) -> xla_core::Result<Executable> {
        let Some(key) = self.key(client, program) else {
            return compile();
        };
        if let Some(kept) = self.load(client, &key, program) {
            return Ok(kept);
        }
        let turn = self
            .writes
            .load(Ordering::Relaxed)
            .then(|| self.folder.turn(&key))
            .flatten();
        // Another process may have written it since, above all where this one waited for its turn.
        if turn.is_some()
            && let Some(kept) = self.load(client, &key, program)
        {
            return Ok(kept);
        }
        metrics::add(Counter::PersistentCacheMiss, 1);
        let compiled = compile()?;
        self.keep(client, key, &compiled, turn);
        Ok(compiled)
    }

    fn key(&self, client: &Client, program: &Source<'_>) -> Option<Key> {
        // A dump is written by the compiler only.
        if self.context.dumps() || program.options.dumps() {
            return None;
        }
        let digest = self.digest.get_or_init(|| self.context.digest(client));
        Some(Key::new(digest.as_ref()?, program.text, program.encoded))
    }

    fn load(&self, client: &Client, key: &Key, program: &Source<'_>) -> Option<Executable> {
        let watch = Metric::PersistentCacheLoad.start();
        let bytes = match self.folder.read(key) {
            Ok(bytes) => bytes?,
            Err(error) => {
                Warning::Unreadable.give(&self.folder.file(key), &error);
                return None;
            }
        };
        let loaded = entry::open(&bytes, key)
            .and_then(|blob| client.load_serialized(blob, program.signature, program.options));
        match loaded {
            Ok(executable) => {
                watch.stop();
                metrics::add(Counter::PersistentCacheHit, 1);
                Some(executable)
            }
            Err(error) => {
                Warning::Unusable.give(&self.folder.file(key), &error);
                None
            }
        }
    }

    /// Writes an entry from a thread of its own: the program can run meanwhile. The end of the
    /// process, and that of the client, wait for it.
    fn keep(&self, client: &Client, key: Key, compiled: &Executable, turn: Option<Turn>) {
        if !self.writes.load(Ordering::Relaxed) {
            return;
        }
        let Ok(held) = client.hold() else {
            return;
        };
        let (folder, writes) = (Arc::clone(&self.folder), Arc::clone(&self.writes));
        let compiled = compiled.clone();
        let write = move || {
            let watch = Metric::PersistentCacheStore.start();
            match compiled.serialize() {
                Ok(blob) => match folder.write(&key, &entry::seal(&blob, &key)) {
                    Ok(()) => {
                        watch.stop();
                    }
                    Err(error) => give_up(&writes, &folder, &error),
                },
                // A plugin that cannot serialise; asking again would be in vain.
                Err(error) => {
                    tracing::debug!(%error, "the persistent cache is not written");
                    writes.store(false, Ordering::Relaxed);
                }
            }
            // In this order: whoever waits for the turn finds the entry, and whoever waits for the
            // client finds one owner less.
            drop(turn);
            drop(compiled);
            drop(held);
        };
        let spawned = thread::Builder::new()
            .name("xla-cache".into())
            .stack_size(STACK)
            .spawn(write);
        if let Err(error) = spawned {
            tracing::debug!(%error, "the persistent cache is not written");
        }
    }
}

/// One failure to write is enough to stop trying: a full disk or a folder that cannot be written
/// stays so, and each attempt costs the time to serialise.
fn give_up(writes: &AtomicBool, folder: &Folder, error: &io::Error) {
    writes.store(false, Ordering::Relaxed);
    Warning::Unwritable.give(folder.path(), error);
}

/// What a program is compiled from.
pub(crate) struct Source<'a> {
    pub(crate) text: &'a str,
    pub(crate) encoded: &'a [u8],
    pub(crate) signature: &'a Signature,
    pub(crate) options: &'a CompileOptions,
}
