//! A program that launches in the way its arguments say, for tests of what becomes of its processes.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use rustix::process::{Signal, getpid, kill_process};
use std::error::Error;
use std::io::Write;
use std::process::{Command, exit};
use std::time::Duration;
use xla_launch::{Launcher, StartMethod};
use xla_runtime::context;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Two processes of two replicas each.
fn two_by_two() -> Launcher {
    Launcher::new().processes(2).devices(2)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.get(1).cloned().unwrap_or_default();
    match arguments.first().map(String::as_str).unwrap_or_default() {
        "values" => show(&two_by_two().run_serialized(place)?),
        "fork" => {
            let launcher = Launcher::new().start_method(StartMethod::Fork).processes(2);
            show(&launcher.run_serialized(place)?);
        }
        "twice" => twice()?,
        "output" => {
            Launcher::new().processes(2).run_serialized(output)?;
        }
        "grandchild" => {
            let all = Launcher::new().processes(2).run_serialized(grandchild)?;
            show(&all);
        }
        "alone" => show(&Launcher::new().processes(2).run_serialized(place)?),
        "sleep" => {
            two_by_two().run_serialized(|rank| sleep(rank, &folder))?;
        }
        "external" => {
            Launcher::new().run(|rank| -> Outcome<()> {
                let attempt = std::env::var("XLA_RESTART_COUNT")?;
                println!(
                    "rank {rank} of {} in attempt {attempt}",
                    context::current("worker")?.world_size()
                );
                match (rank, attempt.as_str()) {
                    (3, "0") => Err("the first attempt fails".into()),
                    // Whoever does not fail is stopped.
                    (_, "0") => {
                        std::thread::sleep(Duration::from_secs(100));
                        Ok(())
                    }
                    _ => Ok(()),
                }
            })?;
        }
        "values-of-any-type" => {
            two_by_two().run(place)?;
        }
        how => {
            two_by_two().run_serialized(|rank| fail(rank, how))?;
        }
    }
    Ok(())
}

fn show(value: &impl std::fmt::Debug) {
    println!("{value:?}");
}

/// Rank, world size, ordinal of the device, name of the process's rank.
fn place(rank: usize) -> Outcome<(usize, usize, usize, String)> {
    let context = context::current("worker")?;
    let process = std::env::var("RANK")?;
    Ok((
        rank,
        context.world_size(),
        context.device().ordinal().unwrap_or_default(),
        process,
    ))
}

/// Two launches: what the first returned is the same everywhere, and it ran once.
fn twice() -> Outcome<()> {
    let first = Launcher::new()
        .processes(2)
        .run_serialized(|_| Ok::<_, std::io::Error>(std::process::id()))?;
    let failed = Launcher::new()
        .processes(2)
        .run_serialized(|rank| fail(rank, "error"))
        .map_err(|error| error.to_string());
    let seen = Launcher::new()
        .processes(2)
        .run_serialized(|_| Ok::<_, std::io::Error>((first.clone(), failed.clone())))?;
    let parents: Vec<_> = seen
        .iter()
        .map(|seen| *seen == (first.clone(), failed.clone()))
        .collect();
    show(&parents);
    show(&failed);
    Ok(())
}

/// Many lines, the last of them without an end, up to the moment the process ends.
fn output(rank: usize) -> Outcome<()> {
    let mut text = String::new();
    for line in 0..20_000 {
        text += &format!("line {line} of rank {rank}\n");
    }
    text += "the end";
    std::io::stdout().write_all(text.as_bytes())?;
    std::io::stdout().flush()?;
    std::io::stderr().write_all(b"an error")?;
    Ok(())
}

/// What a program finds that a rank has started.
fn grandchild(_rank: usize) -> Outcome<String> {
    let output = Command::new(std::env::current_exe()?)
        .arg("alone")
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Notes its process, and one that it starts, and sleeps.
fn sleep(rank: usize, folder: &str) -> Outcome<()> {
    let child = Command::new("sleep").arg("300").spawn()?;
    let pids = format!("{} {}", std::process::id(), child.id());
    let file = format!("{folder}/{rank}");
    std::fs::write(format!("{file}.new"), pids)?;
    std::fs::rename(format!("{file}.new"), file)?;
    std::thread::sleep(Duration::from_secs(300));
    Ok(())
}

/// Rank 2 ends in this way, rank 0 does not end at all.
fn fail(rank: usize, how: &str) -> Outcome<()> {
    let failing = context::current("worker")?.world_size() / 2;
    if rank == failing {
        match how {
            "error" => return Err("disk full".into()),
            "panic" => panic!("out of ideas"),
            "exit" => {
                eprintln!("famous last words");
                exit(3)
            }
            "exit-0" => exit(0),
            "abort" => std::process::abort(),
            "kill" => kill_process(getpid(), Signal::KILL)?,
            "stopped-other" => {
                // Rank 0's process is stopped by then.
                std::thread::sleep(Duration::from_millis(500));
                return Err("the other one is stopped".into());
            }
            how => return Err(format!("no scenario is called {how}").into()),
        }
    }
    if how == "stopped-other" && rank == 0 {
        kill_process(getpid(), Signal::STOP)?;
    }
    std::thread::sleep(Duration::from_secs(300));
    Ok(())
}
