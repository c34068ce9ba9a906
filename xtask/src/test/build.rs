//! Builds the tests and collects their programs from cargo's messages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::{note, process, workspace};

/// From nothing, on two cores.
const DEADLINE: Duration = Duration::from_secs(30 * 60);

/// What was built.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Build {
    pub(super) programs: Vec<Program>,
    /// Whether any of the packages has a library, and so perhaps doctests.
    pub(super) has_library: bool,
}

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) executable: PathBuf,
    /// The package and the target, as in `xla-core lib`.
    pub(super) name: String,
    /// The package's folder: where its tests run.
    pub(super) folder: PathBuf,
    /// What cargo sets for a test at run time.
    pub(super) environment: Vec<(String, String)>,
}

/// The fields of a cargo message that matter; others have other reasons.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Build {
    /// Sets a variable for the tests of a program.
    pub(super) fn tell(&mut self, program: &str, variable: &str, value: &Path) {
        let value = value.to_string_lossy().into_owned();
        for program in self
            .programs
            .iter_mut()
            .filter(|other| other.name == program)
        {
            program
                .environment
                .push((variable.to_owned(), value.clone()));
        }
    }
}

/// Builds the tests of `packages`, or of the workspace if there are none, with Gloo or without.
///
/// # Errors
/// [`Error::Failed`] if something does not compile; cargo has printed why.
pub(super) fn build(packages: &[String], gloo: bool) -> Result<Build> {
    note("building the tests");
    let mut command = workspace::cargo();
    command.args(["test", "--no-run", "--quiet"]);
    command.arg("--message-format=json-render-diagnostics");
    command.args(workspace::selection(packages, gloo));
    parse(&process::stdout_of(&mut command, DEADLINE)?)
}

fn parse(messages: &str) -> Result<Build> {
    let mut artifacts = Vec::new();
    let mut has_library = false;
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).map_err(|error| Error::Output {
            command: "cargo test --no-run".to_owned(),
            reason: error.to_string(),
        })?;
        if let ("compiler-artifact", Some(target), Some(profile), Some(executable)) = (
            message.reason.as_str(),
            message.target,
            message.profile,
            message.executable,
        ) {
            has_library |= profile.test && is_library(&target);
            artifacts.push((
                message.package_id,
                message.manifest_path,
                target,
                profile.test,
                executable,
            ));
        }
    }
    // Integration tests learn where their package's programs are.
    let mut binaries: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (package, _, target, test, executable) in &artifacts {
        if !test && target.kind.iter().any(|kind| kind == "bin") {
            let variable = format!("CARGO_BIN_EXE_{}", target.name);
            let path = executable.to_string_lossy().into_owned();
            binaries
                .entry(package.clone())
                .or_default()
                .push((variable, path));
        }
    }
    let tests = artifacts.into_iter().filter(|(_, _, _, test, _)| *test);
    let programs = tests.map(|(package, manifest, target, _, executable)| {
        let mut environment = binaries.get(&package).cloned().unwrap_or_default();
        let folder = manifest.parent().unwrap_or(Path::new(".")).to_path_buf();
        environment.extend([
            (
                "CARGO_MANIFEST_DIR".to_owned(),
                folder.to_string_lossy().into_owned(),
            ),
            (
                "CARGO_MANIFEST_PATH".to_owned(),
                manifest.to_string_lossy().into_owned(),
            ),
        ]);
        Program {
            executable,
            name: format!("{} {}", file_name(&folder), target_name(&target)),
            folder,
            environment,
        }
    });
    let mut programs: Vec<Program> = programs.collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Build {
        programs,
        has_library,
    })
}

fn is_library(target: &Target) -> bool {
    target.kind.iter().any(|kind| kind == "lib")
}

fn target_name(target: &Target) -> &str {
    if is_library(target) {
        "lib"
    } else {
        &target.name
    }
}

/// Packages of this workspace lie in folders of their name.
fn file_name(folder: &Path) -> String {
    folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(
        package: &str,
        kind: &str,
        name: &str,
        test: bool,
        executable: Option<&str>,
    ) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///w/{package}#0.1.0"),
            "manifest_path": format!("/w/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name, "src_path": "ignored" },
            "profile": { "opt_level": "1", "test": test },
            "executable": executable,
            "fresh": true,
        })
        .to_string()
    }

    #[test]
    fn test_programs_know_their_package_and_its_binaries() {
        let messages = [
            artifact("half", "lib", "half", false, None),
            artifact("tests", "bin", "worker", false, Some("/t/worker")),
            artifact("tests", "test", "launch", true, Some("/t/launch-1")),
            artifact("xla-core", "lib", "xla_core", true, Some("/t/xla_core-1")),
            artifact("xla", "example", "digits", false, Some("/t/digits")),
            "a line that a build script printed".to_owned(),
            "{\"reason\":\"build-finished\",\"success\":true}".to_owned(),
        ];
        let build = parse(&messages.join("\n")).unwrap();
        assert!(build.has_library);
        let names: Vec<&str> = build
            .programs
            .iter()
            .map(|program| program.name.as_str())
            .collect();
        assert_eq!(names, ["tests launch", "xla-core lib"]);
        let launch = &build.programs[0];
        assert_eq!(launch.executable, Path::new("/t/launch-1"));
        assert_eq!(launch.folder, Path::new("/w/tests"));
        let worker = ("CARGO_BIN_EXE_worker".to_owned(), "/t/worker".to_owned());
        assert!(launch.environment.contains(&worker));
        assert!(!build.programs[1].environment.contains(&worker));
    }

    #[test]
    fn a_message_that_cannot_be_read_is_an_error() {
        assert!(matches!(
            parse("{\"reason\": 3}"),
            Err(Error::Output { .. })
        ));
    }
}
