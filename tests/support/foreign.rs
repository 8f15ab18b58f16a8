//! Builds the libraries that are not of this workspace: those in C, and those with a workspace or a compiler of their own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::modules::target_dir;
use super::skip::skip;

/// Returns the folder of this package.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles a file in C, named from the root of the repository, to a shared library.
#[track_caller]
pub fn compile_c(source: &str, library: &Path) {
    compile_c_with(source, library, &[]);
}

/// The same with further arguments for the compiler.
#[track_caller]
pub fn compile_c_with(source: &str, library: &Path, further: &[&str]) {
    std::fs::create_dir_all(library.parent().expect("a library is in a folder")).expect("the folder can be made");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread", "-I"])
        .arg(root().join("hooks/abi/include"))
        .arg("-o")
        .arg(library)
        .arg(root().join(source))
        .args(further);
    let output = compiler.output().unwrap_or_else(|error| panic!("{compiler:?} cannot be run: {error}"));
    assert!(output.status.success(), "{compiler:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a package of `tests/fixtures/standalone` with a toolchain, or the one of the tests for an empty name. Returns the
/// folder of its library; none, which skips the test, when there is no such toolchain.
#[track_caller]
pub fn build_standalone(package: &str, toolchain: &str) -> Option<PathBuf> {
    // The folder of each build; two tests that need the same one build it once.
    static BUILT: Mutex<Option<HashMap<(String, String), PathBuf>>> = Mutex::new(None);
    if !toolchain.is_empty() && !is_installed(toolchain) {
        skip("toolchain", format_args!("`{toolchain}` is not installed"));
        return None;
    }
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let key = (package.to_owned(), toolchain.to_owned());
    if let Some(folder) = built.get(&key) {
        return Some(folder.clone());
    }
    let target = target_dir().join("standalone").join(if toolchain.is_empty() { "default" } else { toolchain });
    let build = |flags: &[&str]| -> Result<(), String> {
        let mut cargo = match toolchain {
            "" => Command::new(env!("CARGO")),
            _ => Command::new("cargo"),
        };
        if !toolchain.is_empty() {
            cargo.arg(format!("+{toolchain}"));
        }
        cargo.args(["build", "--quiet", "--locked", "--manifest-path"]);
        cargo.arg(root().join("tests/fixtures/standalone").join(package).join("Cargo.toml"));
        cargo.arg("--target-dir").arg(&target).args(flags);
        forget_the_build(&mut cargo, !toolchain.is_empty());
        let output = cargo.output().map_err(|error| format!("{cargo:?} cannot be run: {error}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{cargo:?}\n{stderr}")) }
    };
    // What is there is used as it is; the registry is asked only when something was never fetched.
    if let Err(reason) = build(&["--offline"]).or_else(|_| build(&[])) {
        panic!("`{package}` cannot be built:\n{reason}");
    }
    let folder = target.join("debug");
    built.insert(key, folder.clone());
    Some(folder)
}

/// Takes what the build of the tests was told out of the environment of a cargo; its compiler too, for one that has a choice of its own.
fn forget_the_build(cargo: &mut Command, has_toolchain: bool) {
    for (name, _) in std::env::vars_os() {
        let is_of_the_build = |name: &str| {
            let prefixes = ["CARGO_PKG_", "CARGO_BIN_EXE_", "CARGO_MANIFEST_"];
            let names = ["RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"];
            let is_choice = has_toolchain && names.contains(&name);
            is_choice || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        if name.to_str().is_some_and(is_of_the_build) {
            cargo.env_remove(name);
        }
    }
}

/// Runs a subcommand of cargo on a crate that a test has made, with the versions of this workspace. What it builds goes to the folder that
/// is returned.
#[track_caller]
pub fn cargo_on_new_crate(folder: &Path, subcommand: &str) -> PathBuf {
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("the crate's folder is the test's");
    let target = target_dir().join("standalone").join("default");
    let run = |flags: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.arg(subcommand).arg("--quiet").arg("--target-dir").arg(&target).args(flags).current_dir(folder);
        forget_the_build(&mut cargo, false);
        let output = cargo.output().unwrap_or_else(|error| panic!("{cargo:?} cannot be run: {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{cargo:?}\n{stderr}")) }
    };
    // What is there is used as it is; the registry is asked only when something was never fetched.
    if let Err(reason) = run(&["--offline"]).or_else(|_| run(&[])) {
        panic!("{reason}");
    }
    target.join("debug")
}

fn is_installed(toolchain: &str) -> bool {
    let mut cargo = Command::new("cargo");
    cargo.arg(format!("+{toolchain}")).arg("--version").env_remove("RUSTUP_TOOLCHAIN");
    // A test installs nothing.
    cargo.env("RUSTUP_AUTO_INSTALL", "0");
    cargo.output().is_ok_and(|output| output.status.success())
}
