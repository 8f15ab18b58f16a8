//! The fixed layout of hot messages: little-endian integers and length-prefixed bytes, without padding.

/// A body that is not what its kind says. The connection it came from is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The body ends before the message does.
    #[error("a message ends too early")]
    Truncated,
    /// The body goes on after the message.
    #[error("a message has bytes after its end")]
    TrailingBytes,
    /// Text that is not UTF-8.
    #[error("a text in a message is not UTF-8")]
    NotUtf8,
    /// A value outside of those known; names the field.
    #[error("a message has an unknown value for `{0}`")]
    UnknownValue(&'static str),
}

/// In the place of a length of one byte: it follows, in four.
const LONG: u8 = u8::MAX;

/// Appends to a body.
pub trait Put {
    /// One byte.
    fn put_u8(&mut self, value: u8);
    /// Four bytes, little-endian.
    fn put_u32(&mut self, value: u32);
    /// Eight bytes, little-endian.
    fn put_u64(&mut self, value: u64);
    /// Bytes with their length before them.
    fn put_bytes(&mut self, value: &[u8]);
    /// Bytes that are few nearly always, with their length before them: one byte of it, or five.
    fn put_short(&mut self, value: &[u8]);
    /// Bytes whose length the reader knows.
    fn put_exact(&mut self, value: &[u8]);

    /// Text with its length before it.
    fn put_str(&mut self, value: &str) {
        self.put_bytes(value.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_bytes(&mut self, value: &[u8]) {
        let length = u32::try_from(value.len()).expect("frames are limited to less than 4 GiB");
        self.put_u32(length);
        self.extend_from_slice(value);
    }

    fn put_short(&mut self, value: &[u8]) {
        match u8::try_from(value.len()) {
            Ok(length) if length != LONG => {
                self.put_u8(length);
                self.put_exact(value);
            }
            _ => {
                self.put_u8(LONG);
                self.put_bytes(value);
            }
        }
    }

    fn put_exact(&mut self, value: &[u8]) {
        self.extend_from_slice(value);
    }
}

/// Takes a body apart, borrowing from it.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    rest: &'a [u8],
}

impl<'a> Take<'a> {
    /// Begins at the start of `body`.
    pub fn new(body: &'a [u8]) -> Take<'a> {
        Take { rest: body }
    }

    /// Returns whether everything was taken.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns how many bytes are left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Fails unless everything was taken.
    pub fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::TrailingBytes) }
    }

    /// Takes `length` bytes. Fails, and takes nothing, when there are fewer.
    pub fn exact(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        Ok(self.exact(N)?.try_into().expect("exact returns what was asked for"))
    }

    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes bytes with their length before them, as [`Put::put_bytes`] wrote them.
    pub fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.u32()? as usize;
        self.exact(length)
    }

    /// Takes bytes with their length before them, as [`Put::put_short`] wrote them.
    pub fn short(&mut self) -> Result<&'a [u8], WireError> {
        match self.u8()? {
            LONG => self.bytes(),
            length => self.exact(length.into()),
        }
    }

    /// Takes text with its length before it, as [`Put::put_str`] wrote it. Fails when it is not UTF-8.
    pub fn str(&mut self) -> Result<&'a str, WireError> {
        text(self.bytes()?)
    }

    /// Takes text with its length before it, as [`Put::put_short`] wrote it. Fails when it is not UTF-8.
    pub fn short_str(&mut self) -> Result<&'a str, WireError> {
        text(self.short()?)
    }
}

/// Bytes that are text. Fails when they are not UTF-8.
pub fn text(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_have_a_length_of_one_byte_and_many_one_of_five() {
        for (length, encoded) in [(0, 1), (1, 2), (254, 255), (255, 260), (256, 261), (70_000, 70_005)] {
            let (value, mut bytes) = (vec![7; length], Vec::new());
            bytes.put_short(&value);
            assert_eq!(bytes.len(), encoded);
            let mut take = Take::new(&bytes);
            assert_eq!((take.short(), take.is_empty()), (Ok(value.as_slice()), true));
            assert_eq!(Take::new(&bytes[..encoded - 1]).short(), Err(WireError::Truncated));
        }
    }
}
