//! Builds the libraries that the tests load, so that they are beside the executable under test, and the programs that they run.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

/// Returns the folder of the executable under test, and of the libraries that are built with it.
pub fn module_folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tracer")).parent().expect("an executable is in a folder")
}

/// Returns the folder of the libraries of `tests/fixtures`. They are examples, which cargo puts into a folder of their own: they are not among the modules and
/// hooks of somebody who has built tracer, and `cargo build --workspace` does without them. No name is looked for there unless `TRACER_MODULE_PATH` says so.
pub fn fixture_folder() -> PathBuf {
    module_folder().join("examples")
}

/// Returns a program that tests run.
pub fn program_path(name: &str) -> PathBuf {
    fixture_folder().join(name)
}

/// Builds the libraries and programs, once for each run of the tests. Returns the folder that they are in.
#[track_caller]
pub fn build_modules() -> &'static Path {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    if let Err(reason) = BUILT.get_or_init(build_once) {
        panic!("the modules cannot be built:\n{reason}");
    }
    module_folder()
}

/// `cargo nextest` runs each test in a process of its own; the first of a run builds, the others wait for it.
fn build_once() -> Result<(), String> {
    let folder = target_dir().join("tmp");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut mark = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(folder.join("modules-built-for"))
        .map_err(|error| error.to_string())?;
    flock(&mark, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    let run_id = std::env::var("NEXTEST_RUN_ID").ok();
    let mut built_for = String::new();
    mark.read_to_string(&mut built_for).map_err(|error| error.to_string())?;
    if run_id.as_ref() == Some(&built_for) {
        return Ok(());
    }
    // As `cargo test --workspace` builds them, so that nothing is built twice with other features. What is there is used as it is; the registry is asked
    // only when something was never fetched.
    build(&["--offline"]).or_else(|_| build(&[]))?;
    mark.set_len(0).and_then(|()| mark.rewind()).map_err(|error| error.to_string())?;
    mark.write_all(run_id.unwrap_or_default().as_bytes()).map_err(|error| error.to_string())
}

fn build(flags: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--workspace", "--lib", "--examples"])
        .args(flags);
    cargo.arg("--target-dir").arg(target_dir());
    let (target, profile) = target_and_profile();
    cargo.args(["--profile", profile]);
    if let Some(target) = target {
        cargo.args(["--target", target]);
    }
    // What cargo set for the package under test is not for the packages built here. Some are built anew when it changes.
    for (name, _) in std::env::vars_os() {
        let is_for_a_package = |name: &str| {
            ["CARGO_PKG_", "CARGO_BIN_EXE_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix))
        };
        if name.to_str().is_some_and(is_for_a_package) {
            cargo.env_remove(name);
        }
    }
    let output = cargo.output().map_err(|error| format!("{cargo:?} cannot be run: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{cargo:?}\n{stderr}")) }
}

pub(super) fn target_dir() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().expect("cargo's folder for temporary files is in the target folder").into()
}

/// The executable is in `<target dir>/[<target>/]<folder of the profile>`.
fn target_and_profile() -> (Option<&'static str>, &'static str) {
    let name = |folder: &'static Path| folder.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let folder = module_folder();
    let profile = match name(folder) {
        "debug" => "dev",
        profile => profile,
    };
    let above = folder.parent().expect("the folder of a profile is in another");
    let is_target_dir = above.canonicalize().ok() == target_dir().canonicalize().ok();
    ((!is_target_dir).then(|| name(above)), profile)
}
