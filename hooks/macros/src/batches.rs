//! The attribute of functions that take their inputs in batches.
//!
//! The function keeps its body under another name. Under its own stands an `async` one that takes one input, and waits for one output.
//! The state of methods is a deployment's, so `#[deployment]` writes those: the attribute stays on the method with the body, and there it changes nothing.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ImplItem, ImplItemFn, ItemFn, ItemImpl, LitInt, LitStr, Meta, Pat,
    PathArguments, ReceiverKind, ReturnType, Signature, Token, Type, Visibility,
};

use crate::items;
use crate::signature::{self, Mistakes, is_named};

/// The most inputs in a batch: a span has as many links.
const MAX_SIZE: u32 = 4096;
/// The longest that an input may be told to wait.
const MAX_WAIT: u64 = 3_600_000_000_000;
/// Argument of the attribute where it has done its work.
const DONE: &str = "__written";

/// A batched function of a deployment.
pub(crate) struct Batched {
    pub(crate) name: String,
    pub(crate) max_size: u32,
    attribute: Attribute,
}

/// Returns the one with the largest batches, which have to be possible with the limit of requests that the attribute says.
pub(crate) fn largest(batched: &[Batched], max_ongoing: u32, mistakes: &mut Mistakes) -> TokenStream {
    for Batched { name, max_size, attribute } in batched {
        if max_ongoing != 0 && *max_size > max_ongoing {
            let message = format!(
                "`{name}` collects up to {max_size} requests (`max_size`), and a replica handles {max_ongoing} at a time (`max_ongoing_requests`): \
                 a batch would never be full"
            );
            mistakes.add(attribute, message);
        }
    }
    match batched.iter().max_by_key(|batched| batched.max_size) {
        Some(Batched { name, max_size, .. }) => quote!(::core::option::Option::Some((#name, #max_size))),
        None => quote!(::core::option::Option::None),
    }
}

struct Settings {
    max_size: u32,
    wait_nanos: u64,
}

/// Expands the attribute where it stands alone: on a function.
pub(crate) fn batch(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if arguments.to_string() == DONE {
        return item;
    }
    let Ok(mut function) = syn::parse2::<ItemFn>(item.clone()) else {
        let message = "`#[batch]` takes a function with a body, or a method of an `impl` block with `#[deployment]`";
        let error = Error::new_spanned(&item, message).into_compile_error();
        return quote!(#item #error);
    };
    if let Some(index) = function.attrs.iter().position(|attribute| is_attribute(attribute, "deployment")) {
        // The deployment's attribute goes first, because it has to know of this one.
        let deployment = function.attrs.remove(index);
        return quote!(#deployment #[::tracer_sdk::serve::batch(#arguments)] #function);
    }
    let mut mistakes = Mistakes::default();
    let settings = settings_of(arguments, &mut mistakes);
    let written = of_function(&function, &settings, &mut mistakes).unwrap_or(function);
    let errors = mistakes.report();
    quote!(#written #errors)
}

/// Takes the attribute off a function that is a deployment, and writes what is called in its place.
pub(crate) fn take_from_function(function: &mut ItemFn, mistakes: &mut Mistakes) -> Option<Batched> {
    let index = function.attrs.iter().position(|attribute| is_attribute(attribute, "batch"))?;
    let attribute = function.attrs.remove(index);
    let settings = settings_of(arguments_of(&attribute), mistakes);
    let batched = batched(&function.sig.ident, &settings, &attribute);
    let mut written = of_function(function, &settings, mistakes)?;
    // So that the name of the attribute is used, and says so when it is not known.
    let path = attribute.path();
    let done = Ident::new(DONE, attribute.span());
    written.block.stmts.insert(0, syn::parse_quote! { #[#path(#done)] const _: () = (); });
    *function = written;
    Some(batched)
}

/// Takes the attribute off the methods of a deployment, and writes beside each what is called in its place.
pub(crate) fn take_from_block(block: &mut ItemImpl, mistakes: &mut Mistakes) -> Vec<Batched> {
    let (mut all, mut written) = (Vec::new(), Vec::new());
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        let Some(index) = method.attrs.iter().position(|attribute| is_attribute(attribute, "batch")) else { continue };
        let attribute = method.attrs.remove(index);
        let settings = settings_of(arguments_of(&attribute), mistakes);
        let found = batched(&method.sig.ident, &settings, &attribute);
        if let Some(called) = of_method(method, &settings, &attribute, mistakes) {
            written.push(ImplItem::Fn(called));
            all.push(found);
        }
    }
    block.items.extend(written);
    all
}

fn is_attribute(attribute: &Attribute, name: &str) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
}

/// Returns whether an attribute is for what is called in the place of a batch.
fn is_of_caller(attribute: &Attribute) -> bool {
    ["doc", "cfg", "allow", "deprecated"].iter().any(|name| attribute.path().is_ident(name))
}

/// Returns whether an attribute is for the function with the body, such as `#[instrument]`.
fn is_of_body(attribute: &Attribute) -> bool {
    !["doc", "deprecated"].iter().any(|name| attribute.path().is_ident(name))
}

fn batched(name: &Ident, settings: &Settings, attribute: &Attribute) -> Batched {
    Batched { name: name.unraw().to_string(), max_size: settings.max_size, attribute: attribute.clone() }
}

/// Reads the settings. In place of wrong ones there are others, so that callers are no further cause of errors.
fn settings_of(arguments: TokenStream, mistakes: &mut Mistakes) -> Settings {
    settings(arguments).unwrap_or_else(|error| {
        mistakes.put(error);
        Settings { max_size: 1, wait_nanos: 0 }
    })
}

fn arguments_of(attribute: &Attribute) -> TokenStream {
    match &attribute.meta {
        Meta::List(list) => list.tokens.clone(),
        Meta::Path(_) | Meta::NameValue(_) => TokenStream::new(),
    }
}

fn settings(arguments: TokenStream) -> syn::Result<Settings> {
    let parse = |input: ParseStream<'_>| {
        let (mut max_size, mut wait_nanos) = (None, 0);
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            if key == "max_size" {
                let number: LitInt = input.parse()?;
                let within = number.base10_parse::<u32>().ok().filter(|number| (1..=MAX_SIZE).contains(number));
                let expected = || Error::new(number.span(), format!("`max_size` takes a number from 1 to {MAX_SIZE}"));
                max_size = Some(within.ok_or_else(expected)?);
            } else if key == "wait" {
                let text: LitStr = input.parse()?;
                let expected =
                    || Error::new(text.span(), "`wait` takes a time of up to an hour, such as \"5ms\" or \"0\"");
                wait_nanos = nanos(&text.value()).filter(|nanos| *nanos <= MAX_WAIT).ok_or_else(expected)?;
            } else {
                return Err(Error::new(key.span(), "`#[batch]` takes `max_size = N` and `wait = \"5ms\"`"));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let missing = "`#[batch]` needs `max_size = N`: the most inputs in a batch";
        let max_size = max_size.ok_or_else(|| Error::new(proc_macro2::Span::call_site(), missing))?;
        Ok(Settings { max_size, wait_nanos })
    };
    Parser::parse2(parse, arguments)
}

/// Reads a time: a whole number and its unit.
fn nanos(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = match unit.trim_start() {
        "" if number == 0 => 1,
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// The signature of a batch, taken apart.
struct Parts {
    /// Type of an input.
    input: Type,
    /// Type of an output.
    output: Type,
    /// The error, if the function may fail.
    result: Option<Type>,
}

fn parts(signature: &Signature, mistakes: &mut Mistakes) -> Option<Parts> {
    signature::check("batch", signature, mistakes);
    let inputs: Vec<_> = signature.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).collect();
    let input = match inputs[..] {
        [FnArg::Typed(input)] => element(&input.ty, "Vec").filter(|_| matches!(&*input.pat, Pat::Ident(_))),
        _ => None,
    };
    if input.is_none() {
        let at = if signature.inputs.is_empty() {
            signature.ident.to_token_stream()
        } else {
            signature.inputs.to_token_stream()
        };
        mistakes.add(at, "a batch takes one parameter, `inputs: Vec<T>`: the inputs of its callers");
    }
    let (output, result) = match &signature.output {
        ReturnType::Type(_, ty) if is_named(ty, "Result") => {
            (element(ty, "Result").and_then(|ty| element(&ty, "Vec")), Some((**ty).clone()))
        }
        ReturnType::Type(_, ty) => (element(ty, "Vec"), None),
        ReturnType::Default => (None, None),
    };
    if output.is_none() {
        let message = "a batch returns `Vec<T>`, an output for each input in their order, or a `Result` of it";
        match &signature.output {
            ReturnType::Default => mistakes.add(&signature.ident, message),
            output => mistakes.add(output, message),
        }
    }
    Some(Parts { input: input?, output: output?, result })
}

/// Returns the first generic argument of a type with this name.
pub(crate) fn element(ty: &Type, name: &str) -> Option<Type> {
    if !is_named(ty, name) {
        return None;
    }
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    })
}

/// Returns the outputs that `returned` is, as a result of the SDK's.
fn outputs(parts: &Parts) -> TokenStream {
    let Some(ty) = &parts.result else { return quote!(::core::result::Result::Ok(returned)) };
    let uses = items::outcome_traits();
    quote_spanned! {ty.span()=>
        match returned {
            ::core::result::Result::Ok(outputs) => ::core::result::Result::Ok(outputs),
            ::core::result::Result::Err(error) => {
                #uses
                ::core::result::Result::Err(::tracer_sdk::export::Failure::returned(
                    &error,
                    (&&&&::tracer_sdk::export::ErrorProbe(&error)).text(),
                ))
            }
        }
    }
}

/// Returns what awaits a batch, or runs it on a thread.
fn returned(signature: &Signature, called: &TokenStream) -> TokenStream {
    if signature.asyncness.is_some() {
        quote!(#called.await)
    } else {
        quote!(::tracer_sdk::serve::on_a_thread(move || #called).await?)
    }
}

fn point(name: &Ident, settings: &Settings) -> TokenStream {
    let (name, Settings { max_size, wait_nanos }) = (name.unraw().to_string(), settings);
    quote! {
        static POINT: ::tracer_sdk::serve::BatchPoint =
            ::tracer_sdk::serve::BatchPoint::new(#name, #max_size, #wait_nanos);
    }
}

/// Returns the function that is called in the place of a batch, with the batch in it.
fn of_function(function: &ItemFn, settings: &Settings, mistakes: &mut Mistakes) -> Option<ItemFn> {
    if let Some(receiver) = function.sig.receiver() {
        mistakes.add(receiver, "a batched method is one of an `impl` block with `#[deployment]`, where its state is");
        return None;
    }
    let parts = parts(&function.sig, mistakes)?;
    let (name, point, outputs) = (&function.sig.ident, point(&function.sig.ident, settings), outputs(&parts));
    let batch = format_ident!("__batch_of_{}", name.unraw());
    let mut body = function.clone();
    body.attrs.retain(is_of_body);
    body.vis = Visibility::Inherited;
    body.sig.ident = batch.clone();
    let Parts { input, output, .. } = &parts;
    let returned = returned(&function.sig, &quote!(#batch(inputs)));
    let (attributes, visibility) = (function.attrs.iter().filter(|attribute| is_of_caller(attribute)), &function.vis);
    Some(syn::parse_quote! {
        #(#attributes)*
        #visibility async fn #name(input: #input) -> ::core::result::Result<#output, ::tracer_sdk::serve::BatchError> {
            #body
            #point
            async fn run(inputs: ::std::vec::Vec<#input>) -> ::core::result::Result<::std::vec::Vec<#output>, ::tracer_sdk::export::Failure> {
                let returned = #returned;
                #outputs
            }
            match POINT.no_state() {
                ::core::option::Option::Some(state) => {
                    POINT.collect(state, input, |_, inputs| ::std::boxed::Box::pin(run(inputs))).await
                }
                ::core::option::Option::None => POINT.alone(run(::std::vec![input])).await,
            }
        }
    })
}

/// Renames the method with the body, and returns the one that is called in its place.
fn of_method(
    method: &mut ImplItemFn,
    settings: &Settings,
    attribute: &Attribute,
    mistakes: &mut Mistakes,
) -> Option<ImplItemFn> {
    let shared = method.sig.receiver().is_some_and(
        |receiver| matches!(&receiver.kind, ReceiverKind::Reference(_, _, mutability) if mutability.is_none()),
    );
    if !shared {
        mistakes.add(&method.sig.ident, "a batched method takes `&self`: callers share the deployment's state");
    }
    if matches!(method.sig.ident.to_string().as_str(), "new" | "health" | "reconfigure") {
        mistakes.add(&method.sig.ident, format!("`{}` is the host's to call, and cannot be a batch", method.sig.ident));
        return None;
    }
    let parts = parts(&method.sig, mistakes).filter(|_| shared)?;
    let (name, point, outputs) = (method.sig.ident.clone(), point(&method.sig.ident, settings), outputs(&parts));
    let batch = format_ident!("__batch_of_{}", name.unraw());
    let Parts { input, output, .. } = &parts;
    let shared = quote!(Self::#batch(&*state, inputs));
    let (of_shared, of_self) = match &method.sig.asyncness {
        Some(_) => (returned(&method.sig, &shared), quote!(Self::#batch(self, inputs).await)),
        None => (returned(&method.sig, &shared), quote!(Self::#batch(self, inputs))),
    };
    let (attributes, visibility) = (method.attrs.iter().filter(|attribute| is_of_caller(attribute)), &method.vis);
    let called = syn::parse_quote! {
        #(#attributes)*
        #visibility async fn #name(&self, input: #input) -> ::core::result::Result<#output, ::tracer_sdk::serve::BatchError> {
            #point
            match POINT.state(self) {
                ::core::option::Option::Some(state) => {
                    POINT.collect(state, input, |state: ::std::sync::Arc<Self>, inputs| ::std::boxed::Box::pin(async move {
                        let returned = #of_shared;
                        #outputs
                    })).await
                }
                ::core::option::Option::None => {
                    let inputs = ::std::vec![input];
                    POINT.alone(async move {
                        let returned = #of_self;
                        #outputs
                    }).await
                }
            }
        }
    };
    let path = attribute.path();
    let done = Ident::new(DONE, attribute.span());
    method.attrs.retain(is_of_body);
    method.attrs.push(syn::parse_quote!(#[#path(#done)]));
    method.attrs.push(syn::parse_quote!(#[doc(hidden)]));
    method.vis = Visibility::Inherited;
    method.sig.ident = batch;
    Some(called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_or_are_nothing() {
        for (text, expected) in [
            ("0", Some(0)),
            ("5ms", Some(5_000_000)),
            ("250us", Some(250_000)),
            ("250 µs", Some(250_000)),
            ("1s", Some(1_000_000_000)),
            ("7ns", Some(7)),
            ("5", None),
            ("ms", None),
            ("", None),
            ("1.5ms", None),
            ("99999999999999999999s", None),
            ("99999999999m", None),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }
}
