//! The shipped hooks that send spans over the network: to a receiver made of what OTLP's authors wrote, and to receivers that
//! misbehave. No task may notice.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::Driver;

use crate::backends::{assert_rich_trace, submit_rich};
use crate::support::{Builder, Certificates, Cluster, Receiver, kill, wait_until};

const OTLP: &str = "otlp:setup_tracing";
const OTLP_GRPC: &str = "otlp_grpc:setup_tracing";

/// Starts a cluster whose spans go to `endpoint` over HTTP soon after they ended.
fn exporting_to(endpoint: &str) -> Builder {
    exporting(OTLP, endpoint)
}

fn exporting(hook: &str, endpoint: &str) -> Builder {
    Cluster::builder().hook(hook).env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// Returns the logs of the session's processes.
fn logs(cluster: &Cluster) -> String {
    let logs = std::fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    logs.filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok()).collect()
}

/// Waits until a process of the session has written this to its log. The spans of a short submission are exported by a worker, whose log says
/// what the receiver answers; the submission has exited by then and says nothing.
#[track_caller]
fn wait_until_logged(cluster: &Cluster, expected: &str) {
    wait_until(&format!("a log says `{expected}`"), || logs(cluster).contains(expected).then_some(()));
}

/// Returns all spans that were sent, whatever was answered.
fn sent(receiver: &Receiver) -> Vec<Value> {
    let requests = receiver.requests();
    requests.iter().flat_map(|request| request["spans"].as_array().expect("spans are a list")).cloned().collect()
}

fn names(spans: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = spans.iter().map(|span| span["name"].as_str().expect("a span has a name")).collect();
    names.sort_unstable();
    names
}

#[test]
fn spans_arrive_over_http_with_every_field() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    submit_rich(&cluster);
    assert_rich_trace(&receiver.wait_for_spans(4));
    for request in receiver.requests() {
        assert_eq!(request["path"], "/v1/traces");
        assert_eq!(request["headers"]["content-type"], "application/x-protobuf");
        assert_eq!(request["headers"]["content-encoding"], Value::Null);
        let user_agent = request["headers"]["user-agent"].as_str().expect("the exporter says who it is");
        assert!(user_agent.starts_with("OTel-OTLP-Exporter-Rust/"), "{user_agent}");
    }
    // Each once, also after the worker has ended.
    cluster.stop().success();
    assert_eq!(receiver.accepted().len(), 4, "{:#?}", names(&receiver.accepted()));
}

#[test]
fn tracestates_of_level_2_arrive_as_they_were() {
    for (hook, receiver) in [(OTLP, Receiver::start(&["200"])), (OTLP_GRPC, Receiver::start_grpc(true, &["200"]))] {
        let Some(receiver) = receiver else { return };
        let cluster = exporting(hook, &receiver.endpoint()).start();
        for (number, state) in crate::spans::level_2_trace_states().into_iter().enumerate() {
            let mut submit = cluster.command(&["submit", "task", "traced_tasks:headers"]);
            submit.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
            submit.env("TRACESTATE", &state);
            let before = receiver.accepted().len();
            cluster.run(submit).success().stderr("");
            // Of the submission two by way of the head, of the worker three.
            let spans = receiver.wait_for_spans(before + 4);
            for span in &spans[before..] {
                assert_eq!(span["trace_state"], *state, "{number}: {span}");
            }
            wait_until("the rest is there", || (cluster.status()["spans"]["waiting"] == 0).then_some(()));
        }
        cluster.stop().success();
    }
}

#[test]
fn headers_compression_and_a_path_of_its_own_are_honoured() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to("http://localhost:1/not/there")
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/some/where?dataset=one", receiver.endpoint()))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=unused")
        .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Basic%20dXNlcjpwYXNz,x-team=a%2Cb")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .start();
    submit_rich(&cluster);
    assert_rich_trace(&receiver.wait_for_spans(4));
    for request in receiver.requests() {
        assert_eq!(request["path"], "/some/where?dataset=one");
        assert_eq!(request["headers"]["authorization"], "Basic dXNlcjpwYXNz");
        assert_eq!(request["headers"]["x-team"], "a,b");
        assert_eq!(request["headers"]["content-encoding"], "gzip");
    }
}

