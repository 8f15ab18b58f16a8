//! Span files on a real file system: folders that are refused, torn tails, rotation, full disks.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tracer_span_file::{Counts, Rotation, SpanFile, prepare_dir};

#[path = "../../../tests/support/skip.rs"]
mod skip;

const PID: u32 = 77;

fn file_in(dir: &Path) -> SpanFile {
    SpanFile::try_new(dir, PID, Rotation::default()).expect("the folder is ours")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(dir: &Path) -> String {
    fs::read_to_string(dir.join("77.json")).unwrap()
}

#[test]
fn a_missing_folder_is_created_for_its_owner_alone() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("a/b");
    prepare_dir(&dir).unwrap();
    for dir in [&dir, &temp.path().join("a")] {
        assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    }
    prepare_dir(&dir).unwrap();
}

#[test]
fn a_link_is_refused_with_or_without_a_slash() {
    let temp = tempfile::tempdir().unwrap();
    let link = temp.path().join("spans");
    symlink(temp.path(), &link).unwrap();
    for path in [link.clone(), PathBuf::from(format!("{}/", link.display())), link.join(".")] {
        let error = prepare_dir(&path).unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        assert!(error.contains("(hint: set `TRACER_SPANS_DIR`"), "{error}");
    }
}

#[test]
fn a_dangling_link_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let link = temp.path().join("spans");
    symlink(temp.path().join("nowhere"), &link).unwrap();
    let error = prepare_dir(&link).unwrap_err().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
    assert!(!temp.path().join("nowhere").exists());
}

#[test]
fn a_file_in_the_place_of_the_folder_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("spans");
    fs::write(&path, "").unwrap();
    assert!(prepare_dir(&path).unwrap_err().to_string().contains("is not a folder"));
    let below = prepare_dir(&path.join("below")).unwrap_err().to_string();
    assert!(below.contains("cannot be created: Not a directory"), "{below}");
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let own = fs::metadata("/proc/self").unwrap().uid();
    let temp = tempfile::tempdir().unwrap();
    // Root can give a folder away; anybody else finds one of root's.
    let dir = if own == 0 {
        let dir = temp.path().join("theirs");
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(4321), None).unwrap();
        dir
    } else {
        PathBuf::from("/usr")
    };
    let other = fs::metadata(&dir).unwrap().uid();
    let error = prepare_dir(&dir).unwrap_err().to_string();
    let expected = format!("belongs to user {other}, but this process runs as user {own}");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_process_without_spans_leaves_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = file_in(temp.path());
    file.append(b"").unwrap();
    drop(file);
    assert!(names(temp.path()).is_empty());
}

#[test]
fn lines_are_appended_to_a_private_file_and_counted() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = file_in(temp.path());
    file.append(b"{\"n\": 1}\n{\"n\": 2}\n").unwrap();
    file.append(b"{\"n\": 3}\n").unwrap();
    assert_eq!(read(temp.path()), "{\"n\": 1}\n{\"n\": 2}\n{\"n\": 3}\n");
    assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(file.counts(), Counts { bytes: 27, ..Counts::default() });
}

#[test]
fn a_second_writer_goes_on_where_the_first_ended() {
    let temp = tempfile::tempdir().unwrap();
    file_in(temp.path()).append(b"first\n").unwrap();
    file_in(temp.path()).append(b"second\n").unwrap();
    assert_eq!(read(temp.path()), "first\nsecond\n");
}

#[test]
fn a_file_torn_at_any_byte_is_mended_before_the_first_append() {
    let whole = "{\"n\": 1}\n{\"name\": \"é\"}\n";
    for cut in 0..=whole.len() {
        let temp = tempfile::tempdir().unwrap();
        let torn = &whole.as_bytes()[..cut];
        fs::write(temp.path().join("77.json"), torn).unwrap();
        let mut file = file_in(temp.path());
        file.append(b"{\"n\": 3}\n").unwrap();
        let kept = torn.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        assert_eq!(read(temp.path()), format!("{}{{\"n\": 3}}\n", &whole[..kept]), "cut at {cut}");
        assert_eq!(file.counts().torn_lines, u64::from(kept < cut), "cut at {cut}");
    }
}

#[test]
fn a_torn_tail_longer_than_a_block_is_cut() {
    for tail in [4095, 4096, 4097, 10_000] {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("77.json"), format!("whole\n{}", "x".repeat(tail))).unwrap();
        file_in(temp.path()).append(b"next\n").unwrap();
        assert_eq!(read(temp.path()), "whole\nnext\n");
    }
}

