//! A computed value: a device buffer that knows the step it comes from.

use super::memory;
use crate::gang::Outcome;
use crate::spmd::{NamedSharding, blocks, mesh_of};
use crate::ty::{Ty, ty};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use xla_core::{Config, DType, Device, Error, Literal, Result, Shape, config};
use xla_runtime::{Buffer, Client};

/// The execution that a value comes from, for the errors of asynchronous steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepInfo {
    pub(crate) step: u64,
    pub(crate) op: &'static str,
    pub(crate) location: &'static Location<'static>,
}

impl StepInfo {
    /// What the plugin says went wrong, with the step. Other errors say themselves what to do.
    pub(crate) fn explain(self, error: Error) -> Error {
        match error {
            error @ Error::Pjrt { .. } => Error::Step {
                step: self.step,
                op: self.op,
                at: self.location.into(),
                source: Arc::new(error),
            },
            other => other,
        }
    }
}

/// The executions beyond this process that a value depends on and that were not settled when it was
/// made; shared by all results of a program.
#[derive(Clone, Default)]
pub(crate) struct Outcomes(Option<Arc<[Arc<dyn Outcome>]>>);

impl Outcomes {
    /// Those of a program that reads `values`, started with an outcome of its own or none.
    ///
    /// # Errors
    /// That of an execution that has failed: its values are made up.
    pub(crate) fn of_program<'a>(
        values: impl Iterator<Item = &'a DeviceValue>,
    ) -> Result<SmallVec<[Arc<dyn Outcome>; 2]>> {
        let mut all: SmallVec<[Arc<dyn Outcome>; 2]> = SmallVec::new();
        let mut last: Option<&Arc<[Arc<dyn Outcome>]>> = None;
        for value in values {
            let Some(outcomes) = &value.0.outcomes.0 else {
                continue;
            };
            // The values of one program mostly come together.
            if last.is_some_and(|seen| Arc::ptr_eq(seen, outcomes)) {
                continue;
            }
            last = Some(outcomes);
            for outcome in outcomes.iter() {
                match outcome.poll() {
                    Some(settled) => settled?,
                    None if all.iter().any(|known| Arc::ptr_eq(known, outcome)) => {}
                    None => all.push(Arc::clone(outcome)),
                }
            }
        }
        Ok(all)
    }

    pub(crate) fn new(outcomes: &[Arc<dyn Outcome>]) -> Self {
        Outcomes((!outcomes.is_empty()).then(|| outcomes.into()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether all went well, as far as is known.
    ///
    /// # Errors
    /// That of an execution that has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let failed = self.0.iter().flat_map(|all| all.iter());
        failed
            .filter_map(|outcome| outcome.poll())
            .find(Result::is_err)
            .unwrap_or(Ok(()))
    }

    /// How long the end of what they belong to is waited for. Whoever waits for another process
    /// inside a program gives up at the deadline, and only then can the program end.
    fn patience(&self) -> Duration {
        deadline()
            + if self.is_empty() {
                Duration::ZERO
            } else {
                GRACE
            }
    }

    /// Waits with `wait`, and lets nothing through that a failed execution has made up.
    ///
    /// # Errors
    /// The failed execution's, or else what `wait` returns.
    pub(crate) fn guard<T>(&self, wait: impl FnOnce(Duration) -> Result<T>) -> Result<T> {
        let waited = wait(self.patience());
        self.check()?;
        waited
    }
}

/// What a program needs, once it does not wait for another process any more, to run to its end.
const GRACE: Duration = Duration::from_secs(10);

struct Inner {
    /// One on each device that the value is on; shared with the literals that show them.
    parts: SmallVec<[Arc<Buffer>; 1]>,
    /// How the parts make up the value, on a virtual device.
    spread: Option<Spread>,
    id: u64,
    step: Option<StepInfo>,
    outcomes: Outcomes,
}

/// How a value is spread over the devices of a mesh.
#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(crate) sharding: NamedSharding,
    /// The type of the whole, without padding.
    pub(crate) ty: Ty,
}

