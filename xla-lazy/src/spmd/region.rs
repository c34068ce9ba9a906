//! The mesh whose devices run what is being recorded by themselves.

use super::mode::inside;
use super::{Mesh, SpecAxes};
use std::cell::Cell;
use std::panic::Location;
use xla_core::{Error, Result};

thread_local! {
    static REGION: Cell<Option<Mesh>> = const { Cell::new(None) };
}

/// The mesh of the [`shard_map`](super::shard_map) whose body the calling thread is recording, if it
/// is.
pub fn manual_mesh() -> Option<Mesh> {
    REGION.get()
}

/// The same, for what is called in a body only.
///
/// # Errors
/// [`Error::Argument`] outside of one.
pub(crate) fn region_mesh(op: &'static str) -> Result<Mesh> {
    manual_mesh().ok_or_else(|| {
        let expected = "a call in the body of a shard_map";
        Error::argument(op, "axes", expected, "one outside of it")
    })
}

/// Calls `f`, which records the body of a `shard_map` over this mesh.
pub(crate) fn recording<T>(mesh: &Mesh, f: impl FnOnce() -> T) -> T {
    struct Leave(Option<Mesh>);
    impl Drop for Leave {
        fn drop(&mut self) {
            REGION.set(self.0);
        }
    }
    let _leave = Leave(REGION.replace(Some(*mesh)));
    inside(mesh, f)
}

impl Mesh {
    /// The devices in groups within which they differ along these axes only, as positions in the mesh.
    /// Members are in the order of their places along the axes, of which the first counts most.
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that the mesh does not have, and for one named twice.
    ///
    /// ```no_run
    /// use xla_lazy::spmd::Mesh;
    /// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["x", "y"])?;
    /// assert_eq!(mesh.groups("x")?, [[0, 2], [1, 3]]);
    /// assert_eq!(mesh.groups(("y", "x"))?, [[0, 2, 1, 3]]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn groups(&self, axes: impl Into<SpecAxes>) -> Result<Vec<Vec<usize>>> {
        let at = Location::caller();
        let axes = self.places("Mesh::groups", &axes.into());
        let axes = axes.map_err(|e| e.at(at))?;
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut known: Vec<Vec<usize>> = Vec::new();
        let mut order: Vec<usize> = (0..self.len()).collect();
        let place = |position: usize| -> Vec<usize> {
            let coordinates = self.coordinates(position);
            axes.iter().map(|&axis| coordinates[axis]).collect()
        };
        order.sort_by_key(|&position| place(position));
        for position in order {
            let mut others = self.coordinates(position);
            for &axis in &axes {
                others[axis] = 0;
            }
            match known.iter().position(|other| *other == others) {
                Some(group) => groups[group].push(position),
                None => {
                    known.push(others);
                    groups.push(vec![position]);
                }
            }
        }
        Ok(groups)
    }

    /// Which axes these are.
    pub(crate) fn places(&self, op: &'static str, axes: &SpecAxes) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        for name in axes.names() {
            let bad = |expected: String| Err(Error::argument(op, "axes", expected, axes));
            match self.axis(name) {
                None => return bad(format!("axes of the mesh of {self}")),
                Some(axis) if places.contains(&axis) => return bad("each axis once".into()),
                Some(axis) => places.push(axis),
            }
        }
        Ok(places)
    }
}
