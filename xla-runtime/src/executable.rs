//! Compiled programs: what they are. How they run is in `execute`.

use crate::call::{Api, Extended, array, string};
use crate::client::Client;
use crate::handle::Handle;
use crate::memory::Need;
use crate::options::CompileOptions;
use crate::signature::{Signature, describe, dtype};
use crate::{blob, exit, shardings};
use pjrt_sys as sys;
use std::fmt;
use std::sync::Arc;
use xla_core::{DType, Dims, Error, Result, Shape, Tiling};

/// A compiled program, loaded onto the devices it runs on. Clones are the same program.
#[derive(Clone)]
pub struct Executable(pub(crate) Arc<Program>);

pub(crate) struct Program {
    // Before the client: they must go first.
    pub(crate) loaded: Handle<sys::PJRT_LoadedExecutable>,
    compiled: Handle<sys::PJRT_Executable>,
    pub(crate) client: Client,
    pub(crate) signature: Signature,
    pub(crate) donated: Vec<usize>,
    pub(crate) placement: Placement,
    /// `None` where the plugin does not say.
    pub(crate) need: Option<Need>,
}

/// Where a program may run.
pub(crate) enum Placement {
    /// On any one device.
    Anywhere,
    /// On the one device it was compiled for.
    On(usize),
    /// On all of these at once (positions among this process's devices), replica-major.
    Together(Vec<usize>),
}

/// Memory that one execution of a program takes on a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompiledMemory {
    /// Machine code.
    pub generated_code: u64,
    /// Arguments.
    pub arguments: u64,
    /// Results.
    pub outputs: u64,
    /// The part of the results that reuses donated arguments.
    pub aliased: u64,
    /// Intermediate values.
    pub temporaries: u64,
}

/// A program after optimisation, as the plugin exports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptimizedProgram {
    /// What the bytes are: `hlo` for a serialised `HloModuleProto`, `hlo_with_config` for a
    /// serialised `HloModuleProtoWithConfig`.
    pub format: String,
    /// The program.
    pub code: Vec<u8>,
}

impl Executable {
    pub(crate) fn new(
        client: &Client,
        loaded: Handle<sys::PJRT_LoadedExecutable>,
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<Self> {
        let api = client.api();
        let mut args = Extended::<sys::PJRT_LoadedExecutable_GetExecutable_Args>::new(|a| {
            a.loaded_executable = loaded.as_ptr();
        });
        // SAFETY: the executable is live; what is handed out is owned by the caller.
        let compiled = unsafe {
            api.PJRT_LoadedExecutable_GetExecutable(&mut args)?;
            Handle::new(api, args.executable)?
        };
        let mut signature = signature.clone();
        let partitioned = options.num_partitions > 1;
        check_outputs(api, &compiled, &mut signature, partitioned)?;
        let placement = if options.portable {
            Placement::Anywhere
        } else {
            // Asked of the plugin rather than taken from the options: one that is too old to be
            // handed options with a serialised executable keeps its own.
            match devices(client, &loaded)?.as_slice() {
                [one] if options.device_count() == 1 => Placement::On(*one),
                all => Placement::Together(all.to_vec()),
            }
        };
        exit::renew();
        let mut donated = options.donated.clone();
        donated.sort_unstable();
        donated.dedup();
        let need = compiled_memory(api, &compiled).as_ref().map(Need::of);
        Ok(Executable(Arc::new(Program {
            loaded,
            compiled,
            need,
            client: client.clone(),
            signature,
            donated,
            placement,
        })))
    }

    /// What the program takes and returns.
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// Dtypes and shapes of the results on one device, in order.
    pub fn output_types(&self) -> &[(DType, Shape)] {
        &self.0.signature.outputs
    }

    /// Arguments whose memory the program takes, by position.
    pub fn donated(&self) -> &[usize] {
        &self.0.donated
    }

    /// The client it runs on.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// The devices that run it together, by position among this process's, replica-major; empty for a
    /// portable program, which runs on any one.
    pub fn devices(&self) -> &[usize] {
        match &self.0.placement {
            Placement::Anywhere => &[],
            Placement::On(one) => std::slice::from_ref(one),
            Placement::Together(all) => all,
        }
    }

    /// The compiled program as bytes, for [`Client::load_serialized`] on the same build of the
    /// plugin.
    ///
    /// # Errors
    /// [`Error::Pjrt`] where the plugin cannot; [`Error::Io`] when the plugin's file is gone.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let plugin = self.0.client.plugin().sha256()?;
        let mut args = Extended::<sys::PJRT_Executable_Serialize_Args>::new(|a| {
            a.executable = self.0.compiled.as_ptr();
        });
        // SAFETY: the executable is live; the bytes live until the deleter is called on what backs
        // them, once, after they were copied.
        unsafe {
            self.0.client.api().PJRT_Executable_Serialize(&mut args)?;
            let bytes = blob::seal(
                array(args.serialized_bytes.cast(), args.serialized_bytes_size),
                &plugin,
            );
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Ok(bytes)
        }
    }

