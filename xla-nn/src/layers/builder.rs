//! How layers take what has a default.
//!
//! A layer with parameters is made by `new` with PyTorch's defaults, and by `builder` otherwise:
//! its parameters must not be drawn before everything about them is known. A layer without is
//! its own builder.

/// Methods that set the fields of a builder, by value.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $ty) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

/// The same for what may be none: `x`, `Some(x)` and `None` are taken.
macro_rules! optional {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: impl Into<Option<$ty>>) -> Self {
            self.$name = $name.into();
            self
        }
    )*};
}

pub(super) use {optional, setters};
