//! The cipher: Threefry-2x32 with 20 rounds as elementwise operations.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

use crate::stablehlo::{Func, Value};
use xla_core::{DType, Shape};

/// Rotation distances, from the paper.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The key schedule's constant, from the paper.
const PARITY: i64 = 0x1BD1_1BDA;

/// One of the two words of a generator's state, `count` times.
pub(super) fn word(f: &mut Func, state: Value, index: usize, count: usize) -> Value {
    let one = f.slice(state, &[index], &[index + 1], &[1]);
    f.broadcast_in_dim(one, &Shape::new(&[count]), &[0])
}

/// The two 32-bit halves of the cipher of `counter + i` for each of `count` elements.
pub(super) fn threefry(f: &mut Func, state: Value, count: usize) -> (Value, Value) {
    let (key, start) = (word(f, state, 0, count), word(f, state, 1, count));
    let offset = f.iota(DType::U64, &Shape::new(&[count]), 0);
    let counter = f.binary("add", start, offset);
    cipher(f, key, counter)
}

/// The two 32-bit halves of the cipher of each counter under the key beside it; both `u64` of rank 1.
pub(super) fn cipher(f: &mut Func, key: Value, counter: Value) -> (Value, Value) {
    let shape = key.shape();
    let halves = |f: &mut Func, x: Value| {
        let bits = f.constant_int(DType::U64, shape, 32);
        let high = f.binary("shift_right_logical", x, bits);
        (f.convert(high, DType::U32), f.convert(x, DType::U32))
    };
    let (k0, k1) = halves(f, key);
    let (mut x0, mut x1) = halves(f, counter);
    let parity = f.constant_int(DType::U32, shape, PARITY);
    let mixed = f.binary("xor", k0, k1);
    let keys = [k0, k1, f.binary("xor", mixed, parity)];
    x0 = f.binary("add", x0, keys[0]);
    x1 = f.binary("add", x1, keys[1]);
    for round in 0..5usize {
        for rotation in ROTATIONS[round % 2] {
            x0 = f.binary("add", x0, x1);
            let left = f.constant_int(DType::U32, shape, rotation.into());
            let right = f.constant_int(DType::U32, shape, i64::from(32 - rotation));
            let upper = f.binary("shift_left", x1, left);
            let lower = f.binary("shift_right_logical", x1, right);
            let rotated = f.binary("or", upper, lower);
            x1 = f.binary("xor", rotated, x0);
        }
        let injection = f.constant_int(DType::U32, shape, round as i64 + 1);
        x0 = f.binary("add", x0, keys[(round + 1) % 3]);
        x1 = f.binary("add", x1, keys[(round + 2) % 3]);
        x1 = f.binary("add", x1, injection);
    }
    (x0, x1)
}

/// Two 32-bit halves as one word.
pub(super) fn joined(f: &mut Func, high: Value, low: Value) -> Value {
    let (high, low) = (f.convert(high, DType::U64), f.convert(low, DType::U64));
    let bits = f.constant_int(DType::U64, high.shape(), 32);
    let upper = f.binary("shift_left", high, bits);
    f.binary("or", upper, low)
}

/// Uniform numbers in `[0, 1)` of rank 1: the top mantissa bits of the cipher.
pub(super) fn uniform(f: &mut Func, state: Value, count: usize, dtype: DType) -> Value {
    let (high, low) = threefry(f, state, count);
    let shape = Shape::new(&[count]);
    if dtype == DType::F64 {
        let word = joined(f, high, low);
        let drop = f.constant_int(DType::U64, &shape, 11);
        let kept = f.binary("shift_right_logical", word, drop);
        let kept = f.convert(kept, DType::F64);
        let scale = f.constant(DType::F64, &shape, (-53f64).exp2());
        return f.binary("multiply", kept, scale);
    }
    // As many bits as the dtype's mantissa holds, so that rounding never reaches 1.
    let mantissa = match dtype {
        DType::BF16 => 8,
        DType::F16 => 11,
        _ => 24,
    };
    let word = f.binary("xor", high, low);
    let drop = f.constant_int(DType::U32, &shape, 32 - mantissa);
    let kept = f.binary("shift_right_logical", word, drop);
    let kept = f.convert(kept, DType::F32);
    let scale = f.constant(DType::F32, &shape, (-(mantissa as f64)).exp2());
    let scaled = f.binary("multiply", kept, scale);
    f.convert(scaled, dtype)
}
