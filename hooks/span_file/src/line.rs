//! One span as one line.
//!
//! The keys and their order are those of `ReadableSpan.to_json(indent=None)` in the OpenTelemetry Python SDK 1.45. The spaces
//! that Python puts behind commas and colons are left out: they are a tenth of a line, and bytes are what tracing costs. What this
//! format has no place for is lost: scope, trace flags, dropped counts, and what is finer than a microsecond.
//!
//! A line is written at once from a [`Span`], or from what was [rendered](push_key) while the span grew. Both come out the same.

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
    /// Span that answers a remote call.
    Server,
    /// Span that makes a remote call.
    Client,
    /// Span that sends work that is done later.
    Producer,
    /// Span that does work that was sent.
    Consumer,
}

impl SpanKind {
    /// Returns the kind with this number in OpenTelemetry's API (0 internal, 1 server, 2 client, 3 producer, 4 consumer), which is
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

    fn between_context_and_parent(self) -> &'static [u8] {
        match self {
            SpanKind::Internal => b",\"kind\":\"SpanKind.INTERNAL\",\"parent_id\":",
            SpanKind::Server => b",\"kind\":\"SpanKind.SERVER\",\"parent_id\":",
            SpanKind::Client => b",\"kind\":\"SpanKind.CLIENT\",\"parent_id\":",
            SpanKind::Producer => b",\"kind\":\"SpanKind.PRODUCER\",\"parent_id\":",
            SpanKind::Consumer => b",\"kind\":\"SpanKind.CONSUMER\",\"parent_id\":",
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
        /// Description of the error, for people to read.
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
    /// Returns how many there are.
    fn len(&self) -> usize;

    /// Returns whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key at `index`, which is less than [`len`](Self::len).
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
        let mut tail = b",\"resource\":{\"attributes\":".to_vec();
        write_attributes(&mut tail, &attributes);
        tail.extend_from_slice(b",\"schema_url\":");
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
    let head = Head {
        trace_id: span.trace_id,
        span_id: span.span_id,
        trace_state: span.trace_state,
        kind: span.kind,
        parent_span_id: span.parent_span_id,
        start_time_unix_nano: span.start_time_unix_nano,
        end_time_unix_nano: span.end_time_unix_nano,
        status: span.status,
    };
    push_name(buffer, span.name.as_bytes());
    write_head(buffer, &head);
    buffer.extend_from_slice(b",\"attributes\":");
    write_attributes(buffer, &span.attributes);
    buffer.extend_from_slice(b",\"events\":[");
    write_list(buffer, span.events, push_event);
    buffer.extend_from_slice(b"],\"links\":[");
    write_list(buffer, span.links, push_link);
    buffer.push(b']');
    buffer.extend_from_slice(&resource.tail);
}

/// Appends what begins with a comma, without the first comma.
fn write_list<T>(buffer: &mut Vec<u8>, items: &[T], push: impl Fn(&mut Vec<u8>, &T)) {
    let start = buffer.len();
    items.iter().for_each(|item| push(buffer, item));
    if buffer.len() > start {
        buffer.remove(start);
    }
}

/// Fields of a line, of which a span has one each. Everything is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Most significant byte first.
    pub trace_id: [u8; 16],
    /// Most significant byte first.
    pub span_id: [u8; 8],
    /// The W3C tracestate header; empty for none.
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
}

/// Fields of a span that is rendered before it ends, by [`push_name`], [`push_key`], [`push_event`] and [`push_link`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rendered<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The attributes, each key once.
    pub attributes: &'a [u8],
    /// The span events.
    pub events: &'a [u8],
    /// The links.
    pub links: &'a [u8],
}

/// Appends the line of one span to `buffer`, as [`write_line`] does, when most of it is rendered.
pub fn write_rendered_line(buffer: &mut Vec<u8>, head: &Head<'_>, rendered: &Rendered<'_>, resource: &ResourceJson) {
    let Rendered { name, attributes, events, links } = rendered;
    let lists = attributes.len() + events.len() + links.len();
    buffer.reserve(512 + name.len() + lists + resource.tail.len());
    buffer.extend_from_slice(name);
    write_head(buffer, head);
    buffer.extend_from_slice(b",\"attributes\":{");
    buffer.extend_from_slice(attributes.get(1..).unwrap_or_default());
    if events.is_empty() && links.is_empty() {
        buffer.extend_from_slice(b"},\"events\":[],\"links\":[]");
    } else {
        buffer.extend_from_slice(b"},\"events\":[");
        buffer.extend_from_slice(events.get(1..).unwrap_or_default());
        buffer.extend_from_slice(b"],\"links\":[");
        buffer.extend_from_slice(links.get(1..).unwrap_or_default());
        buffer.push(b']');
    }
    buffer.extend_from_slice(&resource.tail);
}

