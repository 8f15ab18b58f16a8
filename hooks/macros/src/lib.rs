//! The attributes that `tracer-sdk` re-exports and documents.
//!
//! Each leaves its function as it is and adds a hidden constant beside it, which describes the function and is registered
//! for the module's record. The constant has a name made from the function's, so that the list macros can find it from
//! a path. Mistakes are reported all at once, each at its place.

#![warn(missing_docs)]

mod actors;
mod batches;
mod deployments;
mod items;
mod lists;
mod methods;
mod signature;

use proc_macro::TokenStream;

/// See `tracer_sdk::task`.
#[proc_macro_attribute]
pub fn task(arguments: TokenStream, item: TokenStream) -> TokenStream {
    items::task(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::actor`.
#[proc_macro_attribute]
pub fn actor(arguments: TokenStream, item: TokenStream) -> TokenStream {
    actors::actor(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::serve::deployment`.
#[proc_macro_attribute]
pub fn deployment(arguments: TokenStream, item: TokenStream) -> TokenStream {
    deployments::deployment(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::serve::batch`.
#[proc_macro_attribute]
pub fn batch(arguments: TokenStream, item: TokenStream) -> TokenStream {
    batches::batch(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::startup_hook`.
#[proc_macro_attribute]
pub fn startup_hook(arguments: TokenStream, item: TokenStream) -> TokenStream {
    items::startup_hook(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::tracing_exporter`.
#[proc_macro_attribute]
pub fn tracing_exporter(arguments: TokenStream, item: TokenStream) -> TokenStream {
    items::tracing_exporter(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::on_load`.
#[proc_macro_attribute]
pub fn on_load(arguments: TokenStream, item: TokenStream) -> TokenStream {
    items::on_load(arguments.into(), item.into()).into()
}

/// See `tracer_sdk::export`.
#[proc_macro]
pub fn export(input: TokenStream) -> TokenStream {
    lists::export(input.into()).into()
}

/// See `tracer_sdk::builtin_module`.
#[proc_macro]
pub fn builtin_module(input: TokenStream) -> TokenStream {
    lists::builtin_module(input.into()).into()
}
