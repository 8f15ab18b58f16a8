//! Return types of a hook.

use std::fmt;

use opentelemetry_sdk::trace::{SdkTracerProvider, SpanProcessor};

use crate::hook::builder::{Tracing, TracingBuilder};

/// Return value of a hook: a [`Tracing`], a finished [`SdkTracerProvider`], a list of span processors, or a `Result` with one of them whose error can
/// be displayed.
///
/// The three are told apart by their types, so that handing one where another is meant does not compile:
///
/// ```compile_fail
/// use opentelemetry_sdk::trace::SimpleSpanProcessor;
///
/// // A processor on its own: the compiler says that a list of them is accepted.
/// fn setup_tracing<E: opentelemetry_sdk::trace::SpanExporter>(exporter: E) -> impl tracer_sdk::hook::IntoTracing {
///     SimpleSpanProcessor::new(exporter)
/// }
/// ```
///
/// | returned | ids, sampler, resource | spans survive a kill | spans of a dead process |
/// | --- | --- | --- | --- |
/// | [`Tracing`] | the hook's, else defaults | the host sees to it | go to its exporters, in another process |
/// | `Vec<Box<dyn SpanProcessor>>` | defaults | the host sees to it | go to the processors, in another process |
/// | [`SdkTracerProvider`] | the hook's | the host sees to it | go to the span file, without a resource |
#[diagnostic::on_unimplemented(
    message = "a tracing hook cannot return `{Self}`",
    label = "describes no tracing",
    note = "return `tracer_sdk::hook::Tracing` (from `Tracing::builder()…build()`), an `SdkTracerProvider`, or a `Vec<Box<dyn SpanProcessor>>`",
    note = "each may be the `Ok` of a `Result` whose error implements `Display`",
    note = "a span exporter goes into `Tracing::builder().with_batch_exporter(exporter).build()`",
    note = "the OpenTelemetry crates must be those of the version that `tracer-sdk` uses (0.33)"
)]
pub trait IntoTracing {
    /// Returns the description, or the hook's own error.
    fn into_tracing(self) -> Result<Tracing, Error>;
}

impl IntoTracing for Tracing {
    fn into_tracing(self) -> Result<Tracing, Error> {
        Ok(self)
    }
}

impl IntoTracing for SdkTracerProvider {
    fn into_tracing(self) -> Result<Tracing, Error> {
        Ok(Tracing::from(self))
    }
}

impl IntoTracing for Vec<Box<dyn SpanProcessor>> {
    fn into_tracing(self) -> Result<Tracing, Error> {
        let builder = Tracing::builder();
        Ok(self.into_iter().fold(builder, TracingBuilder::with_boxed_processor).build())
    }
}

impl<T: IntoTracing, E: fmt::Display> IntoTracing for Result<T, E> {
    fn into_tracing(self) -> Result<Tracing, Error> {
        match self {
            Ok(tracing) => tracing.into_tracing(),
            // The alternate form: error types that hold a chain (such as `anyhow::Error`) print all of it.
            Err(error) => Err(Error::new(format_args!("{error:#}"))),
        }
    }
}

/// Return value of an exporter: a list of span processors, or a `Result` with one whose error can be displayed.
#[diagnostic::on_unimplemented(
    message = "a tracing exporter cannot return `{Self}`",
    label = "is no list of span processors",
    note = "return a `Vec<Box<dyn SpanProcessor>>`, or a `Result` of one whose error implements `Display`",
    note = "a function that says more than where spans go is a `#[tracer_sdk::startup_hook]`",
    note = "the OpenTelemetry crates must be those of the version that `tracer-sdk` uses (0.33)"
)]
pub trait IntoProcessors {
    /// Returns the processors, or the exporter's own error.
    fn into_processors(self) -> Result<Vec<Box<dyn SpanProcessor>>, Error>;
}

impl IntoProcessors for Vec<Box<dyn SpanProcessor>> {
    fn into_processors(self) -> Result<Vec<Box<dyn SpanProcessor>>, Error> {
        Ok(self)
    }
}

impl<T: IntoProcessors, E: fmt::Display> IntoProcessors for Result<T, E> {
    fn into_processors(self) -> Result<Vec<Box<dyn SpanProcessor>>, Error> {
        match self {
            Ok(processors) => processors.into_processors(),
            // As for a hook.
            Err(error) => Err(Error::new(format_args!("{error:#}"))),
        }
    }
}

/// Error of a hook that could not set up tracing: a text for whoever started `tracer`.
///
/// `?` makes one of any error; the text then holds the whole chain of sources. `.into()` makes one of a text, as in `Err("no licence".into())`. For that reason the type is not itself a
/// [`std::error::Error`].
pub struct Error {
    message: String,
}

impl Error {
    /// Makes an error that says `message`.
    pub fn new(message: impl fmt::Display) -> Error {
        Error { message: message.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Into<Box<dyn std::error::Error>>> From<E> for Error {
    fn from(error: E) -> Error {
        let error = error.into();
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some errors repeat their source in their own text.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Error { message }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_text_and_any_error_become_the_error_of_a_hook() {
        fn of_text() -> Result<(), super::Error> {
            Err("no licence".into())
        }
        fn of_string(port: u16) -> Result<(), super::Error> {
            Err(format!("port {port} is taken"))?
        }
        fn of_any() -> Result<(), super::Error> {
            let failed: Result<(), Box<dyn std::error::Error>> = Err("boxed".into());
            Ok(failed?)
        }
        assert_eq!(of_text().unwrap_err().to_string(), "no licence");
        assert_eq!(of_string(1).unwrap_err().to_string(), "port 1 is taken");
        assert_eq!(of_any().unwrap_err().to_string(), "boxed");
    }

    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("cannot reach the collector")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_made_with_a_question_mark_tells_the_whole_chain() {
        fn setup() -> Result<Tracing, Error> {
            Err(Outer(std::io::Error::other("name not known")))?
        }
        let error = setup().unwrap_err().to_string();
        assert_eq!(error, "cannot reach the collector: name not known");
    }

    #[test]
    fn any_error_that_can_be_displayed_may_be_returned() {
        let text: Result<Tracing, &str> = Err("no");
        assert_eq!(text.into_tracing().unwrap_err().to_string(), "no");
        let boxed: Result<SdkTracerProvider, Box<dyn std::error::Error>> = Err("nor".into());
        assert_eq!(boxed.into_tracing().unwrap_err().to_string(), "nor");
    }
}
