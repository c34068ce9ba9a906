//! Bounds for generic structs.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Generics, Ident, Type};

/// Whether a type names one of the parameters.
pub(crate) fn mentions(ty: &Type, generics: &Generics) -> bool {
    let parameters: Vec<&Ident> = generics.type_params().map(|p| &p.ident).collect();
    !parameters.is_empty() && any(ty.to_token_stream(), &parameters)
}

fn any(tokens: TokenStream, parameters: &[&Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => parameters.contains(&&ident),
        TokenTree::Group(group) => any(group.stream(), parameters),
        _ => false,
    })
}

/// Whether a type is one of the parameters.
pub(crate) fn is_parameter(ty: &Type, generics: &Generics) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path
        .get_ident()
        .is_some_and(|ident| generics.type_params().any(|p| p.ident == *ident))
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn a_parameter_is_found_inside_other_types() {
        let generics: Generics = parse_quote!(<M, const N: usize>);
        for ty in [
            parse_quote!(M),
            parse_quote!(Vec<Option<M>>),
            parse_quote!([M; N]),
        ] {
            assert!(mentions(&ty, &generics));
        }
        assert!(!mentions(&parse_quote!(Vec<Linear>), &generics));
        assert!(is_parameter(&parse_quote!(M), &generics));
        assert!(!is_parameter(&parse_quote!(Vec<M>), &generics));
    }
}
