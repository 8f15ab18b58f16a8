//! Shell completions and manual pages, as they are installed.

use crate::support::{Cluster, HOOK, module_folder, skip};
use std::fs;

/// Runs a shell on a script that asks for completions of some words, and returns the lines that it prints; none, and the test is skipped, without the shell.
fn completed_by(cluster: &Cluster, shell: &str, flag: &str, script: &str) -> Option<Vec<String>> {
    let mut command = cluster.program(shell);
    if command.arg("--version").output().is_err() {
        skip(shell, "it is not installed");
        return None;
    }
    let search = format!("{}:{}", module_folder().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = cluster.program(shell);
    command.args([flag, "-c", script]).env("PATH", search);
    let run = cluster.run(command).success().stderr("");
    let mut lines: Vec<_> = run.stdout_text().lines().map(str::to_owned).collect();
    lines.sort();
    Some(lines)
}

/// Writes the completions of a shell to a file, and returns its path.
fn script_for(cluster: &Cluster, shell: &str) -> String {
    let path = cluster.file(&format!("tracer.{shell}"));
    fs::write(&path, cluster.tracer(&["completions", shell]).success().stdout_text()).expect("the folder is ours");
    path.display().to_string()
}

#[test]
fn zsh_completes_commands_flags_and_values() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.tracer(&["submit", "actor", "counter:Counter", "40", "--name", "hits"]).success();
    cluster.submit("demo:my_function", &[]).success();
    let path = script_for(&cluster, "zsh");
    // The line editor's own commands are there while somebody types; these say what they are given.
    let complete = |words: &str| {
        let count = words.split(' ').count();
        let script = format!(
            "compdef() {{ }}; _files() {{ print files }}; compadd() {{ (( ${{(P)#@[-1]}} )) && print -l -- ${{(P)@[-1]}}; return 0 }}\n\
             words=({words}); CURRENT={count}; source '{path}'; _tracer"
        );
        completed_by(&cluster, "zsh", "-f", &script)
    };
    let Some(of_trace) = complete("tracer trace sh") else { return };
    assert_eq!(of_trace, ["show"]);
    for (words, expected) in [
        ("tracer start --tracing-st", &["--tracing-startup-hook"][..]),
        ("tracer get ''", &["1", "2", "hits"]),
        ("tracer submit call hits incr", &["increment"]),
        ("tracer submit task wordc", &["wordcount:"]),
        ("tracer submit task wordcount:fr", &["wordcount:frequencies"]),
        ("tracer workers", &["files"]),
    ] {
        assert_eq!(complete(words).as_deref().unwrap_or_default(), expected, "{words}");
    }
}

#[test]
fn fish_completes_commands_flags_and_values() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.tracer(&["submit", "actor", "counter:Counter", "40", "--name", "hits"]).success();
    cluster.submit("demo:my_function", &[]).success();
    let path = script_for(&cluster, "fish");
    let complete = |line: &str| {
        let script = format!("source '{path}'; complete --do-complete '{line}'");
        let lines = completed_by(&cluster, "fish", "--no-config", &script)?;
        Some(lines.iter().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>())
    };
    let Some(of_trace) = complete("tracer trace sh") else { return };
    assert_eq!(of_trace, ["show"]);
    for (line, expected) in [
        ("tracer start --tracing-st", &["--tracing-startup-hook"][..]),
        ("tracer get ", &["1", "2", "hits"]),
        ("tracer submit call hits incr", &["increment"]),
        ("tracer submit task wordc", &["wordcount:"]),
        ("tracer submit task wordcount:fr", &["wordcount:frequencies"]),
    ] {
        assert_eq!(complete(line).as_deref().unwrap_or_default(), expected, "{line}");
    }
}

