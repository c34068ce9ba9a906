//! Generators: where keys and counters are kept, and how they move on.

use super::threefry::{cipher, joined, threefry, word};
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operand, Operator, entry};
use crate::spmd;
use crate::stablehlo::{Func, Value};
use crate::trace::{self, no_grad, record_at, record_op};
use crate::ty::{Ty, ty};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_core::{DType, Device, Error, IntoShape, Literal, Result, Shape};

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

    /// States are values of their own, and come about alike: what is drawn would otherwise hold the
    /// lengths of all draws before it, and be a kernel of its own.
    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let one = Shape::new(&[1]);
        let zero = f.constant_int(DType::U64, &one, 0);
        let count = f.constant_int(DType::U64, &one, self.count as i64);
        let count = f.opaque(count);
        let step = f.concatenate(&[zero, count], 0);
        let advanced = f.binary("add", inputs[0], step);
        Ok(f.opaque(advanced))
    }
}

/// The state that begins with the cipher of a number as its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FoldIn;

impl Operator for FoldIn {
    const NAME: &'static str = "fold_in";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let one = Shape::new(&[1]);
        let key = word(f, inputs[0], 0, 1);
        let number = f.convert(inputs[1], DType::U64);
        let number = f.reshape(number, &one);
        let (high, low) = cipher(f, key, number);
        let key = joined(f, high, low);
        let zero = f.constant_int(DType::U64, &one, 0);
        Ok(f.concatenate(&[key, zero], 0))
    }
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

/// A source of random numbers: a key and a counter on one device. Clones are handles on one source,
/// and two threads that draw from it never draw the same numbers.
///
/// ```no_run
/// use xla_core::Device;
/// use xla_lazy::Generator;
/// let generator = Generator::from_key([0, 42], Device::new(0))?;
/// assert_eq!(generator.bits(())?.item::<u32>()?, 2_098_992_034); // as jax.random.bits
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Generator {
    /// `u64[2]`: key (first word of the pair in the upper half) and counter.
    state: Tensor,
    /// Held from the reading of the state to its advance.
    turn: Arc<Mutex<()>>,
}

impl Generator {
    /// A generator with a seed; equal seeds give equal numbers.
    ///
    /// # Errors
    /// The runtime's, when the state cannot be sent to the device.
    pub fn new(seed: u64, device: Device) -> Result<Self> {
        Self::from_state(&[seed, 0], device)
    }

    /// A generator with this key, as JAX writes one.
    ///
    /// # Errors
    /// As [`Generator::new`].
    pub fn from_key([first, second]: [u32; 2], device: Device) -> Result<Self> {
        Self::new(u64::from(first) << 32 | u64::from(second), device)
    }

    /// A generator that goes on from a saved [`Generator::state`].
    ///
    /// # Errors
    /// [`Error::Argument`] unless the state is two words; the runtime's.
    #[track_caller]
    pub fn from_state(state: &[u64], device: Device) -> Result<Self> {
        if state.len() != 2 {
            let error = Error::argument("Generator", "state", "2 words", state.len());
            return Err(error.at(Location::caller()));
        }
        let state = Tensor::from_literal(Literal::from_slice(state, [2])?, device)?;
        Ok(Self::of(state))
    }

    fn of(state: Tensor) -> Self {
        Generator {
            state,
            turn: Arc::default(),
        }
    }

    /// The tensor that holds the state.
    pub(crate) fn state_tensor(&self) -> &Tensor {
        &self.state
    }

    /// The device that the generator draws on.
    pub fn device(&self) -> Device {
        self.state.device()
    }

    /// The state, to be saved: key and counter. Reads it from the device.
    ///
    /// # Errors
    /// The pending program's, if that fails.
    #[track_caller]
    pub fn state(&self) -> Result<Vec<u64>> {
        self.state.to_vec()
    }

