//! Compiles the C++ layer over Gloo where the feature `gloo` asks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "gloo")]
    gloo::build();
}

#[cfg(feature = "gloo")]
mod gloo {
    use std::path::{Path, PathBuf};

    const SOURCE: &str = "src/transport/shim.cc";

    pub(super) fn build() {
        println!("cargo:rerun-if-changed={SOURCE}");
        if let Err(reason) = find().and_then(|()| compile()) {
            eprintln!(
                "error: feature `gloo` of xla-dist: {reason}; install Gloo and a C++ compiler \
                 (Debian, Ubuntu: apt-get install libgloo-dev g++), or build without the feature"
            );
            std::process::exit(1);
        }
        println!("cargo:rustc-link-lib=dylib=gloo");
    }

    fn compiler() -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17").cargo_warnings(false);
        // Gloo's headers compare signed with unsigned numbers.
        build.warnings(false).opt_level(2);
        build
    }

    /// Looks for the header and the library, so that a missing one is said in one line.
    fn find() -> Result<(), String> {
        let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        let probe = out.join("probe.cc");
        let text = "#include <gloo/config.h>\n";
        std::fs::write(&probe, text).map_err(|error| format!("{}: {error}", probe.display()))?;
        let mut build = compiler();
        let tool = build.file(&probe).try_get_compiler();
        let tool = tool.map_err(|error| format!("no C++ compiler: {error}"))?;
        if build.try_expand().is_err() {
            return Err("the header gloo/config.h is not found".into());
        }
        let found = tool
            .to_command()
            .arg("-print-file-name=libgloo.so")
            .output();
        let found = found.map_err(|error| format!("{}: {error}", tool.path().display()))?;
        // The bare name comes back for a library that is nowhere.
        let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        if Path::new(&path).parent() == Some(Path::new("")) && !in_library_path() {
            return Err("the library libgloo.so is not found".into());
        }
        Ok(())
    }

    /// Whether the library is in one of the folders that the linker is told of besides its own.
    fn in_library_path() -> bool {
        println!("cargo:rerun-if-env-changed=LIBRARY_PATH");
        let folders = std::env::var_os("LIBRARY_PATH").unwrap_or_default();
        std::env::split_paths(&folders).any(|folder| folder.join("libgloo.so").is_file())
    }

    fn compile() -> Result<(), String> {
        println!("cargo:rerun-if-env-changed=CPLUS_INCLUDE_PATH");
        let compiled = compiler().file(SOURCE).try_compile("xla_dist_gloo");
        compiled.map_err(|error| format!("{SOURCE} does not compile: {error}"))
    }
}
