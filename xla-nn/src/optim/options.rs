//! An algorithm's options as a table: from one line each follow the field, its default, the method
//! that sets it, its check, and its place in a saved state.

use std::fmt;
use xla_core::{Error, Result};

/// What a number may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Finite.
    Finite,
    /// Finite and at least 0.
    NotNegative,
    /// At least 0 and below 1.
    Below1,
    /// From 0 to 1.
    UpTo1,
}

impl Limit {
    fn allows(self, x: f64) -> bool {
        match self {
            Limit::Finite => x.is_finite(),
            Limit::NotNegative => x.is_finite() && x >= 0.0,
            Limit::Below1 => (0.0..1.0).contains(&x),
            Limit::UpTo1 => (0.0..=1.0).contains(&x),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Limit::Finite => "a finite number",
            Limit::NotNegative => "a finite number of at least 0",
            Limit::Below1 => "a number of at least 0 and below 1",
            Limit::UpTo1 => "a number from 0 to 1",
        }
    }
}

/// The place of an option's value.
#[derive(Debug)]
pub enum Setting<'a> {
    /// A number.
    Number(&'a mut f64, Limit),
    /// A flag.
    Flag(&'a mut bool),
}

/// One option of an algorithm, to be read or set by its name.
#[derive(Debug)]
pub struct Hyperparameter<'a> {
    /// PyTorch's name.
    pub name: &'static str,
    /// Which of several under that name, as in `betas.0`.
    pub index: Option<usize>,
    /// The value.
    pub setting: Setting<'a>,
}

impl Hyperparameter<'_> {
    /// Whether this is the option called `name`.
    pub(super) fn is(&self, name: &str) -> bool {
        match (self.index, name.split_once('.')) {
            (None, _) => name == self.name,
            (Some(index), Some((name, at))) => name == self.name && at.parse() == Ok(index),
            (Some(_), None) => false,
        }
    }

    /// The value; flags are 0 or 1.
    pub(super) fn get(&self) -> f64 {
        match &self.setting {
            Setting::Number(value, _) => **value,
            Setting::Flag(value) => f64::from(u8::from(**value)),
        }
    }

    /// Sets the value, in the name of function `op`.
    pub(super) fn set(&mut self, op: &'static str, value: f64) -> Result<()> {
        match &mut self.setting {
            Setting::Number(place, limit) if limit.allows(value) => **place = value,
            Setting::Number(_, limit) => {
                return Err(Error::argument(op, self.name, limit.expected(), value));
            }
            Setting::Flag(place) if value == 0.0 || value == 1.0 => **place = value != 0.0,
            Setting::Flag(_) => {
                return Err(Error::argument(op, self.name, "0 or 1 for a flag", value));
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        match &self.setting {
            Setting::Number(value, limit) if !limit.allows(**value) => {
                Err(Error::argument(op, self.name, limit.expected(), **value))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Hyperparameter<'_> {
    /// The name, as in `betas.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}.{index}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// A type that options have.
pub(super) trait Field {
    fn list<'a>(&'a mut self, name: &'static str, limit: Limit, all: &mut Vec<Hyperparameter<'a>>);
}

impl Field for f64 {
    fn list<'a>(&'a mut self, name: &'static str, limit: Limit, all: &mut Vec<Hyperparameter<'a>>) {
        all.push(Hyperparameter {
            name,
            index: None,
            setting: Setting::Number(self, limit),
        });
    }
}

impl Field for bool {
    fn list<'a>(&'a mut self, name: &'static str, _: Limit, all: &mut Vec<Hyperparameter<'a>>) {
        all.push(Hyperparameter {
            name,
            index: None,
            setting: Setting::Flag(self),
        });
    }
}

impl Field for (f64, f64) {
    fn list<'a>(&'a mut self, name: &'static str, limit: Limit, all: &mut Vec<Hyperparameter<'a>>) {
        for (index, value) in [&mut self.0, &mut self.1].into_iter().enumerate() {
            all.push(Hyperparameter {
                name,
                index: Some(index),
                setting: Setting::Number(value, limit),
            });
        }
    }
}

/// An options type with its defaults, the names of its options, and the optimizer's methods that
/// set them.
macro_rules! options {
    (
        $(#[$doc:meta])*
        $options:ident of $optimizer:ident;
        lr = $lr:expr;
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr, $limit:ident;)*
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $options {
            /// The learning rate.
            pub lr: f64,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $options {
            fn default() -> Self {
                $options { lr: $lr, $($field: $default,)* }
            }
        }

        impl $options {
            fn list(&mut self) -> Vec<$crate::optim::Hyperparameter<'_>> {
                use $crate::optim::{Limit, options::Field};
                let mut all = Vec::new();
                self.lr.list("lr", Limit::NotNegative, &mut all);
                $(self.$field.list(stringify!($field), Limit::$limit, &mut all);)*
                all
            }
        }

        impl $optimizer {
            $(
                $(#[$field_doc])*
                ///
                /// Set for all groups there are.
                #[must_use]
                pub fn $field(self, $field: $type) -> Self {
                    self.configured(|options| options.$field = $field)
                }
            )*
        }
    };
}
pub(super) use options;
