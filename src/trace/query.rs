//! The language of questions about spans: `error name:count duration>100ms since:10m region=eu -state:running "timed out"`.
//!
//! ```text
//! query  = { term }                                    all of them hold
//! term   = [ "-" ] ( flag | field operator value | '"' text '"' )
//! flag   = "error" | "running" | "root"
//! field  = "name" | "duration" | "since" | "until" | "state" | "kind" | "service" | "task" | "pid" | "trace" | "spans"
//!        | the key of an attribute
//! operator = ":" | "=" | "!=" | ">" | ">=" | "<" | "<="
//! ```
//!
//! `:` asks whether a text contains the value in any case of letters, or fits it if it has `*` or `?`; `=` asks for the whole text. An attribute that is a
//! number is compared with `>` and its like by value; with a unit (`tracer.queued_ns>5ms`) the value is a duration in nanoseconds.
//! A value or text with spaces stands in quotes, in which `\` takes the next character as it is. `-` negates a term.
//!
//! A span matches if every term holds of it. A trace matches if one of its spans meets all terms without `-`, and none meets one with `-`:
//! so `name:count -error` finds the traces that counted and in which nothing failed. `trace:` and `spans>` ask about the trace.
//!
//! Tasks are asked for in the same words ([`Query::parse_for_tasks`]): `name` is looked for in a task's name and its function, `since` and `until` are about its
//! submission, `state` has the states of tasks, `pid` is its worker's, and any other key is a field of the report, such as `attempt>1`.
//!
//! Parsing and matching are pure. Terms are tried in the order of their cost: attributes, which have to be parsed out of a span's text, come last.

use std::fmt;

use tracer_core::duration::parse_duration;
use tracer_core::suggestion;
use tracer_ipc::protocol::TaskState;

use crate::span::Kind;

pub(super) mod matching;

/// Words that are a term of their own.
const FLAGS: [&str; 3] = ["error", "running", "root"];
/// Fields that every span has.
const FIELDS: [&str; 11] =
    ["name", "duration", "since", "until", "state", "kind", "service", "task", "pid", "trace", "spans"];
/// States of a span.
const STATES: [&str; 3] = ["running", "ended", "failed"];
/// Kinds of a span, as the specification names them.
const KINDS: [&str; 5] = ["internal", "server", "client", "producer", "consumer"];

/// Fields of tasks: those that spans have too, and then those of the report of a task, by its keys in JSON.
const TASK_FIELDS: [&str; 18] = [
    "name",
    "duration",
    "since",
    "until",
    "state",
    "task",
    "pid",
    "trace",
    "target",
    "id",
    "job_id",
    "trace_id",
    "attempt",
    "worker_id",
    "worker_pid",
    "failure",
    "message",
    "actor_id",
];
/// Flags about tasks.
const TASK_FLAGS: [&str; 2] = ["error", "running"];
/// States of a task, and `ended` for the last three.
const TASK_STATES: [&str; 11] = [
    "waiting",
    "retrying",
    "leased",
    "running",
    "cancelling",
    "terminating",
    "killing",
    "succeeded",
    "failed",
    "cancelled",
    "ended",
];

/// A parsed question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// Cheap ones first.
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    is_negated: bool,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Error,
    Running,
    Root,
    Name(Comparison, String),
    Duration(Comparison, u64),
    Since(u64),
    Until(u64),
    State(State),
    Kind(Kind),
    Pid(u32),
    /// The beginning of the trace's id, in lower case.
    Trace(String),
    Spans(Comparison, usize),
    Service(Comparison, String),
    Attribute {
        key: String,
        comparison: Comparison,
        value: AttributeValue,
    },
    Text(String),
    TaskState(TaskState),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Ended,
    Failed,
}

/// A value that an attribute is compared with.
#[derive(Clone, Debug, PartialEq)]
struct AttributeValue {
    text: String,
    /// Its number, in nanoseconds if it was written as a duration.
    number: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Contains,
    Equal,
    Different,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// A question that does not parse. It prints with the mistake marked below the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    query: String,
    /// Characters of the mistake: the first, and how many.
    mark: (usize, usize),
    expected: String,
    /// Nearest word to what was found, if it is near enough.
    nearest: Option<&'static str>,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, length) = self.mark;
        let found: String = self.query.chars().skip(start).take(length).collect();
        let found =
            if found.is_empty() { "nothing".into() } else { format!("`{}`", tracer_core::escape::line(&found)) };
        let line: String = self.query.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        write!(f, "expected {}, found {found}\n  {line}\n", self.expected)?;
        write!(f, "  {}{}", " ".repeat(start), "^".repeat(length.max(1)))?;
        self.nearest.map_or(Ok(()), |nearest| write!(f, "\n(hint: did you mean `{nearest}`?)"))
    }
}

