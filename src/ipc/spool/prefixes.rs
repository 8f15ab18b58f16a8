//! Cached prefixes: the entries that many spans begin with, laid out once.

use std::cell::RefCell;

use tracer_abi as abi;

use super::record::EntryWriter;

/// Prefix of all spans of a process with one number: the same name and scope, and after these the same attributes.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    pub(super) id: u64,
    pub(super) attributes: &'a [abi::KeyValue],
}

impl<'a> Prefix<'a> {
    /// Nothing is promised.
    pub const NONE: Prefix<'static> = Prefix { id: 0, attributes: &[] };

    /// With the number 0, the attributes are this span's alone.
    ///
    /// # Safety
    ///
    /// What the attributes point to is readable for `'a`.
    pub unsafe fn new(id: u64, attributes: &'a [abi::KeyValue]) -> Prefix<'a> {
        Prefix { id, attributes }
    }
}

/// Number of prefixes that a thread remembers; a power of two. Each takes the place of another one now and then.
const KNOWN: usize = 16;

/// The entries of a prefix.
struct Known {
    /// 0 for none.
    id: u64,
    count: usize,
    entries: Vec<u8>,
}

thread_local! {
    static PREFIXES: RefCell<[Known; KNOWN]> =
        const { RefCell::new([const { Known { id: 0, count: 0, entries: Vec::new() } }; KNOWN]) };
}

/// Appends the attributes of a prefix; false when some do not fit.
pub(super) fn append(entries: &mut EntryWriter<'_>, prefix: &Prefix<'_>) -> bool {
    let Prefix { id, attributes } = *prefix;
    let each = |entries: &mut EntryWriter<'_>| {
        // SAFETY: promised when the prefix was made.
        attributes.iter().fold(true, |fits, attribute| unsafe { entries.attribute(attribute) } & fits)
    };
    if id == 0 {
        return each(entries);
    }
    let place = id as usize % KNOWN;
    // A thread that ends has nothing any more.
    let is_done = PREFIXES.try_with(|known| {
        let known = &known.borrow()[place];
        known.id == id && known.count == attributes.len() && entries.entries(&known.entries)
    });
    if is_done.unwrap_or(false) {
        return true;
    }
    let start = entries.len();
    let fits = each(entries);
    if fits {
        let made = Known { id, count: attributes.len(), entries: entries.since(start).to_vec() };
        let _ = PREFIXES.try_with(|known| known.borrow_mut()[place] = made);
    }
    fits
}
