//! Shell completions and manual pages, as they are installed.

use std::fs;
use std::process::Command;

use crate::support::Cluster;

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
fn bash_completes_commands_and_flags() {
    let cluster = Cluster::builder().build();
    let script = cluster.tracer(&["completions", "bash"]).success().stdout_text();
    let path = cluster.file("tracer.bash");
    fs::write(&path, script).expect("the folder is ours");
    let complete = |words: &[&str]| {
        let (current, before) = (words[words.len() - 1], words[words.len() - 2]);
        let text = format!(
            "source '{}'; COMP_WORDS=({}); COMP_CWORD={}; _tracer tracer '{current}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
            path.display(),
            words.join(" "),
            words.len() - 1,
        );
        let output = Command::new("bash").args(["--norc", "-c", &text]).output().expect("bash is there");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("words are text").trim().to_owned()
    };
    assert_eq!(complete(&["tracer", "trace", "sh"]), "show");
    assert_eq!(complete(&["tracer", "start", "--tracing-st"]), "--tracing-startup-hook");
    assert_eq!(complete(&["tracer", "workers"]), "");
    cluster
        .tracer(&["completions", "csh"])
        .status(2)
        .stderr_contains("expected `bash`, `elvish`, `fish`, `powershell` or `zsh`");
}
