//! What an entry is found by: everything that the machine code depends on.

use super::machine;
use crate::cache::hex;
use crate::client::Client;
use sha2::{Digest, Sha256};
use std::env;

/// Changes when equal inputs no longer give equal keys, or equal entries no longer mean the same.
const VERSION: u8 = 1;

/// Variables that the compilers of some plugins read.
const VARIABLES: [&str; 2] = ["XLA_FLAGS", "LIBTPU_INIT_ARGS"];

/// What is the same for all programs of a client but not for all processes.
pub(super) struct Context {
    /// Values of [`VARIABLES`] when the client was created, which is when they are read.
    variables: [Option<String>; VARIABLES.len()],
    /// Threads of a CPU client: its compiler divides loops by them.
    cpu_threads: Option<usize>,
}

impl Context {
    pub(super) fn capture(cpu_threads: Option<usize>) -> Self {
        let lossy = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Context {
            variables: VARIABLES.map(lossy),
            cpu_threads,
        }
    }

    /// Whether the environment asks the compiler to write what it does to files.
    pub(super) fn dumps(&self) -> bool {
        let mut all = self.variables.iter().flatten();
        all.any(|flags| flags.contains("xla_dump_"))
    }

    /// Digest of plugin, platform, machine and environment; `None` where the plugin's file is gone
    /// or it cannot be told what processor this is.
    pub(super) fn digest(&self, client: &Client) -> Option<[u8; 32]> {
        let mut digest = Fields::new();
        digest.add(&client.plugin().sha256().ok()?);
        digest.add(client.platform_name().as_bytes());
        digest.add(client.platform_version().as_bytes());
        digest.number(client.process_index());
        digest.number(client.global_device_count());
        for device in client.devices() {
            digest.add(device.kind().as_bytes());
            // A sorted map: the text is the same in each process.
            digest.add(format!("{:?}", device.attributes()).as_bytes());
        }
        match machine::processor() {
            Some(processor) => digest.add(processor.as_bytes()),
            None if client.is_cpu() => return None,
            None => digest.number(0),
        }
        digest.number(self.cpu_threads.unwrap_or(0));
        for value in &self.variables {
            digest.add(value.as_deref().unwrap_or("").as_bytes());
        }
        Some(digest.end())
    }
}

/// The name of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key([u8; Key::LEN]);

impl Key {
    pub(super) const LEN: usize = 32;

    /// The key of a program, compiled so, in this context.
    pub(super) fn new(context: &[u8; 32], text: &str, options: &[u8]) -> Self {
        let mut digest = Fields::new();
        digest.add(context);
        digest.add(options);
        digest.add(text.as_bytes());
        Key(digest.end())
    }

    pub(super) fn bytes(&self) -> &[u8; Key::LEN] {
        &self.0
    }

    pub(super) fn name(&self) -> String {
        hex(&self.0)
    }
}

/// A digest of fields, each with its length: no two lists of fields are one text.
struct Fields(Sha256);

impl Fields {
    fn new() -> Self {
        Fields(Sha256::new_with_prefix([VERSION]))
    }

    fn add(&mut self, field: &[u8]) {
        self.number(field.len());
        self.0.update(field);
    }

    fn number(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_options_and_context_all_count() {
        let key = Key::new(&[0; 32], "ab", b"c");
        assert_eq!(key, Key::new(&[0; 32], "ab", b"c"));
        assert_ne!(key, Key::new(&[0; 32], "a", b"bc"));
        assert_ne!(key, Key::new(&[0; 32], "ab", b"d"));
        assert_ne!(key, Key::new(&[1; 32], "ab", b"c"));
        assert_eq!(key.name().len(), 64);
    }

    #[test]
    fn a_wish_for_dumps_is_seen() {
        let context = |flags: &str| Context {
            variables: [Some(flags.to_owned()), None],
            cpu_threads: None,
        };
        assert!(context("--a=1 --xla_dump_to=/tmp/x").dumps());
        assert!(!context("--a=1").dumps());
    }
}