#[test]
fn a_receiver_that_is_busy_gets_the_batch_again_after_the_pause_that_it_asks_for() {
    let Some(receiver) = Receiver::start(&["503", "429:1", "502", "504", "200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    // What the submitter cannot deliver itself goes through the worker too: in another batch, before or after the worker's own.
    let mut submit = cluster.command(&["submit", "task", "demo:my_function", "--no-wait"]);
    submit.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    cluster.run(submit).success();
    assert_eq!(receiver.wait_for_spans(3).len(), 3);
    let requests = &receiver.requests()[..5];
    let replies: Vec<_> = requests.iter().map(|request| &request["reply"]).collect();
    assert_eq!(replies, ["503", "429:1", "502", "504", "200"]);
    assert!(requests.iter().all(|request| request["spans"] == requests[0]["spans"]), "the same batch each time");
    assert!(!logs(&cluster).contains("not delivered"), "{}", logs(&cluster));
}

/// Tasks run, their results come, and the worker says once what is wrong, also with the spans of submissions.
#[track_caller]
fn assert_no_task_is_harmed(cluster: &Cluster, reason: &str) {
    for _ in 0..3 {
        let run = cluster.submit("traced_tasks:rich", &[]).success();
        // The worker's words are shown too while a task runs, with the task before them.
        let said = run.stderr_text();
        assert!(!said.lines().any(|line| line.starts_with("tracer: spans are not delivered to")), "{run:?}");
    }
    wait_until("the worker says it", || {
        let logs = logs(cluster);
        (logs.contains("spans are not delivered to") && logs.contains(reason)).then_some(())
    });
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
}

#[test]
fn a_receiver_that_refuses_connections_slows_no_task_and_is_said_once() {
    // A port that nobody has: that of a listener which is closed again.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    drop(listener);
    let cluster = exporting_to(&endpoint).start();
    let session = cluster.session_dir();
    assert_no_task_is_harmed(&cluster, &format!("spans are not delivered to `{endpoint}/v1/traces`: "));
    let log = std::fs::read_dir(session.join("logs")).expect("a session has logs");
    let said: usize = log
        .filter_map(|log| std::fs::read_to_string(log.ok()?.path()).ok())
        .map(|text| text.matches("spans are not delivered to").count())
        .sum();
    assert_eq!(said, 1, "the one worker says it once");
}

#[test]
fn a_receiver_of_log_records_that_is_away_slows_no_task_is_said_once_and_takes_little_memory() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}/v1/logs", listener.local_addr().expect("it has one"));
    drop(listener);
    let cluster = exporting_to(&receiver.endpoint())
        .env("OTEL_LOGS_EXPORTER", "otlp")
        .env("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "200")
        .env("OTEL_BLRP_SCHEDULE_DELAY", "20")
        .start();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory").trim();
        memory.trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    cluster.submit("traced_tasks:logs_many", &["10000"]).success();
    let before = memory();
    for _ in 0..4 {
        cluster.submit("traced_tasks:logs_many", &["10000"]).success();
    }
    assert!(memory() < before + (16 << 10), "{before} KiB before, {} after", memory());
    let said = format!("log records are not delivered to `{endpoint}`: ");
    let log = wait_until("it is said", || Some(logs(&cluster)).filter(|log| log.contains(&said)));
    assert_eq!(log.matches("log records are not delivered to").count(), 1, "{log}");
    // Nothing is lost: each is in its file.
    let files = std::fs::read_dir(cluster.spans_dir()).expect("the folder").flatten().map(|entry| entry.path());
    let kept = files.filter(|path| path.to_str().is_some_and(|path| path.ends_with(".logs.jsonl")));
    let kept = kept.map(|path| std::fs::read_to_string(path).expect("it is text").matches("\"an event\"").count());
    assert_eq!(kept.sum::<usize>(), 50_000);
    cluster.stop().success();
}

#[test]
fn a_receiver_that_never_answers_slows_no_task() {
    // Connections wait in its queue and nobody takes them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    let cluster = exporting_to(&endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "300").start();
    assert_no_task_is_harmed(&cluster, "it did not answer in time");
}

#[test]
fn a_process_ends_although_its_receiver_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    // Longer than any process would wait for its spans.
    let cluster = exporting_to(&endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000").start();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n").stderr("");
    // Nothing is lost: the next head goes on with the spans of the command and of the worker.
    cluster.stop().success().stderr_contains("undelivered: 3 spans, waiting for an exporter that accepts them");
}

