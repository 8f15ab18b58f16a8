//! Check of whether others could change a library that is to be loaded.
//!
//! A library runs with the rights of whoever loads it. It is safe from others if it and every folder on the way to it belong to root or to this user, and
//! nobody else may write to them. In a folder with the sticky bit, such as `/tmp`, others may add files but not replace the user's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a sentence, with a hint, on those who may change what a path leads to, besides root and this user; none if nobody may.
pub fn changeable_by_others(path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?;
    // Links on the way may be replaced, and so may what they lead to.
    let mut ways: Vec<PathBuf> = path.ancestors().map(PathBuf::from).collect();
    if let Ok(real) = path.canonicalize() {
        ways.extend(real.ancestors().map(PathBuf::from).filter(|way| !path.starts_with(way)));
    }
    let user = rustix::process::geteuid().as_raw();
    ways.iter().find_map(|way| {
        let metadata = fs::metadata(way).ok()?;
        let found =
            Found { owner: metadata.uid(), group: metadata.gid(), mode: metadata.mode(), is_folder: metadata.is_dir() };
        found.weakness(user).map(|weakness| weakness.text(way))
    })
}

/// Owner and rights of a file or a folder.
#[derive(Clone, Copy, Debug)]
struct Found {
    owner: u32,
    group: u32,
    mode: u32,
    is_folder: bool,
}

/// Way in which others may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weakness {
    Owner(u32),
    Group { group: u32, mode: u32 },
    Everybody { mode: u32 },
}

impl Found {
    fn weakness(self, user: u32) -> Option<Weakness> {
        const STICKY: u32 = 0o1000;
        let Found { owner, group, mode, is_folder } = self;
        let is_sticky = is_folder && mode & STICKY != 0;
        let mode = mode & 0o7777;
        if owner != 0 && owner != user {
            return Some(Weakness::Owner(owner));
        }
        if mode & 0o002 != 0 && !is_sticky {
            return Some(Weakness::Everybody { mode });
        }
        // A group with the number of its user is that user's alone, where each has one.
        if mode & 0o020 != 0 && !is_sticky && group != owner {
            return Some(Weakness::Group { group, mode });
        }
        None
    }
}

impl Weakness {
    fn text(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Weakness::Owner(owner) => {
                format!(
                    "`{path}` belongs to another user (uid {owner}), who can change it\n(hint: load a copy that is yours, from a folder that is yours)"
                )
            }
            Weakness::Group { group, mode } => {
                format!("everybody in group {group} can change `{path}` (mode {mode:04o})\n(hint: `chmod g-w {path}`)")
            }
            Weakness::Everybody { mode } => {
                format!("everybody can change `{path}` (mode {mode:04o})\n(hint: `chmod go-w {path}`)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_can_change_is_found() {
        const USER: u32 = 1000;
        let found = |owner, group, mode, is_folder| Found { owner, group, mode, is_folder }.weakness(USER);
        for (owner, group, mode) in
            [(USER, USER, 0o755), (USER, 50, 0o700), (0, 0, 0o755), (USER, USER, 0o775), (0, 50, 0o555)]
        {
            for is_folder in [false, true] {
                assert_eq!(found(owner, group, mode, is_folder), None, "{owner} {group} {mode:o}");
            }
        }
        assert_eq!(found(1001, USER, 0o700, false), Some(Weakness::Owner(1001)));
        assert_eq!(found(1001, USER, 0o1777, true), Some(Weakness::Owner(1001)));
        assert_eq!(found(USER, USER, 0o757, false), Some(Weakness::Everybody { mode: 0o757 }));
        assert_eq!(found(USER, 50, 0o775, true), Some(Weakness::Group { group: 50, mode: 0o775 }));
        assert_eq!(found(0, 0, 0o1777, true), None, "others may not replace what is in it");
        assert_eq!(
            found(USER, USER, 0o1777, false),
            Some(Weakness::Everybody { mode: 0o1777 }),
            "a file has no such bit"
        );
    }

    #[test]
    fn every_folder_on_the_way_counts() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (outer, inner) = (folder.path().join("outer"), folder.path().join("outer/inner"));
        fs::create_dir_all(&inner).unwrap();
        let library = inner.join("libx.so");
        fs::write(&library, "").unwrap();
        for path in [&outer, &inner, &library] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(changeable_by_others(&library), None);
        let link = folder.path().join("link.so");
        std::os::unix::fs::symlink(&library, &link).unwrap();
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o777)).unwrap();
        for path in [&library, &link] {
            let said = changeable_by_others(path).unwrap();
            assert_eq!(
                said,
                format!("everybody can change `{0}` (mode 0777)\n(hint: `chmod go-w {0}`)", outer.display())
            );
        }
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(changeable_by_others(&library), None);
    }
}
