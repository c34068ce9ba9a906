//! Devices in a grid with named axes.

use crate::cache::real_device_count;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::{PoisonError, RwLock};
use xla_core::{Device, Error, Result, Site};

/// Devices of this process, arranged in a grid whose axes have names.
///
/// Equal meshes are one value: a mesh is a reference into a table that lives as long as the process,
/// so it is `Copy`, and compared by address.
#[derive(Clone, Copy)]
pub struct Mesh(&'static Inner);

struct Inner {
    devices: &'static [usize],
    shape: &'static [usize],
    axis_names: &'static [&'static str],
    index: usize,
}

/// All meshes of the process, by their numbers. Programs make few meshes, so none is ever removed.
static MESHES: RwLock<Vec<Mesh>> = RwLock::new(Vec::new());

impl Mesh {
    /// The mesh of these devices, given by their ordinals among the process's real devices, in
    /// row-major order of `shape`; `axis_names` names the shape's axes. As `jax.sharding.Mesh` and
    /// `torch_xla.distributed.spmd.Mesh`.
    ///
    /// # Errors
    /// [`Error::Mesh`] for a device that does not exist or is named twice, a shape that does not
    /// hold as many devices, and names that are not one for each axis, empty, equal, or that have
    /// quotation marks, backslashes or control characters in them. Those of loading the
    /// plugin.
    ///
    /// ```no_run
    /// use xla_lazy::spmd::Mesh;
    /// // Two rows of two devices: the process needs four (CPU_NUM_DEVICES=4).
    /// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
    /// assert_eq!(mesh.to_string(), "4 devices: data=2, model=2");
    /// assert_eq!(mesh.coordinates(2), [1, 0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn new(devices: &[usize], shape: &[usize], axis_names: &[&str]) -> Result<Mesh> {
        let at = Location::caller();
        let present = real_device_count()?;
        Mesh::among(present, devices, shape, axis_names).map_err(|e| e.at(at))
    }

    /// The mesh of all devices of the process along one axis.
    ///
    /// # Errors
    /// As [`Mesh::new`].
    ///
    /// ```
    /// let mesh = xla_lazy::spmd::Mesh::all("data")?;
    /// assert_eq!(mesh.axis_size("data")?, mesh.len());
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn all(axis: &str) -> Result<Mesh> {
        let at = Location::caller();
        let present = real_device_count()?;
        let devices: Vec<usize> = (0..present).collect();
        Mesh::among(present, &devices, &[present], &[axis]).map_err(|e| e.at(at))
    }

    /// As [`Mesh::new`], where the process has `present` devices.
    pub(crate) fn among(
        present: usize,
        devices: &[usize],
        shape: &[usize],
        axis_names: &[&str],
    ) -> Result<Mesh> {
        check_shape(devices, shape)?;
        check_names(shape, axis_names)?;
        check_devices(present, devices)?;
        let known = MESHES.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mesh) = find(&known, devices, shape, axis_names) {
            return Ok(mesh);
        }
        drop(known);
        let mut all = MESHES.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been here in between.
        if let Some(mesh) = find(&all, devices, shape, axis_names) {
            return Ok(mesh);
        }
        let axis_names = axis_names
            .iter()
            .map(|name| &*Box::leak(Box::<str>::from(*name)))
            .collect::<Vec<&'static str>>();
        let mesh = Mesh(Box::leak(Box::new(Inner {
            devices: devices.to_vec().leak(),
            shape: shape.to_vec().leak(),
            axis_names: axis_names.leak(),
            index: all.len(),
        })));
        all.push(mesh);
        Ok(mesh)
    }

    /// The devices' ordinals, in row-major order of the shape. The place of a device in this list is
    /// its *position*.
    pub fn devices(&self) -> &'static [usize] {
        self.0.devices
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> &'static [usize] {
        self.0.shape
    }

    /// The names of the axes.
    pub fn axis_names(&self) -> &'static [&'static str] {
        self.0.axis_names
    }

    /// The length of the axis of this name.
    ///
    /// # Errors
    /// [`Error::Mesh`] when there is none.
    #[track_caller]
    pub fn axis_size(&self, name: &str) -> Result<usize> {
        let at = Site::caller();
        let found = self.axis(name).map(|axis| self.shape()[axis]);
        found.ok_or_else(|| Error::Mesh {
            op: "Mesh::axis_size",
            expected: format!("one of the axes {}", self.axis_names().join(", ")),
            got: format!("{name:?}"),
            at,
        })
    }

    /// How many devices there are.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a mesh has at least one device"
    )]
    pub fn len(&self) -> usize {
        self.devices().len()
    }

    /// Where in the grid the device at this position is. A position that there is not counts modulo
    /// [`Mesh::len`].
    pub fn coordinates(&self, position: usize) -> Vec<usize> {
        let mut rest = position;
        let mut coordinates = vec![0; self.shape().len()];
        for (coordinate, length) in coordinates.iter_mut().zip(self.shape()).rev() {
            *coordinate = rest % length;
            rest /= length;
        }
        coordinates
    }

    /// The virtual device that stands for all devices of the mesh: a tensor on it is split over them.
    pub fn device(&self) -> Device {
        Device::of_mesh(self.0.index)
    }

    /// The mesh that a virtual device stands for; `None` for a real device.
    pub fn of(device: Device) -> Option<Mesh> {
        let known = MESHES.read().unwrap_or_else(PoisonError::into_inner);
        known.get(device.mesh_index()?).copied()
    }

    /// Which axis has this name.
    pub(crate) fn axis(&self, name: &str) -> Option<usize> {
        self.axis_names().iter().position(|known| *known == name)
    }

    /// The mesh as a Shardy operation of a module: `sdy.mesh @mesh = <["data"=2, "model"=2]>`.
    ///
    /// Shardy numbers partitions as the mesh does its positions, since the program's device
    /// assignment is the mesh's devices in their order; so it is told no device ids.
    pub(crate) fn to_sdy(self) -> String {
        let axes = self.axes(|name, length| format!("\"{name}\"={length}"));
        format!("sdy.mesh @mesh = <[{axes}]>")
    }

    fn axes(&self, print: impl Fn(&str, usize) -> String) -> String {
        let axes = self.axis_names().iter().zip(self.shape());
        let axes: Vec<_> = axes.map(|(name, length)| print(name, *length)).collect();
        axes.join(", ")
    }
}

