//! A tensor in parts along an axis, each of them a view.

use crate::Tensor;
use std::panic::Location;
use xla_core::{Error, Result};

/// More parts than this are a mistake, and their handles alone would fill the memory.
const MOST_PARTS: usize = 1 << 20;

/// Of so many parts each has a place that the compiler knows. Where there are more, their starts are data,
/// so that they are one operator.
const MOST_PLACED: usize = 64;

fn few_enough(op: &'static str, parts: usize) -> Result<()> {
    match parts <= MOST_PARTS {
        true => Ok(()),
        false => Err(Error::argument(
            op,
            "parts",
            format!("at most {MOST_PARTS}"),
            parts,
        )),
    }
}

impl Tensor {
    /// Parts of `split_size` along an axis; the last one is what remains. Views.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for a size of 0 where the axis is longer, or more than
    /// 2^20 parts.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let parts = Tensor::arange(0.0, 5.0, 1.0, ())?.split(2, 0)?;
    /// assert_eq!(parts[2].to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, split_size: usize, dim: i64) -> Result<Vec<Tensor>> {
        let at = Location::caller();
        let axis = self.shape().axis("split", dim).map_err(|e| e.at(at))?;
        let size = self.dims()[axis];
        if split_size == 0 && size > 0 {
            return Err(Error::argument("split", "split_size", "at least 1", 0).at(at));
        }
        few_enough("split", size.checked_div(split_size).unwrap_or(0)).map_err(|e| e.at(at))?;
        self.equal_parts(axis, split_size)
    }

    /// Parts of these sizes along an axis, which they fill. Views.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] when the sizes do not sum to the axis's length.
    #[track_caller]
    pub fn split_with_sizes(&self, split_sizes: &[usize], dim: i64) -> Result<Vec<Tensor>> {
        const OP: &str = "split_with_sizes";
        let at = Location::caller();
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        let size = self.dims()[axis];
        let sum = split_sizes
            .iter()
            .fold(0, |n: usize, &s| n.saturating_add(s));
        if sum != size {
            let expected = format!("sizes that sum to {size}, the length of axis {axis}");
            let got = format!("{split_sizes:?}");
            return Err(Error::argument(OP, "split_sizes", expected, got).at(at));
        }
        let mut ends = split_sizes.to_vec();
        let mut end = 0;
        for size in &mut ends {
            end += *size;
            *size = end;
        }
        self.parts_up_to(axis, &ends)
    }

    /// At most `chunks` parts along an axis, of the least size that suffices; the last one may be
    /// shorter, and there may be fewer. Views.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for 0 chunks, or more than 2^20 parts.
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: i64) -> Result<Vec<Tensor>> {
        let at = Location::caller();
        let axis = self.shape().axis("chunk", dim).map_err(|e| e.at(at))?;
        if chunks == 0 {
            return Err(Error::argument("chunk", "chunks", "at least 1", 0).at(at));
        }
        let size = self.dims()[axis];
        let parts = if size == 0 { chunks } else { chunks.min(size) };
        few_enough("chunk", parts).map_err(|e| e.at(at))?;
        if size == 0 {
            return self.parts_up_to(axis, &vec![0; chunks]);
        }
        self.equal_parts(axis, size.div_ceil(chunks))
    }

    /// What lies at each position of an axis, which the parts do not have any more. Views.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for more than 2^20 parts.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let columns = Tensor::arange(0.0, 6.0, 1.0, ())?.reshape([2, 3])?.unbind(1)?;
    /// assert_eq!(columns[2].to_vec::<f32>()?, [2.0, 5.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn unbind(&self, dim: i64) -> Result<Vec<Tensor>> {
        let at = Location::caller();
        let axis = self.shape().axis("unbind", dim).map_err(|e| e.at(at))?;
        few_enough("unbind", self.dims()[axis]).map_err(|e| e.at(at))?;
        let ends: Vec<usize> = (1..=self.dims()[axis]).collect();
        let mut parts = self.parts_up_to(axis, &ends)?;
        for part in &mut parts {
            *part = part.squeeze(axis)?;
        }
        Ok(parts)
    }

    /// `sections` parts along an axis whose sizes differ by at most one, longer ones first. Views.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for 0 sections, or more than 2^20.
    #[track_caller]
    pub fn tensor_split(&self, sections: usize, dim: i64) -> Result<Vec<Tensor>> {
        const OP: &str = "tensor_split";
        let at = Location::caller();
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        if sections == 0 {
            return Err(Error::argument(OP, "sections", "at least 1", 0).at(at));
        }
        few_enough(OP, sections).map_err(|e| e.at(at))?;
        let (least, longer) = (self.dims()[axis] / sections, self.dims()[axis] % sections);
        let ends: Vec<usize> = (1..=sections).map(|i| i * least + i.min(longer)).collect();
        self.parts_up_to(axis, &ends)
    }

    /// The parts of an axis between these positions, with Python's rules: negative ones count from
    /// the end, all are limited to the axis, and a part that would end before it starts is empty.
    /// Views.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn tensor_split_at(&self, indices: &[i64], dim: i64) -> Result<Vec<Tensor>> {
        let at = Location::caller();
        let axis = self.shape().axis("tensor_split", dim);
        let axis = axis.map_err(|e| e.at(at))? as i64;
        let mut parts = Vec::with_capacity(indices.len() + 1);
        let mut start = 0;
        for &end in indices {
            parts.push(self.slice(axis, start, end, 1)?);
            start = end;
        }
        parts.push(self.slice(axis, start, i64::MAX, 1)?);
        Ok(parts)
    }

    #[track_caller]
    fn equal_parts(&self, axis: usize, part: usize) -> Result<Vec<Tensor>> {
        let size = self.dims()[axis];
        let count = if size == 0 { 1 } else { size.div_ceil(part) };
        let ends: Vec<usize> = (1..=count)
            .map(|i| i.saturating_mul(part).min(size))
            .collect();
        self.parts_up_to(axis, &ends)
    }

    /// The parts that end at these positions, each starting where the one before it ends.
    #[track_caller]
    fn parts_up_to(&self, axis: usize, ends: &[usize]) -> Result<Vec<Tensor>> {
        let mut parts = Vec::with_capacity(ends.len());
        let mut start = 0;
        for &end in ends {
            parts.push(match ends.len() <= MOST_PLACED {
                true => self.part(axis, start, end)?,
                false => self.narrow(axis as i64, start as i64, end - start)?,
            });
            start = end;
        }
        Ok(parts)
    }
}
