//! Programs: compiled, or loaded as they were compiled before.

use super::Client;
use crate::call::Extended;
use crate::disk_cache::Source;
use crate::executable::Executable;
use crate::handle::Handle;
use crate::metrics::{self, Counter, Metric};
use crate::options::CompileOptions;
use crate::signature::Signature;
use crate::{blob, host_memory};
use pjrt_sys as sys;
use std::thread;
use xla_core::{Error, Result};

/// Stack of the thread that compiles. XLA's passes recurse along chains of operators, and 8 MB
/// overflow at some tens of thousands; the memory is reserved, not used, until then.
const COMPILE_STACKS: [usize; 2] = [1 << 30, 64 << 20];

impl Client {
    /// Compiles a program written in StableHLO's text form, or loads it from the persistent cache
    /// ([`ClientOptions::persistent_cache`](crate::ClientOptions::persistent_cache)), where it was
    /// compiled by an equal client before.
    ///
    /// `signature` says what the program takes and returns on one device. Results are checked
    /// against the compiled program; arguments cannot be (the API does not tell), so they are what
    /// executions are checked against.
    ///
    /// # Errors
    /// [`Error::Argument`] for options that would end the process or contradict each other;
    /// [`Error::Compile`] with the compiler's words; [`Error::Internal`] when the program's results
    /// are not those of the signature.
    pub fn compile(
        &self,
        stablehlo_text: &str,
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let _running = self.begin()?;
        let encoded = options.encode(signature, &self.0.ids)?;
        let compile = || {
            let watch = Metric::CompileTime.start();
            let loaded = on_large_stack(|| self.compile_here(stablehlo_text, &encoded))?
                .map_err(|error| describe_failure(error, stablehlo_text))?;
            watch.stop();
            metrics::add(Counter::Compile, 1);
            if self.is_cpu() {
                host_memory::trim();
            }
            Executable::new(self, loaded, signature, options)
        };
        let Some(cache) = &self.0.disk_cache else {
            return compile();
        };
        let source = Source {
            text: stablehlo_text,
            encoded: &encoded,
            signature,
            options,
        };
        cache.get_or_compile(self, &source, compile)
    }

    fn compile_here(
        &self,
        text: &str,
        options: &[u8],
    ) -> Result<Handle<sys::PJRT_LoadedExecutable>> {
        const FORMAT: &str = "mlir";
        let mut program = Extended::<sys::PJRT_Program>::new(|p| {
            // The field is writable for the calls that fill a program in; this one only reads.
            p.code = text.as_ptr().cast_mut().cast();
            p.code_size = text.len();
            p.format = FORMAT.as_ptr().cast();
            p.format_size = FORMAT.len();
        });
        let mut args = Extended::<sys::PJRT_Client_Compile_Args>::new(|a| {
            a.client = self.as_ptr();
            a.program = program.as_mut_ptr();
            a.compile_options = options.as_ptr().cast();
            a.compile_options_size = options.len();
        });
        // SAFETY: client, program and options are live during the call, and the options hold counts
        // of at least one; the executable handed out is owned by the caller.
        unsafe {
            self.api().PJRT_Client_Compile(&mut args)?;
            Handle::new(self.api(), args.executable)
        }
    }

    /// Loads what [`Executable::serialize`] gave, with the signature and options of its compilation.
    ///
    /// # Errors
    /// [`Error::Argument`] when the bytes are damaged or were made by another build of the plugin
    /// (loading such a blob can corrupt memory, so the plugin never sees it) or when the options are
    /// unsound; [`Error::Pjrt`] with the plugin's words.
    pub fn load_serialized(
        &self,
        bytes: &[u8],
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<Executable> {
        let _running = self.begin()?;
        let payload = blob::open(bytes, &self.0.plugin.sha256()?)?;
        let encoded = options.encode(signature, &self.0.ids)?;
        let loaded = on_large_stack(|| {
            let mut args = Extended::<sys::PJRT_Executable_DeserializeAndLoad_Args>::new(|a| {
                a.client = self.as_ptr();
                a.serialized_executable = payload.as_ptr().cast();
                a.serialized_executable_size = payload.len();
            });
            // Two fields that the API gained later: compile options in place of the serialised ones,
            // and their length. An older plugin keeps the serialised ones.
            args.set_appended(0, encoded.as_ptr().expose_provenance());
            args.set_appended(1, encoded.len());
            // SAFETY: client, bytes and options are live during the call; the bytes are what this
            // very build of the plugin wrote; the executable handed out is owned by the caller.
            unsafe {
                self.api().PJRT_Executable_DeserializeAndLoad(&mut args)?;
                Handle::new(self.api(), args.loaded_executable)
            }
        })??;
        Executable::new(self, loaded, signature, options)
    }
}

/// Runs `work` on a thread of its own with a stack that XLA's recursion does not exhaust.
fn on_large_stack<T: Send>(work: impl Fn() -> T + Sync) -> Result<T> {
    let mut refusal = None;
    for stack in COMPILE_STACKS {
        let result = thread::scope(|scope| {
            let builder = thread::Builder::new()
                .name("xla-compile".into())
                .stack_size(stack);
            builder
                .spawn_scoped(scope, &work)
                .map(thread::ScopedJoinHandle::join)
        });
        match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => refusal = Some(error),
        }
    }
    Err(Error::Unsupported {
        what: "a thread to compile on",
        since: (0, 0),
    })
    .inspect_err(|_| {
        tracing::warn!(?refusal, "the system refuses a thread");
    })
}

/// The compiler's error with the program's name and size.
fn describe_failure(error: Error, text: &str) -> Error {
    let Error::Pjrt { message, .. } = error else {
        return error;
    };
    let name = text
        .split_once("module @")
        .and_then(|(_, rest)| rest.split(|c: char| c.is_whitespace() || c == '{').next())
        .unwrap_or("a program");
    Error::Compile {
        name: name.to_owned(),
        nodes: text
            .lines()
            .filter(|l| l.trim_start().starts_with('%'))
            .count(),
        message,
    }
}
