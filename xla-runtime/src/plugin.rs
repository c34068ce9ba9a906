//! Loading a PJRT plugin: once a path, verified, and never unloaded.
//!
//! Plugins start threads and register destructors that run at process exit, so unloading one is not
//! an option; a [`Plugin`] is a reference to something that lives as long as the process.

use crate::call::{Api, Extended};
use crate::named_value::{self, AttributeValue};
use crate::{cache, find, flags};
use pjrt_sys as sys;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use xla_core::{Config, Error, Result};

/// The oldest API whose argument structs this crate can extend: that of the header.
const OLDEST: (i32, i32) = (0, 54);

/// A loaded plugin. Clones are the same plugin.
#[derive(Clone)]
pub struct Plugin(Arc<Loaded>);

struct Loaded {
    path: PathBuf,
    api: &'static Api,
    attributes: BTreeMap<String, AttributeValue>,
    sha256: OnceLock<Result<[u8; 32]>>,
}

impl Plugin {
    /// Loads and initialises the plugin at `path`; a path loaded before gives the same plugin.
    ///
    /// The plugin's log lines are off unless the user has set `TF_CPP_MIN_LOG_LEVEL`.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such file, [`Error::PluginInvalid`] when it is no shared
    /// library or has no `GetPjrtApi`, [`Error::PluginTooOld`] with both versions when its API is
    /// older than 0.54, [`Error::Pjrt`] when its initialisation fails.
    pub fn load(path: &Path) -> Result<Plugin> {
        static LOADED: OnceLock<Mutex<HashMap<PathBuf, Plugin>>> = OnceLock::new();
        let path = path.canonicalize().map_err(|e| Error::io(path, e))?;
        let mut loaded = LOADED
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin.clone());
        }
        let plugin = Plugin(Arc::new(load(&path)?));
        loaded.insert(path, plugin.clone());
        Ok(plugin)
    }

    /// The plugin that this configuration leads to: the user's (`PJRT_LIBRARY_PATH`, then
    /// `TPU_LIBRARY_PATH` for a TPU), then one installed as a Python package, then the one that
    /// `cargo xtask setup` put into the cache folder. A path that the user gave is not looked at
    /// here: a mistake in it is an error of [`Plugin::load`], never a silent second choice.
    ///
    /// # Errors
    /// [`Error::PluginNotFound`] with every place looked in and the command that installs one.
    pub fn find(config: &Config) -> Result<PathBuf> {
        find::find(config, &find::Places::from_environment())
    }

    /// Where `cargo xtask setup` installs the CPU plugin: a file under `<cache>/xla-rs/plugins`,
    /// `<cache>` being `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn cached_cpu_plugin() -> PathBuf {
        cache::folder().join(find::CACHED_CPU_PLUGIN)
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Version of the PJRT C API that it was built from.
    pub fn api_version(&self) -> (i32, i32) {
        self.0.api.version()
    }

    /// What it says of itself: `xla_version`, `stablehlo_current_version`,
    /// `stablehlo_minimum_version` and others. Empty where the plugin says nothing.
    pub fn attributes(&self) -> &BTreeMap<String, AttributeValue> {
        &self.0.attributes
    }

    /// The API's numbers of the extensions it offers.
    pub fn extensions(&self) -> Vec<i32> {
        self.0.api.extensions()
    }

    /// SHA-256 of the plugin's file: what tells one build from another, for cache keys.
    ///
    /// Computed at the first call and then remembered in the cache folder by path, size and time of
    /// change, since reading a few hundred megabytes takes a tenth of a second or two.
    ///
    /// # Errors
    /// [`Error::Io`] when the file can no longer be read.
    pub fn sha256(&self) -> Result<[u8; 32]> {
        self.0
            .sha256
            .get_or_init(|| cache::file_sha256(&self.0.path))
            .clone()
    }

    pub(crate) fn api(&self) -> &'static Api {
        self.0.api
    }
}

fn load(path: &Path) -> Result<Loaded> {
    let invalid = |reason: String| Error::PluginInvalid {
        path: path.to_owned(),
        reason,
    };
    flags::quiet_logs();
    // SAFETY: running a library's initialisers is what the caller asks for by naming it a plugin; the
    // library is leaked, so nothing taken from it can dangle.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|e| invalid(format!("it cannot be loaded as a shared library ({e})")))?;
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    type GetPjrtApi = unsafe extern "C" fn() -> *const sys::PJRT_Api;
    // SAFETY: every PJRT plugin exports this symbol with this type; another library that does would
    // violate the name's contract.
    let get_api = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") }
        .map_err(|_| invalid("it is a shared library, but has no GetPjrtApi".into()))?;
    // SAFETY: the function takes nothing and returns the plugin's static table.
    let table = unsafe { get_api() };
    if table.is_null() {
        return Err(invalid("its GetPjrtApi returned nothing".into()));
    }
    // SAFETY: this is what `GetPjrtApi` of a leaked library returned.
    let api: &'static Api = Box::leak(Box::new(unsafe { Api::new(table) }));
    if api.version() < OLDEST {
        return Err(Error::PluginTooOld {
            path: path.to_owned(),
            found: api.version(),
            wanted: OLDEST,
        });
    }
    let mut args = Extended::<sys::PJRT_Plugin_Initialize_Args>::new(|_| {});
    // SAFETY: called once a library, before anything else, as the API demands.
    unsafe { api.PJRT_Plugin_Initialize(&mut args) }?;
    Ok(Loaded {
        path: path.to_owned(),
        api,
        attributes: attributes(api),
        sha256: OnceLock::new(),
    })
}

/// Attributes are informative, so a plugin that fails to list them is as one that has none.
fn attributes(api: &Api) -> BTreeMap<String, AttributeValue> {
    let mut args = Extended::<sys::PJRT_Plugin_Attributes_Args>::new(|_| {});
    // SAFETY: the arguments are outputs only, and the list is static in the plugin.
    match unsafe { api.PJRT_Plugin_Attributes(&mut args) } {
        // SAFETY: as above.
        Ok(()) => unsafe { named_value::read(args.attributes, args.num_attributes) },
        Err(error) => {
            tracing::debug!(%error, "the plugin does not list its attributes");
            BTreeMap::new()
        }
    }
}

impl PartialEq for Plugin {
    /// Whether both are the same loaded library.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Plugin {}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("path", &self.0.path)
            .field("api_version", &self.api_version())
            .finish()
    }
}