    /// Memory that one execution takes; `None` where the plugin does not say.
    pub fn memory_stats(&self) -> Option<CompiledMemory> {
        compiled_memory(self.0.client.api(), &self.0.compiled)
    }

    /// Whether a device has the memory that the program needs besides its arguments. Asked by
    /// [`Executable::execute`] itself, but not where replicas run together: those have to be asked
    /// before the first of them is started.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the plugin tells how much the program needs, and there is not as
    /// much.
    pub fn check_memory(&self, device: usize) -> Result<()> {
        let devices = match &self.0.placement {
            Placement::Together(all) => all.len(),
            Placement::Anywhere | Placement::On(_) => 1,
        };
        match self.0.need {
            Some(need) => need.check(&self.0.client, device, devices),
            None => Ok(()),
        }
    }

    /// The plugin's fingerprint of the compiled program; `None` where it has none.
    pub fn fingerprint(&self) -> Option<String> {
        let mut args = Extended::<sys::PJRT_Executable_Fingerprint_Args>::new(|a| {
            a.executable = self.0.compiled.as_ptr();
        });
        // SAFETY: the executable is live; the text belongs to it and is copied.
        unsafe {
            self.0
                .client
                .api()
                .PJRT_Executable_Fingerprint(&mut args)
                .ok()?;
            let text = string(
                args.executable_fingerprint,
                args.executable_fingerprint_size,
            );
            (!text.is_empty()).then_some(text)
        }
    }

    /// The program as XLA optimised it.
    ///
    /// # Errors
    /// [`Error::Pjrt`] where the plugin does not export it.
    pub fn optimized_hlo(&self) -> Result<OptimizedProgram> {
        optimized(self.0.client.api(), &self.0.compiled)
    }

    /// How each argument of a partitioned program is spread over its partitions, which are numbered
    /// in the order of [`Executable::devices`].
    ///
    /// # Errors
    /// As [`Executable::output_shardings`].
    pub fn parameter_shardings(&self) -> Result<Vec<Tiling>> {
        shardings::parameters(&self.optimized_hlo()?, self.0.signature.inputs.len())
    }

    /// How each result of a partitioned program is spread over its partitions, as the program's text
    /// asked or XLA chose. It is read from the optimised program, which is not free: ask once.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a program that was not partitioned, and for an array that is on
    /// one partition only or whose spreading is left to the program's text; those of
    /// [`Executable::optimized_hlo`].
    pub fn output_shardings(&self) -> Result<Vec<Tiling>> {
        shardings::outputs(&self.optimized_hlo()?, self.0.signature.outputs.len())
    }
}

fn optimized(api: &Api, compiled: &Handle<sys::PJRT_Executable>) -> Result<OptimizedProgram> {
    let mut program = Extended::<sys::PJRT_Program>::new(|_| {});
    let mut args = Extended::<sys::PJRT_Executable_OptimizedProgram_Args>::new(|a| {
        a.executable = compiled.as_ptr();
        a.program = program.as_mut_ptr();
    });
    // SAFETY: the executable is live; without a place for code the call states its size only.
    unsafe { api.PJRT_Executable_OptimizedProgram(&mut args) }?;
    let mut code = vec![0u8; program.code_size];
    let mut program = Extended::<sys::PJRT_Program>::new(|p| {
        p.code = code.as_mut_ptr().cast();
        p.code_size = code.len();
    });
    let mut args = Extended::<sys::PJRT_Executable_OptimizedProgram_Args>::new(|a| {
        a.executable = compiled.as_ptr();
        a.program = program.as_mut_ptr();
    });
    // SAFETY: as above, and `code` is as long as the plugin asked for; the format's name is
    // static in the plugin.
    let format = unsafe {
        api.PJRT_Executable_OptimizedProgram(&mut args)?;
        string(program.format, program.format_size)
    };
    Ok(OptimizedProgram { format, code })
}

