//! Recording a function of blocks.

use super::derivative;
use super::mapped::{Mapped, MappedResult};
use crate::Tensor;
use crate::intern::Interned;
use crate::op::{Operator, entry};
use crate::spmd::{self, Mesh, NamedSharding, PartitionSpec, SpecAxes};
use crate::trace::{self, Argument, Recorded, is_grad_enabled, record_region};
use crate::ty::ty;
use std::panic::Location;
use xla_core::{Config, Error, Result, Shape};

const OP: &str = MappedResult::NAME;

/// `body`, run by each device of a mesh on its blocks of the tensors `inputs`: what its results are
/// the blocks of. As `jax.shard_map`.
///
/// `in_specs` say, one a tensor, how the tensors are split for it, `out_specs` the same of the
/// results; all axes split evenly. A result that is not split over an axis of the mesh is one of
/// which all devices along that axis have the same, which is up to `body`. In `body` the collectives
/// of the process group are those of the mesh's devices, and [`axis_index`](super::axis_index) tells
/// them apart; what is drawn there is the same on all.
///
/// The body is recorded once and runs within the program, whose other parts stay partitioned by the
/// compiler. It may read any tensor; of those that are not among the inputs each device gets the
/// whole. Gradients flow to both. The body is computed once more for them, as far as the compiler does
/// not find it to be the same.
///
/// # Errors
/// Those of `body`. [`Error::Sharding`] for a specification that does not fit the mesh or the tensor,
/// an axis that does not split evenly, and a tensor that is not on the mesh; [`Error::Argument`] for
/// another number of specifications than of tensors; [`Error::Config`] with `XLA_USE_SHARDY=0`;
/// [`Error::InBody`] when the body reads values on
/// the host, syncs, or calls this.
///
/// ```no_run
/// use xla_lazy::{Tensor, spmd};
/// let mesh = spmd::Mesh::new(&[0, 1, 2, 3], &[4], &["x"])?;
/// spmd::enable(&mesh)?;
/// let x = Tensor::arange(0, 8, 1, ())?;
/// // The greatest of each device's two numbers.
/// let greatest = spmd::shard_map(&mesh, ["x"], ["x"], &[&x], |blocks| {
///     Ok(vec![blocks[0].amax((), true)?])
/// })?;
/// assert_eq!(greatest[0].to_vec::<i64>()?, [1, 3, 5, 7]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn shard_map<I, O>(
    mesh: &Mesh,
    in_specs: I,
    out_specs: O,
    inputs: &[&Tensor],
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>>
where
    I: IntoIterator<Item: Into<PartitionSpec>>,
    O: IntoIterator<Item: Into<PartitionSpec>>,
{
    let at = Location::caller();
    if spmd::manual_mesh().is_some() {
        return Err(Error::InBody {
            op: OP,
            what: "no other shard_map can be in it",
            advice: "split over all axes by the outer one",
            at: at.into(),
        });
    }
    if !Config::global().map_or(true, |config| config.use_shardy) {
        // What GSPMD has for it ends the process where a body reshapes.
        return Err(Error::Config {
            name: "XLA_USE_SHARDY",
            expected: "1, for shard_map".into(),
            got: "0".into(),
        });
    }
    let plan = Plan {
        mesh,
        inputs: inputs.iter().map(|&input| input.clone()).collect(),
        in_shardings: shardings(mesh, in_specs)?,
        out_shardings: shardings(mesh, out_specs)?,
        at,
    };
    plan.run(body)
}

#[track_caller]
fn shardings(
    mesh: &Mesh,
    specs: impl IntoIterator<Item: Into<PartitionSpec>>,
) -> Result<Vec<NamedSharding>> {
    let at = Location::caller();
    let mut all = Vec::new();
    for spec in specs {
        let sharding = NamedSharding::new(mesh, spec).map_err(|e| e.named(OP))?;
        let mut parts = sharding.spec().axes().iter().flat_map(SpecAxes::parts);
        if parts.any(|axis| axis.part.is_some()) {
            let reason = "it splits a tensor over a part of an axis; give such parts a mesh with axes \
                          of their own";
            let target = format!("the mesh of {mesh}");
            return Err(sharding.refused(OP, target, reason, at));
        }
        all.push(sharding);
    }
    Ok(all)
}

/// A function of blocks to be recorded.
pub(super) struct Plan<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) inputs: Vec<Tensor>,
    pub(super) in_shardings: Vec<NamedSharding>,
    pub(super) out_shardings: Vec<NamedSharding>,
    pub(super) at: &'static Location<'static>,
}

