//! The architecture's invariants, most of them absences, held by reading what is there.
//!
//! The crate graph comes from `cargo metadata`. Absences inside a crate are looked for in its
//! source, without comments and literals: a name in documentation breaks nothing.

mod graph;
mod source;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::{process, workspace};
use source::Code;

/// The crate that may contain unsafe code, because it calls C.
const UNSAFE_CRATE: &str = "xla-runtime";

/// The one file of another crate that may, for the same reason: crate, its root, and the file.
const UNSAFE_FILE: (&str, &str, &str) = (
    "xla-dist",
    "xla-dist/src/lib.rs",
    "xla-dist/src/transport/gloo.rs",
);

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    file: String,
    line: usize,
    reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.reason)
    }
}

/// Which items of a crate another crate may name in its `src`.
struct Rule {
    /// The folder of the crate that is looked at.
    package: &'static str,
    /// The crate whose items are meant, as a path names it.
    of: &'static str,
    names: Names,
    /// Modules of `package`, each a file or a folder of `src`, to which the rule does not apply.
    exempt: &'static [&'static str],
    reason: &'static str,
}

/// The first path segments after the crate's name.
enum Names {
    /// No others than these.
    Only(&'static [&'static str]),
    /// Any but these.
    Not(&'static [&'static str]),
}

const RULES: [Rule; 4] = [
    Rule {
        package: "xla-lazy",
        of: "xla_runtime",
        names: Names::Only(&["context", "metrics", "owner_lock"]),
        exempt: &["cache", "sync"],
        reason: "xla-lazy names no PJRT type outside `cache` and `sync`",
    },
    Rule {
        package: "xla-nn",
        of: "xla_runtime",
        names: Names::Only(&["context", "literal_file", "metrics"]),
        exempt: &[],
        reason: "xla-nn names no PJRT type",
    },
    Rule {
        package: "xla-lazy",
        of: "std",
        names: Names::Not(&["net", "process"]),
        exempt: &[],
        reason: "xla-lazy knows nothing of processes and networks",
    },
    Rule {
        package: "xla-core",
        of: "std",
        names: Names::Not(&["fs", "net", "process"]),
        exempt: &[],
        reason: "xla-core does no I/O",
    },
];

/// Prints every broken invariant as `file:line: reason`.
///
/// Returns whether there was none.
///
/// # Errors
/// If the crate graph or a source file cannot be read.
pub(crate) fn check() -> Result<bool> {
    let root = workspace::root();
    let metadata = graph::Metadata::parse(&metadata()?)?;
    let mut violations = graph::violations(&metadata, &root);
    for file in metadata.crate_roots(UNSAFE_CRATE) {
        let code = Code::new(&read(Path::new(file))?);
        let file = graph::relative(Path::new(file), &root);
        let (level, reason) = if file == UNSAFE_FILE.1 {
            ("deny", "xla-dist lacks `#![deny(unsafe_code)]`")
        } else {
            (
                "forbid",
                "a crate other than xla-runtime lacks `#![forbid(unsafe_code)]`",
            )
        };
        if !code.restricts_unsafe(level) {
            violations.push(Violation {
                file,
                line: 1,
                reason: reason.to_owned(),
            });
        }
    }
    for path in rust_files(&root.join(UNSAFE_FILE.0).join("src"))? {
        let file = graph::relative(&path, &root);
        if file != UNSAFE_FILE.2
            && let Some(line) = Code::new(&read(&path)?).first_unsafe()
        {
            let reason = format!("unsafe code of {} outside {}", UNSAFE_FILE.0, UNSAFE_FILE.2);
            violations.push(Violation { file, line, reason });
        }
    }
    for rule in &RULES {
        let folder = root.join(rule.package).join("src");
        for path in rust_files(&folder)? {
            let inside = path.strip_prefix(&folder).unwrap_or(&path);
            let file = graph::relative(&path, &root);
            violations.extend(rule.violations(inside, &file, &Code::new(&read(&path)?)));
        }
    }
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    Ok(violations.is_empty())
}