fn find(meshes: &[Mesh], devices: &[usize], shape: &[usize], names: &[&str]) -> Option<Mesh> {
    let same = |m: &&Mesh| m.devices() == devices && m.shape() == shape && m.axis_names() == names;
    meshes.iter().find(same).copied()
}

fn refused<T>(expected: impl Into<String>, got: impl Into<String>) -> Result<T> {
    Err(Error::Mesh {
        op: "Mesh::new",
        expected: expected.into(),
        got: got.into(),
        at: Site::NONE,
    })
}

fn check_shape(devices: &[usize], shape: &[usize]) -> Result<()> {
    let room = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if shape.is_empty() || devices.is_empty() || room != Some(devices.len()) {
        let room = room.map_or_else(|| "more than there can be".into(), |n| n.to_string());
        return refused(
            format!(
                "a shape with at least one axis that holds the {} devices given",
                devices.len()
            ),
            format!("shape {shape:?}, which holds {room}"),
        );
    }
    Ok(())
}

fn check_names(shape: &[usize], names: &[&str]) -> Result<()> {
    if names.len() != shape.len() {
        return refused(
            format!(
                "{} axis names, one for each axis of shape {shape:?}",
                shape.len()
            ),
            format!("{names:?}"),
        );
    }
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return refused(
                "axis names that differ",
                format!("{name:?} twice in {names:?}"),
            );
        }
        // Names are written into programs between quotation marks.
        let odd = |c: char| c == '"' || c == '\\' || c.is_control();
        if name.is_empty() || name.contains(odd) {
            return refused(
                "axis names of at least one character, without quotation marks, backslashes and \
                 control characters",
                format!("{name:?}"),
            );
        }
    }
    Ok(())
}

fn check_devices(present: usize, devices: &[usize]) -> Result<()> {
    for (i, device) in devices.iter().enumerate() {
        if *device >= present {
            return refused(
                format!(
                    "devices that exist: this process has {present}, xla:0 to xla:{}; set \
                     CPU_NUM_DEVICES before the first use for more CPU devices",
                    present.saturating_sub(1)
                ),
                format!("{} devices with xla:{device} among them", devices.len()),
            );
        }
        if devices[..i].contains(device) {
            return refused(
                "each device once",
                format!("xla:{device} twice in {devices:?}"),
            );
        }
    }
    Ok(())
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Mesh {}

impl Hash for Mesh {
    /// By content, never by number or address: part of a program's key, which is the same in every
    /// run.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.devices().hash(state);
        self.shape().hash(state);
        self.axis_names().hash(state);
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.len() == 1 { "" } else { "s" };
        let axes = self.axes(|name, length| format!("{name}={length}"));
        write!(f, "{} device{plural}: {axes}", self.len())
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.axes(|name, length| format!("{name}={length}"));
        write!(f, "Mesh({axes}; devices {:?})", self.devices())
    }
}
