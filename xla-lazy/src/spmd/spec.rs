//! Over which axes of a mesh the axes of a tensor are split.

use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// For each axis of a tensor, the axes of a mesh that it is split over: none, one, or several, of
/// which the first is the outermost. Axes that it does not name, at the end, are not split. As
/// `jax.sharding.PartitionSpec`.
///
/// Functions that take one take what becomes one:
///
/// | written | first axis | second axis |
/// | --- | --- | --- |
/// | `()` | whole | whole |
/// | `"data"` | over `data` | whole |
/// | `((), "model")` | whole | over `model` |
/// | `("data", "model")` | over `data` | over `model` |
/// | `(("data", "model"), ())` | over `data` and `model` | whole |
/// | `[Some("data"), None]` | over `data` | whole |
///
/// ```
/// use xla_lazy::spmd::PartitionSpec;
/// let spec = PartitionSpec::from(("data", (), ("x", "y")));
/// assert_eq!(spec.to_string(), r#"("data", None, ("x", "y"))"#);
/// assert_eq!(PartitionSpec::from(("data", ())), PartitionSpec::from("data"));
/// ```
#[derive(Clone, Default)]
pub struct PartitionSpec(Arc<[SpecAxes]>);

/// The axes of a mesh that one axis of a tensor is split over, outermost first.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct SpecAxes(SmallVec<[AxisPart; 1]>);

/// An axis of a mesh, or a part of one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct AxisPart {
    pub(crate) name: Arc<str>,
    /// `None` is the whole axis.
    pub(crate) part: Option<Part>,
}

/// Part of an axis of length `before * size * after`: the axis split into that grid, and of it the
/// middle. Shardy writes `"x":(before)size`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) before: usize,
    pub(crate) size: usize,
}

impl PartitionSpec {
    /// The specification with these mesh axes for the tensor's axes.
    pub fn new(axes: impl IntoIterator<Item = impl Into<SpecAxes>>) -> Self {
        PartitionSpec(axes.into_iter().map(Into::into).collect())
    }

    /// No axis is split: every device has the whole tensor.
    pub fn replicated() -> Self {
        Self::default()
    }

    /// How many of the tensor's axes it speaks of.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it speaks of none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What each of the tensor's axes is split over.
    pub fn axes(&self) -> &[SpecAxes] {
        &self.0
    }

    /// Without the axes at its end that are not split, which mean nothing.
    fn significant(&self) -> &[SpecAxes] {
        let last = self.0.iter().rposition(|axes| !axes.is_empty());
        &self.0[..last.map_or(0, |last| last + 1)]
    }
}

/// Specifications that mean the same are equal, however many axes they speak of.
impl PartialEq for PartitionSpec {
    fn eq(&self, other: &Self) -> bool {
        self.significant() == other.significant()
    }
}

impl Eq for PartitionSpec {}

impl Hash for PartitionSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

impl SpecAxes {
    /// The names of the mesh axes, outermost first; that of an axis only part of which is used as
    /// well.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|axis| &*axis.name)
    }

    /// Whether the tensor's axis is not split.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn parts(&self) -> &[AxisPart] {
        &self.0
    }
}

impl FromIterator<AxisPart> for SpecAxes {
    fn from_iter<I: IntoIterator<Item = AxisPart>>(parts: I) -> Self {
        SpecAxes(parts.into_iter().collect())
    }
}

impl<'a> FromIterator<&'a str> for SpecAxes {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let whole = |name: &str| AxisPart {
            name: name.into(),
            part: None,
        };
        names.into_iter().map(whole).collect()
    }
}

impl From<()> for SpecAxes {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<&str> for SpecAxes {
    fn from(name: &str) -> Self {
        [name].into_iter().collect()
    }
}

impl From<&String> for SpecAxes {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

impl From<Option<&str>> for SpecAxes {
    fn from(name: Option<&str>) -> Self {
        name.into_iter().collect()
    }
}

impl From<&[&str]> for SpecAxes {
    fn from(names: &[&str]) -> Self {
        names.iter().copied().collect()
    }
}

impl<const N: usize> From<[&str; N]> for SpecAxes {
    fn from(names: [&str; N]) -> Self {
        names.into_iter().collect()
    }
}

impl From<(&str, &str)> for SpecAxes {
    fn from((outer, inner): (&str, &str)) -> Self {
        [outer, inner].into()
    }
}

impl From<(&str, &str, &str)> for SpecAxes {
    fn from((outer, middle, inner): (&str, &str, &str)) -> Self {
        [outer, middle, inner].into()
    }
}

impl From<()> for PartitionSpec {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl From<&str> for PartitionSpec {
    fn from(name: &str) -> Self {
        Self::new([name])
    }
}

impl From<&PartitionSpec> for PartitionSpec {
    fn from(spec: &PartitionSpec) -> Self {
        spec.clone()
    }
}

impl<T: Into<SpecAxes>> From<Vec<T>> for PartitionSpec {
    fn from(axes: Vec<T>) -> Self {
        Self::new(axes)
    }
}

impl<T: Into<SpecAxes> + Clone> From<&[T]> for PartitionSpec {
    fn from(axes: &[T]) -> Self {
        Self::new(axes.iter().cloned())
    }
}

impl<T: Into<SpecAxes>, const N: usize> From<[T; N]> for PartitionSpec {
    fn from(axes: [T; N]) -> Self {
        Self::new(axes)
    }
}

macro_rules! from_tuple {
    ($($T:ident)+) => {
        impl<$($T: Into<SpecAxes>),+> From<($($T,)+)> for PartitionSpec {
            fn from(axes: ($($T,)+)) -> Self {
                #[expect(non_snake_case, reason = "named as their types")]
                let ($($T,)+) = axes;
                PartitionSpec(Arc::new([$($T.into()),+]))
            }
        }
    };
}

from_tuple!(A);
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);
from_tuple!(A B C D E);
from_tuple!(A B C D E F);

impl fmt::Display for AxisPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.name)?;
        match self.part {
            Some(Part { before, size }) => write!(f, ":({before}){size}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SpecAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            [] => f.write_str("None"),
            [one] => one.fmt(f),
            several => tuple(f, several),
        }
    }
}

/// In Python's way, for which JAX's users have an eye.
impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        tuple(f, &self.0)
    }
}

fn tuple(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    f.write_str("(")?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    f.write_str(if items.len() == 1 { ",)" } else { ")" })
}

impl fmt::Debug for SpecAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionSpec{self}")
    }
}
