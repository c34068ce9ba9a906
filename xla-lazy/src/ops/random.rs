//! Random numbers: the counter-based Threefry-2x32 generator as elementwise operations.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). The generator's state, a key
//! and a counter, is a tensor on the device, so each draw differs with no recompilation, and the
//! numbers are the same on any backend. Element `i` of a draw is the cipher of the counter plus `i`:
//! with the counter at 0 these are the bits of `jax.random.bits` for the same key.

use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator, entry};
use crate::stablehlo::{Func, Value};
use crate::tensor::TensorOptions;
use crate::trace::{no_grad, record_on, record_op};
use crate::ty::{Ty, ty};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use xla_core::{DType, Device, Error, IntoShape, Literal, Result, Shape};

/// Rotation distances, from the paper.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The key schedule's constant, from the paper.
const PARITY: i64 = 0x1BD1_1BDA;

/// The two 32-bit halves of the cipher of `counter + i` for each of `count` elements.
fn threefry(f: &mut Func, state: Value, count: usize) -> (Value, Value) {
    let shape = Shape::new(&[count]);
    let word = |f: &mut Func, index: usize| {
        let one = f.slice(state, &[index], &[index + 1], &[1]);
        f.broadcast_in_dim(one, &shape, &[0])
    };
    let (key, start) = (word(f, 0), word(f, 1));
    let offset = f.iota(DType::U64, &shape, 0);
    let counter = f.binary("add", start, offset);
    let halves = |f: &mut Func, x: Value| {
        let bits = f.constant_int(DType::U64, &shape, 32);
        let high = f.binary("shift_right_logical", x, bits);
        (f.convert(high, DType::U32), f.convert(x, DType::U32))
    };
    let (k0, k1) = halves(f, key);
    let (mut x0, mut x1) = halves(f, counter);
    let parity = f.constant_int(DType::U32, &shape, PARITY);
    let mixed = f.binary("xor", k0, k1);
    let keys = [k0, k1, f.binary("xor", mixed, parity)];
    x0 = f.binary("add", x0, keys[0]);
    x1 = f.binary("add", x1, keys[1]);
    for round in 0..5usize {
        for rotation in ROTATIONS[round % 2] {
            x0 = f.binary("add", x0, x1);
            let left = f.constant_int(DType::U32, &shape, rotation.into());
            let right = f.constant_int(DType::U32, &shape, i64::from(32 - rotation));
            let upper = f.binary("shift_left", x1, left);
            let lower = f.binary("shift_right_logical", x1, right);
            let rotated = f.binary("or", upper, lower);
            x1 = f.binary("xor", rotated, x0);
        }
        let injection = f.constant_int(DType::U32, &shape, round as i64 + 1);
        x0 = f.binary("add", x0, keys[(round + 1) % 3]);
        x1 = f.binary("add", x1, keys[(round + 2) % 3]);
        x1 = f.binary("add", x1, injection);
    }
    (x0, x1)
}