#[test]
fn a_full_file_is_rotated_between_lines_and_the_oldest_removed() {
    let temp = tempfile::tempdir().unwrap();
    let rotation = Rotation { max_bytes: 20, keep: 2 };
    let mut file = SpanFile::try_new(temp.path(), PID, rotation).unwrap();
    for number in 0..10 {
        file.append(format!("line {number}..\n").as_bytes()).unwrap();
    }
    assert_eq!(names(temp.path()), ["77.1.json", "77.2.json", "77.json"]);
    assert_eq!(read(temp.path()), "line 8..\nline 9..\n");
    assert_eq!(fs::read_to_string(temp.path().join("77.1.json")).unwrap(), "line 6..\nline 7..\n");
    assert_eq!(fs::read_to_string(temp.path().join("77.2.json")).unwrap(), "line 4..\nline 5..\n");
    assert_eq!(file.counts().files_removed, 2);
    assert_eq!(file.counts().bytes, 10 * 9);
}

#[test]
fn one_batch_may_fill_several_files_and_a_long_line_has_its_own() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = SpanFile::try_new(temp.path(), PID, Rotation { max_bytes: 10, keep: 9 }).unwrap();
    file.append(b"aaaa\nbbbb\ncccc\na line longer than any file\ndddd\n").unwrap();
    let contents = |name: &str| fs::read_to_string(temp.path().join(name)).unwrap();
    assert_eq!(contents("77.3.json"), "aaaa\nbbbb\n");
    assert_eq!(contents("77.2.json"), "cccc\n");
    assert_eq!(contents("77.1.json"), "a line longer than any file\n");
    assert_eq!(read(temp.path()), "dddd\n");
}

#[test]
fn rotation_fills_a_gap_instead_of_widening_it() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("77.2.json"), "old\n").unwrap();
    let mut file = SpanFile::try_new(temp.path(), PID, Rotation { max_bytes: 6, keep: 3 }).unwrap();
    file.append(b"one\n").unwrap();
    file.append(b"two\n").unwrap();
    assert_eq!(names(temp.path()), ["77.1.json", "77.2.json", "77.json"]);
    assert_eq!(fs::read_to_string(temp.path().join("77.2.json")).unwrap(), "old\n");
}

/// Bytes that a file has on the disk beyond its end, but for what rounding to blocks adds.
fn ahead(path: &Path) -> u64 {
    let found = fs::metadata(path).unwrap();
    (found.blocks() * 512).saturating_sub(found.len().next_multiple_of(64 << 10))
}

#[test]
fn a_file_that_grows_long_has_space_ahead_and_gives_it_back_when_it_is_closed_or_rotated() {
    let temp = tempfile::tempdir().unwrap();
    let mut probe = tempfile::tempfile_in(temp.path()).unwrap();
    let can_have = rustix::fs::fallocate(&mut probe, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1 << 20).is_ok();
    let line = format!("{}\n", "x".repeat(999));
    let mut file = SpanFile::try_new(temp.path(), PID, Rotation { max_bytes: 1_000_000, keep: 2 }).unwrap();
    let mut appended = 0;
    let mut append_until = |file: &mut SpanFile, end: usize| {
        while appended < end {
            file.append(line.as_bytes()).unwrap();
            appended += line.len();
            assert_eq!(fs::metadata(file.path()).unwrap().len() as usize, (appended - 1) % 1_000_000 + 1);
        }
        ahead(&file.path())
    };
    assert_eq!(append_until(&mut file, 100_000), 0, "most files stay short");
    for end in [200_000, 600_000] {
        assert_eq!(append_until(&mut file, end) > 0, can_have);
        file.close();
        assert_eq!(ahead(&file.path()), 0);
        assert_eq!(read(temp.path()).len(), end);
    }
    append_until(&mut file, 1_200_000);
    let rotated = temp.path().join("77.1.json");
    assert_eq!(ahead(&rotated), 0);
    assert_eq!(fs::read_to_string(rotated).unwrap(), line.repeat(1_000));
    assert_eq!(read(temp.path()), line.repeat(200));
}

#[test]
fn blocks_of_large_files_are_freed_by_a_thread_that_nobody_waits_for() {
    let temp = tempfile::tempdir().unwrap();
    let mut file = SpanFile::try_new(temp.path(), PID, Rotation { max_bytes: 2 << 20, keep: 1 }).unwrap();
    let lines = format!("{}\n", "x".repeat(1023)).repeat(2 << 10);
    for _ in 0..2 {
        file.append(lines.as_bytes()).unwrap();
    }
    let oldest = fs::File::open(temp.path().join("77.1.json")).unwrap();
    file.append(b"next\n").unwrap();
    let kept = temp.path().join("77.1.json");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while ahead(&kept) > 0 {
        assert!(std::time::Instant::now() < deadline, "a rotated file has {} bytes ahead", ahead(&kept));
        std::thread::yield_now();
    }
    assert_eq!(names(temp.path()), ["77.1.json", "77.json"]);
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&oldest.metadata().unwrap()), 0, "it is removed at once");
    assert_eq!(fs::read_to_string(kept).unwrap(), lines);
    assert_eq!(read(temp.path()), "next\n");
}

