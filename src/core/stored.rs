//! The reference to a large value that lies in a file of its own.

use serde::{Deserialize, Serialize};

use crate::codec::{Put, Take, WireError};

/// A value in a file, by the file's name and length. Who writes, reads and removes the file is no affair of this crate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stored {
    /// The name of the file, in the folder of the values; empty once it was removed.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl Stored {
    /// Appends the reference to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_str(&self.name);
        out.put_u64(self.bytes);
    }

    /// Reads a reference. Its name has digits and dashes alone, or is empty, and so cannot lead out of the folder.
    pub fn take(take: &mut Take<'_>) -> Result<Stored, WireError> {
        let stored = Stored { name: take.str()?.to_owned(), bytes: take.u64()? };
        let is_known = stored.name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if is_known { Ok(stored) } else { Err(WireError::UnknownValue("name of a value")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        for name in ["../1", "/etc/passwd", "1/2", "."] {
            let mut bytes = Vec::new();
            Stored { name: name.into(), bytes: 1 }.put(&mut bytes);
            assert!(Stored::take(&mut Take::new(&bytes)).is_err(), "{name}");
        }
    }
}