/// Asserts that a command line exits in good order, having asked nobody who listens at `own`, while the receiver of the
/// session's workers owes its answer.
#[track_caller]
fn assert_asks_nobody(cluster: &Cluster, own: &TcpListener, arguments: &[&str], expected: &str) {
    let endpoint = format!("http://{}", own.local_addr().expect("it has one"));
    let mut command = cluster.command(arguments);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
    let run = cluster.run(command).success().stderr("");
    if !expected.is_empty() {
        run.stdout(expected);
    }
    own.set_nonblocking(true).expect("a listener can be asked without waiting");
    let asked = own.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(asked, Err(std::io::ErrorKind::WouldBlock), "{arguments:?} waits for nobody's answer");
}

#[test]
fn a_submission_exits_while_the_receiver_owes_its_answer_and_its_spans_are_with_the_head() {
    const FILE: &str = "local_tmp_tracing:setup_tracing";
    for hooks in [&[OTLP][..], &[OTLP_GRPC], &[FILE, OTLP], &[FILE, OTLP_GRPC]] {
        let is_grpc = hooks.contains(&OTLP_GRPC);
        let receiver = if is_grpc { Receiver::start_grpc(true, &["held"]) } else { Receiver::start(&["held"]) };
        let Some(mut receiver) = receiver else { return };
        let builder = Cluster::builder().hook(hooks[0]);
        let builder =
            hooks[1..].iter().fold(builder, |builder, hook| builder.arg(format!("--tracing-startup-hook={hook}")));
        let cluster = builder
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
            .env("OTEL_BSP_SCHEDULE_DELAY", "1")
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
            .start();
        let own = TcpListener::bind("127.0.0.1:0").expect("a free port");
        assert_asks_nobody(&cluster, &own, &["submit", "task", "demo:my_function"], "1\n");
        receiver.wait_for_requests(1);
        assert_asks_nobody(&cluster, &own, &["submit", "task", "demo:my_function"], "1\n");
        assert_asks_nobody(&cluster, &own, &["submit", "task", "demo:my_function", "--no-wait"], "");
        assert_asks_nobody(&cluster, &own, &["submit", "command", "--", "true"], "");
        wait_until("all tasks have ended", || (cluster.status()["tasks"]["succeeded"] == 4).then_some(()));
        // Nothing is lost: as soon as the receiver answers, it has all.
        receiver.release();
        receiver.wait_for_spans(12);
        cluster.stop().success();
        let mut ids: Vec<_> = receiver.accepted().iter().map(|span| span["span_id"].to_string()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 12, "{hooks:?}: {:#?}", names(&receiver.accepted()));
    }
}

