//! Runs this project and its peers in turn, each measurement in a process of its own.
//!
//! Whoever is measured first in a round is last in the next one, so that what else the machine does,
//! and how warm it is, falls on all alike.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use super::machine::Machine;
use super::peer::Peer;
use super::work::Work;
use super::{Bench, CACHE, CPU_DEVICES, Options, arguments, table};
use crate::error::{Error, Result};
use crate::{note, process, workspace};

/// This project's name in the table.
pub(super) const OURS: &str = "xla-rs";

/// For one measurement, its imports and compilation included.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// Tells a process when it was started, in seconds since the Unix epoch.
const STARTED: &str = "XLA_BENCH_STARTED";

/// Everything that a comparison has measured.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) machine: Machine,
    pub(super) rounds: u32,
    /// Who was measured, this project first.
    pub(super) names: Vec<String>,
    pub(super) versions: BTreeMap<String, String>,
    pub(super) works: Vec<Measured>,
}

/// What was measured of one work.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) work: String,
    pub(super) steps: u32,
    /// Each one's lines, one a round.
    pub(super) lines: BTreeMap<String, Vec<Value>>,
}

/// Somebody who is measured.
struct Contestant {
    name: &'static str,
    /// None for this project.
    peer: Option<Peer>,
    program: PathBuf,
}

impl Contestant {
    fn command(&self) -> Command {
        match self.peer {
            None => Command::new(&self.program),
            Some(peer) => peer.command(&self.program),
        }
    }

    fn has(&self, work: &Work) -> bool {
        self.peer.is_none_or(|peer| work.has(peer))
    }
}

/// Compares, prints the table and saves it where asked.
///
/// # Errors
/// If a peer cannot be installed or a file not be written. Who fails to do a work is left out of its
/// rows; that is a failure in the end.
pub(super) fn run(bench: &Bench, program: &Path) -> Result<ExitCode> {
    let contestants = contestants(&bench.against, program)?;
    let works = match bench.works.as_slice() {
        [] => Work::all(),
        works => works.to_vec(),
    };
    let mut failed = false;
    let mut comparison = Comparison {
        machine: Machine::read(),
        rounds: bench.rounds,
        names: contestants.iter().map(|c| c.name.to_owned()).collect(),
        versions: BTreeMap::from([(OURS.to_owned(), own_version())]),
        works: Vec::new(),
    };
    for work in &works {
        let options = Options {
            steps: bench.options.steps.or(Some(work.steps())),
            ..bench.options
        };
        let mut measured = Measured {
            work: work.to_string(),
            steps: options.steps.unwrap_or_default(),
            lines: BTreeMap::new(),
        };
        let mut taking_part: Vec<&Contestant> =
            contestants.iter().filter(|c| c.has(work)).collect();
        let caches = caches(work, &mut taking_part, options, &mut failed)?;
        for round in 0..bench.rounds {
            for contestant in &taking_part {
                note(format_args!(
                    "{work}: {}, {} of {}",
                    contestant.name,
                    round + 1,
                    bench.rounds
                ));
                let cache = caches.get(contestant.name).map(|folder| folder.path());
                match measure(contestant, work, options, cache) {
                    Ok(line) => {
                        if let Some(version) = line["version"].as_str() {
                            let name = contestant.name.to_owned();
                            comparison.versions.insert(name, version.to_owned());
                        }
                        let lines = measured.lines.entry(contestant.name.to_owned());
                        lines.or_default().push(line);
                    }
                    Err(error) => {
                        failed = true;
                        note(error);
                    }
                }
            }
            taking_part.reverse();
        }
        comparison.works.push(measured);
    }
    let text = table::markdown(&comparison);
    print!("{text}");
    if bench.save {
        save(&comparison, &text)?;
    }
    Ok(crate::exit_code(!failed))
}

fn contestants(peers: &[Peer], program: &Path) -> Result<Vec<Contestant>> {
    let mut peers = peers.to_vec();
    peers.sort();
    peers.dedup();
    let mut contestants = vec![Contestant {
        name: OURS,
        peer: None,
        program: program.to_path_buf(),
    }];
    for peer in peers {
        contestants.push(Contestant {
            name: peer.name(),
            peer: Some(peer),
            program: peer.python()?,
        });
    }
    Ok(contestants)
}

/// For a work that starts warm, a folder for each with what it compiles in a run that does not count.
/// Who fails in it takes no part.
fn caches(
    work: &Work,
    contestants: &mut Vec<&Contestant>,
    options: Options,
    failed: &mut bool,
) -> Result<BTreeMap<&'static str, tempfile::TempDir>> {
    let mut caches = BTreeMap::new();
    if !work.starts_warm() {
        return Ok(caches);
    }
    let mut error = None;
    contestants.retain(|contestant| {
        note(format_args!(
            "{work}: {}, filling its cache",
            contestant.name
        ));
        let filled = folder().and_then(|folder| {
            measure(contestant, work, options, Some(folder.path()))?;
            Ok(folder)
        });
        match filled {
            Ok(folder) => caches.insert(contestant.name, folder).is_none(),
            Err(Error::File {
                action,
                path,
                source,
            }) => {
                error = Some(Error::File {
                    action,
                    path,
                    source,
                });
                false
            }
            Err(error) => {
                *failed = true;
                note(error);
                false
            }
        }
    });
    error.map_or(Ok(caches), Err)
}

fn folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(Error::file("create a folder in", &std::env::temp_dir()))
}

/// One measurement: the last line of JSON that the program prints.
fn measure(
    contestant: &Contestant,
    work: &Work,
    options: Options,
    cache: Option<&Path>,
) -> Result<Value> {
    // Nobody finds what was compiled in an earlier measurement, unless the work is about that.
    let empty = folder()?;
    let mut command = contestant.command();
    command.args(work.arguments()).args(arguments(options));
    command.env(CACHE, cache.unwrap_or(empty.path()));
    if let Some(devices) = work.devices() {
        command.env(CPU_DEVICES, devices);
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    command.env(STARTED, now.unwrap_or_default().as_secs_f64().to_string());
    let output = process::quiet(&mut command, DEADLINE)?;
    let mut lines = output.lines().rev();
    lines
        .find_map(|line| serde_json::from_str(line).ok().filter(Value::is_object))
        .ok_or_else(|| Error::Output {
            command: process::typed(&command),
            reason: format!("no line of JSON in {output:?}"),
        })
}

/// The commit that is measured, as git describes it.
fn own_version() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]);
    git.current_dir(workspace::root());
    let described = process::stdout_of(&mut git, Duration::from_secs(30));
    described.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Writes `DATE.md` and `DATE.json`, or `DATE-2` and so on where these exist.
fn save(comparison: &Comparison, text: &str) -> Result<()> {
    let folder = workspace::root().join("benches").join("results");
    std::fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
    let date = &comparison.machine.date;
    let names = std::iter::once(date.clone()).chain((2..).map(|n| format!("{date}-{n}")));
    let free = |name: &String| !folder.join(format!("{name}.md")).exists();
    let name = names.into_iter().find(free).unwrap_or_default();
    let json = serde_json::to_string_pretty(comparison).unwrap_or_default();
    for (extension, text) in [("md", text), ("json", &format!("{json}\n"))] {
        let path = folder.join(format!("{name}.{extension}"));
        std::fs::write(&path, text).map_err(Error::file("write", &path))?;
        note(format_args!("saved {}", path.display()));
    }
    Ok(())
}
