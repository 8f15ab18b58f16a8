//! The blocks of README.md and of chapters of the guide, run in their order as a reader types them: in a folder that is like the clone, with
//! the programs of `cargo build --workspace`, and with nothing that the page does not make. Only ports and folders of the machine are others.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Cluster, HOOK, broker_program, free_port, module_folder, skip};

/// A command of a page, with the lines that the page shows below it.
struct Shown<'a> {
    command: &'a str,
    output: Vec<&'a str>,
}

/// Returns the fences of a page: the language of each, and its lines.
fn fences(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut fences: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if is_inside => is_inside = false,
            Some(language) => {
                is_inside = true;
                fences.push((language, Vec::new()));
            }
            None if is_inside => fences.last_mut().expect("one is open").1.push(line),
            None => {}
        }
    }
    fences
}

fn commands<'a>(lines: &[&'a str]) -> Vec<Shown<'a>> {
    let mut commands: Vec<Shown> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push(Shown { command, output: Vec::new() }),
            (None, Some(last)) => last.output.push(line),
            (None, None) => panic!("`{line}` is the output of nothing"),
        }
    }
    commands
}

/// Functions in the place of what takes long or is not the page's: `cargo build` of the clone has been done, the script is a step of the gate, and
/// a new crate is built with what other tests have built. Besides, the wait for a server that a reader looks at.
const FUNCTIONS: &str = r#"
set -eEuo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
unset $(compgen -e | grep -E '^(CARGO_PKG_|CARGO_BIN_EXE_|CARGO_MANIFEST_)') || true
cargo() {
    case "$*" in 'build --workspace' | 'install --path .') return ;; esac
    crate=.
    [ "${2:-}" != --manifest-path ] || crate=${3%/Cargo.toml}
    cp "$CLONE/Cargo.lock" "$crate"
    [ -e "$crate/target" ] || ln -s "$STANDALONE" "$crate/target"
    "$CARGO_PROGRAM" "$@" --quiet --offline 2>/dev/null || "$CARGO_PROGRAM" "$@" --quiet
}
bash() { [ "$*" = examples/first_trace.sh ]; }
man() { [ -s "$HOME/.local/share/man/man1/$1.1" ]; }
wait_for_port() {
    for _ in $(seq 400); do
        ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null || return 0
        sleep 0.05
    done
    return 1
}
"#;

/// Mark before the output of each command.
const MARK: char = '\u{1}';

