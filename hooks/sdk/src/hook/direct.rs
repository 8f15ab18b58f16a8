//! Fast path: renders spans straight into output bytes, without the OpenTelemetry SDK, where no sampler, processor or exporter could tell the difference.
//!
//! When the only processor of a hook keeps spans on the disk and can [write](SpanWriter) them piece by piece, ids and sampler are the
//! defaults and values are not shortened, then nobody could tell an SDK's span from one that is rendered as it grows. That one
//! costs a third.
//!
//! Whatever is out of the ordinary about a span's start is left to the SDK: a tracestate, a sampler that has to be asked.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use opentelemetry::trace::{Event, Link, Span as _, SpanKind, Status};
use opentelemetry::{Array, TraceFlags};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Span, SpanLimits};
use tracer_abi as abi;

use super::convert;
use super::guard::GuardedProcessor;
use super::ring::{self, EndedRing};

/// Writes spans that nobody but a durable processor gets, piece by piece.
///
/// What is pushed is kept by the caller, who may take an attribute out again when its key comes once more, and is given back when
/// the span ends. Called from any thread.
pub trait SpanWriter: fmt::Debug + Send + Sync {
    /// Appends the name of a span.
    fn push_name(&self, rendered: &mut Vec<u8>, name: &[u8]);

    /// Appends the key of an attribute, with whatever stands between two attributes. The same key is always the same bytes.
    fn push_key(&self, rendered: &mut Vec<u8>, key: &[u8]);

    /// Appends the value of an attribute, after its key.
    fn push_value(&self, rendered: &mut Vec<u8>, value: AttributeValue<'_>);

    /// Appends a span event.
    fn push_event(&self, rendered: &mut Vec<u8>, event: &Event);

    /// Appends a link.
    fn push_link(&self, rendered: &mut Vec<u8>, link: &Link);

    /// Takes a span that has ended, as [`on_end`](opentelemetry_sdk::trace::SpanProcessor::on_end) does, though perhaps later and on
    /// another thread: at the latest when the processor is to commit, to flush or to shut down.
    fn on_end(&self, span: &RenderedSpan<'_>);

    /// Takes several of them, one after the other. One that has a lock can take it once for all.
    fn on_end_all<'a>(&self, spans: &mut dyn Iterator<Item = RenderedSpan<'a>>) {
        spans.for_each(|span| self.on_end(&span));
    }
}

/// The value of an attribute. Texts should be UTF-8, and nobody has looked yet.
#[derive(Debug)]
pub enum AttributeValue<'a> {
    /// A boolean.
    Bool(bool),
    /// An integer.
    I64(i64),
    /// A float.
    F64(f64),
    /// A text.
    Str(&'a [u8]),
    /// Several values.
    Array(Array),
}

/// A sampled span that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct RenderedSpan<'a> {
    /// Name, as the writer pushed it.
    pub name: &'a [u8],
    /// Its trace. The first byte is the most significant one.
    pub trace_id: [u8; 16],
    /// Its id.
    pub span_id: [u8; 8],
    /// Its parent; `None` for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// Its kind.
    pub kind: SpanKind,
    /// Nanoseconds since the Unix epoch.
    pub start_time_unix_nano: u64,
    /// Nanoseconds since the Unix epoch.
    pub end_time_unix_nano: u64,
    /// Its status.
    pub status: &'a Status,
    /// Attributes, as the writer pushed them; each key once.
    pub attributes: &'a [u8],
    /// Events, as the writer pushed them.
    pub events: &'a [u8],
    /// Links, as the writer pushed them.
    pub links: &'a [u8],
}

/// Direct rendering of spans in a process: the writer, and the decisions that the provider would make.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) writer: Arc<dyn SpanWriter>,
    pub(super) processor: Arc<GuardedProcessor>,
    pub(super) limits: SpanLimits,
    /// A span with a parent is sampled as that one.
    pub(super) follows_parent: bool,
    /// Every other span is sampled.
    pub(super) samples_roots: bool,
}

