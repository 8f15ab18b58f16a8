//! Scanner of requests over HTTP/1, which checks them before hyper parses them.
//!
//! Two parsers that read the same bytes differently are how requests are smuggled past a proxy, and hyper, as nearly every parser, merges
//! or drops some of what only an attacker sends: a bare LF ends a line, a bare CR or NUL passes in some places, two equal `Content-Length`
//! are one. So everything that can be read in two ways is refused here, by rules stricter than those of RFC 9112, and hyper sees only
//! what has one reading.
//!
//! A [`Scanner`] follows a connection through heads and bodies, whatever pieces the bytes come in. It keeps a head only while that is not
//! whole.

use memchr::{memchr_iter, memchr2_iter, memmem};
use tracer_core::http_field;

/// The longest head of a request, in bytes.
pub const HEAD_BYTES: usize = 64 << 10;
/// The most headers of a request: as many as hyper parses without memory of the heap, when it is told no number. With 128 each head takes two allocations of
/// 4 KiB, and a quarter more of hyper's time (1.4 µs in place of 1.1).
pub const HEADERS: usize = 100;
/// The longest line with the size of a chunk and its extensions, with its end; and of those of one body, all extensions.
const CHUNK_SIZE_BYTES: usize = 1 << 10;
const EXTENSION_BYTES: usize = 8 << 10;
/// The longest trailer, with its end.
const TRAILER_BYTES: usize = 8 << 10;

/// Reason why a request is refused. The connection is closed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not HTTP, or could be read in two ways; says what.
    #[error("the request is malformed: {0}")]
    Malformed(&'static str),
    /// The method is `CONNECT`: this is no proxy of clients.
    #[error("`CONNECT` is not served")]
    Method,
    /// The body has an encoding other than `chunked`.
    #[error("the body has a `Transfer-Encoding` that is not known, expected `chunked`")]
    Encoding,
    /// The head has too many bytes or headers.
    #[error("the head of the request has more than {} bytes or {} headers", HEAD_BYTES, HEADERS)]
    TooLarge,
}

impl Refusal {
    /// Returns the status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Refusal::Malformed(_) => 400,
            Refusal::Method => 405,
            Refusal::TooLarge => 431,
            Refusal::Encoding => 501,
        }
    }
}

/// Time that the body is that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A body of so many bytes.
    Length(u64),
    /// Chunks, until an empty one.
    Chunked,
}

/// A head that has one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its bytes, with the empty line at its end.
    pub length: usize,
    /// Framing of the body that follows.
    pub framing: Framing,
}

/// Scans the head that `bytes` begin with. None while it is not whole.
pub fn scan_head(bytes: &[u8]) -> Result<Option<Head>, Refusal> {
    let mut rest = bytes;
    let Some(request_line) = next_line(&mut rest)? else { return incomplete(bytes) };
    let (is_1_1, method, target) = scan_request_line(request_line)?;
    let mut headers = 0;
    let (mut length, mut encodings, mut is_chunked, mut hosts) = (None, 0, false, 0);
    loop {
        let Some(line) = next_line(&mut rest)? else { return incomplete(bytes) };
        if line.is_empty() {
            break;
        }
        headers += 1;
        if headers > HEADERS {
            return Err(Refusal::TooLarge);
        }
        let (name, value) = scan_header(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = digits.and_then(|text| text.parse::<u64>().ok());
            let number = number.ok_or(Refusal::Malformed("`Content-Length` is not a number"))?;
            if length.replace(number).is_some() {
                return Err(Refusal::Malformed("`Content-Length` is there twice"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            encodings += 1;
            is_chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
            if !http_field::is_authority(value) {
                return Err(Refusal::Malformed("`Host` is not a host"));
            }
        }
    }
    let head_length = bytes.len() - rest.len();
    if head_length > HEAD_BYTES {
        return Err(Refusal::TooLarge);
    }
    if method == b"CONNECT" {
        return Err(Refusal::Method);
    }
    check_target(method, target)?;
    if hosts > 1 || (is_1_1 && hosts == 0) {
        return Err(Refusal::Malformed("`Host` is not there once"));
    }
    let framing = match (encodings, length) {
        (0, length) => Framing::Length(length.unwrap_or(0)),
        (_, Some(_)) => return Err(Refusal::Malformed("`Content-Length` is beside `Transfer-Encoding`")),
        (1, None) if !is_1_1 => return Err(Refusal::Malformed("HTTP/1.0 has no `Transfer-Encoding`")),
        (1, None) if is_chunked => Framing::Chunked,
        (1, None) => return Err(Refusal::Encoding),
        _ => return Err(Refusal::Malformed("`Transfer-Encoding` is there twice")),
    };
    Ok(Some(Head { length: head_length, framing }))
}

/// Returns whether a CR is there without an LF behind it, or an LF without a CR before it. What is beyond either end may be right.
fn is_torn_apart(bytes: &[u8]) -> bool {
    memchr2_iter(b'\r', b'\n', bytes).any(|at| match bytes[at] {
        b'\r' => bytes.get(at + 1).is_some_and(|next| *next != b'\n'),
        _ => at > 0 && bytes[at - 1] != b'\r',
    })
}

fn count_lines(bytes: &[u8]) -> usize {
    memchr_iter(b'\n', bytes).count()
}

fn incomplete(bytes: &[u8]) -> Result<Option<Head>, Refusal> {
    if bytes.len() > HEAD_BYTES { Err(Refusal::TooLarge) } else { Ok(None) }
}

/// Takes a line that ends with CR and LF, and has no other of them, nor a NUL. None while it has no end.
fn next_line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Refusal> {
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'\r' => match rest.get(at + 1) {
                Some(b'\n') => {
                    let line = &rest[..at];
                    *rest = &rest[at + 2..];
                    return Ok(Some(line));
                }
                Some(_) => return Err(Refusal::Malformed("a CR without LF")),
                None => return Ok(None),
            },
            b'\n' => return Err(Refusal::Malformed("an LF without CR")),
            0 => return Err(Refusal::Malformed("a NUL")),
            _ => {}
        }
    }
    Ok(None)
}

/// Returns whether it is HTTP/1.1, the method, and the target.
fn scan_request_line(line: &[u8]) -> Result<(bool, &[u8], &[u8]), Refusal> {
    let malformed = Refusal::Malformed("the request line is not valid");
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed);
    };
    let is_1_1 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(Refusal::Malformed("a version that is not HTTP/1.0 or HTTP/1.1")),
    };
    // Methods are told apart by case, and nobody has one in lower case: it is a mistake, or one that others take for another method.
    let is_method = http_field::is_token(method) && !method.iter().any(u8::is_ascii_lowercase);
    let is_target = !target.is_empty() && target.iter().all(|byte| byte.is_ascii_graphic());
    if is_method && is_target { Ok((is_1_1, method, target)) } else { Err(malformed) }
}