#[test]
fn what_a_receiver_cannot_take_is_not_sent_again() {
    let Some(receiver) = Receiver::start(&["400"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    cluster.submit("demo:my_function", &[]).success().stdout("1\n");
    wait_until_logged(&cluster, ": HTTP 400 Bad Request: said by the receiver (tasks run on; this is said once)");
    wait_until("it is counted", || (cluster.status()["spans"]["given_up"] == 3).then_some(()));
    assert!(cluster.head_log().contains("2 spans are given up: their receiver refuses them"), "{}", cluster.head_log());
    cluster.tracer(&["status"]).success().stdout_contains("3 spans given up: no exporter took them");
    cluster.stop().success();
    let sent = sent(&receiver);
    assert_eq!(
        names(&sent),
        ["demo.my_function tracer.remote", "demo.my_function tracer.remote_worker", "tracer job"],
        "each once"
    );
}

#[test]
fn spans_that_a_receiver_rejects_are_counted_and_the_others_have_arrived() {
    let receivers = [
        (OTLP, Receiver::start(&["partial:1", "200"])),
        (OTLP_GRPC, Receiver::start_grpc(true, &["partial:1", "200"])),
    ];
    for (hook, receiver) in receivers {
        let Some(receiver) = receiver else { return };
        let cluster = exporting(hook, &receiver.endpoint()).start();
        // All spans of the task come in one batch or two; of the first, one is rejected.
        cluster.submit("demo:my_function", &[]).success().stdout("1\n");
        wait_until("one span is counted", || (cluster.status()["spans"]["given_up"] == 1).then_some(()));
        wait_until("all have been sent", || (sent(&receiver).len() == 3).then_some(()));
        cluster.tracer(&["status"]).success().stdout_contains("1 span given up: no exporter took");
        cluster.stop().success();
        assert_eq!(sent(&receiver).len(), 3, "nothing is sent again: {:#?}", receiver.requests());
    }
}

#[test]
fn spans_that_a_receiver_rejects_of_a_dead_process_are_counted_too() {
    // Who submits makes no spans, so all that is sent is what the dead worker left.
    let receivers = [
        (OTLP, Receiver::start(&["partial:2", "200"])),
        (OTLP_GRPC, Receiver::start_grpc(true, &["partial:2", "200"])),
    ];
    for (hook, receiver) in receivers {
        let Some(receiver) = receiver else { return };
        let cluster = exporting(hook, &receiver.endpoint()).env("OTEL_BSP_SCHEDULE_DELAY", "3600000").start();
        let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
        let task = driver.remote("misbehaving_tasks:makes_spans").arg(3).and_then(|remote| remote.submit());
        task.expect("the head takes it");
        driver.next_finished().expect("the head answers");
        assert_eq!(receiver.requests().len(), 0, "its worker has not sent anything yet");
        kill(cluster.worker_pids()[0], Signal::KILL);
        wait_until("two spans are counted", || (cluster.status()["spans"]["given_up"] == 2).then_some(()));
        let counts = cluster.status()["spans"].clone();
        assert_eq!((&counts["handed_over"], &counts["waiting"]), (&json!(3), &json!(0)), "{counts}");
        assert_eq!(sent(&receiver).len(), 5, "nothing is sent again: {:#?}", receiver.requests());
        assert!(cluster.head_log().contains("2 spans of a batch were given up: their receiver refuses them"));
        drop(driver);
        cluster.stop().success();
        assert_eq!(sent(&receiver).len(), 5, "nothing is sent again: {:#?}", receiver.requests());
    }
}

#[test]
fn what_a_dead_process_leaves_is_cut_to_its_place_and_that_is_counted_and_said() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).env("OTEL_BSP_SCHEDULE_DELAY", "3600000").start();
    let large = |spans: &[Value]| {
        let found = spans.iter().find(|span| span["name"] == "large").expect("it is there");
        found["attributes"].clone()
    };
    cluster.submit("misbehaving_tasks:makes_a_span_of", &["10240"]).success();
    assert_eq!(cluster.status()["spans"]["cut"], 0, "its own process delivers it whole");
    kill(cluster.worker_pids()[0], Signal::KILL);
    let attributes = large(&receiver.wait_for_spans(4));
    assert_eq!(attributes["tracer.cut"]["int_value"], 1, "{attributes}");
    assert_eq!((&attributes["before"]["int_value"], &attributes["after"]["int_value"]), (&json!(1), &json!(2)));
    assert_eq!(attributes["large"], Value::Null);
    assert_eq!(cluster.status()["spans"]["cut"], 1);
    let text = "1 attribute, event or link did not fit the spool";
    cluster.tracer(&["status"]).success().stdout_contains(text);

    // One that its own process delivers has it all.
    cluster.submit("misbehaving_tasks:makes_a_span_of", &["10240"]).success();
    cluster.stop().success();
    let spans: Vec<_> = receiver.accepted().into_iter().skip(4).collect();
    assert_eq!(large(&spans)["large"]["string_value"].as_str().map(str::len), Some(10_240));
}

