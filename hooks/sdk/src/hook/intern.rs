//! Strings that come again and again: attribute keys, and the names of spans and events.
//!
//! They arrive borrowed for one call and OpenTelemetry wants them for longer. Copying each would cost an allocation per
//! key and span. So a string that a thread sees a second time is leaked once for the whole process, and found again by
//! its bytes: by their hash first, and then all of them are compared. Addresses play no part, so a freed string whose
//! address comes back cannot be mistaken for another.
//!
//! The leak is bounded in strings and in bytes. Beyond the bound, and for a string seen for the first time, the caller
//! gets a copy of its own.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Longer strings are not looked up: they are hardly keys or names.
const LEN_LIMIT: usize = 128;
/// How many strings are leaked at most, in the whole process.
const COUNT_LIMIT: usize = 4_096;
/// How many bytes are leaked at most, in the whole process.
const BYTES_LIMIT: usize = 128 << 10;
/// Per thread; a power of two. A string may be in one of two neighbouring slots.
const SLOTS: usize = 512;

struct Slot {
    /// The hash of the string seen last that was not the one kept here.
    seen: Cell<u64>,
    /// The string kept here; empty for none.
    kept: Cell<&'static str>,
}

thread_local! {
    static SLOTS_OF_THREAD: [Slot; SLOTS] =
        const { [const { Slot { seen: Cell::new(0), kept: Cell::new("") } }; SLOTS] };
}

/// The strings that live for ever.
#[derive(Default)]
struct Leaked {
    texts: HashSet<&'static str>,
    bytes: usize,
}

static LEAKED: LazyLock<Mutex<Leaked>> = LazyLock::new(Mutex::default);

impl Leaked {
    /// The leaked twin of `text`, made if there is none yet and the bounds allow.
    fn leak(&mut self, text: &str) -> Option<&'static str> {
        if let Some(known) = self.texts.get(text) {
            return Some(known);
        }
        if self.texts.len() >= COUNT_LIMIT || self.bytes + text.len() > BYTES_LIMIT {
            return None;
        }
        let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
        self.bytes += text.len();
        self.texts.insert(text);
        Some(text)
    }
}

/// `bytes` as text, decoded lossily: for ever when the string repeats, else a copy.
#[inline]
pub(super) fn intern(bytes: &[u8]) -> Cow<'static, str> {
    if bytes.is_empty() {
        return Cow::Borrowed("");
    }
    if bytes.len() > LEN_LIMIT {
        return Cow::Owned(String::from_utf8_lossy(bytes).into_owned());
    }
    let hash = hash(bytes);
    let at = (hash >> 32) as usize & (SLOTS - 1);
    SLOTS_OF_THREAD.with(|slots| {
        let (first, second) = (&slots[at], &slots[at ^ 1]);
        if first.kept.get().as_bytes() == bytes {
            return Cow::Borrowed(first.kept.get());
        }
        if second.kept.get().as_bytes() == bytes {
            return Cow::Borrowed(second.kept.get());
        }
        find_elsewhere(bytes, hash, first, second)
    })
}

#[cold]
fn find_elsewhere(bytes: &[u8], hash: u64, first: &Slot, second: &Slot) -> Cow<'static, str> {
    let text = String::from_utf8_lossy(bytes);
    if first.seen.replace(hash) != hash {
        return Cow::Owned(text.into_owned());
    }
    // Poisoned or not, the set holds only whole strings.
    match LEAKED.lock().unwrap_or_else(PoisonError::into_inner).leak(&text) {
        Some(leaked) => {
            let slot = if first.kept.get().is_empty() || !second.kept.get().is_empty() { first } else { second };
            slot.kept.set(leaked);
            Cow::Borrowed(leaked)
        }
        None => Cow::Owned(text.into_owned()),
    }
}

/// Eight bytes at a time; the last eight overlap those before them. A poor spread costs copies, nothing else.
fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(29) ^ word).wrapping_mul(FACTOR);
    let word = |chunk: &[u8; 8]| u64::from_le_bytes(*chunk);
    let mut hash = (bytes.len() as u64).wrapping_mul(FACTOR);
    if let Some(last) = bytes.last_chunk() {
        for chunk in bytes[..bytes.len() - 1].as_chunks().0 {
            hash = mix(hash, word(chunk));
        }
        hash = mix(hash, word(last));
    } else {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        hash = mix(hash, word(&padded));
    }
    // Not 0, which stands for nothing seen.
    (hash ^ hash >> 29) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_that_repeats_is_kept_for_ever() {
        let text = String::from("intern.a_string_that_repeats");
        assert!(matches!(intern(text.as_bytes()), Cow::Owned(_)));
        let Cow::Borrowed(kept) = intern(text.as_bytes()) else { panic!("seen twice") };
        let copy = text.clone();
        let Cow::Borrowed(again) = intern(copy.as_bytes()) else { panic!("kept") };
        assert!(std::ptr::eq(kept, again));
        assert_eq!(kept, text);
    }

    #[test]
    fn another_string_at_the_same_address_is_not_mistaken() {
        let mut buffer = *b"intern.key_0";
        for digit in [b'1', b'2', b'1', b'2', b'1'] {
            buffer[11] = digit;
            assert_eq!(intern(&buffer).as_bytes(), &buffer);
            assert_eq!(intern(&buffer).as_bytes(), &buffer);
        }
    }

    #[test]
    fn threads_share_what_was_leaked() {
        let find = || {
            intern(b"intern.shared");
            match intern(b"intern.shared") {
                Cow::Borrowed(kept) => kept.as_ptr() as usize,
                Cow::Owned(_) => panic!("seen twice"),
            }
        };
        let here = find();
        assert_eq!(std::thread::spawn(find).join().unwrap(), here);
    }

    #[test]
    fn invalid_text_is_decoded_and_long_text_is_copied() {
        assert_eq!(intern(b"intern.\xff"), "intern.\u{fffd}");
        assert_eq!(intern(b"intern.\xff"), "intern.\u{fffd}");
        let long = vec![b'x'; LEN_LIMIT + 1];
        for _ in 0..3 {
            assert!(matches!(intern(&long), Cow::Owned(_)));
        }
    }

    #[test]
    fn what_is_leaked_stays_within_its_bounds() {
        let mut leaked = Leaked::default();
        for number in 0..COUNT_LIMIT {
            assert!(leaked.leak(&format!("{number:08}")).is_some());
        }
        assert_eq!(leaked.leak("one too many"), None);
        assert_eq!(leaked.leak("00000007"), Some("00000007"));

        let mut leaked = Leaked::default();
        let lengthy = |number| format!("{number:0LEN_LIMIT$}");
        let fits = BYTES_LIMIT / LEN_LIMIT;
        assert!((0..fits).all(|number| leaked.leak(&lengthy(number)).is_some()));
        assert_eq!(leaked.leak(&lengthy(fits)), None);
        assert_eq!(leaked.bytes, BYTES_LIMIT);
    }
}