/// Target of a span handle.
pub(super) enum Handle {
    Sdk(Span),
    Direct(DirectSpan),
}

/// One such span.
pub(super) struct DirectSpan {
    direct: &'static Direct,
    trace_id: [u8; 16],
    span_id: [u8; 8],
    parent_span_id: Option<[u8; 8]>,
    kind: SpanKind,
    start_time_unix_nano: u64,
    status: Status,
    /// The name and after it the attributes, as they will be in the file.
    text: Vec<u8>,
    name_len: usize,
    attributes: Vec<Attribute>,
    /// A bit for each of their keys; several may have the same.
    keys: u64,
    /// Beginning of the text and the attributes, also when the span has been forgotten: the next one in its memory mostly begins with the same.
    beginning: Beginning,
    events: Vec<u8>,
    event_count: u32,
    links: Vec<u8>,
    link_count: u32,
    /// 0 while it has not ended.
    end_time_unix_nano: u64,
}

/// A name and the attributes of a prefix after it.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    /// The number of the prefix; 0 for none.
    id: u64,
    count: usize,
    /// End of it in the text.
    text_len: usize,
    /// Number of those attributes, of which one may have replaced another.
    attributes: usize,
    keys: u64,
}

impl Beginning {
    const NONE: Beginning = Beginning { id: 0, count: 0, text_len: 0, attributes: 0, keys: 0 };
}

/// One attribute in the text.
#[derive(Clone, Copy, Debug)]
struct Attribute {
    /// Hash of its key. Two keys may have the same.
    hash: u32,
    /// End of it, from the beginning of the first attribute on.
    end: u32,
}

/// Number of spans that a thread keeps the memory of: as many as a driver waits for to be accepted.
const KEPT: usize = 1024;
/// Limit of the memory of a span that is kept, in bytes.
const KEPT_BYTES: usize = 8 << 10;
/// Enough for the spans that tracer makes.
const TEXT_ROOM: usize = 640;
const ATTRIBUTE_ROOM: usize = 20;
/// Number of attributes that a thread remembers; a power of two.
const KNOWN: usize = 128;
/// Number of names that a thread remembers; a power of two. Each takes the place of another one now and then.
const NAMES: usize = 16;
/// In how many places an attribute may be.
const PLACES: usize = 4;
/// Bits of a hash that tell keys apart at first: those in which the keys that tracer sets differ most.
const KEY_BITS: u32 = 9;
/// Limit of an attribute that is remembered, in bytes.
const KNOWN_BYTES: usize = 256;
/// Neither is a prefix with more.
const PREFIX_BYTES: usize = 2 << 10;

/// State that a thread keeps from one span to the next.
struct Local {
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spares: Vec<Box<Handle>>,
    /// Attributes as they were rendered last, by the addresses of their keys, which are constants of whoever calls. None before
    /// the first span.
    known: Vec<Known>,
    /// Names as they were rendered last, by the addresses that they came from. None before the first span.
    names: Vec<Name>,
    /// Beginnings of spans with the same prefix, by its number.
    prefixes: [Prefix; PREFIXES],
    /// Ring in which ended spans are put down; none before the first.
    ring: Option<Arc<EndedRing>>,
    /// Owner of all these.
    owner: Option<&'static Direct>,
}

impl Drop for Local {
    fn drop(&mut self) {
        self.abandon_ring();
    }
}

impl Local {
    const fn new() -> Local {
        Local {
            spares: Vec::new(),
            known: Vec::new(),
            names: Vec::new(),
            prefixes: [Prefix::NONE; PREFIXES],
            ring: None,
            owner: None,
        }
    }

