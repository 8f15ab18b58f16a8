//! Tracing hooks: what each form of them makes of the spans, and what happens when one goes wrong.

use std::collections::HashSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Clients, Cluster, HOOK, Idle, Run, Span, Spans, compile_c, compile_c_with, is_alive, kill, module_folder,
    wait_until,
};

/// The exit code of a hook that is refused.
const REFUSED: i32 = 4;

/// Returns the spans that went through the provider of a hook of the module `hook_forms`.
pub(super) fn exported(cluster: &Cluster) -> Spans {
    Spans::read(&cluster.file("exported"))
}

/// Expects the spans of one `traced_tasks:nested`, in one trace without a gap. Returns them from the job inwards.
#[track_caller]
fn assert_one_trace(spans: &Spans) -> [&Span; 5] {
    spans.assert_whole(&[]);
    let chain = [
        ("tracer job", "SpanKind.INTERNAL"),
        ("traced_tasks.nested tracer.remote", "SpanKind.PRODUCER"),
        ("traced_tasks.nested tracer.remote_worker", "SpanKind.CONSUMER"),
        ("outer", "SpanKind.INTERNAL"),
        ("inner", "SpanKind.INTERNAL"),
    ];
    let chain = chain.map(|(name, kind)| {
        let span = spans.named(name);
        assert_eq!(span.kind(), kind, "of `{name}`");
        assert_eq!(span.status_code(), "UNSET", "of `{name}`");
        span
    });
    assert_eq!(chain[0].parent_id(), None);
    for (parent, child) in chain.iter().zip(&chain[1..]) {
        assert_eq!(child.trace_id(), parent.trace_id());
        assert_eq!(child.parent_id(), Some(parent.span_id()), "of `{}`", child.name());
    }
    assert_eq!(spans.len(), chain.len(), "{}", spans.describe());
    chain
}

/// Returns the ids as task code sees them: without the `0x` of the span file.
fn ids(span: &Span) -> Value {
    json!([span.trace_id().trim_start_matches("0x"), span.span_id().trim_start_matches("0x")])
}

/// The process that a span says it is of.
fn pid(span: &Span) -> Option<u64> {
    span.attribute("tracer.pid").as_u64()
}

/// Compiles a hook or what looks like one, and returns the path of its library.
#[track_caller]
fn compiled(cluster: &Cluster, name: &str) -> PathBuf {
    let library = cluster.file(&format!("lib{name}.so"));
    compile_c(&format!("tests/fixtures/c/{name}.c"), &library);
    library
}

/// Expects that `tracer start` refuses a hook before anything has begun, and says `expected`.
#[track_caller]
fn assert_refused(cluster: &Cluster, hook: &str, further: &[&str], expected: &str) -> Run {
    let flag = format!("--tracing-startup-hook={hook}");
    let arguments: Vec<&str> = [flag.as_str()].iter().chain(further).copied().collect();
    let run = cluster.start_head(&arguments).status(REFUSED).stdout("");
    assert_eq!(shown(&run), expected, "standard error is another\n{}", run.describe());
    assert!(!cluster.temp_dir().exists(), "a session was made");
    cluster.assert_nothing_runs();
    run
}

/// Standard error with placeholders, `<target>` being the folder above that of the executable and `<line>` a place in a source
/// file.
fn shown(run: &Run) -> String {
    let target = module_folder().parent().expect("there is a folder above").display().to_string();
    let text = run.normalized(&run.stderr_text()).replace(&target, "<target>");
    let Some((before, after)) = text.split_once(".rs:") else { return text };
    format!(
        "{before}.rs:<line>{}",
        after.trim_start_matches(|character: char| character.is_ascii_digit() || character == ':')
    )
}

// ---- hooks that work ------------------------------------------------------------------------------------------------

#[test]
fn every_form_of_hook_gets_every_span() {
    for form in ["description", "provider", "processors"] {
        let cluster = Cluster::builder().hook(&format!("hook_forms:{form}")).start();
        let result = cluster.submit("traced_tasks:nested", &[]).success().json();
        let head = cluster.head_pid();
        cluster.stop().success();
        let spans = exported(&cluster);
        let [job, producer, consumer, outer, inner] = assert_one_trace(&spans);
        assert_eq!(result, ids(inner), "{form}");
        // Those of the worker are in its file, the two of the command in another. An exporter's batches of so short a process are
        // handed over, and the worker's exporter delivers them.
        let is_handed_over = form == "description";
        assert_eq!(job.file, producer.file, "{form}");
        assert!(consumer.file == outer.file && outer.file == inner.file, "{form}");
        assert_eq!(job.file == consumer.file, is_handed_over, "{form}");
        for span in [job, producer, consumer] {
            let exporter = if is_handed_over { consumer } else { span };
            assert_eq!(span.file.file_stem().unwrap().to_str().unwrap(), pid(exporter).unwrap().to_string(), "{form}");
            assert_ne!(pid(span), Some(head.into()), "{form}");
        }
        // The hook delivered them, so tracer had nothing to add.
        assert_eq!(cluster.spans().describe(), Spans::default().describe(), "{form}");
    }
}

#[test]
fn hook_in_c_gets_every_span() {
    let cluster = Cluster::builder().build();
    let library = cluster.file("libhook_c.so");
    compile_c("examples/hook_c/hook_c.c", &library);
    cluster.start_head(&["--tracing-startup-hook", "./libhook_c.so:setup_tracing"]).success();
    let result = cluster.submit("traced_tasks:nested", &[]).success().json();
    // It writes files, and so has them when the result is seen.
    let spans = cluster.spans();
    let [.., inner] = assert_one_trace(&spans);
    assert_eq!(result, ids(inner));
    assert_eq!(cluster.status()["hook"]["library"], json!(library));
    cluster.stop().success();
    assert_one_trace(&cluster.spans());
}

