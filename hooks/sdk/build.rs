//! Finds out which compiler builds the SDK, so that a module can say so in its record.

use std::env;
use std::process::Command;

fn main() {
    // Cargo runs this again whenever the compiler changes, whatever is said here about files.
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=TRACER_SDK_RUSTC={}", rustc().unwrap_or_else(|| "rustc of unknown version".to_owned()));
}

/// Returns the first two words of `rustc --version`, such as `rustc 1.95.0`.
fn rustc() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut words = text.split_whitespace();
    Some(format!("{} {}", words.next()?, words.next()?))
}
