//! The page of invariants in `src/lib.rs` ("What is deliberately not there"): its table names the files that may do something, and the sources
//! agree with it, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The rows of the table, and the words by which a file is known to do what a row is about.
const RIGHTS: [(&str, &[&str]); 8] = [
    ("start processes", &["Command::new(", "libc::fork(", "libc::execve(", "libc::posix_spawn"]),
    ("signal processes", &["kill_process(", "kill_process_group(", "pidfd_send_signal(", "libc::kill(", "child.kill("]),
    (
        "print",
        &[
            "println!",
            "print!",
            "eprintln!",
            "eprint!",
            "dbg!",
            "stdout().lock",
            "stderr().lock",
            "ProgressDrawTarget::stderr(",
        ],
    ),
    ("change the environment of their own process", &["set_var(", "remove_var(", "libc::setenv", "libc::putenv"]),
    ("open shared libraries", &["libloading::", "libc::dlopen"]),
    ("write span files", &["SpanFile::try_"]),
    ("run on tokio", &["tokio::"]),
    ("use `unsafe`", &["unsafe"]),
];
/// The row of what decides, and the words for clocks, files and sockets, which no file of it has.
const PURE: (&str, &[&str]) = (
    "decide, from arguments alone",
    &[
        "Instant::now",
        "SystemTime",
        "now_unix_nano(",
        "std::fs",
        "fs::",
        "File::",
        "OpenOptions",
        "UnixStream",
        "UnixListener",
        "TcpStream",
        "rustix::",
        "libc::",
        "std::env",
        "env::var",
        "std::thread",
        "thread::",
        "std::process",
    ],
);

#[test]
fn only_those_do_it_who_may() {
    let (table, sources) = (table(), sources());
    assert!(sources.len() > 200, "{} files were found", sources.len());
    let mut wrong = Vec::new();
    for (row, words) in RIGHTS {
        let named = table.get(row).unwrap_or_else(|| panic!("the table of src/lib.rs has no row `{row}`"));
        let mut used = BTreeSet::new();
        for (file, code) in &sources {
            let Some(word) = words.iter().find(|word| has(code, word)) else { continue };
            match named.iter().find(|name| is_in(file, name)) {
                Some(name) => drop(used.insert(name)),
                None => wrong.push(format!("`{file}` has `{word}`, and is not among those who {row}")),
            }
        }
        for name in named.iter().filter(|name| !used.contains(name)) {
            wrong.push(format!("`{name}` is said to {row}, and nothing of it does"));
        }
    }
    let (row, words) = PURE;
    for name in &table[row] {
        let files: Vec<_> = sources.iter().filter(|(file, _)| is_in(file, name)).collect();
        if files.is_empty() {
            wrong.push(format!("`{name}` is said to {row}, and there is no such file"));
        }
        for (file, code) in files {
            let found = words.iter().filter(|word| has(code, word));
            wrong.extend(found.map(|word| format!("`{file}` is said to {row}, and has `{word}`")));
        }
    }
    assert!(wrong.is_empty(), "the table in src/lib.rs and the sources differ:\n{}", wrong.join("\n"));
}

/// The most files of a crate that import each other in a circle, where it is not [`CIRCLE`]. A larger one is work that is left; it may only become smaller.
const CIRCLES: &[(&str, usize)] = &[("reactor/", 1), ("engine/", 13)];
/// The most files of any other crate that do.
const CIRCLE: usize = 8;

