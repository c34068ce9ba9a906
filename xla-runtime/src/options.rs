//! How a program is compiled and launched.

use crate::disk_cache::PersistentCache;
use crate::kv::Cluster;
use crate::signature::Signature;
use pjrt::protos::xla as proto;
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xla_core::{DeviceKind, Error, Result};

use crate::named_value::AttributeValue;

/// How a client is created.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientOptions {
    /// The kind of device that the plugin drives.
    pub kind: DeviceKind,
    /// How many devices a CPU client offers; one when `None`.
    pub cpu_device_count: Option<usize>,
    /// The other processes, where the plugin connects several; not for a CPU client.
    pub cluster: Option<Cluster>,
    /// Where compiled programs are kept for other processes; nowhere when `None`.
    pub persistent_cache: Option<PersistentCache>,
    /// How many bytes arrays and programs may take on each device; as many as there are when `None`.
    pub memory_limit: Option<u64>,
    /// Further create options, under the plugin's names. Some plugins refuse names they do not
    /// know, others ignore them.
    pub extra: BTreeMap<String, AttributeValue>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            kind: DeviceKind::Cpu,
            cpu_device_count: None,
            cluster: None,
            persistent_cache: None,
            memory_limit: None,
            extra: BTreeMap::new(),
        }
    }
}

impl ClientOptions {
    /// The options under the plugins' names.
    ///
    /// # Errors
    /// [`Error::Argument`] for a count that ends the process in some plugins.
    pub(crate) fn named_values(&self) -> Result<BTreeMap<String, AttributeValue>> {
        let mut values = self.extra.clone();
        // Plugins differ in what they take for none given, and a client has as many threads as devices.
        let counted = values.contains_key("cpu_device_count");
        let one = (self.kind == DeviceKind::Cpu && !counted).then_some(1);
        if let Some(count) = self.cpu_device_count.or(one) {
            if !(1..=1024).contains(&count) {
                return Err(Error::argument(
                    "Client::create",
                    "cpu_device_count",
                    "1 to 1024",
                    count,
                ));
            }
            values.insert("cpu_device_count".into(), AttributeValue::Int(count as i64));
        }
        if let Some(cluster) = &self.cluster {
            cluster.named_values(self.kind, &mut values)?;
        }
        // A negative count aborts the process, by whichever way it came in.
        if let Some(AttributeValue::Int(count)) = values.get("cpu_device_count")
            && *count < 1
        {
            return Err(Error::argument(
                "Client::create",
                "cpu_device_count",
                "1 to 1024",
                count,
            ));
        }
        Ok(values)
    }
}

/// The value of one of XLA's debug options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum OptionValue {
    /// Text.
    String(String),
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
}

/// How a program is compiled.
///
/// XLA's debug options are set by name in `overrides`. They are never sent as a `DebugOptions`
/// message: that replaces every default at once, and a partial one does not compile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompileOptions {
    /// Replicas that run the program, each on a device of its own; at least 1.
    pub num_replicas: usize,
    /// Partitions of each replica, each on a device of its own; at least 1.
    pub num_partitions: usize,
    /// Positions, among all devices of the client, of the devices that run it: replica-major, one
    /// for each replica and partition. Empty means the first ones. A portable program has none.
    pub device_assignment: Vec<usize>,
    /// Compile for one device, to be run on any; needs one replica and one partition.
    pub portable: bool,
    /// Let XLA partition the program by its sharding annotations.
    pub use_spmd_partitioning: bool,
    /// Partition with Shardy (annotations of the `sdy` dialect) rather than GSPMD.
    pub use_shardy: bool,
    /// Results of a partitioned program whose sharding XLA chooses, where the text gives none: one
    /// entry for each result, or none for none. Of such a result the signature that is compiled with
    /// has the whole shape; that of the [`Executable`](crate::Executable) has its shards', and
    /// [`Executable::output_shardings`](crate::Executable::output_shardings) what was chosen.
    pub propagate_to_outputs: Vec<bool>,
    /// Arguments whose memory the program's text gives away (`tf.aliasing_output` or
    /// `jax.buffer_donor`), by position.
    pub donated: Vec<usize>,
    /// XLA's debug options, by name. An unknown name is an error of the compiler.
    pub overrides: BTreeMap<String, OptionValue>,
}

