//! `tracer new`: a crate with a task module that builds.

use std::fs;
use std::path::{Path, PathBuf};

use tracer_core::exit;

use super::{CommandError, CommandResult, report};

/// Make a task module: a crate that builds, with a task and its test
///
/// The crate depends on `tracer-sdk` by its path: that of --sdk or TRACER_SDK, else `hooks/sdk` of the clone that this tracer was built in.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer new shop --actor --hook")]
pub(super) struct Args {
    /// The folder to make; its last part is the name of the module
    #[arg(value_name = "NAME")]
    path: PathBuf,
    /// Add an actor
    #[arg(long)]
    actor: bool,
    /// Add a hook that sets up tracing: to the span file, under a service name of its own
    #[arg(long)]
    hook: bool,
    /// The folder of the crate `tracer-sdk`
    #[arg(long, value_name = "DIR", env = "TRACER_SDK", value_parser = super::path_parser())]
    sdk: Option<PathBuf>,
}

/// Names that cargo or the compiler refuses for a library.
const RESERVED: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

const TASKS: &str = include_str!("new/tasks.rs.txt");
const ACTOR: &str = include_str!("new/actor.rs.txt");
const HOOK: &str = include_str!("new/hook.rs.txt");
const TESTS: &str = include_str!("new/tests.rs.txt");

pub(super) fn run(args: &Args) -> CommandResult {
    let usage = |text: String| CommandError::new(exit::USAGE, text);
    let name = name_of(&args.path).map_err(usage)?;
    let sdk = sdk(args.sdk.as_deref()).map_err(usage)?;
    if args.path.symlink_metadata().is_ok() {
        let path = args.path.display();
        return Err(usage(format!(
            "`{path}` is there already, and nothing in it was changed (hint: choose another name)"
        )));
    }
    let failed = |path: &Path, error| {
        CommandError::new(exit::FAILED, format!("`{}` cannot be written: {error}", path.display()))
    };
    let source = args.path.join("src");
    fs::create_dir_all(&source).map_err(|error| failed(&source, error))?;
    let files = [
        ("Cargo.toml", manifest(&name, &sdk, args.hook)),
        ("src/lib.rs", library(args)),
        (".gitignore", "/target\n".to_owned()),
    ];
    for (file, text) in files {
        let path = args.path.join(file);
        fs::write(&path, text.replace("MODULE", &name)).map_err(|error| failed(&path, error))?;
    }
    report::text(&next_steps(args, &name));
    Ok(exit::OK)
}

/// Returns the name of the module in this folder, or what is wrong with it.
fn name_of(path: &Path) -> Result<String, String> {
    let text = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = text.replace('-', "_");
    let is_letter = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_name = name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit());
    if !is_name || name.chars().all(|c| c == '_') {
        return Err(format!(
            "`{text}` cannot be the name of a module: expected lower-case letters, digits, `_` and `-`, with a letter first, such as `my_tasks`"
        ));
    }
    if RESERVED.contains(&name.as_str()) {
        return Err(format!(
            "`{text}` cannot be the name of a module: Rust has another meaning for it (hint: `{name}_tasks`)"
        ));
    }
    if name == "demo" {
        return Err("`demo` is the module that is built into tracer (hint: choose another name)".to_owned());
    }
    Ok(name)
}

/// Returns the folder of `tracer-sdk`. Absolute.
fn sdk(said: Option<&Path>) -> Result<PathBuf, String> {
    let is_sdk = |folder: &Path| {
        fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|text| text.contains("name = \"tracer-sdk\""))
    };
    if let Some(said) = said.filter(|path| !path.as_os_str().is_empty()) {
        let folder = fs::canonicalize(said).map_err(|error| format!("`--sdk {}`: {error}", said.display()))?;
        return match is_sdk(&folder) {
            true => Ok(folder),
            false => Err(format!(
                "`--sdk {}`: expected the folder of the crate `tracer-sdk`, which is `hooks/sdk` in a clone of tracer; it has no such Cargo.toml",
                said.display()
            )),
        };
    }
    let executable = std::env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
    // An executable that was installed is elsewhere than the clone that it was built in.
    let clones = executable.ancestors().skip(1).chain([Path::new(env!("CARGO_MANIFEST_DIR"))]);
    let found = clones.map(|clone| clone.join("hooks").join("sdk")).find(|folder| is_sdk(folder));
    found.ok_or_else(|| {
        format!(
            "the crate `tracer-sdk` was not found: neither above `{}` nor in `{}`, where this tracer was built\n\
             (hint: name it with --sdk CLONE/hooks/sdk, or in TRACER_SDK)",
            executable.display(),
            env!("CARGO_MANIFEST_DIR")
        )
    })
}

fn manifest(name: &str, sdk: &Path, has_hook: bool) -> String {
    let path = |folder: &Path| toml_text(&folder.display().to_string());
    let mut text = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\npublish = false\n\n\
         [lib]\ncrate-type = [\"cdylib\"]\n\n[dependencies]\n\
         opentelemetry = {{ version = \"0.33\", default-features = false, features = [\"trace\"] }}\n"
    );
    if has_hook {
        let file = sdk.with_file_name("local_tmp_tracing");
        text += "opentelemetry_sdk = { version = \"0.33\", default-features = false, features = [\"trace\"] }\n";
        text += &format!("tracer-local-tmp-tracing = {{ path = {} }}\n", path(&file));
        text += &format!("tracer-sdk = {{ path = {}, features = [\"hooks\"] }}\n", path(sdk));
    } else {
        text += &format!("tracer-sdk = {{ path = {} }}\n", path(sdk));
    }
    // Without it, cargo refuses a crate below another one's workspace.
    text + "\n# Remove this to make it a member of a workspace above.\n[workspace]\n"
}

/// Writes a basic string of TOML.
fn toml_text(text: &str) -> String {
    // JSON has the same escapes.
    serde_json::Value::from(text).to_string()
}

fn library(args: &Args) -> String {
    let mut parts = vec![TASKS];
    parts.extend(args.actor.then_some(ACTOR));
    parts.extend(args.hook.then_some(HOOK));
    parts.push(TESTS);
    parts.join("\n")
}

fn next_steps(args: &Args, name: &str) -> String {
    let folder = args.path.display();
    let library = format!("./target/debug/lib{name}.so");
    let hook =
        if args.hook { format!("{library}:setup_tracing") } else { "local_tmp_tracing:setup_tracing".to_owned() };
    let mut text = format!("made the task module `{name}` in `{folder}`\n\nNext:\n  cd {folder}\n  cargo build\n");
    text += &format!("  tracer start --head --tracing-startup-hook={hook}\n");
    text += &format!("  tracer submit task {library}:greet '\"world\"'\n");
    if args.actor {
        text += &format!("  tracer submit actor {library}:Counter 40 --name hits\n  tracer submit call hits add 2\n");
    }
    text + "  tracer trace show last\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_a_library_can_have() {
        for (path, expected) in [("shop", "shop"), ("a/b/my-tasks", "my_tasks"), ("_x1", "_x1"), ("./shop/", "shop")] {
            assert_eq!(name_of(Path::new(path)).as_deref(), Ok(expected));
        }
        for path in ["", "/", "..", "Shop", "1st", "a b", "a.b", "__", "ä", "match", "std", "demo", "proc-macro"] {
            assert!(name_of(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn a_path_with_quotes_is_a_text_of_toml() {
        assert_eq!(toml_text(r#"/a "b"\c"#), r#""/a \"b\"\\c""#);
    }
}
