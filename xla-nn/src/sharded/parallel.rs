//! Tensor parallelism: layers whose parameters are split by columns or by rows.

use super::marked;
use crate::Module;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;
use xla_lazy::spmd::{self, Mesh, PartitionSpec};

const OP: &str = "parallelize_module";

/// How the parameters of a layer are split over an axis of a mesh.
///
/// A layer after one of the style [`ColwiseParallel`](ParallelStyle::ColwiseParallel) should have the
/// style [`RowwiseParallel`](ParallelStyle::RowwiseParallel): what lies between stays split, and one
/// sum over the devices is all that they exchange
/// ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)).
#[derive(Debug, Clone)]
pub enum ParallelStyle<'a> {
    /// Each device computes a part of the outputs: weights `[outputs, inputs, ..]` are split along
    /// their first axis, and biases too. As `torch.distributed.tensor.parallel.ColwiseParallel`.
    ColwiseParallel(&'a str),
    /// Each device takes a part of the inputs: weights `[outputs, inputs, ..]` are split along their
    /// second axis, biases are whole. As `torch.distributed.tensor.parallel.RowwiseParallel`.
    RowwiseParallel(&'a str),
    /// As said for each parameter, whatever the layer: an embedding's table, say, which is
    /// `[tokens, features]`.
    Spec(PartitionSpec),
}

impl ParallelStyle<'_> {
    fn spec(&self, parameter: &Tensor) -> PartitionSpec {
        match (self, parameter.rank()) {
            (ParallelStyle::ColwiseParallel(axis), 1..) => (*axis).into(),
            (ParallelStyle::RowwiseParallel(axis), 2..) => ((), *axis).into(),
            (ParallelStyle::ColwiseParallel(_) | ParallelStyle::RowwiseParallel(_), _) => {
                PartitionSpec::replicated()
            }
            (ParallelStyle::Spec(spec), _) => spec.clone(),
        }
    }
}

/// Splits parameters of a module over a mesh by a plan: for paths of layers or of parameters, the
/// style. The compiler partitions what is computed from them, and the values are those of one device.
/// As `torch.distributed.tensor.parallel.parallelize_module`.
///
/// In a path `*` is one name, whatever it is: `h.*.fc`. A layer's style is that of the parameters
/// directly in it. Of the styles that a parameter is given the last counts; parameters that the plan
/// does not name are whole on each device, unless they are split already.
///
/// The heads of [`MultiheadAttention`](crate::MultiheadAttention) are split so:
///
/// ```no_run
/// use xla_lazy::spmd;
/// use xla_nn::ParallelStyle::{ColwiseParallel, RowwiseParallel, Spec};
/// use xla_nn::{Linear, Module, MultiheadAttention, parallelize_module};
///
/// #[derive(Module)]
/// struct Block {
///     attention: MultiheadAttention,
///     up: Linear,
///     down: Linear,
/// }
///
/// let mesh = spmd::Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
/// spmd::enable(&mesh)?;
/// let block = Block {
///     attention: MultiheadAttention::new(64, 8, ())?,
///     up: Linear::new(64, 256, ())?,
///     down: Linear::new(256, 64, ())?,
/// };
/// parallelize_module(
///     &block,
///     &mesh,
///     &[
///         ("attention", ColwiseParallel("model")),
///         ("attention.out_proj", RowwiseParallel("model")),
///         ("up", ColwiseParallel("model")),
///         ("down.weight", Spec(((), "model").into())),
///     ],
/// )?;
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] for a path under which the module has no parameter, naming those that it has;
/// [`Error::Sharding`] for a style that does not fit the mesh or the parameter. Nothing is split
/// then.
#[track_caller]
pub fn parallelize_module(
    module: &(impl Module + ?Sized),
    mesh: &Mesh,
    plan: &[(&str, ParallelStyle<'_>)],
) -> Result<()> {
    let here = Location::caller();
    let split = || -> Result<()> {
        let parameters = module.named_parameters();
        let mut specs: Vec<Option<PartitionSpec>> = vec![None; parameters.len()];
        for (path, style) in plan {
            let mut found = false;
            for ((name, parameter), spec) in parameters.iter().zip(&mut specs) {
                if !covers(path, name) {
                    continue;
                }
                found = true;
                *spec = Some(check(style.spec(parameter), mesh, name, parameter)?);
            }
            if !found {
                let names: Vec<&str> = parameters.iter().map(|(name, _)| &**name).collect();
                let expected = format!("paths of layers or of {}", names.join(", "));
                return Err(Error::argument(OP, "plan", expected, path));
            }
        }
        for ((_, parameter), spec) in parameters.iter().zip(specs) {
            match spec {
                Some(spec) => spmd::mark_sharding(parameter, mesh, spec)?,
                None if marked(parameter, mesh).is_none() => {
                    spmd::mark_sharding(parameter, mesh, ())?;
                }
                None => {}
            }
        }
        super::replicate_unmarked(&module.buffers(), mesh)
    };
    split().map_err(|error: Error| error.relocated(here))
}

/// The specification, if it fits; the error names the parameter.
fn check(
    spec: PartitionSpec,
    mesh: &Mesh,
    name: &str,
    parameter: &Tensor,
) -> Result<PartitionSpec> {
    let refused = |reason: String| Error::Sharding {
        op: OP,
        sharding: spec.to_string(),
        target: format!("{name} of shape {}", parameter.shape()),
        reason,
        at: xla_core::Site::NONE,
    };
    if let Err(error) = spmd::NamedSharding::new(mesh, &spec) {
        return Err(match error {
            Error::Sharding { reason, .. } => refused(reason),
            other => other,
        });
    }
    if spec.len() > parameter.rank() {
        let (named, rank) = (spec.len(), parameter.rank());
        return Err(refused(format!(
            "it speaks of {named} axes, the parameter has {rank}"
        )));
    }
    Ok(spec)
}

/// Whether a path of a plan is that of the parameter or of the layer directly around it.
fn covers(path: &str, name: &str) -> bool {
    let same = |name: &str| {
        let (mut path, mut name) = (path.split('.'), name.split('.'));
        loop {
            match (path.next(), name.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(one), Some(other)) if one == other => {}
                _ => return false,
            }
        }
    };
    let layer = name.rsplit_once('.').map_or("", |(layer, _)| layer);
    same(name) || same(layer)
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn paths_are_of_parameters_or_of_the_layer_around_them() {
        assert!(covers("h.0.fc", "h.0.fc.weight"));
        assert!(covers("h.*.fc", "h.12.fc.bias"));
        assert!(covers("h.*.fc.weight", "h.12.fc.weight"));
        assert!(covers("", "weight"));
        assert!(!covers("h.*.fc.weight", "h.12.fc.bias"));
        assert!(!covers("h", "h.0.fc.weight"));
        assert!(!covers("h.*", "h.0.fc.weight"));
        assert!(!covers("fc", "h.0.fc.weight"));
        assert!(!covers("", "fc.weight"));
    }
}
