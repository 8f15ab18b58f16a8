//! The version of a module's library.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// The contents of a module's library at one time, with the libraries beside it that it needs: a number made from them and from its path.
/// Two builds have two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleVersion(NonZeroU64);

impl ModuleVersion {
    /// Returns the version with this number; none for 0, which says that a version is not known.
    pub fn of_number(number: u64) -> Option<ModuleVersion> {
        NonZeroU64::new(number).map(ModuleVersion)
    }

    /// Returns its number, which is never 0.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for ModuleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ModuleVersion {
    type Err = ();

    /// Takes the 16 digits that it is written with.
    fn from_str(text: &str) -> Result<ModuleVersion, ()> {
        let is_written_so = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = is_written_so.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.and_then(ModuleVersion::of_number).ok_or(())
    }
}
