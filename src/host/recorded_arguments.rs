//! The arguments of a task as attributes of its spans, for those who ask for them: what people pass may be private, and large.

use crate::hook::{ActiveSpan, Attribute};
use tracer_core::names;
use tracer_core::task::TaskSpec;
use tracer_core::value;

/// The longest value in characters; of a longer one the rest is cut off, and an ellipsis says so.
const VALUE_LIMIT: usize = 256;
/// The most arguments that are recorded; of a longer list the first ones are.
const COUNT_LIMIT: usize = 32;
/// Encoded arguments that are longer than this, in bytes, are only counted.
const ENCODED_LIMIT: usize = 64 << 10;

/// Puts the arguments onto a span, under the names of the parameters as far as they are known, else under their numbers. `parameters` is asked
/// only if the span is recorded.
///
/// `in_files` is how many bytes of them are in files: of these only the size is told, and that of all.
pub fn record(span: &ActiveSpan, spec: &TaskSpec<'_>, in_files: usize, parameters: impl FnOnce() -> Vec<String>) {
    if !span.is_recording() {
        return;
    }
    let texts = match spec {
        TaskSpec::Function(function) if function.arguments.len().saturating_add(in_files) > ENCODED_LIMIT => {
            let size = function.arguments.len().saturating_add(in_files);
            let size = u64::try_from(size).unwrap_or(u64::MAX);
            span.set_attributes(&[(names::ARGUMENTS_SIZE, size.into())]);
            return;
        }
        TaskSpec::Function(function) => match value::to_json(function.arguments) {
            Ok(serde_json::Value::Array(values)) => values.iter().take(COUNT_LIMIT).map(ToString::to_string).collect(),
            // What is wrong with them is said by whoever takes them.
            _ => return,
        },
        TaskSpec::Command(command) => {
            let text = |word: &&[u8]| String::from_utf8_lossy(word).into_owned();
            command.arguments.iter().take(COUNT_LIMIT).map(text).collect::<Vec<_>>()
        }
    };
    if texts.is_empty() {
        return;
    }
    let mut parameters = parameters().into_iter();
    let attributes: Vec<(String, String)> = (1..)
        .zip(texts)
        .map(|(number, text)| {
            let name = parameters.next().unwrap_or_else(|| number.to_string());
            (format!("{}{name}", names::ARGUMENT_PREFIX), cut(text))
        })
        .collect();
    let attributes: Vec<_> = attributes.iter().map(|(key, text)| (key.as_str(), Attribute::Str(text))).collect();
    span.set_attributes(&attributes);
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(VALUE_LIMIT) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let text = |count| "é".repeat(count);
        assert_eq!(cut(text(VALUE_LIMIT)), text(VALUE_LIMIT));
        assert_eq!(cut(text(VALUE_LIMIT + 1)), format!("{}…", text(VALUE_LIMIT)));
        assert_eq!(cut(String::new()), "");
    }
}
