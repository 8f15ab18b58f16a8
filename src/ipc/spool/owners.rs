//! Owners of parcels: the hooks of a session by name, in a file beside its parcels.
//!
//! A parcel names its hooks by bits, which mean something together with the session's mark only. Each head writes `hooks.<mark>` into its
//! `handover` folder, the import strings of its hooks in their order, one a line; a head that takes parcels of other sessions over takes
//! these files over too.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::hooks;
use crate::private_file;
use crate::spool::parcel::Parcel;

/// The folder, in the one for parcels, with those that no hook of the session is to have.
pub const FOREIGN: &str = "foreign";
const PREFIX: &str = "hooks.";

/// The hooks of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// Fingerprint that tells them from hooks of another session.
    pub mark: u32,
    /// Their import strings, in their order.
    pub names: Vec<String>,
}

impl Owners {
    /// Reads the hooks with this mark; none when nobody has written them here.
    pub fn read(folder: &Path, mark: u32) -> Option<Owners> {
        let text = fs::read_to_string(path(folder, mark)).ok()?;
        Some(Owners { mark, names: text.lines().map(str::to_owned).collect() })
    }

    /// Writes them for whoever finds parcels of this session.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let unfinished = folder.join(format!("{PREFIX}{:08x}.part", self.mark));
        let text: String = self.names.iter().map(|name| format!("{name}\n")).collect();
        private_file::replace(&path(folder, self.mark), &unfinished, text.as_bytes())
    }

    /// Copies all such files from one folder to another.
    pub fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
        for entry in from.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let mark = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).filter(|mark| !mark.contains('.'));
            let Some(mark) = mark.and_then(|mark| u32::from_str_radix(mark, 16).ok()) else { continue };
            if let (Some(owners), false) = (Owners::read(from, mark), path(to, mark).exists()) {
                owners.write(to)?;
            }
        }
        Ok(())
    }

    /// Returns the name of the hook with this [bit](super::hooks).
    pub fn name(&self, hook: u32) -> Option<&str> {
        (0..self.names.len()).find(|&index| hooks::at(index) == hook).map(|index| self.names[index].as_str())
    }

    /// Returns the bit of the hook with this name.
    pub fn hook(&self, name: &str) -> Option<u32> {
        self.names.iter().position(|known| known == name).map(hooks::at)
    }

    /// Returns the bits of these hooks that are those of a parcel with the bits `of`, and the bits of the parcel that none of these has.
    pub fn translate(&self, hooks: u32, of: Option<&Owners>) -> (u32, u32) {
        let (mut own, mut foreign) = (0, 0);
        for hook in bits(hooks) {
            match of.and_then(|of| self.hook(of.name(hook)?)) {
                Some(known) => own |= known,
                None => foreign |= hook,
            }
        }
        (own, foreign)
    }
}

/// Returns the single bits of span sinks among these.
pub fn bits(hooks: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|bit| 1 << bit).filter(move |bit| hooks & hooks::SINKS & bit != 0)
}

fn path(folder: &Path, mark: u32) -> PathBuf {
    folder.join(format!("{PREFIX}{mark:08x}"))
}

/// Returns the folder for parcels that no hook of the session is to have.
pub fn foreign_dir(folder: &Path) -> PathBuf {
    folder.join(FOREIGN)
}

/// Returns the parcels of a `handover` folder, also those that no hook of the session is to have.
pub fn all_parcels(folder: &Path) -> Vec<Parcel> {
    let mut parcels = Parcel::list(folder);
    parcels.extend(Parcel::list(&foreign_dir(folder)));
    parcels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(mark: u32, names: &[&str]) -> Owners {
        Owners { mark, names: names.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn bits_of_other_hooks_are_found_again_by_name() {
        let old = owners(7, &["a:a", "b:b", "c:c"]);
        for (new, hooks, expected) in [
            (owners(8, &["c:c", "a:a"]), 2 | 4 | 8, (4 | 2, 4)),
            (owners(8, &["b:b"]), 4, (2, 0)),
            (owners(8, &["x:x"]), 2 | 8, (0, 2 | 8)),
            (owners(8, &[]), 2, (0, 2)),
            // A bit that no hook had.
            (owners(8, &["a:a"]), 2 | 1 << 20, (2, 1 << 20)),
        ] {
            assert_eq!(new.translate(hooks, Some(&old)), expected, "{new:?} {hooks}");
            assert_eq!(new.translate(hooks, None), (0, hooks));
        }
    }

    #[test]
    fn names_go_with_parcels_from_folder_to_folder() {
        let [from, to] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let all = [owners(7, &["a:a", "./b.so:b"]), owners(0xabc, &[])];
        all.iter().for_each(|owners| owners.write(from.path()).unwrap());
        fs::write(from.path().join("hooks.zz"), "").unwrap();
        Owners::copy_all(from.path(), to.path()).unwrap();
        assert_eq!(all.each_ref().map(|owners| Owners::read(to.path(), owners.mark)), all.map(Some));
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2);
    }
}
