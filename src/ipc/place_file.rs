//! The file `place.id`: the id of a place, and how often a head of it has joined an engine.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};
use tracer_core::PlaceId;

use crate::private_file;

/// The name of the file in the folder of the place, beside the journal.
const FILE: &str = "place.id";

/// Returns the id of a place; none if no head of it has joined an engine yet.
pub fn id(place: &Path) -> Option<PlaceId> {
    parse(&fs::read_to_string(place.join(FILE)).ok()?).map(|(id, _)| id)
}

/// Returns the number of the life of the last head of a place that has joined an engine, if one has.
pub fn last_life(place: &Path) -> Option<u64> {
    parse(&fs::read_to_string(place.join(FILE)).ok()?).map(|(_, life)| life)
}

/// Returns whether the folder of a place is another one than that in which its last head has begun a life: it was copied or moved, or is on another disk. Not
/// known of one that an older version has written.
pub fn was_moved(place: &Path) -> bool {
    let text = fs::read_to_string(place.join(FILE)).unwrap_or_default();
    text.lines().nth(2).zip(inode(place)).is_some_and(|(known, found)| known != found)
}

/// Returns what tells the folder of a place from a copy of it.
fn inode(place: &Path) -> Option<String> {
    fs::metadata(place).ok().map(|folder| folder.ino().to_string())
}

/// Returns the name of a node on spans: that of its machine, which several nodes may be on, and the end of its place's id.
pub fn node_id(host_name: &str, place: PlaceId) -> String {
    let id = place.to_string();
    format!("{host_name}-{}", &id[id.len() - 5..])
}

/// Returns the id of a place, which is made if there is none, and a number for the life of a head that begins now: higher than that of every one before it,
/// whatever the wall clock says. The caller has the place's lock.
pub fn begin_life(place: &Path, now_unix_nano: u64) -> io::Result<(PlaceId, u64)> {
    let path = place.join(FILE);
    let before = match fs::read_to_string(&path) {
        Ok(text) => Some(parse(&text).ok_or_else(|| {
            let text = "is not what tracer writes: an id and a number, each in a line of its own";
            io::Error::new(io::ErrorKind::InvalidData, format!("`{}` {text}", path.display()))
        })?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let (id, life) = match before {
        Some((id, last)) => (id, now_unix_nano.max(last.saturating_add(1))),
        None => (random()?, now_unix_nano),
    };
    let text = format!("{id}\n{life}\n{}\n", inode(place).unwrap_or_default());
    private_file::replace(&path, &place.join("place.id.part"), text.as_bytes())?;
    Ok((id, life))
}

fn parse(text: &str) -> Option<(PlaceId, u64)> {
    let mut lines = text.lines();
    Some((lines.next()?.parse().ok()?, lines.next()?.parse().ok()?))
}

fn random() -> io::Result<PlaceId> {
    let mut bytes = [0; 8];
    // So few bytes come at once.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(PlaceId(u64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_keeps_its_id_and_each_life_has_a_higher_number_than_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let (id, first) = begin_life(folder.path(), 1_000).unwrap();
        assert_eq!(first, 1_000);
        assert_eq!(super::id(folder.path()), Some(id));
        assert_eq!(last_life(folder.path()), Some(1_000));
        assert_eq!(begin_life(folder.path(), 5_000).unwrap(), (id, 5_000));
        assert_eq!(begin_life(folder.path(), 10).unwrap(), (id, 5_001), "the clock was set back");
        let other = tempfile::tempdir().unwrap();
        assert_ne!(begin_life(other.path(), 1_000).unwrap().0, id);
        assert!(!was_moved(other.path()));
        fs::copy(folder.path().join(FILE), other.path().join(FILE)).unwrap();
        assert!(was_moved(other.path()) && !was_moved(folder.path()));
        fs::write(other.path().join(FILE), format!("{id}\n1\n")).unwrap();
        assert!(!was_moved(other.path()), "an older version does not say where it was");
    }

    #[test]
    fn a_file_that_somebody_has_written_over_is_an_error_and_no_new_id() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "not an id\n7\n").unwrap();
        let error = begin_life(folder.path(), 1).unwrap_err();
        assert!(error.to_string().contains("place.id"), "{error}");
    }
}
