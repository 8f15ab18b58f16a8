//! Versions of the crate `opentelemetry` that a library holds.
//!
//! Each version is a crate of its own, with globals of its own, and the SDK's proxy serves those that its features name. Spans of another one
//! go nowhere, and neither the compiler nor the module's own record can tell. But the crate's sources are named in the texts of its panics,
//! `…/opentelemetry-0.30.0/src/context.rs`, which a stripped release build keeps too. A build that trims its paths hides them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memchr::memmem;
use serde::{Deserialize, Serialize};

/// A version as far as crates of OpenTelemetry are told apart by it: `0.33`, or `1` from 1.0 on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OtelVersion(String);

impl fmt::Display for OtelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says in a `producer` which version the module's hooks describe their tracing with.
const OF_HOOKS: &str = "hooks on opentelemetry ";
/// Begins the folder of the crate's sources, as cargo unpacks them.
const FOLDER: &[u8] = b"/opentelemetry-";
/// Upper bound of what is read of a library.
const READ_LIMIT: u64 = 256 << 20;
/// Bytes that are read together.
const CHUNK: usize = 1 << 20;
/// Longer than any name of the folder with its version and `/src/`.
const OVERLAP: usize = 64;

/// Returns the versions of OpenTelemetry that are in a library and not among those that its SDK serves, as its `producer` says. Empty
/// for a library that does not say what it serves, as one in C.
pub(super) fn unserved(library: &Path, producer: &str) -> Vec<OtelVersion> {
    let served: BTreeSet<OtelVersion> = producer
        .split(", ")
        .filter_map(|part| part.strip_prefix("opentelemetry ").or_else(|| part.strip_prefix(OF_HOOKS)))
        .map(|version| OtelVersion(version.to_owned()))
        .collect();
    if !producer.starts_with("tracer-sdk ") {
        return Vec::new();
    }
    // A library that cannot be read has been loaded all the same; nothing is known of it.
    let held = held(library).unwrap_or_default();
    held.difference(&served).cloned().collect()
}

/// Returns what is to be said of versions that are not served: which spans are lost, and what helps.
pub fn advice(unserved: &[OtelVersion], producer: &str) -> String {
    let list = |versions: &mut dyn Iterator<Item = String>| versions.collect::<Vec<_>>().join(" and ");
    let held = list(&mut unserved.iter().map(ToString::to_string));
    let served = list(&mut producer.split(", ").filter_map(|part| part.strip_prefix("opentelemetry ").map(Into::into)));
    let features: Vec<String> = unserved
        .iter()
        .filter(|version| SERVABLE.contains(&version.0.as_str()))
        .map(|version| format!("`otel-{}`", version.0.replace('.', "-")))
        .collect();
    let served = if served.is_empty() { "no version of it".to_owned() } else { format!("{served} only") };
    let help = if features.is_empty() {
        let newest = SERVABLE[0];
        format!("depend on `opentelemetry` {newest}")
    } else {
        format!(
            "build with the feature {} of `tracer-sdk`, or depend on `opentelemetry` {}",
            features.join(" and "),
            SERVABLE[0]
        )
    };
    format!(
        "it holds `opentelemetry` {held}, and its `tracer-sdk` serves {served}: spans made with {held} are lost\n(hint: {help})"
    )
}

/// The versions for which the SDK has a feature, the newest first.
const SERVABLE: [&str; 3] = ["0.33", "0.32", "0.31"];

/// Returns the versions that the read-only parts of a library name.
fn held(library: &Path) -> io::Result<BTreeSet<OtelVersion>> {
    let file = File::open(library)?;
    let mut versions = BTreeSet::new();
    let mut buffer = vec![0; CHUNK + OVERLAP];
    for (start, len) in parts(&file)? {
        let end = start.saturating_add(len.min(READ_LIMIT));
        let mut at = start;
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let read = file.read_at(&mut buffer[..wanted], at)?;
            if read == 0 {
                break;
            }
            collect(&buffer[..read], &mut versions);
            if read < buffer.len() {
                at += read as u64;
            } else {
                // What lies across the end is seen whole the next time.
                at += CHUNK as u64;
            }
        }
    }
    Ok(versions)
}

fn collect(bytes: &[u8], versions: &mut BTreeSet<OtelVersion>) {
    for at in memmem::find_iter(bytes, FOLDER) {
        if let Some(version) = version(&bytes[at + FOLDER.len()..]) {
            versions.insert(version);
        }
    }
}

