//! The `OTEL_*` environment variables, read as the OpenTelemetry specification says.
//!
//! The Rust crates of OpenTelemetry ignore some of them and read others in their own way, so a process's tracing and the
//! tracing that tracer does by itself both read them here, and agree. The rules for all of them: spaces around a value mean nothing; a
//! variable set to nothing is not set; a value that cannot be understood is a [`Problem`], and counts as not set.
//!
//! Nothing here depends on OpenTelemetry, and nothing prints. Where a span goes is not decided here either: that is
//! what hooks are for.

mod limits;
mod resource;
mod sampler;

use std::ffi::OsString;
use std::fmt;

pub use limits::{DEFAULT_COUNT_LIMIT, DEFAULT_LINK_LIMIT, Limits};
pub use sampler::{Root, Sampler};

/// Switches the SDK off: no spans are made. What came in is passed on all the same.
pub const SDK_DISABLED: &str = "OTEL_SDK_DISABLED";
/// Variable of the trace exporters, as names separated by commas.
pub const TRACES_EXPORTER: &str = "OTEL_TRACES_EXPORTER";
/// Variable of the propagators, as names separated by commas.
pub const PROPAGATORS: &str = "OTEL_PROPAGATORS";
/// The name of the service; stronger than a `service.name` in [`RESOURCE_ATTRIBUTES`].
pub const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// Attributes of the resource: `key=value`, separated by commas, percent-encoded.
pub const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
/// Level of the log about tracing itself.
pub const LOG_LEVEL: &str = "OTEL_LOG_LEVEL";
/// The sampler's name.
pub const TRACES_SAMPLER: &str = "OTEL_TRACES_SAMPLER";
/// The sampler's argument: a ratio.
pub const TRACES_SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
/// A file that configures an SDK. It is not read.
pub const CONFIG_FILE: &str = "OTEL_CONFIG_FILE";

/// A variable that could not be taken as it is, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    variable: String,
    text: String,
}

impl Problem {
    /// Says `text` about a variable. The text begins after the name.
    pub fn new(variable: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem { variable: variable.into(), text: text.into() }
    }

    /// Returns the variable.
    pub fn variable(&self) -> &str {
        &self.variable
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.variable, self.text)
    }
}

/// Level of the log about tracing itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    None,
    /// Errors.
    Error,
    /// Warnings about what was ignored, too.
    Warn,
    /// Notes about what is going on, too.
    #[default]
    Info,
    /// Everything.
    Debug,
}

