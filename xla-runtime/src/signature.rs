//! What a program takes and returns, and how dtypes are numbered in the C API.

use pjrt_sys as sys;
use xla_core::{DType, Error, Result, Shape};

/// Types of a program's arguments and results, as one device sees them.
///
/// PJRT checks only the byte size of an argument; with the signature a wrong dtype or shape is an
/// error instead of a wrong number. For a partitioned program these are the shapes of the shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// One dtype and shape an argument, in order.
    pub inputs: Vec<(DType, Shape)>,
    /// One dtype and shape a result, in order.
    pub outputs: Vec<(DType, Shape)>,
}

/// The C API's number for a dtype. Closed on both sides: an unknown number ends the process.
pub(crate) fn buffer_type(op: &'static str, dtype: DType) -> Result<sys::PJRT_Buffer_Type> {
    Ok(match dtype {
        DType::Bool => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_PRED,
        DType::I8 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_S8,
        DType::I16 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_S16,
        DType::I32 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_S32,
        DType::I64 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_S64,
        DType::U8 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U8,
        DType::U16 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U16,
        DType::U32 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U32,
        DType::U64 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_U64,
        DType::F16 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_F16,
        DType::BF16 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_BF16,
        DType::F32 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_F32,
        DType::F64 => sys::PJRT_Buffer_Type_PJRT_Buffer_Type_F64,
        other => return Err(Error::dtype(op, "a dtype that PJRT numbers", other)),
    })
}

/// The dtype behind a number of the C API, where this library has it.
pub(crate) fn dtype(buffer_type: sys::PJRT_Buffer_Type) -> Option<DType> {
    DType::ALL
        .into_iter()
        .find(|d| matches!(self::buffer_type("dtype", *d), Ok(n) if n == buffer_type))
}

/// A dtype and shape as StableHLO writes the type.
pub(crate) fn describe(dtype: DType, shape: &Shape) -> String {
    format!("{dtype}{shape}")
}

/// Bytes that an array takes, row-major and dense.
pub(crate) fn byte_len(dtype: DType, shape: &Shape) -> usize {
    shape.numel().saturating_mul(dtype.size())
}
