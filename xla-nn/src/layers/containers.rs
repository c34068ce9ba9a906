//! Modules in lists and maps: for models that call them one by one.

use crate::module::as_state;
use crate::{Forward, Member, Module, Visitor};
use indexmap::IndexMap;
use std::ops::{Deref, DerefMut};

/// Modules in a list, called `0`, `1`, …. It is a vector in all other respects.
///
/// A field of type `Vec<M>` does as well; this is a module itself, and without a type of its own
/// holds different modules (`Box<dyn Forward>`).
///
/// ```no_run
/// use xla_nn::{Linear, Module, ModuleList};
/// let layers: ModuleList<Linear> =
///     (0..3).map(|_| Linear::new(8, 8, ())).collect::<xla_core::Result<_>>()?;
/// assert_eq!(layers.named_parameters()[2].0, "1.weight");
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ModuleList<M = Box<dyn Forward>>(Vec<M>);

impl<M: Member> Module for ModuleList<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        for (i, module) in self.0.iter().enumerate() {
            module.show(&i.to_string(), visitor);
        }
    }
}

as_state!([M: Member] ModuleList<M>, [M: Member] ModuleDict<M>);

impl<M> ModuleList<M> {
    /// No module yet.
    pub fn new() -> Self {
        ModuleList(Vec::new())
    }
}

impl<M> Default for ModuleList<M> {
    fn default() -> Self {
        ModuleList::new()
    }
}

impl<M> From<Vec<M>> for ModuleList<M> {
    fn from(modules: Vec<M>) -> Self {
        ModuleList(modules)
    }
}

impl<M> FromIterator<M> for ModuleList<M> {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> Self {
        ModuleList(modules.into_iter().collect())
    }
}

impl<'a, M> IntoIterator for &'a ModuleList<M> {
    type Item = &'a M;
    type IntoIter = std::slice::Iter<'a, M>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<M> Deref for ModuleList<M> {
    type Target = Vec<M>;

    fn deref(&self) -> &Vec<M> {
        &self.0
    }
}

impl<M> DerefMut for ModuleList<M> {
    fn deref_mut(&mut self) -> &mut Vec<M> {
        &mut self.0
    }
}

/// Modules by name, in the order in which they were added. It is an [`IndexMap`] in all other
/// respects.
///
/// ```no_run
/// use xla_nn::{Linear, Module, ModuleDict};
/// let mut heads = ModuleDict::new();
/// heads.insert("class".to_owned(), Linear::new(8, 10, ())?);
/// assert_eq!(heads.named_parameters()[0].0, "class.weight");
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ModuleDict<M = Box<dyn Forward>>(IndexMap<String, M>);

impl<M: Member> Module for ModuleDict<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        for (name, module) in &self.0 {
            module.show(name, visitor);
        }
    }
}

impl<M> ModuleDict<M> {
    /// No module yet.
    pub fn new() -> Self {
        ModuleDict(IndexMap::new())
    }
}

impl<M> Default for ModuleDict<M> {
    fn default() -> Self {
        ModuleDict::new()
    }
}

impl<N: Into<String>, M> FromIterator<(N, M)> for ModuleDict<M> {
    fn from_iter<I: IntoIterator<Item = (N, M)>>(modules: I) -> Self {
        ModuleDict(modules.into_iter().map(|(n, m)| (n.into(), m)).collect())
    }
}

impl<M> Deref for ModuleDict<M> {
    type Target = IndexMap<String, M>;

    fn deref(&self) -> &IndexMap<String, M> {
        &self.0
    }
}

impl<M> DerefMut for ModuleDict<M> {
    fn deref_mut(&mut self) -> &mut IndexMap<String, M> {
        &mut self.0
    }
}
