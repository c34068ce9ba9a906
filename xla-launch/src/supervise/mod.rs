//! Starts processes, passes on what they print, and sees that none is left: the one supervisor, of
//! spawned processes and of `xlarun`'s workers alike.
//!
//! Each worker leads a process group of its own, so that what it starts can be ended with it. A
//! worker that has ended takes its group with it; stopping is `SIGTERM` to every group, then, 2 s
//! later, `SIGKILL`; and should this process itself be killed, the kernel kills the workers and a
//! guard process their groups ([`xla_runtime::process`]).

mod exit;
mod output;
mod share;
mod signals;

pub(crate) use exit::{Exit, signal_name};
pub(crate) use output::{Pump, Sink, prefix};
pub(crate) use share::{cpu_share, token};
pub(crate) use signals::after_fork;

use crossbeam::channel::{Receiver, Sender, unbounded};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xla_core::{Error, Result};
use xla_runtime::process::{Guard, die_with_parent};

/// How long workers have to end by themselves after one of them has failed.
const GRACE: Duration = Duration::from_secs(2);

/// How long they have when this process was told to end: a program may save its state then.
const FAREWELL: Duration = Duration::from_secs(30);

/// How long a dead worker's output is waited for: a process that has left the worker's group may
/// hold it open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(5);

/// What a supervisor waits for.
#[derive(Debug)]
pub(crate) enum Event<E> {
    /// This worker has ended, and all its group with it.
    Ended(usize, Exit),
    /// This process was told to end.
    Signal(i32),
    /// Something else that was sent to the supervisor.
    Other(E),
    /// Nothing, for as long as the caller wanted to wait.
    Timeout,
}

/// What reaches the supervisor from its threads.
enum Message<E> {
    Exited(usize),
    Signal(i32),
    Other(E),
}

/// Sends further events to the supervisor.
pub(crate) struct Mailbox<E>(Sender<Message<E>>);

impl<E> Clone for Mailbox<E> {
    fn clone(&self) -> Self {
        Mailbox(self.0.clone())
    }
}

impl<E> Mailbox<E> {
    /// Sends an event; one that comes too late is nobody's.
    pub(crate) fn send(&self, event: E) {
        let _ = self.0.send(Message::Other(event));
    }
}

/// Processes that are started and ended together. Dropping it kills those that still run.
#[derive(Debug)]
pub(crate) struct Workers<E> {
    sender: Sender<Message<E>>,
    receiver: Receiver<Message<E>>,
    workers: Vec<Worker>,
    guard: Guard,
    _signals: signals::Subscription,
    /// When those that have been told to end are killed.
    kill_at: Option<Instant>,
    stopping: bool,
}

#[derive(Debug)]
struct Worker {
    pid: Pid,
    running: bool,
    pumps: Vec<Pump>,
}