impl std::error::Error for QueryError {}

impl Query {
    /// Parses a question. `now_unix_nano` is the time that `since:10m` counts back from.
    pub fn parse(text: &str, now_unix_nano: u64) -> Result<Query, QueryError> {
        Query::parse_about(text, now_unix_nano, false)
    }

    /// Parses a question about tasks, for [`Query::matches_task`].
    pub fn parse_for_tasks(text: &str, now_unix_nano: u64) -> Result<Query, QueryError> {
        Query::parse_about(text, now_unix_nano, true)
    }

    fn parse_about(text: &str, now_unix_nano: u64, is_about_tasks: bool) -> Result<Query, QueryError> {
        let mut parser =
            Parser { query: text, characters: text.chars().collect(), at: 0, now_unix_nano, is_about_tasks };
        let mut terms = Vec::new();
        while let Some(term) = parser.term()? {
            terms.push(term);
        }
        terms.sort_by_key(|term| term.test.cost());
        Ok(Query { terms })
    }

    /// Parses a question that came as several words of a command line.
    pub fn parse_words(words: &[String], now_unix_nano: u64) -> Result<Query, QueryError> {
        Query::parse(&words.join(" "), now_unix_nano)
    }

    /// Returns whether nothing is asked, so that everything matches.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the time before which no trace that matches ends, if there is one.
    pub(super) fn earliest_unix_nano(&self) -> Option<u64> {
        let since = |term: &Term| match term.test {
            Test::Since(time) if !term.is_negated => Some(time),
            _ => None,
        };
        self.terms.iter().filter_map(since).max()
    }

    /// Returns the fields that are near to one of these keys, each with the key: attributes that were hardly meant.
    pub fn doubtful_keys(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.terms.iter().filter_map(|term| match &term.test {
            Test::Attribute { key, .. } => suggestion::nearest(key, FIELDS).map(|field| (key.as_str(), field)),
            _ => None,
        })
    }
}

impl Test {
    /// Rank by the time that one test takes.
    fn cost(&self) -> u8 {
        match self {
            Test::Name(..) => 1,
            Test::Service(..) | Test::Pid(_) => 2,
            Test::Attribute { .. } => 3,
            Test::Text(_) => 4,
            _ => 0,
        }
    }
}

struct Parser<'a> {
    query: &'a str,
    characters: Vec<char>,
    at: usize,
    now_unix_nano: u64,
    is_about_tasks: bool,
}

/// A word of the question, and where it stands.
struct Word {
    text: String,
    mark: (usize, usize),
}