fn compiled_memory(api: &Api, compiled: &Handle<sys::PJRT_Executable>) -> Option<CompiledMemory> {
    let mut a = Extended::<sys::PJRT_Executable_GetCompiledMemoryStats_Args>::new(|a| {
        a.executable = compiled.as_ptr();
    });
    // SAFETY: the executable is live.
    unsafe { api.PJRT_Executable_GetCompiledMemoryStats(&mut a) }.ok()?;
    let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
    Some(CompiledMemory {
        generated_code: bytes(a.generated_code_size_in_bytes),
        arguments: bytes(a.argument_size_in_bytes),
        outputs: bytes(a.output_size_in_bytes),
        aliased: bytes(a.alias_size_in_bytes),
        temporaries: bytes(a.temp_size_in_bytes),
    })
}

/// Positions of the devices that a program was compiled for.
fn devices(client: &Client, loaded: &Handle<sys::PJRT_LoadedExecutable>) -> Result<Vec<usize>> {
    let mut args = Extended::<sys::PJRT_LoadedExecutable_AddressableDevices_Args>::new(|a| {
        a.executable = loaded.as_ptr();
    });
    // SAFETY: the executable is live, and the list belongs to it.
    let raw = unsafe {
        client
            .api()
            .PJRT_LoadedExecutable_AddressableDevices(&mut args)?;
        array(args.addressable_devices, args.num_addressable_devices)
    };
    raw.iter()
        .map(|d| {
            client.ordinal(*d).ok_or_else(|| Error::Internal {
                what: "PJRT_LoadedExecutable_AddressableDevices",
                expected: "devices of the client".into(),
            })
        })
        .collect()
}

/// Compares the results that were promised with those of the compiled program: an execution hands
/// out as many buffers as the plugin writes, and they are read as what the signature says. Of a
/// partitioned program's results what one device gets becomes known only here.
fn check_outputs(
    api: &Api,
    compiled: &Handle<sys::PJRT_Executable>,
    signature: &mut Signature,
    partitioned: bool,
) -> Result<()> {
    let raw = compiled.as_ptr();
    let mut count = Extended::<sys::PJRT_Executable_NumOutputs_Args>::new(|a| a.executable = raw);
    let mut types =
        Extended::<sys::PJRT_Executable_OutputElementTypes_Args>::new(|a| a.executable = raw);
    let mut dims =
        Extended::<sys::PJRT_Executable_OutputDimensions_Args>::new(|a| a.executable = raw);
    let promised: Vec<_> = signature
        .outputs
        .iter()
        .map(|(dtype, shape)| describe(*dtype, shape))
        .collect();
    let wrong = |got: String| {
        Err(Error::Internal {
            what: "the signature of a compiled program",
            expected: format!("results {} as promised, not {got}", promised.join(", ")),
        })
    };
    // SAFETY: the executable is live, and the lists belong to it.
    let types = unsafe {
        api.PJRT_Executable_NumOutputs(&mut count)?;
        if count.num_outputs != signature.outputs.len() {
            return wrong(format!("{} of them", count.num_outputs));
        }
        api.PJRT_Executable_OutputElementTypes(&mut types)?;
        array(types.output_types, types.num_output_types)
    };
    for (i, (raw, (promised, _))) in types.iter().zip(&signature.outputs).enumerate() {
        if dtype(*raw) != Some(*promised) {
            let got = dtype(*raw).map_or_else(|| format!("PJRT type {raw}"), |d| d.to_string());
            return wrong(format!("{got} as result {i}"));
        }
    }
    // SAFETY: as above; `dims` holds the lengths of all results one after the other, `dim_sizes`
    // their numbers of axes.
    let (dims, ranks) = unsafe {
        api.PJRT_Executable_OutputDimensions(&mut dims)?;
        let ranks = array(dims.dim_sizes, dims.num_outputs);
        (array(dims.dims, ranks.iter().sum()), ranks)
    };
    let mut rest = dims;
    for (i, (rank, (_, promised))) in ranks.iter().zip(&mut signature.outputs).enumerate() {
        let (shape, after) = rest.split_at(*rank);
        rest = after;
        if partitioned && *rank == promised.rank() {
            *promised = shape.iter().map(|d| *d as usize).collect::<Dims>().into();
        } else if !shape
            .iter()
            .copied()
            .eq(promised.dims().iter().map(|d| *d as i64))
        {
            return wrong(format!("{shape:?} as the shape of result {i}"));
        }
    }
    Ok(())
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable")
            .field("inputs", &self.0.signature.inputs.len())
            .field("outputs", &self.0.signature.outputs.len())
            .field("devices", &self.devices())
            .finish()
    }
}