impl Default for CompileOptions {
    /// A portable single-device program.
    fn default() -> Self {
        CompileOptions {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: Vec::new(),
            portable: true,
            use_spmd_partitioning: false,
            use_shardy: false,
            propagate_to_outputs: Vec::new(),
            donated: Vec::new(),
            overrides: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// A program of several replicas on the client's first devices.
    pub fn replicated(num_replicas: usize) -> Self {
        CompileOptions {
            num_replicas,
            portable: false,
            ..Self::default()
        }
    }

    /// A program that XLA partitions over the client's first devices.
    pub fn partitioned(num_partitions: usize, use_shardy: bool) -> Self {
        CompileOptions {
            num_partitions,
            portable: false,
            use_spmd_partitioning: true,
            use_shardy,
            ..Self::default()
        }
    }

    /// The options with XLA's backend optimisation level: 0 compiles fastest, 3 (XLA's default)
    /// runs fastest.
    #[must_use]
    pub fn optimization_level(mut self, level: u8) -> Self {
        self.overrides.insert(
            "xla_backend_optimization_level".into(),
            OptionValue::Int(i64::from(level)),
        );
        self
    }

    /// Whether the compiler is asked to write what it does to files.
    pub(crate) fn dumps(&self) -> bool {
        self.overrides.keys().any(|k| k.starts_with("xla_dump_"))
    }

    /// How many devices run the program at once.
    pub fn device_count(&self) -> usize {
        self.num_replicas.saturating_mul(self.num_partitions)
    }

    /// Refuses what would end the process or be misread by the compiler, and encodes the rest;
    /// `ids` are the ids of all devices of the client.
    pub(crate) fn encode(&self, signature: &Signature, ids: &[i32]) -> Result<Vec<u8>> {
        let bad = |argument, expected: String, got: String| {
            Err(Error::argument("compile", argument, expected, got))
        };
        for (name, count) in [
            ("num_replicas", self.num_replicas),
            ("num_partitions", self.num_partitions),
        ] {
            if count == 0 {
                return bad(name, "at least 1".into(), "0".into());
            }
        }
        let count = self.device_count();
        if count > ids.len() {
            return bad(
                "num_replicas × num_partitions",
                format!("at most the {} devices of the client", ids.len()),
                count.to_string(),
            );
        }
        if self.portable && (count != 1 || !self.device_assignment.is_empty()) {
            return bad(
                "portable",
                "one replica, one partition and no device assignment".into(),
                format!("{count} devices, assignment {:?}", self.device_assignment),
            );
        }
        if let Some(index) = self.donated.iter().find(|i| **i >= signature.inputs.len()) {
            return bad(
                "donated",
                format!("positions below {}", signature.inputs.len()),
                index.to_string(),
            );
        }
        let chosen = self.propagate_to_outputs.len();
        if chosen != 0 && (chosen != signature.outputs.len() || !self.use_spmd_partitioning) {
            return bad(
                "propagate_to_outputs",
                format!(
                    "nothing, or, for a partitioned program, one entry for each of the {} results",
                    signature.outputs.len()
                ),
                format!("{chosen} entries"),
            );
        }
        let device_assignment = if self.portable {
            None
        } else {
            Some(self.assignment(count, ids)?)
        };
        let build = proto::ExecutableBuildOptionsProto {
            // "Not given"; zero would be device 0.
            device_ordinal: -1,
            num_replicas: self.num_replicas as i64,
            num_partitions: self.num_partitions as i64,
            use_spmd_partitioning: self.use_spmd_partitioning,
            use_shardy_partitioner: self.use_shardy,
            device_assignment,
            allow_spmd_sharding_propagation_to_parameters: vec![false],
            allow_spmd_sharding_propagation_to_output: match self.propagate_to_outputs.as_slice() {
                [] => vec![false],
                each => each.to_vec(),
            },
            ..Default::default()
        };
        let options = proto::CompileOptionsProto {
            executable_build_options: Some(build),
            compile_portable_executable: self.portable,
            env_option_overrides: self.overrides.iter().map(encode_override).collect(),
            ..Default::default()
        };
        Ok(options.encode_to_vec())
    }

    fn assignment(&self, count: usize, ids: &[i32]) -> Result<proto::DeviceAssignmentProto> {
        let bad = |expected: String| {
            Err(Error::argument(
                "compile",
                "device_assignment",
                expected,
                format!("{:?}", self.device_assignment),
            ))
        };
        let ordinals = if self.device_assignment.is_empty() {
            (0..count).collect()
        } else {
            self.device_assignment.clone()
        };
        if ordinals.len() != count {
            return bad(format!(
                "{count} devices, one for each replica and partition"
            ));
        }
        let mut seen = vec![false; ids.len()];
        for &ordinal in &ordinals {
            match seen.get_mut(ordinal) {
                Some(seen) if !*seen => *seen = true,
                _ => return bad(format!("distinct positions below {}", ids.len())),
            }
        }
        Ok(proto::DeviceAssignmentProto {
            replica_count: self.num_replicas as i32,
            computation_count: self.num_partitions as i32,
            computation_devices: (0..self.num_partitions)
                .map(|p| proto::device_assignment_proto::ComputationDevice {
                    replica_device_ids: (0..self.num_replicas)
                        .map(|r| i64::from(ids[ordinals[r * self.num_partitions + p]]))
                        .collect(),
                })
                .collect(),
        })
    }
}

fn encode_override((name, value): (&String, &OptionValue)) -> (String, proto::OptionOverrideProto) {
    use proto::option_override_proto::Value;
    let value = match value {
        OptionValue::String(text) => Value::StringField(text.clone()),
        OptionValue::Bool(truth) => Value::BoolField(*truth),
        OptionValue::Int(number) => Value::IntField(*number),
        OptionValue::Float(number) => Value::DoubleField(*number),
    };
    (
        name.clone(),
        proto::OptionOverrideProto { value: Some(value) },
    )
}

/// How one execution is launched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecuteOptions<'a> {
    /// The device that runs it, by position among this process's devices. Not looked at by
    /// [`Executable::execute_sharded`](crate::Executable::execute_sharded).
    pub device: usize,
    /// Ties the replicas of one launch of a program on several devices together: the same number on
    /// each, not zero, and another one for the next launch. Free for a program on one device.
    pub launch_id: i32,
    /// Donated arguments that somebody else still needs: copied instead of given away.
    pub non_donatable: &'a [usize],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(options: &CompileOptions, ids: &[i32]) -> Result<proto::CompileOptionsProto> {
        let bytes = options.encode(&Signature::default(), ids)?;
        Ok(proto::CompileOptionsProto::decode(bytes.as_slice()).unwrap())
    }