#[test]
fn circles_of_files_that_import_each_other_are_small() {
    let sources = sources();
    let roots: Vec<&str> = sources.keys().filter_map(|file| file.strip_suffix("lib.rs")).collect();
    assert!(roots.len() > 25, "{roots:?} were found");
    let mut wrong = Vec::new();
    for root in &roots {
        // A file belongs to the crate whose folder is the nearest one above it.
        let is_here = |file: &str| {
            file.starts_with(root) && !roots.iter().any(|other| other.len() > root.len() && file.starts_with(other))
        };
        let files = sources.iter().filter(|(file, _)| is_here(file) && *file != "main.rs");
        let modules: BTreeMap<String, &String> = files
            .filter(|(file, _)| !root.is_empty() || !file.starts_with("hooks/"))
            .map(|(file, code)| {
                let name = file[root.len()..].trim_end_matches(".rs").replace('/', "::");
                (if name == "lib" { String::new() } else { name }, code)
            })
            .collect();
        let imports: BTreeMap<&str, BTreeSet<String>> =
            modules.iter().map(|(module, code)| (&**module, imports(module, code, &modules))).collect();
        if *root == "reactor/" {
            assert!(imports["schedule"].contains("follow_up") && imports["state"].contains("state::actor"));
        }
        let largest = circles(&imports).into_iter().max_by_key(BTreeSet::len).unwrap_or_default();
        let limit = CIRCLES.iter().find(|(name, _)| name == root).map_or(CIRCLE, |&(_, limit)| limit);
        println!("{:>3} of {:>3}  {root}", largest.len(), modules.len());
        if largest.len() > limit {
            wrong.push(format!("{root}: {} files import each other in a circle: {largest:?}", largest.len()));
        } else if largest.len() < limit && limit != CIRCLE && limit > 1 {
            wrong.push(format!("{root} has become better: {} is enough in CIRCLES", largest.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Modules that reach each other, with facades counted: whoever imports what a module exports again imports that module.
fn circles(imports: &BTreeMap<&str, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let (mut found, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = next.pop() {
            next.extend(imports[&*module].iter().filter(|of| found.insert((*of).clone())).cloned());
        }
        found
    };
    let reached: BTreeMap<&str, BTreeSet<String>> = imports.keys().map(|&module| (module, reached(module))).collect();
    let circle = |(&module, of): (&&str, &BTreeSet<String>)| -> Option<BTreeSet<String>> {
        of.contains(module).then(|| of.iter().filter(|other| reached[&***other].contains(module)).cloned().collect())
    };
    reached.iter().filter_map(circle).collect()
}

/// Modules of the crate that a module imports, or names by a path. The root of the crate has an empty name.
fn imports(module: &str, code: &str, modules: &BTreeMap<String, &String>) -> BTreeSet<String> {
    let inner = inner_modules(code);
    let mut found = BTreeSet::new();
    let words = ["use ", "crate::", "super::"];
    for (at, word) in words.iter().flat_map(|word| code.match_indices(word)) {
        let before = code[..at].chars().next_back().unwrap_or(' ');
        let is_of_visibility = code[..at].ends_with("pub(in ");
        if before.is_alphanumeric() || matches!(before, '_' | ':') || is_of_visibility {
            continue;
        }
        let mut paths = Vec::new();
        if word == "use " {
            let tree = &code[at + word.len()..];
            expand("", &tree[..tree.find(';').unwrap_or(tree.len())], &mut paths);
        } else {
            let path = &code[at..];
            let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(path.len());
            // A tree is expanded where its `use` is found.
            if !path[..end].ends_with("::") {
                paths.push(path[..end].to_owned());
            }
        }
        let depth = inner.iter().filter(|range| range.contains(&at)).count();
        found.extend(paths.iter().filter_map(|path| resolve(module, depth, path, modules)));
    }
    found.remove(module);
    found
}

/// Ranges of the modules whose code is in the same file.
fn inner_modules(code: &str) -> Vec<std::ops::Range<usize>> {
    let begins = code.match_indices("mod ").filter_map(|(at, _)| {
        let open = at + code[at..].find(['{', ';'])?;
        let is_word = at == 0 || code.as_bytes()[at - 1].is_ascii_whitespace();
        (is_word && code.as_bytes()[open] == b'{').then_some(open)
    });
    let end = |open: usize| {
        let mut depth = 0_usize;
        code[open..].char_indices().find_map(|(at, c)| {
            depth = if c == '{' { depth + 1 } else { depth - usize::from(c == '}') };
            (depth == 0).then_some(open + at)
        })
    };
    begins.map(|open| open..end(open).unwrap_or(code.len())).collect()
}

/// Returns the module of the crate that a path leads to, from a place that is `depth` modules deep in the file of a module.
fn resolve(module: &str, depth: usize, path: &str, modules: &BTreeMap<String, &String>) -> Option<String> {
    let is_here = |first: &str| first == "self" || modules.contains_key(&format!("{module}::{first}"));
    let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match *parts.first()? {
        "crate" => at.clear(),
        "super" => {
            let up = parts.iter().take_while(|&&part| part == "super").count().checked_sub(depth)?;
            at.truncate(at.len().saturating_sub(up));
            parts.retain(|&part| part != "super");
        }
        first if module.is_empty() && modules.contains_key(first) || is_here(first) => {}
        _ => return None,
    }
    at.extend(parts.into_iter().filter(|part| !matches!(*part, "crate" | "self")));
    // The longest beginning of the path that is a module.
    while !at.is_empty() && !modules.contains_key(&at.join("::")) {
        at.pop();
    }
    Some(at.join("::"))
}

/// The paths of a tree of imports.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim().trim_end_matches("::self");
        return paths.push(format!("{prefix}{path}"));
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[from..at].trim().is_empty() {
                    expand(&prefix, &inner[from..at], paths);
                }
                from = (at + 1).min(inner.len());
            }
            _ => {}
        }
    }
}

/// Returns the cells of the table: what is done, and by which files (relative to `src`, or beginning with `hooks/`; a folder ends with `/`).
fn table() -> BTreeMap<String, Vec<String>> {
    let page = fs::read_to_string(root().join("src/lib.rs")).expect("it is there");
    let (_, page) = page.split_once("# What is deliberately not there").expect("src/lib.rs has the page of invariants");
    let rows = page.lines().filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |")?.split_once(" | "));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|(row, cell)| (row.to_owned(), names(cell))).collect()
}

fn is_in(file: &str, name: &str) -> bool {
    if name.ends_with('/') { file.starts_with(name) } else { file == name }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the code of each file of the product, without comments, texts and tests.
fn sources() -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    for folder in ["src", "hooks"] {
        collect(&root().join(folder), &mut |path| {
            let name = path.strip_prefix(root()).expect("it is in there").to_str().expect("names are ASCII");
            let code = fs::read_to_string(path).expect("it can be read");
            // Not a process, but the description of a command line.
            let code = without_tests(&code_only(&code)).replace("clap::Command::new(", "");
            sources.insert(name.strip_prefix("src/").unwrap_or(name).to_owned(), code);
        });
    }
    sources
}

fn collect(folder: &Path, found: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).expect("it can be listed") {
        let path = entry.expect("it can be listed").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if stem == "tests" || stem == "testing" || stem.ends_with("_tests") || stem == "build" {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found(&path);
        }
    }
}

