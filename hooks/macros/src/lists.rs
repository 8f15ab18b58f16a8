//! The list macros: items by the paths of their functions.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, Ident, Path, Token, Visibility, bracketed};

use crate::items::Kind;

/// `tasks = [path, ..], hooks = [path, ..], loads = [path, ..]`: each at most once, in any order.
#[derive(Default)]
struct Lists {
    tasks: Vec<Path>,
    hooks: Vec<Path>,
    loads: Vec<Path>,
}

impl Parse for Lists {
    fn parse(input: ParseStream<'_>) -> syn::Result<Lists> {
        let mut lists = Lists::default();
        let mut seen = Vec::new();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            let kind = match key.to_string().as_str() {
                "tasks" => Kind::Task,
                "hooks" => Kind::Hook,
                "loads" => Kind::Load,
                _ => return Err(Error::new(key.span(), "expected `tasks`, `hooks` or `loads`")),
            };
            if seen.contains(&kind) {
                return Err(Error::new(key.span(), format!("`{key}` is given twice")));
            }
            seen.push(kind);
            input.parse::<Token![=]>()?;
            let content;
            bracketed!(content in input);
            let paths = Punctuated::<Path, Token![,]>::parse_terminated_with(&content, Path::parse_mod_style)?;
            let paths = paths.into_iter().map(|path| constant(kind, path)).collect();
            match kind {
                Kind::Task => lists.tasks = paths,
                Kind::Hook => lists.hooks = paths,
                Kind::Load => lists.loads = paths,
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(lists)
    }
}

/// Returns the path of the constant that describes the function at `path`.
fn constant(kind: Kind, mut path: Path) -> Path {
    if let Some(last) = path.segments.last_mut() {
        last.ident = kind.constant(&last.ident);
    }
    path
}

pub(crate) fn export(input: TokenStream) -> TokenStream {
    let Lists { tasks, hooks, loads } = match syn::parse2(input) {
        Ok(lists) => lists,
        Err(error) => return error.into_compile_error(),
    };
    let all = tasks.iter().chain(&hooks).chain(&loads);
    quote! {
        #(const _: () = { ::tracer_sdk::__private::inventory::submit! { #all } };)*
    }
}

/// `#[attributes] pub fn name, lists`.
struct Builtin {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    lists: Lists,
}

impl Parse for Builtin {
    fn parse(input: ParseStream<'_>) -> syn::Result<Builtin> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        input.parse::<Token![fn]>()?;
        let name = input.parse()?;
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
        Ok(Builtin { attributes, visibility, name, lists: input.parse()? })
    }
}

pub(crate) fn builtin_module(input: TokenStream) -> TokenStream {
    let Builtin { attributes, visibility, name, lists } = match syn::parse2(input) {
        Ok(builtin) => builtin,
        Err(error) => return error.into_compile_error(),
    };
    let Lists { tasks, hooks, loads } = lists;
    quote! {
        #(#attributes)*
        #visibility fn #name() -> *const ::tracer_sdk::__private::Module {
            struct Loads;
            impl ::tracer_sdk::export::Loads for Loads {
                const ITEMS: &'static [&'static ::tracer_sdk::export::LoadItem] = &[#(&#loads),*];
            }
            static RECORD: ::std::sync::OnceLock<&'static ::tracer_sdk::__private::Module> = ::std::sync::OnceLock::new();
            *RECORD.get_or_init(|| {
                const TASKS: &[&::tracer_sdk::export::TaskItem] = &[#(&#tasks),*];
                const HOOKS: &[&::tracer_sdk::export::HookItem] = &[#(&#hooks),*];
                ::tracer_sdk::export::builtin::<Loads>(::core::env!("CARGO_PKG_VERSION"), TASKS, HOOKS)
            })
        }
    }
}
