//! Tensors that are spread over a mesh: said, asked, read and made block by block.

use super::mode::move_to;
use super::region::manual_mesh;
use super::{Mesh, NamedSharding, PartitionSpec, visualize_sharding};
use crate::Tensor;
use crate::ops;
use crate::storage::{Storage, Value};
use crate::sync::{self, DeviceValue};
use crate::trace::{self, no_grad};
use crate::ty::ty;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{DType, Error, IntoShape, Literal, Result, Shape};

/// Spreads a tensor over a mesh: from now on each device holds its block of it, whatever value the
/// tensor gets, and the compiler partitions what is computed from it accordingly. The values stay the
/// same. As `torch_xla.distributed.spmd.mark_sharding`.
///
/// A tensor that is not on the mesh is brought there first.
///
/// # Errors
/// [`Error::Sharding`] for a specification that does not fit the mesh or the tensor, and for a view:
/// its base is what can be spread; those of computing a tensor that is not on the mesh.
///
/// ```no_run
/// use xla_lazy::{Tensor, spmd};
/// let mesh = spmd::Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
/// spmd::enable(&mesh)?;
/// let weight = Tensor::zeros([1024, 512], ())?;
/// spmd::mark_sharding(&weight, &mesh, ((), "model"))?;
/// assert_eq!(weight.local_shards()?[0].data.shape().dims(), [1024, 256]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn mark_sharding(tensor: &Tensor, mesh: &Mesh, spec: impl Into<PartitionSpec>) -> Result<()> {
    const OP: &str = "mark_sharding";
    let at = Location::caller();
    let sharding = NamedSharding::new(mesh, spec).map_err(|e| e.at(at))?;
    mark(OP, tensor, &sharding, at)?;
    Ok(())
}

/// Takes back what [`mark_sharding`] said: each device holds the whole tensor again.
///
/// # Errors
/// [`Error::Sharding`] for a view.
#[track_caller]
pub fn clear_sharding(tensor: &Tensor) -> Result<()> {
    const OP: &str = "clear_sharding";
    let Some(mesh) = Mesh::of(tensor.device()) else {
        return Ok(());
    };
    let storage = mark(
        OP,
        tensor,
        &NamedSharding::replicated(&mesh),
        Location::caller(),
    )?;
    storage.lock().mark = None;
    Ok(())
}

/// What [`mark_sharding`] has said of a tensor; `None` where nobody has, and of a view. Unlike
/// [`Tensor::sharding`] it computes nothing.
pub fn marked(tensor: &Tensor) -> Option<NamedSharding> {
    match &tensor.view {
        Some(view) if !view.shows_all() => None,
        _ => tensor.storage.mark(),
    }
}

/// Spreads a tensor that was just made.
pub(crate) fn spread(
    op: &'static str,
    made: &Tensor,
    sharding: &NamedSharding,
    at: &'static Location<'static>,
) -> Result<()> {
    mark(op, made, sharding, at).map(drop)
}

fn mark<'a>(
    op: &'static str,
    tensor: &'a Tensor,
    sharding: &NamedSharding,
    at: &'static Location<'static>,
) -> Result<&'a Arc<Storage>> {
    sharding.check(op, tensor.shape()).map_err(|e| e.at(at))?;
    refuse_blocks(op, sharding, at)?;
    if tensor.view.as_ref().is_some_and(|view| !view.shows_all()) {
        return Err(sharding.refused(
            op,
            format!("a view of shape {}", tensor.shape()),
            "the tensor that it is a view of can be spread, or a copy of the view",
            at,
        ));
    }
    let device = sharding.mesh().device();
    let storage = &tensor.storage;
    if storage.device() != device {
        move_to(storage, device, op, at)?;
    }
    let spread_already = match &storage.lock().value {
        Value::Ready(value) => value.spread().is_some_and(|s| s.sharding == *sharding),
        Value::Pending(_) | Value::Failed(_) => false,
    };
    if !spread_already {
        trace::rearrange(op, storage, ops::sharding_entry(sharding), at)?;
    }
    storage.lock().mark = Some(sharding.clone());
    Ok(storage)
}

/// Refuses to spread what is one device's block already.
fn refuse_blocks(
    op: &'static str,
    sharding: &NamedSharding,
    at: &'static Location<'static>,
) -> Result<()> {
    if manual_mesh().is_none() {
        return Ok(());
    }
    let target = "a tensor in the body of a shard_map".into();
    let reason = "each device has a block of its own there; spread the results of the shard_map";
    Err(sharding.refused(op, target, reason, at))
}