#[test]
fn manual_pages_are_written_for_every_command_and_say_where_they_cannot_be() {
    let cluster = Cluster::builder().build();
    let folder = cluster.file("man/man1");
    let folder = folder.to_str().expect("the folder's name is text");
    cluster.tracer(&["man", folder]).success().stdout_contains("manual pages to");
    for name in ["tracer", "tracer-start", "tracer-submit-task", "tracer-trace-show"] {
        let page = fs::read_to_string(format!("{folder}/{name}.1")).expect("the page was written");
        assert!(page.contains(&format!(".TH {name} 1")) && page.contains(tracer::VERSION), "{page}");
    }
    let pages = fs::read_dir(folder).expect("it was made").flatten().map(|entry| entry.file_name());
    let hidden = ["tracer-worker.1", "tracer-head.1", "tracer-http.1", "tracer-finish-place.1"];
    for page in pages {
        assert!(!hidden.iter().any(|hidden| page == *hidden), "{page:?}");
    }
    cluster.tracer(&["man"]).success().stdout_contains(".SH NAME");
    fs::write(cluster.file("file"), "").expect("the folder is ours");
    cluster.tracer(&["man", "file"]).status(1).stderr_contains("manual pages cannot be written to `file`");
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).build();
    let script = cluster.tracer(&["completions", "bash"]).success().stdout_text();
    let path = cluster.file("tracer.bash");
    fs::write(&path, script).expect("the folder is ours");
    let search = format!("{}:{}", module_folder().display(), std::env::var("PATH").unwrap_or_default());
    // Words as bash makes them, which takes a colon for one.
    let complete = |words: &[&str]| {
        let text = format!(
            "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _tracer; echo \"${{COMPREPLY[@]}}\"",
            path.display(),
            words.join(" "),
            words.len() - 1,
        );
        let mut bash = cluster.program("bash");
        bash.args(["--norc", "-c", &text]).env("PATH", &search);
        let run = cluster.run(bash).success().stderr("");
        let mut words: Vec<_> = run.stdout_text().split_whitespace().map(str::to_owned).collect();
        words.sort();
        words.join(" ")
    };
    assert_eq!(complete(&["tracer", "trace", "sh"]), "show");
    assert_eq!(complete(&["tracer", "start", "--tracing-st"]), "--tracing-startup-hook");
    assert_eq!(complete(&["tracer", "workers"]), "");
    assert_eq!(complete(&["tracer", "status", "--format", "=", "js"]), "json");
    // Modules are found without a head; what only it knows is not, and nothing is said.
    assert_eq!(complete(&["tracer", "submit", "task", "wordc"]), "wordcount:");
    assert_eq!(complete(&["tracer", "submit", "task", "wordcount", ":", "fr"]), "frequencies");
    assert_eq!(complete(&["tracer", "submit", "actor", "counter", ":"]), "Counter");
    assert_eq!(complete(&["tracer", "start", "--tracing-startup-hook", "console", ":"]), "setup_tracing");
    assert_eq!(complete(&["tracer", "get", "''"]), "");
    cluster.start_head(&[]).success();
    cluster.tracer(&["submit", "actor", "counter:Counter", "40", "--name", "hits"]).success();
    cluster.submit("demo:my_function", &[]).success();
    assert_eq!(complete(&["tracer", "get", "''"]), "1 2 hits");
    assert_eq!(complete(&["tracer", "cancel", "hi"]), "hits");
    assert_eq!(complete(&["tracer", "submit", "call", "h"]), "hits");
    assert_eq!(complete(&["tracer", "submit", "call", "hits", "incr"]), "increment");
    assert_eq!(complete(&["tracer", "serve", "status", "''"]), "");
    // With a head of another place, its tasks.
    let place = cluster.file("nowhere").display().to_string();
    assert_eq!(complete(&["tracer", "get", "--temp-dir", &place, "''"]), "");
    cluster
        .tracer(&["completions", "csh"])
        .status(2)
        .stderr_contains("expected `bash`, `elvish`, `fish`, `powershell` or `zsh`");
}
