//! Host arrays: dtype, shape and bytes, from and to slices, vectors and `ndarray` arrays.

mod cast;
mod memory;

use crate::{DType, Element, Error, IntoShape, Result, Shape, Site, with_element};
use memory::{Elements, Memory, Owned};
use ndarray::{ArrayD, ArrayView, Dimension, IxDyn};
use rayon::prelude::*;
use std::fmt;
use std::sync::Arc;

/// Below this many elements a conversion runs on the calling thread.
const PARALLEL: usize = 1 << 16;

/// An immutable host array in row-major order.
///
/// Clones share the memory, and nothing can change it, so a device may read it without a copy.
///
/// ```
/// use xla_core::Literal;
/// let literal = Literal::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// assert_eq!(literal.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert!(Literal::from_slice(&[1i64, 2], [3]).is_err());
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Literal {
    dtype: DType,
    shape: Shape,
    memory: Arc<dyn Memory>,
}

impl Literal {
    /// Takes a vector without a copy.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shape does not hold as many elements.
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl IntoShape) -> Result<Self> {
        let shape = checked(shape, data.len())?;
        Ok(Literal {
            dtype: T::DTYPE,
            shape,
            memory: Arc::new(Elements(data)),
        })
    }

    /// Copies a slice into aligned memory.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shape does not hold as many elements.
    pub fn from_slice<T: Element>(data: &[T], shape: impl IntoShape) -> Result<Self> {
        let shape = checked(shape, data.len())?;
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let memory = memory::aligned(bytes.len(), |out| out.copy_from_slice(bytes));
        Ok(Literal {
            dtype: T::DTYPE,
            shape,
            memory,
        })
    }

    /// A single number.
    pub fn scalar<T: Element>(value: T) -> Self {
        let memory = memory::aligned(T::DTYPE.size(), |out| {
            out.copy_from_slice(bytemuck::bytes_of(&value))
        });
        Literal {
            dtype: T::DTYPE,
            shape: Shape::scalar(),
            memory,
        }
    }

    /// Aligned memory of this dtype and shape, filled by `fill`, which is handed zeros.
    ///
    /// This is how a device's result reaches the host in one copy.
    ///
    /// # Errors
    /// What `fill` returns, or [`Error::Argument`] when `fill` left a byte that is no `bool`.
    pub fn from_fill(
        dtype: DType,
        shape: &Shape,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let len = shape.numel().saturating_mul(dtype.size());
        let mut outcome = Ok(());
        let memory = memory::aligned(len, |out| outcome = fill(out));
        outcome?;
        if dtype == DType::Bool && memory.bytes().iter().any(|b| *b > 1) {
            return Err(Error::argument(
                "Literal::from_fill",
                "bytes",
                "0 or 1 for bool",
                "other",
            ));
        }
        Ok(Literal {
            dtype,
            shape: shape.clone(),
            memory,
        })
    }

    /// The memory of an owner, without a copy: a mapped file's, or a device's that the host can read.
    ///
    /// The owner lives as long as the literal and its clones. It always returns the same bytes;
    /// nothing here is unsound if it does not, but the literal's values are then not fixed either.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the bytes are not as many as dtype and shape ask for;
    /// [`Error::Argument`] when they are not aligned to the dtype, or one is no `bool`.
    ///
    /// ```
    /// use xla_core::{DType, Literal};
    /// let bytes: &'static [u8] = &[1, 2, 3];
    /// let literal = Literal::from_owner(DType::U8, [3], bytes)?;
    /// assert_eq!(literal.as_slice::<u8>()?.as_ptr(), bytes.as_ptr());
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    pub fn from_owner<O>(dtype: DType, shape: impl IntoShape, owner: O) -> Result<Self>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        const OP: &str = "Literal::from_owner";
        let shape = shape.into_shape(OP)?;
        let bytes = owner.as_ref();
        let expected = shape.numel().saturating_mul(dtype.size());
        if bytes.len() != expected {
            let got = format_args!("{} bytes", bytes.len());
            return Err(Error::shape(
                OP,
                format!("{expected} bytes for {shape}"),
                got,
            ));
        }
        if !bytes.as_ptr().addr().is_multiple_of(dtype.size()) {
            let expected = format!("an address that is a multiple of {}", dtype.size());
            return Err(Error::argument(OP, "owner", expected, "another"));
        }
        if dtype == DType::Bool && bytes.iter().any(|b| *b > 1) {
            return Err(Error::argument(
                OP,
                "owner",
                "0 or 1 for bool",
                "other bytes",
            ));
        }
        Ok(Literal {
            dtype,
            shape,
            memory: Arc::new(Owned(owner)),
        })
    }

    /// Copies an `ndarray` array or view of any layout; a standard-layout owned array is taken
    /// without a copy by [`Literal::from_array`].
    pub fn from_view<T: Element, D: Dimension>(view: ArrayView<'_, T, D>) -> Self {
        let shape = Shape::new(view.shape());
        let memory: Arc<dyn Memory> = match view.as_slice() {
            Some(slice) => {
                let bytes: &[u8] = bytemuck::cast_slice(slice);
                memory::aligned(bytes.len(), |out| out.copy_from_slice(bytes))
            }
            None => Arc::new(Elements(view.iter().copied().collect::<Vec<T>>())),
        };
        Literal {
            dtype: T::DTYPE,
            shape,
            memory,
        }
    }

    /// Takes an `ndarray` array, without a copy when it is in standard layout.
    pub fn from_array<T: Element, D: Dimension>(array: ndarray::Array<T, D>) -> Self {
        if !array.is_standard_layout() {
            return Self::from_view(array.view());
        }
        let shape = Shape::new(array.shape());
        let (data, offset) = array.into_raw_vec_and_offset();
        let from = offset.unwrap_or(0);
        let whole = from == 0 && data.len() == shape.numel();
        let data = if whole {
            data
        } else {
            data[from..from + shape.numel()].to_vec()
        };
        Literal {
            dtype: T::DTYPE,
            shape,
            memory: Arc::new(Elements(data)),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements' bytes, row-major, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Whether a device may read the memory without a copy: it is aligned to a cache line, and known
    /// never to change.
    pub fn can_be_lent(&self) -> bool {
        self.memory.is_fixed()
            && self
                .bytes()
                .as_ptr()
                .addr()
                .is_multiple_of(memory::ALIGNMENT)
    }

    /// The elements, without a copy.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the literal's dtype.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::dtype(
                "Literal::as_slice",
                T::DTYPE.name(),
                self.dtype,
            ));
        }
        bytemuck::checked::try_cast_slice(self.bytes()).map_err(|e| Error::Internal {
            what: "Literal::as_slice",
            expected: format!("aligned memory of whole {} elements ({e})", self.dtype),
        })
    }

    /// A copy of the elements.
    ///
    /// # Errors
    /// As [`Literal::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.as_slice().map(<[T]>::to_vec)
    }

    /// A copy as an `ndarray` array.
    ///
    /// # Errors
    /// As [`Literal::as_slice`].
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        self.to_array_view::<T>().map(|v| v.to_owned())
    }

    /// The elements as an `ndarray` view, without a copy.
    ///
    /// # Errors
    /// As [`Literal::as_slice`].
    pub fn to_array_view<T: Element>(&self) -> Result<ArrayView<'_, T, IxDyn>> {
        ArrayView::from_shape(IxDyn(self.shape.dims()), self.as_slice::<T>()?).map_err(|e| {
            Error::Internal {
                what: "Literal::to_array",
                expected: format!("{} elements for {} ({e})", self.shape.numel(), self.shape),
            }
        })
    }

    /// The same elements in another shape, sharing the memory.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the element counts differ.
    pub fn reshape(&self, shape: impl IntoShape) -> Result<Self> {
        let shape = checked(shape, self.shape.numel())?;
        Ok(Literal {
            shape,
            ..self.clone()
        })
    }

    /// Smallest and largest element of an integer literal; `None` for other dtypes and empty ones.
    pub fn integer_range(&self) -> Option<(i64, i64)> {
        fn range<T: Element>(literal: &Literal) -> Option<(i64, i64)> {
            let data: &[T] = literal.as_slice().ok()?;
            let fold = |(lo, hi): (i64, i64), v: &T| (lo.min(v.to_i64()), hi.max(v.to_i64()));
            let start = (i64::MAX, i64::MIN);
            let (lo, hi) = if data.len() < PARALLEL {
                data.iter().fold(start, fold)
            } else {
                data.par_iter()
                    .fold(|| start, fold)
                    .reduce(|| start, |a, b| (a.0.min(b.0), a.1.max(b.1)))
            };
            (lo <= hi).then_some((lo, hi))
        }
        if !self.dtype.is_integer() {
            return None;
        }
        with_element!(self.dtype, T => range::<T>(self))
    }
}

