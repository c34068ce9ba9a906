//! Where samples come from: a trait with two methods, and the two datasets most programs need.

use crate::data::idx::read_idx;
use std::path::Path;
use std::sync::Arc;
use xla_core::{DType, Error, Literal, Result, Shape, Site};

/// A sample and its target, on the host.
pub type Sample = (Literal, Literal);

/// Samples that can be read in any order, from several threads at once.
///
/// [`DataLoader`](crate::data::DataLoader) calls [`Dataset::get`] on background threads, several at
/// a time: decoding belongs here. These threads belong to no replica, so a dataset makes literals,
/// not tensors; the loader uploads whole batches.
///
/// ```
/// use xla_core::{Literal, Result};
/// use xla_nn::data::{Dataset, Sample};
///
/// struct Squares;
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         100
///     }
///     fn get(&self, index: usize) -> Result<Sample> {
///         let x = index as f32;
///         Ok((Literal::from_vec(vec![x], [1])?, Literal::from_vec(vec![x * x], [1])?))
///     }
/// }
/// ```
#[allow(clippy::len_without_is_empty)] // an implementor would have to keep the two consistent
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// Sample `index`, in `0..len`. All samples of a dataset have the same shapes and dtypes.
    ///
    /// # Errors
    /// Whatever keeps the sample from being read; it reaches the loop over the loader.
    fn get(&self, index: usize) -> Result<Sample>;
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        (**self).get(index)
    }
}

/// Two arrays whose first axes count the samples.
///
/// ```
/// use xla_core::Literal;
/// use xla_nn::data::{Dataset, TensorDataset};
/// let points = Literal::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// let labels = Literal::from_vec(vec![0i64, 1], [2])?;
/// let dataset = TensorDataset::new(points, labels)?;
/// let (point, label) = dataset.get(1)?;
/// assert_eq!(point.to_vec::<f32>()?, [3.0, 4.0]);
/// assert_eq!(label.to_vec::<i64>()?, [1]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TensorDataset {
    samples: Literal,
    targets: Literal,
    len: usize,
}

impl TensorDataset {
    /// Sample `i` is `samples[i]` with the target `targets[i]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when either is a scalar or their first axes differ.
    #[track_caller]
    pub fn new(samples: Literal, targets: Literal) -> Result<Self> {
        match (samples.shape().first(), targets.shape().first()) {
            (Some(&len), Some(other)) if len == *other => Ok(TensorDataset {
                samples,
                targets,
                len,
            }),
            _ => Err(Error::ShapeMismatch {
                op: "TensorDataset::new",
                expected: "two arrays with first axes of equal length".into(),
                got: format!("{} and {}", samples.shape(), targets.shape()),
                at: Site::caller(),
            }),
        }
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        check_index("TensorDataset::get", index, self.len)?;
        Ok((row(&self.samples, index)?, row(&self.targets, index)?))
    }
}

/// Grey images with labels, from a pair of IDX files such as MNIST's.
///
/// A sample is an `f32` image of pixels scaled to `0.0..=1.0`, then shifted and scaled by
/// [`IdxDataset::normalize`]; its target is an `i64` scalar. Pixels stay bytes in memory and are
/// converted when a sample is read, on the loader's background threads.
#[derive(Debug, Clone)]
pub struct IdxDataset {
    images: Literal,
    labels: Literal,
    mean: f32,
    std: f32,
}

impl IdxDataset {
    /// Reads both files, gzipped or plain.
    ///
    /// # Errors
    /// As [`read_idx`]; [`Error::FileFormat`] also when the files do not hold bytes, or do not hold
    /// as many labels as images.
    pub fn open(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        let (images_path, labels_path) = (images.as_ref(), labels.as_ref());
        let malformed = |path: &Path, expected: String, got: &Literal| Error::FileFormat {
            path: path.to_owned(),
            expected,
            got: format!("{}{}", got.dtype(), got.shape()),
        };
        let images = read_idx(images_path)?;
        if images.dtype() != DType::U8 || images.shape().rank() < 2 {
            return Err(malformed(
                images_path,
                "u8 images of rank 2 or more".into(),
                &images,
            ));
        }
        let labels = read_idx(labels_path)?;
        let count = images.shape()[0];
        if labels.dtype() != DType::U8 || labels.shape().dims() != [count] {
            let expected = format!(
                "{count} u8 labels, one for each image of {}",
                images_path.display()
            );
            return Err(malformed(labels_path, expected, &labels));
        }
        Ok(IdxDataset {
            images,
            labels,
            mean: 0.0,
            std: 1.0,
        })
    }

    /// Pixels become `(pixel - mean) / std`, where `pixel` is in `0.0..=1.0`. Customary for MNIST:
    /// 0.1307 and 0.3081, the mean and standard deviation of its training images.
    #[must_use]
    pub fn normalize(self, mean: f32, std: f32) -> Self {
        IdxDataset { mean, std, ..self }
    }

    /// Shape of one image.
    pub fn image_shape(&self) -> Shape {
        Shape::new(&self.images.shape()[1..])
    }
}

impl Dataset for IdxDataset {
    fn len(&self) -> usize {
        self.images.shape()[0]
    }

    fn get(&self, index: usize) -> Result<Sample> {
        check_index("IdxDataset::get", index, self.len())?;
        let shape = self.image_shape();
        let pixels = &self.images.bytes()[index * shape.numel()..][..shape.numel()];
        let image = pixels
            .iter()
            .map(|p| (f32::from(*p) / 255.0 - self.mean) / self.std)
            .collect();
        let label = i64::from(self.labels.bytes()[index]);
        Ok((
            Literal::from_vec::<f32>(image, shape)?,
            Literal::scalar(label),
        ))
    }
}

