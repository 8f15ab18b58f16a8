//! Facts of a shared library that tracer reads without loading it: whether the file is complete, which libraries it needs from its own
//! folder, and the id that its linker gave it.
//!
//! Read are files of the system's own kind: ELF of 64 bits, little-endian. Of any other nothing is known, and the loader decides.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Facts from a library's file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Library {
    /// The build id that the linker noted, in hexadecimal digits; empty for none.
    pub(super) build_id: String,
    /// The names of the libraries that it needs.
    pub(super) needed: Vec<String>,
    /// Folders in which the loader looks for them: `DT_RUNPATH`, or else `DT_RPATH`.
    pub(super) search: Vec<String>,
    /// True if that is also where what those libraries need is looked for: so it is with `DT_RPATH`.
    pub(super) is_inherited: bool,
}

/// Reason why a file cannot be read as a library.
#[derive(Debug)]
pub(super) enum ElfError {
    /// It is no library of this system.
    Foreign,
    /// A part of it is missing, as a clause that fits after "it".
    Incomplete(String),
    /// It cannot be read.
    Io(io::Error),
}

impl From<io::Error> for ElfError {
    fn from(error: io::Error) -> ElfError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ElfError::Incomplete("ends before its tables do".into()),
            _ => ElfError::Io(error),
        }
    }
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NOTE: u32 = 4;

const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;
const STRING_TABLE_SIZE: u64 = 10;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

const GNU_BUILD_ID: u32 = 3;

/// Tables beyond this are not those of a library.
const TABLE_LIMIT: u64 = 64 << 20;

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn read(file: &File, offset: u64, size: u64) -> Result<Vec<u8>, ElfError> {
    if size > TABLE_LIMIT {
        return Err(ElfError::Incomplete("has tables of an impossible size".into()));
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

impl Library {
    /// Reads the tables of a file that nobody writes to.
    pub(super) fn read(file: &File) -> Result<Library, ElfError> {
        const HEADER: u64 = 64;
        let length = file.metadata()?.len();
        let header = read(file, 0, HEADER.min(length))?;
        let magic = &header[..header.len().min(4)];
        if magic.iter().all(|&byte| byte == 0) {
            // What is written through a mapping begins as zeroes.
            return Err(ElfError::Incomplete(if length == 0 {
                "is empty".into()
            } else {
                "begins with zeroes".into()
            }));
        }
        if !b"\x7fELF".starts_with(magic) {
            return Err(ElfError::Foreign);
        }
        if length < HEADER {
            return Err(ElfError::Incomplete(format!("has {length} bytes, and its header alone has {HEADER}")));
        }
        if header[4..6] != [2, 1] {
            return Err(ElfError::Foreign);
        }
        let (segments_at, sections_at) = (u64_at(&header, 32), u64_at(&header, 40));
        let (segment_size, segment_count) = (u16_at(&header, 54), u16_at(&header, 56));
        let (section_size, section_count) = (u16_at(&header, 58), u16_at(&header, 60));
        if segment_count == 0 || segment_size < 56 {
            return Err(ElfError::Incomplete("has no table of segments".into()));
        }
        let check = |end: Option<u64>, what: &str| match end {
            Some(end) if end <= length => Ok(()),
            Some(end) => Err(ElfError::Incomplete(format!("has {length} bytes, but its {what} end at byte {end}"))),
            None => Err(ElfError::Incomplete(format!("has {what} beyond any file"))),
        };
        check(segments_at.checked_add(segment_size * segment_count), "segments' tables")?;
        check(sections_at.checked_add(section_size * section_count), "sections' tables")?;
        let table = read(file, segments_at, segment_size * segment_count)?;
        let segments: Vec<_> = table
            .chunks_exact(segment_size as usize)
            .map(|entry| Segment {
                kind: u32_at(entry, 0),
                offset: u64_at(entry, 8),
                address: u64_at(entry, 16),
                size: u64_at(entry, 32),
            })
            .collect();
        for segment in &segments {
            check(segment.offset.checked_add(segment.size), "segments")?;
        }
        let mut library = Library::default();
        if let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC) {
            library.read_dynamic(file, *dynamic, &segments)?;
        }
        for note in segments.iter().filter(|segment| segment.kind == NOTE) {
            let notes = read(file, note.offset, note.size)?;
            if let Some(id) = build_id(&notes) {
                library.build_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
            }
        }
        Ok(library)
    }

    fn read_dynamic(&mut self, file: &File, dynamic: Segment, segments: &[Segment]) -> Result<(), ElfError> {
        let entries = read(file, dynamic.offset, dynamic.size)?;
        let entries: Vec<_> = entries.chunks_exact(16).map(|entry| (u64_at(entry, 0), u64_at(entry, 8))).collect();
        let entries: Vec<_> = entries.into_iter().take_while(|&(tag, _)| tag != 0).collect();
        let first = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|&(_, value)| value);
        let (Some(address), Some(size)) = (first(STRING_TABLE), first(STRING_TABLE_SIZE)) else { return Ok(()) };
        let holds = |segment: &&Segment| {
            segment.kind == LOAD && address.checked_sub(segment.address).is_some_and(|into| into < segment.size)
        };
        let Some(segment) = segments.iter().find(holds) else { return Ok(()) };
        let strings = read(file, segment.offset + (address - segment.address), size)?;
        let text = |at: u64| {
            let rest = strings.get(usize::try_from(at).unwrap_or(usize::MAX)..).unwrap_or_default();
            let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
            String::from_utf8_lossy(&rest[..end]).into_owned()
        };
        self.needed = entries.iter().filter(|(tag, _)| *tag == NEEDED).map(|&(_, at)| text(at)).collect();
        // The loader heeds the older one only where the newer one is not there.
        let (search, is_inherited) = match (first(RUNPATH), first(RPATH)) {
            (Some(at), _) => (text(at), false),
            (None, Some(at)) => (text(at), true),
            (None, None) => return Ok(()),
        };
        self.search = search.split(':').map(str::to_owned).collect();
        self.is_inherited = is_inherited;
        Ok(())
    }
}

