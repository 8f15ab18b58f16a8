//! Checks what an attribute was put on, and reads from it what a record says.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, Ident, ItemFn, ItemImpl, Lit, LitInt, Meta, Pat, Signature, Token, Type,
};

/// Gathers mistakes, so that all are reported at once.
#[derive(Default)]
pub(crate) struct Mistakes(Option<Error>);

impl Mistakes {
    pub(crate) fn add(&mut self, at: impl ToTokens, message: impl std::fmt::Display) {
        self.put(Error::new_spanned(at, message));
    }

    /// Adds a mistake that is an error already.
    pub(crate) fn put(&mut self, error: Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Returns the mistakes, as tokens that make the compiler report them; none if there are none.
    pub(crate) fn report(self) -> Option<TokenStream> {
        Some(self.0?.into_compile_error())
    }
}

/// Reads the function that `#[attribute]` was put on. On failure: what to compile instead.
pub(crate) fn function(attribute: &str, arguments: &TokenStream, item: TokenStream) -> Result<ItemFn, TokenStream> {
    let parsed = syn::parse2::<ItemFn>(item.clone());
    let mut function = parsed.map_err(|_| {
        // The item stays, so that nobody is also told that it does not exist.
        let error = Error::new_spanned(&item, format!("`#[{attribute}]` takes a function with a body"));
        let error = error.into_compile_error();
        quote!(#item #error)
    })?;
    if !arguments.is_empty() {
        let error = Error::new_spanned(arguments, format!("`#[{attribute}]` takes no arguments")).into_compile_error();
        // Without what is wrong with it, the function is no further cause of errors.
        function.attrs.retain(|attribute| attribute.path().is_ident("cfg"));
        return Err(quote!(#function #error));
    }
    Ok(function)
}

/// Refuses what no attribute can export.
pub(crate) fn check(attribute: &str, signature: &Signature, mistakes: &mut Mistakes) {
    if let syn::Safety::Unsafe(token) = &signature.safety {
        mistakes
            .add(token, format!("`#[{attribute}]` takes a safe function: the host cannot promise what it asks for"));
    }
    if let Some(abi) = &signature.abi {
        mistakes.add(abi, format!("`#[{attribute}]` takes an ordinary Rust function: the SDK makes the `extern` one"));
    }
    if let Some(variadic) = &signature.variadic {
        mistakes.add(variadic, format!("`#[{attribute}]` takes a function with a fixed number of parameters"));
    }
    if !signature.generics.params.is_empty() {
        let message =
            format!("`#[{attribute}]` takes a function without generic parameters: the host cannot choose types");
        mistakes.add(&signature.generics, message);
    } else if let Some(clause) = &signature.generics.where_clause {
        mistakes.add(clause, format!("`#[{attribute}]` takes a function without a `where` clause"));
    }
}

/// Refuses a block whose type cannot be exported: an actor, a deployment. Returns the type's name.
pub(crate) fn type_name(attribute: &str, block: &ItemImpl, mistakes: &mut Mistakes) -> String {
    if let Some((path, _)) = &block.trait_ {
        mistakes.add(path, format!("`#[{attribute}]` takes an `impl` block of the type itself, not one of a trait"));
    }
    if !block.generics.params.is_empty() {
        let message = format!("`#[{attribute}]` takes a type without generic parameters: the host cannot choose types");
        mistakes.add(&block.generics, message);
    } else if let Some(clause) = &block.generics.where_clause {
        mistakes.add(clause, format!("`#[{attribute}]` takes a type without a `where` clause"));
    }
    match &*block.self_ty {
        Type::Path(path) if path.qself.is_none() => {
            let last = path.path.segments.last();
            last.map(|segment| IdentExt::unraw(&segment.ident).to_string()).unwrap_or_default()
        }
        other => {
            mistakes.add(other, format!("`#[{attribute}]` takes a type with a name of its own"));
            String::new()
        }
    }
}

/// Reads the one setting that an attribute takes, `key = N` with N from 1 to `limit`; none if it is left out.
pub(crate) fn number(attribute: &str, arguments: TokenStream, key: &str, limit: u32) -> syn::Result<Option<u32>> {
    let parse = |input: ParseStream<'_>| {
        if input.is_empty() {
            return Ok(None);
        }
        let found: Ident = input.parse()?;
        if found != key {
            return Err(Error::new(found.span(), format!("`#[{attribute}]` takes `{key} = N` and nothing else")));
        }
        input.parse::<Token![=]>()?;
        let number: LitInt = input.parse()?;
        let within = number.base10_parse::<u32>().ok().filter(|number| (1..=limit).contains(number));
        let number =
            within.ok_or_else(|| Error::new(number.span(), format!("`{key}` takes a number from 1 to {limit}")))?;
        if !input.is_empty() {
            return Err(input.error(format!("`#[{attribute}]` takes `{key} = N` and nothing else")));
        }
        Ok(Some(number))
    };
    Parser::parse2(parse, arguments)
}

/// Refuses what only tasks can be or have.
pub(crate) fn check_plain(attribute: &str, signature: &Signature, mistakes: &mut Mistakes) {
    check(attribute, signature, mistakes);
    if let Some(token) = &signature.asyncness {
        mistakes.add(token, format!("`#[{attribute}]` takes a function that is not `async`"));
    }
    if !signature.inputs.is_empty() {
        mistakes.add(&signature.inputs, format!("`#[{attribute}]` takes a function without parameters"));
    }
}

/// A parameter of a task.
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Text of the type in the source.
    pub(crate) type_text: String,
    pub(crate) is_optional: bool,
    /// Type that the argument is decoded to.
    pub(crate) owned: TokenStream,
    /// True if the function takes a reference to that.
    pub(crate) is_reference: bool,
}

/// Returns the parameters of a task, without those that cannot be.
pub(crate) fn parameters(signature: &Signature, mistakes: &mut Mistakes) -> Vec<Parameter> {
    signature.inputs.iter().filter_map(|input| parameter(input, mistakes)).collect()
}

fn parameter(input: &FnArg, mistakes: &mut Mistakes) -> Option<Parameter> {
    let input = match input {
        FnArg::Typed(input) => input,
        FnArg::Receiver(receiver) => {
            mistakes.add(receiver, "a task cannot be a method: there is no `self` where the host calls it");
            return None;
        }
    };
    let name = match &*input.pat {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => Some(&pattern.ident),
        pattern => {
            mistakes.add(
                pattern,
                "a task's parameter takes a plain name, which is shown to people; take it apart in the body",
            );
            None
        }
    };
    let owned = owned(&input.ty, mistakes);
    Some(Parameter {
        name: name?.unraw().to_string(),
        type_text: type_text(&input.ty),
        is_optional: is_named(&input.ty, "Option"),
        owned: owned?,
        is_reference: matches!(&*input.ty, Type::Reference(_)),
    })
}

/// Returns the type that an argument of type `ty` is decoded to: `String` for `&str`, `Vec<T>` for `&[T]`, `PathBuf` for
/// `&Path`, `T` for any other `&T`.
fn owned(ty: &Type, mistakes: &mut Mistakes) -> Option<TokenStream> {
    let Type::Reference(reference) = ty else {
        return find_unsupported(ty, mistakes).then(|| ty.to_token_stream());
    };
    if let Some(token) = &reference.mutability {
        mistakes.add(token, "a task's parameter cannot be `&mut`: nobody would see the change; take the value itself");
        return None;
    }
    if let Some(lifetime) = &reference.lifetime {
        mistakes.add(lifetime, "a task's argument lives as long as the call; take an owned type to keep it longer");
        return None;
    }
    let target = &*reference.elem;
    if !find_unsupported(target, mistakes) {
        return None;
    }
    Some(match target {
        Type::Slice(slice) => {
            let element = &slice.elem;
            quote!(::std::vec::Vec<#element>)
        }
        _ if is_named(target, "str") => quote!(::std::string::String),
        _ if is_named(target, "Path") => quote!(::std::path::PathBuf),
        _ => target.to_token_stream(),
    })
}

/// Reports `impl Trait`, inner references, functions and pointers: all of them. Returns whether there are none.
fn find_unsupported(ty: &Type, mistakes: &mut Mistakes) -> bool {
    match ty {
        Type::ImplTrait(_) => {
            mistakes.add(ty, "a task's parameter takes a type, not `impl Trait`: the host cannot choose one")
        }
        Type::Reference(_) => mistakes
            .add(ty, "a task's parameter cannot hold a reference: take an owned type, such as `String` for `&str`"),
        Type::TraitObject(_) => {
            mistakes.add(ty, "a task's parameter takes a type, not `dyn Trait`: the host cannot choose one")
        }
        Type::Ptr(_) | Type::FnPtr(_) => {
            mistakes.add(ty, "a task's parameter cannot be a pointer: it comes from another process")
        }
        Type::Infer(_) => mistakes.add(ty, "a task's parameter takes a written type"),
        Type::Tuple(tuple) => return tuple.elems.iter().filter(|ty| !find_unsupported(ty, mistakes)).count() == 0,
        Type::Array(array) => return find_unsupported(&array.elem, mistakes),
        Type::Slice(slice) => return find_unsupported(&slice.elem, mistakes),
        Type::Paren(inner) => return find_unsupported(&inner.elem, mistakes),
        Type::Group(inner) => return find_unsupported(&inner.elem, mistakes),
        Type::Path(path) => {
            let arguments = path.path.segments.iter().filter_map(|segment| match &segment.arguments {
                syn::PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
                _ => None,
            });
            let types = arguments.flatten().filter_map(|argument| match argument {
                syn::GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            return types.filter(|ty| !find_unsupported(ty, mistakes)).count() == 0;
        }
        _ => return true,
    }
    false
}

/// Returns whether the last name in the path `ty` is `name`.
pub(crate) fn is_named(ty: &Type, name: &str) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == name),
        Type::Paren(inner) => is_named(&inner.elem, name),
        Type::Group(inner) => is_named(&inner.elem, name),
        _ => false,
    }
}

/// Returns a type as people write it: `Vec<(String, u8)>` and not `Vec < (String , u8) >`.
pub(crate) fn type_text(ty: &impl ToTokens) -> String {
    let mut text = String::new();
    write_tokens(ty.to_token_stream(), &mut text);
    text
}

fn write_tokens(tokens: TokenStream, text: &mut String) {
    let mut needs_space = false;
    let mut arrow = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::None => ("", ""),
                };
                if arrow || (needs_space && text.ends_with(',')) {
                    text.push(' ');
                }
                text.push_str(open);
                write_tokens(group.stream(), text);
                text.push_str(close);
                (needs_space, arrow) = (true, false);
            }
            TokenTree::Punct(punct) => {
                let is_arrow = arrow_start(&punct);
                match punct.as_char() {
                    ',' | ';' => text.push_str(&format!("{} ", punct.as_char())),
                    '+' | '=' if !text.ends_with(' ') => text.push_str(&format!(" {} ", punct.as_char())),
                    '-' if is_arrow => text.push_str(" -"),
                    other => text.push(other),
                }
                (needs_space, arrow) = (false, is_arrow);
                if punct.as_char() == '>' {
                    needs_space = true;
                }
            }
            TokenTree::Ident(_) | TokenTree::Literal(_) => {
                if needs_space {
                    text.push(' ');
                }
                text.push_str(&token.to_string());
                (needs_space, arrow) = (true, false);
            }
        }
    }
    let kept = text.trim_end().len();
    text.truncate(kept);
}

