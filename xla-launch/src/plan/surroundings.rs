//! What a plan looks at, apart from the program's options.

use super::Notebook;
use std::backtrace::Backtrace;
use std::path::Path;
use xla_core::{Error, Result};
use xla_runtime::context::Topology;

/// The process as a plan sees it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Surroundings<'a> {
    pub(super) lookup: &'a dyn Fn(&str) -> Option<String>,
    /// The executable's name, without a folder.
    pub executable: String,
    /// What runs the program's functions, if not its own `main`.
    pub harness: Option<Harness>,
    /// Whether the program has made a mesh the device of the whole process.
    pub partitioned: bool,
}

/// Something that calls a program's functions in an order of its own, so that a process cannot come
/// to the same place by running the program again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Harness {
    /// Rust's test harness.
    Libtest,
    /// An example in documentation.
    Doctest,
}

/// Which part of a launch a spawned process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// The process that launched.
    pub(crate) parent: u32,
    /// The replicas that are to run here.
    pub(crate) topology: Topology,
}

impl<'a> Surroundings<'a> {
    /// Those of a program with this environment and nothing special about it.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Surroundings {
            lookup,
            executable: String::new(),
            harness: None,
            partitioned: false,
        }
    }

    /// Those of this process and thread.
    pub fn of_process(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let path = std::env::current_exe().unwrap_or_default();
        let main_thread = std::thread::current().name() == Some("main");
        Surroundings {
            lookup,
            harness: harness(&path, || {
                !main_thread
                    || Backtrace::force_capture()
                        .to_string()
                        .contains("test::run_test")
            }),
            executable: name(&path),
            partitioned: xla_runtime::context::is_partitioned(),
        }
    }

    /// A variable's value; none if it is empty.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.trim().is_empty())
    }

    /// The notebook that this process is the kernel of.
    pub(super) fn notebook(&self) -> Option<Notebook> {
        let has = |name: &str| self.get(name).is_some();
        if has("EVCXR_IS_RUNTIME") || matches!(&*self.executable, "evcxr" | "evcxr_jupyter") {
            Some(Notebook::Evcxr)
        } else if has("COLAB_RELEASE_TAG") || has("COLAB_GPU") || has("COLAB_JUPYTER_IP") {
            Some(Notebook::Colab)
        } else if has("KAGGLE_KERNEL_RUN_TYPE") {
            Some(Notebook::Kaggle)
        } else if has("JPY_PARENT_PID") {
            Some(Notebook::Jupyter)
        } else {
            None
        }
    }

    /// # Errors
    /// [`Error::Launch`] where running the executable again would not lead to the same launch.
    pub(super) fn can_be_run_again(&self) -> Result<()> {
        let what = match (self.harness, self.notebook()) {
            (Some(Harness::Libtest), _) => "a test".to_owned(),
            (Some(Harness::Doctest), _) => "an example in documentation".to_owned(),
            (None, Some(kind)) => format!("a notebook ({kind:?})"),
            (None, None) => return Ok(()),
        };
        Err(Error::Launch {
            reason: format!(
                "processes are asked for in {what}, which running the executable again does not \
                 lead back to"
            ),
            advice: "name a program that makes the same launch with Launcher::worker_command, or \
                     use threads",
        })
    }
}

fn name(executable: &Path) -> String {
    executable
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The harness that an executable at this path contains. Cargo builds tests into `deps`, with a hash
/// in their names; so it does tests without a harness, which only `in_test` can tell apart.
fn harness(executable: &Path, in_test: impl FnOnce() -> bool) -> Option<Harness> {
    let folder = executable.parent().map(name).unwrap_or_default();
    let file = name(executable);
    if folder.starts_with("rustdoctest") || file == "rust_out" {
        return Some(Harness::Doctest);
    }
    let hashed = file
        .rsplit_once('-')
        .is_some_and(|(_, hash)| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
    (hashed && folder == "deps" && in_test()).then_some(Harness::Libtest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harnesses_are_known_by_where_their_programs_are() {
        let found = |path: &str, in_test: bool| harness(Path::new(path), || in_test);
        let test = "/home/me/target/debug/deps/launch-0123456789abcdef";
        assert_eq!(found(test, true), Some(Harness::Libtest));
        assert_eq!(found(test, false), None);
        assert_eq!(found("/home/me/target/debug/launch", true), None);
        for doctest in [
            "/tmp/rustdoctestAbC/rust_out",
            "/tmp/rustdoctestAbC/bundle_2024",
        ] {
            assert_eq!(found(doctest, false), Some(Harness::Doctest));
        }
    }

    #[test]
    fn this_is_a_test() {
        let surroundings = Surroundings::of_process(&|_| None);
        assert_eq!(surroundings.harness, Some(Harness::Libtest));
        assert!(surroundings.executable.starts_with("xla_launch-"));
    }
}