    fn abandon_ring(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.abandon();
        }
    }

    /// Gives the writer what this thread has put down, which comes before what ends now.
    fn write_all(&self) {
        if let Some(ring) = &self.ring {
            ring::write_all(ring);
        }
    }

    /// Puts a span down that has just ended. Where that cannot be, the writer gets it at once.
    fn put_down(&mut self, span: Box<Handle>, direct: &'static Direct) {
        if self.ring.is_none() {
            self.ring = direct.processor.ended.new_ring();
        }
        // Large ones would take much memory until somebody commits.
        let waits = span.direct().is_some_and(DirectSpan::is_small);
        let put = match &self.ring {
            Some(ring) if waits => ring.put(span).or_else(|span| {
                ring::write_all(ring);
                while let Some(spare) = ring.take_back() {
                    keep(&mut self.spares, spare);
                }
                ring.put(span)
            }),
            _ => Err(span),
        };
        if let Err(span) = put {
            self.write_all();
            write(span.direct().into_iter());
            keep(&mut self.spares, span);
        }
    }

    /// Forgets what another provider rendered, in its own way.
    #[cold]
    fn belong_to(&mut self, direct: &'static Direct) {
        self.abandon_ring();
        self.known = (0..KNOWN).map(|_| Known::default()).collect();
        self.names = (0..NAMES).map(|_| Name::default()).collect();
        self.prefixes = [Prefix::NONE; PREFIXES];
        self.owner = Some(direct);
    }

    /// Appends the name of a span.
    fn push_name(&mut self, writer: &dyn SpanWriter, text: &mut Vec<u8>, name: &[u8]) {
        if name.len() > KNOWN_BYTES {
            return writer.push_name(text, name);
        }
        let known = &mut self.names[place_of(name, NAMES)];
        if known.rendered.is_empty() || !is_same(&known.name, name) {
            // Should the writer panic, nothing is remembered.
            known.rendered.clear();
            let mut rendered = std::mem::take(&mut known.rendered);
            writer.push_name(&mut rendered, name);
            name.clone_into(&mut known.name);
            known.rendered = rendered;
        }
        text.extend_from_slice(&known.rendered);
    }

    /// Returns what is known of the attribute with this key: at least the key.
    #[inline]
    fn find(&mut self, writer: &dyn SpanWriter, key: &[u8]) -> &mut Known {
        let first = place_of(key, KNOWN);
        if self.known[first].is_of(key) {
            return &mut self.known[first];
        }
        self.find_further(first, writer, key)
    }

    /// Looks in the other places of a key, the free ones among them, and takes the last when there is none.
    #[inline(never)]
    fn find_further(&mut self, first: usize, writer: &dyn SpanWriter, key: &[u8]) -> &mut Known {
        let mut places = (first..first + PLACES).map(|place| place % KNOWN);
        let found = places.find(|&place| self.known[place].key_len == 0 || self.known[place].is_of(key));
        let known = &mut self.known[found.unwrap_or((first + PLACES - 1) % KNOWN)];
        if !known.is_of(key) {
            known.begin(writer, key);
        }
        known
    }
}

/// Keeps the memory of a span for another one.
#[expect(clippy::vec_box, reason = "the boxes are what is kept")]
fn keep(spares: &mut Vec<Box<Handle>>, mut spare: Box<Handle>) {
    if let Handle::Direct(span) = &mut *spare
        && span.clear()
        && spares.len() < KEPT
    {
        spares.push(spare);
    }
}

/// Number of prefixes that a thread remembers; a power of two. Each takes the place of another one now and then.
const PREFIXES: usize = 16;

/// State of a span after it began with a name and the attributes of a prefix.
#[derive(Debug)]
struct Prefix {
    /// 0 for none.
    id: u64,
    count: usize,
    text: Vec<u8>,
    name_len: usize,
    attributes: Vec<Attribute>,
    keys: u64,
}

impl Prefix {
    const NONE: Prefix = Prefix { id: 0, count: 0, text: Vec::new(), name_len: 0, attributes: Vec::new(), keys: 0 };
}

/// A name that was rendered before.
#[derive(Default)]
struct Name {
    name: Vec<u8>,
    /// Empty for none.
    rendered: Vec<u8>,
}

/// No kind of value has it.
const NO_TAG: u32 = 0;

