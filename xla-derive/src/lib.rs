//! The derive macros of `xla-nn`, which re-exports and documents them with its traits.
//!
//! They name nothing but traits of `xla-nn`, reached through whichever of `xla-nn` and `xla` the
//! deriving crate depends on.
#![forbid(unsafe_code)]

mod attributes;
mod forward;
mod generics;
mod module;

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::Span;
use quote::quote;
use syn::{DeriveInput, Ident, parse_macro_input};

/// Makes a struct a module whose fields are its parameters, buffers and submodules.
///
/// A field is what its type is: a `Tensor` a parameter, a module a submodule, a number or string
/// plain data; an `Option`, `Vec`, array, tuple or map whatever is in it. Each is named as the field
/// is, and those of a tuple struct `0`, `1`, …. What is none of these does not compile.
///
/// | attribute of a field | meaning |
/// | --- | --- |
/// | `#[module(buffer)]` | a buffer: saved and moved with the module, but not trained |
/// | `#[module(buffer, persistent = false)]` | a buffer that is not saved |
/// | `#[module(rename = "name")]` | the name it has in paths and saved files |
/// | `#[module(flatten)]` | a module whose belongings are listed as if they were this one's |
/// | `#[module(skip)]` | nothing that the module owns |
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    expand(parse_macro_input!(input as DeriveInput), module::expand)
}

/// Makes a module with a method `fn forward(&self, input: &Tensor) -> Result<Tensor>` one that
/// `Sequential` and other code that knows no more than that signature can call.
#[proc_macro_derive(Forward)]
pub fn derive_forward(input: TokenStream) -> TokenStream {
    expand(parse_macro_input!(input as DeriveInput), forward::expand)
}

type Expand = fn(&DeriveInput, &proc_macro2::TokenStream) -> syn::Result<proc_macro2::TokenStream>;

fn expand(input: DeriveInput, with: Expand) -> TokenStream {
    nn(input.ident.span())
        .and_then(|nn| with(&input, &nn))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// The path of `xla-nn` in the deriving crate.
fn nn(span: Span) -> syn::Result<proc_macro2::TokenStream> {
    // Both crates call themselves by their names (`extern crate self as …`), so that the path of a
    // dependent is right in them as well.
    let path = |found: FoundCrate, itself: &str| {
        let name = match found {
            FoundCrate::Itself => itself.to_owned(),
            FoundCrate::Name(name) => name,
        };
        Ident::new(&name, Span::call_site())
    };
    if let Ok(found) = crate_name("xla-nn") {
        let name = path(found, "xla_nn");
        return Ok(quote!(::#name));
    }
    match crate_name("xla") {
        Ok(found) => {
            let name = path(found, "xla");
            Ok(quote!(::#name::nn))
        }
        Err(error) => Err(syn::Error::new(
            span,
            format!("the crate depends on neither `xla` nor `xla-nn`: {error}"),
        )),
    }
}
