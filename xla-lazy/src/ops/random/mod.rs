//! Random numbers: the counter-based Threefry-2x32 generator as elementwise operations.
//!
//! The generator's state, a key and a counter, is a tensor on the device, so each draw differs with
//! no recompilation, and the numbers are the same on any backend. Element `i` of a draw is the cipher
//! of the counter plus `i`: with the counter at 0 these are the bits of `jax.random.bits` for the same
//! key.

mod distributions;
mod generator;
mod sampling;
mod tensor;
mod threefry;

pub use generator::{Generator, default_generator, manual_seed};
pub(crate) use generator::{Snapshot, take_generators_off_devices};

use crate::op::{InputType, Number};
use crate::stablehlo::{Func, Value};
use xla_core::{DType, Error, Result, Shape};

fn float_only(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        Ok(())
    } else {
        Err(Error::dtype(op, "a floating-point dtype", dtype))
    }
}

/// The dtype that numbers are drawn in: half precision is rounded from `f32`.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// An operand in another dtype and of rank 1, each element at its place in the flattened result.
fn flat(f: &mut Func, x: Value, dtype: DType, shape: &Shape) -> Result<Value> {
    let x = f.convert(x, dtype);
    let x = f.broadcast_to(x, shape)?;
    Ok(f.reshape(x, &Shape::new(&[shape.numel()])))
}

/// An error unless a number is within these bounds; NaN never is.
fn within(op: &'static str, name: &'static str, x: Number, low: f64, high: f64) -> Result<()> {
    match x.to_f64() {
        x if low <= x && x <= high => Ok(()),
        x => Err(Error::argument(
            op,
            name,
            format!("a number from {low} to {high}"),
            x,
        )),
    }
}

/// An error unless the tensor that an operator draws by is one of floats.
fn float_input(op: &'static str, input: InputType) -> Result<crate::Ty> {
    let ty = input.tensor(op)?;
    float_only(op, ty.dtype())?;
    Ok(ty)
}