/// Runs fences of a page in their order, and compares what is shown with what comes. `further` are texts of the page that are others on the machine of a
/// test: ports, and the name of a crate whose library lies in a folder that tests share.
fn run(fences: &[(&str, Vec<&str>)], starts_head: bool, further: &[(&str, &str)]) {
    let cluster = Cluster::builder().build();
    let clone = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = module_folder().parent().expect("a profile is in the target folder");
    for (name, original) in [("examples", clone.join("examples")), ("target", target.into())] {
        std::os::unix::fs::symlink(original, cluster.file(name)).expect("the folder is ours");
    }
    // Files that a reader has.
    for (name, text) in [("lines.txt", "a b\nc\n"), ("some.csv", "a,b\n"), ("grid.txt", "0.1 2\n"), ("train.py", "")] {
        fs::write(cluster.file(name), text).expect("the folder is ours");
    }
    let spans = cluster.spans_dir().display().to_string();
    let changed = |text: &str| {
        let places = [("/tmp/spans", spans.as_str()), ("/tmp/tracer-nats", "nats")];
        places.iter().chain(further).fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let mut script = FUNCTIONS.to_owned();
    // As the chapter `start` has it.
    script += "export PATH=$PWD/target/debug:$PATH\n";
    if starts_head {
        script += &format!("tracer start --head --tracing-startup-hook={HOOK}\n");
    }
    let mut shown = Vec::new();
    for (language, lines) in fences {
        match (*language, lines.first().and_then(|line| line.strip_prefix("// "))) {
            ("console", _) => {
                for Shown { command, output } in commands(lines) {
                    let command = changed(command);
                    script += &format!("printf '\\n{MARK}'\n{command}\n");
                    let port = further.iter().map(|(_, to)| *to).find(|to| command.contains(*to));
                    if let (true, Some(port)) = (command.ends_with('&'), port) {
                        script += &format!("wait_for_port {port}\n");
                    }
                    shown.push((command, output));
                }
            }
            // A file of the crate that was made, without what rustdoc hides.
            ("rust", Some(file)) if file.ends_with(".rs") => {
                let text = lines.iter().filter(|line| !line.starts_with("# ")).map(|line| changed(line) + "\n");
                script += &format!("cat >{file} <<'END OF FILE'\n{}END OF FILE\n", text.collect::<String>());
            }
            _ => {}
        }
    }
    let mut shell = cluster.program("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env_remove("TRACER_MODULE_PATH").env("PATH", format!("{path}:/usr/sbin")).env("HOME", cluster.folder());
    // The toolchain is that of the tests, wherever the reader's home is.
    for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let home = std::env::var_os("HOME").unwrap_or_default();
        shell.env(name, std::env::var_os(name).unwrap_or_else(|| Path::new(&home).join(folder).into()));
    }
    shell.env("CLONE", clone).env("CARGO_PROGRAM", env!("CARGO")).env("COLUMNS", "120");
    let standalone = target.join("standalone/default");
    fs::create_dir_all(&standalone).expect("the folder is ours");
    shell.env("STANDALONE", standalone);
    shell.args(["-c", &format!("exec 2>&1\n{script}printf '\\n{MARK}'\n")]);
    let run = cluster.spawn(shell).wait_within(Duration::from_secs(300));
    let text = run.stdout_text();
    let outputs: Vec<&str> = text.split(MARK).skip(1).collect();
    assert!(run.output.status.success(), "after `{}`: {text}", shown[outputs.len().saturating_sub(1)].0);
    for ((command, expected), came) in shown.iter().zip(outputs) {
        // Traces are drawn to scale; of other lines, what has digits is another one each time.
        let is_drawn = |line: &&&str| line.starts_with(['*', '(']) || line.starts_with("trace ") || line.is_empty();
        // What goes on in the background writes when it likes.
        for line in expected.iter().filter(|line| !is_drawn(line) && !command.ends_with('&')) {
            let words: Vec<_> =
                line.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect();
            let has_line = |came: &str| match words.is_empty() {
                true => came == *line,
                false => words.iter().all(|word| came.contains(word)),
            };
            // A number alone is a result; two and more words with digits are a measurement, an id or an address.
            let is_result = words.is_empty() && line.chars().all(|c| c.is_ascii_digit());
            assert!((words.is_empty() && !is_result) || came.lines().any(has_line), "`{command}`: `{line}` in {came}");
        }
    }
    // Some pages have stopped it already.
    cluster.stop();
}

/// Returns a port that is free, and whose digits are not those of a port that is replaced.
fn port() -> String {
    let ports = std::iter::repeat_with(|| free_port().to_string());
    let is_other = |port: &String| !["8000", "4222", "8265"].iter().any(|shown| port.contains(shown));
    ports.take(100).find(is_other).expect("most ports are others")
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_readme_runs_in_order() {
    let readme = page("README.md");
    let mut fences = fences(&readme);
    // The page begins with what comes of it.
    fences.swap(0, 1);
    if broker_program().is_none() {
        skip("nats-server", "the README's tasks of several machines");
        fences.retain(|(_, lines)| !lines.iter().any(|line| line.contains("nats-server")));
    }
    let [http, nats] = [port(), port()];
    let served = format!("serve run shop:hello --address 127.0.0.1:{http}");
    run(
        &fences,
        false,
        &[("8000", &http), ("4222", &nats), ("serve run shop:hello", &served), ("stock", "stock_of_the_readme")],
    );
    // The task that it shows is the one that is made.
    let made = page("src/cli/new/tasks.rs.txt").replace("MODULE", "stock");
    let (_, task) = fences.iter().find(|(language, _)| *language == "rust").expect("the README has a task");
    assert!(made.contains(&task.join("\n")), "{made}");
}

#[test]
fn chapters_of_the_guide_run_in_order() {
    let port = port();
    for (name, starts_head) in [("start", false), ("tasks", true), ("actors", true), ("http", false)] {
        let page = page(&format!("src/guide/{name}.md"));
        let mut fences = fences(&page);
        for (_, lines) in &mut fences {
            // Of another machine, and of tasks that the page does not have.
            lines.retain(|line| {
                !line.starts_with("$ ssh ") && !line.starts_with("$ tracer cancel 7") && !line.contains("nightly-")
            });
        }
        run(&fences, starts_head, &[("8265", &port), ("stock", "stock_of_the_guide")]);
    }
}
