//! Puts a plugin into its place in the cache: whole, checked, or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

use super::stamp::{self, Stamp};
use crate::error::{Error, Result};
use crate::note;

/// The prefix of folders in which downloads are made; one left by a killed run is removed later.
const STAGING: &str = ".staging-";
/// Older than any download that may still be running.
const STALE: Duration = Duration::from_secs(60 * 60);

/// A file to install out of a wheel.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) package: String,
    pub(super) version: String,
    /// The file's path inside the wheel.
    pub(super) member: String,
    /// Where it goes.
    pub(super) library: PathBuf,
    pub(super) wheel_sha256: String,
    pub(super) library_sha256: String,
}

/// What lies at a target's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The right file.
    Ready,
    /// Nothing.
    Absent,
    /// A file with another SHA-256.
    Damaged,
}

/// Looks at what is installed, hashing it if its stamp does not vouch for it or `verify` is set.
pub(super) fn state(target: &Target, verify: bool) -> Result<State> {
    let library = &target.library;
    let file = match File::open(library) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
        Err(error) => return Err(Error::file("open", library)(error)),
    };
    // Taken before the file is read: a write during the hashing makes the stamp differ.
    let metadata = file.metadata().map_err(Error::file("inspect", library))?;
    let right = Stamp::new(&target.library_sha256, &metadata);
    if !verify && Stamp::read(library).is_some_and(|stamp| stamp == right) {
        return Ok(State::Ready);
    }
    let (digest, _) = stamp::sha256(&file).map_err(Error::file("read", library))?;
    if digest != target.library_sha256 {
        return Ok(State::Damaged);
    }
    // A cache that cannot be written to still serves; it is hashed each time.
    let _ = right.write(library);
    Ok(State::Ready)
}

/// Installs `target` unless `state` says that it is ready.
///
/// `download` puts the wheel into the given folder and returns its path; it is called a second
/// time, told so, if the first wheel is not the right one.
pub(super) fn ensure(
    target: &Target,
    state: State,
    download: impl Fn(&Target, &Path, bool) -> Result<PathBuf>,
) -> Result<()> {
    let library = &target.library;
    match state {
        State::Ready => {
            note(format_args!("CPU plugin ready: {}", library.display()));
            return Ok(());
        }
        State::Absent => {}
        State::Damaged => note(format_args!(
            "the CPU plugin is damaged (SHA-256 differs) and will be replaced: {}",
            library.display()
        )),
    }
    let folder = library.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    remove_stale(folder);
    let staging = tempfile::Builder::new().prefix(STAGING).tempdir_in(folder);
    let staging = staging.map_err(Error::file("create a folder in", folder))?;

    let wheel = match fetch(target, staging.path(), false, &download) {
        Err(Error::Digest { what, got, .. }) => {
            note(format_args!(
                "{what} has SHA-256 {got}, which is wrong; downloading it again"
            ));
            fetch(target, staging.path(), true, &download)?
        }
        result => result?,
    };
    unpack(target, &wheel, staging.path())?;
    note(format_args!("CPU plugin installed: {}", library.display()));
    Ok(())
}

/// Downloads the wheel and checks it.
fn fetch(
    target: &Target,
    staging: &Path,
    again: bool,
    download: impl Fn(&Target, &Path, bool) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let name = format!("{} {}", target.package, target.version);
    note(format_args!("downloading {name} with pip"));
    let started = Instant::now();
    let folder = staging.join(if again { "second" } else { "first" });
    fs::create_dir(&folder).map_err(Error::file("create", &folder))?;
    let wheel = download(target, &folder, again)?;
    let file = File::open(&wheel).map_err(Error::file("open", &wheel))?;
    let (digest, size) = stamp::sha256(file).map_err(Error::file("read", &wheel))?;
    if digest != target.wheel_sha256 {
        return Err(Error::Digest {
            what: format!("the wheel of {name}"),
            expected: target.wheel_sha256.clone(),
            got: digest,
        });
    }
    note(format_args!(
        "downloaded {} in {:.1} s, SHA-256 as expected",
        megabytes(size),
        started.elapsed().as_secs_f64()
    ));
    Ok(wheel)
}