/// A buffer, or one on each device of a mesh, shared by the storages, parameters and readers that need
/// it. Its memory may be donated only while there is one holder.
#[derive(Clone)]
pub(crate) struct DeviceValue(Arc<Inner>);

/// A value that its other holders may drop meanwhile.
pub(crate) struct Watched(Weak<Inner>);

impl Watched {
    /// The value, if somebody still holds it.
    pub(crate) fn get(&self) -> Option<DeviceValue> {
        self.0.upgrade().map(DeviceValue)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// How long a value is waited for: as long as the calling thread's launch waits for anything.
pub(crate) fn deadline() -> Duration {
    match xla_runtime::context::current("deadline") {
        Ok(context) => context.launch().deadline(),
        Err(_) => Config::global().map_or(config::DEFAULT_DEADLINE, |c| c.deadline),
    }
}

impl DeviceValue {
    pub(crate) fn new(buffer: Buffer, step: Option<StepInfo>, outcomes: Outcomes) -> Self {
        DeviceValue::made(smallvec![Arc::new(buffer)], None, step, outcomes)
    }

    /// A value with a part on each device of a mesh, in the mesh's order.
    pub(crate) fn of_parts(
        parts: SmallVec<[Arc<Buffer>; 1]>,
        spread: Spread,
        step: Option<StepInfo>,
        outcomes: Outcomes,
    ) -> Self {
        DeviceValue::made(parts, Some(spread), step, outcomes)
    }

    fn made(
        parts: SmallVec<[Arc<Buffer>; 1]>,
        spread: Option<Spread>,
        step: Option<StepInfo>,
        outcomes: Outcomes,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        DeviceValue(Arc::new(Inner {
            parts,
            spread,
            id,
            step,
            outcomes,
        }))
    }

    /// A number that no other value of the process has.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The value, for as long as somebody else keeps it.
    pub(crate) fn watch(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    /// The value, or the first of its parts.
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0.parts[0]
    }

    /// The part on the device with this position in the mesh.
    pub(crate) fn part(&self, position: usize) -> Option<&Buffer> {
        self.0.parts.get(position).map(|part| &**part)
    }

    /// Whether it, or a part of it, is on a device.
    pub(crate) fn is_on(&self, ordinal: usize) -> bool {
        self.0.parts.iter().any(|part| part.device() == ordinal)
    }

    /// How it is spread over a mesh; `None` on a real device.
    pub(crate) fn spread(&self) -> Option<&Spread> {
        self.0.spread.as_ref()
    }

    /// Whether nothing but the caller holds the value.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.holders() == 1
    }

    /// How many hold the value, the caller among them.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Whether a program has taken the memory.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.parts.iter().any(|part| part.is_deleted())
    }

