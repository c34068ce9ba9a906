//! What the process's allocator does with the memory of executions.
//!
//! A CPU plugin takes the memory for temporaries and results from `malloc`, anew for each execution,
//! and frees it when that ends. The GNU C library returns blocks of that size to the system at once, so
//! that each execution pays again for mapping and clearing all its pages: of a small training step that
//! is a fifth. So the library is told to keep blocks up to [`LARGEST`]. Larger ones it maps one by one,
//! whatever it is told, and gives back. (XLA can be made to take its temporaries in smaller blocks,
//! with `XLA_FLAGS=--xla_multiheap_size_constraint_per_heap=16777216`. A step then is faster still, but
//! results that live longer come to lie between the blocks, and the process grows.)
//!
//! These are settings of the whole process. One whose environment has settings for the allocator is
//! left as it is.

use std::env;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// The largest block that the allocator can be told to keep: half of one of its heaps.
const LARGEST: usize = 32 << 20;

/// Free memory beyond this, at the end of a heap, is returned.
const KEPT: usize = 256 << 20;

/// How much a heap grows by at least. A heap that is wholly free is kept where another would be this
/// much short of room. Memory that is only set aside takes none.
const ROOM: usize = 64 << 20;

/// Variables that begin with this are the C library's, for its allocator.
const USERS: &str = "MALLOC_";

/// The C library's settings, those of its allocator among them.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Has the allocator keep what executions free. To be called before a CPU client is created; what comes
/// first decides.
pub(crate) fn keep() -> bool {
    static KEEPS: OnceLock<bool> = OnceLock::new();
    *KEEPS.get_or_init(|| !has_settings(env::vars_os()) && set())
}

fn has_settings<K: AsRef<OsStr>, V: AsRef<OsStr>>(
    variables: impl IntoIterator<Item = (K, V)>,
) -> bool {
    variables.into_iter().any(|(name, value)| {
        let (name, value) = (name.as_ref(), value.as_ref().to_string_lossy());
        name.to_string_lossy().starts_with(USERS)
            || name == TUNABLES && value.contains("glibc.malloc.")
    })
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set() -> bool {
    let settings = [
        (libc::M_MMAP_THRESHOLD, LARGEST),
        (libc::M_TRIM_THRESHOLD, KEPT),
        (libc::M_TOP_PAD, ROOM),
    ];
    settings.into_iter().all(|(setting, bytes)| {
        let Ok(bytes) = libc::c_int::try_from(bytes) else {
            return false;
        };
        // SAFETY: `mallopt` takes the allocator's own lock and changes how it works from here on; it
        // returns 0 for what it does not accept.
        unsafe { libc::mallopt(setting, bytes) != 0 }
    })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn set() -> bool {
    false
}

/// Returns what is free now: a compilation leaves several times as much memory behind as the program
/// that it made will take.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if keep() {
        // SAFETY: it takes the allocator's own locks, and touches only memory that is free.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_settings_stay() {
        assert!(!has_settings([
            ("HOME", "/root"),
            (TUNABLES, "glibc.rtld.nns=4")
        ]));
        assert!(has_settings([("MALLOC_ARENA_MAX", "1")]));
        assert!(has_settings([(TUNABLES, "glibc.malloc.tcache_count=2")]));
    }
}
