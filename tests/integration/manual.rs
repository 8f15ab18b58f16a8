//! Shell completions and manual pages, as they are installed.

use crate::support::{Cluster, HOOK, module_folder};
use std::fs;

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