#[test]
fn the_variables_of_the_batch_processor_are_honoured() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let cluster = exporting_to(&receiver.endpoint())
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        .start();
    submit_rich(&cluster);
    // The worker has a batch of two, and so has the submission; nothing waits for the hour.
    assert_rich_trace(&receiver.wait_for_spans(4));
    let sizes: Vec<_> = receiver.requests().iter().map(|it| it["spans"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(sizes, [2, 2]);
    // One more has to wait, until the worker ends.
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    assert_eq!(receiver.accepted().len(), 7, "{:#?}", names(&receiver.accepted()));
}

#[test]
fn tasks_do_not_wait_for_a_slow_receiver_and_nothing_is_lost() {
    let Some(mut receiver) = Receiver::start(&["held"]) else { return };
    let cluster = exporting_to(&receiver.endpoint()).start();
    let mut submits: Vec<_> = (0..3).map(|_| cluster.submit_in_background("demo:my_function", &[])).collect();
    // All have run while no request is answered; only then do the submitters deliver their own spans.
    wait_until("all tasks have ended", || (cluster.status()["tasks"]["succeeded"] == 3).then_some(()));
    receiver.release();
    for submit in submits.drain(..) {
        submit.wait().success().stdout("1\n").stderr("");
    }
    let spans = receiver.wait_for_spans(9);
    cluster.stop().success();
    let mut ids: Vec<_> = spans.iter().map(|span| span["span_id"].to_string()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 9, "{:#?}", names(&spans));
}

#[test]
fn the_hook_is_built_in_and_refuses_what_it_cannot_do() {
    let cluster = Cluster::builder().build();
    let check = |variable: &str, value: &str| {
        let mut check = cluster.command(&["hooks", "check", OTLP]);
        check.env(variable, value);
        cluster.run(check)
    };
    check("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:secret@host/base?key=secret")
        .success()
        .stdout_contains("spans over OTLP/HTTP to `https://host/base/v1/traces`");
    check("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").status(4).stderr_contains(
        "`OTEL_EXPORTER_OTLP_PROTOCOL` is `grpc`, but this hook speaks HTTP; use the hook `otlp_grpc:setup_tracing`, or \
         `http/protobuf`",
    );
    check("OTEL_EXPORTER_OTLP_CERTIFICATE", "/missing.pem").status(4).stderr_contains(
        "the file `/missing.pem` of `OTEL_EXPORTER_OTLP_CERTIFICATE` cannot be read: No such file or directory",
    );
    check("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")
        .status(4)
        .stderr_contains("`OTEL_EXPORTER_OTLP_ENDPOINT` is `localhost:4318`, expected a URL such as");
    let mut quiet = cluster.command(&["hooks", "check", OTLP]);
    quiet.env("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma").env("OTEL_LOG_LEVEL", "error");
    cluster.run(quiet).success().stderr("");
    check("OTEL_EXPORTER_OTLP_COMPRESSION", "lzma").success().stderr_contains(
        "tracer: `OTEL_EXPORTER_OTLP_COMPRESSION` is `lzma` and is ignored: expected `gzip` or `none`\n",
    );
}

#[test]
fn spans_arrive_over_grpc_with_every_field() {
    let Some(receiver) = Receiver::start_grpc(true, &["200"]) else { return };
    let cluster = exporting(OTLP_GRPC, &receiver.endpoint())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a%2Cb,x-raw-bin=abc")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .start();
    submit_rich(&cluster);
    assert_rich_trace(&receiver.wait_for_spans(4));
    for request in receiver.requests() {
        assert_eq!(request["headers"]["x-team"], "a,b");
        assert_eq!(request["headers"]["x-raw-bin"], "abc");
        let user_agent = request["headers"]["user-agent"].as_str().expect("the exporter says who it is");
        assert!(user_agent.starts_with("OTel-OTLP-Exporter-Rust/"), "{user_agent}");
    }
    cluster.stop().success();
    assert_eq!(receiver.accepted().len(), 4, "{:#?}", names(&receiver.accepted()));
}

#[test]
fn compression_over_grpc_is_used_only_when_asked_for() {
    let Some(receiver) = Receiver::start_grpc(false, &["200"]) else { return };
    // A server that takes no compressed message says so.
    let cluster =
        exporting(OTLP_GRPC, &receiver.endpoint()).env("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip").start();
    cluster.submit("demo:my_function", &[]).success();
    wait_until_logged(&cluster, "gRPC Unimplemented: ");
    cluster.stop().success();
    assert_eq!(receiver.accepted(), [] as [Value; 0]);
    let cluster = exporting(OTLP_GRPC, &receiver.endpoint()).start();
    cluster.submit("demo:my_function", &[]).success().stderr("");
    receiver.wait_for_spans(3);
}

#[test]
fn a_busy_grpc_receiver_gets_the_batch_again() {
    let replies = ["UNAVAILABLE", "RESOURCE_EXHAUSTED:1", "DATA_LOSS", "ABORTED", "200"];
    let Some(receiver) = Receiver::start_grpc(true, &replies) else { return };
    let cluster = exporting(OTLP_GRPC, &receiver.endpoint()).start();
    let mut submit = cluster.command(&["submit", "task", "demo:my_function", "--no-wait"]);
    submit.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    cluster.run(submit).success();
    assert!(!receiver.wait_for_spans(1).is_empty());
    let requests = &receiver.requests()[..5];
    let answered: Vec<_> = requests.iter().map(|request| &request["reply"]).collect();
    assert_eq!(answered, replies);
    assert!(requests.iter().all(|request| request["spans"] == requests[0]["spans"]), "the same batch each time");
}

#[test]
fn what_a_grpc_receiver_cannot_take_is_not_sent_again() {
    // Without a word on when it will get better, the last is final too.
    for reply in ["UNAUTHENTICATED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"] {
        let Some(receiver) = Receiver::start_grpc(true, &[reply]) else { return };
        let cluster = exporting(OTLP_GRPC, &receiver.endpoint()).start();
        cluster.submit("demo:my_function", &[]).success().stdout("1\n");
        wait_until_logged(&cluster, ": said by the receiver (tasks run on; this is said once)");
        wait_until("it is counted", || (cluster.status()["spans"]["given_up"] == 3).then_some(()));
        cluster.stop().success();
        assert_eq!(sent(&receiver).len(), 3, "each once, with {reply}");
    }
}

#[test]
fn a_grpc_receiver_that_refuses_connections_slows_no_task() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    drop(listener);
    let cluster = exporting(OTLP_GRPC, &endpoint).start();
    assert_no_task_is_harmed(&cluster, &format!("spans are not delivered to `{endpoint}`: "));
}

