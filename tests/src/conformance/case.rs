//! One case of `cases.jsonl` and its arguments.

use serde::Deserialize;
use serde_json::Value;
use xla::{DType, Error, Result};

/// An operator with inputs, arguments and what PyTorch makes of them.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub(super) id: String,
    pub(super) op: String,
    pub(super) inputs: Vec<String>,
    pub(super) kwargs: Kwargs,
    pub(super) outputs: Vec<String>,
    pub(super) rtol: f64,
    pub(super) atol: f64,
    pub(super) grad_output: Option<String>,
    pub(super) grads: Option<Vec<Option<String>>>,
}

/// Arguments by PyTorch's names.
#[derive(Debug, Default, Deserialize)]
pub struct Kwargs(serde_json::Map<String, Value>);

impl Kwargs {
    fn read<T>(&self, name: &'static str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(Error::argument(
                    "conformance",
                    name,
                    std::any::type_name::<T>(),
                    value,
                )),
            },
        }
    }

    fn needed<T>(name: &'static str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::argument("conformance", name, "a value", "none"))
    }

    /// Whether the argument is given as a JSON integer.
    pub fn is_int(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|v| v.is_i64() || v.is_u64())
    }

    /// A number, if given.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn f64_or_none(&self, name: &'static str) -> Result<Option<f64>> {
        self.read(name, Value::as_f64)
    }

    /// A number, or `default`.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn f64_or(&self, name: &'static str, default: f64) -> Result<f64> {
        Ok(self.f64_or_none(name)?.unwrap_or(default))
    }

    /// A number.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn f64(&self, name: &'static str) -> Result<f64> {
        Self::needed(name, self.f64_or_none(name)?)
    }

    /// An integer, if given.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn i64_or_none(&self, name: &'static str) -> Result<Option<i64>> {
        self.read(name, Value::as_i64)
    }

    /// An integer, or `default`.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn i64_or(&self, name: &'static str, default: i64) -> Result<i64> {
        Ok(self.i64_or_none(name)?.unwrap_or(default))
    }

    /// An integer.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn i64(&self, name: &'static str) -> Result<i64> {
        Self::needed(name, self.i64_or_none(name)?)
    }

    /// An integer of at least 0.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn usize(&self, name: &'static str) -> Result<usize> {
        let value = self.read(name, |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))?;
        Self::needed(name, value)
    }

    /// A truth value, or `default`.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn bool_or(&self, name: &'static str, default: bool) -> Result<bool> {
        Ok(self.read(name, Value::as_bool)?.unwrap_or(default))
    }

    /// A string, if given.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn str_or_none(&self, name: &'static str) -> Result<Option<String>> {
        self.read(name, |v| v.as_str().map(str::to_owned))
    }

    /// A string.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn str(&self, name: &'static str) -> Result<String> {
        Self::needed(name, self.str_or_none(name)?)
    }

    /// A list of integers, or one integer as a list of one; if given.
    ///
    /// # Errors
    /// An argument of another type.
    pub fn ints_or_none(&self, name: &'static str) -> Result<Option<Vec<i64>>> {
        self.read(name, |value| match value {
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            other => other.as_i64().map(|i| vec![i]),
        })
    }

    /// A list of integers, or one integer as a list of one.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn ints(&self, name: &'static str) -> Result<Vec<i64>> {
        Self::needed(name, self.ints_or_none(name)?)
    }

    /// A list of integers or nulls, or one of either as a list of one.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn optional_ints(&self, name: &'static str) -> Result<Vec<Option<i64>>> {
        let one = |value: &Value| match value {
            Value::Null => Some(None),
            other => other.as_i64().map(Some),
        };
        let list = self.read(name, |value| match value {
            Value::Array(items) => items.iter().map(one).collect(),
            other => one(other).map(|i| vec![i]),
        })?;
        Self::needed(name, list)
    }

    /// A list of numbers, or one number as a list of one.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn floats(&self, name: &'static str) -> Result<Vec<f64>> {
        let list = self.read(name, |value| match value {
            Value::Array(items) => items.iter().map(Value::as_f64).collect(),
            other => other.as_f64().map(|f| vec![f]),
        })?;
        Self::needed(name, list)
    }

    /// Two lists of integers.
    ///
    /// # Errors
    /// An argument of another type, or none.
    pub fn pair_of_ints(&self, name: &'static str) -> Result<(Vec<i64>, Vec<i64>)> {
        let list = |value: &Value| -> Option<Vec<i64>> {
            value.as_array()?.iter().map(Value::as_i64).collect()
        };
        let pair = self.read(name, |value| match value.as_array()?.as_slice() {
            [first, second] => Some((list(first)?, list(second)?)),
            _ => None,
        })?;
        Self::needed(name, pair)
    }

    /// A dtype by PyTorch's name, if given.
    ///
    /// # Errors
    /// An argument of another type, or a name of no dtype.
    pub fn dtype_or_none(&self, name: &'static str) -> Result<Option<DType>> {
        self.read(name, |value| {
            Some(match value.as_str()? {
                "bool" => DType::Bool,
                "int8" => DType::I8,
                "int16" => DType::I16,
                "int32" => DType::I32,
                "int64" => DType::I64,
                "uint8" => DType::U8,
                "uint16" => DType::U16,
                "uint32" => DType::U32,
                "uint64" => DType::U64,
                "float16" => DType::F16,
                "bfloat16" => DType::BF16,
                "float32" => DType::F32,
                "float64" => DType::F64,
                _ => return None,
            })
        })
    }
}
