//! One span as one line.
//!
//! The keys and their order are those of `ReadableSpan.to_json(indent=None)` in the OpenTelemetry Python SDK 1.45, and so
//! are the separators (`", "` and `": "`), so that one `grep` finds a span in a file of either. What this format has no
//! place for is lost: scope, trace flags, dropped counts, and what is finer than a microsecond.

use crate::json;

/// A span that has ended. Everything is borrowed.
///
/// `A` is how attributes are kept; the default is a slice of pairs. See [`Attributes`].
#[derive(Clone, Copy, Debug)]
pub struct Span<'a, A = &'a [(&'a str, Value<'a>)]> {
    /// The span's name.
    pub name: &'a str,
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
    /// The W3C tracestate header; empty for none. The line holds it as the Python SDK prints it:
    /// `a=1,b=2` becomes `['{key=a, value=1}', '{key=b, value=2}']`.
    pub trace_state: &'a str,
    /// The kind.
    pub kind: SpanKind,
    /// The parent's span id, or `None` for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// Nanoseconds since the Unix epoch.
    pub start_time_unix_nano: u64,
    /// Nanoseconds since the Unix epoch.
    pub end_time_unix_nano: u64,
    /// The status.
    pub status: Status<'a>,
    /// The attributes. Where a key repeats, its last value is written, in the place of the first.
    pub attributes: A,
    /// The span events.
    pub events: &'a [Event<'a, A>],
    /// The links.
    pub links: &'a [Link<'a, A>],
}

/// A span event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a, A = &'a [(&'a str, Value<'a>)]> {
    /// The event's name.
    pub name: &'a str,
    /// Nanoseconds since the Unix epoch.
    pub time_unix_nano: u64,
    /// The attributes.
    pub attributes: A,
}

/// A link to another span.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a, A = &'a [(&'a str, Value<'a>)]> {
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
    /// The W3C tracestate header of the span linked to; empty for none.
    pub trace_state: &'a str,
    /// The attributes.
    pub attributes: A,
}

/// The kind of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanKind {
    /// A step inside a process.
    #[default]
    Internal,
    /// Answers a remote call.
    Server,
    /// Makes a remote call.
    Client,
    /// Sends work that is done later.
    Producer,
    /// Does work that was sent.
    Consumer,
}

impl SpanKind {
    /// The kind with this number in OpenTelemetry's API (0 internal, 1 server, 2 client, 3 producer, 4 consumer), which is
    /// also the number in the contract with modules. Any other number is taken as internal.
    pub fn from_code(code: u32) -> SpanKind {
        match code {
            1 => SpanKind::Server,
            2 => SpanKind::Client,
            3 => SpanKind::Producer,
            4 => SpanKind::Consumer,
            _ => SpanKind::Internal,
        }
    }

    fn name(self) -> &'static [u8] {
        match self {
            SpanKind::Internal => b"SpanKind.INTERNAL",
            SpanKind::Server => b"SpanKind.SERVER",
            SpanKind::Client => b"SpanKind.CLIENT",
            SpanKind::Producer => b"SpanKind.PRODUCER",
            SpanKind::Consumer => b"SpanKind.CONSUMER",
        }
    }
}

/// The status of a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status<'a> {
    /// Nothing was said.
    #[default]
    Unset,
    /// Explicitly fine.
    Ok,
    /// It failed. An empty description is left out of the line.
    Error {
        /// What went wrong, for people to read.
        description: &'a str,
    },
}

