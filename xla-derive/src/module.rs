//! `#[derive(Module)]`.

use crate::attributes::{Attributes, Role};
use crate::generics::mentions;
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use std::collections::HashSet;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Index, LitStr, Member, Result, parse_quote};

pub(crate) fn expand(input: &DeriveInput, nn: &TokenStream) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "only a struct is a module; for one of several modules use a Box<dyn Forward>",
        ));
    };
    let mut generics = input.generics.clone();
    let bounds = &mut generics.make_where_clause().predicates;
    let mut visits = Vec::new();
    let mut names = HashSet::new();
    for (position, field) in data.fields.iter().enumerate() {
        let attributes = Attributes::of(field)?;
        let (member, name) = named(field, position, &attributes);
        let ty = &field.ty;
        // At the field's type, where the compiler should say that it is neither module nor data.
        let at = Span::call_site().located_at(ty.span());
        if matches!(attributes.role, Role::Member | Role::Buffer { .. })
            && !names.insert(name.value())
        {
            return Err(Error::new(
                name.span(),
                format!("another field has the name `{}` already", name.value()),
            ));
        }
        let (visit, bound) = match attributes.role {
            Role::Member => (
                quote_spanned!(at=> #nn::Member::show(&self.#member, #name, visitor);),
                quote!(#nn::Member),
            ),
            Role::Buffer { persistent } => (
                quote_spanned!(at=> #nn::Buffer::show(&self.#member, #name, #persistent, visitor);),
                quote!(#nn::Buffer),
            ),
            Role::Flatten => (
                quote_spanned!(at=> #nn::Module::visit(&self.#member, visitor);),
                quote!(#nn::Module),
            ),
            Role::Skip => (
                TokenStream::new(),
                quote!(::core::marker::Send + ::core::marker::Sync),
            ),
        };
        visits.push(visit);
        if mentions(ty, &input.generics) {
            bounds.push(parse_quote!(#ty: #bound));
        }
    }
    let (generics, arguments, bounds) = {
        let (_, arguments, _) = input.generics.split_for_impl();
        let (generics, _, bounds) = generics.split_for_impl();
        (quote!(#generics), quote!(#arguments), quote!(#bounds))
    };
    let ident = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        impl #generics #nn::Module for #ident #arguments #bounds {
            #[allow(unused_variables)]
            fn visit<'__module>(
                &'__module self,
                visitor: &mut #nn::Visitor<'_, '__module>,
            ) {
                #(#visits)*
            }
        }

        #[automatically_derived]
        impl #generics #nn::__private::State for #ident #arguments #bounds {
            fn visit_state<'__state>(
                &'__state self,
                visitor: &mut #nn::__private::StateVisitor<'__state>,
            ) {
                #nn::__private::visit_module(self, visitor);
            }
        }
    })
}

/// How the field is accessed, and what it is called in paths.
fn named(field: &Field, position: usize, attributes: &Attributes) -> (Member, LitStr) {
    let (member, default) = match &field.ident {
        Some(ident) => {
            // A raw identifier is raw for the compiler only.
            let text = ident.to_string();
            let text = text.strip_prefix("r#").unwrap_or(&text).to_owned();
            (
                Member::Named(ident.clone()),
                LitStr::new(&text, ident.span()),
            )
        }
        None => (
            Member::Unnamed(Index {
                index: position as u32,
                span: Span::call_site(),
            }),
            LitStr::new(&position.to_string(), field.ty.span()),
        ),
    };
    (member, attributes.rename.clone().unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(input: DeriveInput) -> String {
        expand(&input, &quote!(::nn)).unwrap_err().to_string()
    }

    #[test]
    fn two_fields_have_two_names() {
        let twice = parse_quote! {
            struct Net {
                a: Linear,
                #[module(rename = "a")]
                b: Linear,
            }
        };
        assert!(message(twice).contains("the name `a` already"));
    }

    #[test]
    fn an_enum_is_no_module() {
        assert!(
            message(parse_quote!(
                enum Either {
                    A,
                    B,
                }
            ))
            .starts_with("only a struct")
        );
    }

    #[test]
    fn only_fields_that_name_a_parameter_bound_it() {
        let generic = parse_quote! {
            struct Residual<M> {
                inner: M,
                norm: LayerNorm,
                #[module(skip)]
                cache: Cache<M>,
            }
        };
        let code = expand(&generic, &quote!(::nn)).unwrap().to_string();
        assert!(code.contains("M : :: nn :: Member"), "{code}");
        assert!(code.contains("Cache < M > : :: core"), "{code}");
        assert!(!code.contains("LayerNorm : "), "{code}");
    }
}