#[test]
fn a_grpc_receiver_that_never_answers_slows_no_task() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    let cluster = exporting(OTLP_GRPC, &endpoint).env("OTEL_EXPORTER_OTLP_TIMEOUT", "300").start();
    assert_no_task_is_harmed(&cluster, "it did not answer in time");
}

#[test]
fn tls_trusts_the_authority_that_is_named_and_no_other() {
    let Some(tls) = Certificates::make() else { return };
    for hook in [OTLP, OTLP_GRPC] {
        let start = if hook == OTLP { Receiver::start_tls } else { Receiver::start_grpc_tls };
        let Some(receiver) = start(&tls, false, &["200"]) else { return };
        let cluster = exporting(hook, &receiver.endpoint())
            .env("OTEL_EXPORTER_OTLP_CERTIFICATE", tls.path("authority.pem"))
            .start();
        submit_rich(&cluster);
        assert_rich_trace(&receiver.wait_for_spans(4));
        cluster.stop().success();
        // Mozilla's authorities do not know that one.
        let cluster = exporting(hook, &receiver.endpoint()).start();
        cluster.submit("demo:my_function", &[]).success();
        wait_until_logged(&cluster, "UnknownIssuer");
        cluster.stop().success();
        assert_eq!(receiver.accepted().len(), 4, "{:#?}", names(&receiver.accepted()));
    }
}

