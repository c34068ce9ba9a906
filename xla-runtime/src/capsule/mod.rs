//! One execution in a file: the program, how it was compiled, its arguments and results, and on what
//! it ran. What failed or was slow on one machine can be looked into on another, with another build
//! of the plugin, without the program that made it.

mod file;
mod replay;

pub use replay::{Difference, Replay};

use crate::client::Client;
use crate::options::CompileOptions;
use crate::signature::Signature;
use serde::{Deserialize, Serialize};
use xla_core::{DType, Literal, Shape};

/// An execution of one program on one device, with everything it takes to run it again. Where several
/// replicas ran it together, it is one of them that is told of, and the others' arguments are there too.
///
/// The file is a safetensors file: arguments are the tensors `input.0`, `input.1`, …, results
/// `output.0`, …, the arguments of the other replicas `peer.0.input.0`, …, and the program is the text under `program` in the metadata, so that other tools
/// can open it, too.
///
/// ```
/// use std::time::Duration;
/// use xla_core::{DType, Literal, Shape};
/// use xla_runtime::{Capsule, Client, CompileOptions, Versions};
///
/// let client = Client::global()?;
/// let capsule = Capsule {
///     program: "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
///                 %0 = stablehlo.add %a, %a : tensor<2xf32>
///                 return %0 : tensor<2xf32>
///               }".into(),
///     options: CompileOptions::default(),
///     inputs: vec![Literal::from_vec(vec![1.0f32, 2.0], [2])?],
///     replica: 0,
///     peers: Vec::new(),
///     output_types: vec![(DType::F32, Shape::new(&[2]))],
///     outputs: Some(vec![Literal::from_vec(vec![2.0f32, 4.0], [2])?]),
///     cause: "an example".into(),
///     error: None,
///     versions: Versions::of(&client),
/// };
/// let file = tempfile::NamedTempFile::new().map_err(|e| xla_core::Error::io("temporary", e))?;
/// capsule.save(file.path())?;
/// let replay = Capsule::load(file.path())?.replay(&client, 3, Duration::from_secs(60))?;
/// assert!(replay.differences.is_some_and(|all| all.iter().all(|d| d.is_none())));
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Capsule {
    /// The program in StableHLO's text form.
    pub program: String,
    /// How it was compiled.
    pub options: CompileOptions,
    /// The arguments of one device.
    pub inputs: Vec<Literal>,
    /// Which of the replicas that device ran.
    pub replica: usize,
    /// The arguments of the other replicas, in their order.
    pub peers: Vec<Vec<Literal>>,
    /// Dtypes and shapes of the results.
    pub output_types: Vec<(DType, Shape)>,
    /// The results on that device, where it came to them.
    pub outputs: Option<Vec<Literal>>,
    /// What made it run, with the user's line.
    pub cause: String,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// On what it ran.
    pub versions: Versions,
}

/// What an execution ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// This library's version.
    pub library: String,
    /// The plugin's file name.
    pub plugin: String,
    /// SHA-256 of the plugin's file in hexadecimal; empty where it could not be read.
    pub plugin_sha256: String,
    /// Version of the PJRT API that the plugin was built from.
    pub api: (i32, i32),
    /// The platform's name.
    pub platform: String,
    /// The platform's version, as the plugin words it.
    pub platform_version: String,
    /// Devices of the process.
    pub devices: usize,
}

impl Versions {
    /// What executions of this client run on.
    pub fn of(client: &Client) -> Self {
        let plugin = client.plugin();
        let name = plugin.path().file_name().unwrap_or_default();
        Versions {
            library: env!("CARGO_PKG_VERSION").to_owned(),
            plugin: name.to_string_lossy().into_owned(),
            plugin_sha256: plugin
                .sha256()
                .map_or_else(|_| String::new(), |sha256| crate::cache::hex(&sha256)),
            api: plugin.api_version(),
            platform: client.platform_name().to_owned(),
            platform_version: client.platform_version().to_owned(),
            devices: client.devices().len(),
        }
    }
}

impl Capsule {
    /// What the program takes and returns on one device.
    pub fn signature(&self) -> Signature {
        Signature {
            inputs: self
                .inputs
                .iter()
                .map(|input| (input.dtype(), input.shape().clone()))
                .collect(),
            outputs: self.output_types.clone(),
        }
    }
}
