//! Small files of a session, which only its user may read.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Puts a file with these contents at a path, at once: it is written as `unfinished`, in the same folder, and then renamed. Its mode is 0600.
pub fn replace(path: &Path, unfinished: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(unfinished)?;
    file.write_all(contents)?;
    fs::rename(unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [path, unfinished] = ["file", "file.part"].map(|name| folder.path().join(name));
        for contents in ["first", "", "second"] {
            replace(&path, &unfinished, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert!(!unfinished.exists());
        }
    }
}
