//! Attributes that a hook adds to a span while it starts, before the span has a slot.

use tracer_abi as abi;

use super::layout::ENTRIES_SIZE;
use super::owner::{SlotIndex, Spool};
use super::record::{EntryWriter, entries_of};

/// Entries of a record that the sampler and the span processors of a hook add to a span that starts. Most add nothing.
#[derive(Debug, Default)]
pub struct Additions {
    room: Vec<u8>,
    len: usize,
    /// Entries for which there was no room.
    cut: u32,
    status: Option<(u32, Vec<u8>)>,
}

impl Additions {
    /// Returns whether there is anything.
    pub fn is_empty(&self) -> bool {
        self.len == 0 && self.cut == 0 && self.status.is_none()
    }

    fn append(&mut self, write: impl FnOnce(&mut EntryWriter<'_>) -> bool) {
        self.room.resize(ENTRIES_SIZE, 0);
        let mut writer = EntryWriter::new(&mut self.room, self.len);
        let fits = write(&mut writer);
        self.len = writer.len();
        self.cut += u32::from(!fits);
    }

    /// Adds an attribute.
    ///
    /// # Safety
    ///
    /// What it points to is readable.
    pub unsafe fn set_attribute(&mut self, attribute: &abi::KeyValue) {
        // SAFETY: promised by the caller.
        self.append(|entries| unsafe { entries.attribute(attribute) });
    }

    /// Adds an event.
    ///
    /// # Safety
    ///
    /// What it points to is readable.
    pub unsafe fn add_event(&mut self, event: &abi::Event) {
        // SAFETY: promised by the caller.
        self.append(|entries| unsafe { entries.event(event, event.time_unix_nano) });
    }

    /// Adds a link.
    ///
    /// # Safety
    ///
    /// What it points to is readable.
    pub unsafe fn add_link(&mut self, link: &abi::Link) {
        // SAFETY: promised by the caller.
        self.append(|entries| unsafe { entries.link(link) });
    }

    /// Sets the name.
    pub fn update_name(&mut self, name: &[u8]) {
        self.append(|entries| entries.name(name));
    }

    /// Sets the status, as [`Spool::set_status`] does.
    pub fn set_status(&mut self, code: u32, description: &[u8]) {
        self.status = Some((code, description.to_vec()));
    }
}

impl Spool {
    /// Records what a hook has added to a span.
    pub fn add(&self, slot: SlotIndex, additions: &Additions) {
        for entry in entries_of(&additions.room[..additions.len]) {
            self.append(slot, |entries| entries.entries(entry));
        }
        for _ in 0..additions.cut {
            self.append(slot, |_| false);
        }
        if let Some((code, description)) = &additions.status {
            self.set_status(slot, *code, description);
        }
    }
}
