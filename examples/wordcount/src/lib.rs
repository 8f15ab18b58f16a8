//! Counts words. The example to begin with: three tasks, plain functions, of which one takes an optional argument
//! and one can fail. The spans inside are made with the ordinary OpenTelemetry API, as in any program; they
//! become children of the task's own span without further ado.
//!
//! ```text
//! $ cargo build -p wordcount
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit task wordcount:count '"the quick brown fox"'
//! 4
//! $ tracer submit task wordcount:frequencies '"to be or not to be"' 2
//! [{"word":"be","count":2},{"word":"to","count":2}]
//! $ tracer submit task wordcount:count_file "\"$PWD/LICENSE\""
//! 1581
//! ```

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use opentelemetry::trace::{Span, TraceContextExt, Tracer, get_active_span};
use opentelemetry::{Context, KeyValue, global};
use serde::Serialize;
use tracer_sdk::task;

/// Number of lines of a file that make a chunk, and so a span.
const LINES_PER_CHUNK: usize = 1000;

/// Counts the words of a text.
///
/// A word is what stands between white space.
#[task]
fn count(text: &str) -> u64 {
    words(text)
}

/// A word and how often it occurs.
#[derive(Debug, PartialEq, Serialize)]
struct Frequency {
    word: String,
    count: u64,
}

/// The most frequent words of a text, in lower case, the most frequent first; all of them unless there is a limit.
#[task]
fn frequencies(text: &str, limit: Option<usize>) -> Vec<Frequency> {
    let tracer = global::tracer("wordcount");
    let counts = tracer.in_span("count", |context| {
        let mut counts = HashMap::<_, u64>::new();
        for word in text.split_whitespace() {
            *counts.entry(word.to_lowercase()).or_default() += 1;
        }
        context.span().set_attribute(KeyValue::new("wordcount.distinct", counts.len() as i64));
        counts
    });
    tracer.in_span("sort", |_| {
        let mut frequencies: Vec<_> = counts.into_iter().map(|(word, count)| Frequency { word, count }).collect();
        // Words that are equally frequent come in the order of the alphabet, so that the result is always the same.
        frequencies.sort_by(|a, b| (Reverse(a.count), &a.word).cmp(&(Reverse(b.count), &b.word)));
        frequencies.truncate(limit.unwrap_or(usize::MAX));
        frequencies
    })
}

/// Counts the words of a file, with a span for every thousand lines.
#[task]
fn count_file(path: &str) -> Result<u64, String> {
    let file = File::open(path).map_err(|error| {
        let hint = if path.starts_with('/') { "" } else { "\n(hint: a relative path begins at the worker's folder)" };
        format!("cannot open `{path}`: {error}{hint}")
    })?;
    let total = count_lines(BufReader::new(file)).map_err(|error| format!("cannot read `{path}`: {error}"))?;
    // The span of the task itself is current here.
    get_active_span(|span| span.set_attribute(KeyValue::new("wordcount.words", total as i64)));
    Ok(total)
}

fn count_lines(file: impl BufRead) -> io::Result<u64> {
    let tracer = global::tracer("wordcount");
    let mut lines = file.lines().peekable();
    let mut total = 0;
    let mut first_line = 1;
    while lines.peek().is_some() {
        let mut span = tracer.start_with_context("count chunk", &Context::current());
        span.set_attribute(KeyValue::new("wordcount.first_line", first_line as i64));
        for line in lines.by_ref().take(LINES_PER_CHUNK) {
            match line {
                Ok(line) => total += words(&line),
                Err(error) => {
                    span.record_error(&error);
                    return Err(error);
                }
            }
        }
        first_line += LINES_PER_CHUNK;
    }
    Ok(total)
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_stands_between_white_space() {
        assert_eq!(count("the quick\tbrown\n fox "), 4);
        assert_eq!(count(""), 0);
    }

    #[test]
    fn the_most_frequent_words_come_first() {
        let frequency = |word: &str, count| Frequency { word: word.to_owned(), count };
        assert_eq!(
            frequencies("To be or not to be", Some(3)),
            [frequency("be", 2), frequency("to", 2), frequency("not", 1)]
        );
        assert_eq!(frequencies("To be or not to be", None).len(), 4);
    }

    #[test]
    fn files_are_counted_across_chunks() {
        let text = "one two\n".repeat(2 * LINES_PER_CHUNK + 1);
        assert_eq!(count_lines(text.as_bytes()).expect("memory can be read"), 2 * (2 * LINES_PER_CHUNK as u64 + 1));
    }

    #[test]
    fn missing_file_is_named() {
        let error = count_file("no/such/file").expect_err("there is none");
        assert!(error.starts_with("cannot open `no/such/file`: "), "{error}");
    }
}