/// An attribute that was rendered before. Most come again with the same value, and nearly all with the same key.
#[derive(Default)]
struct Known {
    /// The key as it came.
    key: Vec<u8>,
    hash: u32,
    rendered: Vec<u8>,
    /// Length of the key in it.
    key_len: usize,
    /// Kind of its value, one of the two below.
    tag: u32,
    number: i64,
    text: Vec<u8>,
    /// Number of times in a row that it came with another value.
    misses: u8,
}

impl Known {
    /// Returns whether it has this key.
    #[inline]
    fn is_of(&self, key: &[u8]) -> bool {
        // The key may be empty, and what stands before its value never is.
        self.key_len > 0 && is_same(&self.key, key)
    }

    /// Returns whether it has this value.
    ///
    /// # Safety
    ///
    /// What `value` points to is valid during the call.
    #[inline]
    unsafe fn is(&self, value: &abi::Value) -> bool {
        // SAFETY: promised by the caller; the arm of a tag reads the member that it names.
        let has_value = |tag| unsafe {
            match tag {
                abi::VALUE_I64 => self.number == value.as_.i64_,
                abi::VALUE_STR => is_same(&self.text, value.as_.str_.as_bytes()),
                _ => false,
            }
        };
        self.tag == value.tag && has_value(value.tag)
    }

    #[cold]
    fn begin(&mut self, writer: &dyn SpanWriter, key: &[u8]) {
        // Should the writer panic, nothing is remembered.
        (self.tag, self.key_len, self.misses) = (NO_TAG, 0, 0);
        self.rendered.clear();
        writer.push_key(&mut self.rendered, key);
        key.clone_into(&mut self.key);
        (self.hash, self.key_len) = (hash(key), self.rendered.len());
    }

    /// Appends the attribute with another value than it had. False for a kind that is newer than this.
    ///
    /// The writer's form of a value is made in the call: one that is made before and moved there would be read only when all that was
    /// written before has left the processor.
    ///
    /// # Safety
    ///
    /// What `value` points to is valid during the call.
    unsafe fn push(&mut self, writer: &dyn SpanWriter, text: &mut Vec<u8>, value: &abi::Value) -> bool {
        text.extend_from_slice(&self.rendered[..self.key_len]);
        self.misses = self.misses.wrapping_add(1);
        // One that is another each time need not be kept, but it may have come to rest.
        let mut is_kept = self.misses <= 3 || self.misses.is_multiple_of(16);
        let start = text.len();
        // SAFETY: promised by the caller; the arm of a tag reads the member that it names.
        unsafe {
            match value.tag {
                abi::VALUE_I64 => {
                    let number = value.as_.i64_;
                    if is_kept {
                        // Should the writer panic, nothing is remembered.
                        (self.tag, self.number) = (NO_TAG, number);
                    }
                    writer.push_value(text, AttributeValue::I64(number));
                }
                abi::VALUE_STR => {
                    let bytes = value.as_.str_.as_bytes();
                    is_kept &= bytes.len() <= KNOWN_BYTES;
                    if is_kept {
                        self.tag = NO_TAG;
                        self.text.clear();
                        self.text.extend_from_slice(bytes);
                    }
                    writer.push_value(text, AttributeValue::Str(bytes));
                }
                _ => {
                    is_kept = false;
                    match attribute_value(value) {
                        Some(value) => writer.push_value(text, value),
                        None => text.truncate(start - self.key_len),
                    }
                }
            }
        }
        if is_kept {
            self.rendered.truncate(self.key_len);
            self.rendered.extend_from_slice(&text[start..]);
            self.tag = value.tag;
        }
        text.len() >= start
    }
}

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local::new()) };
}

/// Lends what this thread keeps. Nothing that is done with it calls back, but a thread that ends has nothing any more.
#[inline]
fn with_local<R>(direct: &'static Direct, work: impl FnOnce(&mut Local) -> R) -> R {
    let mut work = Some(work);
    let lent = LOCAL.try_with(|local| {
        let mut local = local.try_borrow_mut().ok()?;
        if !local.owner.is_some_and(|owner| std::ptr::eq(owner, direct)) {
            local.belong_to(direct);
        }
        work.take().map(|work| work(&mut local))
    });
    match (lent, work) {
        (Ok(Some(done)), _) => done,
        (_, Some(work)) => without_local(direct, work),
        (_, None) => unreachable!("it was not done"),
    }
}

