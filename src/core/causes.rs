//! Errors as they are told to people: with their causes, and with the hint at the end.

use std::error::Error;
use std::fmt;

/// Returns the error's text, its causes behind it, and then its hints, which begin in its second line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let hint = text.find('\n').map(|end| text.split_off(end)).unwrap_or_default();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text.push_str(&hint);
    text
}

/// Writes the `Debug` form of an error of the library: what people are told, since `main` prints this form of an error that it returns.
pub fn debug(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&with_causes(error))
}
