//! The floors: which crate of the workspace may depend on which.

use std::path::Path;

use serde::Deserialize;

use super::Violation;
use crate::error::{Error, Result};

const CORE: &str = "xla-core";
const STORE: &str = "xla-store";
const RUNTIME: &str = "xla-runtime";
const LAZY: &str = "xla-lazy";
const DIST: &str = "xla-dist";
const DERIVE: &str = "xla-derive";
const NN: &str = "xla-nn";
const LAUNCH: &str = "xla-launch";
const FACADE: &str = "xla";
const NOTEBOOK: &str = "xla-notebook";

/// Each crate and the crates it may depend on.
const FLOORS: [(&str, &[&str]); 13] = [
    (CORE, &[]),
    (STORE, &[CORE]),
    (RUNTIME, &[CORE]),
    (LAZY, &[CORE, RUNTIME]),
    (DIST, &[CORE, STORE, RUNTIME, LAZY]),
    (DERIVE, &[]),
    (NN, &[CORE, RUNTIME, LAZY, DIST, DERIVE]),
    (LAUNCH, &[CORE, STORE, RUNTIME]),
    (FACADE, &[CORE, STORE, RUNTIME, LAZY, DIST, NN, LAUNCH]),
    (NOTEBOOK, &[FACADE]),
    (
        "benches",
        &[CORE, STORE, RUNTIME, LAZY, DIST, NN, LAUNCH, FACADE],
    ),
    (
        "tests",
        &[CORE, STORE, RUNTIME, LAZY, DIST, NN, LAUNCH, FACADE],
    ),
    ("xtask", &[]),
];

/// The crates of the C API, which one crate alone may use.
const PJRT_CRATES: [&str; 2] = ["pjrt", "pjrt-sys"];

/// What `cargo metadata --no-deps` says of the workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// Absent for an ordinary dependency.
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: String,
}

impl Metadata {
    pub(super) fn parse(json: &str) -> Result<Metadata> {
        serde_json::from_str(json).map_err(|error| Error::Output {
            command: "cargo metadata".to_owned(),
            reason: error.to_string(),
        })
    }

    /// The root files of the libraries and programs of every package but `except`.
    pub(super) fn crate_roots<'a>(&'a self, except: &str) -> impl Iterator<Item = &'a str> {
        let packages = self
            .packages
            .iter()
            .filter(move |package| package.name != except);
        let targets = packages.flat_map(|package| &package.targets);
        let shipped = |target: &&Target| {
            target
                .kind
                .iter()
                .any(|kind| matches!(kind.as_str(), "lib" | "dylib" | "bin"))
        };
        targets
            .filter(shipped)
            .map(|target| target.src_path.as_str())
    }
}

/// Dependencies that go up or across, and crates that the table does not know.
pub(super) fn violations(metadata: &Metadata, root: &Path) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let manifest = Path::new(&package.manifest_path);
        let text = std::fs::read_to_string(manifest).unwrap_or_default();
        let mut broken = |dependency: &str, reason: String| {
            violations.push(Violation {
                file: relative(manifest, root),
                line: line_of(&text, dependency),
                reason,
            });
        };
        let Some((name, below)) = FLOORS.iter().find(|(name, _)| *name == package.name) else {
            broken(
                "name",
                format!("{} has no floor: add it to FLOORS", package.name),
            );
            continue;
        };
        for dependency in &package.dependencies {
            let other = dependency.name.as_str();
            if PJRT_CRATES.contains(&other) && *name != RUNTIME {
                broken(
                    other,
                    format!("{name} depends on {other}; only {RUNTIME} may"),
                );
            }
            let member = FLOORS.iter().any(|(member, _)| *member == other);
            if member && !below.contains(&other) && !is_example_of(dependency) {
                broken(
                    other,
                    format!("{name} depends on {other}, which is not below it"),
                );
            }
        }
    }
    violations
}

/// Examples and documentation tests may show the facade.
fn is_example_of(dependency: &Dependency) -> bool {
    dependency.name == FACADE && dependency.kind.as_deref() == Some("dev")
}

/// The path from the workspace's root, for messages.
pub(super) fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// The first line of a manifest that starts with a key, else 1.
fn line_of(manifest: &str, key: &str) -> usize {
    let starts = |line: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    manifest
        .lines()
        .position(starts)
        .map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One package with one dependency.
    fn reasons(name: &str, dependency: &str, kind: Option<&str>) -> Vec<String> {
        let metadata = serde_json::json!({
            "packages": [{
                "name": name,
                "manifest_path": "/w/crate/Cargo.toml",
                "dependencies": [{ "name": dependency, "kind": kind }],
                "targets": [],
            }],
        });
        let metadata = Metadata::parse(&metadata.to_string()).unwrap();
        let violations = violations(&metadata, Path::new("/w"));
        assert!(
            violations
                .iter()
                .all(|violation| violation.file == "crate/Cargo.toml")
        );
        violations
            .into_iter()
            .map(|violation| violation.reason)
            .collect()
    }

    #[test]
    fn dependencies_go_down() {
        for (name, dependency) in [
            ("xla-lazy", "xla-runtime"),
            ("xla-nn", "xla-dist"),
            ("xla-nn", "xla-derive"),
            ("xla-launch", "xla-runtime"),
            ("xla-launch", "xla-store"),
            ("xla", "xla-launch"),
            ("tests", "xla"),
            ("benches", "xla-dist"),
            ("xla-runtime", "pjrt-sys"),
            ("xla-core", "half"),
        ] {
            assert_eq!(
                reasons(name, dependency, None),
                [""; 0],
                "{name} -> {dependency}"
            );
        }
    }

    #[test]
    fn a_dependency_up_or_across_is_a_violation() {
        for (name, dependency) in [
            ("xla-runtime", "xla-lazy"),
            ("xla-launch", "xla-lazy"),
            ("xla-store", "xla-runtime"),
            ("xla-launch", "xla-nn"),
            ("xla-dist", "xla-launch"),
            ("xla-derive", "xla-core"),
            ("xla-nn", "xla"),
            ("xla", "tests"),
            ("tests", "benches"),
            ("xtask", "xla-core"),
        ] {
            let expected = format!("{name} depends on {dependency}, which is not below it");
            assert_eq!(reasons(name, dependency, None), [expected]);
        }
        assert_eq!(reasons("xla-lazy", "xla-nn", Some("dev")).len(), 1);
        assert_eq!(reasons("xla-nn", "xla", Some("dev")), [""; 0]);
        assert_eq!(reasons("xla-nn", "xla", Some("build")).len(), 1);
    }

    #[test]
    fn pjrt_stays_in_the_runtime() {
        let expected = ["xla-lazy depends on pjrt-sys; only xla-runtime may"];
        assert_eq!(reasons("xla-lazy", "pjrt-sys", None), expected);
    }

    #[test]
    fn a_new_crate_needs_a_floor() {
        let expected = ["xla-onnx has no floor: add it to FLOORS"];
        assert_eq!(reasons("xla-onnx", "xla-core", None), expected);
    }

    #[test]
    fn the_line_is_that_of_the_key() {
        let manifest =
            "[package]\nname = \"a\"\n\n[dependencies]\nxla-nn.workspace = true\nxla = 1\n";
        assert_eq!(line_of(manifest, "xla"), 6);
        assert_eq!(line_of(manifest, "xla-nn"), 5);
        assert_eq!(line_of(manifest, "pjrt"), 1);
    }
}
