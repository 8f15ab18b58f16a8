//! The header as it was at the first commit of ABI 1.5 (`headers/abi_1_5.h`): what was built with it fits today's host, because every field and every
//! constant is where and what it was. Records only grow at their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the names of a header: each struct's fields as `Struct.field`, and constants.
fn names(header: &str) -> BTreeSet<String> {
    let without_comments: String =
        header.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for definition in without_comments.split("\ntypedef struct ").skip(1) {
        let Some((fields, rest)) = definition.split_once('{').and_then(|(_, body)| body.split_once("\n}")) else {
            continue;
        };
        let name = rest.split(';').next().unwrap_or_default().trim();
        for field in fields.split(';').filter(|field| !field.trim().is_empty()) {
            let field = match field.split_once("(*") {
                Some((_, pointer)) => pointer.split(')').next(),
                None => field.split('[').next().and_then(|field| field.split([' ', '*', '\n']).next_back()),
            };
            names.insert(format!("{name}.{}", field.expect("a field has a name")));
        }
    }
    let constants =
        header.lines().filter_map(|line| line.strip_prefix("#define TRACER_")).filter(|line| line.contains(' '));
    names.extend(constants.filter_map(|line| Some(format!("TRACER_{}", line.split(' ').next()?))));
    names
}

/// Returns the offset and size of each of the fields, and the value of each constant, as the C compiler lays them out.
fn layout(dir: &Path, header: &Path, names: &BTreeSet<String>) -> BTreeMap<String, String> {
    let lines = names.iter().map(|name| match name.split_once('.') {
        Some((record, field)) => format!(
            "printf(\"{name} at %zu, %zu bytes\\n\", offsetof({record}, {field}), sizeof((({record} *)0)->{field}));\n"
        ),
        None => format!("printf(\"{name} is %lld\\n\", (long long)({name}));\n"),
    });
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n{}return 0;\n}}\n",
        header.display(),
        lines.collect::<String>()
    );
    let (file, program) = (dir.join("layout.c"), dir.join("layout"));
    fs::write(&file, source).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&file).output().expect("there is a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    printed.lines().filter_map(|line| line.split_once(' ')).map(|(name, at)| (name.into(), at.into())).collect()
}

#[test]
fn all_that_1_5_had_is_where_it_was() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let (then, now) = (folder.join("tests/headers/abi_1_5.h"), folder.join("include/tracer_abi.h"));
    let mut names = names(&fs::read_to_string(&then).unwrap());
    // What tells them apart.
    assert!(names.remove("TRACER_ABI_MINOR"));
    assert!(names.len() > 200 && names.contains("TracerModule.magic") && names.contains("TracerTracing.span_start"));
    let temp = tempfile::tempdir().unwrap();
    let (then, now) = (layout(temp.path(), &then, &names), layout(temp.path(), &now, &names));
    assert_eq!(then.len(), names.len());
    let moved: Vec<_> = then.iter().filter(|(name, was)| now.get(*name) != Some(was)).collect();
    assert!(moved.is_empty(), "{moved:#?}");
}
