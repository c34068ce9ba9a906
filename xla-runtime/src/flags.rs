//! What XLA reads from the environment: its log level, and the time-outs of its CPU collectives.
//!
//! XLA's CPU collectives end the process when a replica is late by a minute. This library has
//! deadlines of its own that end in errors, so XLA's are set far beyond them, by adding to `XLA_FLAGS`
//! before the first client exists. XLA also ends the process over a flag that it does not know, and
//! what it knows differs between plugins: so a forked child tries the flags first, and what the plugin
//! accepted is remembered in the cache folder.

use crate::cache;
use crate::call::Extended;
use crate::plugin::Plugin;
use pjrt_sys as sys;
use std::env;
use std::sync::Once;
use std::time::{Duration, Instant};

const FLAGS: &str = "XLA_FLAGS";

/// Time-outs of a day and two, in seconds: beyond any deadline of ours.
const TIMEOUTS: [(&str, &str); 2] = [
    (
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
        "86400",
    ),
    (
        "--xla_cpu_collective_call_terminate_timeout_seconds",
        "172800",
    ),
];

/// How long the child may take; a client is there in a few tens of milliseconds.
const PROBE: Duration = Duration::from_secs(10);

/// Turns the plugin's log lines off, unless the user has set a level. Read when a plugin is loaded.
pub(crate) fn quiet_logs() {
    const LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(LEVEL).is_none() {
            set(LEVEL, "3");
        }
    });
}

/// Adds the time-outs to `XLA_FLAGS`, once a process, before its first CPU client.
pub(crate) fn prepare(plugin: &Plugin) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let users = match env::var(FLAGS) {
            Ok(flags) => flags,
            Err(env::VarError::NotPresent) => String::new(),
            // Nothing could be added without changing what the user wrote.
            Err(env::VarError::NotUnicode(_)) => return,
        };
        let accepted = accepted(plugin);
        let ours = TIMEOUTS
            .iter()
            .filter(|(name, _)| accepted.contains(name) && !mentions(&users, name))
            .map(|(name, value)| format!("{name}={value}"));
        let all: Vec<String> = Some(users.clone())
            .filter(|u| !u.is_empty())
            .into_iter()
            .chain(ours)
            .collect();
        if all.is_empty() {
            // SAFETY: as in `set`.
            unsafe { env::remove_var(FLAGS) };
        } else {
            set(FLAGS, &all.join(" "));
        }
    });
}

fn mentions(flags: &str, name: &str) -> bool {
    flags
        .split_whitespace()
        .any(|f| f.split('=').next() == Some(name))
}

/// The time-out flags that the plugin knows. Trying them leaves one in `XLA_FLAGS`.
fn accepted(plugin: &Plugin) -> Vec<&'static str> {
    const MEMORY: &str = "xla_flags";
    if let Some(text) = cache::recall(plugin.path(), MEMORY) {
        let names = TIMEOUTS.iter().map(|(name, _)| *name);
        return names.filter(|name| mentions(&text, name)).collect();
    }
    let mut accepted = Vec::new();
    for (name, value) in TIMEOUTS {
        match survives(plugin, &format!("{name}={value}")) {
            Some(true) => accepted.push(name),
            Some(false) => {}
            // The child could not be started or did not end: nothing was learnt.
            None => return Vec::new(),
        }
    }
    cache::remember(plugin.path(), MEMORY, &accepted.join("\n"));
    accepted
}

fn set(name: &str, value: &str) {
    // SAFETY: the variables set here are read by plugins only, while a plugin is loaded or a client
    // created, which this thread is about to do and no other thread does meanwhile. Rust code reads
    // the environment under the standard library's lock.
    unsafe { env::set_var(name, value) };
}

/// Whether a child with this flag alone can create a client; `None` when there was no telling.
#[cfg(unix)]
fn survives(plugin: &Plugin, flag: &str) -> Option<bool> {
    set(FLAGS, flag);
    // Everything the child needs is made before the fork, so that it allocates as little as it can.
    let mut args = Extended::<sys::PJRT_Client_Create_Args>::new(|_| {});
    // SAFETY: the child calls only into the plugin, which has no thread before its first client and
    // works in a child forked until then, and leaves by `_exit`, so that no destructor or exit
    // handler of this process runs in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the path is a literal, and the client is left to the end of the child.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            for stream in 0..3 {
                libc::dup2(null, stream);
            }
            let created = plugin.api().PJRT_Client_Create(&mut args).is_ok();
            libc::_exit(if created { 0 } else { 1 });
        }
    }
    if child < 0 {
        return None;
    }
    let end = Instant::now() + PROBE;
    let mut status = 0;
    loop {
        // SAFETY: the child is this process's own and was not waited for yet.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: as above; once killed it ends at once.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &raw mut status, 0);
                }
                return None;
            }
            pid if pid == child => {
                return Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            }
            _ => return None,
        }
    }
}

/// Without fork nothing can be tried without risking this process.
#[cfg(not(unix))]
fn survives(_: &Plugin, _: &str) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_mentioned_by_its_whole_name() {
        let (name, _) = TIMEOUTS[0];
        assert!(mentions(&format!("--a=1 {name}=5"), name));
        assert!(mentions(name, name));
        assert!(!mentions(&format!("{name}_more=5"), name));
        assert!(!mentions("", name));
    }
}
