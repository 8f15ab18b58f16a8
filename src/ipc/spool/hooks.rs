//! Delivery mask: one bit for each destination that a span must still reach (span file, exporters, each additional hook).

/// The span file, or whatever the first hook writes on this machine's disk; also what nobody tells of.
pub const FILE: u32 = 1;
/// The exporters of the first hook, which tell of what they deliver.
pub const EXPORTERS: u32 = 2;

/// Returns an additional hook, from 0.
pub const fn further(index: usize) -> u32 {
    4 << index
}

/// Returns the bit of the hook at this place among those of a session, from 0: that of the first is for its exporters.
pub const fn at(index: usize) -> u32 {
    EXPORTERS << index
}

/// Additional hooks at most. Each has a bit.
pub const FURTHER_LIMIT: usize = 16;

/// The bits that span sinks have.
pub const SINKS: u32 = !FILE;
