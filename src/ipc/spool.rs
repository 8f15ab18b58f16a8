//! The spool: a process's fixed shared mapping of claims and spans, from which others finish its story.
//!
//! Every traced process owns one file in the session folder and maps it shared. What it stores there is in the
//! kernel's page cache at once, out of reach of any SIGKILL of the process. Three things are kept:
//!
//! * **Claims.** The head writes each lease it grants into a ring, and the worker *claims* it there before it starts the
//!   task. So whoever looks after a death knows which tasks had begun, and the head can take an unclaimed lease
//!   back without asking.
//! * **Spans.** A slot for each span that is open, or has ended and is not yet where its hooks bring it, the span file or an exporter:
//!
//! ```text
//!            start             end              every hook has it
//!   free ───────────▶ open ───────────▶ ended ───────────────────▶ free
//! ```
//!
//! * **Log records**, in a file of their own beside it, which is made for the first of them: see [`logs`].
//!
//! [`Spool`] is the owner's side: it records. [`Story`] is the side of whoever comes after: it reads. The head uses
//! the claims of a living worker's spool through [`ClaimRing`]. Nothing here decides what a claim or a span means.
//!
//! A kill between two stores leaves a record that is valid up to its last complete entry, because the length is stored
//! after the bytes. This is about processes that die, not machines that lose power: nothing is synced.

mod additions;
mod claims;
mod grants;
pub mod hooks;
mod layout;
pub mod logs;
pub mod otlp;
mod owner;
pub mod owners;
mod parcel;
mod pause;
mod prefixes;
pub mod record;
pub(crate) mod rescue;
mod slot_cache;
mod slot_caches;
mod story;

/// Atomics of a [`slot_cache`]; its model has loom's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
}

pub use crate::claims::{CLAIM_COUNT, ClaimState};
pub use additions::Additions;
pub use claims::ClaimRing;
pub use layout::{INLINE_LIMIT, SLOT_COUNT, SLOT_SIZE, SpoolError};
pub use owner::{Arrival, Batch, Committing, SlotIndex, SpanOpening, Spool};
pub use owners::Owners;
pub use parcel::{PARCEL_SPANS, Parcel};
pub use pause::Pause;
pub use prefixes::Prefix;
pub use story::{SpanStory, SpoolCounts, Story};
