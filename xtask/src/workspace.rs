//! Where the workspace is, and how cargo is called in it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // cargo names the folder of the package it runs; the value at compile time is for a binary
    // started by hand.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or(package.clone(), Path::to_path_buf)
}

/// A cargo command in the workspace's root.
pub(crate) fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root());
    without_own_variables(&mut command);
    command
}

/// Takes away the variables that the cargo which runs this process has set for this package: a
/// build script that watches one of them would be run again each time, and a test would take
/// them for its own package's.
pub(crate) fn without_own_variables(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            command.env_remove(name);
        }
    }
}

fn describes_this_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_BIN_")
        || matches!(
            name,
            "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR"
        )
}

/// The packages with a feature `gloo`, which the ones above pass on.
const WITH_GLOO: [&str; 4] = ["benches", "tests", "xla", "xla-dist"];

/// The cargo arguments that select `packages`, or the workspace if there are none, built with Gloo
/// or without.
pub(crate) fn selection(packages: &[String], gloo: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    if packages.is_empty() {
        arguments.push("--workspace".to_owned());
    }
    for name in packages {
        arguments.extend(["--package".to_owned(), name.clone()]);
    }
    let selected = |name: &&str| packages.is_empty() || packages.iter().any(|other| other == name);
    for name in WITH_GLOO.iter().filter(|name| gloo && selected(name)) {
        arguments.extend(["--features".to_owned(), format!("{name}/gloo")]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_selected_by_name_or_all() {
        assert_eq!(selection(&[], false), ["--workspace"]);
        let names = ["xla-core".to_owned(), "xla".to_owned()];
        let selected = ["--package", "xla-core", "--package", "xla"];
        assert_eq!(selection(&names, false), selected);
    }

    #[test]
    fn gloo_is_a_feature_of_the_selected_packages_that_have_it() {
        let names = ["xla-core".to_owned(), "xla".to_owned()];
        let selected = selection(&names, true);
        assert_eq!(selected[4..], ["--features", "xla/gloo"]);
        assert_eq!(selection(&[], true).len(), 1 + 2 * WITH_GLOO.len());
    }
}