#[cold]
fn without_local<R>(direct: &'static Direct, work: impl FnOnce(&mut Local) -> R) -> R {
    let mut local = Local::new();
    local.belong_to(direct);
    work(&mut local)
}

impl Direct {
    /// Returns whether a span that starts so is made without the SDK.
    #[inline]
    pub(super) fn takes(&self, parent: Option<&abi::SpanContext>) -> bool {
        match parent {
            Some(parent) if parent.trace_state.len > 0 => false,
            Some(parent) if self.follows_parent => parent.trace_flags & TraceFlags::SAMPLED.to_u8() != 0,
            _ => self.samples_roots,
        }
    }

    /// Starts a span. `tell` hears its trace id and its own.
    ///
    /// # Safety
    ///
    /// All that `start` points to is valid during the call.
    pub(super) unsafe fn start(
        &'static self,
        parent: Option<&abi::SpanContext>,
        start: &abi::SpanStart,
        tell: impl FnOnce(&[u8; 16], &[u8; 8]),
    ) -> Box<Handle> {
        // SAFETY: promised by the caller.
        with_local(self, |local| unsafe { self.start_with(local, parent, start, tell) })
    }

    /// # Safety
    ///
    /// As for [`start`](Self::start).
    unsafe fn start_with(
        &'static self,
        local: &mut Local,
        parent: Option<&abi::SpanContext>,
        start: &abi::SpanStart,
        tell: impl FnOnce(&[u8; 16], &[u8; 8]),
    ) -> Box<Handle> {
        let ids = RandomIdGenerator::default();
        let mut handle = local.spares.pop().unwrap_or_else(|| self.new_handle());
        let Handle::Direct(span) = &mut *handle else { unreachable!("only such memory is kept") };
        // It may have been another provider's.
        if !std::ptr::eq(span.direct, self) {
            (span.direct, span.beginning) = (self, Beginning::NONE);
        }
        (span.trace_id, span.parent_span_id) = match parent {
            Some(parent) => (parent.trace_id, Some(parent.span_id)),
            None => (ids.new_trace_id().to_bytes(), None),
        };
        span.span_id = ids.new_span_id().to_bytes();
        span.kind = convert::kind(start.kind);
        span.start_time_unix_nano = convert::unix_nano(start.start_time_unix_nano);
        // SAFETY: promised by the caller.
        unsafe {
            let name = start.name.as_bytes();
            let attributes = convert::array(start.attributes, start.attribute_count);
            match attributes.split_at_checked(start.prefix_count) {
                Some((prefix, further)) if start.prefix_id != 0 => {
                    span.begin_with(local, name, start.prefix_id, prefix);
                    span.push_attributes(local, further);
                }
                _ => {
                    span.begin(local, name);
                    span.push_attributes(local, attributes);
                }
            }
            for &link in convert::array(start.links, start.link_count) {
                span.add_link(link);
            }
            for &event in convert::array(start.events, start.event_count) {
                span.add_event(event);
            }
        }
        tell(&span.trace_id, &span.span_id);
        handle
    }

    #[cold]
    fn new_handle(&'static self) -> Box<Handle> {
        Box::new(Handle::Direct(DirectSpan {
            direct: self,
            trace_id: [0; 16],
            span_id: [0; 8],
            parent_span_id: None,
            kind: SpanKind::Internal,
            start_time_unix_nano: 0,
            status: Status::Unset,
            text: Vec::with_capacity(TEXT_ROOM),
            name_len: 0,
            attributes: Vec::with_capacity(ATTRIBUTE_ROOM),
            keys: 0,
            beginning: Beginning::NONE,
            events: Vec::new(),
            event_count: 0,
            links: Vec::new(),
            link_count: 0,
            end_time_unix_nano: 0,
        }))
    }
}