#[test]
fn ids_sampler_and_resource_of_a_hook_are_never_replaced() {
    for hook in ["own_description", "own_provider"] {
        // Neither of these overrules what a hook has said.
        let cluster = Cluster::builder()
            .hook(&format!("hook_forms:{hook}"))
            .env("OTEL_TRACES_SAMPLER", "always_off")
            .env("OTEL_SERVICE_NAME", "another")
            .start();
        cluster.submit("traced_tasks:quiet_and_loud", &[]).success();
        cluster.stop().success();
        let spans = exported(&cluster);
        spans.assert_whole(&[]);
        let names: Vec<_> = spans.iter().map(Span::name).collect();
        assert_eq!(spans.all_named("loud").len(), 1, "{hook}: {names:?}");
        assert_eq!(spans.all_named("quiet").len(), 0, "{hook}: {names:?}");
        assert_eq!(spans.len(), 4, "{hook}: {names:?}");
        for span in spans.iter() {
            assert!(span.trace_id().starts_with("0xfeed"), "{hook}: {}", span.value);
            assert!(span.span_id().starts_with("0xbeef"), "{hook}: {}", span.value);
            assert_eq!(span.attribute("fixture.sampler"), "drops quiet", "{hook}: {}", span.value);
            assert_eq!(span.resource_attribute("service.name"), "hook_forms", "{hook}: {}", span.value);
            assert_eq!(span.resource_attribute("fixture.stage"), "trial", "{hook}: {}", span.value);
            // What the sampler put into the tracestate came along to the worker and into the module.
            let trace_state = span.value["context"]["trace_state"].to_string();
            assert!(trace_state.contains("fixture") && trace_state.contains("sampled"), "{hook}: {trace_state}");
        }
        assert_eq!(cluster.spans().len(), 0, "{hook}: {}", cluster.spans().describe());
    }
}

