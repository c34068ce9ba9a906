//! The call that an error is about: the line that made it and the operator's name.

use super::{Error, Site};
use std::panic::Location;

impl Error {
    /// The same error with the call's line, unless it has one already.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        if let Some(site) = self.site_mut()
            && site.location().is_none()
        {
            *site = location.into();
        }
        self
    }

    /// The same error with this line in place of the one it has: for code that calls on behalf of
    /// its own caller through a trait object, which does not pass the line on.
    #[must_use]
    pub fn relocated(mut self, location: &'static Location<'static>) -> Self {
        if let Some(site) = self.site_mut() {
            *site = location.into();
        }
        self
    }

    /// The same error of another operator, where it names one: for an operator that is another one
    /// and something more, as `add_` is `add`.
    #[must_use]
    pub fn named(mut self, name: &'static str) -> Self {
        if let Error::Broadcast { op, .. }
        | Error::ShapeMismatch { op, .. }
        | Error::Axis { op, .. }
        | Error::DTypeMismatch { op, .. }
        | Error::DeviceMismatch { op, .. }
        | Error::IndexOutOfRange { op, .. }
        | Error::Argument { op, .. }
        | Error::Mesh { op, .. }
        | Error::Sharding { op, .. }
        | Error::Autograd { op, .. }
        | Error::InBody { op, .. }
        | Error::ForeignTrace { op, .. } = &mut self
        {
            *op = name;
        }
        self
    }

    /// The line of the call, where it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        let mut copy = self.clone();
        copy.site_mut().and_then(|site| site.location())
    }

    fn site_mut(&mut self) -> Option<&mut Site> {
        match self {
            Error::Broadcast { at, .. }
            | Error::ShapeMismatch { at, .. }
            | Error::Axis { at, .. }
            | Error::DTypeMismatch { at, .. }
            | Error::DeviceMismatch { at, .. }
            | Error::IndexOutOfRange { at, .. }
            | Error::Argument { at, .. }
            | Error::Mesh { at, .. }
            | Error::Sharding { at, .. }
            | Error::Autograd { at, .. }
            | Error::InBody { at, .. }
            | Error::NotANumber { at, .. }
            | Error::Step { at, .. }
            | Error::StateDict { at, .. }
            | Error::GraphBreak { at, .. }
            | Error::TooManyGraphs { at, .. }
            | Error::CapturedNumber { at, .. }
            | Error::CapturedChoice { at, .. }
            | Error::ForeignTrace { at, .. } => Some(at),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn an_error_names_operator_shapes_and_line() {
        let here = Location::caller();
        let error = Error::Broadcast {
            op: "add",
            left: vec![2, 3],
            right: vec![4],
            at: Site::NONE,
        };
        let text = error.at(here).to_string();
        assert!(
            text.starts_with("add: shapes [2, 3] and [4] do not broadcast"),
            "{text}"
        );
        assert!(
            text.contains(&format!("{}:{}", file!(), here.line())),
            "{text}"
        );
    }

    #[test]
    fn an_error_can_be_anothers() {
        let error = Error::dtype("exp", "a float dtype", DType::I64).named("exp_");
        assert_eq!(error.to_string(), "exp_: expected a float dtype, got i64");
    }

    #[test]
    fn the_first_line_wins() {
        let first = Location::caller();
        let error = Error::dtype("exp", "a float dtype", DType::I64).at(first);
        let second = Location::caller();
        let error = error.at(second);
        assert_eq!(error.location().map(Location::line), Some(first.line()));
        assert_eq!(error.relocated(second).location(), Some(second));
    }
}
