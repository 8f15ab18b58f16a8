/// A point in time, read once per wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic time in nanoseconds (`CLOCK_MONOTONIC`).
    pub monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}

impl Now {
    /// Returns the time that an attempt has run that began then, as its worker's wall clock said: not longer than since its lease was granted, by the monotonic clock.
    /// If the wall clock was set back to before the beginning, as long as that.
    pub(crate) fn ran_ns(self, started_unix_nano: u64, granted: Now) -> u64 {
        let longest_ns = self.monotonic_ns.saturating_sub(granted.monotonic_ns);
        self.unix_nano.checked_sub(started_unix_nano).map_or(longest_ns, |ns| ns.min(longest_ns))
    }
}