impl DirectSpan {
    /// Sets attributes. The last value of a key stands in the place of its first.
    ///
    /// # Safety
    ///
    /// What `pairs` point to is valid during the call.
    pub(super) unsafe fn set_attributes(&mut self, pairs: &[abi::KeyValue]) {
        if self.has_ended() {
            return;
        }
        // SAFETY: promised by the caller.
        with_local(self.direct, |local| unsafe { self.push_attributes(local, pairs) });
    }

    /// Gives a new span its name, and no attributes.
    fn begin(&mut self, local: &mut Local, name: &[u8]) {
        self.beginning = Beginning::NONE;
        self.text.clear();
        self.attributes.clear();
        self.keys = 0;
        local.push_name(&*self.direct.writer, &mut self.text, name);
        self.name_len = self.text.len();
    }

    /// Gives a new span its name, and the attributes of a prefix. What the last span in this memory began with is left where it is when it is
    /// the same: to write it again to memory that has left the cache would cost more than all else that is done here.
    ///
    /// # Safety
    ///
    /// As for [`set_attributes`](Self::set_attributes).
    unsafe fn begin_with(&mut self, local: &mut Local, name: &[u8], id: u64, pairs: &[abi::KeyValue]) {
        let Beginning { text_len, attributes, keys, .. } = self.beginning;
        if self.beginning.id == id && self.beginning.count == pairs.len() {
            self.text.truncate(text_len);
            self.attributes.truncate(attributes);
            self.keys = keys;
            return;
        }
        let place = id as usize % PREFIXES;
        let known = &local.prefixes[place];
        if known.id == id && known.count == pairs.len() {
            self.text.clear();
            self.text.extend_from_slice(&known.text);
            self.name_len = known.name_len;
            self.attributes.clear();
            self.attributes.extend_from_slice(&known.attributes);
            self.keys = known.keys;
        } else {
            self.begin(local, name);
            // SAFETY: promised by the caller.
            unsafe { self.push_attributes(local, pairs) };
            if self.text.len() <= PREFIX_BYTES {
                let (text, name_len, attributes) = (self.text.clone(), self.name_len, self.attributes.clone());
                local.prefixes[place] = Prefix { id, count: pairs.len(), text, name_len, attributes, keys: self.keys };
            }
        }
        let (text_len, attributes) = (self.text.len(), self.attributes.len());
        self.beginning = Beginning { id, count: pairs.len(), text_len, attributes, keys: self.keys };
    }

    /// # Safety
    ///
    /// As for [`set_attributes`](Self::set_attributes).
    unsafe fn push_attributes(&mut self, local: &mut Local, pairs: &[abi::KeyValue]) {
        for pair in pairs {
            // SAFETY: promised by the caller.
            let key = unsafe { pair.key.as_bytes() };
            if key.len() <= KNOWN_BYTES {
                let known = local.find(&*self.direct.writer, key);
                // SAFETY: promised by the caller.
                unsafe { self.set_attribute(known, &pair.value) };
            } else {
                let mut known = Known::default();
                known.begin(&*self.direct.writer, key);
                // SAFETY: promised by the caller.
                unsafe { self.set_attribute(&mut known, &pair.value) };
            }
        }
    }

    /// # Safety
    ///
    /// What `value` points to is valid during the call.
    #[inline]
    unsafe fn set_attribute(&mut self, known: &mut Known, value: &abi::Value) {
        let start = self.text.len();
        // SAFETY: promised by the caller.
        if unsafe { known.is(value) } {
            known.misses = 0;
            self.text.extend_from_slice(&known.rendered);
        // SAFETY: as above.
        } else if !unsafe { known.push(&*self.direct.writer, &mut self.text, value) } {
            return;
        }
        let (hash, key) = (known.hash, 1 << (known.hash >> KEY_BITS & 63));
        if self.keys & key != 0
            && self.attributes.iter().any(|set| set.hash == hash)
            && self.replace(hash, start, known.key_len)
        {
            return;
        }
        if self.attributes.len() >= self.direct.limits.max_attributes_per_span as usize {
            self.text.truncate(start);
            return;
        }
        self.keys |= key;
        self.attributes.push(Attribute { hash, end: (self.text.len() - self.name_len) as u32 });
    }