fn arrow_start(punct: &proc_macro2::Punct) -> bool {
    punct.as_char() == '-' && punct.spacing() == Spacing::Joint
}

/// Returns the text of doc comments, without the space that every line begins with.
pub(crate) fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &pair.value else { return None };
        Some(text.value())
    });
    let lines: Vec<_> = lines.collect();
    let lines = lines.iter().flat_map(|text| text.split('\n'));
    let lines: Vec<_> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect();
    lines.join("\n").trim().to_owned()
}

/// Returns the `#[cfg]`s of a function, which hold for what is added to it too.
pub(crate) fn conditions(attributes: &[Attribute]) -> Vec<&Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_read_as_they_are_written() {
        for text in [
            "String",
            "Vec<String>",
            "Option<Vec<(String, u8)>>",
            "std::collections::BTreeMap<String, [u8; 4]>",
            "&str",
            "&[u8]",
            "Result<(), Box<dyn Error + Send + Sync>>",
            "Cow<'static, str>",
            "()",
            "Box<dyn Iterator<Item = u8>>",
            "fn(u8) -> u8",
            "Option<Option<u8>>",
        ] {
            let ty: Type = syn::parse_str(text).expect("it is a type");
            assert_eq!(type_text(&ty), text);
        }
    }

    #[test]
    fn documentation_keeps_its_lines_and_indents() {
        let function: ItemFn = syn::parse_quote! {
            /// First.
            ///
            ///   indented
            #[inline]
            /// Last.
            fn f() {}
        };
        assert_eq!(doc(&function.attrs), "First.\n\n  indented\nLast.");
    }
}
