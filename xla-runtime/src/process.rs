//! What a process that starts others has to ask of the operating system, behind safe functions:
//! that no child outlives it, and a fork where re-executing a program is no way.

use std::io::{Error as IoError, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{fmt, io};
use xla_core::{Error, Result};

/// Has the kernel kill the process that `command` will start as soon as the thread that starts it
/// has ended, whatever ends it. That thread must therefore live as long as the child should.
///
/// Elsewhere than on Linux this does nothing: there a [`Guard`] has to do.
pub fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: takes nothing and cannot fail.
        let parent = unsafe { libc::getpid() };
        let arm = move || {
            // SAFETY: both calls take plain numbers and are async-signal-safe.
            let (set, now) = unsafe {
                let set = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                (set, libc::getppid())
            };
            if set != 0 {
                return Err(IoError::last_os_error());
            }
            // The parent may have died before the request; then nothing would come of it.
            if now != parent {
                return Err(IoError::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec; it makes system calls only, and neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(arm) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// How a [`fork`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// In the process that called; the number is the child's process id.
    Parent(i32),
    /// In the child.
    Child,
}

/// Forks the process. The child finds these environment variables set. Only the calling thread
/// exists in it, with a copy of all memory: a lock that another thread held stays locked there for
/// good.
///
/// # Errors
/// [`Error::Launch`] once the process has a PJRT client, since a child that used it would wait for
/// threads that it does not have; [`Error::System`] when there can be no further process.
pub fn fork(variables: &[(&str, String)]) -> Result<Forked> {
    if crate::Client::any() {
        return Err(Error::Launch {
            reason: "this process has started the PJRT runtime, whose threads a fork does not copy"
                .into(),
            advice: "launch before the first use of a device, or with threads",
        });
    }
    // SAFETY: takes nothing. What the child may touch is memory, which is copied; other threads'
    // locks are the caller's concern, and a lock that is never released is no undefined behaviour.
    match unsafe { libc::fork() } {
        -1 => Err(Error::system("fork", IoError::last_os_error())),
        0 => {
            for (name, value) in variables {
                // SAFETY: the child has no other thread that could read the environment meanwhile.
                unsafe { std::env::set_var(name, value) };
            }
            Ok(Forked::Child)
        }
        pid => Ok(Forked::Parent(pid)),
    }
}

/// A small process that outlives this one just long enough to kill the process groups it was told
/// of, whatever ended this one (`SIGKILL` included).
///
/// [`die_with_parent`] reaches the children alone; the guard also reaches what they have started.
/// It is a fork that waits for the end of a pipe and never touches anything else, holds no file of
/// this process open, and is in a session of its own, so that neither a terminal's interrupt nor a
/// signal to this process's group reaches it.
pub struct Guard {
    /// `None` only while being dropped: its end is the guard's signal.
    pipe: Option<io::PipeWriter>,
    pid: libc::pid_t,
}

/// As many groups as a guard can watch: it cannot allocate.
const GROUPS: usize = 4096;

/// The message after which a guard ends and harms nobody. A positive number is a group to watch, a
/// negative one a group to forget.
const END: i32 = 0;

impl Guard {
    /// Starts a guard that watches nothing yet.
    ///
    /// # Errors
    /// [`Error::System`] when there can be no further pipe or process.
    pub fn start() -> Result<Guard> {
        let (reader, writer) = io::pipe().map_err(|error| Error::system("pipe", error))?;
        // SAFETY: the child runs `stand_guard`, which makes async-signal-safe calls only.
        match unsafe { libc::fork() } {
            -1 => Err(Error::system("fork", IoError::last_os_error())),
            0 => stand_guard(reader.as_raw_fd()),
            pid => Ok(Guard {
                pipe: Some(writer),
                pid,
            }),
        }
    }

    /// From now on the guard kills this process group (its leader's process id) if this process
    /// ends first.
    ///
    /// # Errors
    /// [`Error::System`] when the guard is gone.
    pub fn watch(&self, group: i32) -> Result<()> {
        self.tell(group)
    }

    /// Has the process that `command` will start be watched from before its program begins, as the
    /// leader of its group: this process may end before it has learnt of the other's start.
    pub fn watch_child(&self, command: &mut Command) {
        let Some(pipe) = self.pipe.as_ref().map(AsRawFd::as_raw_fd) else {
            return;
        };
        let announce = move || {
            // SAFETY: takes nothing and cannot fail.
            let message = unsafe { libc::getpid() }.to_ne_bytes();
            // SAFETY: the call is async-signal-safe and reads the message's own length. The
            // descriptor is the guard's pipe, or, should the guard be gone by then, at worst
            // another of this process's files: the caller keeps the guard longer than the command.
            match unsafe { libc::write(pipe, message.as_ptr().cast(), message.len()) } {
                4 => Ok(()),
                _ => Err(IoError::last_os_error()),
            }
        };
        // SAFETY: the closure runs between fork and exec; it makes system calls only, and neither
        // allocates nor takes a lock.
        unsafe { command.pre_exec(announce) };
    }

    /// Forgets a group, before its number can be another's.
    ///
    /// # Errors
    /// As [`Guard::watch`].
    pub fn forget(&self, group: i32) -> Result<()> {
        self.tell(-group)
    }

    fn tell(&self, message: i32) -> Result<()> {
        let Some(mut pipe) = self.pipe.as_ref() else {
            return Ok(());
        };
        // Four bytes are below PIPE_BUF, so that no two messages mix.
        pipe.write_all(&message.to_ne_bytes())
            .map_err(|error| Error::system("tell the guard process", error))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Another copy of the pipe may be open, in a fork of this process.
        let _ = self.tell(END);
        self.pipe = None;
        // SAFETY: the process is a child of this one that nobody else waits for; no status is asked.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("pid", &self.pid).finish()
    }
}

/// The guard's whole life. It came to be by a fork of a process with many threads, so it makes
/// system calls on its own stack and does nothing else.
fn stand_guard(pipe: RawFd) -> ! {
    let mut groups = [0_i32; GROUPS];
    // SAFETY: every call is async-signal-safe; the buffer that `read` fills is `message`, of the
    // length given; descriptors closed here belong to this process's copy of the table.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::dup2(pipe, 0);
        close_from(1);
        let mut message = [0_u8; 4];
        loop {
            match libc::read(0, message.as_mut_ptr().cast(), message.len()) {
                4 => match i32::from_ne_bytes(message) {
                    END => libc::_exit(0),
                    group if group > 1 => replace(&mut groups, 0, group),
                    group => replace(&mut groups, group.saturating_neg(), 0),
                },
                -1 if IoError::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => break,
            }
        }
        for group in groups {
            if group > 1 {
                libc::kill(-group, libc::SIGKILL);
            }
        }
        libc::_exit(0)
    }
}

/// Puts `new` where the first `old` is.
fn replace(groups: &mut [i32], old: i32, new: i32) {
    if let Some(slot) = groups.iter_mut().find(|slot| **slot == old) {
        *slot = new;
    }
}

/// Closes every descriptor from this one on.
///
/// # Safety
/// Nothing in the process may use one of them afterwards.
unsafe fn close_from(first: RawFd) {
    // SAFETY: as the caller promises.
    unsafe {
        #[cfg(target_os = "linux")]
        if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 {
            return;
        }
        for descriptor in first..4096 {
            libc::close(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    /// A shell that starts a grandchild, both asleep, in a process group of its own.
    fn sleepers() -> std::process::Child {
        Command::new("sh")
            .args(["-c", "sleep 100 & sleep 100"])
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn group_is_alive(group: i32) -> bool {
        // SAFETY: signal 0 only asks.
        unsafe { libc::kill(-group, 0) == 0 }
    }

    #[test]
    fn a_guard_kills_what_it_watches_and_nothing_that_it_has_forgotten() {
        let (mut killed, mut spared) = (sleepers(), sleepers());
        let mut guard = Guard::start().unwrap();
        for child in [&killed, &spared] {
            guard.watch(child.id() as i32).unwrap();
        }
        guard.forget(spared.id() as i32).unwrap();
        // The end of the pipe is all a guard learns of its parent's end.
        guard.pipe = None;
        drop(guard);
        let end = Instant::now() + Duration::from_secs(20);
        assert!(!killed.wait().unwrap().success());
        while group_is_alive(killed.id() as i32) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!group_is_alive(killed.id() as i32));
        assert!(group_is_alive(spared.id() as i32));
        // SAFETY: the group is the test's own.
        unsafe { libc::kill(-(spared.id() as i32), libc::SIGKILL) };
        spared.wait().unwrap();
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("100");
            die_with_parent(&mut command);
            command.spawn().unwrap()
        })
        .join()
        .unwrap();
        let status = child.wait().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
}
