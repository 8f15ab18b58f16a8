//! The attributes: a function and the item that describes it.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{ItemFn, ReturnType, Signature};

use crate::signature::{self, Mistakes, Parameter, conditions, doc, is_named, type_text};

/// The kinds of items, by the attribute that makes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Task,
    Hook,
    Load,
}

impl Kind {
    /// Returns the name of the constant that describes the function `name`.
    pub(crate) fn constant(self, name: &Ident) -> Ident {
        let kind = match self {
            Kind::Task => "task",
            Kind::Hook => "hook",
            Kind::Load => "load",
        };
        format_ident!("__tracer_{kind}_{}", name.unraw(), span = name.span())
    }

    /// Returns the type of that constant.
    pub(crate) fn item_type(self) -> TokenStream {
        match self {
            Kind::Task => quote!(::tracer_sdk::export::TaskItem),
            Kind::Hook => quote!(::tracer_sdk::export::HookItem),
            Kind::Load => quote!(::tracer_sdk::export::LoadItem),
        }
    }
}

pub(crate) fn task(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = match signature::function("task", &arguments, item) {
        Ok(function) => function,
        Err(instead) => return instead,
    };
    let mut mistakes = Mistakes::default();
    signature::check("task", &function.sig, &mut mistakes);
    let parameters = signature::parameters(&function.sig, &mut mistakes);
    if let Some(errors) = mistakes.report() {
        return refused(function, errors);
    }

    let descriptions = descriptions(&parameters);
    let result_type = result_type(&function.sig.output);
    let is_async = function.sig.asyncness.is_some();
    let run = run(&function, &parameters);
    let fields = quote! {
        is_async: #is_async,
        parameters: &[#(#descriptions),*],
        result_type: #result_type,
        run: { #run __tracer_run },
    };
    described(Kind::Task, &function, fields)
}

/// Returns what the record says of the parameters.
pub(crate) fn descriptions(parameters: &[Parameter]) -> Vec<TokenStream> {
    let describe = |Parameter { name, type_text, is_optional, .. }: &Parameter| {
        quote! {
            ::tracer_sdk::export::ParameterItem { name: #name, type_name: #type_text, is_optional: #is_optional }
        }
    };
    parameters.iter().map(describe).collect()
}

/// Returns the type of the result, as written.
pub(crate) fn result_type(output: &ReturnType) -> String {
    match output {
        ReturnType::Default => "()".to_owned(),
        ReturnType::Type(_, ty) => type_text(ty),
    }
}

fn local(index: usize) -> Ident {
    format_ident!("argument_{index}")
}

/// Returns the statements that decode the arguments.
pub(crate) fn decode(parameters: &[Parameter]) -> Vec<TokenStream> {
    let decode = |(index, parameter): (usize, &Parameter)| {
        let (owned, local) = (&parameter.owned, local(index));
        // With the span of the type, so that one that cannot be decoded is what the compiler points at.
        quote_spanned!(owned.span()=> let #local = arguments.take::<#owned>(#index)?;)
    };
    parameters.iter().enumerate().map(decode).collect()
}

/// Returns the names of the decoded arguments.
pub(crate) fn locals(parameters: &[Parameter]) -> Vec<Ident> {
    (0..parameters.len()).map(local).collect()
}

/// Returns the decoded arguments, as they are passed.
pub(crate) fn passed(parameters: &[Parameter]) -> Vec<TokenStream> {
    let pass = |(index, parameter): (usize, &Parameter)| {
        let local = local(index);
        if parameter.is_reference { quote!(&#local) } else { quote!(#local) }
    };
    parameters.iter().enumerate().map(pass).collect()
}

/// Returns the call, run to its end if it is a future.
pub(crate) fn awaited(signature: &Signature, called: TokenStream) -> TokenStream {
    match &signature.asyncness {
        Some(token) => quote_spanned!(token.span()=> ::tracer_sdk::__private::block_on(#called)?),
        None => called,
    }
}

/// Returns what finds out how to put a result or an error into words.
pub(crate) fn outcome_traits() -> TokenStream {
    quote! {
        #[allow(unused_imports)]
        use ::tracer_sdk::export::{
            ViaBoxedError as _, ViaDisplay as _, ViaError as _, ViaNothing as _, ViaResult as _,
            ViaUnserializable as _, ViaValue as _,
        };
    }
}

/// Returns what becomes of `returned`.
pub(crate) fn outcome(output: &ReturnType) -> TokenStream {
    // A type that is called `Result` is taken for one: what it lacks can then be said plainly. For others, the
    // types decide.
    match output {
        ReturnType::Type(_, ty) if is_named(ty, "Result") => {
            let failed = quote_spanned! {ty.span()=>
                ::tracer_sdk::export::Failure::returned(&error, (&&&&::tracer_sdk::export::ErrorProbe(&error)).text())
            };
            let encoded = quote_spanned!(ty.span()=> ::tracer_sdk::export::encode(&value));
            quote! {
                match returned {
                    ::core::result::Result::Ok(value) => #encoded,
                    ::core::result::Result::Err(error) => ::core::result::Result::Err(#failed),
                }
            }
        }
        output => quote_spanned!(output.span()=> ::tracer_sdk::export::ReturnProbe(returned).outcome()),
    }
}

/// Returns the function that decodes the arguments, calls the task and encodes what it returns.
fn run(function: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let name = &function.sig.ident;
    let (decoded, passed) = (decode(parameters), passed(parameters));
    let called = awaited(&function.sig, quote!(#name(#(#passed),*)));
    let (uses, outcome) = (outcome_traits(), outcome(&function.sig.output));
    quote! {
        fn __tracer_run(arguments: &mut ::tracer_sdk::export::Arguments<'_>) -> ::tracer_sdk::export::Outcome {
            #uses
            #(#decoded)*
            arguments.begin_run();
            let returned = #called;
            arguments.begin_encode();
            #outcome
        }
    }
}

pub(crate) fn startup_hook(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (contract, export) = (quote!(HOOK_STARTUP), quote!(export));
    hook("startup_hook", &contract, &export, arguments, item)
}

pub(crate) fn tracing_exporter(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (contract, export) = (quote!(HOOK_EXPORTER), quote!(export_processors));
    hook("tracing_exporter", &contract, &export, arguments, item)
}

/// Returns a hook of one of the contracts: `export` turns what the function returns into a table.
fn hook(
    attribute: &str,
    contract: &TokenStream,
    export: &TokenStream,
    arguments: TokenStream,
    item: TokenStream,
) -> TokenStream {
    let function = match plain(attribute, arguments, item) {
        Ok(function) => function,
        Err(instead) => return instead,
    };
    let name = &function.sig.ident;
    let span = match &function.sig.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, ty) => ty.span(),
    };
    let export = quote_spanned!(span=> ::tracer_sdk::hook::#export(#name));
    let fields = quote!(contract: ::tracer_sdk::__private::#contract, setup: || #export,);
    described(Kind::Hook, &function, fields)
}

pub(crate) fn on_load(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = match plain("on_load", arguments, item) {
        Ok(function) => function,
        Err(instead) => return instead,
    };
    let name = &function.sig.ident;
    let span = match &function.sig.output {
        ReturnType::Default => name.span(),
        ReturnType::Type(_, ty) => ty.span(),
    };
    let run = quote_spanned!(span=> ::tracer_sdk::__private::LoadResult::into_result(#name()));
    described(Kind::Load, &function, quote!(run: || #run,))
}

/// Returns a function that takes nothing.
fn plain(attribute: &str, arguments: TokenStream, item: TokenStream) -> Result<ItemFn, TokenStream> {
    let function = signature::function(attribute, &arguments, item)?;
    let mut mistakes = Mistakes::default();
    signature::check_plain(attribute, &function.sig, &mut mistakes);
    match mistakes.report() {
        Some(errors) => Err(refused(function, errors)),
        None => Ok(function),
    }
}

/// Returns the function with what is wrong about it. It stays, so that nobody is also told that it does not exist. A method, which
/// outside of an `impl` would be one error more, does not.
fn refused(function: ItemFn, errors: TokenStream) -> TokenStream {
    if function.sig.receiver().is_some() { errors } else { quote!(#function #errors) }
}

/// Returns the function, and beside it the constant that describes it, registered.
fn described(kind: Kind, function: &ItemFn, fields: TokenStream) -> TokenStream {
    let ItemFn { attrs, vis, sig, .. } = function;
    let conditions = conditions(attrs);
    let name = sig.ident.unraw().to_string();
    let constant = kind.constant(&sig.ident);
    let item_type = kind.item_type();
    let doc = doc(attrs);
    // The line of the name: without its span it would be that of the attribute.
    let line = quote_spanned!(sig.ident.span()=> ::core::line!());
    let names = match kind {
        Kind::Load => quote!(),
        Kind::Task | Kind::Hook => quote!(name: #name, doc: #doc,),
    };
    quote! {
        #function

        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_upper_case_globals)]
        #vis const #constant: #item_type = #item_type {
            #names
            crate_name: ::core::env!("CARGO_PKG_NAME"),
            crate_version: ::core::env!("CARGO_PKG_VERSION"),
            function_name: ::core::concat!(::core::module_path!(), "::", #name),
            file: ::core::file!(),
            line: #line,
            #fields
        };

        #(#conditions)*
        const _: () = {
            ::tracer_sdk::__private::inventory::submit! { #constant }
        };
    }
}