    /// The key, as JAX writes it. Reads it from the device.
    ///
    /// # Errors
    /// As [`Generator::state`].
    #[track_caller]
    pub fn key(&self) -> Result<[u32; 2]> {
        let key = self.state()?[0];
        Ok([(key >> 32) as u32, key as u32])
    }

    /// The state as a tensor of its own, `u64[2]`; nothing is read.
    ///
    /// # Errors
    /// The error of the state's own program, if that failed.
    #[track_caller]
    pub fn get_state(&self) -> Result<Tensor> {
        let _turn = self.take_turn("get_state", Location::caller())?;
        self.state.copy()
    }

    /// Goes on from a state that [`Generator::get_state`] returned.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for another tensor than `u64[2]`.
    #[track_caller]
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        let _turn = self.take_turn("set_state", Location::caller())?;
        self.state.set_data(state)
    }

    /// Starts over with a seed.
    ///
    /// # Errors
    /// The runtime's.
    #[track_caller]
    pub fn manual_seed(&self, seed: u64) -> Result<()> {
        let fresh = Generator::new(seed, self.device())?;
        self.set_state(&fresh.state)
    }

    /// Starts over with a seed that differs from process to process, and returns it.
    ///
    /// # Errors
    /// The runtime's.
    #[track_caller]
    pub fn seed(&self) -> Result<u64> {
        let seed = RandomState::new().hash_one(0u8);
        self.manual_seed(seed)?;
        Ok(seed)
    }

    /// `n` generators, independent of each other and of this one, by `jax.random.split` of its key.
    /// It depends on the key only, not on what was drawn, and this generator is left as it is.
    ///
    /// # Errors
    /// The error of the state's own program, if that failed.
    #[track_caller]
    pub fn split(&self, n: u32) -> Result<Vec<Generator>> {
        let here = Location::caller();
        (0..n).map(|i| self.derived(i, here)).collect()
    }

    /// A generator for this number, by `jax.random.fold_in` of the key: equal keys and numbers give
    /// equal generators. The number is data.
    ///
    /// # Errors
    /// As [`Generator::split`].
    #[track_caller]
    pub fn fold_in(&self, data: u32) -> Result<Generator> {
        self.derived(data, Location::caller())
    }

    fn derived(&self, number: u32, at: &'static Location<'static>) -> Result<Generator> {
        let _turn = self.take_turn(FoldIn::NAME, at)?;
        let number = Number::Int(number.into());
        let operands = [Operand::Tensor(&self.state), Operand::Number(number)];
        record_at(entry(FoldIn), &operands, at).map(Self::of)
    }

    /// The sole use of the state, which no other thread has pending: were it recorded where that is
    /// pending, what is drawn would run when the other thread syncs.
    fn take_turn(
        &self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> Result<MutexGuard<'_, ()>> {
        loop {
            // Not waited for with the turn taken: the other thread may want it before it gets there.
            trace::claim(op, &self.state, at)?;
            let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if !trace::is_others(&self.state) {
                return Ok(turn);
            }
        }
    }

    /// Random 32-bit words.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative length.
    #[track_caller]
    pub fn bits(&self, shape: impl IntoShape) -> Result<Tensor> {
        let here = Location::caller();
        let shape = shape.into_shape("random_bits").map_err(|e| e.at(here))?;
        let count = shape.numel();
        self.draw(RandomBits { shape }, count, &[], here)
    }

    /// Records an operator that takes the state before `operands` and uses `count` elements of the
    /// sequence.
    pub(super) fn draw<O: Operator>(
        &self,
        op: O,
        count: usize,
        operands: &[Operand<'_>],
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        // As with the state: nothing is waited for with the turn taken.
        for operand in operands {
            if let Operand::Tensor(tensor) = operand {
                trace::claim(O::NAME, tensor, at)?;
            }
        }
        let _turn = self.take_turn(O::NAME, at)?;
        let state = Operand::Tensor(&self.state);
        let mut all = smallvec::SmallVec::<[Operand<'_>; 4]>::from_elem(state, 1);
        all.extend_from_slice(operands);
        let drawn = record_at(entry(op), &all, at)?;
        no_grad(|| {
            let advanced = record_op(Advance { count }, &[state])?;
            self.state.assign("advance_generator", advanced)
        })?;
        Ok(drawn)
    }
}

/// What a generator's state was, should something have been drawn since.
pub(crate) struct Snapshot {
    generator: Generator,
    version: u64,
    state: Tensor,
}

impl Snapshot {
    /// Of the default generator of a device.
    pub(crate) fn of_device(device: Device) -> Result<Snapshot> {
        let generator = default_generator(device)?;
        Ok(Snapshot {
            version: generator.state.version(),
            state: generator.get_state()?,
            generator,
        })
    }

    /// The state at the time, if it has changed since.
    pub(crate) fn if_used(self) -> Option<Tensor> {
        (self.generator.state.version() != self.version).then_some(self.state)
    }
}

/// The generators of one replica, by device.
#[derive(Default)]
struct Generators(Mutex<HashMap<Device, Kept>>);

/// A replica's generator.
enum Kept {
    OnDevice(Generator),
    /// The state of one whose device was let go of.
    OnHost(Vec<u64>),
}

/// The seed that generators made from now on begin with, with the number of calls of
/// [`manual_seed`] outside a launch in front: 0 means never.
static SEED: AtomicU64 = AtomicU64::new(0);
static SEEDED: AtomicU64 = AtomicU64::new(0);

/// The generator that functions without one of their own draw from: the calling replica's for a
/// device.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
pub fn default_generator(device: Device) -> Result<Generator> {
    let replica = xla_runtime::context::current("rand")?;
    let generators = replica.extension(Generators::default);
    let mut generators = generators.0.lock().unwrap_or_else(PoisonError::into_inner);
    let generator = match generators.get(&device) {
        Some(Kept::OnDevice(generator)) => return Ok(generator.clone()),
        Some(Kept::OnHost(state)) => Generator::from_state(state, device)?,
        // The process's mesh goes on with the numbers of the device that it takes the place of.
        None if spmd::is_enabled() && generators.contains_key(&replica.device()) => {
            match &generators[&replica.device()] {
                Kept::OnDevice(generator) => Generator::from_state(&generator.state()?, device)?,
                Kept::OnHost(state) => Generator::from_state(state, device)?,
            }
        }
        None => {
            let seed = match SEEDED.load(Ordering::Acquire) {
                // Never seeded: different numbers in each process, as in PyTorch.
                0 => RandomState::new().hash_one(0u8),
                _ => SEED.load(Ordering::Acquire),
            };
            Generator::new(seed, device)?
        }
    };
    generators.insert(device, Kept::OnDevice(generator.clone()));
    Ok(generator)
}

/// Takes the state of the calling replica's generators off their devices, but for those that somebody
/// else has a handle on.
pub(crate) fn take_generators_off_devices() {
    let Ok(context) = xla_runtime::context::current("rand") else {
        return;
    };
    let generators = context.extension(Generators::default);
    let mut generators = generators.0.lock().unwrap_or_else(PoisonError::into_inner);
    for kept in generators.values_mut() {
        if let Kept::OnDevice(generator) = kept
            && Arc::strong_count(&generator.turn) == 1
            && let Ok(state) = generator.state()
        {
            *kept = Kept::OnHost(state);
        }
    }
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
    default_generator(spmd::default_device("manual_seed")?)?;
    let generators = context.extension(Generators::default);
    let mut generators = generators.0.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = generators.values_mut();
    let on_devices: Vec<Generator> = kept
        .filter_map(|kept| match kept {
            Kept::OnDevice(generator) => Some(generator.clone()),
            Kept::OnHost(state) => {
                *state = vec![seed, 0];
                None
            }
        })
        .collect();
    // The thread that has a state pending may draw before it can be waited for.
    drop(generators);
    on_devices.iter().try_for_each(|g| g.manual_seed(seed))
}