/// The picture of [`visualize_sharding`] for a tensor, as the compiler has spread it where nobody said.
/// As `torch_xla.distributed.spmd.debugging.visualize_tensor_sharding`.
///
/// # Errors
/// Those of computing the tensor.
#[track_caller]
pub fn visualize_tensor_sharding(tensor: &Tensor) -> Result<String> {
    Ok(match tensor.sharding()? {
        Some(sharding) => visualize_sharding(&sharding, tensor.shape()),
        None => format!("{} on {}\n", tensor.shape(), tensor.device()),
    })
}

/// A device's block of a tensor.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Shard {
    /// The block, without padding.
    pub data: Literal,
    /// Where it is in the tensor, along each axis.
    pub index: Vec<Range<usize>>,
    /// The device, by its ordinal.
    pub device: usize,
    /// 0 for the first device that holds this block, 1 for the second, and so on.
    pub replica_id: usize,
}

impl Tensor {
    /// The tensor, spread like this at this point of the program. Gradients are spread the same way.
    /// As `jax.lax.with_sharding_constraint`.
    ///
    /// # Errors
    /// [`Error::Sharding`] for a specification that does not fit the tensor, and for a tensor that is
    /// not on the mesh.
    ///
    /// ```no_run
    /// # use xla_lazy::{Tensor, spmd::NamedSharding};
    /// # fn hidden(x: &Tensor, w: &Tensor, over_data: &NamedSharding) -> xla_core::Result<Tensor> {
    /// x.matmul(w)?.with_sharding_constraint(over_data)?.relu()
    /// # }
    /// ```
    #[track_caller]
    pub fn with_sharding_constraint(&self, sharding: &NamedSharding) -> Result<Tensor> {
        const OP: &str = "with_sharding_constraint";
        let at = Location::caller();
        sharding.check(OP, self.shape()).map_err(|e| e.at(at))?;
        refuse_blocks(OP, sharding, at)?;
        if self.device() != sharding.mesh().device() {
            let target = match Mesh::of(self.device()) {
                Some(mesh) => format!("a tensor on the mesh of {mesh}"),
                None => format!("a tensor on {}", self.device()),
            };
            let reason = format!(
                "the sharding is for the mesh of {}; bring the tensor to its device() first",
                sharding.mesh()
            );
            return Err(sharding.refused(OP, target, reason, at));
        }
        let constrained = ops::constrained(self, sharding, at)?;
        constrained.storage.lock().mark = Some(sharding.clone());
        Ok(constrained)
    }

    /// The tensor spread like this, also over another mesh than it is on. Within a mesh the compiler
    /// moves only what has to be moved; from a device or from another mesh values come by way of the
    /// host.
    ///
    /// # Errors
    /// [`Error::Sharding`] for a specification that does not fit the tensor; as [`Tensor::to`].
    #[track_caller]
    pub fn to_sharding(&self, sharding: &NamedSharding) -> Result<Tensor> {
        sharding
            .check("to_sharding", self.shape())
            .map_err(|e| e.at(Location::caller()))?;
        self.to(sharding.mesh().device())?
            .with_sharding_constraint(sharding)
    }

    /// How the tensor is spread over the mesh that it is on; `None` on a real device. What the
    /// compiler has chosen where nobody said: a pending tensor is computed first.
    ///
    /// # Errors
    /// Those of computing the tensor.
    #[track_caller]
    pub fn sharding(&self) -> Result<Option<NamedSharding>> {
        let value = self.on_mesh("sharding", Location::caller())?;
        Ok(value.spread().map(|spread| spread.sharding.clone()))
    }

    /// The block that each device of this process holds, in the mesh's order; on a real device the
    /// whole. A pending tensor is computed first.
    ///
    /// # Errors
    /// Those of computing the tensor.
    #[track_caller]
    pub fn local_shards(&self) -> Result<Vec<Shard>> {
        let value = self.on_mesh("local_shards", Location::caller())?;
        let shape = self.shape();
        let Some(spread) = value.spread() else {
            return Ok(vec![Shard {
                data: value.to_literal()?,
                index: shape.dims().iter().map(|&len| 0..len).collect(),
                device: value.buffer().device(),
                replica_id: 0,
            }]);
        };
        let sharding = &spread.sharding;
        let devices = sharding.mesh().devices().iter().enumerate();
        devices
            .map(|(position, &device)| {
                Ok(Shard {
                    data: value.part_to_literal(position)?,
                    index: sharding.shard_index(shape, position),
                    device,
                    replica_id: sharding.replica_id(shape.rank(), position),
                })
            })
            .collect()
    }

