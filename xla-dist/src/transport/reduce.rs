//! What is done to elements when they are reduced: every dtype, on bytes.

use std::cmp::Ordering;
use xla_core::{DType, bf16, f16};
use xla_lazy::stablehlo::Reduction;

/// Elements combined at a time: what stays in the fastest cache.
const BLOCK: usize = 1024;

/// How elements are combined.
///
/// Integers wrap. The least and the greatest of anything and NaN is NaN, as in PyTorch and XLA. On
/// `bool` a sum and a maximum are *or*, a product and a minimum *and*. Half precision is combined as
/// `f32` and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reduce {
    dtype: DType,
    op: Reduction,
}

impl Reduce {
    /// `None` for *and* and *or* of floats.
    pub(crate) fn new(dtype: DType, op: Reduction) -> Option<Self> {
        let bits = matches!(op, Reduction::And | Reduction::Or);
        (!(bits && dtype.is_float())).then_some(Reduce { dtype, op })
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        self.dtype.size()
    }

    /// Combines the sources into `out`; what it holds takes part if it `counts`. All are of one
    /// length.
    pub(crate) fn combine(self, out: &mut [u8], counts: bool, sources: &[&[u8]]) {
        match self.dtype {
            DType::Bool => match self.op {
                Reduction::Sum | Reduction::Max | Reduction::Or => {
                    fold::<u8>(out, counts, sources, |a, b| a | b);
                }
                Reduction::Product | Reduction::Min | Reduction::And => {
                    fold::<u8>(out, counts, sources, |a, b| a & b);
                }
            },
            DType::I8 => integers::<i8>(self.op, out, counts, sources),
            DType::I16 => integers::<i16>(self.op, out, counts, sources),
            DType::I32 => integers::<i32>(self.op, out, counts, sources),
            DType::I64 => integers::<i64>(self.op, out, counts, sources),
            DType::U8 => integers::<u8>(self.op, out, counts, sources),
            DType::U16 => integers::<u16>(self.op, out, counts, sources),
            DType::U32 => integers::<u32>(self.op, out, counts, sources),
            DType::U64 => integers::<u64>(self.op, out, counts, sources),
            DType::F16 => floats::<f16>(self.op, out, counts, sources),
            DType::BF16 => floats::<bf16>(self.op, out, counts, sources),
            DType::F32 => floats::<f32>(self.op, out, counts, sources),
            _ => floats::<f64>(self.op, out, counts, sources),
        }
    }
}

/// An element, and what it is combined as.
trait Lane: bytemuck::Pod {
    type Wide: Copy + Default;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! lanes {
    ($($t:ty as $wide:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl Lane for $t {
            type Wide = $wide;
            #[inline]
            fn widen(self) -> $wide { let f: fn($t) -> $wide = $widen; f(self) }
            #[inline]
            fn narrow(wide: $wide) -> $t { let f: fn($wide) -> $t = $narrow; f(wide) }
        }
    )*};
}

lanes! {
    i8 as i8: |x| x, |x| x;
    i16 as i16: |x| x, |x| x;
    i32 as i32: |x| x, |x| x;
    i64 as i64: |x| x, |x| x;
    u8 as u8: |x| x, |x| x;
    u16 as u16: |x| x, |x| x;
    u32 as u32: |x| x, |x| x;
    u64 as u64: |x| x, |x| x;
    f32 as f32: |x| x, |x| x;
    f64 as f64: |x| x, |x| x;
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
}

/// What integers can do, wrapping.
trait Integer: Copy + Ord {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Integer for $t {
            #[inline]
            fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline]
            fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
            #[inline]
            fn and(self, other: $t) -> $t { self & other }
            #[inline]
            fn or(self, other: $t) -> $t { self | other }
        }
    )*};
}

integer! { i8 i16 i32 i64 u8 u16 u32 u64 }