/// Finds the value of a variable.
type Lookup<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// Reads variables, and collects what is wrong with them.
pub struct Reader<'a> {
    lookup: Box<Lookup<'a>>,
    problems: Vec<Problem>,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("problems", &self.problems).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Reads variables through `lookup`.
    pub fn new(lookup: impl Fn(&str) -> Option<OsString> + 'a) -> Reader<'a> {
        Reader { lookup: Box::new(lookup), problems: Vec::new() }
    }

    /// Reads the variables of this process.
    pub fn of_this_process() -> Reader<'static> {
        Reader::new(|name| std::env::var_os(name))
    }

    /// Returns the problems so far, in the order in which they were read. Each variable says it once.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Notes that something is wrong with a variable, unless that was noted before.
    pub fn complain(&mut self, variable: &str, text: impl Into<String>) {
        let problem = Problem::new(variable, text);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Returns the value without the spaces around it; none for one that is not set, or set to nothing.
    pub fn text(&mut self, variable: &str) -> Option<String> {
        match (self.lookup)(variable)?.into_string() {
            Ok(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            Err(_) => {
                self.complain(variable, "is not valid UTF-8 and is ignored");
                None
            }
        }
    }

    /// Names separated by commas, without repetitions; none for a variable that is not set.
    pub fn names(&mut self, variable: &str) -> Option<Vec<String>> {
        let text = self.text(variable)?;
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        (!names.is_empty()).then_some(names)
    }

    /// Returns whether it is `true`, in whatever case. Anything else is false.
    pub fn boolean(&mut self, variable: &str) -> bool {
        let Some(text) = self.text(variable) else { return false };
        let is_true = text.eq_ignore_ascii_case("true");
        if !is_true && !text.eq_ignore_ascii_case("false") {
            self.complain(variable, format!("is `{text}`, expected `true` or `false`; it counts as `false`"));
        }
        is_true
    }

    /// Returns a number from 0 up; none for a variable that is not set or says something else.
    pub fn number(&mut self, variable: &str) -> Option<usize> {
        let text = self.text(variable)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.complain(variable, format!("is `{text}`, expected a number from 0 up; it is ignored"));
        }
        number
    }

    /// [`SDK_DISABLED`].
    pub fn is_sdk_disabled(&mut self) -> bool {
        self.boolean(SDK_DISABLED)
    }

    /// [`LOG_LEVEL`].
    pub fn log_level(&mut self) -> LogLevel {
        let Some(text) = self.text(LOG_LEVEL) else { return LogLevel::default() };
        match text.to_ascii_lowercase().as_str() {
            "none" => LogLevel::None,
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "info" => LogLevel::Info,
            "debug" => LogLevel::Debug,
            _ => {
                let known = "expected `none`, `error`, `warn`, `info` or `debug`";
                self.complain(LOG_LEVEL, format!("is `{text}`, {known}; it is ignored"));
                LogLevel::default()
            }
        }
    }

    /// Reads all variables that concern how spans are made, so that what is wrong with them can be said once.
    pub fn read_all(&mut self) {
        self.is_sdk_disabled();
        self.log_level();
        self.sampler();
        self.limits();
        self.resource_attributes();
        if self.text(CONFIG_FILE).is_some() {
            let text = "is not supported: the file is not read, and the other variables count";
            self.complain(CONFIG_FILE, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reader of these variables alone.
    pub(crate) fn reader(variables: &'static [(&'static str, &'static str)]) -> Reader<'static> {
        Reader::new(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    /// Returns what was wrong.
    pub(crate) fn problems(reader: Reader<'_>) -> Vec<String> {
        reader.into_problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_sdk_is_disabled_by_true_in_any_case_and_by_nothing_else() {
        for (text, expected, is_wrong) in [
            ("true", true, false),
            ("TRUE", true, false),
            (" True ", true, false),
            ("false", false, false),
            ("", false, false),
            ("  ", false, false),
            ("1", false, true),
            ("yes", false, true),
        ] {
            let mut reader = Reader::new(|_| Some(text.into()));
            assert_eq!(reader.is_sdk_disabled(), expected, "{text:?}");
            assert_eq!(reader.into_problems().len(), usize::from(is_wrong), "{text:?}");
        }
        let mut reader = reader(&[(SDK_DISABLED, "1")]);
        reader.is_sdk_disabled();
        reader.is_sdk_disabled();
        let said = "`OTEL_SDK_DISABLED` is `1`, expected `true` or `false`; it counts as `false`";
        assert_eq!(problems(reader), [said]);
    }

    #[test]
    fn names_are_separated_by_commas_and_counted_once() {
        for (text, expected) in [("a", Some(vec!["a"])), (" a , b,a ", Some(vec!["a", "b"])), (",,", None), ("", None)]
        {
            let names = Reader::new(|_| Some(text.into())).names(PROPAGATORS);
            assert_eq!(names, expected.map(|names| names.iter().map(ToString::to_string).collect()), "{text:?}");
        }
    }

    #[test]
    fn a_log_level_is_one_of_five() {
        for (text, expected) in [
            ("none", LogLevel::None),
            ("ERROR", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("", LogLevel::Info),
            ("info", LogLevel::Info),
            ("Debug", LogLevel::Debug),
        ] {
            let mut reader = Reader::new(|_| Some(text.into()));
            assert_eq!(reader.log_level(), expected, "{text:?}");
            assert_eq!(reader.into_problems(), []);
        }
        let mut reader = reader(&[(LOG_LEVEL, "loud")]);
        assert_eq!(reader.log_level(), LogLevel::Info);
        let said = "`OTEL_LOG_LEVEL` is `loud`, expected `none`, `error`, `warn`, `info` or `debug`; it is ignored";
        assert_eq!(problems(reader), [said]);
    }

    #[test]
    fn everything_is_checked_at_once() {
        let mut reader = reader(&[
            (LOG_LEVEL, "loud"),
            (TRACES_SAMPLER, "xray"),
            ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many"),
            (RESOURCE_ATTRIBUTES, "no equals sign"),
            (CONFIG_FILE, "/etc/otel.yaml"),
        ]);
        reader.read_all();
        let wrong: Vec<_> = reader.into_problems().iter().map(|problem| problem.variable().to_owned()).collect();
        let expected = [LOG_LEVEL, TRACES_SAMPLER, "OTEL_SPAN_EVENT_COUNT_LIMIT", RESOURCE_ATTRIBUTES, CONFIG_FILE];
        assert_eq!(wrong, expected);
    }

    #[test]
    fn what_is_no_text_is_ignored() {
        use std::os::unix::ffi::OsStringExt;
        let mut reader = Reader::new(|_| Some(OsString::from_vec(vec![0xff])));
        assert_eq!(reader.text(SERVICE_NAME), None);
        assert_eq!(problems(reader), ["`OTEL_SERVICE_NAME` is not valid UTF-8 and is ignored"]);
    }
}
