//! Attributes that many spans begin with, laid out once.

use std::cell::RefCell;

use tracer_abi as abi;

use super::record::EntryWriter;

/// How many a thread remembers; a power of two. Each takes the place of another one now and then.
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

/// Appends the attributes of the prefix with this number, which is not 0; false when some do not fit.
///
/// # Safety
///
/// What the attributes point to is readable.
pub(super) unsafe fn append(entries: &mut EntryWriter<'_>, id: u64, attributes: &[abi::KeyValue]) -> bool {
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
    // SAFETY: promised by the caller.
    let fits = attributes.iter().fold(true, |fits, attribute| unsafe { entries.attribute(attribute) } & fits);
    if fits {
        let made = Known { id, count: attributes.len(), entries: entries.since(start).to_vec() };
        let _ = PREFIXES.try_with(|known| known.borrow_mut()[place] = made);
    }
    fits
}