fn check_index(op: &'static str, index: usize, len: usize) -> Result<()> {
    if index < len {
        return Ok(());
    }
    Err(Error::IndexOutOfRange {
        op,
        index: i64::try_from(index).unwrap_or(i64::MAX),
        axis: 0,
        size: len,
        at: Site::NONE,
    })
}

/// `array[index]`, copied; the index is in range.
fn row(array: &Literal, index: usize) -> Result<Literal> {
    let shape = Shape::new(&array.shape()[1..]);
    let len = shape.numel() * array.dtype().size();
    Literal::from_fill(array.dtype(), &shape, |out| {
        out.copy_from_slice(&array.bytes()[index * len..][..len]);
        Ok(())
    })
}

/// Literals of one dtype and shape as one literal with a new first axis.
///
/// # Errors
/// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] naming the first that differs from the
/// others.
pub(crate) fn stack<'a>(
    what: &'static str,
    items: impl ExactSizeIterator<Item = &'a Literal> + Clone,
) -> Result<Literal> {
    let count = items.len();
    let Some(first) = items.clone().next() else {
        return Err(Error::argument(
            "DataLoader",
            what,
            "at least one sample a batch",
            "none",
        ));
    };
    for item in items.clone() {
        if item.dtype() != first.dtype() {
            return Err(Error::dtype(
                "DataLoader",
                format!("{what} all of dtype {}", first.dtype()),
                item.dtype(),
            ));
        }
        if item.shape() != first.shape() {
            return Err(Error::shape(
                "DataLoader",
                format!("{what} all of shape {}", first.shape()),
                item.shape(),
            ));
        }
    }
    let mut dims = vec![count];
    dims.extend_from_slice(first.shape());
    let len = first.bytes().len();
    Literal::from_fill(first.dtype(), &Shape::new(&dims), |out| {
        for (i, item) in items.enumerate() {
            out[i * len..][..len].copy_from_slice(item.bytes());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(dims: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, dims.len() as u8];
        for d in dims {
            bytes.extend([0, 0, 0, *d]);
        }
        bytes.extend(data);
        bytes
    }

    fn open(images: &[u8], labels: &[u8]) -> Result<IdxDataset> {
        let folder = tempfile::tempdir().unwrap();
        let (i, l) = (folder.path().join("images"), folder.path().join("labels"));
        std::fs::write(&i, images).unwrap();
        std::fs::write(&l, labels).unwrap();
        IdxDataset::open(i, l)
    }

    #[test]
    fn pixels_are_scaled_and_shifted() {
        let images = idx(&[2, 1, 2], &[0, 255, 51, 102]);
        let data = open(&images, &idx(&[2], &[3, 9])).unwrap();
        let (image, label) = data.get(1).unwrap();
        assert_eq!(image.shape().dims(), [1, 2]);
        assert_eq!(image.to_vec::<f32>().unwrap(), [0.2, 0.4]);
        assert_eq!(label.to_vec::<i64>().unwrap(), [9]);
        assert_eq!(label.shape().rank(), 0);
        let (image, _) = data.normalize(0.5, 0.25).get(0).unwrap();
        assert_eq!(image.to_vec::<f32>().unwrap(), [-2.0, 2.0]);
    }

    #[test]
    fn files_that_do_not_match_are_an_error() {
        let images = idx(&[2, 1, 2], &[0, 255, 51, 102]);
        for labels in [
            idx(&[3], &[1, 2, 3]),
            idx(&[1], &[1]),
            idx(&[2, 1], &[1, 2]),
        ] {
            let error = open(&images, &labels).unwrap_err();
            assert!(matches!(&error, Error::FileFormat { path, .. } if path.ends_with("labels")));
        }
        // The two paths swapped.
        let error = open(&idx(&[2], &[1, 2]), &images).unwrap_err();
        assert!(matches!(&error, Error::FileFormat { path, .. } if path.ends_with("images")));
    }

    #[test]
    fn an_index_beyond_the_end_is_an_error() {
        let one = Literal::from_vec(vec![1.0f32], [1]).unwrap();
        let data = TensorDataset::new(one.clone(), one.clone()).unwrap();
        assert!(matches!(
            data.get(1),
            Err(Error::IndexOutOfRange {
                index: 1,
                size: 1,
                ..
            })
        ));
        let two = Literal::from_vec(vec![1.0f32, 2.0], [2]).unwrap();
        assert!(matches!(
            TensorDataset::new(one, two.clone()),
            Err(Error::ShapeMismatch { .. })
        ));
        assert!(TensorDataset::new(Literal::scalar(1.0f32), two).is_err());
    }

    #[test]
    fn stacking_adds_an_axis_and_names_what_differs() {
        let a = Literal::from_vec(vec![1i32, 2], [2]).unwrap();
        let b = Literal::from_vec(vec![3i32, 4], [2]).unwrap();
        let both = stack("samples", [&a, &b].into_iter()).unwrap();
        assert_eq!(both.shape().dims(), [2, 2]);
        assert_eq!(both.to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
        let long = Literal::from_vec(vec![1i32, 2, 3], [3]).unwrap();
        let error = stack("samples", [&a, &long].into_iter()).unwrap_err();
        assert!(error.to_string().contains("[3]"), "{error}");
        let float = Literal::from_vec(vec![1f32, 2.0], [2]).unwrap();
        assert!(matches!(
            stack("targets", [&a, &float].into_iter()),
            Err(Error::DTypeMismatch { .. })
        ));
    }
}