/// Uniform numbers in `[0, 1)` of rank 1: the top mantissa bits of the cipher.
fn uniform(f: &mut Func, state: Value, count: usize, dtype: DType) -> Value {
    let (high, low) = threefry(f, state, count);
    let shape = Shape::new(&[count]);
    if dtype == DType::F64 {
        let (high, low) = (f.convert(high, DType::U64), f.convert(low, DType::U64));
        let bits = f.constant_int(DType::U64, &shape, 32);
        let upper = f.binary("shift_left", high, bits);
        let word = f.binary("or", upper, low);
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RandomBits {
    shape: Shape,
}

impl Operator for RandomBits {
    const NAME: &'static str = "random_bits";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(DType::U32, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (high, low) = threefry(f, inputs[0], out.shape().numel());
        let word = f.binary("xor", high, low);
        Ok(f.reshape(word, out.shape()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Uniform {
    dtype: DType,
    shape: Shape,
}

impl Operator for Uniform {
    const NAME: &'static str = "rand";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let values = uniform(f, inputs[0], out.shape().numel(), out.dtype());
        Ok(f.reshape(values, out.shape()))
    }
}

fn float_only(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        Ok(())
    } else {
        Err(Error::dtype(op, "a floating-point dtype", dtype))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Normal {
    dtype: DType,
    shape: Shape,
}

impl Operator for Normal {
    const NAME: &'static str = "randn";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    /// The inverse of the normal distribution: `sqrt(2) * erfinv(u)`, `u` uniform in (-1, 1).
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let wide = if out.dtype() == DType::F64 {
            DType::F64
        } else {
            DType::F32
        };
        let count = out.shape().numel();
        let shape = Shape::new(&[count]);
        let u = uniform(f, inputs[0], count, wide);
        // Half a step up, so that neither end is reached.
        let half = if wide == DType::F64 {
            (-53f64).exp2()
        } else {
            (-24f64).exp2()
        };
        let two = f.constant(wide, &shape, 2.0);
        let start = f.constant(wide, &shape, half - 1.0);
        let doubled = f.binary("multiply", u, two);
        let symmetric = f.binary("add", doubled, start);
        let inverse = f.chlo_unary("erf_inv", symmetric);
        let scale = f.constant(wide, &shape, std::f64::consts::SQRT_2);
        let values = f.binary("multiply", inverse, scale);
        let values = f.convert(values, out.dtype());
        Ok(f.reshape(values, out.shape()))
    }
}

/// The state after a draw of `count` elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Advance {
    count: usize,
}

impl Operator for Advance {
    const NAME: &'static str = "advance_generator";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let one = Shape::new(&[1]);
        let zero = f.constant_int(DType::U64, &one, 0);
        let count = f.constant_int(DType::U64, &one, self.count as i64);
        let step = f.concatenate(&[zero, count], 0);
        Ok(f.binary("add", inputs[0], step))
    }
}

/// A source of random numbers: a key and a counter on one device.
#[derive(Debug, Clone)]
pub struct Generator {
    /// `u64[2]`: key (first word of the pair in the upper half) and counter.
    state: Tensor,
}

impl Generator {
    /// A generator with a seed; equal seeds give equal numbers.
    ///
    /// # Errors
    /// The runtime's, when the state cannot be sent to the device.
    pub fn new(seed: u64, device: Device) -> Result<Self> {
        Self::from_state(&[seed, 0], device)
    }

    /// A generator that goes on from a saved [`Generator::state`].
    ///
    /// # Errors
    /// [`Error::Argument`] unless the state is two words; the runtime's.
    pub fn from_state(state: &[u64], device: Device) -> Result<Self> {
        if state.len() != 2 {
            return Err(Error::argument(
                "Generator",
                "state",
                "2 words",
                state.len(),
            ));
        }
        let state = Tensor::from_literal(Literal::from_slice(state, [2])?, device)?;
        Ok(Generator { state })
    }

    /// The state, to be saved: key and counter. Reads it from the device.
    ///
    /// # Errors
    /// The pending program's, if that fails.
    #[track_caller]
    pub fn state(&self) -> Result<Vec<u64>> {
        self.state.to_vec()
    }

    /// Starts over with a seed.
    ///
    /// # Errors
    /// The runtime's.
    pub fn manual_seed(&self, seed: u64) -> Result<()> {
        let fresh = Generator::new(seed, self.state.device())?;
        self.state.set_data(&fresh.state)
    }

    /// Random 32-bit words.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative length.
    #[track_caller]
    pub fn bits(&self, shape: impl IntoShape) -> Result<Tensor> {
        let here = Location::caller();
        let shape = shape.into_shape("random_bits").map_err(|e| e.at(here))?;
        self.draw(
            RandomBits {
                shape: shape.clone(),
            },
            &shape,
            Location::caller(),
        )
    }

    fn draw<O: Operator>(
        &self,
        op: O,
        shape: &Shape,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let state = Operand::Tensor(&self.state);
        let drawn = record_on(self.state.device(), entry(op), &[state], at)?;
        no_grad(|| {
            let advanced = record_op(
                Advance {
                    count: shape.numel(),
                },
                &[state],
            )?;
            self.state.assign("advance_generator", advanced)
        })?;
        Ok(drawn)
    }
}

/// The generators of one replica, by device.
#[derive(Default)]
struct Generators(Mutex<HashMap<Device, Generator>>);

/// The seed that generators made from now on begin with, with the number of calls of
/// [`manual_seed`] outside a launch in front: 0 means never.
static SEED: AtomicU64 = AtomicU64::new(0);
static SEEDED: AtomicU64 = AtomicU64::new(0);

fn default_generator(device: Device) -> Result<Generator> {
    let generators = xla_runtime::context::current("rand")?.extension(Generators::default);
    let mut generators = generators.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(generator) = generators.get(&device) {
        return Ok(generator.clone());
    }
    let seed = match SEEDED.load(Ordering::Acquire) {
        // Never seeded: different numbers in each process, as in PyTorch.
        0 => RandomState::new().hash_one(0u8),
        _ => SEED.load(Ordering::Acquire),
    };
    let generator = Generator::new(seed, device)?;
    generators.insert(device, generator.clone());
    Ok(generator)
}

/// Seeds the calling replica's generators on all devices. Called outside a launch it also seeds
/// those of the replicas launched later.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
pub fn manual_seed(seed: u64) -> Result<()> {
    let context = xla_runtime::context::current("manual_seed")?;
    if !xla_runtime::context::in_launch() {
        SEED.store(seed, Ordering::Release);
        SEEDED.store(1, Ordering::Release);
    }
    default_generator(context.device())?;
    let generators = context.extension(Generators::default);
    let generators = generators.0.lock().unwrap_or_else(PoisonError::into_inner);
    generators
        .values()
        .try_for_each(|generator| generator.manual_seed(seed))
}

impl Tensor {
    /// Uniform random numbers in `[0, 1)` from the replica's generator. `f32` unless the options
    /// name another floating-point dtype.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another dtype, [`Error::Argument`] for a negative length.
    #[track_caller]
    pub fn rand(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let at = Location::caller();
        let options = options.into();
        let shape = shape.into_shape("rand").map_err(|e| e.at(at))?;
        let dtype = options.dtype().unwrap_or(DType::F32);
        let generator = default_generator(options.device_or_current("rand")?)?;
        generator.draw(
            Uniform {
                dtype,
                shape: shape.clone(),
            },
            &shape,
            at,
        )
    }

    /// Random numbers of the standard normal distribution from the replica's generator; as
    /// [`Tensor::rand`].
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    #[track_caller]
    pub fn randn(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let at = Location::caller();
        let options = options.into();
        let shape = shape.into_shape("randn").map_err(|e| e.at(at))?;
        let dtype = options.dtype().unwrap_or(DType::F32);
        let generator = default_generator(options.device_or_current("randn")?)?;
        generator.draw(
            Normal {
                dtype,
                shape: shape.clone(),
            },
            &shape,
            at,
        )
    }
}
