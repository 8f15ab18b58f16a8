//! The attribute of deployments, on a function or an `impl` block, and the item that describes it.
//!
//! Both stay as they are. The item has a function that makes a handler: of a function at once, of a type when its `new` has returned.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Error, FnArg, ImplItem, ImplItemFn, ItemFn, ItemImpl, ReceiverKind, ReturnType, Signature, Type, Visibility,
};

use crate::signature::{self, Mistakes, Parameter, conditions, doc, is_named};
use crate::{batches, items, methods};

/// The most requests that a replica may be told to handle at a time.
const MAX_ONGOING_LIMIT: u32 = 1_000_000;

pub(crate) fn deployment(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let max_ongoing = match signature::number("deployment", arguments, "max_ongoing_requests", MAX_ONGOING_LIMIT) {
        Ok(number) => number.unwrap_or(0),
        Err(error) => {
            let error = error.into_compile_error();
            return quote!(#item #error);
        }
    };
    if let Ok(function) = syn::parse2::<ItemFn>(item.clone()) {
        return of_function(function, max_ongoing);
    }
    if let Ok(block) = syn::parse2::<ItemImpl>(item.clone()) {
        return of_type(block, max_ongoing);
    }
    let message = "`#[deployment]` takes a function with a body, or an `impl` block of a type";
    let error = Error::new_spanned(&item, message).into_compile_error();
    quote!(#item #error)
}

/// The fields of an item, without its place in the source.
struct Described<'a> {
    name: String,
    path: String,
    doc: String,
    at: proc_macro2::Span,
    parameters: &'a [Parameter],
    flags: TokenStream,
    max_ongoing: u32,
    /// The function with the largest batches, as an expression.
    batch: TokenStream,
    /// The statements that decode the arguments and make the handler.
    create: TokenStream,
}

impl Described<'_> {
    /// Returns the item, as a constant expression.
    fn item(&self) -> TokenStream {
        let Described { name, path, doc, flags, max_ongoing, batch, create, .. } = self;
        let parameters = items::descriptions(self.parameters);
        // The line of the name: without its span it would be that of the attribute.
        let line = quote_spanned!(self.at=> ::core::line!());
        quote! {
            ::tracer_sdk::serve::DeploymentItem {
                name: #name,
                doc: #doc,
                crate_name: ::core::env!("CARGO_PKG_NAME"),
                crate_version: ::core::env!("CARGO_PKG_VERSION"),
                function_name: ::core::concat!(::core::module_path!(), #path),
                file: ::core::file!(),
                line: #line,
                parameters: &[#(#parameters),*],
                flags: #flags,
                max_ongoing_requests: #max_ongoing,
                batch: #batch,
                create: |arguments: &mut ::tracer_sdk::export::Arguments<'_>|
                    -> ::core::result::Result<::tracer_sdk::serve::Creation, ::tracer_sdk::export::Failure> {
                    #create
                },
            }
        }
    }
}

fn of_function(mut function: ItemFn, max_ongoing: u32) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let batched = batches::take_from_function(&mut function, &mut mistakes);
    let batch = batches::largest(batched.as_slice(), max_ongoing, &mut mistakes);
    if let Some(errors) = mistakes.report() {
        return quote!(#function #errors);
    }
    let mut mistakes = Mistakes::default();
    let signature = &function.sig;
    signature::check("deployment", signature, &mut mistakes);
    let handler = handler_of_function(signature, &mut mistakes);
    if let Some(errors) = mistakes.report() {
        return quote!(#function #errors);
    }
    let name = signature.ident.unraw().to_string();
    let described = Described {
        path: format!("::{name}"),
        name,
        doc: doc(&function.attrs),
        at: signature.ident.span(),
        parameters: &[],
        flags: quote!(0),
        max_ongoing,
        batch,
        create: quote! {
            let _ = arguments;
            ::core::result::Result::Ok(::std::boxed::Box::pin(async { #handler }))
        },
    };
    let (item, conditions) = (described.item(), conditions(&function.attrs));
    quote! {
        #function

        #(#conditions)*
        const _: () = { ::tracer_sdk::__private::inventory::submit! { #item } };
    }
}

/// Returns the expression that makes the handler of a function, as a result.
fn handler_of_function(signature: &Signature, mistakes: &mut Mistakes) -> TokenStream {
    let name = &signature.ident;
    if let Some(receiver) = signature.receiver() {
        mistakes.add(receiver, "a deployment's function takes no `self`; put `#[deployment]` on the `impl` block");
        return quote!();
    }
    let mut inputs = signature.inputs.iter();
    let (argument, more) = (inputs.next(), inputs.next());
    if let Some(more) = more {
        mistakes.add(more, "a deployment's function takes the request and nothing else");
        return quote!();
    }
    let Some(FnArg::Typed(argument)) = argument else {
        if let Some(token) = &signature.asyncness {
            let message = "an `async` deployment takes the request; one without a parameter returns a tower service and is not `async`";
            mistakes.add(token, message);
        }
        return of_service(name, &signature.output, mistakes);
    };
    let argument = &argument.ty;
    let (uses, answer) = (items::outcome_traits(), answer(&signature.output));
    if signature.asyncness.is_some() {
        quote_spanned! {argument.span()=>
            ::core::result::Result::Ok(::tracer_sdk::serve::asynchronous(|argument: #argument| #name(argument), |returned| {
                #uses
                #answer
            }))
        }
    } else {
        quote_spanned! {argument.span()=>
            ::core::result::Result::Ok(::tracer_sdk::serve::blocking(|argument: #argument| {
                #uses
                let returned = #name(argument);
                #answer
            }))
        }
    }
}

/// Returns the handler of a function that returns a tower service, or a `Result` of one.
fn of_service(name: &Ident, output: &ReturnType, mistakes: &mut Mistakes) -> TokenStream {
    let ReturnType::Type(_, ty) = output else {
        mistakes.add(name, "a deployment takes a request, or returns a tower service such as `axum::Router`");
        return quote!();
    };
    let service = quote_spanned!(ty.span()=> ::tracer_sdk::serve::service(service));
    if !is_named(ty, "Result") {
        return quote!({ let service = #name(); ::core::result::Result::Ok(#service) });
    }
    let failed = failed(ty);
    quote! {
        match #name() {
            ::core::result::Result::Ok(service) => ::core::result::Result::Ok(#service),
            ::core::result::Result::Err(error) => #failed,
        }
    }
}

/// Returns the failure that `error` is, as a result.
fn failed(ty: &Type) -> TokenStream {
    let uses = items::outcome_traits();
    quote_spanned! {ty.span()=> {
        #uses
        ::core::result::Result::Err(::tracer_sdk::export::Failure::returned(
            &error,
            (&&&&::tracer_sdk::export::ErrorProbe(&error)).text(),
        ))
    }}
}

/// Returns the answer that `returned` is.
fn answer(output: &ReturnType) -> TokenStream {
    match output {
        ReturnType::Type(_, ty) if is_named(ty, "Result") => {
            let answered = match batches::element(ty, "Result") {
                // Each output of a batch may be a failure of its own.
                Some(inner) if is_named(&inner, "Result") => {
                    let inner = answer(&ReturnType::Type(Default::default(), Box::new(inner)));
                    quote!({ let returned = value; #inner })
                }
                _ => quote_spanned!(ty.span()=> ::tracer_sdk::serve::IntoResponse::into_response(value)),
            };
            let failed = failed(ty);
            quote! {
                match returned {
                    ::core::result::Result::Ok(value) => #answered,
                    ::core::result::Result::Err(error) => #failed,
                }
            }
        }
        output => quote_spanned!(output.span()=> ::tracer_sdk::serve::IntoResponse::into_response(returned)),
    }
}

/// The public methods of a deployment's type.
#[derive(Default)]
struct Methods<'a> {
    new: Option<&'a ImplItemFn>,
    handle: Option<&'a ImplItemFn>,
    health: Option<&'a ImplItemFn>,
    reconfigure: Option<&'a ImplItemFn>,
}

fn of_type(mut block: ItemImpl, max_ongoing: u32) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let batched = batches::take_from_block(&mut block, &mut mistakes);
    let batch = batches::largest(&batched, max_ongoing, &mut mistakes);
    let name = signature::type_name("deployment", &block, &mut mistakes);
    let methods = methods(&block, &mut mistakes);
    let (Some(new), Some(handle)) = (methods.new, methods.handle) else {
        if block.trait_.is_none() {
            let missing = if methods.new.is_none() {
                "a deployment needs `pub fn new`, which makes its state and returns `Self` or a `Result` of it"
            } else {
                "a deployment needs `pub async fn handle(&self, request: Request<Body>)`"
            };
            mistakes.add(&block.self_ty, missing);
        }
        let errors = mistakes.report();
        return quote!(#block #errors);
    };
    let parameters = signature::parameters(&new.sig, &mut mistakes);
    if let ReturnType::Default = new.sig.output {
        mistakes.add(&new.sig.ident, "`new` returns the deployment's state: `Self`, or a `Result` of it");
    }
    let request = argument(handle, "handle", "the request", &mut mistakes);
    let settings = methods.reconfigure.map(|method| argument(method, "reconfigure", "the settings", &mut mistakes));
    for (method, name) in [(methods.handle, "handle"), (methods.health, "health"), (methods.reconfigure, "reconfigure")]
    {
        if let Some(method) = method {
            check_method(method, name, &mut mistakes);
        }
    }
    let callable = methods::dispatch(&block, &mut mistakes);
    if let Some(errors) = mistakes.report() {
        return quote!(#block #errors);
    }
    let ty = &block.self_ty;
    let handler = format_ident!("__TracerHandler");
    let (health, reconfigure) = (methods.health.map(health), methods.reconfigure.zip(settings).map(reconfigure));
    let flag = |has: bool, flag: &str| {
        let flag = format_ident!("{flag}");
        if has { quote!(::tracer_sdk::__private::#flag) } else { quote!(0) }
    };
    let with_health = flag(health.is_some(), "DEPLOYMENT_HEALTH");
    let with_settings = flag(reconfigure.is_some(), "DEPLOYMENT_CONFIGURE");
    let described = Described {
        path: format!("::{name}"),
        name,
        doc: doc(&block.attrs),
        at: ty.span(),
        parameters: &parameters,
        flags: quote!(#with_health | #with_settings | ::tracer_sdk::__private::DEPLOYMENT_CALL),
        max_ongoing,
        batch,
        create: created(ty, new, &parameters, &handler),
    };
    let (item, conditions) = (described.item(), conditions(&block.attrs));
    let (uses, answer) = (items::outcome_traits(), answer(&handle.sig.output));
    // Nobody makes a deployment in place of another value, so `Default` would be of no use.
    quote! {
        #[allow(clippy::new_without_default)]
        #block

        #(#conditions)*
        const _: () = {
            struct #handler(::std::sync::Arc<#ty>);

            impl ::tracer_sdk::serve::Handler for #handler {
                fn call(
                    &self,
                    request: ::tracer_sdk::serve::Request<::tracer_sdk::serve::Body>,
                ) -> ::std::pin::Pin<::std::boxed::Box<
                    dyn ::core::future::Future<Output = ::tracer_sdk::serve::Handled> + ::core::marker::Send,
                >> {
                    let state = self.0.clone();
                    ::std::boxed::Box::pin(async move {
                        #uses
                        match <#request as ::tracer_sdk::serve::FromRequest>::from_request(request).await {
                            ::core::result::Result::Ok(argument) => {
                                let returned = <#ty>::handle(&*state, argument).await;
                                #answer
                            }
                            ::core::result::Result::Err(refused) => ::core::result::Result::Ok(refused),
                        }
                    })
                }

                #callable
                #health
                #reconfigure
            }

            ::tracer_sdk::__private::inventory::submit! { #item }
        };
    }
}

fn methods<'a>(block: &'a ItemImpl, mistakes: &mut Mistakes) -> Methods<'a> {
    let mut methods = Methods::default();
    for item in &block.items {
        let ImplItem::Fn(function) = item else { continue };
        if !matches!(function.vis, Visibility::Public(_)) {
            continue;
        }
        let method = match function.sig.ident.to_string().as_str() {
            "new" => &mut methods.new,
            "handle" => &mut methods.handle,
            "health" => &mut methods.health,
            "reconfigure" => &mut methods.reconfigure,
            _ => continue,
        };
        signature::check("deployment", &function.sig, mistakes);
        *method = Some(function);
    }
    methods
}

/// Refuses a method that the loop of a replica cannot call.
fn check_method(method: &ImplItemFn, name: &str, mistakes: &mut Mistakes) {
    let shared = method.sig.receiver().is_some_and(
        |receiver| matches!(&receiver.kind, ReceiverKind::Reference(_, _, mutability) if mutability.is_none()),
    );
    if !shared {
        let message =
            format!("`{name}` takes `&self`: requests run beside each other, so what changes is behind a lock");
        mistakes.add(&method.sig.ident, message);
    }
    if method.sig.asyncness.is_none() {
        let message = format!("`{name}` is `async`; what blocks goes to `tokio::task::spawn_blocking`");
        mistakes.add(&method.sig.ident, message);
    }
    if name == "health" && method.sig.inputs.len() > 1 {
        mistakes.add(&method.sig.inputs, "`health` takes `&self` and nothing else");
    }
}

/// Returns the type of the one argument beside `self`.
fn argument<'a>(method: &'a ImplItemFn, name: &str, what: &str, mistakes: &mut Mistakes) -> Option<&'a Type> {
    let inputs: Vec<_> = method.sig.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).collect();
    match inputs[..] {
        [FnArg::Typed(input)] => Some(&input.ty),
        _ => {
            mistakes.add(&method.sig.inputs, format!("`{name}` takes `&self` and {what}"));
            None
        }
    }
}

/// Converts what `health` or `reconfigure` returned: nothing, or why not.
fn done(output: &ReturnType) -> TokenStream {
    match output {
        ReturnType::Type(_, ty) if is_named(ty, "Result") => {
            let failed = failed(ty);
            quote! {
                match returned {
                    ::core::result::Result::Ok(()) => ::core::result::Result::Ok(()),
                    ::core::result::Result::Err(error) => #failed,
                }
            }
        }
        output => quote_spanned! {output.span()=> {
            let () = returned;
            ::core::result::Result::Ok(())
        }},
    }
}

/// Returns the type that `health` and `reconfigure` of the handler return.
fn boxed_done() -> TokenStream {
    quote! {
        ::std::pin::Pin<::std::boxed::Box<
            dyn ::core::future::Future<Output = ::core::result::Result<(), ::tracer_sdk::export::Failure>>
                + ::core::marker::Send,
        >>
    }
}

fn health(method: &ImplItemFn) -> TokenStream {
    let (done, boxed) = (done(&method.sig.output), boxed_done());
    quote! {
        fn health(&self) -> #boxed {
            let state = self.0.clone();
            ::std::boxed::Box::pin(async move {
                let returned = state.health().await;
                #done
            })
        }
    }
}

fn reconfigure((method, settings): (&ImplItemFn, Option<&Type>)) -> TokenStream {
    let (done, boxed) = (done(&method.sig.output), boxed_done());
    quote! {
        fn reconfigure(&self, settings: ::tracer_sdk::serve::Bytes) -> #boxed {
            let state = self.0.clone();
            ::std::boxed::Box::pin(async move {
                let settings: #settings = ::tracer_sdk::serve::settings(&settings)?;
                let returned = state.reconfigure(settings).await;
                #done
            })
        }
    }
}

/// Returns the statements that decode the arguments of `new`, call it, and make the handler.
fn created(ty: &Type, new: &ImplItemFn, parameters: &[Parameter], handler: &Ident) -> TokenStream {
    let (decoded, passed) = (items::decode(parameters), items::passed(parameters));
    let awaited = new.sig.asyncness.map(|token| quote_spanned!(token.span()=> .await));
    let made = quote! {{
        let state = ::std::sync::Arc::new(state);
        ::tracer_sdk::serve::adopt(&state);
        ::core::result::Result::Ok(
            ::std::sync::Arc::new(#handler(state)) as ::std::sync::Arc<dyn ::tracer_sdk::serve::Handler>
        )
    }};
    let made = match &new.sig.output {
        ReturnType::Type(_, output) if is_named(output, "Result") => {
            let failed = failed(output);
            quote! {
                match returned {
                    ::core::result::Result::Ok(state) => #made,
                    ::core::result::Result::Err(error) => #failed,
                }
            }
        }
        _ => quote!({ let state = returned; #made }),
    };
    quote! {
        let _ = &arguments;
        #(#decoded)*
        ::core::result::Result::Ok(::std::boxed::Box::pin(async move {
            let returned = <#ty>::new(#(#passed),*) #awaited;
            #made
        }))
    }
}