/// Returns true if the word is there as such, and not as the end of a longer one. One of letters alone is not the beginning of a longer one either.
fn has(code: &str, word: &str) -> bool {
    let is_letter = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_word = word.bytes().all(|byte| byte.is_ascii_lowercase());
    code.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|before| code.as_bytes()[before]);
        let after = code.as_bytes().get(at + word.len()).copied();
        !is_letter(before) && (!is_word || !is_letter(after))
    })
}

/// Rust without its comments, and with nothing in its strings and characters.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) =
            string(rest).filter(|_| !code.ends_with(|last: char| last.is_alphanumeric() || last == '_'))
        {
            code.push_str("\"\"");
            length
        } else if let Some(length) = character(rest) {
            code.push_str("' '");
            length
        } else {
            code.push(next);
            next.len_utf8()
        };
        rest = &rest[skipped..];
    }
    code
}

/// Returns the length of the string literal at the beginning of a text.
fn string(text: &str) -> Option<usize> {
    let after_prefix = text.trim_start_matches(['b', 'c']);
    if text.len() - after_prefix.len() > 1 {
        return None;
    }
    if let Some(raw) = after_prefix.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(text.len() - body.len() + body.find(&end)? + end.len());
    }
    let body = after_prefix.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = body.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some(text.len() - body.len() + end + 1)
}

