//! Errors as they are told to people: with their causes, and with the hint at the end.

use std::error::Error;
use std::fmt;

/// Returns the error's text, its causes behind it, and then its hints, which begin in its second line. A cause that the text before it ends with, as some
/// libraries write it, is not said again.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let hint = text.find('\n').map(|end| text.split_off(end)).unwrap_or_default();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text.push_str(&hint);
    text
}

/// Writes the `Debug` form of an error of the library: what people are told, since `main` prints this form of an error that it returns.
pub fn debug(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&with_causes(error))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An error with a text of its own, and a cause.
    #[derive(Debug)]
    struct Failed(&'static str, io::Error);

    impl fmt::Display for Failed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Failed {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn each_cause_is_said_once_and_before_the_hint() {
        for (text, expected) in [
            ("it cannot be read", "it cannot be read: refused"),
            ("it cannot be read: refused", "it cannot be read: refused"),
            ("it cannot be read\n(hint: look)", "it cannot be read: refused\n(hint: look)"),
            ("it cannot be read: refused\n(hint: look)", "it cannot be read: refused\n(hint: look)"),
        ] {
            assert_eq!(with_causes(&Failed(text, io::Error::other("refused"))), expected);
        }
    }
}
