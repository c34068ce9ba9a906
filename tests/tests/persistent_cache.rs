//! Compiled programs kept across processes: what a second process finds, several at once, and a cache
//! that cannot be used.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use xla::metrics::{Counter, Scope};
use xla::nn;
use xla::optim;
use xla::{Result, Tensor};
use xla_core::Config;
use xla_runtime::Plugin;

/// Says which part of a test its process is to act.
const ROLE: &str = "TEST_ROLE";

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A process that runs the calling test again, in a role.
fn start(test: &str, role: &str, variables: &[(&str, &Path)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, role)
        .env_remove("XLA_PERSISTENT_CACHE_PATH")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn end(child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    output
}

fn run(test: &str, role: &str, variables: &[(&str, &Path)]) -> Output {
    end(start(test, role, variables))
}

fn warnings(output: &Output) -> usize {
    let text = String::from_utf8_lossy(&output.stderr);
    text.matches("warning: persistent cache").count()
}

fn entries(folder: &Path) -> usize {
    let count = |found: fs::ReadDir| found.count();
    fs::read_dir(folder).map_or(0, count)
}

/// Three steps of momentum descent on `(w - 1)²` from 0, in closed form with rate 0.1 and momentum
/// 0.5: what the device must give whoever compiled the program.
fn train() -> Result<()> {
    let device = xla::device()?;
    let model = nn::Linear::new(1, 1, device)?;
    xla::no_grad(|| {
        model.weight().zero_()?;
        Ok::<_, xla::Error>(())
    })?;
    let mut optimizer = optim::Sgd::new(vec![model.weight().clone()], 0.1).momentum(0.5);
    let (mut expected, mut velocity) = (0.0f64, 0.0);
    for _ in 0..3 {
        let loss = ((model.weight() - 1.0)?.square()?).sum((), false)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
        velocity = 0.5 * velocity + 2.0 * (expected - 1.0);
        expected -= 0.1 * velocity;
    }
    let weight = f64::from(model.weight().item::<f32>()?);
    assert!((weight - expected).abs() < 1e-6, "{weight} {expected}");
    Ok(())
}

/// What the process compiled, loaded and looked for in vain while it trained.
fn trained() -> [u64; 3] {
    let scope = Scope::new();
    train().unwrap();
    [
        scope.count(Counter::Compile),
        scope.count(Counter::PersistentCacheHit),
        scope.count(Counter::PersistentCacheMiss),
    ]
}

#[test]
fn a_second_process_compiles_nothing() {
    const TEST: &str = "a_second_process_compiles_nothing";
    match role().as_deref() {
        Some("first") => {
            let [compiled, loaded, missed] = trained();
            assert!(compiled > 0 && compiled == missed && loaded == 0);
        }
        Some("second") => {
            let [compiled, loaded, missed] = trained();
            assert!(compiled == 0 && missed == 0 && loaded > 0);
        }
        Some(_) => assert!(matches!(trained(), [compiled, 0, 0] if compiled > 0)),
        None => {
            let home = tempfile::tempdir().unwrap();
            let folder = home.path().join("named");
            for role in ["first", "second"] {
                let output = run(TEST, role, &[("XLA_PERSISTENT_CACHE_PATH", &folder)]);
                assert_eq!(warnings(&output), 0);
            }
            // Unset, it lies among the user's caches; an empty value or 0 switches it off.
            let caches = home.path().join("caches");
            let user: (&str, &Path) = ("XDG_CACHE_HOME", &caches);
            // Where the plugin may be, too.
            let plugin = Plugin::find(Config::global().unwrap()).unwrap();
            let plugin: (&str, &Path) = ("PJRT_LIBRARY_PATH", &plugin);
            for off in ["", "0"] {
                let off = ("XLA_PERSISTENT_CACHE_PATH", Path::new(off));
                run(TEST, "without", &[user, plugin, off]);
                assert!(!caches.join("xla-rs/programs").exists());
            }
            run(TEST, "first", &[user, plugin]);
            assert!(entries(&caches.join("xla-rs/programs")) > 0);
            run(TEST, "second", &[user, plugin]);
        }
    }
}

#[test]
fn processes_at_once_share_the_work_and_the_folder() {
    const TEST: &str = "processes_at_once_share_the_work_and_the_folder";
    if role().is_some() {
        let [compiled, loaded, _] = trained();
        println!("compiled {compiled} loaded {loaded}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache: (&str, &Path) = ("XLA_PERSISTENT_CACHE_PATH", folder.path());
    let children: Vec<Child> = (0..4).map(|_| start(TEST, "one", &[cache])).collect();
    let mut compiled = 0;
    for child in children {
        let output = end(child);
        assert_eq!(warnings(&output), 0);
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, counts) = text.split_once("compiled ").unwrap();
        let number = counts.split_whitespace().next().unwrap();
        compiled += number.parse::<usize>().unwrap();
    }
    // Each program by one of them, and each entry whole.
    assert_eq!(compiled, entries(folder.path()));
    let output = run(TEST, "one", &[cache]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("compiled 0 "));
}

#[test]
fn a_cache_that_cannot_be_used_is_one_warning() {
    const TEST: &str = "a_cache_that_cannot_be_used_is_one_warning";
    if role().is_some() {
        let [compiled, loaded, _] = trained();
        assert!(compiled > 1 && loaded == 0);
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let output = run(TEST, "unwritable", &[("XLA_PERSISTENT_CACHE_PATH", &file)]);
    assert_eq!(warnings(&output), 1, "{output:?}");

    let folder = root.path().join("cache");
    let cache: (&str, &Path) = ("XLA_PERSISTENT_CACHE_PATH", &folder);
    run(TEST, "fill", &[cache]);
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::write(&path, bytes).unwrap();
    }
    let output = run(TEST, "damaged", &[cache]);
    assert_eq!(warnings(&output), 1, "{output:?}");
}

/// A disk that is full while an entry is written: what is there stays whole, and nothing is lost.
#[test]
fn a_full_disk_costs_no_run() {
    const TEST: &str = "a_full_disk_costs_no_run";
    if role().is_some() {
        // No file may grow beyond a few bytes.
        let value: Tensor = Tensor::from_slice(&[1.5f32], [1], ()).unwrap();
        let twice = value.mul(2.0).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(twice, [3.0]);
        trained();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""])
        .arg(program)
        .args([TEST, "--exact", "--nocapture"])
        .env(ROLE, "full")
        .env("XLA_PERSISTENT_CACHE_PATH", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(warnings(&output), 1, "{text}");
    assert_eq!(entries(folder.path()), 0);
}