/// Returns the length of the character literal at the beginning of a text; none for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut body = text.strip_prefix('\'')?.char_indices();
    let (_, first) = body.next()?;
    let (at, next) = body.next()?;
    if first != '\\' {
        return (next == '\'').then_some(1 + at + 1);
    }
    // What is escaped may be a quotation mark itself.
    let (end, _) = body.find(|(_, letter)| *letter == '\'')?;
    Some(1 + end + 1)
}

/// Code without the items that are for tests alone.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let mut depth = 0;
        let end = rest[at..].bytes().position(|byte| match byte {
            b'{' => {
                depth += 1;
                false
            }
            b'}' => {
                depth -= 1;
                depth == 0
            }
            b';' => depth == 0,
            _ => false,
        });
        rest = end.map_or("", |end| &rest[at + end + 1..]);
    }
    kept + rest
}

/// Words with which the first line of a doc comment does not begin: it begins with a noun phrase, or with a verb where it is of a function.
const NOT_FIRST: [&str; 13] =
    ["What", "How", "Where", "When", "Whether", "Who", "Which", "That", "Why", "If", "As", "So many", "Those"];

/// Returns the first lines of doc comments that begin with one of these words, with their numbers from 1.
fn riddles(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let said = line.trim_start().strip_prefix("//").and_then(|rest| rest.strip_prefix(['/', '!']));
        let said = said.filter(|said| !said.starts_with('/'));
        if let Some(said) = said.map(str::trim_start).filter(|_| !is_in_comment)
            && NOT_FIRST.iter().any(|word| said.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ','])))
        {
            found.push((number + 1, said));
        }
        is_in_comment = said.is_some();
    }
    found
}

#[test]
fn doc_comments_begin_with_a_noun_phrase_or_a_verb() {
    assert_eq!(
        riddles("/// A lane.\n/// What follows goes on.\nx\n    //! How it is.\n//// What\n"),
        [(4, "How it is.")]
    );
    let (mut wrong, mut files) = (Vec::new(), 0);
    for folder in ["src", "hooks", "tests", "examples"] {
        collect(&root().join(folder), &mut |path| {
            let text = fs::read_to_string(path).expect("a source can be read");
            files += 1;
            let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
            wrong.extend(riddles(&text).iter().map(|(line, said)| format!("{name}:{line}: {said}")));
        });
    }
    assert!(files > 400, "{files} files were found");
    let rule = "expected a noun phrase, or a verb for a function, such as `Limit of ...` or `Returns ...`";
    assert!(wrong.is_empty(), "{rule}, at the beginning of\n{}", wrong.join("\n"));
}

#[test]
fn comments_texts_and_tests_are_not_code() {
    let source = r##"
        // unsafe in a comment, and println!("unsafe")
        /* unsafe */ fn code<'a>(quote: char) -> &'a str { if quote == '"' || quote == '\'' { r#"unsafe " "# } else { "\"unsafe" } }
        #[cfg(test)]
        mod tests { fn f() { let g = || { unsafe {} }; } }
        #[cfg(test)]
        #[path = "unsafe.rs"]
        mod other;
        fn last() { b"unsafe"; not_unsafe(); }
    "##;
    let code = without_tests(&code_only(source));
    assert!(!has(&code, "unsafe"), "{code}");
    assert!(has(&code, "fn last()") && has(&code, "fn code<"), "{code}");
    assert!(
        has("let x = unsafe { 1 };", "unsafe")
            && has("x = std::println!()", "println!")
            && !has("eprintln!()", "println!")
    );
}

#[test]
fn fixtures_are_examples_so_that_nobody_finds_them_among_modules() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut count = 0;
    for entry in fs::read_dir(&fixtures).expect("there are fixtures").flatten() {
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        count += 1;
        let has_library = manifest.contains("\n[lib]\n") || manifest.contains("\n[[bin]]\n");
        assert!(!has_library && manifest.contains("autolib = false"), "{}", entry.path().display());
    }
    assert!(count > 10, "{count} fixtures were found");
}