impl<E: Send + 'static> Workers<E> {
    /// No workers yet. The thread that starts some must live as long as they do.
    ///
    /// # Errors
    /// [`Error::System`] when there can be no further process, thread or signal handler.
    pub(crate) fn new() -> Result<Self> {
        let (sender, receiver) = unbounded();
        let signals = signals::subscribe({
            let sender = sender.clone();
            move |signal| {
                let _ = sender.send(Message::Signal(signal));
            }
        })?;
        Ok(Workers {
            sender,
            receiver,
            workers: Vec::new(),
            guard: Guard::start()?,
            _signals: signals,
            kill_at: None,
            stopping: false,
        })
    }

    /// Where others send their events.
    pub(crate) fn mailbox(&self) -> Mailbox<E> {
        Mailbox(self.sender.clone())
    }

    /// Starts a worker without standard input and returns its number, counted from 0. Each line of
    /// its output comes out here behind `prefix`; with none, it writes to this process's own.
    ///
    /// # Errors
    /// [`Error::System`] when it cannot be started.
    pub(crate) fn start(&mut self, mut command: Command, prefix: Option<&str>) -> Result<usize> {
        command.stdin(Stdio::null()).process_group(0);
        if prefix.is_some() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        die_with_parent(&mut command);
        self.guard.watch_child(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| Error::io(command.get_program(), error))?;
        let pid = Pid::from_child(&child);
        let number = self.adopt(pid)?;
        if let Some(prefix) = prefix {
            // Standard error first: its lines are the last words.
            if let Some(errors) = child.stderr.take() {
                self.pump(number, Pump::start(errors, Sink::Stderr, prefix)?);
            }
            if let Some(output) = child.stdout.take() {
                self.pump(number, Pump::start(output, Sink::Stdout, prefix)?);
            }
        }
        Ok(number)
    }

    /// Has the guard know of the calling process, a fork of the supervisor that leads a group.
    ///
    /// # Errors
    /// [`Error::System`] when the guard is gone.
    pub(crate) fn watch_this_process(&self) -> Result<()> {
        self.guard.watch(rustix::process::getpid().as_raw_pid())
    }

    /// Takes on a child of this process that leads a process group and is known to the guard.
    ///
    /// # Errors
    /// [`Error::System`] when there can be no thread that waits for it; it is then killed.
    pub(crate) fn adopt(&mut self, pid: Pid) -> Result<usize> {
        let number = self.workers.len();
        self.workers.push(Worker {
            pid,
            running: true,
            pumps: Vec::new(),
        });
        let sender = self.sender.clone();
        thread::Builder::new()
            .name(format!("wait-{number}"))
            .spawn(move || {
                // The process is left a zombie, so that its number stays its own until the
                // supervisor has ended its group.
                let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), how), Err(Errno::INTR)) {}
                let _ = sender.send(Message::Exited(number));
            })
            .map_err(|error| Error::system("start a thread", error))?;
        Ok(number)
    }

    /// Has a worker's output passed on.
    pub(crate) fn pump(&mut self, worker: usize, pump: Pump) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.pumps.push(pump);
        }
    }

    /// Forgets those that have ended, so that the next ones are counted from 0 again.
    pub(crate) fn reset(&mut self) {
        if self.running() == 0 {
            self.workers.clear();
            self.stopping = false;
            self.kill_at = None;
        }
    }

    /// How many have not ended yet.
    pub(crate) fn running(&self) -> usize {
        self.workers.iter().filter(|worker| worker.running).count()
    }

    /// Whether they have been told to end.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping
    }

    /// Waits for what comes next, until a time or for ever.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Event<E> {
        loop {
            let wake = [until, self.kill_at].into_iter().flatten().min();
            let message = match wake {
                Some(wake) => self.receiver.recv_deadline(wake).ok(),
                // A sender is among the fields, so this fails never.
                None => self.receiver.recv().ok(),
            };
            match message {
                Some(Message::Exited(number)) => return Event::Ended(number, self.reap(number)),
                Some(Message::Signal(signal)) => return Event::Signal(signal),
                Some(Message::Other(event)) => return Event::Other(event),
                None => {
                    if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                        self.kill();
                    } else {
                        return Event::Timeout;
                    }
                }
            }
        }
    }

    /// Tells all to end, and kills them after a grace.
    pub(crate) fn stop(&mut self) {
        self.end_by(Signal::TERM, GRACE);
    }

    /// Gives all a signal that told this process to end, and kills them after a longer grace; told
    /// again, kills them now.
    pub(crate) fn pass_on(&mut self, signal: i32) {
        if self.stopping {
            self.kill();
            return;
        }
        let signal = [Signal::INT, Signal::HUP]
            .into_iter()
            .find(|known| known.as_raw() == signal);
        self.end_by(signal.unwrap_or(Signal::TERM), FAREWELL);
    }

    fn end_by(&mut self, signal: Signal, grace: Duration) {
        self.stopping = true;
        self.kill_at = Some(Instant::now() + grace);
        self.signal(signal);
        // A stopped process acts on nothing but this and SIGKILL.
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        for worker in self.workers.iter().filter(|worker| worker.running) {
            // A group that is gone already needs no signal.
            let _ = kill_process_group(worker.pid, signal);
        }
    }

    /// Ends what is left of an ended worker's group and learns how it ended.
    fn reap(&mut self, number: usize) -> Exit {
        let Some(worker) = self.workers.get_mut(number) else {
            return Exit::default();
        };
        let _ = kill_process_group(worker.pid, Signal::KILL);
        let status = loop {
            match waitpid(Some(worker.pid), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                other => break other.ok().flatten().map(|(_, status)| status),
            }
        };
        worker.running = false;
        // A guard that is gone has nothing to forget.
        let _ = self.guard.forget(worker.pid.as_raw_pid());
        let end = Instant::now() + OUTPUT_PATIENCE;
        for pump in &worker.pumps {
            pump.finish(end);
        }
        Exit {
            code: status.and_then(|status| status.exit_status()),
            signal: status.and_then(|status| status.terminating_signal()),
            last_words: worker
                .pumps
                .first()
                .map(Pump::last_lines)
                .unwrap_or_default(),
        }
    }
}

impl<E> Drop for Workers<E> {
    fn drop(&mut self) {
        for worker in self.workers.iter().filter(|worker| worker.running) {
            let _ = kill_process_group(worker.pid, Signal::KILL);
            let _ = waitpid(Some(worker.pid), WaitOptions::empty());
        }
    }
}

impl<E> std::fmt::Debug for Message<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Message::Exited(_) => "Exited",
            Message::Signal(_) => "Signal",
            Message::Other(_) => "Other",
        })
    }
}
