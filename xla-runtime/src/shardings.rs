//! Reading from an optimised program how its arguments and results are spread over its partitions.

use crate::executable::OptimizedProgram;
use pjrt::protos::xla as proto;
use prost::Message;
use proto::OpSharding;
use proto::op_sharding::Type;
use xla_core::{Error, Result, Tiling};

/// The fields of `HloModuleProto` that say it. The rest, the program itself, is not decoded.
#[derive(Clone, PartialEq, Message)]
struct Module {
    #[prost(message, optional, tag = "12")]
    output: Option<OpSharding>,
    #[prost(message, repeated, tag = "14")]
    parameters: Vec<OpSharding>,
}

/// `HloModuleProtoWithConfig`, in the same way.
#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

fn module(program: &OptimizedProgram) -> Result<Module> {
    let code = program.code.as_slice();
    let module = match program.format.as_str() {
        "hlo" => Module::decode(code),
        "hlo_with_config" => ModuleWithConfig::decode(code).map(|m| m.module.unwrap_or_default()),
        _ => return unsupported("optimised programs in this format"),
    };
    module.map_err(|_| damaged("the plugin's bytes to be the message that it names"))
}

/// The tilings of a program's arguments.
pub(crate) fn parameters(program: &OptimizedProgram, count: usize) -> Result<Vec<Tiling>> {
    counted(module(program)?.parameters, count)
}

/// The tilings of a program's results.
pub(crate) fn outputs(program: &OptimizedProgram, count: usize) -> Result<Vec<Tiling>> {
    let all = match module(program)?.output {
        Some(tuple) if tuple.r#type() == Type::Tuple => tuple.tuple_shardings,
        one => one.into_iter().collect(),
    };
    counted(all, count)
}

fn counted(shardings: Vec<OpSharding>, count: usize) -> Result<Vec<Tiling>> {
    if shardings.len() != count {
        if shardings.is_empty() {
            return unsupported("the shardings of a program that was not partitioned");
        }
        return Err(damaged(&format!(
            "{count} shardings, not {}",
            shardings.len()
        )));
    }
    shardings.iter().map(tiling).collect()
}

fn tiling(sharding: &OpSharding) -> Result<Tiling> {
    match sharding.r#type() {
        Type::Replicated => return Ok(Tiling::replicated()),
        Type::Other => {}
        _ => return unsupported("shardings other than replicated ones and tiles"),
    }
    // Either a flag, or a list of what the dimensions beyond the array's mean.
    let last = &sharding.last_tile_dims;
    if last.iter().any(|kind| *kind != Type::Replicated as i32) {
        return unsupported("shardings with partitions that the program's text spreads over");
    }
    let dims = naturals(&sharding.tile_assignment_dimensions)?;
    let replicated = last
        .len()
        .max(usize::from(sharding.replicate_on_last_tile_dim));
    let Some(axes) = dims.len().checked_sub(replicated) else {
        return Err(damaged("no more replicated dimensions than there are"));
    };
    let devices = match sharding.iota_reshape_dims.as_slice() {
        [] => naturals(&sharding.tile_assignment_devices)?,
        shape => iota(&naturals(shape)?, &sharding.iota_transpose_perm)?,
    };
    // Several replicated dimensions say no more than one of their product.
    let mut merged = dims[..axes].to_vec();
    if replicated > 0 {
        merged.push(dims[axes..].iter().product());
    }
    if merged.iter().product::<usize>() != devices.len() {
        return Err(damaged(&format!("{dims:?} tiles, not {}", devices.len())));
    }
    if merged[..axes].iter().all(|tiles| *tiles == 1) {
        return Ok(Tiling::replicated());
    }
    Ok(Tiling {
        dims: merged,
        devices,
        replicate_last: replicated > 0,
    })
}

/// 0, 1, 2, … in this shape, its axes permuted, row-major.
fn iota(shape: &[usize], permutation: &[i32]) -> Result<Vec<usize>> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let mut numbers = vec![0];
    for &axis in permutation {
        let axis = usize::try_from(axis)
            .ok()
            .filter(|axis| *axis < shape.len());
        let axis = axis.ok_or_else(|| damaged("a permutation of the axes"))?;
        let (length, stride) = (shape[axis], strides[axis]);
        let along = |start: usize| (0..length).map(move |i| start + i * stride);
        numbers = numbers.into_iter().flat_map(along).collect();
    }
    Ok(numbers)
}

fn naturals(numbers: &[i64]) -> Result<Vec<usize>> {
    let natural = |n: &i64| usize::try_from(*n).map_err(|_| damaged("no negative number"));
    numbers.iter().map(natural).collect()
}

fn unsupported<T>(what: &'static str) -> Result<T> {
    Err(Error::Unsupported {
        what,
        since: (0, 0),
    })
}

fn damaged(expected: &str) -> Error {
    Error::Internal {
        what: "the shardings of an optimised program",
        expected: expected.into(),
    }
}