/// Checks that the target is a path, a whole URL, or `*` for `OPTIONS`.
fn check_target(method: &[u8], target: &[u8]) -> Result<(), Refusal> {
    let begins = |with: &[u8]| target.len() > with.len() && target[..with.len()].eq_ignore_ascii_case(with);
    let is_target = target.starts_with(b"/")
        || begins(b"http://")
        || begins(b"https://")
        || (target == b"*" && method == b"OPTIONS");
    // What hyper refuses has no answer that says why; it takes nearly all paths.
    let is_plain = target.starts_with(b"/") && !target.iter().any(|byte| matches!(byte, b'"' | b'<' | b'>' | b'`'));
    if !is_target || target.contains(&b'#') || !(is_plain || http::Uri::try_from(target).is_ok()) {
        return Err(Refusal::Malformed("the target is neither a path nor a URL"));
    }
    Ok(())
}

/// Name and value of a header or a trailer, without the spaces around the value.
fn scan_header(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    if line.starts_with(b" ") || line.starts_with(b"\t") {
        return Err(Refusal::Malformed("a header is folded over several lines"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Refusal::Malformed("a header without `:`"))?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !http_field::is_token(name) {
        return Err(Refusal::Malformed("the name of a header is not valid"));
    }
    if !http_field::is_value(value) {
        return Err(Refusal::Malformed("a control character in a header"));
    }
    Ok((name, value.trim_ascii()))
}

/// Follows what a client sends over one connection.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The part that has come of a head, of a line with the size of a chunk, or of trailers.
    kept: Vec<u8>,
    /// Lines of a head that are whole in it.
    lines: usize,
    stage: Stage,
    /// Bytes of those that came last which were looked at before the refusal, and belong to what came before it.
    passed: usize,
    /// True if the head that is not whole yet has begun with those.
    has_begun: bool,
    /// Bytes of extensions that the chunks of a body have had.
    extensions: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Head,
    /// Bytes of a body, or of a chunk, that are to come.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    /// After so many.
    Trailers(usize),
}

impl From<Framing> for Stage {
    fn from(framing: Framing) -> Stage {
        match framing {
            Framing::Length(0) => Stage::Head,
            Framing::Length(length) => Stage::Body(length),
            Framing::Chunked => Stage::ChunkSize,
        }
    }
}

impl Scanner {
    /// Takes the next bytes, which may go on to hyper. After a refusal nothing more may.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        let all = bytes.len();
        self.has_begun = false;
        while !bytes.is_empty() {
            self.passed = all - bytes.len();
            bytes = match self.stage {
                Stage::Head => self.take_head(bytes)?,
                Stage::Body(left) => self.skip(bytes, left, Stage::Body, Stage::Head),
                Stage::Chunk(left) => self.skip(bytes, left, Stage::Chunk, Stage::ChunkEnd),
                Stage::ChunkSize => {
                    let mut before = self.extensions;
                    let rest = self.take_line(bytes, CHUNK_SIZE_BYTES, |line| {
                        let (size, extensions) = scan_chunk_size(line)?;
                        before += extensions;
                        Ok(if size == 0 { Stage::Trailers(0) } else { Stage::Chunk(size) })
                    })?;
                    if before > EXTENSION_BYTES {
                        return Err(Refusal::Malformed("the chunks have extensions that are too long"));
                    }
                    // The next body has its own.
                    self.extensions = if let Stage::Trailers(_) = self.stage { 0 } else { before };
                    rest
                }
                Stage::ChunkEnd => self.take_line(bytes, 2, |line| match line {
                    [] => Ok(Stage::ChunkSize),
                    _ => Err(Refusal::Malformed("a chunk is longer than its size")),
                })?,
                Stage::Trailers(HEADERS) => return Err(Refusal::TooLarge),
                Stage::Trailers(count) => self.take_line(bytes, TRAILER_BYTES, |line| match line {
                    [] => Ok(Stage::Head),
                    line => scan_header(line).map(|_| Stage::Trailers(count + 1)),
                })?,
            };
        }
        Ok(())
    }

    /// Returns whether the connection is between two requests.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Head && self.kept.is_empty()
    }

    /// Returns whether the last byte was of a head, or of the line between two.
    pub fn is_in_head(&self) -> bool {
        self.stage == Stage::Head
    }

    /// Returns whether the bytes that came last begin the head that is not whole yet.
    pub fn has_begun_head(&self) -> bool {
        self.stage == Stage::Head && self.has_begun
    }

    /// Returns after a refusal how many of the bytes that came last belong to what was before it, and may go on.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Takes what belongs to the head, and returns what follows.
    fn take_head<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], Refusal> {
        // Empty lines between requests, which some clients send.
        if self.kept == b"\r" && bytes.starts_with(b"\n") {
            self.kept.clear();
            return Ok(&bytes[1..]);
        }
        let before = self.kept.len();
        if before == 0 {
            if bytes.starts_with(b"\r\n") {
                return Ok(&bytes[2..]);
            }
            if let Some(head) = scan_head(bytes)? {
                self.stage = head.framing.into();
                return Ok(&bytes[head.length..]);
            }
            self.has_begun = true;
            self.kept.extend_from_slice(bytes);
            self.lines = count_lines(bytes);
            return Ok(&[]);
        }
        let room = (HEAD_BYTES + 1).saturating_sub(before);
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        // It is scanned again only once its end has come: one that comes byte by byte costs no more than another. What follows the end is
        // not part of it, and may be anything.
        let from = before.saturating_sub(3);
        let end = memmem::find(&self.kept[from..], b"\r\n\r\n").map(|at| from + at + 4);
        let new = &self.kept[before - 1..end.unwrap_or(self.kept.len())];
        self.lines += count_lines(&new[1..]);
        if end.is_none() && self.lines > 1 + HEADERS {
            return Err(Refusal::TooLarge);
        }
        if new.contains(&0) {
            return Err(Refusal::Malformed("a NUL"));
        }
        if is_torn_apart(new) {
            return Err(Refusal::Malformed("a CR without LF, or an LF without CR"));
        }
        match if end.is_some() { scan_head(&self.kept)? } else { incomplete(&self.kept)? } {
            Some(head) => {
                // Nothing of a long one stays.
                self.kept = Vec::new();
                self.stage = head.framing.into();
                Ok(&bytes[head.length - before..])
            }
            None => Ok(&[]),
        }
    }

    fn skip<'b>(&mut self, bytes: &'b [u8], left: u64, of: fn(u64) -> Stage, then: Stage) -> &'b [u8] {
        let count = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let left = left - count as u64;
        self.stage = if left == 0 { then } else { of(left) };
        &bytes[count..]
    }

    /// Takes a line, which has at most so many bytes with its end, and goes to the stage that it says.
    fn take_line<'b>(
        &mut self,
        bytes: &'b [u8],
        limit: usize,
        then: impl FnOnce(&[u8]) -> Result<Stage, Refusal>,
    ) -> Result<&'b [u8], Refusal> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        self.kept.extend_from_slice(&bytes[..end]);
        if self.kept.len() > limit {
            return Err(Refusal::Malformed("a chunk or its trailers have a line that is too long"));
        }
        if let Some(line) = next_line(&mut self.kept.as_slice())? {
            self.stage = then(line)?;
            self.kept.clear();
        }
        Ok(&bytes[end..])
    }
}

/// Returns the size of a chunk, and how many bytes of extensions it has. Those are passed over (RFC 9112, section 7.1.1), as hyper does; they begin with `;`,
/// perhaps after white space, and have no control characters.
fn scan_chunk_size(line: &[u8]) -> Result<(u64, usize), Refusal> {
    let malformed = Refusal::Malformed("the size of a chunk is not valid");
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, extensions) = line.split_at(end);
    let is_extension = extensions.trim_ascii_start().starts_with(b";") && http_field::is_value(extensions);
    if !(1..=16).contains(&digits.len()) || !(extensions.is_empty() || is_extension) {
        return Err(malformed);
    }
    let text = std::str::from_utf8(digits).map_err(|_| malformed)?;
    Ok((u64::from_str_radix(text, 16).map_err(|_| malformed)?, extensions.len()))
}

#[cfg(test)]
#[path = "request_head_tests.rs"]
mod tests;
