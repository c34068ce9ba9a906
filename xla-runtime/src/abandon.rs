//! Ending the process while its devices still work.

/// Ends the process at once with this exit code: nothing is waited for, no destructor or exit
/// handler runs. For the one state that cannot be left in order, an execution that can be neither
/// finished nor cancelled; everything else returns an error.
pub fn abandon_process(code: i32) -> ! {
    // SAFETY: `_exit` takes a plain number and does not return.
    unsafe { libc::_exit(code) }
}