/// An attribute's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A boolean.
    Bool(bool),
    /// An integer.
    I64(i64),
    /// A float. NaN and the infinities are written as strings, because JSON has no number for them.
    F64(f64),
    /// A string.
    Str(&'a str),
    /// Booleans.
    BoolArray(&'a [bool]),
    /// Integers.
    I64Array(&'a [i64]),
    /// Floats, written as [`Value::F64`] is.
    F64Array(&'a [f64]),
    /// Strings.
    StrArray(&'a [&'a str]),
}

/// A list of attributes, in whatever form its owner keeps it.
///
/// A slice of pairs is one, and is what most callers want. Implement it for a form of your own when building such a slice
/// for every span costs too much.
pub trait Attributes {
    /// How many there are.
    fn len(&self) -> usize;

    /// True when there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key at `index`, which is less than [`len`](Self::len).
    fn key(&self, index: usize) -> &str;

    /// Calls `read` with the value at `index`. A value of a type that the line has no form for is left out by not calling
    /// `read`; the line then holds `null`.
    fn with_value(&self, index: usize, read: impl FnOnce(Value<'_>));
}

impl Attributes for &[(&str, Value<'_>)] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }

    fn key(&self, index: usize) -> &str {
        self[index].0
    }

    fn with_value(&self, index: usize, read: impl FnOnce(Value<'_>)) {
        read(self[index].1);
    }
}

/// A resource, rendered once: it is the same in every line of a process.
#[derive(Clone, Debug)]
pub struct ResourceJson {
    /// From the comma before the key `resource` to the line feed.
    tail: Box<[u8]>,
}

impl ResourceJson {
    /// Renders a resource. The attributes keep their order; `schema_url` is empty for none.
    pub fn new(attributes: impl Attributes, schema_url: &str) -> ResourceJson {
        let mut tail = b", \"resource\": {\"attributes\": ".to_vec();
        write_attributes(&mut tail, &attributes);
        tail.extend_from_slice(b", \"schema_url\": ");
        json::write_string(&mut tail, schema_url);
        tail.extend_from_slice(b"}}\n");
        ResourceJson { tail: tail.into_boxed_slice() }
    }
}

/// Appends the line of one span to `buffer`, line feed included.
///
/// The line is one JSON object with no line feed inside. It cannot fail, and it allocates only to make `buffer` larger.
pub fn write_line<A: Attributes>(buffer: &mut Vec<u8>, span: &Span<'_, A>, resource: &ResourceJson) {
    // A guess that is right for an ordinary span, so that the buffer grows at most once.
    buffer.reserve(512 + span.name.len() + 48 * span.attributes.len() + resource.tail.len());
    buffer.extend_from_slice(b"{\"name\": ");
    json::write_string(buffer, span.name);
    buffer.extend_from_slice(b", \"context\": ");
    write_context(buffer, &span.trace_id, &span.span_id, span.trace_state);
    buffer.extend_from_slice(b", \"kind\": \"");
    buffer.extend_from_slice(span.kind.name());
    buffer.extend_from_slice(b"\", \"parent_id\": ");
    match &span.parent_span_id {
        Some(id) => json::write_id(buffer, id),
        None => buffer.extend_from_slice(b"null"),
    }
    buffer.extend_from_slice(b", \"start_time\": ");
    json::write_time(buffer, span.start_time_unix_nano);
    buffer.extend_from_slice(b", \"end_time\": ");
    json::write_time(buffer, span.end_time_unix_nano);
    match span.status {
        Status::Unset => buffer.extend_from_slice(b", \"status\": {\"status_code\": \"UNSET\"}"),
        Status::Ok => buffer.extend_from_slice(b", \"status\": {\"status_code\": \"OK\"}"),
        Status::Error { description: "" } => buffer.extend_from_slice(b", \"status\": {\"status_code\": \"ERROR\"}"),
        Status::Error { description } => {
            buffer.extend_from_slice(b", \"status\": {\"status_code\": \"ERROR\", \"description\": ");
            json::write_string(buffer, description);
            buffer.push(b'}');
        }
    }
    buffer.extend_from_slice(b", \"attributes\": ");
    write_attributes(buffer, &span.attributes);
    buffer.extend_from_slice(b", \"events\": [");
    for (index, event) in span.events.iter().enumerate() {
        buffer.extend_from_slice(if index == 0 { b"{\"name\": " } else { b", {\"name\": " });
        json::write_string(buffer, event.name);
        buffer.extend_from_slice(b", \"timestamp\": ");
        json::write_time(buffer, event.time_unix_nano);
        buffer.extend_from_slice(b", \"attributes\": ");
        write_attributes(buffer, &event.attributes);
        buffer.push(b'}');
    }
    buffer.extend_from_slice(b"], \"links\": [");
    for (index, link) in span.links.iter().enumerate() {
        buffer.extend_from_slice(if index == 0 { b"{\"context\": " } else { b", {\"context\": " });
        write_context(buffer, &link.trace_id, &link.span_id, link.trace_state);
        buffer.extend_from_slice(b", \"attributes\": ");
        write_attributes(buffer, &link.attributes);
        buffer.push(b'}');
    }
    buffer.push(b']');
    buffer.extend_from_slice(&resource.tail);
}

fn write_context(buffer: &mut Vec<u8>, trace_id: &[u8; 16], span_id: &[u8; 8], trace_state: &str) {
    buffer.extend_from_slice(b"{\"trace_id\": ");
    json::write_id(buffer, trace_id);
    buffer.extend_from_slice(b", \"span_id\": ");
    json::write_id(buffer, span_id);
    buffer.extend_from_slice(b", \"trace_state\": ");
    if trace_state.is_empty() {
        buffer.extend_from_slice(b"\"[]\"");
    } else {
        json::write_string(buffer, &python_trace_state(trace_state));
    }
    buffer.push(b'}');
}

/// The text that Python makes of a tracestate: `str` of a list of strings, each in the form that `repr` gives it.
#[cold]
pub fn python_trace_state(header: &str) -> String {
    let mut text = String::from("[");
    let members = header.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty());
    for (index, member) in members.enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        let (key, value) = member.split_once('=').unwrap_or((member, ""));
        push_repr(&mut text, &format!("{{key={key}, value={value}}}"));
    }
    text.push(']');
    text
}

/// Appends Python's `repr` of a string. A valid tracestate is printable ASCII; of what is not, control characters are
/// escaped as Python does and the rest is left as it is.
fn push_repr(text: &mut String, string: &str) {
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\0'..='\u{1f}' | '\u{7f}' => text.push_str(&format!("\\x{:02x}", character as u32)),
            _ if character == quote => {
                text.push('\\');
                text.push(character);
            }
            _ => text.push(character),
        }
    }
    text.push(quote);
}

fn write_attributes(buffer: &mut Vec<u8>, attributes: &impl Attributes) {
    let count = attributes.len();
    let repeats = may_repeat(attributes);
    buffer.push(b'{');
    let mut separator: &[u8] = b"\"";
    for index in 0..count {
        let key = attributes.key(index);
        let mut source = index;
        if repeats {
            if (0..index).any(|earlier| attributes.key(earlier) == key) {
                continue;
            }
            source = (index + 1..count).rev().find(|&later| attributes.key(later) == key).unwrap_or(index);
        }
        buffer.extend_from_slice(separator);
        separator = b", \"";
        json::write_text(buffer, key);
        buffer.extend_from_slice(b"\": ");
        let before = buffer.len();
        attributes.with_value(source, |value| write_value(buffer, value));
        if buffer.len() == before {
            buffer.extend_from_slice(b"null");
        }
    }
    buffer.push(b'}');
}

/// False only when all keys are certain to differ: a filter over the length of each key and its last eight bytes. It spares
/// nearly every span the comparison of each key with each other.
fn may_repeat(attributes: &impl Attributes) -> bool {
    const WORDS: usize = 64;
    let mut seen = [0_u64; WORDS];
    (0..attributes.len()).any(|index| {
        let key = attributes.key(index).as_bytes();
        let last = match key.last_chunk::<8>() {
            Some(last) => u64::from_le_bytes(*last),
            None => key.iter().fold(0, |last, &byte| last << 8 | u64::from(byte)),
        };
        let mixed = (last ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        let (word, bit) = (&mut seen[(mixed >> 6) as usize % WORDS], 1 << (mixed & 63));
        std::mem::replace(word, *word | bit) & bit != 0
    })
}

#[inline(always)]
fn write_value(buffer: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Bool(value) => json::write_bool(buffer, value),
        Value::I64(value) => json::write_i64(buffer, value),
        Value::F64(value) => json::write_f64(buffer, value),
        Value::Str(value) => json::write_string(buffer, value),
        arrays => write_arrays(buffer, arrays),
    }
}

/// The rarer half of [`write_value`].
#[cold]
fn write_arrays(buffer: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::BoolArray(values) => write_array(buffer, values, |buffer, &value| json::write_bool(buffer, value)),
        Value::I64Array(values) => write_array(buffer, values, |buffer, &value| json::write_i64(buffer, value)),
        Value::F64Array(values) => write_array(buffer, values, |buffer, &value| json::write_f64(buffer, value)),
        Value::StrArray(values) => write_array(buffer, values, |buffer, value| json::write_string(buffer, value)),
        single => write_value(buffer, single),
    }
}

fn write_array<T>(buffer: &mut Vec<u8>, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    buffer.push(b'[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            buffer.extend_from_slice(b", ");
        }
        write(buffer, value);
    }
    buffer.push(b']');
}