/// Unpacks the library beside its place, checks it, and moves it there in one step.
fn unpack(target: &Target, wheel: &Path, staging: &Path) -> Result<()> {
    let library = &target.library;
    let failed = |source| Error::Wheel {
        wheel: wheel.to_path_buf(),
        member: target.member.clone(),
        source,
    };
    let file = File::open(wheel).map_err(Error::file("open", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(failed)?;
    let member = archive.by_name(&target.member).map_err(failed)?;

    let partial = staging.join("library");
    let file = File::create(&partial).map_err(Error::file("create", &partial))?;
    let mut output = Hashing {
        output: file,
        hasher: Sha256::new(),
    };
    let mut member = io::BufReader::with_capacity(1 << 20, member);
    let size = io::copy(&mut member, &mut output).map_err(|error| failed(error.into()))?;
    let Hashing { output, hasher } = output;
    let digest = stamp::hexadecimal(hasher);
    if digest != target.library_sha256 {
        return Err(Error::Digest {
            what: format!("{} in the wheel", target.member),
            expected: target.library_sha256.clone(),
            got: digest,
        });
    }
    // On disk before it has its name: a power failure leaves no half-written plugin behind.
    output.sync_all().map_err(Error::file("write", &partial))?;
    fs::rename(&partial, library).map_err(Error::file("create", library))?;
    // After the renaming, which changes the inode.
    let metadata = output.metadata().map_err(Error::file("inspect", library))?;
    let _ = Stamp::new(&digest, &metadata).write(library);
    note(format_args!(
        "unpacked {}, SHA-256 as expected",
        megabytes(size)
    ));
    Ok(())
}

/// Hashes what passes through it.
struct Hashing<W> {
    output: W,
    hasher: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Removes what killed runs left; failing to is harmless.
fn remove_stale(folder: &Path) {
    let Ok(entries) = folder.read_dir() else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(STAGING);
        let age = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if ours && age.is_some_and(|age| age > STALE) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MEMBER: &str = "package/plugin.so";
    const CONTENT: &[u8] = b"the right plugin";

    /// A wheel with one member, as bytes.
    fn wheel(content: &[u8]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default();
        writer.start_file("package/__init__.py", options).unwrap();
        writer.start_file(MEMBER, options).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap().into_inner()
    }

    fn target(folder: &Path) -> Target {
        Target {
            package: "package".to_owned(),
            version: "1".to_owned(),
            member: MEMBER.to_owned(),
            library: folder.join("package-1").join("plugin.so"),
            wheel_sha256: stamp::sha256(&wheel(CONTENT)[..]).unwrap().0,
            library_sha256: stamp::sha256(CONTENT).unwrap().0,
        }
    }

    /// Delivers the given wheels one after the other and counts them.
    struct Source {
        wheels: Vec<Vec<u8>>,
        delivered: Cell<usize>,
    }

    impl Source {
        fn new(wheels: Vec<Vec<u8>>) -> Source {
            Source {
                wheels,
                delivered: Cell::new(0),
            }
        }

        fn deliver(&self, folder: &Path, again: bool) -> Result<PathBuf> {
            let number = self.delivered.replace(self.delivered.get() + 1);
            assert_eq!(
                again,
                number > 0,
                "the second download is told that it is one"
            );
            let path = folder.join("package.whl");
            fs::write(&path, &self.wheels[number]).unwrap();
            Ok(path)
        }

        fn install(&self, target: &Target) -> Result<()> {
            let state = state(target, false)?;
            ensure(target, state, |_, folder, again| {
                self.deliver(folder, again)
            })
        }
    }

    /// Names in the target's folder, sorted.
    fn names(target: &Target) -> Vec<String> {
        let folder = target.library.parent().unwrap().read_dir().unwrap();
        let mut names: Vec<String> = folder
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn installs_once_and_leaves_nothing_else() {
        let cache = tempfile::tempdir().unwrap();
        let target = target(cache.path());
        let source = Source::new(vec![wheel(CONTENT)]);
        assert_eq!(state(&target, false).unwrap(), State::Absent);
        source.install(&target).unwrap();
        assert_eq!(fs::read(&target.library).unwrap(), CONTENT);
        assert_eq!(names(&target), ["plugin.so", "plugin.so.stamp"]);
        source.install(&target).unwrap();
        assert_eq!(source.delivered.get(), 1);
    }

    #[test]
    fn the_stamp_of_an_installation_vouches_for_the_file() {
        let cache = tempfile::tempdir().unwrap();
        let target = target(cache.path());
        Source::new(vec![wheel(CONTENT)]).install(&target).unwrap();
        let metadata = target.library.metadata().unwrap();
        let expected = Stamp::new(&target.library_sha256, &metadata);
        assert_eq!(Stamp::read(&target.library), Some(expected));
        assert_eq!(state(&target, false).unwrap(), State::Ready);
        assert_eq!(state(&target, true).unwrap(), State::Ready);
    }

    #[test]
    fn a_damaged_or_half_written_file_is_replaced() {
        for damage in [&b"the wrong plugin"[..], &CONTENT[..5], b""] {
            let cache = tempfile::tempdir().unwrap();
            let target = target(cache.path());
            Source::new(vec![wheel(CONTENT)]).install(&target).unwrap();
            fs::write(&target.library, damage).unwrap();
            assert_eq!(state(&target, false).unwrap(), State::Damaged);
            Source::new(vec![wheel(CONTENT)]).install(&target).unwrap();
            assert_eq!(fs::read(&target.library).unwrap(), CONTENT);
        }
    }

    #[test]
    fn a_right_file_without_a_stamp_is_hashed_and_kept() {
        let cache = tempfile::tempdir().unwrap();
        let target = target(cache.path());
        fs::create_dir_all(target.library.parent().unwrap()).unwrap();
        fs::write(&target.library, CONTENT).unwrap();
        Source::new(Vec::new()).install(&target).unwrap();
        assert_eq!(names(&target), ["plugin.so", "plugin.so.stamp"]);
    }

    #[test]
    fn a_damaged_wheel_is_downloaded_once_more() {
        let cache = tempfile::tempdir().unwrap();
        let target = target(cache.path());
        let half = wheel(CONTENT)[..40].to_vec();
        let source = Source::new(vec![half, wheel(CONTENT)]);
        source.install(&target).unwrap();
        assert_eq!(source.delivered.get(), 2);
        assert_eq!(fs::read(&target.library).unwrap(), CONTENT);
    }

    #[test]
    fn a_wheel_that_stays_wrong_is_an_error_and_installs_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let target = target(cache.path());
        let wrong = wheel(b"something else");
        let got_expected = stamp::sha256(&wrong[..]).unwrap().0;
        let error = Source::new(vec![wrong.clone(), wrong]).install(&target);
        match error.unwrap_err() {
            Error::Digest { expected, got, .. } => {
                assert_eq!(expected, target.wheel_sha256);
                assert_eq!(got, got_expected);
            }
            other => panic!("{other}"),
        }
        assert!(names(&target).is_empty());
    }

    #[test]
    fn a_library_that_is_not_the_expected_one_is_not_installed() {
        let cache = tempfile::tempdir().unwrap();
        let mut target = target(cache.path());
        let other = wheel(b"something else");
        target.wheel_sha256 = stamp::sha256(&other[..]).unwrap().0;
        let error = Source::new(vec![other]).install(&target).unwrap_err();
        assert!(matches!(error, Error::Digest { .. }), "{error}");
        assert!(names(&target).is_empty());
    }

    #[test]
    fn what_a_killed_run_left_is_removed_when_it_is_old() {
        let cache = tempfile::tempdir().unwrap();
        let old = cache.path().join(".staging-old");
        let young = cache.path().join(".staging-young");
        for folder in [&old, &young] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("library"), "half").unwrap();
        }
        let two_hours_ago = SystemTime::now() - 2 * STALE;
        File::open(&old)
            .unwrap()
            .set_modified(two_hours_ago)
            .unwrap();
        remove_stale(cache.path());
        assert!(!old.exists());
        assert!(young.exists());
    }
}
