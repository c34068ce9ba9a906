//! What the fields of a derived module may be.

use super::{Module, Training, Visitor};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use xla_core::{DType, Device, Shape, bf16, f16};
use xla_lazy::Tensor;

/// A field of a module, which says itself what it is: a module, a parameter (`Tensor`), a collection
/// of such, or plain data that the module does not list.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a module nor plain data",
    label = "cannot be a field of a module",
    note = "derive Module for it, or mark the field #[module(skip)]"
)]
pub trait Member: Send + Sync {
    /// Shows the visitor what the field holds, under this name.
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>);
}

impl<M: Module> Member for M {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        visitor.module(name, self);
    }
}

impl Member for Tensor {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        visitor.parameter(name, self);
    }
}

impl Member for Training {
    fn show<'a>(&'a self, _: &str, visitor: &mut Visitor<'_, 'a>) {
        visitor.training(self);
    }
}

/// A module in a box is the module itself.
impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        (**self).visit(visitor);
    }
}

/// A module that several others share. It is listed in each of them, its parameters once.
impl<M: Module + ?Sized> Module for Arc<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        (**self).visit(visitor);
    }
}

macro_rules! forward_to_inner {
    ($($pointer:ident)*) => {$(
        impl<M: super::Forward + ?Sized> super::Forward for $pointer<M> {
            #[track_caller]
            fn forward(&self, input: &Tensor) -> xla_core::Result<Tensor> {
                (**self).forward(input)
            }
        }
    )*};
}

forward_to_inner! { Box Arc }

impl<T: Member> Member for Option<T> {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        if let Some(inner) = self {
            inner.show(name, visitor);
        }
    }
}

fn show_all<'a, T: Member + 'a>(
    items: impl IntoIterator<Item = (impl AsRef<str>, &'a T)>,
    name: &str,
    visitor: &mut Visitor<'_, 'a>,
) {
    visitor.within(name, |visitor| {
        for (key, item) in items {
            item.show(key.as_ref(), visitor);
        }
    });
}

fn counted<T>(items: &[T]) -> impl Iterator<Item = (String, &T)> {
    items
        .iter()
        .enumerate()
        .map(|(i, item)| (i.to_string(), item))
}

/// The elements are called `name.0`, `name.1`, ….
impl<T: Member> Member for Vec<T> {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        show_all(counted(self), name, visitor);
    }
}

/// As for a vector.
impl<T: Member, const N: usize> Member for [T; N] {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        show_all(counted(self), name, visitor);
    }
}

/// The values are called `name.key`.
impl<T: Member> Member for IndexMap<String, T> {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        show_all(self, name, visitor);
    }
}

/// The values are called `name.key`.
impl<T: Member> Member for BTreeMap<String, T> {
    fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
        show_all(self, name, visitor);
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt)+))*) => {$(
        /// The elements are called `name.0`, `name.1`, ….
        impl<$($t: Member),+> Member for ($($t,)+) {
            fn show<'a>(&'a self, name: &str, visitor: &mut Visitor<'_, 'a>) {
                visitor.within(name, |visitor| {
                    $(self.$i.show(stringify!($i), visitor);)+
                });
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0 B 1)
    (A 0 B 1 C 2)
    (A 0 B 1 C 2 D 3)
    (A 0 B 1 C 2 D 3 E 4)
    (A 0 B 1 C 2 D 3 E 4 F 5)
}

macro_rules! data {
    ($($t:ty),* $(,)?) => {$(
        impl Member for $t {
            fn show<'a>(&'a self, _: &str, _: &mut Visitor<'_, 'a>) {}
        }
    )*};
}

data! {
    (), bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, f16,
    bf16, String, &'static str, PathBuf, Duration, DType, Device, Shape,
}

impl<T: ?Sized + Send + Sync> Member for PhantomData<T> {
    fn show<'a>(&'a self, _: &str, _: &mut Visitor<'_, 'a>) {}
}

/// A field of a module that holds buffers: a `Tensor`, an `Option` or a `Vec` of such.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a buffer",
    label = "not a tensor",
    note = "#[module(buffer)] is for tensors: Tensor, Option<Tensor>, Vec<Tensor>"
)]
pub trait Buffer: Send + Sync {
    /// Shows the visitor the buffers under this name.
    fn show<'a>(&'a self, name: &str, persistent: bool, visitor: &mut Visitor<'_, 'a>);
}

impl Buffer for Tensor {
    fn show<'a>(&'a self, name: &str, persistent: bool, visitor: &mut Visitor<'_, 'a>) {
        visitor.buffer(name, self, persistent);
    }
}

impl<T: Buffer> Buffer for Option<T> {
    fn show<'a>(&'a self, name: &str, persistent: bool, visitor: &mut Visitor<'_, 'a>) {
        if let Some(inner) = self {
            inner.show(name, persistent, visitor);
        }
    }
}

impl<T: Buffer> Buffer for Vec<T> {
    fn show<'a>(&'a self, name: &str, persistent: bool, visitor: &mut Visitor<'_, 'a>) {
        visitor.within(name, |visitor| {
            for (i, item) in self.iter().enumerate() {
                item.show(&i.to_string(), persistent, visitor);
            }
        });
    }
}
