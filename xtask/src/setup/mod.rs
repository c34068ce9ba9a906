//! What the build and the tests need from outside cargo: libclang, protoc and a CPU plugin.
//!
//! Each is looked for by using it the way the build will, so that a library without its headers
//! or a compiler without its standard files counts as missing.

mod cache;
mod install;
mod packages;
mod plugin;
mod probe;
mod stamp;
mod tools;

use std::env;
use std::path::PathBuf;

pub(crate) use plugin::PluginId;
pub(crate) use probe::libclang as probe_libclang;
pub(crate) use tools::Tool;

use crate::error::{Error, Result};
use crate::note;
use packages::Need;

/// Makes sure of everything: libclang, protoc and the plugin (by default the machine's own).
///
/// # Errors
/// Says what is missing and the command that installs it.
pub(crate) fn run(plugin: Option<PluginId>, verify: bool) -> Result<()> {
    // A plugin that was asked for by name is installed even if another one is in use.
    let own = env::var_os("PJRT_LIBRARY_PATH").filter(|path| !path.is_empty());
    if let (Some(path), None) = (own, plugin) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(Error::NoSuchPlugin { path });
        }
        prerequisites()?;
        note(format_args!(
            "PJRT_LIBRARY_PATH is set, no plugin is needed: {}",
            path.display()
        ));
        return Ok(());
    }
    let target = plugin::target(plugin)?;
    let state = install::state(&target, verify)?;
    let mut needs = vec![Need::Libclang, Need::Protoc];
    if state != install::State::Ready {
        needs.push(Need::Pip);
    }
    packages::ensure(&needs)?;
    install::ensure(&target, state, plugin::download)
}

/// Makes sure of what the build needs, without a plugin.
///
/// # Errors
/// As [`run`].
pub(crate) fn prerequisites() -> Result<()> {
    packages::ensure(&[Need::Libclang, Need::Protoc])
}

/// Makes sure of Gloo, which collectives between processes on the CPU need, and says whether it is
/// there. Nothing else needs it, so its absence is no error.
pub(crate) fn gloo() -> bool {
    match packages::ensure(&[Need::Gloo]) {
        Ok(()) => true,
        Err(error) => {
            note(format_args!(
                "building without the feature `gloo`: process groups that span processes are \
                 errors on the CPU: {error}"
            ));
            false
        }
    }
}
