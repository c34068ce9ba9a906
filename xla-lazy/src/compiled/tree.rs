//! What a compiled function takes and returns: tensors, in tuples, vectors and options.

use crate::Tensor;
use crate::op::Number;
use std::vec::IntoIter;
use xla_core::{DType, Error, Result};

/// A structure of tensors and numbers: what [`Compiled::call`](super::Compiled::call) takes, and
/// what the function returns. JAX calls it a pytree.
///
/// Tensors, numbers, flags, and tuples, arrays, vectors and options of such. Inside the function a
/// number is a scalar tensor (`f64`, `f32` or `i64`, as the number is): it is data, another value
/// never records again. A `bool` stays one, and each of its values is a graph of its own; so is each
/// length of a vector, and whether an option is `None`.
///
/// A type of one's own says how it is taken apart and put together:
///
/// ```
/// use xla_core::Result;
/// use xla_lazy::{Flat, Parts, Tensor, Tree};
///
/// struct Batch {
///     images: Tensor,
///     labels: Tensor,
/// }
///
/// impl Tree for Batch {
///     type Inside = Batch;
///
///     fn flatten(self, flat: &mut Flat) {
///         (self.images, self.labels).flatten(flat);
///     }
///
///     fn inside(parts: &mut Parts) -> Result<Batch> {
///         let (images, labels) = <(Tensor, Tensor)>::inside(parts)?;
///         Ok(Batch { images, labels })
///     }
/// }
/// ```
pub trait Tree {
    /// What the function is given for it.
    type Inside;

    /// Takes the structure apart: its tensors and numbers, and what else [`Tree::inside`] needs to
    /// know.
    fn flatten(self, flat: &mut Flat);

    /// The structure put together again, from the same parts in the same order.
    ///
    /// # Errors
    /// [`Error::Internal`] when there are other parts than those that [`Tree::flatten`] gives.
    fn inside(parts: &mut Parts) -> Result<Self::Inside>;
}

/// A [`Tree`] taken apart.
#[derive(Default)]
pub struct Flat {
    pub(super) leaves: Vec<Leaf>,
    pub(super) words: Vec<usize>,
}

pub(super) enum Leaf {
    Tensor(Tensor),
    Number(Number, DType),
}

impl Flat {
    /// A tensor.
    pub fn tensor(&mut self, tensor: Tensor) {
        self.leaves.push(Leaf::Tensor(tensor));
    }

    /// A number, which becomes a scalar tensor of this dtype.
    pub fn number(&mut self, number: impl Into<Number>, dtype: DType) {
        self.leaves.push(Leaf::Number(number.into(), dtype));
    }

    /// Something that distinguishes one structure from another: each value is a graph of its own.
    pub fn word(&mut self, word: usize) {
        self.words.push(word);
    }
}

/// The parts of a [`Tree`], to be put together.
pub struct Parts {
    tensors: IntoIter<Tensor>,
    words: IntoIter<usize>,
}

impl Parts {
    pub(super) fn new(tensors: Vec<Tensor>, words: Vec<usize>) -> Self {
        Parts {
            tensors: tensors.into_iter(),
            words: words.into_iter(),
        }
    }

    /// The next tensor, or the next number as one.
    ///
    /// # Errors
    /// [`Error::Internal`] when there is none.
    pub fn tensor(&mut self) -> Result<Tensor> {
        self.tensors.next().ok_or_else(missing)
    }

    /// The next word.
    ///
    /// # Errors
    /// [`Error::Internal`] when there is none.
    pub fn word(&mut self) -> Result<usize> {
        self.words.next().ok_or_else(missing)
    }
}

fn missing() -> Error {
    Error::Internal {
        what: "Tree::inside",
        expected: "the parts that Tree::flatten gave".into(),
    }
}

impl Tree for Tensor {
    type Inside = Tensor;

    fn flatten(self, flat: &mut Flat) {
        flat.tensor(self);
    }

    fn inside(parts: &mut Parts) -> Result<Tensor> {
        parts.tensor()
    }
}

impl Tree for &Tensor {
    type Inside = Tensor;

    fn flatten(self, flat: &mut Flat) {
        flat.tensor(self.clone());
    }

    fn inside(parts: &mut Parts) -> Result<Tensor> {
        parts.tensor()
    }
}

impl Tree for bool {
    type Inside = bool;

    fn flatten(self, flat: &mut Flat) {
        flat.word(self.into());
    }

    fn inside(parts: &mut Parts) -> Result<bool> {
        Ok(parts.word()? != 0)
    }
}

macro_rules! numbers {
    ($($t:ty => $dtype:ident),*) => {$(
        impl Tree for $t {
            type Inside = Tensor;

            fn flatten(self, flat: &mut Flat) {
                flat.number(self, DType::$dtype);
            }

            fn inside(parts: &mut Parts) -> Result<Tensor> {
                parts.tensor()
            }
        }
    )*};
}

numbers!(f64 => F64, f32 => F32, i64 => I64, i32 => I64, i16 => I64, i8 => I64, u32 => I64, u16 => I64, u8 => I64);

impl<A: Tree> Tree for Vec<A> {
    type Inside = Vec<A::Inside>;

    fn flatten(self, flat: &mut Flat) {
        flat.word(self.len());
        self.into_iter().for_each(|item| item.flatten(flat));
    }

    fn inside(parts: &mut Parts) -> Result<Vec<A::Inside>> {
        (0..parts.word()?).map(|_| A::inside(parts)).collect()
    }
}

impl<A: Tree, const N: usize> Tree for [A; N] {
    type Inside = [A::Inside; N];

    fn flatten(self, flat: &mut Flat) {
        self.into_iter().for_each(|item| item.flatten(flat));
    }

    fn inside(parts: &mut Parts) -> Result<[A::Inside; N]> {
        let items: Vec<_> = (0..N).map(|_| A::inside(parts)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| missing())
    }
}

impl<A: Tree> Tree for Option<A> {
    type Inside = Option<A::Inside>;

    fn flatten(self, flat: &mut Flat) {
        flat.word(self.is_some().into());
        if let Some(item) = self {
            item.flatten(flat);
        }
    }

    fn inside(parts: &mut Parts) -> Result<Option<A::Inside>> {
        match parts.word()? {
            0 => Ok(None),
            _ => A::inside(parts).map(Some),
        }
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt)*))*) => {$(
        impl<$($t: Tree),*> Tree for ($($t,)*) {
            type Inside = ($($t::Inside,)*);

            #[allow(unused_variables)] // of the empty tuple
            fn flatten(self, flat: &mut Flat) {
                $(self.$i.flatten(flat);)*
            }

            #[allow(unused_variables, clippy::unused_unit)]
            fn inside(parts: &mut Parts) -> Result<Self::Inside> {
                Ok(($($t::inside(parts)?,)*))
            }
        }
    )*};
}

tuples! {
    ()
    (A 0)
    (A 0 B 1)
    (A 0 B 1 C 2)
    (A 0 B 1 C 2 D 3)
    (A 0 B 1 C 2 D 3 E 4)
    (A 0 B 1 C 2 D 3 E 4 F 5)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6)
    (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7)
}