/// Reads `0.33.1/src/`.
fn version(bytes: &[u8]) -> Option<OtelVersion> {
    let end = bytes.iter().take(OVERLAP).position(|&byte| byte == b'/')?;
    if !bytes[end..].starts_with(b"/src/") {
        return None;
    }
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    // `opentelemetry-proto-0.33.1` is another crate, and what follows a `-` or `+` tells versions of one crate apart.
    let mut numbers = text.split(['-', '+']).next()?.split('.').map(|number| number.parse::<u32>().ok());
    let (major, minor, _patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(OtelVersion(if major == 0 { format!("0.{minor}") } else { major.to_string() }))
}

/// Returns where an ELF file of 64 bits has what is loaded and not written to: its code and constants, and not what is for debuggers. The
/// whole file where it is another.
fn parts(file: &File) -> io::Result<Vec<(u64, u64)>> {
    const LOADED: u32 = 1;
    const WRITABLE: u32 = 2;
    let len = file.metadata()?.len();
    let mut header = [0; 64];
    if file.read_exact_at(&mut header, 0).is_err() || header[..5] != *b"\x7fELF\x02" {
        return Ok(vec![(0, len)]);
    }
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let half = |bytes: &[u8], at: usize| u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (table, entry_len, count) = (number(&header, 32), half(&header, 54), half(&header, 56));
    let mut parts = Vec::new();
    for index in 0..count {
        let mut entry = [0; 56];
        if entry_len < 56 || file.read_exact_at(&mut entry, table.saturating_add(index * entry_len)).is_err() {
            return Ok(vec![(0, len)]);
        }
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        if word(0) == LOADED && word(4) & WRITABLE == 0 {
            parts.push((number(&entry, 8), number(&entry, 32)));
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(bytes: &[u8]) -> Vec<String> {
        let mut versions = BTreeSet::new();
        collect(bytes, &mut versions);
        versions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_sources_of_the_crate_tell_its_version() {
        let registry = "/home/a/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        let texts = [
            format!("{registry}/opentelemetry-0.30.0/src/context.rs"),
            format!("{registry}/opentelemetry-0.33.1/src/global/trace.rs"),
            format!("{registry}/opentelemetry-0.33.1/src/context.rs"),
            format!("{registry}/opentelemetry-1.2.0-rc.1/src/lib.rs"),
            format!("{registry}/opentelemetry-proto-0.29.1/src/lib.rs"),
            format!("{registry}/opentelemetry_sdk-0.28.1/src/lib.rs"),
            format!("{registry}/opentelemetry-0.27.1/tests/src"),
            "/opentelemetry-0.26".to_owned(),
            "/opentelemetry-".to_owned(),
        ];
        assert_eq!(versions(texts.join("\0").as_bytes()), ["0.30", "0.33", "1"]);
    }

    #[test]
    fn what_lies_across_two_pieces_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lib.so");
        let text = b"/opentelemetry-0.30.0/src/context.rs";
        for before in [0, CHUNK - 1, CHUNK - text.len() + 1, CHUNK + OVERLAP - 3, 2 * CHUNK + 5] {
            let mut bytes = vec![b'x'; before];
            bytes.extend_from_slice(text);
            bytes.resize(bytes.len() + 100, b'x');
            std::fs::write(&path, &bytes).expect("it can be written");
            assert_eq!(unserved(&path, "tracer-sdk 1, opentelemetry 0.33, rustc 1").len(), 1, "{before}");
            assert_eq!(unserved(&path, "tracer-sdk 1, opentelemetry 0.30, rustc 1").len(), 0, "{before}");
            assert_eq!(unserved(&path, "a C compiler").len(), 0, "{before}");
        }
    }

    #[test]
    fn the_advice_names_a_feature_where_there_is_one() {
        let of = |version: &str, producer| advice(&[OtelVersion(version.into())], producer);
        assert_eq!(
            of("0.31", "tracer-sdk 1, opentelemetry 0.33, rustc 1"),
            "it holds `opentelemetry` 0.31, and its `tracer-sdk` serves 0.33 only: spans made with 0.31 are lost\n\
             (hint: build with the feature `otel-0-31` of `tracer-sdk`, or depend on `opentelemetry` 0.33)"
        );
        assert_eq!(
            of("0.30", "tracer-sdk 1, rustc 1"),
            "it holds `opentelemetry` 0.30, and its `tracer-sdk` serves no version of it: spans made with 0.30 are lost\n\
             (hint: depend on `opentelemetry` 0.33)"
        );
    }
}
