//! What a program is told of how its values are spread.

use super::{Mesh, NamedSharding, mesh_of};
use crate::lower::Extent;
use crate::sync::Spread;
use crate::trace::Recording;
use crate::ty::Ty;
use xla_core::{Config, Device, Result, Tiling};

/// How a program is spread over the devices of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Partitioned {
    pub(crate) mesh: Mesh,
    /// Whether it is annotated for Shardy rather than for GSPMD.
    pub(crate) shardy: bool,
    /// Of all parameters of the recording.
    parameters: Vec<NamedSharding>,
    /// Of the extent's live nodes; `None` where the compiler chooses.
    pub(crate) results: Vec<Option<NamedSharding>>,
}

impl Partitioned {
    /// That of a recording on a virtual device. A result is spread as its tensor is marked or, if it
    /// takes the place of a parameter, as that: state keeps its sharding, and so its program.
    ///
    /// # Errors
    /// [`xla_core::Error::Internal`] for a device that stands for no mesh.
    pub(crate) fn of(device: Device, recording: &Recording, extent: &Extent) -> Result<Self> {
        let mesh = mesh_of(device)?;
        let replicated = NamedSharding::replicated(&mesh);
        let params = recording.params.iter();
        let parameters: Vec<NamedSharding> = params
            .map(|param| match param.value.spread() {
                Some(spread) => spread.sharding.clone(),
                None => replicated.clone(),
            })
            .collect();
        let marked = |&node: &u32| {
            let storage = recording.storages.get(node as usize)?.as_ref()?;
            storage.mark()
        };
        let mut results: Vec<Option<NamedSharding>> = extent.live.iter().map(marked).collect();
        for (param, sharding) in recording.params.iter().zip(&parameters) {
            let taken_over = param
                .rebound
                .and_then(|n| extent.live.binary_search(&n).ok());
            if let Some(at) = taken_over {
                results[at].get_or_insert_with(|| sharding.clone());
            }
        }
        Ok(Partitioned {
            mesh,
            shardy: Config::global().map_or(true, |config| config.use_shardy),
            parameters,
            results,
        })
    }

    pub(crate) fn replicated(&self) -> NamedSharding {
        NamedSharding::replicated(&self.mesh)
    }

    /// For which of so many results the compiler chooses.
    pub(crate) fn chosen(&self, results: usize) -> Vec<bool> {
        let asked = |at| self.results.get(at).is_some_and(Option::is_some);
        (0..results).map(|at| !asked(at)).collect()
    }

    /// How a parameter of the recording is spread.
    pub(crate) fn parameter(&self, position: u32) -> &NamedSharding {
        &self.parameters[position as usize]
    }

    /// How the results of the compiled program are spread, of these types as a whole, by what the
    /// compiler has chosen; on a mesh of one device it has nothing to choose.
    ///
    /// # Errors
    /// Where no axes of the mesh say what was chosen, the same with such results replicated, to be
    /// compiled instead.
    pub(crate) fn spreads(
        &self,
        chosen: &[Tiling],
        types: &[Ty],
    ) -> std::result::Result<Vec<Spread>, Self> {
        let alone = self.mesh.len() == 1;
        let mut other = self.results.clone();
        other.resize(types.len(), None);
        let mut spreads = Vec::with_capacity(types.len());
        for (at, &ty) in types.iter().enumerate() {
            let asked = other[at].clone();
            let tiling = || match alone {
                true => Some(self.replicated()),
                false => NamedSharding::from_tiles(&self.mesh, chosen.get(at)?),
            };
            match asked.or_else(tiling) {
                Some(sharding) => spreads.push(Spread { sharding, ty }),
                None => other[at] = Some(self.replicated()),
            }
        }
        match spreads.len() == types.len() {
            true => Ok(spreads),
            false => Err(Partitioned {
                results: other,
                ..self.clone()
            }),
        }
    }

    /// Whether the result at a position among the live nodes can take over a parameter's memory.
    pub(crate) fn keeps(&self, parameter: u32, result: usize) -> bool {
        self.results.get(result).and_then(Option::as_ref) == self.parameters.get(parameter as usize)
    }
}
