//! The methods of a deployment's type that other deployments and tasks call by its handle.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    FnArg, GenericArgument, ImplItem, ImplItemFn, ItemImpl, PathArguments, ReceiverKind, ReturnType, Type, Visibility,
};

use crate::items;
use crate::signature::{self, Mistakes, conditions, is_named};

/// The methods that the loop of a replica calls.
const OWN: [&str; 4] = ["new", "handle", "health", "reconfigure"];

/// Returns the functions of the handler that call methods by their names.
pub(crate) fn dispatch(block: &ItemImpl, mistakes: &mut Mistakes) -> TokenStream {
    let callable: Vec<_> = block.items.iter().filter_map(callable).collect();
    let arms: Vec<_> = callable.iter().map(|method| arm(&block.self_ty, method, mistakes)).collect();
    let names = callable.iter().map(|method| {
        let (name, conditions) = (method.sig.ident.unraw().to_string(), conditions(&method.attrs));
        quote!(#(#conditions)* #name)
    });
    quote! {
        fn methods(&self) -> &'static [&'static str] {
            &[#(#names),*]
        }

        fn call_method(
            &self,
            method: &str,
            arguments: ::tracer_sdk::serve::Bytes,
        ) -> ::core::option::Option<::std::pin::Pin<::std::boxed::Box<
            dyn ::core::future::Future<Output = ::tracer_sdk::serve::Handled> + ::core::marker::Send,
        >>> {
            let state = self.0.clone();
            let _ = (&state, &arguments);
            match method {
                #(#arms)*
                _ => ::core::option::Option::None,
            }
        }
    }
}

/// Returns a method that can be called: public and `async`, with `&self`.
fn callable(item: &ImplItem) -> Option<&ImplItemFn> {
    let ImplItem::Fn(method) = item else { return None };
    let is_shared = method.sig.receiver().is_some_and(
        |receiver| matches!(&receiver.kind, ReceiverKind::Reference(_, _, mutability) if mutability.is_none()),
    );
    let is_own = OWN.contains(&method.sig.ident.unraw().to_string().as_str());
    let is_plain = method.sig.asyncness.is_some() && method.sig.generics.params.is_empty();
    (matches!(method.vis, Visibility::Public(_)) && is_shared && is_plain && !is_own).then_some(method)
}

fn arm(ty: &Type, method: &ImplItemFn, mistakes: &mut Mistakes) -> TokenStream {
    let mut plain = method.sig.clone();
    plain.inputs = method.sig.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).cloned().collect();
    let parameters = signature::parameters(&plain, mistakes);
    let (ident, name) = (&method.sig.ident, method.sig.ident.unraw().to_string());
    let (descriptions, decoded) = (items::descriptions(&parameters), items::decode(&parameters));
    let (locals, passed) = (items::locals(&parameters), items::passed(&parameters));
    let answer = answer(&method.sig.output);
    let (uses, conditions) = (items::outcome_traits(), conditions(&method.attrs));
    let taken = quote!(::tracer_sdk::serve::method_arguments(#name, &[#(#descriptions),*], &arguments)?);
    let taken = match parameters.is_empty() {
        true => quote!(::core::mem::drop(#taken);),
        false => quote! {
            let (#(#locals,)*) = {
                let mut arguments = #taken;
                #(#decoded)*
                (#(#locals,)*)
            };
        },
    };
    quote! {
        #(#conditions)*
        #name => ::core::option::Option::Some(::std::boxed::Box::pin(async move {
            #uses
            #taken
            let returned = <#ty>::#ident(&*state #(, #passed)*).await;
            #answer
        })),
    }
}

/// Returns what becomes of `returned`: values that come one after the other, or one value, or an error.
fn answer(output: &ReturnType) -> TokenStream {
    let streamed = |ty: &Type| is_named(ty, "Values");
    match output {
        ReturnType::Type(_, ty) if streamed(ty) => {
            quote_spanned!(ty.span()=> ::core::result::Result::Ok(returned.into_response()))
        }
        ReturnType::Type(_, ty) if is_named(ty, "Result") && first_argument(ty).is_some_and(streamed) => {
            quote_spanned! {ty.span()=>
                match returned {
                    ::core::result::Result::Ok(values) => ::core::result::Result::Ok(values.into_response()),
                    ::core::result::Result::Err(error) => ::core::result::Result::Err(
                        ::tracer_sdk::export::Failure::returned(
                            &error,
                            (&&&&::tracer_sdk::export::ErrorProbe(&error)).text(),
                        ),
                    ),
                }
            }
        }
        output => {
            let outcome = items::outcome(output);
            quote! {
                let outcome: ::tracer_sdk::export::Outcome = #outcome;
                outcome.map(::tracer_sdk::serve::method_answer)
            }
        }
    }
}

fn first_argument(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}
