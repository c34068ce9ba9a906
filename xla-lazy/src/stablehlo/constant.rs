//! Constants, and numbers as the text holds them.

use super::func::{Func, Reduction, Value, join, text_of};
use crate::ty::ty;
use xla_core::{DType, Shape};

impl Func {
    /// A constant with every element equal to `value`, rounded to the dtype.
    pub fn constant(&mut self, dtype: DType, shape: &Shape, value: f64) -> Value {
        let out = ty(dtype, shape);
        let text = number_text(dtype, value);
        self.emit(
            format_args!("stablehlo.constant dense<{text}>"),
            text_of(out),
            out,
        )
    }

    /// A constant with every element equal to an integer.
    pub fn constant_int(&mut self, dtype: DType, shape: &Shape, value: i64) -> Value {
        if dtype.is_float() || dtype == DType::Bool {
            return self.constant(dtype, shape, value as f64);
        }
        let out = ty(dtype, shape);
        self.emit(
            format_args!("stablehlo.constant dense<{value}>"),
            text_of(out),
            out,
        )
    }

    /// The identity element of a reduction, as a scalar: 0, 1, or the dtype's least or greatest.
    pub fn identity(&mut self, reduction: Reduction, dtype: DType) -> Value {
        let scalar = Shape::scalar();
        let out = ty(dtype, &scalar);
        let text = match reduction {
            Reduction::Sum | Reduction::Or => return self.constant(dtype, &scalar, 0.0),
            Reduction::Product => return self.constant(dtype, &scalar, 1.0),
            Reduction::And if dtype == DType::Bool => "true".to_owned(),
            Reduction::And if !dtype.is_signed() => greatest(dtype),
            Reduction::And => return self.constant_int(dtype, &scalar, -1),
            Reduction::Max => least(dtype),
            Reduction::Min => greatest(dtype),
        };
        self.emit(
            format_args!("stablehlo.constant dense<{text}>"),
            text_of(out),
            out,
        )
    }

    /// A constant rank-1 `i64` array.
    pub fn constant_indices(&mut self, values: &[i64]) -> Value {
        let out = ty(DType::I64, &Shape::new(&[values.len()]));
        let list = join(values);
        self.emit(
            format_args!("stablehlo.constant dense<[{list}]>"),
            text_of(out),
            out,
        )
    }

    /// A constant rank-1 array of numbers, each rounded to the dtype.
    pub fn constant_list(&mut self, dtype: DType, values: &[f64]) -> Value {
        let out = ty(dtype, &Shape::new(&[values.len()]));
        let list = join(values.iter().map(|&value| number_text(dtype, value)));
        self.emit(
            format_args!("stablehlo.constant dense<[{list}]>"),
            text_of(out),
            out,
        )
    }
}

/// A number as a `dense` attribute holds it. Non-finite floats have no decimal form and are written
/// by their bits.
fn number_text(dtype: DType, value: f64) -> String {
    match dtype {
        DType::Bool => (value != 0.0).to_string(),
        _ if !dtype.is_float() => format!("{}", value as i128),
        _ if value.is_finite() => {
            let narrow = value as f32;
            match dtype {
                DType::F64 => decimal(format!("{value:e}")),
                _ if narrow.is_finite() => decimal(format!("{narrow:e}")),
                _ => bits(dtype, value),
            }
        }
        _ => bits(dtype, value),
    }
}

/// MLIR's decimals need a point before the exponent.
fn decimal(scientific: String) -> String {
    if scientific.contains('.') {
        scientific
    } else {
        scientific.replacen('e', ".0e", 1)
    }
}

fn bits(dtype: DType, value: f64) -> String {
    match dtype {
        DType::F16 => format!("0x{:04X}", xla_core::f16::from_f64(value).to_bits()),
        DType::BF16 => format!("0x{:04X}", xla_core::bf16::from_f64(value).to_bits()),
        DType::F32 => format!("0x{:08X}", (value as f32).to_bits()),
        _ => format!("0x{:016X}", value.to_bits()),
    }
}

fn least(dtype: DType) -> String {
    match dtype {
        DType::Bool => "false".into(),
        DType::I8 => i8::MIN.to_string(),
        DType::I16 => i16::MIN.to_string(),
        DType::I32 => i32::MIN.to_string(),
        DType::I64 => i64::MIN.to_string(),
        d if d.is_float() => bits(d, f64::NEG_INFINITY),
        _ => "0".into(),
    }
}

fn greatest(dtype: DType) -> String {
    match dtype {
        DType::Bool => "true".into(),
        DType::I8 => i8::MAX.to_string(),
        DType::I16 => i16::MAX.to_string(),
        DType::I32 => i32::MAX.to_string(),
        DType::I64 => i64::MAX.to_string(),
        DType::U8 => u8::MAX.to_string(),
        DType::U16 => u16::MAX.to_string(),
        DType::U32 => u32::MAX.to_string(),
        DType::U64 => u64::MAX.to_string(),
        d => bits(d, f64::INFINITY),
    }
}
