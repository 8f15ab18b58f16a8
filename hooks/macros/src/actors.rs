//! The attribute of actors: an `impl` block, and the items that describe the type and its methods.
//!
//! The block stays as it is, but for a lint. The items are associated constants in a further block of the same type, so that `Self` means there what it
//! means in the first one.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, FnArg, ImplItem, ImplItemFn, ItemImpl, Receiver, ReceiverKind, ReturnType, Visibility};

use crate::items;
use crate::signature::{self, Mistakes, conditions, doc, is_named};

/// Default number of calls of concurrent methods that run at a time.
const MAX_CONCURRENCY: u32 = 64;
/// The most that may be said: each has a thread.
const MAX_CONCURRENCY_LIMIT: u32 = 4096;

/// Role of a public function of the block.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// `new`.
    Creation,
    /// It takes `&mut self`, or `&self` and is not `async`.
    Exclusive,
    /// It is `async` and takes `&self`.
    Concurrent,
    /// It takes no `self`.
    Task,
}

pub(crate) fn actor(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(block) = syn::parse2::<ItemImpl>(item.clone()) else {
        let error = Error::new_spanned(&item, "`#[actor]` takes an `impl` block of a type").into_compile_error();
        return quote!(#item #error);
    };
    let max_concurrency = match signature::number("actor", arguments, "max_concurrency", MAX_CONCURRENCY_LIMIT) {
        Ok(number) => number.unwrap_or(MAX_CONCURRENCY),
        Err(error) => {
            let error = error.into_compile_error();
            return quote!(#block #error);
        }
    };
    let mut mistakes = Mistakes::default();
    let name = signature::type_name("actor", &block, &mut mistakes);
    let functions: Vec<_> = block.items.iter().filter_map(|item| exported(item, &mut mistakes)).collect();
    // One that is wrong is said to be, and of another trait's block nothing is expected.
    let is_new = |item: &ImplItem| matches!(item, ImplItem::Fn(function) if is_public_new(function));
    if block.trait_.is_none() && !block.items.iter().any(is_new) {
        mistakes.add(
            &block.self_ty,
            "an actor needs `pub fn new`, which makes its state and returns `Self` or a `Result` of it",
        );
    }
    let items: Vec<_> = functions
        .iter()
        .map(|&(role, function)| (role, function, task_item(&name, role, function, &mut mistakes)))
        .collect();
    if let Some(errors) = mistakes.report() {
        return quote!(#block #errors);
    }
    let described = described(&block, &name, max_concurrency, &items);
    // Nobody makes an actor in place of another value, so `Default` would be of no use.
    quote!(#[allow(clippy::new_without_default)] #block #described)
}

fn is_public_new(function: &ImplItemFn) -> bool {
    function.sig.ident == "new" && matches!(function.vis, Visibility::Public(_))
}

fn exported<'a>(item: &'a ImplItem, mistakes: &mut Mistakes) -> Option<(Role, &'a ImplItemFn)> {
    let ImplItem::Fn(function) = item else { return None };
    if !matches!(function.vis, Visibility::Public(_)) {
        return None;
    }
    signature::check("actor", &function.sig, mistakes);
    let role = match function.sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) => method(function, receiver, mistakes)?,
        _ if function.sig.ident == "new" => Role::Creation,
        _ => Role::Task,
    };
    Some((role, function))
}

fn method(function: &ImplItemFn, receiver: &Receiver, mistakes: &mut Mistakes) -> Option<Role> {
    if function.sig.ident == "new" {
        mistakes.add(receiver, "`new` makes the actor's state, so there is no `self` yet");
        return None;
    }
    let ReceiverKind::Reference(_, _, mutability) = &receiver.kind else {
        mistakes.add(receiver, "an actor's method takes `&self` or `&mut self`: the state stays where it is");
        return None;
    };
    let is_concurrent = mutability.is_none() && function.sig.asyncness.is_some();
    Some(if is_concurrent { Role::Concurrent } else { Role::Exclusive })
}

/// Returns the description of a function, as a constant expression.
fn task_item(type_name: &str, role: Role, function: &ImplItemFn, mistakes: &mut Mistakes) -> TokenStream {
    let mut signature = function.sig.clone();
    signature.inputs = function.sig.inputs.iter().filter(|input| matches!(input, FnArg::Typed(_))).cloned().collect();
    let parameters = signature::parameters(&signature, mistakes);
    if let (Role::Creation, ReturnType::Default) = (role, &signature.output) {
        mistakes.add(&signature.ident, "`new` returns the actor's state: `Self`, or a `Result` of it");
    }
    let descriptions = items::descriptions(&parameters);
    let result_type = if role == Role::Creation { "()".to_owned() } else { items::result_type(&signature.output) };
    let is_async = signature.asyncness.is_some();
    let ident = &signature.ident;
    let decoded = items::decode(&parameters);
    let passed = items::passed(&parameters);
    let called = match role {
        Role::Creation | Role::Task => quote!(Self::#ident(#(#passed),*)),
        Role::Exclusive | Role::Concurrent => quote!(Self::#ident(state #(, #passed)*)),
    };
    let called = items::awaited(&signature, called);
    let outcome = match role {
        Role::Creation => created(&signature.output),
        Role::Exclusive | Role::Concurrent | Role::Task => items::outcome(&signature.output),
    };
    let run = quote! {
        arguments.begin_run();
        let returned = #called;
        arguments.begin_encode();
        #outcome
    };
    let with_state = match &function.sig.inputs.first() {
        Some(FnArg::Receiver(receiver)) => match &receiver.kind {
            ReceiverKind::Reference(_, _, Some(_)) => Some(quote!(with_state_mut)),
            _ => Some(quote!(with_state)),
        },
        _ => None,
    };
    let run = match with_state {
        Some(with_state) => quote! {
            arguments.#with_state::<Self, _>(|state| -> ::tracer_sdk::export::Outcome { #run })
                .and_then(|outcome| outcome)
        },
        None => run,
    };
    let uses = items::outcome_traits();
    let doc = doc(&function.attrs);
    let name = format!("{type_name}.{}", ident.unraw());
    let path = format!("::{type_name}::{}", ident.unraw());
    let line = quote_spanned!(ident.span()=> ::core::line!());
    quote! {
        ::tracer_sdk::export::TaskItem {
            name: #name,
            doc: #doc,
            crate_name: ::core::env!("CARGO_PKG_NAME"),
            crate_version: ::core::env!("CARGO_PKG_VERSION"),
            function_name: ::core::concat!(::core::module_path!(), #path),
            file: ::core::file!(),
            line: #line,
            is_async: #is_async,
            parameters: &[#(#descriptions),*],
            result_type: #result_type,
            run: |arguments: &mut ::tracer_sdk::export::Arguments<'_>| -> ::tracer_sdk::export::Outcome {
                #uses
                #(#decoded)*
                #run
            },
        }
    }
}

/// Returns what becomes of the state that `new` returned.
fn created(output: &ReturnType) -> TokenStream {
    let ReturnType::Type(_, ty) = output else { return quote!() };
    let kept = quote_spanned! {ty.span()=>
        arguments.create::<Self>(returned)?;
        ::tracer_sdk::export::encode(&())
    };
    if !is_named(ty, "Result") {
        return kept;
    }
    let failed = quote_spanned! {ty.span()=>
        ::tracer_sdk::export::Failure::returned(&error, (&&&&::tracer_sdk::export::ErrorProbe(&error)).text())
    };
    quote! {
        match returned {
            ::core::result::Result::Ok(returned) => { #kept }
            ::core::result::Result::Err(error) => ::core::result::Result::Err(#failed),
        }
    }
}

type Item<'a> = (Role, &'a ImplItemFn, TokenStream);

/// Returns the block that describes the type, and what registers it.
fn described(block: &ItemImpl, name: &str, max_concurrency: u32, items: &[Item<'_>]) -> TokenStream {
    let ty = &block.self_ty;
    let conditions = conditions(&block.attrs);
    let doc = doc(&block.attrs);
    let path = format!("::{name}");
    let line = quote_spanned!(ty.span()=> ::core::line!());
    let creation = items.iter().find(|(role, ..)| *role == Role::Creation).map(|(_, _, item)| item);
    let methods = items.iter().filter_map(|(role, function, item)| {
        let is_concurrent = match role {
            Role::Exclusive => false,
            Role::Concurrent => true,
            Role::Creation | Role::Task => return None,
        };
        let conditions = signature::conditions(&function.attrs);
        Some(quote! {
            #(#conditions)*
            ::tracer_sdk::export::MethodItem { is_concurrent: #is_concurrent, task: #item }
        })
    });
    let tasks: Vec<_> = items.iter().filter(|(role, ..)| *role == Role::Task).collect();
    let task_names: Vec<_> =
        tasks.iter().map(|(_, function, _)| format_ident!("__tracer_task_{}", function.sig.ident.unraw())).collect();
    let task_items = tasks.iter().zip(&task_names).map(|((_, function, item), name)| {
        let conditions = signature::conditions(&function.attrs);
        quote! {
            #(#conditions)*
            #[doc(hidden)]
            #[allow(non_upper_case_globals)]
            const #name: ::tracer_sdk::export::TaskItem = #item;
        }
    });
    let task_registrations = tasks.iter().zip(&task_names).map(|((_, function, _), name)| {
        let conditions = signature::conditions(&function.attrs);
        quote! {
            #(#conditions)*
            const _: () = { ::tracer_sdk::__private::inventory::submit! { <#ty>::#name } };
        }
    });
    // The type is what the compiler points at if it cannot be shared.
    let shared = items.iter().any(|(role, ..)| *role == Role::Concurrent).then(|| {
        quote_spanned! {ty.to_token_stream().span()=>
            const _: fn() = || {
                fn is_shared<T: ::tracer_sdk::__private::SharedState>() {}
                is_shared::<#ty>();
            };
        }
    });
    quote! {
        #(#conditions)*
        const _: () = {
            impl #ty {
                #[doc(hidden)]
                #[allow(non_upper_case_globals)]
                const __tracer_actor: ::tracer_sdk::export::ActorItem = ::tracer_sdk::export::ActorItem {
                    name: #name,
                    doc: #doc,
                    crate_name: ::core::env!("CARGO_PKG_NAME"),
                    crate_version: ::core::env!("CARGO_PKG_VERSION"),
                    function_name: ::core::concat!(::core::module_path!(), #path),
                    file: ::core::file!(),
                    line: #line,
                    max_concurrency: #max_concurrency,
                    creation: &#creation,
                    methods: &[#(#methods),*],
                };
                #(#task_items)*
            }
            const _: () = { ::tracer_sdk::__private::inventory::submit! { <#ty>::__tracer_actor } };
            #(#task_registrations)*
            #shared
        };
    }
}