#[test]
fn hook_runs_once_in_every_worker_and_in_whoever_submits() {
    let cluster = Cluster::builder().workers(2).hook("bad_hooks:leaves_a_trail").start();
    cluster.submit("wordcount:count", &["\"a b\""]).success();
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.status();
    cluster.tracer(&["list", "tasks"]).success();
    let entries =
        fs::read_dir(cluster.folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut trail: Vec<_> =
        entries.filter(|name| name.rsplit_once('-').is_some_and(|(_, pid)| pid.parse::<u32>().is_ok())).collect();
    trail.sort();
    let roles: Vec<_> = trail.iter().map(|name| name.rsplit_once('-').unwrap().0).collect();
    // One process tries it out. The head never runs it.
    assert_eq!(roles, ["hooks", "submit", "submit", "worker", "worker"]);
    let mut workers: Vec<_> = cluster.worker_pids().iter().map(|pid| format!("worker-{pid}")).collect();
    workers.sort();
    assert_eq!(trail[3..], workers);
}

#[test]
fn head_makes_no_spans_and_loads_no_hook() {
    let cluster = Cluster::builder().hook("hook_forms:description").start();
    cluster.submit("traced_tasks:nested", &[]).success();
    let maps = |pid: u32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let has_hook = |pid: u32| maps(pid).contains("libhook_forms.so");
    assert!(has_hook(cluster.worker_pids()[0]), "the worker has loaded it");
    assert!(!has_hook(cluster.head_pid()), "the head has not");
    assert!(!maps(cluster.head_pid()).contains("libtraced_tasks.so"), "nor has it loaded the task's module");
    let head = cluster.head_pid();
    cluster.stop().success();
    assert!(!cluster.file(&format!("exported/{head}.json")).exists());
}

#[test]
fn built_in_hook_needs_no_library() {
    let cluster = Cluster::builder().build();
    let tracer = cluster.file("alone/tracer");
    fs::create_dir(tracer.parent().unwrap()).unwrap();
    // By a process of its own: a copy that this one had open for writing, and that a fork of another test inherited, could not be run.
    assert!(
        std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_tracer")).arg(&tracer).status().unwrap().success()
    );
    fs::set_permissions(&tracer, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = cluster.program(&tracer);
        command.args(arguments);
        cluster.run(command).success()
    };
    run(&["start", "--head", "--num-workers=1", "--tracing-startup-hook", HOOK]);
    run(&["submit", "task"]).stdout("1\n");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let consumer = spans.named("demo.my_function tracer.remote_worker");
    let producer = spans.parent_of(consumer);
    assert_eq!((producer.name(), producer.kind()), ("demo.my_function tracer.remote", "SpanKind.PRODUCER"));
    assert_eq!(spans.parent_of(producer).name(), "tracer job");
    run(&["trace", "show", "last"]).stdout_contains("3 spans  2 processes");
    run(&["hooks", "check", HOOK]).stdout_contains("built in");
    run(&["stop"]);
    cluster.assert_nothing_runs();
}

#[test]
fn a_head_whose_program_is_replaced_starts_workers_of_its_own_kind() {
    let cluster = Cluster::builder().build();
    let tracer = cluster.file("alone/tracer");
    fs::create_dir(tracer.parent().unwrap()).unwrap();
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_tracer")).arg(&tracer).status();
    assert!(copied.unwrap().success());
    let mut command = cluster.program(&tracer);
    command.args(["start", "--head", "--num-workers=1"]);
    cluster.run(command).success();
    // As an installer does it: the old file goes, and another takes its name.
    fs::remove_file(&tracer).unwrap();
    fs::write(&tracer, "of another version").unwrap();
    let pid = cluster.worker_pids()[0];
    kill(pid, Signal::KILL);
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    assert_ne!(cluster.worker_pids(), [pid]);
    cluster.stop().success();
}

#[test]
fn hooks_can_be_tried_out_without_a_head() {
    let cluster = Cluster::builder().build();
    let good = cluster.tracer(&["hooks", "check", "hook_forms:own_provider"]).success().stderr("");
    let text = good.stdout_text();
    assert!(text.starts_with("hook      hook_forms:own_provider works\n"), "{text}");
    assert!(text.contains("does      a tracer provider of the hook's own"), "{text}");
    let json = cluster.tracer(&["hooks", "check", HOOK, "--format", "json"]).success().json();
    assert!(json["description"].as_str().unwrap().starts_with("spans to `"), "{json}");
    let bad = cluster.tracer(&["hooks", "check", "bad_hooks:panics"]).status(REFUSED).stdout("");
    assert!(bad.stderr_text().contains("panicked: the endpoint has no port"), "{}", bad.describe());
    assert!(!cluster.temp_dir().exists() && !cluster.spans_dir().join("0").exists());
    cluster.assert_nothing_runs();
}

#[test]
fn a_hook_that_ends_its_process_is_refused_as_by_the_start() {
    let cluster = Cluster::builder().build();
    let hook = "bad_hooks:ends_every_process";
    let check = cluster.tracer(&["hooks", "check", hook]).status(REFUSED).stdout("");
    let start = cluster.start_head(&["--tracing-startup-hook", hook]).status(REFUSED);
    assert!(
        check.stderr_text().contains("hook `bad_hooks:ends_every_process` ended the process that tried it out: it "),
        "{}",
        check.describe()
    );
    assert_eq!(check.stderr_text(), start.stderr_text());
    let check = cluster.tracer(&["hooks", "check", hook, "--format", "json"]).status(REFUSED).json();
    assert_eq!(check["error"]["kind"], "hook_refused", "{check:#}");
    cluster.assert_nothing_runs();
}

#[test]
fn what_a_hook_prints_is_not_taken_for_data() {
    let (cluster, run) = Cluster::builder().hook("hook_forms:talkative").try_start();
    let text = run.success().stdout("").stderr_text();
    // What it says when it is tried out is for the user; workers have logs.
    assert!(text.starts_with("{\"description\": \"from the hook\"}\nerror: from the hook\ntracer "), "{text}");
    let said = "{\"description\": \"from the hook\"}\nerror: from the hook\n";
    cluster.submit("wordcount:count", &["\"a b\""]).success().stdout("2\n").stderr(said);
    let check = cluster.tracer(&["hooks", "check", "hook_forms:talkative", "--format", "json"]).success().stderr(said);
    assert_eq!(check.json()["description"], "LineExporter in batches");

    let refused = Cluster::builder().build();
    assert_refused(
        &refused,
        "hook_forms:talkative_failure",
        &[],
        "to standard output\nerror: from the hook\n\
         error: hook `hook_forms:talkative_failure` (<fixtures>/libhook_forms.so) returned an error: the true reason\nin two \
         lines\n",
    );
    let check = refused.tracer(&["hooks", "check", "hook_forms:talkative_failure", "--format", "json"]).status(REFUSED);
    assert!(check.json()["refused"].as_str().unwrap().ends_with("returned an error: the true reason\nin two lines"));
}

#[test]
fn exporter_that_prints_leaves_the_result_alone() {
    let cluster = Cluster::builder().hook("hook_stdout:setup_tracing").start();
    let run = cluster.submit("wordcount:count", &["\"a b c\""]).success().stdout("3\n");
    run.stderr_contains("tracer job").stderr_contains("wordcount.count tracer.remote_worker");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn spans_that_a_hook_had_not_delivered_outlive_a_killed_worker() {
    // A description takes spans over from the dead; a finished provider neither does that nor tells its resource.
    for (hook, service) in [("description", json!("tracer")), ("provider", Value::Null)] {
        let cluster = Cluster::builder().hook(&format!("hook_forms:{hook}")).start();
        cluster.submit("traced_tasks:nested", &[]).success();
        let worker = cluster.worker_pids()[0];
        kill(worker, Signal::KILL);
        let of_worker = |all: &Spans| -> Vec<Span> {
            all.iter().filter(|span| pid(span).is_none_or(|pid| pid == u64::from(worker))).cloned().collect()
        };
        let spans = wait_until("the spans of the worker are there", || {
            let spans = if hook == "provider" { cluster.spans() } else { exported(&cluster) };
            Some(of_worker(&spans)).filter(|spans| spans.len() >= 3)
        });
        let mut names: Vec<_> = spans.iter().map(Span::name).collect();
        names.sort_unstable();
        assert_eq!(names, ["inner", "outer", "traced_tasks.nested tracer.remote_worker"], "{hook}");
        for span in &spans {
            let in_span_file = span.file == cluster.spans_dir().join(format!("{worker}.json"));
            assert_eq!(in_span_file, hook == "provider", "{hook}: {}", span.file.display());
            assert_eq!(*span.resource_attribute("service.name"), service, "{hook}");
        }
        // They hang together with what the command's hook has exported.
        let mut all = exported(&cluster);
        if hook == "provider" {
            all.spans.extend(spans);
        }
        assert_one_trace(&all);
    }
}

// ---- hooks that are refused -----------------------------------------------------------------------------------------

#[test]
fn hook_that_is_not_named_module_and_attribute_is_refused() {
    let cluster = Cluster::builder().build();
    for given in ["local_tmp_tracing", "local_tmp_tracing:", ":setup_tracing", ":"] {
        let expected = format!(
            "error: a tracing hook is named `module:attribute`, but got `{given}`\n\
             (hint: for example `local_tmp_tracing:setup_tracing`)\n"
        );
        assert_refused(&cluster, given, &[], &expected);
    }
}

#[test]
fn module_that_is_nowhere_is_refused_with_where_it_was_looked_for() {
    let cluster = Cluster::builder().build();
    fs::create_dir(cluster.file("mine")).unwrap();
    assert_refused(
        &cluster,
        "no_such_module_at_all:setup_tracing",
        &["--module-path=mine"],
        "error: module `no_such_module_at_all` was not found: there is no `libno_such_module_at_all.so` in \
         `<folder>/mine`, `<bin>` and `<target>/lib/tracer`\n\
         (hint: name its folder in TRACER_MODULE_PATH, or give the library's path)\n",
    );
    assert_refused(
        &cluster,
        "./mine/libcollector.so:setup_tracing",
        &[],
        "error: module `./mine/libcollector.so` was not found: there is no such file\n",
    );
}

#[test]
fn misspelt_module_and_attribute_get_the_nearest_as_a_suggestion() {
    let cluster = Cluster::builder().build();
    assert_refused(
        &cluster,
        "local_temp_tracing:setup_tracing",
        &[],
        "error: module `local_temp_tracing` was not found: there is no `liblocal_temp_tracing.so` in \
         `<fixtures>`, `<bin>` and `<target>/lib/tracer`\n\
         Did you mean `local_tmp_tracing`?\n",
    );
    assert_refused(
        &cluster,
        "hook_forms:own_describtion",
        &[],
        "error: module `hook_forms` (<fixtures>/libhook_forms.so) has no hook `own_describtion`; it has `description`, \
         `talkative`, `talkative_failure`, `provider`, `processors`, `exporter`, `exporter_without_backend`, `stamping_exporter`, \
         `request_exporter`, `asking_exporter`, `own_description`, `own_limits` and `own_provider`\n\
         Did you mean `own_description`?\n",
    );
    assert_refused(
        &cluster,
        "wordcount:setup_tracing",
        &[],
        "error: module `wordcount` (<bin>/libwordcount.so) has no hook `setup_tracing`; it has no hooks at all\n",
    );
}

#[test]
fn file_that_is_no_module_is_refused_at_the_step_that_shows_it() {
    let cluster = Cluster::builder().build();
    fs::write(cluster.file("libtext.so"), "not a library\n").unwrap();
    assert_refused(
        &cluster,
        "./libtext.so:setup_tracing",
        &[],
        "error: `<folder>/libtext.so` cannot be loaded as a shared library: file too short\n\
         (hint: a module is a cdylib for this system; check it with `file` and `ldd`)\n",
    );
    fs::write(cluster.file("libtext.so"), "not a library\n".repeat(100)).unwrap();
    assert_refused(
        &cluster,
        "text:setup_tracing",
        &["--module-path=."],
        "error: `<folder>/libtext.so` cannot be loaded as a shared library: invalid ELF header\n\
         (hint: a module is a cdylib for this system; check it with `file` and `ldd`)\n",
    );
    compiled(&cluster, "undefined_symbol");
    assert_refused(
        &cluster,
        "./libundefined_symbol.so:setup_tracing",
        &[],
        "error: `<folder>/libundefined_symbol.so` cannot be loaded as a shared library: undefined symbol: made_elsewhere\n\
         (hint: a module is a cdylib for this system; check it with `file` and `ldd`)\n",
    );
    // Something else that the module needs is missing. It is not the module that is said to be.
    compiled(&cluster, "no_entry");
    let folder = format!("-L{}", cluster.folder().display());
    let further = [folder.as_str(), "-Wl,--no-as-needed", "-lno_entry"];
    compile_c_with("tests/fixtures/c/odd_hooks.c", &cluster.file("libneedy.so"), &further);
    fs::remove_file(cluster.file("libno_entry.so")).unwrap();
    assert_refused(
        &cluster,
        "./libneedy.so:returns_nothing",
        &[],
        "error: `<folder>/libneedy.so` cannot be loaded as a shared library: libno_entry.so: cannot open shared object \
         file: No such file or directory\n\
         (hint: a module is a cdylib for this system; check it with `file` and `ldd`)\n",
    );
    compiled(&cluster, "no_entry");
    assert_refused(
        &cluster,
        "./libno_entry.so:setup_tracing",
        &[],
        "error: `<folder>/libno_entry.so` is a shared library but not a tracer module: it does not export `tracer_module`\n\
         (hint: a module in Rust is a cdylib that uses tracer-sdk; in C it includes tracer_abi.h)\n",
    );
    for name in ["null_record", "garbage_record"] {
        compiled(&cluster, name);
        assert_refused(
            &cluster,
            &format!("./lib{name}.so:setup_tracing"),
            &[],
            &format!(
                "error: `<folder>/lib{name}.so` exports `tracer_module`, but it does not return the record of a module\n"
            ),
        );
    }
    compiled(&cluster, "other_abi");
    assert_refused(
        &cluster,
        "./libother_abi.so:setup_tracing",
        &[],
        "error: module `<folder>/libother_abi.so` speaks ABI 99.7 (built by tracer-sdk 99.1.0, in C), but this tracer \
         speaks ABI 1.6\n\
         (hint: rebuild the module with the tracer-sdk of this tracer)\n",
    );
}

#[test]
fn hook_that_fails_panics_or_hangs_is_refused_with_its_own_words() {
    let cluster = Cluster::builder().build();
    // What went wrong inside of the module is not taken for a module that is missing.
    assert_refused(
        &cluster,
        "bad_hooks:returns_an_error",
        &[],
        "error: hook `bad_hooks:returns_an_error` (<fixtures>/libbad_hooks.so) returned an error: collector `collector:4317` \
         cannot be reached: name not known\n",
    );
    assert_refused(
        &cluster,
        "bad_hooks:panics",
        &[],
        "error: hook `bad_hooks:panics` (<fixtures>/libbad_hooks.so) panicked: the endpoint has no port at \
         tests/fixtures/bad_hooks/src/lib.rs:<line>\n",
    );
    assert_refused(
        &cluster,
        "bad_hooks:never_returns",
        &["--hook-timeout=300ms"],
        "error: hook `bad_hooks:never_returns` (<fixtures>/libbad_hooks.so) did not return within 300 ms\n\
         (hint: give it more time with --hook-timeout, or do slow work on a thread of its own)\n",
    );
    assert_refused(
        &cluster,
        "bad_hooks:ends_every_process",
        &[],
        "error: hook `bad_hooks:ends_every_process` ended the process that tried it out: it was killed by SIGABRT \
         (signal 6)\n",
    );
    compiled(&cluster, "odd_hooks");
    for (attribute, reason) in [
        ("returns_nothing", "it returned no tracing, and no error"),
        ("fails_in_silence", "it gave no reason"),
        ("hollow", "it has no function to call"),
    ] {
        let expected = format!(
            "error: hook `./libodd_hooks.so:{attribute}` (<folder>/libodd_hooks.so) returned an error: {reason}\n"
        );
        assert_refused(&cluster, &format!("./libodd_hooks.so:{attribute}"), &[], &expected);
    }
}

#[test]
fn span_folder_that_cannot_be_used_is_refused() {
    let cluster = Cluster::builder().build();
    fs::write(cluster.spans_dir(), "in the way").unwrap();
    assert_refused(
        &cluster,
        HOOK,
        &[],
        "error: hook `local_tmp_tracing:setup_tracing` (<bin>/liblocal_tmp_tracing.so) returned an error: span folder \
         `<folder>/spans` is not a folder\n\
         (hint: set `TRACER_SPANS_DIR` to a folder of your own)\n",
    );
    assert_eq!(fs::read_to_string(cluster.spans_dir()).unwrap(), "in the way");
}

// ---- hooks that go wrong later --------------------------------------------------------------------------------------

/// Occupies the workers but the one with `pid`, which is therefore the one that runs what is submitted next. Returns what to
/// wait for, and the file that releases it.
#[track_caller]
fn occupy_all_but(cluster: &Cluster, pid: u64) -> (crate::support::Background, PathBuf) {
    let waits = |name: &str| {
        let (started, released) = (cluster.file(&format!("{name}-started")), cluster.file(&format!("{name}-released")));
        let word = |path: &Path| json!(path).to_string();
        let task = cluster.submit_in_background("misbehaving_tasks:waits", &[&word(&started), &word(&released)]);
        cluster.wait_for_file(&started);
        (task, fs::read_to_string(started).unwrap().parse::<u64>().unwrap(), released)
    };
    let (first, first_pid, first_released) = waits("first");
    if first_pid != pid {
        return (first, first_released);
    }
    let (second, second_pid, second_released) = waits("second");
    assert_ne!(second_pid, pid, "a worker runs one task at a time");
    fs::write(first_released, "").unwrap();
    first.wait().success();
    (second, second_released)
}

#[test]
fn worker_whose_hook_fails_runs_tasks_and_tracer_writes_their_spans() {
    let cluster = Cluster::builder().workers(2).hook("bad_hooks:fails_in_the_second_worker").start();
    let reason = "hook `bad_hooks:fails_in_the_second_worker` (<fixtures>/libbad_hooks.so) returned an error: the collector takes \
                  one connection only";

    let status = cluster.status();
    let failed = status["hook"]["failed_workers"].as_array().unwrap();
    assert_eq!(failed.len(), 1, "{status}");
    let pid = failed[0]["pid"].as_u64().unwrap();
    assert!(
        failed[0]["reason"].as_str().unwrap().ends_with("returned an error: the collector takes one connection only")
    );
    assert_eq!(status["workers"]["idle"], 2, "it takes tasks all the same: {status}");
    let text = cluster.tracer(&["status"]).success();
    let warning = format!("warning  the hook failed in 1 worker, whose spans tracer writes itself: {reason}\n");
    text.stdout_contains(&warning);
    let workers = cluster.workers();
    let worker = workers.iter().find(|worker| worker["pid"] == pid).unwrap();
    assert!(worker["hook_failure"].as_str().unwrap().contains("one connection only"), "{worker}");
    let file = cluster.spans_dir().join(format!("{pid}.json"));
    let tracing = format!("{}, written by tracer itself", file.display());
    assert_eq!(worker["tracing"], tracing);
    cluster.tracer(&["list", "workers"]).success().stdout_contains(&tracing);
    assert!(workers.iter().any(|worker| worker["hook_failure"].is_null()), "the other is well: {workers:?}");

    let (waiting, released) = occupy_all_but(&cluster, pid);
    let result = cluster.submit("traced_tasks:nested", &[]).success().json();
    let spans = cluster.spans();
    let nested = Spans {
        spans: {
            let trace = spans.named("outer").trace_id();
            spans.iter().filter(|span| span.trace_id() == trace).cloned().collect()
        },
        ..Spans::default()
    };
    let [.., consumer, outer, inner] = assert_one_trace(&nested);
    assert_eq!(crate::hooks::pid(consumer), Some(pid));
    assert_eq!(result, ids(inner));
    for span in [consumer, outer, inner] {
        assert_eq!(span.file, file);
        assert_eq!(span.resource_attribute("service.name"), "tracer");
        assert_eq!(span.resource_attribute("process.pid"), pid);
    }
    fs::write(released, "").unwrap();
    waiting.wait().success();
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn worker_whose_hook_fails_is_said_when_the_head_starts() {
    let (_cluster, run) = Cluster::builder().workers(2).hook("bad_hooks:fails_in_the_second_worker").try_start();
    run.success().stderr_contains(
        " (pid <pid>), whose spans tracer writes itself: hook \
         `bad_hooks:fails_in_the_second_worker` (<fixtures>/libbad_hooks.so) returned an error: the collector takes one \
         connection only\n",
    );
}

#[test]
fn hook_that_fails_in_one_worker_is_fatal_when_tracing_is_required() {
    let (cluster, run) = Cluster::builder()
        .workers(2)
        .hook("bad_hooks:fails_in_the_second_worker")
        .arg("--tracing-required")
        .try_start();
    let run = run.status(REFUSED).stdout("");
    assert_eq!(
        shown(&run),
        "error: the head gives up: tracing is required, but the hook failed in a worker: hook `bad_hooks:fails_in_the_second_worker` \
         (<fixtures>/libbad_hooks.so) returned an error: the collector takes one connection only\n\
         (hint: the logs of the head and of its workers are in `<folder>/place/sessions/<session>/logs`)\n",
    );
    cluster.assert_nothing_runs();
    assert!(cluster.head_record().is_null(), "no head is there");
}

#[test]
fn a_hook_that_fails_in_the_process_of_the_http_api_is_said_by_status() {
    let cluster = Cluster::builder().hook("bad_hooks:fails_in_the_http_process").arg("--http=127.0.0.1:0").start();
    let failed = "the hook failed in the process of the HTTP API, whose spans tracer writes itself: hook \
                  `bad_hooks:fails_in_the_http_process` (<fixtures>/libbad_hooks.so) returned an error: no connection from a server";
    wait_until("status says it", || {
        let run = cluster.tracer(&["status"]);
        run.normalized(&run.stdout_text()).contains(failed).then_some(())
    });
    let status = cluster.status();
    assert_eq!(status["hook"]["failed_workers"], json!([]), "the workers are well: {status}");
    let pid = u32::try_from(status["http"]["pid"].as_u64().expect("it runs")).unwrap();
    // The next process says it anew.
    kill(pid, Signal::KILL);
    wait_until("the next one says it", || {
        let status = cluster.status();
        let is_said = status["warnings"].to_string().matches("whose spans tracer writes itself").count() == 1;
        (is_said && status["http"]["pid"].as_u64().is_some_and(|now| now != u64::from(pid))).then_some(())
    });
}

#[test]
fn driver_whose_hook_fails_submits_and_tracer_writes_its_spans() {
    let cluster = Cluster::builder().hook("bad_hooks:fails_in_drivers").start();
    let run = cluster.submit("traced_tasks:nested", &[]).success();
    assert_eq!(
        shown(&run),
        "warning: the hook failed here, so tracer writes this command's spans itself: hook `bad_hooks:fails_in_drivers` \
         (<fixtures>/libbad_hooks.so) returned an error: no connection from a terminal\n"
    );
    let spans = cluster.spans();
    let [job, ..] = assert_one_trace(&spans);
    assert_eq!(job.resource_attribute("process.pid"), pid(job).unwrap());
}

#[test]
fn hook_that_hangs_or_panics_in_a_worker_leaves_it_running_tasks() {
    for (hook, further, reason) in [
        ("never_returns_in_workers", &["--hook-timeout=300ms"][..], "did not return within 300 ms"),
        ("panics_in_workers", &[], "panicked: no endpoint for workers at tests/fixtures/bad_hooks/src/lib.rs:<line>"),
    ] {
        let cluster = Cluster::builder().hook(&format!("bad_hooks:{hook}")).build();
        let run = cluster.start_head(further).success();
        assert!(shown(&run).contains(reason), "{}", run.describe());
        let result = cluster.submit("traced_tasks:nested", &[]).success().json();
        let spans = cluster.spans();
        let [_, _, consumer, _, inner] = assert_one_trace(&spans);
        assert_eq!(result, ids(inner), "{hook}");
        let failed = &cluster.status()["hook"]["failed_workers"];
        assert_eq!(failed[0]["pid"].as_u64(), pid(consumer), "{hook}: {failed}");
        cluster.stop().success();
        cluster.assert_nothing_runs();
    }
}

/// Returns the logs of the workers that were ever started in this cluster.
fn worker_logs(cluster: &Cluster) -> usize {
    let sessions = fs::read_dir(cluster.temp_dir().join("sessions")).unwrap();
    let logs = sessions.flat_map(|session| fs::read_dir(session.unwrap().path().join("logs")).unwrap());
    logs.filter(|log| log.as_ref().unwrap().file_name().to_string_lossy().starts_with("worker-")).count()
}

#[test]
fn hook_that_kills_every_worker_takes_the_blame() {
    for (hook, workers) in [("kills_workers", 1), ("kills_workers", 3), ("kills_all_but_the_first_worker", 2)] {
        let (cluster, run) = Cluster::builder().workers(workers).hook(&format!("bad_hooks:{hook}")).try_start();
        let run = run.status(REFUSED).stdout("");
        let text = shown(&run);
        let expected = format!(
            "error: the head gives up: 3 workers in a row did not get ready (hook `bad_hooks:{hook}` runs in each); the \
             last one: was killed by SIGABRT (signal 6)\n\
             (hint: the logs of the head and of its workers are in `<folder>/place/sessions/<session>/logs`)\n"
        );
        assert_eq!(text, expected, "{}", run.describe());
        cluster.assert_nothing_runs();
        assert!(cluster.head_record().is_null(), "no head is there");
        let logs = worker_logs(&cluster);
        assert!((3..=3 + workers).contains(&logs), "the respawning has ended: {logs} workers were started");
    }
}

#[test]
fn hook_that_begins_to_kill_workers_ends_the_respawning() {
    let cluster = Cluster::builder().hook("bad_hooks:kills_workers_when_told").start();
    cluster.submit("traced_tasks:nested", &[]).success();
    fs::write(cluster.file("kill"), "").unwrap();
    let worker = cluster.worker_pids()[0];
    kill(worker, Signal::KILL);
    let status = wait_until("the head gives up", || {
        let status = cluster.status();
        (!status["warnings"].as_array().unwrap().is_empty()).then_some(status)
    });
    assert!(!is_alive(worker));
    let reason = "3 workers in a row did not get ready (hook `bad_hooks:kills_workers_when_told` runs in each); the last one: \
                  was killed by SIGABRT (signal 6)";
    let said = status["warnings"][0].as_str().expect("there is a warning").to_owned();
    assert!(said.starts_with(&format!("no worker is started now: {reason}; workers are started again in ")), "{said}");
    assert_eq!(worker_logs(&cluster), 4, "the first, and three that were tried");

    // Nobody waits for what cannot come.
    let run = cluster.submit("traced_tasks:nested", &[]).status(1).stdout("");
    let error = "error: task 2 (traced_tasks.nested) failed: no worker can run it: ";
    assert!(run.stderr_text().starts_with(error) && run.stderr_text().contains("; workers are started again in "));

    // When the cause is gone, so is the trouble.
    fs::remove_file(cluster.file("kill")).unwrap();
    wait_until("workers are started again", || {
        cluster.status()["warnings"].as_array().unwrap().is_empty().then_some(())
    });
    cluster.submit("traced_tasks:nested", &[]).success();
    cluster.stop().success();
    cluster.assert_nothing_runs();
}

#[test]
fn exporter_is_named_by_flag_environment_or_file() {
    let name = "hook_forms:exporter";
    let ways: [(&[&str], &str); 3] =
        [(&["--tracing-exporter", name], ""), (&[], name), (&["--config", "tracer.toml"], "")];
    for (arguments, variable) in ways {
        let cluster = Cluster::builder().build();
        fs::write(cluster.file("tracer.toml"), format!("[tracing]\nexporter = '{name}'\n"))
            .expect("the folder is ours");
        let mut start = cluster.start_command(arguments);
        start.env("TRACER_TRACING_EXPORTER_IMPORT_PATH", variable);
        cluster.run(start).success().stderr_contains(&format!("  tracing  {name}, from <fixtures>/libhook_forms.so\n"));
        let hook = &cluster.status()["hook"];
        assert_eq!((&hook["import_string"], &hook["contract"]), (&json!(name), &json!("exporter")));
        let result = cluster.submit("traced_tasks:nested", &[]).success().json();
        cluster.stop().success();
        let spans = exported(&cluster);
        let [.., inner] = assert_one_trace(&spans);
        assert_eq!(result, ids(inner), "{arguments:?}");
        // The provider around the processors is tracer's.
        assert!(spans.iter().all(|span| span.resource_attribute("service.name") == "tracer"), "{arguments:?}");
        assert_eq!(cluster.spans().len(), 0, "the processors delivered them");
    }
}

#[test]
fn exporter_and_startup_hook_are_not_taken_for_each_other() {
    let cluster = Cluster::builder().build();
    assert_refused(
        &cluster,
        "hook_forms:exporter",
        &[],
        "error: `hook_forms:exporter` (<fixtures>/libhook_forms.so) is an exporter, which returns span processors, and no startup \
         hook\n(hint: name it with --tracing-exporter)\n",
    );
    cluster.start_head(&["--tracing-exporter=hook_forms:description"]).status(REFUSED).stdout("").stderr(
        "error: `hook_forms:description` (<fixtures>/libhook_forms.so) is a startup hook, which sets up all of the tracing, and no \
         exporter\n(hint: name it with --tracing-startup-hook)\n",
    );
    cluster.start_head(&["--tracing-exporter=hook_forms:exporter_without_backend"]).status(REFUSED).stderr(
        "error: hook `hook_forms:exporter_without_backend` (<fixtures>/libhook_forms.so) returned an error: no backend is \
         configured\n",
    );
    cluster
        .start_head(&["--tracing-exporter=hook_forms:exporter", "--tracing-startup-hook=hook_forms:description"])
        .status(2)
        .stderr_contains("found both: `hook_forms:exporter` and `hook_forms:description`\n");
    assert!(!cluster.temp_dir().exists(), "nothing was begun");
    let check = |arguments: &[&str]| cluster.tracer(&[&["hooks", "check"], arguments].concat());
    check(&["hook_forms:exporter"]).success().stdout_contains("exporter (--tracing-exporter)");
    check(&["hook_forms:description"]).success().stdout_contains("startup hook (--tracing-startup-hook)");
    check(&["--as=exporter", "hook_forms:description"]).status(REFUSED);
}

#[test]
fn hook_of_an_older_sdk_is_handed_its_own_record() {
    let cluster = Cluster::builder().build();
    // Its record ends before the contract; what its own code keeps behind the record must still be there.
    compiled(&cluster, "old_hook");
    cluster.start_head(&["--tracing-startup-hook=./libold_hook.so:setup_tracing"]).status(REFUSED).stderr(
        "error: hook `./libold_hook.so:setup_tracing` (<folder>/libold_hook.so) returned an error: kept behind the record\n",
    );
}

#[test]
fn processor_of_a_hook_puts_the_ids_of_the_running_task_on_every_span() {
    let cluster = Cluster::builder().arg("--tracing-exporter=hook_forms:stamping_exporter").start();
    cluster.submit("traced_tasks:nested", &[]).success();
    // Spans of other threads are the task's too; nothing of the task before is on them.
    cluster.submit("traced_tasks:on_a_thread", &[]).success();
    cluster.submit("traced_tasks:on_a_forgetful_thread", &[]).success();
    cluster.stop().success();
    let spans = exported(&cluster);
    let mut stamped = 0;
    for (task, names) in [
        (1, &["traced_tasks.nested tracer.remote_worker", "outer", "inner"][..]),
        (2, &["traced_tasks.on_a_thread tracer.remote_worker", "on the thread"]),
        (3, &["traced_tasks.on_a_forgetful_thread tracer.remote_worker", "on its own"]),
    ] {
        let attempt = spans.attempt_of(task);
        for name in names {
            let span = spans.named(name);
            for (stamp, known) in [
                ("fixture.task", "tracer.task_id"),
                ("fixture.job", "tracer.job_id"),
                ("fixture.worker", "tracer.worker_id"),
                ("fixture.attempt", "tracer.attempt"),
                ("fixture.node", "tracer.node_id"),
            ] {
                assert!(!span.attribute(stamp).is_null(), "{name} has no {stamp}: {}", span.value);
                assert_eq!(span.attribute(stamp), attempt.attribute(known), "{stamp} of {name}");
            }
            stamped += 1;
        }
    }
    // Whoever submits runs no task.
    let others: Vec<_> = spans.iter().filter(|span| span.attribute("fixture.task").is_null()).collect();
    assert_eq!(others.len() + stamped, spans.len());
    assert!(others.iter().all(|span| ["SpanKind.INTERNAL", "SpanKind.PRODUCER"].contains(&span.kind())));
}

/// Serves the handler `spanned`, which makes spans, and returns a client of it.
fn client_of_spanned(cluster: &Cluster) -> Idle {
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let file = cluster.file("service.toml");
    let text = format!(
        "name = \"shop\"\n[http]\naddress = \"{address}\"\n[[applications]]\nname = \"a\"\nimport_path = \"handlers:spanned\"\n"
    );
    fs::write(&file, text).unwrap();
    cluster.tracer(&["serve", "deploy", file.to_str().unwrap()]).success();
    Clients::at_rest(address, "/")
}

#[test]
fn a_hook_is_told_the_request_for_which_a_span_starts() {
    let cluster = Cluster::builder().arg("--tracing-exporter=hook_forms:asking_exporter").start();
    let mut client = client_of_spanned(&cluster).header("x-model-id", "de");
    let exchange = client.ask();
    cluster.submit("traced_tasks:logs", &["1"]).success();
    cluster.stop().success();
    assert_eq!(exchange.status(), Some(200));
    let spans = exported(&cluster);
    let of = |name: &str| {
        let is_it = |span: &&Span| span.trace_id() == exchange.trace_id && span.name().starts_with(name);
        spans.iter().find(is_it).unwrap_or_else(|| panic!("no `{name}` in {}", spans.describe()))
    };
    let handled = of("replica_handle_request");
    // The handler's own span, and the one that the host makes around the handler.
    for span in [of("work"), handled] {
        for (asked, known) in [
            ("asked.request_id", "request_id"),
            ("asked.app", "app"),
            ("asked.deployment", "deployment"),
            ("asked.replica", "replica_id"),
            ("asked.route_prefix", "route"),
            ("asked.model", "multiplexed_model_id"),
        ] {
            assert!(span.attribute(asked).is_string(), "no {asked}: {}", span.value);
            assert_eq!(span.attribute(asked), handled.attribute(known), "{asked}");
        }
        assert!(span.attribute("asked.client").as_str().is_some_and(|client| client.starts_with("127.0.0.1:")));
    }
    let elsewhere = spans.iter().filter(|span| span.trace_id() != exchange.trace_id);
    assert!(elsewhere.clone().any(|span| span.name() == "doubles"), "{}", spans.describe());
    assert!(elsewhere.into_iter().all(|span| span.attribute("asked.request_id").is_null()), "{}", spans.describe());
}

#[test]
fn processor_of_a_hook_puts_the_ids_of_a_request_on_every_span_of_its_handler() {
    let cluster = Cluster::builder().arg("--tracing-exporter=hook_forms:request_exporter").start();
    let mut client = client_of_spanned(&cluster);
    let exchanges = [client.ask(), client.ask()];
    cluster.stop().success();
    let spans = exported(&cluster);
    let mut ids = HashSet::new();
    for exchange in &exchanges {
        assert_eq!(exchange.status(), Some(200));
        let of = |name: &str| {
            let is_it = |span: &&Span| span.trace_id() == exchange.trace_id && span.name().starts_with(name);
            spans.iter().find(is_it).unwrap_or_else(|| panic!("no `{name}` in {}", spans.describe()))
        };
        let (work, handled) = (of("work"), of("replica_handle_request"));
        for stamp in ["request_id", "app", "deployment", "replica_id"] {
            assert!(work.attribute(stamp).is_string(), "no {stamp}: {}", work.value);
            assert_eq!(work.attribute(stamp), handled.attribute(stamp), "{stamp}");
        }
        ids.insert(work.attribute("request_id").to_string());
    }
    assert_eq!(ids.len(), 2, "each request has its own id");
}

#[test]
fn what_a_processor_puts_on_a_span_that_starts_is_on_it_when_its_worker_is_killed() {
    let cluster = Cluster::builder().arg("--tracing-exporter=hook_forms:stamping_exporter").start();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let [begin, end] = [&started, &released].map(|path| format!("{path:?}"));
    let arguments = [begin.as_str(), &end, "--crash-limit=0"];
    let submission = cluster.submit_in_background("misbehaving_tasks:waits_in_span", &arguments);
    wait_until("it is inside of its span", || started.exists().then_some(()));
    let worker = cluster.worker_pids()[0];
    kill(worker, Signal::KILL);
    submission.wait().status(1);
    let attempt = "misbehaving_tasks.waits_in_span tracer.remote_worker";
    let spans = wait_until("both that were open are with the exporter of another worker", || {
        let spans = exported(&cluster);
        let is_there = |name: &str| spans.iter().any(|span| span.name() == name);
        (is_there("inner") && is_there(attempt)).then_some(spans)
    });
    for name in ["inner", attempt] {
        let span = spans.named(name);
        assert_eq!(span.attribute("error.type"), "signal:9", "{}", span.value);
        assert_eq!(span.attribute("fixture.task"), 1, "{}", span.value);
        assert_eq!(span.attribute("fixture.attempt"), 1, "{}", span.value);
        assert!(
            span.attribute("fixture.worker").is_u64() && span.attribute("fixture.node").is_string(),
            "{}",
            span.value
        );
    }
    // The submission's own began outside of tasks, and the processor left them alone.
    cluster.stop().success();
    assert!(exported(&cluster).named("tracer job").attribute("fixture.task").is_null());
}