    /// Sends a literal to a device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn upload(literal: Literal, device: Device) -> Result<Self> {
        match device.ordinal() {
            Some(ordinal) => {
                let buffer = Client::global()?.upload_owned(literal, ordinal)?;
                Ok(DeviceValue::new(buffer, None, Outcomes::default()))
            }
            None => DeviceValue::spread_out(
                literal.dtype(),
                literal.shape(),
                &NamedSharding::replicated(&mesh_of(device)?),
                |_| Ok(literal.clone()),
            ),
        }
    }

    /// A copy of bytes, on one device or on each of a mesh.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn upload_bytes(
        bytes: &[u8],
        dtype: DType,
        shape: &Shape,
        device: Device,
    ) -> Result<Self> {
        let client = Client::global()?;
        let Some(ordinal) = device.ordinal() else {
            let sharding = NamedSharding::replicated(&mesh_of(device)?);
            let devices = sharding.mesh().devices().iter();
            let parts = devices
                .map(|&device| client.upload(bytes, dtype, shape, device).map(Arc::new))
                .collect::<Result<_>>()?;
            let spread = Spread {
                sharding,
                ty: ty(dtype, shape),
            };
            return Ok(DeviceValue::of_parts(
                parts,
                spread,
                None,
                Outcomes::default(),
            ));
        };
        let buffer = client.upload(bytes, dtype, shape, ordinal)?;
        Ok(DeviceValue::new(buffer, None, Outcomes::default()))
    }

    /// A value whose blocks `block` gives, by the index range along each axis: sent to the devices
    /// that hold them, each of which gets no other.
    ///
    /// # Errors
    /// Those of `block`; the runtime's.
    pub(crate) fn spread_out(
        dtype: DType,
        shape: &Shape,
        sharding: &NamedSharding,
        mut block: impl FnMut(&[Range<usize>]) -> Result<Literal>,
    ) -> Result<Self> {
        let client = Client::global()?;
        let part_shape = sharding.shard_shape(shape);
        let mut known: Vec<(Vec<Range<usize>>, Literal)> = Vec::new();
        let mut parts = SmallVec::new();
        for (position, &device) in sharding.mesh().devices().iter().enumerate() {
            let index = sharding.shard_index(shape, position);
            let literal = match known.iter().find(|(other, _)| *other == index) {
                Some((_, literal)) => literal.clone(),
                None => {
                    let literal = blocks::padded(block(&index)?, &part_shape)?;
                    known.push((index, literal.clone()));
                    literal
                }
            };
            parts.push(Arc::new(client.upload_owned(literal, device)?));
        }
        let spread = Spread {
            sharding: sharding.clone(),
            ty: ty(dtype, shape),
        };
        Ok(DeviceValue::of_parts(
            parts,
            spread,
            None,
            Outcomes::default(),
        ))
    }

    /// Waits for the value and shows it to the host; a large one on the CPU without a copy, so that it
    /// cannot be overwritten for as long as the literal lives.
    ///
    /// # Errors
    /// The error of the step that should have computed it, or a deadline.
    pub(crate) fn to_literal(&self) -> Result<Literal> {
        match &self.0.spread {
            Some(spread) if !spread.sharding.is_replicated() => {
                let (sharding, shape) = (&spread.sharding, spread.ty.shape());
                let first = (0..self.0.parts.len())
                    .filter(|&position| sharding.replica_id(shape.rank(), position) == 0);
                let blocks = first
                    .map(|position| {
                        let index = sharding.shard_index(shape, position);
                        Ok((index, self.lend(position)?))
                    })
                    .collect::<Result<Vec<_>>>()?;
                blocks::joined(spread.ty.dtype(), shape, &blocks)
            }
            _ => self.lend(0),
        }
    }

    /// Waits for the part at a position of the mesh and shows it to the host, without padding.
    ///
    /// # Errors
    /// As [`DeviceValue::to_literal`].
    pub(crate) fn part_to_literal(&self, position: usize) -> Result<Literal> {
        let part = self.lend(position)?;
        match &self.0.spread {
            Some(Spread { sharding, ty }) => {
                blocks::unpadded(part, &sharding.shard_index(ty.shape(), position))
            }
            None => Ok(part),
        }
    }

    fn lend(&self, position: usize) -> Result<Literal> {
        let Some(part) = self.0.parts.get(position) else {
            return Err(Error::Internal {
                what: "DeviceValue::lend",
                expected: "a position in the mesh".into(),
            });
        };
        self.0
            .outcomes
            .guard(|patience| part.lend(patience))
            .map_err(|e| self.explain(e))
    }

    /// The value on another device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn copy_to(&self, device: Device) -> Result<Self> {
        // Between a device and a mesh, and between meshes, values go by way of the host.
        let (Some(ordinal), None) = (device.ordinal(), &self.0.spread) else {
            return DeviceValue::upload(self.to_literal()?, device);
        };
        let buffer = self
            .buffer()
            .copy_to_device(ordinal)
            .map_err(|e| self.explain(e))?;
        Ok(DeviceValue::new(
            buffer,
            self.0.step,
            self.0.outcomes.clone(),
        ))
    }

    fn explain(&self, error: Error) -> Error {
        let error = match self.0.step {
            Some(step) => step.explain(error),
            None => error,
        };
        memory::typed(error, Device::new(self.buffer().device()))
    }
}