impl Plan<'_> {
    /// Records it and returns its results.
    ///
    /// # Errors
    /// As [`shard_map`].
    pub(super) fn run(
        &self,
        body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let at = self.at;
        let arguments = self.arguments()?;
        // What the body changes in place comes first, among arguments and results.
        let mut recorded = record_region(OP, self.mesh.device(), &arguments, 0, at, |blocks| {
            let results = spmd::recording(self.mesh, || body(blocks))?;
            self.check(&results)?;
            Ok(results)
        })?;
        let changed = std::mem::take(&mut recorded.changed);
        if recorded.region.results.is_empty() {
            return Ok(Vec::new());
        }
        let whole = NamedSharding::replicated(self.mesh);
        let of_changed = || std::iter::repeat_n(&whole, changed.len());
        let of_captures = std::iter::repeat_n(&whole, recorded.captures.len());
        let in_shardings = of_changed().chain(&self.in_shardings).chain(of_captures);
        let new = Mapped {
            mesh: *self.mesh,
            inputs: in_shardings.cloned().collect(),
            outputs: of_changed().chain(&self.out_shardings).cloned().collect(),
            arguments: changed.len() + self.inputs.len(),
            region: recorded.region.clone(),
        };
        let mapped = Interned::new(OP, new);
        let before = changed.iter().map(|(_, before)| before);
        let tensors = before.chain(&self.inputs).chain(&recorded.captures);
        let tensors: Vec<Tensor> = tensors.cloned().collect();
        let mut results = record(mapped, &tensors, &recorded, at)?;
        if is_grad_enabled() && tensors.iter().any(Tensor::requires_grad) {
            results = derivative::attach(mapped, recorded, &tensors, results, at)?;
        }
        let explicit = results.split_off(changed.len());
        for ((storage, _), after) in changed.iter().zip(results) {
            trace::rebind(OP, storage, &after, at)?;
        }
        for (result, sharding) in explicit.iter().zip(&self.out_shardings) {
            result.storage.lock().mark = Some(sharding.clone());
        }
        Ok(explicit)
    }

    /// The blocks that the body is given, as far as they are known.
    fn arguments(&self) -> Result<Vec<Argument>> {
        if self.inputs.len() != self.in_shardings.len() {
            let expected = format!("{}, one a tensor", self.inputs.len());
            let error = Error::argument(OP, "in_specs", expected, self.in_shardings.len());
            return Err(error.at(self.at));
        }
        let inputs = self.inputs.iter().zip(&self.in_shardings);
        inputs
            .map(|(input, sharding)| self.argument(input, sharding))
            .collect()
    }

    fn argument(&self, input: &Tensor, sharding: &NamedSharding) -> Result<Argument> {
        let (shape, at) = (input.shape(), self.at);
        sharding.check(OP, shape).map_err(|e| e.at(at))?;
        if spmd::used_on(input.device()) != self.mesh.device() {
            let target = match Mesh::of(input.device()) {
                Some(mesh) => format!("a tensor on the mesh of {mesh}"),
                None => format!("a tensor on {}", input.device()),
            };
            let reason = format!(
                "it is for the mesh of {}; bring the tensor to its device() first",
                self.mesh
            );
            return Err(sharding.refused(OP, target, reason, at));
        }
        spmd::adopt(&input.storage, OP, at)?;
        check_even(sharding, shape, at)?;
        Ok(Argument {
            ty: ty(input.dtype(), &sharding.shard_shape(shape)),
            grad: is_grad_enabled() && input.requires_grad(),
        })
    }

    fn check(&self, results: &[Tensor]) -> Result<()> {
        if results.len() != self.out_shardings.len() {
            let expected = format!("{}, one for each result of the body", results.len());
            let error = Error::argument(OP, "out_specs", expected, self.out_shardings.len());
            return Err(error.at(self.at));
        }
        let results = results.iter().zip(&self.out_shardings);
        for (result, sharding) in results {
            let fits = sharding.check(OP, result.shape());
            fits.map_err(|e| e.at(self.at))?;
        }
        Ok(())
    }
}

/// Refuses a tensor whose blocks would not be of one shape.
fn check_even(
    sharding: &NamedSharding,
    shape: &Shape,
    at: &'static Location<'static>,
) -> Result<()> {
    let tiles = sharding.tiles(shape.rank());
    for (axis, (&length, &tiles)) in shape.dims().iter().zip(&tiles).enumerate() {
        let over = length % tiles;
        if over != 0 {
            let reason = format!(
                "axis {axis} of length {length} is split into {tiles} blocks, which are not equal: \
                 {over} over, {} missing",
                tiles - over
            );
            return Err(sharding.refused(OP, format!("shape {shape:?}"), reason, at));
        }
    }
    Ok(())
}

/// Records the results as nodes.
fn record(
    mapped: Interned<Mapped>,
    tensors: &[Tensor],
    recorded: &Recorded,
    at: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let results = 0..mapped.outputs.len();
    let entries: Vec<_> = results
        .map(|index| entry(MappedResult { mapped, index }))
        .collect();
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    let classes = recorded.region.numbers.iter().copied();
    let numbers: Vec<_> = classes.zip(recorded.numbers.iter().copied()).collect();
    trace::record_classed(&entries, &tensors, &numbers, at)
}
