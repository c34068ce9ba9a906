//! The digits example, run as a program, and what it prints.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long the runs of one test may take together: a test has a process and a deadline of its own.
const DEADLINE: Duration = Duration::from_secs(240);

/// Enough to learn most of the digits, in seconds.
pub(crate) const ARGUMENTS: [&str; 4] = ["--epochs", "3", "--train-limit", "4096"];

/// What a launcher, or a user of one, sets.
const OF_LAUNCHES: [&str; 13] = [
    "CPU_NUM_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "XLA_DEADLINE_SECONDS",
    "XLA_LAUNCH_DEVICES",
    "XLA_LAUNCH_LOG_PREFIX",
    "XLA_LAUNCH_MODE",
    "XLA_LAUNCH_PROCESSES",
    "XLA_USE_SPMD",
];

/// A program that cargo has built beside this test.
///
/// # Panics
/// Where it has not.
pub(crate) fn built(path: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("tests lie in the deps folder of a profile");
    let program = profile.join(path);
    let found = program.is_file();
    assert!(
        found,
        "{} is built by `cargo xtask test`",
        program.display()
    );
    program
}

/// The example.
pub(crate) fn example() -> PathBuf {
    built("examples/digits")
}

/// The program that `cargo xtask test` has installed for a test.
///
/// # Panics
/// Where the test is run in another way.
#[allow(
    dead_code,
    reason = "each test is a crate of its own, with this module as a part"
)]
pub(crate) fn installed(variable: &str) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{variable} is set by `cargo xtask test`"))
}

/// A program that runs, with all that it starts.
pub(crate) struct Running {
    child: Child,
    output: std::fs::File,
    command: String,
}

impl Running {
    /// Starts `command` without the variables of launches except those that it sets itself, and
    /// with nothing to read.
    pub(crate) fn start(command: &mut Command) -> Running {
        Running::reading(command, Stdio::null())
    }

    /// The same with something to read.
    pub(crate) fn reading(command: &mut Command, input: impl Into<Stdio>) -> Running {
        let own: Vec<_> = command
            .get_envs()
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in OF_LAUNCHES
            .iter()
            .filter(|name| own.iter().all(|n| n != *name))
        {
            command.env_remove(name);
        }
        // A file, not a pipe: nothing waits for a descendant that keeps it open.
        let output = tempfile::tempfile().expect("there is a folder for temporary files");
        let clone = || output.try_clone().expect("a file can be shared");
        command.stdin(input).stdout(clone()).stderr(clone());
        let child = command.process_group(0).spawn();
        Running {
            child: child.unwrap_or_else(|error| panic!("{command:?}: {error}")),
            command: format!("{command:?}"),
            output,
        }
    }

    /// What it printed, once it has ended well.
    ///
    /// # Panics
    /// When it ends otherwise, or not in time.
    pub(crate) fn printed(self) -> Printed {
        self.printed_within(DEADLINE)
    }

    /// The same with a deadline of its own.
    pub(crate) fn printed_within(mut self, deadline: Duration) -> Printed {
        let end = Instant::now() + deadline;
        let status = loop {
            match self.child.try_wait().expect("the child was started here") {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = self.text();
        let command = &self.command;
        match status {
            None => panic!("{command} did not end within {deadline:?}\n{text}"),
            Some(status) => assert!(ExitStatus::success(&status), "{command}: {status}\n{text}"),
        }
        Printed { text }
    }

    /// What it has printed so far. All descriptors share the file's place: the last read, after the
    /// program's end, begins at the front.
    fn text(&mut self) -> String {
        use std::io::{Seek, SeekFrom};
        let mut text = Vec::new();
        let read = self
            .output
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.output.read_to_end(&mut text));
        read.expect("a temporary file can be read");
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also what the program has started, where a test fails before the end.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
        let _ = self.child.wait();
    }
}

/// The output of the example.
pub(crate) struct Printed {
    pub(crate) text: String,
}

impl Printed {
    /// The example prints its figures once, whatever the number of processes.
    fn value(&self, label: &str) -> &str {
        let values: Vec<&str> = self
            .text
            .lines()
            .filter_map(|line| Some(line.split_once(label)?.1))
            .collect();
        let [value] = values[..] else {
            panic!("{label:?} is not printed once in\n{}", self.text);
        };
        value.trim_matches([' ', '%'])
    }

    pub(crate) fn devices(&self) -> usize {
        self.value("devices  ").parse().expect("a number")
    }

    /// In per cent.
    pub(crate) fn accuracy(&self) -> f64 {
        self.value("test accuracy  ").parse().expect("a number")
    }
}

/// Runs the example to its end with these variables.
pub(crate) fn run(variables: &[(&str, &str)]) -> Printed {
    let mut command = Command::new(example());
    command.args(ARGUMENTS).envs(variables.iter().copied());
    Running::start(&mut command).printed()
}

/// Asserts that a run over so many devices learnt what one device learns: within 1 %.
pub(crate) fn assert_same_as_one_device(printed: &Printed, devices: usize) {
    let one = run(&[("CPU_NUM_DEVICES", "1")]);
    assert_eq!(one.devices(), 1);
    assert_eq!(printed.devices(), devices, "{}", printed.text);
    let (one, other) = (one.accuracy(), printed.accuracy());
    assert!(one >= 88.0, "{one}");
    assert!((one - other).abs() <= 1.0, "{one} {other}");
}
