/// A point in time, read once per wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic time in nanoseconds (`CLOCK_MONOTONIC`).
    pub monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}