    /// Puts the attribute at the end of the text in the place of the one with the same key, if there is one.
    #[cold]
    fn replace(&mut self, hash: u32, start: usize, key_len: usize) -> bool {
        let (text, new) = self.text.split_at(start);
        let mut old_start = self.name_len;
        let same_key = self.attributes.iter().position(|known| {
            let old = &text[std::mem::replace(&mut old_start, self.name_len + known.end as usize)..];
            known.hash == hash && old.starts_with(&new[..key_len])
        });
        let Some(at) = same_key else { return false };
        self.beginning = Beginning::NONE;
        let new = new.to_vec();
        self.text.truncate(start);
        let old_start = self.name_len + if at == 0 { 0 } else { self.attributes[at - 1].end as usize };
        let old_end = self.name_len + self.attributes[at].end as usize;
        let longer = new.len() as i64 - (old_end - old_start) as i64;
        self.text.splice(old_start..old_end, new);
        for attribute in &mut self.attributes[at..] {
            attribute.end = (i64::from(attribute.end) + longer) as u32;
        }
        true
    }

    /// Adds a span event.
    ///
    /// # Safety
    ///
    /// `event` is null, or to an event that, with all it points to, is valid during the call.
    pub(super) unsafe fn add_event(&mut self, event: *const abi::Event) {
        let limits = &self.direct.limits;
        if event.is_null() || self.has_ended() || self.event_count >= limits.max_events_per_span {
            return;
        }
        // SAFETY: promised by the caller.
        let mut event = unsafe { convert::event(event) };
        event.attributes.truncate(limits.max_attributes_per_event as usize);
        self.event_count += 1;
        self.direct.writer.push_event(&mut self.events, &event);
    }

    /// Adds a link.
    ///
    /// # Safety
    ///
    /// `link` is null, or to a link that, with all it points to, is valid during the call.
    pub(super) unsafe fn add_link(&mut self, link: *const abi::Link) {
        let limits = &self.direct.limits;
        if link.is_null() || self.has_ended() || self.link_count >= limits.max_links_per_span {
            return;
        }
        // SAFETY: promised by the caller.
        let mut link = unsafe { convert::link(link) };
        // One to nowhere is dropped.
        if link.span_context.is_valid() {
            link.attributes.truncate(limits.max_attributes_per_link as usize);
            self.link_count += 1;
            self.direct.writer.push_link(&mut self.links, &link);
        }
    }

    pub(super) fn set_status(&mut self, status: Status) {
        // Ok before error before unset.
        if !self.has_ended() && status > self.status {
            self.status = status;
        }
    }

    pub(super) fn update_name(&mut self, name: &[u8]) {
        if !self.has_ended() {
            self.beginning = Beginning::NONE;
            let mut rendered = Vec::new();
            self.direct.writer.push_name(&mut rendered, name);
            let name_len = rendered.len();
            self.text.splice(..self.name_len, rendered);
            self.name_len = name_len;
        }
    }

    fn has_ended(&self) -> bool {
        self.end_time_unix_nano != 0
    }

    /// Ends it. False when it has ended before.
    fn end(&mut self, end_time_unix_nano: u64) -> bool {
        let is_first = !self.has_ended();
        if is_first {
            self.end_time_unix_nano = convert::unix_nano(end_time_unix_nano).max(1);
        }
        is_first
    }

    fn rendered(&self) -> RenderedSpan<'_> {
        let (name, attributes) = self.text.split_at(self.name_len);
        RenderedSpan {
            name,
            trace_id: self.trace_id,
            span_id: self.span_id,
            parent_span_id: self.parent_span_id,
            kind: self.kind.clone(),
            start_time_unix_nano: self.start_time_unix_nano,
            end_time_unix_nano: self.end_time_unix_nano,
            status: &self.status,
            attributes,
            events: &self.events,
            links: &self.links,
        }
    }

    /// Forgets the span, but for what the next one may begin with. False when it has grown so large that its memory is not worth keeping.
    fn clear(&mut self) -> bool {
        self.events.clear();
        self.links.clear();
        (self.event_count, self.link_count, self.end_time_unix_nano) = (0, 0, 0);
        self.status = Status::Unset;
        self.is_small()
    }

    fn is_small(&self) -> bool {
        self.text.capacity() + self.events.capacity() + self.links.capacity() <= KEPT_BYTES
    }
}

