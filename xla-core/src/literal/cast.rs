//! Conversion to another dtype.

use super::{Literal, PARALLEL, memory};
use crate::{DType, Element, with_element};
use rayon::prelude::*;

impl Literal {
    /// The elements converted to another dtype, in parallel for large arrays. Floats become integers
    /// by truncation, anything becomes `bool` by being non-zero.
    pub fn cast(&self, dtype: DType) -> Self {
        if dtype == self.dtype {
            return self.clone();
        }
        // Integers go through i64 so that large ones keep every bit; anything with a float side
        // goes through f64, which holds every f32, f16 and bf16 exactly.
        let (from, to) = (self.dtype, dtype);
        let wide = match from.is_float() || to.is_float() {
            true => Wide::Float(
                with_element!(from, T => read_f64::<T>),
                with_element!(to, T => write_f64::<T>),
            ),
            false => Wide::Integer(
                with_element!(from, T => read_i64::<T>),
                with_element!(to, T => write_i64::<T>),
            ),
        };
        let (source, target) = (BLOCK * from.size(), BLOCK * to.size());
        let numel = self.shape.numel();
        let memory = memory::aligned(numel * to.size(), |out| {
            let convert = |(source, target): (&[u8], &mut [u8])| {
                wide.convert(source, target, source.len() / from.size());
            };
            if numel < PARALLEL {
                let sources = self.bytes().chunks(source);
                sources.zip(out.chunks_mut(target)).for_each(convert);
            } else {
                let sources = self.bytes().par_chunks(source);
                sources.zip(out.par_chunks_mut(target)).for_each(convert);
            }
        });
        Literal {
            dtype,
            shape: self.shape.clone(),
            memory,
        }
    }
}

/// Elements that are converted at a time, by way of a wide type. Without that step each pair of
/// dtypes would be a function of its own.
const BLOCK: usize = 512;

/// How a block is converted: read as the wide type, and written from it.
#[derive(Clone, Copy)]
enum Wide {
    Float(fn(&[u8], &mut [f64]), fn(&[f64], &mut [u8])),
    Integer(fn(&[u8], &mut [i64]), fn(&[i64], &mut [u8])),
}

impl Wide {
    fn convert(self, source: &[u8], target: &mut [u8], elements: usize) {
        match self {
            Wide::Float(read, write) => {
                let mut wide = [0.0; BLOCK];
                read(source, &mut wide[..elements]);
                write(&wide[..elements], target);
            }
            Wide::Integer(read, write) => {
                let mut wide = [0; BLOCK];
                read(source, &mut wide[..elements]);
                write(&wide[..elements], target);
            }
        }
    }
}

fn read_f64<T: Element>(bytes: &[u8], wide: &mut [f64]) {
    let elements: &[T] = bytemuck::checked::try_cast_slice(bytes).unwrap_or(&[]);
    wide.iter_mut()
        .zip(elements)
        .for_each(|(w, e)| *w = e.to_f64());
}

fn read_i64<T: Element>(bytes: &[u8], wide: &mut [i64]) {
    let elements: &[T] = bytemuck::checked::try_cast_slice(bytes).unwrap_or(&[]);
    wide.iter_mut()
        .zip(elements)
        .for_each(|(w, e)| *w = e.to_i64());
}

fn write_f64<T: Element>(wide: &[f64], bytes: &mut [u8]) {
    for (element, &w) in bytes.chunks_exact_mut(size_of::<T>()).zip(wide) {
        element.copy_from_slice(bytemuck::bytes_of(&T::from_f64(w)));
    }
}

fn write_i64<T: Element>(wide: &[i64], bytes: &mut [u8]) {
    for (element, &w) in bytes.chunks_exact_mut(size_of::<T>()).zip(wide) {
        element.copy_from_slice(bytemuck::bytes_of(&T::from_i64(w)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16;

    #[test]
    fn casts_keep_large_integers_and_round_bf16_to_nearest_even() {
        let big = Literal::from_vec(vec![i64::MAX, -1], [2]).unwrap();
        assert_eq!(
            big.cast(DType::U64).to_vec::<u64>().unwrap(),
            [i64::MAX as u64, u64::MAX]
        );
        let f = Literal::from_vec(vec![1.0f32 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], [2]).unwrap();
        let b = f.cast(DType::BF16).to_vec::<bf16>().unwrap();
        assert_eq!(b, [bf16::from_bits(0x3f80), bf16::from_bits(0x3f82)]);
        let t = Literal::from_vec(vec![-1.9f32, 0.0, 2.5], [3]).unwrap();
        assert_eq!(t.cast(DType::I8).to_vec::<i8>().unwrap(), [-1, 0, 2]);
        assert_eq!(
            t.cast(DType::Bool).to_vec::<bool>().unwrap(),
            [true, false, true]
        );
    }
}