#[test]
fn a_file_or_folder_removed_meanwhile_is_made_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("spans");
    let mut file = file_in(&dir);
    file.append(b"first\n").unwrap();
    fs::remove_file(file.path()).unwrap();
    file.append(b"second\n").unwrap();
    assert_eq!(read(&dir), "second\n");
    fs::remove_dir_all(&dir).unwrap();
    file.append(b"third\n").unwrap();
    assert_eq!(read(&dir), "third\n");
    let mut unopened = file_in(&dir);
    fs::remove_dir_all(&dir).unwrap();
    unopened.append(b"fourth\n").unwrap();
    assert_eq!(read(&dir), "fourth\n");
}

#[test]
fn a_planted_link_or_pipe_is_not_written_to() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("target");
    symlink(&target, temp.path().join("77.json")).unwrap();
    let error = file_in(temp.path()).append(b"line\n").unwrap_err();
    assert!(error.to_string().contains("is not a regular file of this user"), "{error}");
    assert_eq!(error.consumed(), 0);
    assert!(!target.exists());

    fs::remove_file(temp.path().join("77.json")).unwrap();
    assert!(Command::new("mkfifo").arg(temp.path().join("77.json")).status().unwrap().success());
    let error = file_in(temp.path()).append(b"line\n").unwrap_err();
    assert!(error.to_string().contains("is not a regular file of this user"), "{error}");
}

#[test]
fn a_folder_that_becomes_a_link_is_noticed() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("spans");
    let elsewhere = temp.path().join("elsewhere");
    fs::DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
    let mut file = file_in(&dir);
    fs::remove_dir(&dir).unwrap();
    symlink(&elsewhere, &dir).unwrap();
    let error = file.append(b"line\n").unwrap_err();
    assert!(error.to_string().contains("is a symbolic link"), "{error}");
    assert!(names(&elsewhere).is_empty());
}

/// A disk that takes part of a batch. The limit on the size of files stands for it, because it needs no privilege: the
/// kernel takes what fits and refuses the rest, as it does when a disk is full. The test runs itself again in a shell that
/// sets the limit and ignores the signal that comes with it.
#[test]
fn a_batch_that_does_not_fit_leaves_whole_lines_and_can_be_continued() {
    const FOLDER: &str = "SPAN_FILE_TEST_FOLDER";
    let lines: String = (0..200).map(|number| format!("line {number:03}\n")).collect();
    if let Some(dir) = std::env::var_os(FOLDER) {
        let mut file = file_in(Path::new(&dir));
        let error = file.append(lines.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("cannot be written: File too large"), "{error}");
        let consumed = error.consumed();
        assert!(consumed > 0 && consumed.is_multiple_of(9), "{consumed}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), lines[..consumed]);
        assert_eq!(file.counts().bytes, consumed as u64);
        assert_eq!(file.counts().failures, 1);
        // There is room again.
        fs::rename(file.path(), Path::new(&dir).join("kept")).unwrap();
        fs::write(Path::new(&dir).join("77.json"), "").unwrap();
        let mut file = file_in(Path::new(&dir));
        file.append(&lines.as_bytes()[consumed..][..450]).unwrap();
        file.count_dropped(1);
        assert_eq!(file.counts().lines_dropped, 1);
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_batch_that_does_not_fit_leaves_whole_lines_and_can_be_continued"])
        .env(FOLDER, temp.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(names(temp.path()), ["77.json", "kept"]);
}

/// A disk that is really full, where this user may mount one; elsewhere the test before this one has to do.
#[test]
fn recording_resumes_when_a_full_disk_has_room_again() {
    const FOLDER: &str = "SPAN_FILE_TEST_TMPFS";
    let lines: String = (0..20_000).map(|number| format!("line {number:05}\n")).collect();
    if let Some(dir) = std::env::var_os(FOLDER) {
        let dir = Path::new(&dir);
        fs::write(dir.join("ballast"), vec![0; 40 << 10]).unwrap();
        let mut file = file_in(dir);
        let error = file.append(lines.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error}");
        let consumed = error.consumed();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), lines[..consumed]);
        fs::remove_file(dir.join("ballast")).unwrap();
        file.append(&lines.as_bytes()[consumed..][..1100]).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), lines[..consumed + 1100]);
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=128k none \"$0\" || exit 99; chown \"$(id -u)\" \"$0\"; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", mount])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "recording_resumes_when_a_full_disk_has_room_again"])
        .env(FOLDER, temp.path())
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
            panic!("{}", String::from_utf8_lossy(&output.stdout));
        }
        other => skip::skip("tmpfs", format_args!("{other:?}")),
    }
}
