//! Options of a compilation and their encoding as `xla.CompileOptionsProto`.

use std::collections::BTreeMap;

use prost::Message;

use crate::error::{Error, Result};
use crate::options::OptionValue;

/// What the environment variable `XLA_FLAGS` must contain when a CPU plugin is loaded. XLA's newer fusion emitters end
/// the process on some transformer programs (`computation_partitioner.cc`, `operand_maps.size() == 1`).
///
/// It cannot be a compile option: overrides cannot set entries of a map, and `debug_options` in the proto would replace
/// every default. Up to API 0.106 the override `xla_cpu_use_fusion_emitters = false` turns all fusion emitters off;
/// 0.115 no longer has it.
///
/// The second flag: by default `maximum` and `minimum` on the CPU lose NaN.
pub const XLA_FLAGS_FOR_CPU: &str = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true --xla_cpu_enable_fast_min_max=false";

#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    /// One program for one device that may be any addressable device, named at each execution.
    /// Without it the executable belongs to the devices of its device assignment.
    pub portable: bool,
    pub num_replicas: usize,
    pub num_partitions: usize,
    pub use_spmd_partitioning: bool,
    pub use_shardy_partitioner: bool,
    /// Device ids, replica major (`[replica][partition]`); empty lets the plugin choose.
    pub device_assignment: Vec<i64>,
    /// XLA debug options by name, such as `xla_backend_optimization_level`. A plugin refuses unknown names, and the
    /// map `xla_backend_extra_options` (see [`XLA_FLAGS_FOR_CPU`]).
    pub overrides: BTreeMap<String, OptionValue>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            portable: false,
            num_replicas: 1,
            num_partitions: 1,
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            device_assignment: Vec::new(),
            overrides: BTreeMap::new(),
        }
    }
}

impl CompileOptions {
    /// Options of a program for one device that is named at each execution.
    pub fn portable() -> Self {
        CompileOptions { portable: true, ..Default::default() }
    }

    pub fn with_override(mut self, name: &str, value: impl Into<OptionValue>) -> Self {
        self.overrides.insert(name.to_owned(), value.into());
        self
    }

    /// The serialised proto. Maps are ordered, so that equal options give equal bytes (cache keys).
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut overrides = BTreeMap::new();
        for (name, value) in &self.overrides {
            let value = match value {
                OptionValue::Str(s) => proto::Value::Str(s.clone()),
                OptionValue::Bool(b) => proto::Value::Bool(*b),
                OptionValue::Int(i) => proto::Value::Int(*i),
                OptionValue::Float(f) => proto::Value::Double(f64::from(*f)),
                OptionValue::IntList(_) => return Err(Error::OverrideKind { name: name.clone() }),
            };
            overrides.insert(name.clone(), proto::OptionOverride { value: Some(value) });
        }
        let device_assignment = (!self.device_assignment.is_empty()).then(|| proto::DeviceAssignment {
            replica_count: self.num_replicas as i32,
            computation_count: self.num_partitions as i32,
            computation_devices: (0..self.num_partitions)
                .map(|partition| proto::ComputationDevice {
                    replica_device_ids: self
                        .device_assignment
                        .iter()
                        .skip(partition)
                        .step_by(self.num_partitions.max(1))
                        .copied()
                        .collect(),
                })
                .collect(),
        });
        Ok(proto::CompileOptions {
            executable_build_options: Some(proto::ExecutableBuildOptions {
                num_replicas: self.num_replicas as i64,
                num_partitions: self.num_partitions as i64,
                use_spmd_partitioning: self.use_spmd_partitioning,
                device_assignment,
                use_shardy_partitioner: self.use_shardy_partitioner,
            }),
            compile_portable_executable: self.portable,
            env_option_overrides: overrides,
        }
        .encode_to_vec())
    }
}

/// The fields we set, numbered as in `xla/pjrt/proto/compile_options.proto` and `xla/xla_data.proto`.
mod proto {
    use std::collections::BTreeMap;

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct CompileOptions {
        #[prost(message, optional, tag = "3")]
        pub executable_build_options: Option<ExecutableBuildOptions>,
        #[prost(bool, tag = "4")]
        pub compile_portable_executable: bool,
        #[prost(btree_map = "string, message", tag = "7")]
        pub env_option_overrides: BTreeMap<String, OptionOverride>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ExecutableBuildOptions {
        #[prost(int64, tag = "4")]
        pub num_replicas: i64,
        #[prost(int64, tag = "5")]
        pub num_partitions: i64,
        #[prost(bool, tag = "6")]
        pub use_spmd_partitioning: bool,
        #[prost(message, optional, tag = "9")]
        pub device_assignment: Option<DeviceAssignment>,
        #[prost(bool, tag = "19")]
        pub use_shardy_partitioner: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct OptionOverride {
        #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
        pub value: Option<Value>,
    }

    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Value {
        #[prost(string, tag = "1")]
        Str(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
        #[prost(double, tag = "4")]
        Double(f64),
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DeviceAssignment {
        #[prost(int32, tag = "1")]
        pub replica_count: i32,
        #[prost(int32, tag = "2")]
        pub computation_count: i32,
        #[prost(message, repeated, tag = "3")]
        pub computation_devices: Vec<ComputationDevice>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ComputationDevice {
        #[prost(int64, repeated, tag = "1")]
        pub replica_device_ids: Vec<i64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_one_replica_and_one_partition() {
        assert_eq!(CompileOptions::default().encode().unwrap(), [0x1a, 4, 0x20, 1, 0x28, 1]);
    }

    #[test]
    fn device_assignment_is_replica_major() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 2,
            device_assignment: vec![0, 1, 2, 3],
            ..Default::default()
        };
        let decoded = proto::CompileOptions::decode(options.encode().unwrap().as_slice()).unwrap();
        let assignment = decoded.executable_build_options.unwrap().device_assignment.unwrap();
        let ids: Vec<_> =
            assignment.computation_devices.iter().map(|c| c.replica_device_ids.clone()).collect();
        assert_eq!(ids, [[0, 2], [1, 3]]);
    }

    #[test]
    fn a_list_is_no_override() {
        let options = CompileOptions::default().with_override("x", OptionValue::IntList(vec![1]));
        assert!(matches!(options.encode(), Err(Error::OverrideKind { name }) if name == "x"));
    }
}
