//! Element types and PyTorch's promotion rule between them.

use crate::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
///
/// Names print as StableHLO and XLA write them (`f32`, `i64`, `pred` is printed as `bool`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// A truth value, one byte an element (`pred` in XLA).
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer: the default for integers.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE single precision: the default for floats.
    F32,
    /// IEEE double precision.
    F64,
}

/// What kind of number a dtype holds; promotion never crosses a category because of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Truth values.
    Bool,
    /// Signed and unsigned integers.
    Integer,
    /// Floating-point numbers.
    Float,
}

impl DType {
    /// Every dtype, narrowest first within a category.
    pub const ALL: [DType; 13] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::U16,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes an element takes in memory.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// The name users read: `f32`, `i64`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// Bool, integer or float.
    pub const fn category(self) -> Category {
        match self {
            DType::Bool => Category::Bool,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Category::Float,
            _ => Category::Integer,
        }
    }

    /// Whether this is a floating-point dtype.
    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    /// Whether this is a signed or unsigned integer dtype (`Bool` is neither).
    pub const fn is_integer(self) -> bool {
        matches!(self.category(), Category::Integer)
    }

    /// Whether negative values exist.
    pub const fn is_signed(self) -> bool {
        !matches!(
            self,
            DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64
        )
    }

    /// The dtype that an operator on tensors of `self` and `other` computes in: PyTorch's
    /// `promote_types`.
    ///
    /// PyTorch leaves `u16`, `u32` and `u64` with a signed type undefined; here the smallest signed
    /// type that holds both is taken, and `i64` where none does.
    ///
    /// ```
    /// use xla_core::DType;
    /// assert_eq!(DType::I64.promote(DType::F16), DType::F16);
    /// assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
    /// assert_eq!(DType::U8.promote(DType::I8), DType::I16);
    /// ```
    pub fn promote(self, other: DType) -> DType {
        if self == other {
            return self;
        }
        match self.category().cmp(&other.category()) {
            std::cmp::Ordering::Less => return other,
            std::cmp::Ordering::Greater => return self,
            std::cmp::Ordering::Equal => {}
        }
        if self.category() == Category::Float {
            return match (self.size(), other.size()) {
                (2, 2) => DType::F32,
                (a, b) if a > b => self,
                _ => other,
            };
        }
        if self.is_signed() == other.is_signed() {
            return if self.size() > other.size() {
                self
            } else {
                other
            };
        }
        let (signed, unsigned) = if self.is_signed() {
            (self, other)
        } else {
            (other, self)
        };
        match unsigned.size().max(signed.size() / 2) {
            size if size < signed.size() => signed,
            1 => DType::I16,
            2 => DType::I32,
            _ => DType::I64,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the host form of a [`DType`]'s elements. Sealed: the set is the dtypes'.
pub trait Element:
    sealed::Sealed
    + bytemuck::NoUninit
    + bytemuck::CheckedBitPattern
    + Copy
    + PartialEq
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// The dtype whose elements this type holds.
    const DTYPE: DType;
    /// The value as `f64` (64-bit integers beyond 2^53 round).
    fn to_f64(self) -> f64;
    /// The value as `i64`, with Rust's saturating `as` conversion.
    fn to_i64(self) -> i64;
    /// From `f64`, rounding to nearest for floats and saturating for integers; for `bool`, whether
    /// the value is not zero.
    fn from_f64(value: f64) -> Self;
    /// From `i64`, wrapping for narrower integers as PyTorch's casts do.
    fn from_i64(value: i64) -> Self;
}

macro_rules! element {
    ($($t:ty => $d:ident, $to_f64:expr, $to_i64:expr, $from_f64:expr, $from_i64:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn to_f64(self) -> f64 { let f: fn($t) -> f64 = $to_f64; f(self) }
            fn to_i64(self) -> i64 { let f: fn($t) -> i64 = $to_i64; f(self) }
            fn from_f64(value: f64) -> Self { let f: fn(f64) -> $t = $from_f64; f(value) }
            fn from_i64(value: i64) -> Self { let f: fn(i64) -> $t = $from_i64; f(value) }
        }
    )*};
}

element! {
    bool => Bool, |v| f64::from(u8::from(v)), i64::from, |v| v != 0.0, |v| v != 0;
    i8 => I8, f64::from, i64::from, |v| v as i8, |v| v as i8;
    i16 => I16, f64::from, i64::from, |v| v as i16, |v| v as i16;
    i32 => I32, f64::from, i64::from, |v| v as i32, |v| v as i32;
    i64 => I64, |v| v as f64, |v| v, |v| v as i64, |v| v;
    u8 => U8, f64::from, i64::from, |v| v as u8, |v| v as u8;
    u16 => U16, f64::from, i64::from, |v| v as u16, |v| v as u16;
    u32 => U32, f64::from, i64::from, |v| v as u32, |v| v as u32;
    u64 => U64, |v| v as f64, |v| i64::try_from(v).unwrap_or(i64::MAX), |v| v as u64, |v| v as u64;
    f16 => F16, f16::to_f64, |v| v.to_f64() as i64, f16::from_f64, |v| f16::from_f64(v as f64);
    bf16 => BF16, bf16::to_f64, |v| v.to_f64() as i64, bf16::from_f64, |v| bf16::from_f64(v as f64);
    f32 => F32, f64::from, |v| v as i64, |v| v as f32, |v| v as f32;
    f64 => F64, |v| v, |v| v as i64, |v| v, |v| v as f64;
}

/// Calls a generic function with the Rust type of a [`DType`]: `with_element!(dtype, T => body)`.
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $t = bool;
                $body
            }
            $crate::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::DType::U16 => {
                type $t = u16;
                $body
            }
            $crate::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::DType::U64 => {
                type $t = u64;
                $body
            }
            $crate::DType::F16 => {
                type $t = $crate::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $t = $crate::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            _ => {
                type $t = f64;
                $body
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.promote_types` for the types that PyTorch defines it for.
    #[test]
    fn promotion_is_pytorchs() {
        use DType::*;
        for (a, b, expected) in [
            (Bool, U8, U8),
            (Bool, F16, F16),
            (U8, I8, I16),
            (U8, I16, I16),
            (U8, I64, I64),
            (I8, I32, I32),
            (I64, F16, F16),
            (I32, BF16, BF16),
            (F16, BF16, F32),
            (BF16, F32, F32),
            (F16, F64, F64),
            (F32, F64, F64),
        ] {
            assert_eq!(a.promote(b), expected, "{a} {b}");
            assert_eq!(b.promote(a), expected, "{b} {a}");
        }
    }

    #[test]
    fn promotion_is_commutative_and_idempotent() {
        for a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
            }
        }
    }
}