/// Appends the name of a span, and whatever stands in its line before the trace id. What is not UTF-8 is replaced.
pub fn push_name(rendered: &mut Vec<u8>, name: &[u8]) {
    rendered.extend_from_slice(b"{\"name\":\"");
    json::write_bytes(rendered, name);
    rendered.extend_from_slice(b"\",");
    rendered.extend_from_slice(BEFORE_TRACE_ID);
}

/// Appends the key of one attribute, a comma before it. [Its value](write_value) comes next.
pub fn push_key(rendered: &mut Vec<u8>, key: &[u8]) {
    rendered.extend_from_slice(b",\"");
    json::write_bytes(rendered, key);
    rendered.extend_from_slice(b"\":");
}

/// Appends one span event, a comma before it.
pub fn push_event<A: Attributes>(rendered: &mut Vec<u8>, event: &Event<'_, A>) {
    rendered.extend_from_slice(b",{\"name\":");
    json::write_string(rendered, event.name);
    rendered.extend_from_slice(b",\"timestamp\":");
    json::write_time(rendered, event.time_unix_nano);
    rendered.extend_from_slice(b",\"attributes\":");
    write_attributes(rendered, &event.attributes);
    rendered.push(b'}');
}

/// Appends one link, a comma before it.
pub fn push_link<A: Attributes>(rendered: &mut Vec<u8>, link: &Link<'_, A>) {
    rendered.extend_from_slice(b",{");
    rendered.extend_from_slice(BEFORE_TRACE_ID);
    write_ids(rendered, &link.trace_id, &link.span_id, link.trace_state);
    rendered.extend_from_slice(b",\"attributes\":");
    write_attributes(rendered, &link.attributes);
    rendered.push(b'}');
}

/// Appends what stands between the name and the attributes.
fn write_head(buffer: &mut Vec<u8>, head: &Head<'_>) {
    write_ids(buffer, &head.trace_id, &head.span_id, head.trace_state);
    buffer.extend_from_slice(head.kind.between_context_and_parent());
    match &head.parent_span_id {
        Some(id) => json::write_id(buffer, id),
        None => buffer.extend_from_slice(b"null"),
    }
    buffer.extend_from_slice(b",\"start_time\":");
    json::write_time(buffer, head.start_time_unix_nano);
    buffer.extend_from_slice(b",\"end_time\":");
    json::write_time(buffer, head.end_time_unix_nano);
    match head.status {
        Status::Unset => buffer.extend_from_slice(b",\"status\":{\"status_code\":\"UNSET\"}"),
        Status::Ok => buffer.extend_from_slice(b",\"status\":{\"status_code\":\"OK\"}"),
        Status::Error { description: "" } => buffer.extend_from_slice(b",\"status\":{\"status_code\":\"ERROR\"}"),
        Status::Error { description } => {
            buffer.extend_from_slice(b",\"status\":{\"status_code\":\"ERROR\",\"description\":");
            json::write_string(buffer, description);
            buffer.push(b'}');
        }
    }
}

/// The beginning of a context.
const BEFORE_TRACE_ID: &[u8] = b"\"context\":{\"trace_id\":\"0x";

/// Appends the rest of a context, from the digits of the trace id on.
fn write_ids(buffer: &mut Vec<u8>, trace_id: &[u8; 16], span_id: &[u8; 8], trace_state: &str) {
    const BETWEEN: &[u8] = b"\",\"span_id\":\"0x";
    json::write_hex(buffer, trace_id);
    buffer.extend_from_slice(BETWEEN);
    json::write_hex(buffer, span_id);
    buffer.extend_from_slice(b"\",\"trace_state\":");
    if trace_state.is_empty() {
        buffer.extend_from_slice(b"\"[]\"}");
    } else {
        json::write_string(buffer, &python_trace_state(trace_state));
        buffer.push(b'}');
    }
}

/// Returns the text that Python makes of a tracestate: `str` of a list of strings, each in the form that `repr` gives it.
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
    let start = buffer.len();
    for index in 0..count {
        let key = attributes.key(index);
        let mut source = index;
        if repeats {
            if (0..index).any(|earlier| attributes.key(earlier) == key) {
                continue;
            }
            source = (index + 1..count).rev().find(|&later| attributes.key(later) == key).unwrap_or(index);
        }
        buffer.extend_from_slice(if buffer.len() == start { b"\"" } else { b",\"" });
        json::write_text(buffer, key);
        buffer.extend_from_slice(b"\":");
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

/// Appends a value.
#[inline(always)]
pub fn write_value(buffer: &mut Vec<u8>, value: Value<'_>) {
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
            buffer.push(b',');
        }
        write(buffer, value);
    }
    buffer.push(b']');
}
