//! Libraries with allocators of their own, many in one process.

use std::fs;

use serde_json::json;

use crate::support::{Cluster, build_standalone, compile_c, compile_c_with, fixture_folder, skip};

/// The variable that has libraries with real allocators compiled, which takes a minute.
const REAL: &str = "TRACER_REAL_ALLOCATORS";
/// The tunable, as a user may set it.
const LITTLE: &str = "glibc.rtld.optional_static_tls=512";

/// The environment of a command, and of a task's process, as far as it is about loading.
const VARIABLES: [&str; 2] = ["GLIBC_TUNABLES", "TRACER_TUNABLES_BEFORE"];

#[track_caller]
fn assert_environment(cluster: &Cluster, tunables: Option<&str>) {
    let script = "printf '%s|' \"${GLIBC_TUNABLES-none}\" \"${TRACER_TUNABLES_BEFORE-none}\"";
    let seen = cluster.tracer(&["submit", "command", "--", "sh", "-c", script]).success().stdout_text();
    assert_eq!(seen, format!("{}|none|", tunables.unwrap_or("none")));
    for (name, expected) in VARIABLES.into_iter().zip([tunables, None]) {
        let seen = cluster.submit("misbehaving_tasks:variable", &[&json!(name).to_string()]).success().json();
        assert_eq!(seen, json!(expected), "{name} of a worker");
    }
}

#[test]
fn twenty_libraries_with_variables_in_the_static_block_fit_into_a_worker() {
    let cluster = Cluster::builder().build();
    compile_c("tests/fixtures/c/static_tls.c", &cluster.file("modules/libblock1.so"));
    for number in 2..=20 {
        fs::copy(cluster.file("modules/libblock1.so"), cluster.file(&format!("modules/libblock{number}.so")))
            .expect("the folder is ours");
    }
    let folders = std::env::join_paths([cluster.file("modules"), fixture_folder()]).expect("plain names");
    cluster.start_head(&["--module-path", folders.to_str().expect("a plain path")]).success();
    for number in 1..=20 {
        cluster.submit(&format!("block{number}:ones"), &[]).success().stdout("1\n");
    }
    assert_eq!(cluster.workers().len(), 1, "all of them in one process");
    assert_environment(&cluster, None);
    // All of them in one process of the command line.
    let mut list = cluster.command(&["list", "modules", "--format", "json"]);
    list.env_remove("TRACER_MODULE_PATH");
    let listed = cluster.run(list).success().json();
    let modules = listed["modules"].as_array().expect("a list");
    let blocks = modules.iter().filter(|module| module["name"].as_str().is_some_and(|name| name.starts_with("block")));
    assert_eq!(blocks.filter(|module| module["error"].is_null()).count(), 20, "{listed}");
}

#[test]
fn tunables_of_the_user_are_kept_and_what_they_say_of_the_block_counts() {
    let theirs = "glibc.malloc.arena_max=1";
    let cluster = Cluster::builder().env("GLIBC_TUNABLES", theirs).start();
    assert_environment(&cluster, Some(theirs));
    compile_c("tests/fixtures/c/static_tls.c", &cluster.file("libblock.so"));
    cluster.submit("./libblock.so:ones", &[]).success().stdout("1\n");
    cluster.stop().success();

    let cluster = Cluster::builder().env("GLIBC_TUNABLES", LITTLE).start();
    assert_environment(&cluster, Some(LITTLE));
    compile_c_with("tests/fixtures/c/static_tls.c", &cluster.file("libblock.so"), &["-DBLOCK=8000"]);
    for command in [["submit", "task", "./libblock.so:ones"], ["modules", "show", "./libblock.so"]] {
        let refused = cluster.tracer(&command).status(1);
        refused
            .stderr_contains("cannot be loaded as a shared library: ")
            .stderr_contains("cannot allocate memory in static TLS block\n(hint: its allocator wants")
            .stderr_contains("GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536");
    }
}

#[test]
fn libraries_with_mimalloc_and_with_jemalloc_share_a_worker() {
    if std::env::var_os(REAL).is_none() {
        return skip("allocators", format_args!("`{REAL}` is not set"));
    }
    let Some(folder) = build_standalone("allocators", "") else { return };
    let cluster = Cluster::traced();
    let copies = |library: &str, count: u32| {
        for copy in 1..=count {
            let name = format!("lib{library}_{copy}.so");
            fs::copy(folder.join(format!("lib{library}.so")), cluster.file(&name)).expect("the folder is ours");
            cluster.submit(&format!("./{name}:sum"), &["1000"]).success().stdout("499500\n");
            cluster.tracer(&["modules", "show", &format!("./{name}")]).success();
        }
    };
    copies("with_mimalloc", 10);
    copies("with_jemalloc", 2);
    copies("with_mimalloc", 20);
    assert_eq!(cluster.workers().len(), 1);
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}