impl Rule {
    /// What breaks the rule in one file; `inside` is its path from `src`.
    fn violations(&self, inside: &Path, file: &str, code: &Code) -> Vec<Violation> {
        let exempt = self.exempts(inside);
        let breaks = |named: &source::Named| {
            if exempt {
                // What a re-export renames could be named anywhere under the new name.
                named.reexported
            } else {
                !self.allows(&named.segment)
            }
        };
        let named = code.named_of(self.of);
        named
            .iter()
            .filter(|named| breaks(named))
            .map(|named| Violation {
                file: file.to_owned(),
                line: named.line,
                reason: match named.segment.as_str() {
                    "" => format!("`{}`: {}", self.of, self.reason),
                    segment => format!("`{}::{segment}`: {}", self.of, self.reason),
                },
            })
            .collect()
    }

    fn allows(&self, segment: &str) -> bool {
        match self.names {
            Names::Only(allowed) => allowed.contains(&segment),
            Names::Not(banned) => !banned.contains(&segment),
        }
    }

    fn exempts(&self, inside: &Path) -> bool {
        let mut module = inside
            .components()
            .next()
            .map(|first| PathBuf::from(first.as_os_str()));
        if let Some(first) = &mut module {
            first.set_extension("");
        }
        let module = module.unwrap_or_default();
        self.exempt.iter().any(|name| Path::new(name) == module)
    }
}

fn metadata() -> Result<String> {
    let mut command = workspace::cargo();
    command.args(["metadata", "--format-version", "1", "--no-deps"]);
    process::stdout_of(&mut command, Duration::from_secs(5 * 60))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// Every Rust file under `folder`, in a fixed order.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Error::file("list", &folder))? {
            let path = entry.map_err(Error::file("list", &folder))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(rule: &Rule, inside: &str, text: &str) -> Vec<(usize, String)> {
        let violations = rule.violations(Path::new(inside), inside, &Code::new(text));
        violations.into_iter().map(|v| (v.line, v.reason)).collect()
    }

    #[test]
    fn a_pjrt_type_is_found_where_it_must_not_be() {
        let text = "use xla_runtime::metrics;\n\nfn f(b: &xla_runtime::Buffer) {}\n";
        let reason =
            "`xla_runtime::Buffer`: xla-lazy names no PJRT type outside `cache` and `sync`";
        for inside in ["tensor.rs", "ops/sync.rs", "cached.rs", "lib.rs"] {
            assert_eq!(
                broken(&RULES[0], inside, text),
                [(3, reason.to_owned())],
                "{inside}"
            );
        }
        for inside in [
            "sync.rs",
            "cache.rs",
            "sync/stages.rs",
            "cache/key/words.rs",
        ] {
            assert_eq!(broken(&RULES[0], inside, text), [], "{inside}");
        }
        assert_eq!(
            broken(&RULES[1], "sync.rs", text).len(),
            1,
            "xla-nn has no exempt module"
        );
    }

    #[test]
    fn an_exempt_module_may_not_re_export() {
        let private = "use xla_runtime::Buffer;\npub fn f(b: &xla_runtime::Event) {}\n";
        assert_eq!(broken(&RULES[0], "cache.rs", private), []);
        for public in [
            "pub use xla_runtime::Buffer;",
            "pub(crate) use xla_runtime::{Buffer as B};",
        ] {
            assert_eq!(broken(&RULES[0], "cache.rs", public).len(), 1, "{public}");
        }
    }

    #[test]
    fn processes_and_networks_are_found() {
        let text = "use std::{fmt, process::Command};\nfn f() { std::net::TcpStream::connect(x); }";
        let lines: Vec<usize> = broken(&RULES[2], "a.rs", text)
            .iter()
            .map(|v| v.0)
            .collect();
        assert_eq!(lines, [1, 2]);
        assert_eq!(broken(&RULES[2], "a.rs", "use std::fs;"), []);
        assert_eq!(broken(&RULES[3], "a.rs", "use std::fs;").len(), 1);
    }

    #[test]
    fn the_rules_name_crates_of_this_workspace() {
        for rule in &RULES {
            assert!(
                workspace::root().join(rule.package).join("src").is_dir(),
                "{}",
                rule.package
            );
        }
    }
}
