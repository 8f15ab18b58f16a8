//! The C header is what cbindgen makes of this crate, with the crate's rules and in the names of C; C and C++ compilers take it without a warning.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../../tests/support/skip.rs"]
mod skip;

/// Returns the folder of the header and the settings.
fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(crate_dir().join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let builder = cbindgen::Builder::new().with_src(crate_dir().join("src/lib.rs")).with_config(config);
    let mut header = Vec::new();
    builder.generate().expect("cbindgen understands this crate").write(&mut header);
    for_c(&String::from_utf8(header).expect("a header is UTF-8"))
}

/// Returns the sections of the crate's introduction, which hold for every item, as lines of a C comment.
fn rules() -> String {
    let source = fs::read_to_string(crate_dir().join("src/lib.rs")).expect("the source is there");
    let lines =
        source.lines().map_while(|line| line.strip_prefix("//!")).map(|line| line.strip_prefix(' ').unwrap_or(line));
    let mut rules = String::new();
    for line in lines.skip_while(|line| !line.starts_with("# ")) {
        match line.strip_prefix("# ") {
            Some(title) => rules.push_str(&format!(" * {title}\n * {}\n", "-".repeat(title.len()))),
            None => rules.push_str(format!(" * {line}").trim_end()),
        }
        if !line.starts_with("# ") {
            rules.push('\n');
        }
    }
    rules
}

/// Puts the rules into the first comment, and the names of C into all comments, where cbindgen leaves those of Rust.
fn for_c(header: &str) -> String {
    let header = header.replacen(" */\n", &format!(" *\n{} */\n", rules()), 1);
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: BTreeSet<&str> =
        words.filter(|word| word.starts_with("Tracer") || word.starts_with("TRACER_")).collect();
    let in_c = |name: &str| {
        let (item, field) = name.split_once("::").map_or((name, None), |(item, field)| (item, Some(field)));
        let known =
            [format!("Tracer{item}"), format!("TRACER_{item}")].into_iter().find(|name| names.contains(name.as_str()));
        match (known, field) {
            _ if name == "ENTRY_SYMBOL" => "tracer_module".to_owned(),
            (Some(known), Some(field)) => format!("{known}.{field}"),
            (Some(known), None) => known,
            (None, _) => name.to_owned(),
        }
    };
    let mut text = String::new();
    for line in header.lines() {
        let start = line.trim_start();
        if start.starts_with("//") || start.starts_with("* ") {
            let line = line.replace("[`", "`").replace("`]", "`");
            let parts = line.split('`').enumerate();
            let parts = parts.map(|(index, part)| if index % 2 == 1 { in_c(part) } else { part.to_owned() });
            text.push_str(&parts.collect::<Vec<_>>().join("`"));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_header_has_its_rules_and_no_names_of_rust() {
    let header = generated();
    for rule in 1..=9 {
        assert!(header.contains(&format!("\n * {rule}. ")), "rule {rule} is missing");
    }
    for line in header.lines() {
        assert!(!line.contains("[`") && !line.contains("::"), "{line}");
    }
}

#[test]
fn the_header_is_what_the_crate_says() {
    let path = crate_dir().join("include/tracer_abi.h");
    let checked_in = fs::read_to_string(&path).expect("the header is checked in");
    let generated = generated();
    if checked_in != generated {
        let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tracer_abi.h");
        fs::write(&fresh, &generated).expect("the target folder can be written to");
        panic!(
            "`{}` is not what cbindgen makes of src/lib.rs\n(hint: copy `{}` over it)",
            path.display(),
            fresh.display()
        );
    }
}

#[test]
fn every_name_has_a_prefix() {
    for line in generated().lines() {
        if let Some(name) = line.strip_prefix("#define ") {
            // A constant that cbindgen.toml does not list is `TracerNAME`.
            assert!(name.starts_with("TRACER_"), "{line}");
        }
        if let Some(name) = line.strip_prefix("typedef struct ").or(line.strip_prefix("typedef union ")) {
            assert!(name.starts_with("Tracer"), "{line}");
        }
    }
}

#[test]
fn compilers_take_the_header_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    // Included twice, and used enough to see that the layout is the one that Rust has.
    let source = format!(
        "#include \"tracer_abi.h\"\n#include \"tracer_abi.h\"\n\
         #ifdef __cplusplus\n#define _Static_assert static_assert\n#endif\n\
         _Static_assert(sizeof(TracerModule) == {}, \"TracerModule\");\n\
         _Static_assert(sizeof(TracerTracing) == {}, \"TracerTracing\");\n\
         _Static_assert(sizeof(TracerSpanStart) == {}, \"TracerSpanStart\");\n\
         _Static_assert(sizeof(TracerKeyValue) == {}, \"TracerKeyValue\");\n\
         _Static_assert(sizeof(TracerTaskCall) == {}, \"TracerTaskCall\");\n\
         _Static_assert(sizeof(TracerHost) == {}, \"TracerHost\");\n\
         _Static_assert(sizeof(TracerLogRecord) == {}, \"TracerLogRecord\");\n\
         _Static_assert(sizeof(TracerInstrument) == {}, \"TracerInstrument\");\n\
         _Static_assert(sizeof(TracerMeasurement) == {}, \"TracerMeasurement\");\n\
         _Static_assert(sizeof(TracerServing) == {}, \"TracerServing\");\n\
         _Static_assert(sizeof(TracerRequestHead) == {}, \"TracerRequestHead\");\n\
         _Static_assert(TRACER_MODULE_MAGIC == {}, \"TRACER_MODULE_MAGIC\");\n",
        size_of::<tracer_abi::Module>(),
        size_of::<tracer_abi::Tracing>(),
        size_of::<tracer_abi::SpanStart>(),
        size_of::<tracer_abi::KeyValue>(),
        size_of::<tracer_abi::TaskCall>(),
        size_of::<tracer_abi::Host>(),
        size_of::<tracer_abi::LogRecord>(),
        size_of::<tracer_abi::Instrument>(),
        size_of::<tracer_abi::Measurement>(),
        size_of::<tracer_abi::Serving>(),
        size_of::<tracer_abi::RequestHead>(),
        tracer_abi::MODULE_MAGIC,
    );
    for (name, language, standard) in [("header.c", "c", "-std=c11"), ("header.cpp", "c++", "-std=c++17")] {
        let takes_language = Command::new("cc").args(["-x", language, "-fsyntax-only", "/dev/null"]).output();
        if language == "c++" && !takes_language.is_ok_and(|output| output.status.success()) {
            skip::skip("c++", "`cc` compiles no C++");
            continue;
        }
        let path = temp.path().join(name);
        fs::write(&path, &source).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
        let output = compiler.arg(crate_dir().join("include")).arg(&path).output().expect("there is a C compiler");
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
