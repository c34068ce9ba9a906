//! Looks for each prerequisite by using it as the build will.
//!
//! `Ok` says what was found, `Err` what is wrong.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clang::diagnostic::Severity;

use crate::process;

const DEADLINE: Duration = Duration::from_secs(60);
const SHOWN: u64 = 4 << 10;

/// The headers that the PJRT header includes; the first two are the compiler's own, which a
/// libclang installed without its headers does not have.
const C_HEADER: &str = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\
                        size_t probe(int64_t number, bool flag);\n";

/// What the plugins' protobufs import: protoc finds these only if its standard files are
/// installed, which some systems package apart.
const PROTO: &str = "syntax = \"proto3\";\n\
                     import \"google/protobuf/any.proto\";\n\
                     import \"google/protobuf/duration.proto\";\n\
                     import \"google/protobuf/wrappers.proto\";\n\
                     message Probe { google.protobuf.Any any = 1; }\n";

/// Needs Gloo's headers to compile and its library to link.
const GLOO_PROGRAM: &str = "#include <gloo/config.h>\n#include <gloo/context.h>\n\
                            int main() { return gloo::Context(0, 1).size - 1; }\n";

/// The probe of libclang in a process of its own.
pub(super) fn libclang_apart() -> Result<String, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    output_of(Command::new(program).arg("probe-libclang"))
}

/// Finds libclang with the search that bindgen uses and parses the standard headers with it.
///
/// At most once a process: the library stays loaded.
pub(crate) fn libclang() -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let header = folder.path().join("probe.h");
    std::fs::write(&header, C_HEADER).map_err(|error| error.to_string())?;

    let clang = clang::Clang::new()?;
    let index = clang::Index::new(&clang, false, false);
    let arguments = clang_arguments();
    let unit = index.parser(&header).arguments(&arguments).parse();
    let unit = unit.map_err(|error| format!("libclang cannot parse a header: {error}"))?;
    let errors = unit.get_diagnostics();
    let error = errors
        .iter()
        .find(|diagnostic| diagnostic.get_severity() >= Severity::Error);
    match error {
        Some(error) => Err(format!(
            "libclang without its headers: {}",
            error.get_text()
        )),
        None => Ok(clang::get_version()),
    }
}

/// The arguments that bindgen adds by itself: the user's, and the include folders of a clang
/// program if there is one.
fn clang_arguments() -> Vec<String> {
    let extra = env::var("BINDGEN_EXTRA_CLANG_ARGS").unwrap_or_default();
    let mut arguments: Vec<String> = extra.split_whitespace().map(str::to_owned).collect();
    let program = clang_sys::support::Clang::find(None, &arguments);
    for folder in program
        .and_then(|clang| clang.c_search_paths)
        .unwrap_or_default()
    {
        arguments.extend(["-isystem".to_owned(), folder.to_string_lossy().into_owned()]);
    }
    arguments
}

/// Compiles a file with the protoc that prost uses.
pub(super) fn protoc() -> Result<String, String> {
    let program = env::var_os("PROTOC").unwrap_or_else(|| "protoc".into());
    let version = output_of(Command::new(&program).arg("--version"))?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("probe.proto");
    std::fs::write(&file, PROTO).map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("--include_imports").arg("-o");
    command.arg(folder.path().join("probe.bin"));
    command.arg("-I").arg(folder.path());
    if let Some(include) = env::var_os("PROTOC_INCLUDE") {
        command.arg("-I").arg(include);
    }
    output_of(command.arg(file))?;
    Ok(version)
}

/// Asks pip for its version.
pub(super) fn pip() -> Result<String, String> {
    output_of(Command::new("python3").args(["-m", "pip", "--version"]))
}

/// Looks for what an environment of its own is made with; Debian packages it apart.
pub(super) fn venv() -> Result<String, String> {
    output_of(Command::new("python3").args(["-c", "import ensurepip, venv"]))
}

/// Compiles and links a program that uses Gloo, with the compiler that the build uses.
pub(super) fn gloo() -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("probe.cc");
    std::fs::write(&file, GLOO_PROGRAM).map_err(|error| error.to_string())?;
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    command.arg("-std=c++17").arg(file).arg("-lgloo");
    output_of(command.arg("-o").arg(folder.path().join("probe")))
}

/// Whether a program of this name is on the PATH.
pub(super) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| is_file(&folder.join(program)))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn output_of(command: &mut Command) -> Result<String, String> {
    let name = process::typed(command);
    let captured = process::capture(command, DEADLINE, SHOWN).map_err(|error| error.to_string())?;
    let output = captured.output.trim();
    if captured.success() {
        return Ok(output.to_owned());
    }
    Err(match (captured.end, output) {
        (process::End::TimedOut, _) => format!("`{name}` did not end within {DEADLINE:?}"),
        (process::End::Exited(status), "") => format!("`{name}` failed ({status})"),
        (process::End::Exited(_), output) => output.to_owned(),
    })
}