    fn on_mesh(&self, what: &'static str, at: &'static Location<'static>) -> Result<DeviceValue> {
        let value = sync::materialise(self, what, at)?;
        // One from before the process had its mesh is used as a replicated one.
        match Mesh::of(self.device()) {
            Some(_) if value.spread().is_none() => value.copy_to(self.device()),
            _ => Ok(value),
        }
    }

    /// A tensor made of blocks, each sent to the devices that hold it and to no other. `block` is
    /// asked once for each, by its index range along each axis. As
    /// `jax.make_array_from_callback`.
    ///
    /// # Errors
    /// Those of `block`; [`Error::Sharding`] for a sharding that does not fit the shape, or for a block
    /// of another dtype or shape than asked for; the runtime's.
    ///
    /// ```no_run
    /// use xla_lazy::{Tensor, spmd};
    /// use xla_core::{DType, Literal};
    /// let mesh = spmd::Mesh::all("data")?;
    /// let rows = spmd::NamedSharding::new(&mesh, "data")?;
    /// let x = Tensor::from_local_shards([8, 2], DType::F32, &rows, |index| {
    ///     let (first, count) = (index[0].start, index[0].len());
    ///     Literal::from_vec(vec![first as f32; count * 2], [count, 2])
    /// })?;
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn from_local_shards(
        shape: impl IntoShape,
        dtype: DType,
        sharding: &NamedSharding,
        block: impl FnMut(&[Range<usize>]) -> Result<Literal>,
    ) -> Result<Tensor> {
        const OP: &str = "from_local_shards";
        let at = Location::caller();
        let shape = shape.into_shape(OP).map_err(|e| e.at(at))?;
        sharding.check(OP, &shape).map_err(|e| e.at(at))?;
        let value = of_blocks(OP, (dtype, &shape), sharding, block, at)?;
        sync::note(&value, OP, at);
        let device = sharding.mesh().device();
        let storage = Storage::new(ty(dtype, &shape), device, Value::Ready(value));
        storage.lock().mark = Some(sharding.clone());
        Ok(Tensor::of(Arc::new(storage)))
    }

    /// Gives the tensor new values, block by block: those of [`Tensor::local_shards`], changed on the
    /// host. Each block need be given once; what one device holds, others that hold the same block get
    /// too.
    ///
    /// # Errors
    /// [`Error::Sharding`] where a block is missing, or has another dtype or shape; those of computing
    /// the tensor.
    #[track_caller]
    pub fn load_local_shards(&self, shards: &[Shard]) -> Result<()> {
        const OP: &str = "load_local_shards";
        let at = Location::caller();
        let value = self.on_mesh(OP, at)?;
        let sharding = match (value.spread(), shards) {
            (Some(spread), _) => spread.sharding.clone(),
            (None, [whole]) => {
                let new = Tensor::from_literal(whole.data.clone(), self.device())?;
                return no_grad(|| self.copy_(&new)).map(drop);
            }
            (None, _) => {
                return Err(Error::argument(
                    OP,
                    "shards",
                    format!("one, since the tensor is on {}", self.device()),
                    format!("{} of them", shards.len()),
                )
                .at(at));
            }
        };
        let missing = |index: &[Range<usize>]| {
            let target = format!("a tensor of shape {}", self.shape());
            sharding.refused(OP, target, format!("no shard has the index {index:?}"), at)
        };
        let block = |index: &[Range<usize>]| {
            let shard = shards.iter().find(|shard| shard.index == index);
            shard
                .map(|shard| shard.data.clone())
                .ok_or_else(|| missing(index))
        };
        let value = of_blocks(OP, (self.dtype(), self.shape()), &sharding, block, at)?;
        let new = Tensor::of(Arc::new(Storage::new(
            self.ty(),
            sharding.mesh().device(),
            Value::Ready(value),
        )));
        no_grad(|| self.copy_(&new)).map(drop)
    }
}

fn of_blocks(
    op: &'static str,
    (dtype, shape): (DType, &Shape),
    sharding: &NamedSharding,
    mut block: impl FnMut(&[Range<usize>]) -> Result<Literal>,
    at: &'static Location<'static>,
) -> Result<DeviceValue> {
    DeviceValue::spread_out(dtype, shape, sharding, |index| {
        let literal = block(index)?;
        let lengths = index.iter().map(Range::len);
        if literal.dtype() != dtype || !lengths.clone().eq(literal.shape().dims().iter().copied()) {
            let expected = Shape::new(&lengths.collect::<Vec<_>>());
            let target = format!("a tensor {dtype}{shape}");
            let reason = format!(
                "the block at {index:?} is expected as {dtype}{expected}, got {}{}",
                literal.dtype(),
                literal.shape()
            );
            return Err(sharding.refused(op, target, reason, at));
        }
        Ok(literal)
    })
}