fn integers<T: Lane<Wide: Integer>>(op: Reduction, out: &mut [u8], counts: bool, s: &[&[u8]]) {
    match op {
        Reduction::Sum => fold::<T>(out, counts, s, Integer::plus),
        Reduction::Product => fold::<T>(out, counts, s, Integer::times),
        Reduction::Max => fold::<T>(out, counts, s, Ord::max),
        Reduction::Min => fold::<T>(out, counts, s, Ord::min),
        Reduction::And => fold::<T>(out, counts, s, Integer::and),
        Reduction::Or => fold::<T>(out, counts, s, Integer::or),
    }
}

/// What floats can do.
trait Float: Copy + PartialOrd + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {
    /// The one that compares so with the other; NaN if one is.
    #[inline]
    fn extreme(self, other: Self, wanted: Ordering) -> Self {
        let unordered = self.partial_cmp(&self).is_none();
        if unordered || self.partial_cmp(&other) == Some(wanted) {
            self
        } else {
            other
        }
    }
}

impl Float for f32 {}
impl Float for f64 {}

fn floats<T: Lane<Wide: Float>>(op: Reduction, out: &mut [u8], counts: bool, s: &[&[u8]]) {
    match op {
        Reduction::Sum => fold::<T>(out, counts, s, |a, b| a + b),
        Reduction::Product => fold::<T>(out, counts, s, |a, b| a * b),
        Reduction::Max | Reduction::Or => {
            fold::<T>(out, counts, s, |a, b| a.extreme(b, Ordering::Greater));
        }
        Reduction::Min | Reduction::And => {
            fold::<T>(out, counts, s, |a, b| a.extreme(b, Ordering::Less));
        }
    }
}

/// Folds block by block, so that memory is read and written once.
#[inline]
fn fold<T: Lane>(
    out: &mut [u8],
    counts: bool,
    sources: &[&[u8]],
    op: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    let size = size_of::<T>();
    let mut wide = [T::Wide::default(); BLOCK];
    for start in (0..out.len()).step_by(BLOCK * size) {
        let range = start..out.len().min(start + BLOCK * size);
        let wide = &mut wide[..range.len() / size];
        let rest = match sources {
            [first, rest @ ..] if !counts => {
                each::<T>(wide, &first[range.clone()], |to, from| *to = from);
                rest
            }
            all => {
                each::<T>(wide, &out[range.clone()], |to, from| *to = from);
                all
            }
        };
        for source in rest {
            each::<T>(wide, &source[range.clone()], |to, from| *to = op(*to, from));
        }
        let out = &mut out[range];
        match bytemuck::try_cast_slice_mut::<u8, T>(out) {
            Ok(out) => {
                for (to, from) in out.iter_mut().zip(wide) {
                    *to = T::narrow(*from);
                }
            }
            Err(_) => {
                for (to, from) in out.chunks_exact_mut(size).zip(wide) {
                    to.copy_from_slice(bytemuck::bytes_of(&T::narrow(*from)));
                }
            }
        }
    }
}