/// Gives spans of one provider that have ended to their writer. One at which it panics is lost, and counted.
pub(super) fn write<'a>(mut spans: impl Iterator<Item = &'a DirectSpan>) {
    while let Some(first) = spans.next() {
        let Direct { writer, processor, .. } = first.direct;
        let mut all = std::iter::once(first).chain(spans.by_ref()).map(DirectSpan::rendered);
        processor.count_panic(|| writer.on_end_all(&mut all));
    }
}

impl Handle {
    pub(super) fn end(&mut self, end_time_unix_nano: u64) {
        match self {
            // It is the host's still, and cannot be put down.
            Handle::Direct(span) => {
                if span.end(end_time_unix_nano) {
                    with_local(span.direct, |local| local.write_all());
                    write(std::iter::once(&*span));
                }
            }
            Handle::Sdk(span) => span.end_with_timestamp(convert::time(end_time_unix_nano)),
        }
    }

    /// Returns the span, if it was made without the SDK.
    pub(super) fn direct(&self) -> Option<&DirectSpan> {
        match self {
            Handle::Direct(span) => Some(span),
            Handle::Sdk(_) => None,
        }
    }

    /// Ends the span if it has not ended, and keeps its memory for another.
    pub(super) fn release(mut self: Box<Handle>, end_time_unix_nano: u64) {
        let span = match &mut *self {
            Handle::Direct(span) => span,
            // Dropping it ends it now.
            Handle::Sdk(_) if end_time_unix_nano == 0 => return,
            Handle::Sdk(span) => return span.end_with_timestamp(convert::time(end_time_unix_nano)),
        };
        let direct = span.direct;
        if span.end(end_time_unix_nano) {
            return with_local(direct, |local| local.put_down(self, direct));
        }
        with_local(direct, |local| keep(&mut local.spares, self));
    }
}

/// Returns a value of one of the rarer kinds for a writer; none for a kind that is newer than this.
///
/// # Safety
///
/// What `value` points to is valid for `'a`.
unsafe fn attribute_value<'a>(value: &abi::Value) -> Option<AttributeValue<'a>> {
    // SAFETY: promised by the caller; the arm of a tag reads the member that it names.
    Some(unsafe {
        match value.tag {
            abi::VALUE_BOOL => AttributeValue::Bool(value.as_.bool_ != 0),
            abi::VALUE_F64 => AttributeValue::F64(value.as_.f64_),
            tag => AttributeValue::Array(convert::array_of(tag, value.as_)?),
        }
    })
}

/// Returns where in a table of so many places, a power of two, a text is that comes from one address mostly.
#[inline]
fn place_of(text: &[u8], places: usize) -> usize {
    let mixed = (text.as_ptr().addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - places.ilog2())) as usize
}

/// Returns whether two texts are the same. Most are so short that comparing their two ends, which may overlap, costs less than the call of a
/// function that compares any length.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    #[inline]
    fn by_ends<const N: usize>(one: &[u8], other: &[u8]) -> bool {
        one.first_chunk::<N>() == other.first_chunk() && one.last_chunk::<N>() == other.last_chunk()
    }
    one.len() == other.len()
        && match one.len() {
            8..=16 => by_ends::<8>(one, other),
            17..=32 => by_ends::<16>(one, other),
            _ => one == other,
        }
}

/// Keys mostly differ in their lengths or their last bytes.
#[inline]
fn hash(key: &[u8]) -> u32 {
    let last = match key.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => key.iter().fold(0, |last, &byte| last << 8 | u64::from(byte)),
    };
    ((last ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