impl Parser<'_> {
    fn term(&mut self) -> Result<Option<Term>, QueryError> {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
        if self.peek().is_none() {
            return Ok(None);
        }
        let is_negated = self.take('-');
        let test = match self.peek() {
            Some('"') => Test::Text(self.value("a text")?.text.to_lowercase()),
            _ => self.flag_or_field()?,
        };
        if self.peek().is_some_and(|c| !c.is_whitespace()) {
            return Err(self.error((self.at, 1), "a space between two terms"));
        }
        Ok(Some(Term { is_negated, test }))
    }

    fn flag_or_field(&mut self) -> Result<Test, QueryError> {
        let start = self.at;
        while self.peek().is_some_and(|c| !c.is_whitespace() && !":=!<>\"".contains(c)) {
            self.at += 1;
        }
        let word = Word { text: self.characters[start..self.at].iter().collect(), mark: (start, self.at - start) };
        let Some(comparison) = self.comparison() else {
            return match word.text.as_str() {
                "error" => Ok(Test::Error),
                "running" => Ok(Test::Running),
                "root" if !self.is_about_tasks => Ok(Test::Root),
                _ if self.is_about_tasks => {
                    let expected = "`error`, `running`, a field with its value such as `name:count` or `state:failed`, or a \"text\" in quotes";
                    Err(self.unknown(&word, expected, TASK_FLAGS.into_iter().chain(TASK_FIELDS)))
                }
                _ => {
                    let expected = "`error`, `running`, `root`, a field with its value such as `name:count` or `duration>100ms`, or a \"text\" in quotes";
                    Err(self.unknown(&word, expected, FLAGS.into_iter().chain(FIELDS)))
                }
            };
        };
        if word.text.is_empty() {
            return Err(
                self.error((start, self.at - start), "the name of a field or the key of an attribute before this")
            );
        }
        self.field(&word, comparison)
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let comparison = match self.peek()? {
            ':' => Comparison::Contains,
            '=' => Comparison::Equal,
            '!' if self.characters.get(self.at + 1) == Some(&'=') => Comparison::Different,
            '>' if self.characters.get(self.at + 1) == Some(&'=') => Comparison::GreaterOrEqual,
            '<' if self.characters.get(self.at + 1) == Some(&'=') => Comparison::LessOrEqual,
            '>' => Comparison::Greater,
            '<' => Comparison::Less,
            _ => return None,
        };
        let has_two =
            matches!(comparison, Comparison::Different | Comparison::GreaterOrEqual | Comparison::LessOrEqual);
        self.at += 1 + usize::from(has_two);
        Some(comparison)
    }

    fn field(&mut self, field: &Word, comparison: Comparison) -> Result<Test, QueryError> {
        match field.text.as_str() {
            "service" | "kind" | "spans" if self.is_about_tasks => {
                Err(self.unknown(field, "a field of tasks: spans have this one", TASK_FIELDS))
            }
            "state" if self.is_about_tasks => {
                let found = self.one_of(field, comparison, TASK_STATES)?;
                Ok(TaskState::ALL.get(found).map_or(Test::State(State::Ended), |state| Test::TaskState(*state)))
            }
            "name" => {
                self.only(field, comparison, TEXT_COMPARISONS)?;
                let expected = if self.is_about_tasks { "a name of a task" } else { "a name of a span" };
                Ok(Test::Name(comparison, self.value(expected)?.text))
            }
            "service" => {
                self.only(field, comparison, TEXT_COMPARISONS)?;
                Ok(Test::Service(comparison, self.value("a `service.name`")?.text))
            }
            "duration" => {
                let value = self.value("a duration such as `100ms`")?;
                let nanos = duration(&value.text)
                    .ok_or_else(|| self.error(value.mark, "a duration such as `100ms`, `50us` or `2s`"))?;
                Ok(Test::Duration(order(comparison), nanos))
            }
            "since" | "until" => {
                self.only(field, comparison, &[Comparison::Contains, Comparison::Equal])?;
                let value = self.value("a time")?;
                let time = self.time(&value)?;
                Ok(if field.text == "since" { Test::Since(time) } else { Test::Until(time) })
            }
            "state" => match self.one_of(field, comparison, STATES)? {
                0 => Ok(Test::State(State::Running)),
                1 => Ok(Test::State(State::Ended)),
                _ => Ok(Test::State(State::Failed)),
            },
            "kind" => {
                let kind = self.one_of(field, comparison, KINDS)?;
                Ok(Test::Kind(Kind::from_text(&KINDS[kind].to_uppercase())))
            }
            "pid" => Ok(Test::Pid(self.number(field, comparison, "the id of a process")?)),
            "task" => {
                let id: u64 = self.number(field, comparison, "the id of a task, such as `7`")?;
                let value = AttributeValue { text: id.to_string(), number: Some(id as f64) };
                Ok(Test::Attribute { key: tracer_core::names::TASK_ID.into(), comparison: Comparison::Equal, value })
            }
            "trace" => {
                self.only(field, comparison, &[Comparison::Contains, Comparison::Equal])?;
                let value = self.value("the beginning of a trace's id")?;
                let digits = value.text.strip_prefix("0x").unwrap_or(&value.text).to_ascii_lowercase();
                let is_id = digits.len() <= 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                let expected = "the beginning of a trace's id, up to 32 hexadecimal digits";
                if is_id { Ok(Test::Trace(digits)) } else { Err(self.error(value.mark, expected)) }
            }
            "spans" => {
                let value = self.value("a number of spans")?;
                let spans =
                    value.text.parse().map_err(|_| self.error(value.mark, "a number of spans, such as `100`"))?;
                Ok(Test::Spans(order(comparison), spans))
            }
            key if self.is_about_tasks && !TASK_FIELDS.contains(&key) => {
                Err(self.unknown(field, "a field of tasks, such as `state:failed` or `attempt>1`", TASK_FIELDS))
            }
            key => {
                let value = self.value("the value of an attribute")?;
                let number = value.text.parse().ok().or_else(|| unit_duration(&value.text).map(|nanos| nanos as f64));
                let is_order = !TEXT_COMPARISONS.contains(&comparison);
                if is_order && number.is_none() {
                    return Err(self.error(value.mark, "a number or a duration, because it is compared by size"));
                }
                let value = AttributeValue { text: value.text, number };
                Ok(Test::Attribute { key: key.into(), comparison, value })
            }
        }
    }

    /// Refuses a comparison that a field does not have.
    fn only(&self, field: &Word, comparison: Comparison, allowed: &[Comparison]) -> Result<(), QueryError> {
        if allowed.contains(&comparison) {
            return Ok(());
        }
        let symbols: Vec<_> = allowed.iter().map(|comparison| format!("`{}`", comparison.symbol())).collect();
        let (start, length) = field.mark;
        let symbol = comparison.symbol().chars().count();
        Err(self.error((start + length, symbol), &format!("{} after `{}`", symbols.join(" or "), field.text)))
    }

    fn one_of<const N: usize>(
        &mut self,
        field: &Word,
        comparison: Comparison,
        words: [&'static str; N],
    ) -> Result<usize, QueryError> {
        self.only(field, comparison, &[Comparison::Contains, Comparison::Equal])?;
        let expected = format!("`{}`", words.join("`, `"));
        let value = self.value(&expected)?;
        let found = words.iter().position(|word| value.text.eq_ignore_ascii_case(word));
        found.ok_or_else(|| self.unknown(&value, &format!("one of {expected}"), words))
    }

    fn number<T: std::str::FromStr>(
        &mut self,
        field: &Word,
        comparison: Comparison,
        expected: &str,
    ) -> Result<T, QueryError> {
        self.only(field, comparison, &[Comparison::Contains, Comparison::Equal])?;
        let value = self.value(expected)?;
        value.text.parse().map_err(|_| self.error(value.mark, expected))
    }

    fn time(&self, value: &Word) -> Result<u64, QueryError> {
        let expected = "a duration before now, such as `10m`, or a time, such as `2026-11-20T19:00:00Z`";
        parse_time(&value.text, self.now_unix_nano).ok_or_else(|| self.error(value.mark, expected))
    }

    /// Takes a value, which stands in quotes if it has spaces.
    fn value(&mut self, expected: &str) -> Result<Word, QueryError> {
        let start = self.at;
        let mut text = String::new();
        if self.take('"') {
            loop {
                match self.next() {
                    Some('"') => break,
                    Some('\\') => text.extend(self.next()),
                    Some(character) => text.push(character),
                    None => return Err(self.error((start, self.at - start), "a `\"` at the end of the text")),
                }
            }
        } else {
            while let Some(character) = self.peek().filter(|c| !c.is_whitespace()) {
                text.push(character);
                self.at += 1;
            }
        }
        if text.is_empty() {
            return Err(self.error((start, self.at - start), expected));
        }
        Ok(Word { text, mark: (start, self.at - start) })
    }

    fn unknown(&self, word: &Word, expected: &str, known: impl IntoIterator<Item = &'static str>) -> QueryError {
        let nearest = suggestion::nearest(&word.text, known);
        QueryError { nearest, ..self.error(word.mark, expected) }
    }

    fn error(&self, mark: (usize, usize), expected: &str) -> QueryError {
        QueryError { query: self.query.into(), mark, expected: expected.into(), nearest: None }
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += 1;
        Some(character)
    }

    fn take(&mut self, expected: char) -> bool {
        let is_there = self.peek() == Some(expected);
        self.at += usize::from(is_there);
        is_there
    }
}

const TEXT_COMPARISONS: &[Comparison] = &[Comparison::Contains, Comparison::Equal, Comparison::Different];

impl Comparison {
    fn symbol(self) -> &'static str {
        match self {
            Comparison::Contains => ":",
            Comparison::Equal => "=",
            Comparison::Different => "!=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
        }
    }
}

/// Returns the comparison of a number: `:` asks for the same one.
fn order(comparison: Comparison) -> Comparison {
    if comparison == Comparison::Contains { Comparison::Equal } else { comparison }
}

/// Parses a time, or a duration before now, into nanoseconds since the Unix epoch.
pub fn parse_time(text: &str, now_unix_nano: u64) -> Option<u64> {
    let before = || Some(now_unix_nano.saturating_sub(duration(text)?));
    tracer_core::clock::parse_rfc3339(text).or_else(before)
}

/// Nanoseconds of a duration as people write it; seconds if it has no unit.
fn duration(text: &str) -> Option<u64> {
    u64::try_from(parse_duration(text).ok()?.as_nanos()).ok()
}

/// Nanoseconds of a duration that has a unit.
fn unit_duration(text: &str) -> Option<u64> {
    duration(text).filter(|_| text.ends_with(char::is_alphabetic))
}

#[cfg(test)]
mod tests;
