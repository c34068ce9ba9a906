//! `#[module(…)]` on a field.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Error, Field, LitBool, LitStr, Result};

/// What a field is to its module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What its type says.
    Member,
    Buffer {
        persistent: bool,
    },
    Flatten,
    Skip,
}

#[derive(Debug)]
pub(crate) struct Attributes {
    pub(crate) role: Role,
    pub(crate) rename: Option<LitStr>,
}

impl Attributes {
    pub(crate) fn of(field: &Field) -> Result<Self> {
        let mut role: Option<(Role, Span)> = None;
        let mut rename: Option<LitStr> = None;
        let mut persistent: Option<(bool, Span)> = None;
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                let span = meta.path.span();
                let mut set = |new: Role| match role.replace((new, span)) {
                    Some(_) => Err(Error::new(
                        span,
                        "a field is only one of `buffer`, `flatten` and `skip`",
                    )),
                    None => Ok(()),
                };
                if meta.path.is_ident("buffer") {
                    set(Role::Buffer { persistent: true })
                } else if meta.path.is_ident("flatten") {
                    set(Role::Flatten)
                } else if meta.path.is_ident("skip") {
                    set(Role::Skip)
                } else if meta.path.is_ident("persistent") {
                    persistent = Some((meta.value()?.parse::<LitBool>()?.value, span));
                    Ok(())
                } else if meta.path.is_ident("rename") {
                    rename = Some(meta.value()?.parse()?);
                    Ok(())
                } else {
                    Err(meta.error(
                        "expected `buffer`, `persistent = …`, `rename = \"…\"`, `flatten` or `skip`",
                    ))
                }
            })?;
        }
        if let Some((value, span)) = persistent {
            match &mut role {
                Some((Role::Buffer { persistent }, _)) => *persistent = value,
                _ => {
                    return Err(Error::new(
                        span,
                        "only a buffer is persistent or not: `buffer, persistent = …`",
                    ));
                }
            }
        }
        if let Some(name) = &rename {
            if matches!(role, Some((Role::Flatten | Role::Skip, _))) {
                return Err(Error::new(
                    name.span(),
                    "a flattened or skipped field has no name to change",
                ));
            }
            if name.value().is_empty() || name.value().contains('.') {
                return Err(Error::new(
                    name.span(),
                    "a name is not empty and has no dot, which separates the parts of a path",
                ));
            }
        }
        Ok(Attributes {
            role: role.map_or(Role::Member, |(role, _)| role),
            rename,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    fn message(field: Field) -> String {
        Attributes::of(&field).unwrap_err().to_string()
    }

    #[test]
    fn what_a_field_may_be() {
        let role = |field: Field| Attributes::of(&field).unwrap().role;
        assert_eq!(role(parse_quote!(a: Tensor)), Role::Member);
        assert_eq!(role(parse_quote!(#[module(skip)] a: u8)), Role::Skip);
        assert_eq!(role(parse_quote!(#[module(flatten)] a: M)), Role::Flatten);
        let buffer = Role::Buffer { persistent: true };
        assert_eq!(role(parse_quote!(#[module(buffer)] a: Tensor)), buffer);
        let transient = Role::Buffer { persistent: false };
        for field in [
            parse_quote!(#[module(buffer, persistent = false)] a: Tensor),
            parse_quote!(#[module(persistent = false)] #[module(buffer)] a: Tensor),
        ] {
            assert_eq!(role(field), transient);
        }
        let renamed = Attributes::of(&parse_quote!(#[module(rename = "w")] a: Tensor)).unwrap();
        assert_eq!(renamed.rename.map(|name| name.value()), Some("w".into()));
    }

    #[test]
    fn what_a_field_may_not_be() {
        assert!(message(parse_quote!(#[module(skip, buffer)] a: u8)).contains("only one of"));
        assert!(
            message(parse_quote!(#[module(persistent = true)] a: u8)).contains("only a buffer")
        );
        assert!(message(parse_quote!(#[module(bufer)] a: u8)).starts_with("expected `buffer`"));
        assert!(message(parse_quote!(#[module(rename = "a.b")] a: u8)).contains("no dot"));
        assert!(message(parse_quote!(#[module(skip, rename = "b")] a: u8)).contains("no name"));
    }
}