#[test]
fn a_client_introduces_itself_to_a_receiver_that_asks_for_it() {
    let Some(tls) = Certificates::make() else { return };
    for hook in [OTLP, OTLP_GRPC] {
        let start = if hook == OTLP { Receiver::start_tls } else { Receiver::start_grpc_tls };
        let Some(receiver) = start(&tls, true, &["200"]) else { return };
        let cluster = exporting(hook, &receiver.endpoint())
            .env("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", tls.path("authority.pem"))
            .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", tls.path("client.pem"))
            .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", tls.path("client.key"))
            .start();
        submit_rich(&cluster);
        assert_rich_trace(&receiver.wait_for_spans(4));
        cluster.stop().success();
        let cluster = exporting(hook, &receiver.endpoint())
            .env("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", tls.path("authority.pem"))
            .start();
        cluster.submit("demo:my_function", &[]).success();
        wait_until_logged(&cluster, "spans are not delivered to");
        cluster.stop().success();
        assert_eq!(receiver.accepted().len(), 4, "{:#?}", names(&receiver.accepted()));
    }
}

#[test]
fn the_grpc_hook_is_a_library_and_refuses_what_it_cannot_do() {
    let cluster = Cluster::builder().build();
    let check = |variable: &str, value: &str| {
        let mut check = cluster.command(&["hooks", "check", OTLP_GRPC]);
        check.env(variable, value);
        cluster.run(check)
    };
    check("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
        .success()
        .stdout_contains("<bin>/libotlp_grpc.so")
        .stdout_contains("spans over OTLP/gRPC to `https://collector:4317`");
    check("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .status(4)
        .stderr_contains("use the hook `otlp:setup_tracing`");
    let not_pem = cluster.file("not.pem");
    std::fs::write(&not_pem, "not PEM").expect("the test's folder can be written to");
    for hook in [OTLP, OTLP_GRPC] {
        let mut check = cluster.command(&["hooks", "check", hook]);
        check.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector").env("OTEL_EXPORTER_OTLP_CERTIFICATE", &not_pem);
        cluster.run(check).status(4).stderr_contains(
            "the file `<folder>/not.pem` of `OTEL_EXPORTER_OTLP_CERTIFICATE` holds no certificate in PEM",
        );
    }
}

/// Returns the backends that the documentation has variables for, each with these.
fn documented_backends() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    let mut heading = "";
    let mut open: Option<Vec<_>> = None;
    let mut found = Vec::new();
    for line in include_str!("../../hooks/otlp/src/backends.md").lines() {
        match (line, &mut open) {
            ("```text", _) => open = Some(Vec::new()),
            ("```", _) => found.extend(open.take().map(|variables| (heading, variables))),
            (line, Some(variables)) => variables.push(line.split_once('=').expect("a variable is set")),
            (line, None) => heading = line.strip_prefix("## ").unwrap_or(heading),
        }
    }
    found
}

#[test]
fn the_documented_variables_of_each_backend_are_honoured() {
    let Some(tls) = Certificates::make() else { return };
    let backends = documented_backends();
    let headings: Vec<_> = backends.iter().map(|(heading, _)| *heading).collect();
    let expected =
        ["Jaeger", "Tempo", "Tempo", "Honeycomb", "Datadog's agent", "Lightstep (ServiceNow Cloud Observability)"];
    assert_eq!(headings, expected);
    let paths = ["/v1/traces", "/v1/traces", "/otlp/v1/traces", "/v1/traces", "/v1/traces", "/traces/otlp/v0.9"];
    let headers = [
        None,
        Some(("x-scope-orgid", "team-a")),
        Some(("authorization", "Basic MTIzNDU2OnRva2Vu")),
        Some(("x-honeycomb-team", "YOUR-API-KEY")),
        None,
        Some(("lightstep-access-token", "YOUR-TOKEN")),
    ];
    for (((heading, variables), path), header) in backends.into_iter().zip(paths).zip(headers) {
        let is_tls = variables.iter().any(|(_, value)| value.starts_with("https://"));
        let receiver = if is_tls { Receiver::start_tls(&tls, false, &["200"]) } else { Receiver::start(&["200"]) };
        let Some(receiver) = receiver else { return };
        let mut builder = Cluster::builder()
            .hook(OTLP)
            .env("OTEL_BSP_SCHEDULE_DELAY", "20")
            .env("OTEL_EXPORTER_OTLP_CERTIFICATE", tls.path("authority.pem"));
        for (name, value) in &variables {
            // Only where it is differs.
            let value = match value.split_once("://") {
                Some((_, rest)) => {
                    format!("{}{}", receiver.endpoint(), rest.find('/').map_or("", |path| &rest[path..]))
                }
                None => (*value).to_owned(),
            };
            builder = builder.env(name, value);
        }
        let cluster = builder.start();
        cluster.submit("demo:my_function", &[]).success().stdout("1\n").stderr("");
        let spans = receiver.wait_for_spans(3);
        let is_gzip = variables.iter().any(|(name, value)| name.ends_with("COMPRESSION") && *value == "gzip");
        for request in receiver.requests() {
            assert_eq!(request["path"], path, "{heading}");
            assert_eq!(request["headers"]["content-encoding"] == "gzip", is_gzip, "{heading}");
            if let Some((name, value)) = header {
                assert_eq!(request["headers"][name], value, "{heading}");
            }
        }
        for (name, value) in &variables {
            let attributes = match *name {
                "OTEL_SERVICE_NAME" => vec![("service.name", *value)],
                "OTEL_RESOURCE_ATTRIBUTES" => value.split(',').filter_map(|pair| pair.split_once('=')).collect(),
                _ => vec![],
            };
            for (key, value) in attributes {
                let has_it = |span: &Value| span["resource"][key] == json!({"string_value": value});
                assert!(spans.iter().all(has_it), "{heading}: {key} in {spans:#?}");
            }
        }
    }
}

#[test]
fn without_a_hook_the_variables_alone_bring_spans_to_a_receiver() {
    let receivers = [("http/protobuf", Receiver::start(&["200"])), ("grpc", Receiver::start_grpc(true, &["200"]))];
    for (protocol, receiver) in receivers {
        let Some(receiver) = receiver else { return };
        let cluster = Cluster::builder().build();
        let mut start = cluster.start_command(&[]);
        start.env("OTEL_TRACES_EXPORTER", "otlp").env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol);
        start.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint()).env("OTEL_BSP_SCHEDULE_DELAY", "20");
        cluster.run(start).success();
        // From a shell that has none of them.
        submit_rich(&cluster);
        assert_rich_trace(&receiver.wait_for_spans(4));
        cluster.stop().success();
    }
}
