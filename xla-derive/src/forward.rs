//! `#[derive(Forward)]`.

use crate::generics::is_parameter;
use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::{Data, DeriveInput, Error, Result, parse_quote};

pub(crate) fn expand(input: &DeriveInput, nn: &TokenStream) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), "only a struct is a module"));
    };
    let (_, arguments, _) = input.generics.split_for_impl();
    let mut generics = input.generics.clone();
    let bounds = &mut generics.make_where_clause().predicates;
    for field in &data.fields {
        let ty = &field.ty;
        if is_parameter(ty, &input.generics) {
            bounds.push(parse_quote!(#ty: #nn::Forward));
        }
    }
    let ident = &input.ident;
    if input.generics.type_params().next().is_some() {
        bounds.push(parse_quote!(#ident #arguments: #nn::Module));
    }
    let (generics, _, bounds) = generics.split_for_impl();
    // A type without a method of this name would find the trait's and call itself for ever. The
    // lint sees that in code whose place is the user's. The method does not track its caller, which
    // a call through `dyn Forward` would not know: the compiler then wraps it for the vtable, and from
    // a library that shares the type's crate (a notebook's cell) the wrapper does not link.
    Ok(quote_spanned! {ident.span()=>
        #[automatically_derived]
        impl #generics #nn::Forward for #ident #arguments #bounds {
            #[deny(unconditional_recursion)]
            fn forward(
                &self,
                input: &#nn::__private::Tensor,
            ) -> #nn::__private::Result<#nn::__private::Tensor> {
                Self::forward(self, input)
            }
        }
    })
}
