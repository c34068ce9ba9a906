//! The walk over a module's tree.

use super::{Module, Training};
use xla_lazy::Tensor;

/// What [`Module::visit`] shows a module's belongings to.
pub struct Visitor<'v, 'a> {
    path: &'v mut String,
    sink: &'v mut dyn FnMut(&str, Item<'a>),
}

/// Something a module owns.
#[derive(Clone, Copy)]
pub(crate) enum Item<'a> {
    Parameter(&'a Tensor),
    Buffer {
        tensor: &'a Tensor,
        persistent: bool,
    },
    Module(&'a dyn Module),
    Training(&'a Training),
}

impl<'v, 'a> Visitor<'v, 'a> {
    pub(super) fn new(path: &'v mut String, sink: &'v mut dyn FnMut(&str, Item<'a>)) -> Self {
        Visitor { path, sink }
    }

    /// A parameter under this name.
    pub fn parameter(&mut self, name: &str, tensor: &'a Tensor) {
        self.show(name, Item::Parameter(tensor));
    }

    /// A buffer under this name, which is saved with the module if it is `persistent`.
    pub fn buffer(&mut self, name: &str, tensor: &'a Tensor, persistent: bool) {
        self.show(name, Item::Buffer { tensor, persistent });
    }

    /// A module under this name, with everything in it.
    pub fn module(&mut self, name: &str, module: &'a dyn Module) {
        self.show(name, Item::Module(module));
    }

    /// The flag that says whether the module is being trained.
    pub fn training(&mut self, flag: &'a Training) {
        (self.sink)(self.path, Item::Training(flag));
    }

    /// What `visit` shows, with `name.` before its names.
    pub fn within(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let parent = self.path.len();
        if parent > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        visit(self);
        self.path.truncate(parent);
    }

    fn show(&mut self, name: &str, item: Item<'a>) {
        self.within(name, |visitor| (visitor.sink)(visitor.path, item));
    }
}

/// Shows `sink` everything in the tree with its path: of each module first its own tensors and its
/// flag, then the modules in it.
pub(crate) fn walk<'a, M: Module + ?Sized>(module: &'a M, sink: &mut dyn FnMut(&str, Item<'a>)) {
    // Paths of modules that are still to be walked, the next one last.
    let mut waiting: Vec<(String, &'a dyn Module)> = Vec::new();
    own(String::new(), &mut waiting, sink, |visitor| {
        module.visit(visitor)
    });
    while let Some((path, module)) = waiting.pop() {
        sink(&path, Item::Module(module));
        own(path, &mut waiting, sink, |visitor| module.visit(visitor));
    }
}

fn own<'a>(
    mut path: String,
    waiting: &mut Vec<(String, &'a dyn Module)>,
    sink: &mut dyn FnMut(&str, Item<'a>),
    visit: impl FnOnce(&mut Visitor<'_, 'a>),
) {
    let first = waiting.len();
    visit(&mut Visitor::new(&mut path, &mut |path, item| match item {
        Item::Module(module) => waiting.push((path.to_owned(), module)),
        own => sink(path, own),
    }));
    waiting[first..].reverse();
}
