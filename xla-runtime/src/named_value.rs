//! Named values: what the API uses for attributes and for a client's create options.

use crate::call::{array, string};
use pjrt_sys as sys;
use std::collections::BTreeMap;
use std::fmt;

/// The value of an attribute or option.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// Text.
    String(String),
    /// A whole number.
    Int(i64),
    /// Whole numbers.
    IntList(Vec<i64>),
    /// A number.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeValue::String(text) => f.write_str(text),
            AttributeValue::Int(number) => write!(f, "{number}"),
            AttributeValue::IntList(list) => write!(f, "{list:?}"),
            AttributeValue::Float(number) => write!(f, "{number}"),
            AttributeValue::Bool(truth) => write!(f, "{truth}"),
        }
    }
}

/// Copies what the plugin lists. A value of a type that the API gained later is left out.
///
/// # Safety
/// `values` must be null or point to `len` live named values.
pub(crate) unsafe fn read(
    values: *const sys::PJRT_NamedValue,
    len: usize,
) -> BTreeMap<String, AttributeValue> {
    // SAFETY: the caller vouches for pointer and length.
    let values = unsafe { array(values, len) };
    values
        .iter()
        .filter_map(|v| {
            // SAFETY: name and value belong to the live named value; the type says which field of the
            // union is set, and `value_size` is its length where it is a pointer.
            unsafe {
                let union = &v.__bindgen_anon_1;
                let value = match v.type_ {
                    sys::PJRT_NamedValue_Type_PJRT_NamedValue_kString => {
                        AttributeValue::String(string(union.string_value, v.value_size))
                    }
                    sys::PJRT_NamedValue_Type_PJRT_NamedValue_kInt64 => {
                        AttributeValue::Int(union.int64_value)
                    }
                    sys::PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List => {
                        AttributeValue::IntList(
                            array(union.int64_array_value, v.value_size).to_vec(),
                        )
                    }
                    sys::PJRT_NamedValue_Type_PJRT_NamedValue_kFloat => {
                        AttributeValue::Float(union.float_value)
                    }
                    sys::PJRT_NamedValue_Type_PJRT_NamedValue_kBool => {
                        AttributeValue::Bool(union.bool_value)
                    }
                    _ => return None,
                };
                Some((string(v.name, v.name_size), value))
            }
        })
        .collect()
}

/// The values as the API takes them; they point into `values`.
///
/// An array's stride is the callee's idea of the struct's size, so these are not extended. The
/// struct has not changed since API 0.54.
pub(crate) fn write(values: &BTreeMap<String, AttributeValue>) -> Vec<sys::PJRT_NamedValue> {
    values
        .iter()
        .map(|(name, value)| {
            let mut raw = sys::PJRT_NamedValue {
                struct_size: size_of::<sys::PJRT_NamedValue>(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                value_size: 1,
                ..Default::default()
            };
            match value {
                AttributeValue::String(text) => {
                    raw.type_ = sys::PJRT_NamedValue_Type_PJRT_NamedValue_kString;
                    raw.__bindgen_anon_1.string_value = text.as_ptr().cast();
                    raw.value_size = text.len();
                }
                AttributeValue::Int(number) => {
                    raw.type_ = sys::PJRT_NamedValue_Type_PJRT_NamedValue_kInt64;
                    raw.__bindgen_anon_1.int64_value = *number;
                }
                AttributeValue::IntList(list) => {
                    raw.type_ = sys::PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List;
                    raw.__bindgen_anon_1.int64_array_value = list.as_ptr();
                    raw.value_size = list.len();
                }
                AttributeValue::Float(number) => {
                    raw.type_ = sys::PJRT_NamedValue_Type_PJRT_NamedValue_kFloat;
                    raw.__bindgen_anon_1.float_value = *number;
                }
                AttributeValue::Bool(truth) => {
                    raw.type_ = sys::PJRT_NamedValue_Type_PJRT_NamedValue_kBool;
                    raw.__bindgen_anon_1.bool_value = *truth;
                }
            }
            raw
        })
        .collect()
}