/// Returns the build id among notes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    let padded = |size: u32| (size as usize).next_multiple_of(4);
    while notes.len() >= 12 {
        let (name_size, size, kind) = (u32_at(notes, 0), u32_at(notes, 4), u32_at(notes, 8));
        let rest = &notes[12..];
        let name = rest.get(..name_size as usize)?;
        let after = rest.get(padded(name_size)..)?;
        if (name, kind) == (b"GNU\0", GNU_BUILD_ID) {
            return after.get(..size as usize);
        }
        notes = after.get(padded(size)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn own_executable() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    fn read_bytes(bytes: &[u8]) -> Result<Library, ElfError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Library::read(&file)
    }

    #[test]
    fn a_library_is_complete_with_its_last_byte_and_not_before() {
        let whole = own_executable();
        let library = read_bytes(&whole).unwrap();
        assert!(library.needed.iter().any(|name| name.starts_with("libc.so")), "{library:?}");
        for length in [0, 1, 3, 4, 63, 64, 100, whole.len() / 2, whole.len() - 1] {
            match read_bytes(&whole[..length]) {
                Err(ElfError::Incomplete(_)) => {}
                other => panic!("with {length} bytes: {other:?}"),
            }
        }
        let zeroes = vec![0; whole.len()];
        assert!(matches!(read_bytes(&zeroes), Err(ElfError::Incomplete(_))), "as through a mapping");
    }

    #[test]
    fn nothing_is_known_of_other_files() {
        let mut of_32_bits = own_executable();
        of_32_bits[4] = 1;
        for foreign in [&b"#!/bin/sh\necho"[..], b"\x7fEXE", b"INPUT(libother.so)", &of_32_bits] {
            assert!(matches!(read_bytes(foreign), Err(ElfError::Foreign)));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_fail_otherwise() {
        let whole = own_executable();
        let mut state = 1_u64;
        for _ in 0..2_000 {
            let mut bytes = whole[..4096].to_vec();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % 1024;
                bytes[at] = (state >> 20) as u8;
            }
            let _ = read_bytes(&bytes);
        }
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let mut notes = Vec::new();
        let mut put = |name: &[u8], kind: u32, body: &[u8]| {
            for number in [name.len() as u32, body.len() as u32, kind] {
                notes.extend(number.to_le_bytes());
            }
            notes.extend(name);
            notes.resize(notes.len().next_multiple_of(4), 0);
            notes.extend(body);
            notes.resize(notes.len().next_multiple_of(4), 0);
        };
        put(b"GNU\0", 5, &[1; 6]);
        put(b"other\0", 3, &[2; 3]);
        put(b"GNU\0", 3, &[0xab, 0xcd]);
        assert_eq!(build_id(&notes), Some(&[0xab, 0xcd][..]));
        for length in 0..notes.len() {
            let _ = build_id(&notes[..length]);
        }
    }
}