    #[test]
    fn assignments_are_replica_major_ids() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            portable: false,
            device_assignment: vec![3, 2, 1, 0],
            ..CompileOptions::default()
        };
        let build = decoded(&options, &[10, 11, 12, 13])
            .unwrap()
            .executable_build_options
            .unwrap();
        let assignment = build.device_assignment.unwrap();
        let ids: Vec<_> = assignment
            .computation_devices
            .iter()
            .map(|c| c.replica_device_ids.clone())
            .collect();
        // Partition 0 of replicas 0 and 1, then partition 1 of both.
        assert_eq!(ids, [vec![13, 11], vec![12, 10]]);
        assert!(build.debug_options.is_none());
    }

    #[test]
    fn what_would_abort_is_an_error() {
        let one = CompileOptions::default;
        for options in [
            CompileOptions {
                num_replicas: 0,
                ..one()
            },
            CompileOptions {
                num_partitions: 0,
                ..one()
            },
            CompileOptions::replicated(3),
            CompileOptions {
                num_replicas: 2,
                ..one()
            },
            CompileOptions {
                device_assignment: vec![0],
                ..one()
            },
            CompileOptions {
                device_assignment: vec![2],
                portable: false,
                ..one()
            },
            CompileOptions {
                device_assignment: vec![1, 1],
                ..CompileOptions::replicated(2)
            },
            CompileOptions {
                device_assignment: vec![1],
                ..CompileOptions::replicated(2)
            },
            CompileOptions {
                donated: vec![0],
                ..one()
            },
        ] {
            assert!(
                matches!(decoded(&options, &[0, 1]), Err(Error::Argument { .. })),
                "{options:?}"
            );
        }
    }

    #[test]
    fn a_negative_device_count_never_reaches_the_plugin() {
        let extra = [("cpu_device_count".to_owned(), AttributeValue::Int(-1))].into();
        assert!(
            ClientOptions {
                extra,
                ..ClientOptions::default()
            }
            .named_values()
            .is_err()
        );
        let zero = ClientOptions {
            cpu_device_count: Some(0),
            ..ClientOptions::default()
        };
        assert!(zero.named_values().is_err());
    }
}
