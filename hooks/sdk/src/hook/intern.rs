//! Strings that come again and again: attribute keys, and the names of spans and events.
//!
//! They arrive borrowed for one call and OpenTelemetry wants them for longer. Copying each would cost an allocation per
//! key and span. So a string that a thread sees a second time is leaked once for the whole process, and found again: by its
//! address, as most are constants of whoever calls, or else by its hash. Either way all of its bytes are compared, so a freed
//! string whose address comes back cannot be mistaken for another.
//!
//! The leak is bounded in strings and in bytes. Beyond the bound, and for a string seen for the first time, the caller
//! gets a copy of its own.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Longer strings are not looked up: they are hardly keys or names.
const LEN_LIMIT: usize = 128;
/// Limit of the strings that are leaked, in the whole process.
const COUNT_LIMIT: usize = 4_096;
/// Limit of the bytes that are leaked, in the whole process.
const BYTES_LIMIT: usize = 128 << 10;
/// Per thread; a power of two. A string is in the set that its hash names.
const SETS: usize = 128;
/// Number of strings in a set. Enough that the few dozen strings of a busy thread do not drive each other out.
const WAYS: usize = 4;

/// A string that lives for ever, with its hash; an empty one for none.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    text: &'static str,
}

struct Set {
    kept: [Cell<Entry>; WAYS],
    /// The hashes of the strings seen last that are not kept. Several, because strings mostly come in turns.
    seen: [Cell<u64>; WAYS],
    /// Indices of the entries that give way next: of those that are kept, and of those that were seen.
    next: Cell<(usize, usize)>,
}

impl Set {
    const fn new() -> Set {
        Set {
            kept: [const { Cell::new(Entry { hash: 0, text: "" }) }; WAYS],
            seen: [const { Cell::new(0) }; WAYS],
            next: Cell::new((0, 0)),
        }
    }
}

/// Number of strings that are found by their address. A power of two.
const ADDRESSES: usize = 128;

/// The strings that one thread has seen repeat.
pub(super) struct Interner {
    /// Address at which a string was last seen, and its twin.
    by_address: [Cell<(usize, &'static str)>; ADDRESSES],
    by_hash: [Set; SETS],
}

thread_local! {
    static INTERNER: Interner = const {
        Interner { by_address: [const { Cell::new((0, "")) }; ADDRESSES], by_hash: [const { Set::new() }; SETS] }
    };
}

/// Lends the strings of this thread. Looking up many at once is cheaper than one by one.
#[inline]
pub(super) fn with_interner<R>(work: impl FnOnce(&Interner) -> R) -> R {
    INTERNER.with(work)
}

/// The strings that live for ever.
#[derive(Default)]
struct Leaked {
    texts: HashSet<&'static str>,
    bytes: usize,
}

static LEAKED: LazyLock<Mutex<Leaked>> = LazyLock::new(Mutex::default);

impl Leaked {
    /// Returns the leaked twin of `text`, made if there is none yet and the bounds allow.
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

impl Interner {
    /// `bytes` as text, decoded lossily: for ever when the string repeats, else a copy.
    #[inline]
    pub(super) fn intern(&self, bytes: &[u8]) -> Cow<'static, str> {
        let address = bytes.as_ptr().addr();
        // Constants lie close to each other, and are not aligned.
        let place = &self.by_address[(address ^ address >> 7) % ADDRESSES];
        let (seen, text) = place.get();
        if seen == address && text.as_bytes() == bytes {
            return Cow::Borrowed(text);
        }
        let found = self.find(bytes);
        if let Cow::Borrowed(text) = found {
            place.set((address, text));
        }
        found
    }

    fn find(&self, bytes: &[u8]) -> Cow<'static, str> {
        if bytes.is_empty() {
            return Cow::Borrowed("");
        }
        if bytes.len() > LEN_LIMIT {
            return Cow::Owned(String::from_utf8_lossy(bytes).into_owned());
        }
        let hash = hash(bytes);
        // The highest bits: those that every byte has a part in.
        let set = &self.by_hash[(hash >> (u64::BITS - SETS.ilog2())) as usize];
        for entry in &set.kept {
            let Entry { hash: kept, text } = entry.get();
            if kept == hash && text.as_bytes() == bytes {
                return Cow::Borrowed(text);
            }
        }
        find_elsewhere(bytes, hash, set)
    }
}

#[cold]
fn find_elsewhere(bytes: &[u8], hash: u64, set: &Set) -> Cow<'static, str> {
    let text = String::from_utf8_lossy(bytes);
    let (next, next_seen) = set.next.get();
    let Some(seen) = set.seen.iter().find(|seen| seen.get() == hash) else {
        set.seen[next_seen].set(hash);
        set.next.set((next, (next_seen + 1) % WAYS));
        return Cow::Owned(text.into_owned());
    };
    // Poisoned or not, the set holds only whole strings.
    match LEAKED.lock().unwrap_or_else(PoisonError::into_inner).leak(&text) {
        Some(leaked) => {
            // What was decoded lossily has other bytes than came, and is not found again.
            seen.set(0);
            set.kept[next].set(Entry { hash, text: leaked });
            set.next.set(((next + 1) % WAYS, next_seen));
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

    fn intern(bytes: &[u8]) -> Cow<'static, str> {
        with_interner(|interner| interner.intern(bytes))
    }

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
    fn strings_that_come_in_turns_are_all_kept() {
        let texts: Vec<String> = (0..64).map(|number| format!("intern.turns.{number}")).collect();
        let kept = |text: &String| matches!(intern(text.as_bytes()), Cow::Borrowed(_));
        assert_eq!(texts.iter().filter(|text| kept(text)).count(), 0, "none was seen before");
        texts.iter().for_each(|text| drop(intern(text.as_bytes())));
        for _ in 0..3 {
            let lost = texts.iter().filter(|text| !kept(text)).count();
            assert_eq!(lost, 0, "strings that drive each other out are copied again and again");
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