/// Does something with each element; those of a program are aligned.
#[inline]
fn each<T: Lane>(wide: &mut [T::Wide], bytes: &[u8], f: impl Fn(&mut T::Wide, T::Wide)) {
    match bytemuck::try_cast_slice::<u8, T>(bytes) {
        Ok(elements) => {
            for (to, from) in wide.iter_mut().zip(elements) {
                f(to, from.widen());
            }
        }
        Err(_) => {
            for (to, from) in wide.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
                f(to, bytemuck::pod_read_unaligned::<T>(from).widen());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: [Reduction; 4] = [
        Reduction::Sum,
        Reduction::Product,
        Reduction::Max,
        Reduction::Min,
    ];

    /// `op` of the sources in `f64`, NaN where one is.
    fn expected(op: Reduction, sources: &[Vec<f64>], index: usize) -> f64 {
        let values = sources.iter().map(|source| source[index]);
        match op {
            Reduction::Sum => values.sum(),
            Reduction::Product => values.product(),
            _ if sources.iter().any(|source| source[index].is_nan()) => f64::NAN,
            Reduction::Max => values.fold(f64::NEG_INFINITY, f64::max),
            _ => values.fold(f64::INFINITY, f64::min),
        }
    }

    fn check<T: xla_core::Element + bytemuck::NoUninit>(tolerance: f64, values: &[f64]) {
        // More than a block, and no whole number of blocks.
        let source = |step: usize| -> Vec<f64> {
            let at = |i: usize| values[(i * step + i / values.len()) % values.len()];
            (0..2500).map(|i| T::from_f64(at(i)).to_f64()).collect()
        };
        let sources: Vec<Vec<f64>> = [1, 2, 3].map(source).into();
        let typed: Vec<Vec<T>> = sources
            .iter()
            .map(|source| source.iter().map(|x| T::from_f64(*x)).collect())
            .collect();
        let bytes: Vec<&[u8]> = typed.iter().map(|t| bytemuck::cast_slice(t)).collect();
        for op in OPS {
            let reduce = Reduce::new(T::DTYPE, op).unwrap();
            let mut fresh = vec![0xff; bytes[0].len()];
            reduce.combine(&mut fresh, false, &bytes);
            let mut counted = bytes[0].to_vec();
            reduce.combine(&mut counted, true, &bytes[1..]);
            assert_eq!(fresh, counted, "{} {op:?}", T::DTYPE);
            let got: Vec<T> = fresh
                .chunks_exact(size_of::<T>())
                .map(bytemuck::checked::pod_read_unaligned)
                .collect();
            for (i, got) in got.iter().enumerate() {
                let (got, wanted) = (got.to_f64(), expected(op, &sources, i));
                assert!(
                    got == wanted
                        || got.is_nan() && wanted.is_nan()
                        || (got - wanted).abs() <= tolerance * wanted.abs(),
                    "{} {op:?} at {i}: {got}, not {wanted}",
                    T::DTYPE
                );
            }
        }
    }

    #[test]
    fn floats_reduce_as_in_double_precision() {
        let values = [0.5, -1.25, 3.0, f64::NAN, 0.1, f64::INFINITY, -7.0];
        check::<f64>(1e-15, &values);
        check::<f32>(3e-7, &values);
        // Rounded once: half a unit in the last place.
        check::<f16>(0.5_f64.powi(11), &values);
        check::<bf16>(0.5_f64.powi(8), &values);
    }

    #[test]
    fn small_integers_reduce_exactly() {
        let signed = [3.0, -2.0, 5.0, 0.0, 1.0, -4.0];
        check::<i8>(0.0, &signed);
        check::<i16>(0.0, &signed);
        check::<i32>(0.0, &signed);
        check::<i64>(0.0, &signed);
        let unsigned = [3.0, 2.0, 5.0, 0.0, 1.0, 6.0];
        check::<u8>(0.0, &unsigned);
        check::<u16>(0.0, &unsigned);
        check::<u32>(0.0, &unsigned);
        check::<u64>(0.0, &unsigned);
    }

    #[test]
    fn integers_wrap() {
        let mut out = 100_i8.to_ne_bytes();
        let reduce = Reduce::new(DType::I8, Reduction::Sum).unwrap();
        reduce.combine(&mut out, true, &[&100_i8.to_ne_bytes()]);
        assert_eq!(i8::from_ne_bytes(out), -56);
    }

    #[test]
    fn truth_values_are_joined() {
        let (a, b) = ([0, 0, 1, 1], [0, 1, 0, 1]);
        for (op, wanted) in [
            (Reduction::Sum, [0, 1, 1, 1]),
            (Reduction::Max, [0, 1, 1, 1]),
            (Reduction::Or, [0, 1, 1, 1]),
            (Reduction::Product, [0, 0, 0, 1]),
            (Reduction::Min, [0, 0, 0, 1]),
            (Reduction::And, [0, 0, 0, 1]),
        ] {
            let mut out = [9; 4];
            let reduce = Reduce::new(DType::Bool, op).unwrap();
            reduce.combine(&mut out, false, &[&a, &b]);
            assert_eq!(out, wanted, "{op:?}");
        }
        assert!(Reduce::new(DType::F32, Reduction::And).is_none());
    }
}