fn checked(shape: impl IntoShape, elements: usize) -> Result<Shape> {
    let shape = shape.into_shape("Literal")?;
    if shape.numel() != elements {
        return Err(Error::ShapeMismatch {
            op: "Literal",
            expected: format!("{} elements for shape {shape}", shape.numel()),
            got: format!("{elements} elements"),
            at: Site::NONE,
        });
    }
    Ok(shape)
}

impl PartialEq for Literal {
    /// Same dtype, shape and bytes (so a NaN equals itself and -0.0 differs from 0.0).
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Literal {}{:?}", self.dtype, self.shape)?;
        if self.shape.numel() <= 16 {
            with_element!(self.dtype, T => match self.as_slice::<T>() {
                Ok(data) => write!(f, " {data:?}")?,
                Err(e) => write!(f, " <{e}>")?,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_taken_without_a_copy() {
        let data = vec![1.0f64, 2.0];
        let address = data.as_ptr().addr();
        let literal = Literal::from_vec(data, [2]).unwrap();
        assert_eq!(literal.bytes().as_ptr().addr(), address);
    }

    #[test]
    fn own_memory_is_aligned() {
        for n in [0usize, 1, 63, 64, 1000] {
            let literal = Literal::from_slice(&vec![7u8; n], [n]).unwrap();
            assert!(n == 0 || literal.can_be_lent());
            assert_eq!(literal.to_vec::<u8>().unwrap(), vec![7u8; n]);
        }
    }

    #[test]
    fn transposed_arrays_keep_their_elements() {
        let array = ndarray::array![[1, 2, 3], [4, 5, 6]].reversed_axes();
        let literal = Literal::from_array(array);
        assert_eq!(literal.shape().dims(), [3, 2]);
        assert_eq!(literal.to_vec::<i32>().unwrap(), [1, 4, 2, 5, 3, 6]);
        let back = literal.to_array::<i32>().unwrap();
        assert_eq!(back[[2, 1]], 6);
    }

    #[test]
    fn ranges_are_of_integers_only() {
        let l = Literal::from_vec(vec![3u8, 9, 0], [3]).unwrap();
        assert_eq!(l.integer_range(), Some((0, 9)));
        assert_eq!(Literal::scalar(1.5f32).integer_range(), None);
        assert_eq!(
            Literal::from_vec(Vec::<i64>::new(), [0])
                .unwrap()
                .integer_range(),
            None
        );
    }

    #[test]
    fn a_wrong_dtype_is_an_error() {
        assert!(matches!(
            Literal::scalar(1i64).to_vec::<i32>(),
            Err(Error::DTypeMismatch {
                got: DType::I64,
                ..
            })
        ));
    }
}
