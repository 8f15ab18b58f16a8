//! Spans on their way to an exporter: none is lost when its process dies, when the exporter is held, or when it fails.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Builder, Cluster, kill, wait_until};

const BATCHES: &str = "exporters:batches";
const TARGET: &str = "misbehaving_tasks:makes_spans";

/// Returns the folder in which the exporters of a test put the spans that have arrived.
fn arrived_dir(cluster: &Cluster) -> PathBuf {
    cluster.file("arrived")
}

fn with_exporter(hook: &str) -> Builder {
    // Batches leave at once; what is held is held by the test.
    Cluster::builder().hook(hook).env("EXPORTED_DIR", "arrived").env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

/// Lets every exporter wait, or fail, until the file is removed.
fn notify(cluster: &Cluster, word: &str) {
    fs::create_dir_all(arrived_dir(cluster)).unwrap();
    fs::write(arrived_dir(cluster).join(word), "").unwrap();
}

fn release(cluster: &Cluster, word: &str) {
    fs::remove_file(arrived_dir(cluster).join(word)).unwrap();
}

/// Returns the spans that have arrived at all exporters.
fn arrived(folder: &Path) -> Vec<Value> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let lines = files.filter(|path| path.extension().is_some_and(|it| it == "lines"));
    let mut spans = Vec::new();
    for path in lines {
        let text = fs::read_to_string(path).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        spans.extend(whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON")));
    }
    spans
}

fn ids(spans: &[Value]) -> HashSet<String> {
    spans.iter().map(|span| span["span_id"].as_str().unwrap().to_owned()).collect()
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

#[track_caller]
fn wait_for_arrived(cluster: &Cluster, what: &str, is_enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    wait_until(what, || Some(arrived(&arrived_dir(cluster))).filter(|spans| is_enough(spans)))
}

/// Expects that no span is there twice, and none is without its parent.
#[track_caller]
fn assert_whole(spans: &[Value]) {
    let mut count = HashMap::<&str, usize>::new();
    for span in spans {
        *count.entry(span["span_id"].as_str().unwrap()).or_default() += 1;
    }
    for span in spans {
        assert_eq!(count[span["span_id"].as_str().unwrap()], 1, "twice: {span} in {spans:#?}");
        let parent = span["parent_id"].as_str().unwrap();
        assert!(parent == "0000000000000000" || count.contains_key(parent), "no parent: {span} in {spans:#?}");
    }
}

/// Runs a task whose spans its worker's exporter does not get rid of, and kills that worker.
#[track_caller]
fn worker_dies_with_spans(cluster: &Cluster) -> u32 {
    notify(cluster, "hold");
    cluster.submit(TARGET, &["3"]).success();
    let pid = cluster.worker_pids()[0];
    kill(pid, Signal::KILL);
    wait_until("the worker is replaced", || cluster.worker_pids().iter().all(|&other| other != pid).then_some(()));
    pid
}

#[test]
fn what_a_killed_worker_had_not_delivered_arrives_through_the_next_one() {
    let cluster = with_exporter(BATCHES).start();
    let pid = worker_dies_with_spans(&cluster);
    assert_eq!(arrived(&arrived_dir(&cluster)).len(), 0, "nothing has arrived by itself");
    release(&cluster, "hold");
    // Job, PRODUCER, attempt, three that ended, one that was open.
    let spans = wait_for_arrived(&cluster, "seven spans arrive", |spans| spans.len() >= 7);
    assert_whole(&spans);
    let attempt = named(&spans, "misbehaving_tasks.makes_spans tracer.remote_worker")[0];
    assert_eq!((&attempt["status"], &attempt["pid"]), (&Value::from("UNSET"), &Value::from(pid)));
    let open = named(&spans, "left open")[0];
    assert_eq!(open["status"], "ERROR the worker was killed by SIGKILL (signal 9)");
    assert_eq!(open["attributes"]["error.type"], "signal:9");
    assert_eq!(open["pid"], pid, "the resource is the dead process's");
    assert_eq!(open["parent_id"], attempt["span_id"]);
    for name in ["ended 1", "ended 2", "ended 3"] {
        assert_eq!(named(&spans, name)[0]["status"], "UNSET");
    }
    let counts = wait_until("the head knows", || {
        Some(cluster.status()["spans"].clone()).filter(|counts| counts["waiting"] == 0)
    });
    assert!(counts["handed_over"].as_u64() >= Some(5), "{counts}");
    assert_eq!((&counts["lost"], &counts["at_risk"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(cluster.spans().len(), 0, "they are not in the span file too");
    cluster.tracer(&["status"]).success().stdout_contains("to the exporter of another process");
}

#[test]
fn what_was_handed_over_goes_on_to_the_next_worker_if_that_one_dies_too() {
    let cluster = with_exporter(BATCHES).start();
    worker_dies_with_spans(&cluster);
    for _ in 0..2 {
        // The one that has them holds them, and dies of it.
        wait_until("the spans are with a worker", || {
            (cluster.status()["spans"]["waiting"].as_u64() >= Some(5)).then_some(())
        });
        let pid = cluster.worker_pids()[0];
        kill(pid, Signal::KILL);
        wait_until("the worker is replaced", || cluster.worker_pids().iter().all(|&other| other != pid).then_some(()));
    }
    release(&cluster, "hold");
    let spans = wait_for_arrived(&cluster, "seven spans arrive", |spans| ids(spans).len() >= 7);
    assert_eq!(ids(&spans).len(), 7);
}

#[test]
fn a_head_that_is_killed_loses_no_span_that_was_to_be_delivered() {
    let cluster = with_exporter(BATCHES).start();
    worker_dies_with_spans(&cluster);
    cluster.kill_head();
    cluster.assert_nothing_runs();
    release(&cluster, "hold");
    cluster.start_head(&[]).success();
    let spans = wait_for_arrived(&cluster, "seven spans arrive", |spans| ids(spans).len() >= 7);
    assert_eq!(ids(&spans).len(), 7);
    wait_until("none waits", || (cluster.status()["spans"]["waiting"] == 0).then_some(()));
}

#[test]
fn head_and_workers_killed_together_lose_no_span_that_was_to_be_delivered() {
    head_and_workers_are_killed_together(0);
}

/// Spans that a reader completes are delivered by the next head all the same, and in one piece.
#[test]
fn spans_that_a_reader_completes_for_a_dead_head_are_delivered_once() {
    head_and_workers_are_killed_together(2);
}

fn head_and_workers_are_killed_together(readers: usize) {
    let cluster = with_exporter(BATCHES).workers(2).start();
    notify(&cluster, "hold");
    cluster.submit(TARGET, &["3"]).success();
    cluster.submit(TARGET, &["3"]).success();
    let workers = cluster.worker_pids();
    let head = cluster.head_pid();
    for pid in workers.into_iter().chain([head]) {
        kill(pid, Signal::KILL);
    }
    cluster.assert_nothing_runs();
    for _ in 0..readers {
        cluster.tracer(&["trace", "open"]).success().stderr("").stdout("nothing is open\n");
    }
    release(&cluster, "hold");
    cluster.start_head(&[]).success();
    let spans = wait_for_arrived(&cluster, "all spans arrive", |spans| ids(spans).len() >= 14);
    assert_eq!(ids(&spans).len(), 14);
    let left_open = named(&spans, "left open");
    assert_eq!(left_open.len(), 2);
    if readers > 0 {
        wait_until("none waits", || (cluster.status()["spans"]["waiting"] == 0).then_some(()));
        assert_eq!(wait_for_arrived(&cluster, "none comes twice", |_| true).len(), 14);
    }
}

#[test]
fn what_is_left_when_the_head_stops_waits_for_the_next_one() {
    let cluster = with_exporter(BATCHES).start();
    worker_dies_with_spans(&cluster);
    cluster
        .stop()
        .success()
        .stderr_contains("waiting for an exporter that accepts them; the next head in this place goes on");
    release(&cluster, "hold");
    cluster
        .start_head(&[])
        .success()
        .stderr_contains("of an earlier session, waiting for an exporter that accepts them");
    let spans = wait_for_arrived(&cluster, "seven spans arrive", |spans| ids(spans).len() >= 7);
    assert_eq!(ids(&spans).len(), 7);
}

#[test]
fn a_worker_that_ends_in_good_order_delivers_all_by_itself() {
    let cluster = with_exporter(BATCHES).start();
    cluster.submit(TARGET, &["3"]).success();
    cluster.stop().success();
    let spans = arrived(&arrived_dir(&cluster));
    // The one that was left open is closed by the head, and waits.
    assert_eq!(spans.len(), 6, "{spans:#?}");
    cluster.start_head(&[]).success();
    let spans = wait_for_arrived(&cluster, "the open one arrives", |spans| spans.len() >= 7);
    assert_whole(&spans);
    assert_eq!(named(&spans, "left open")[0]["attributes"]["error.type"], "unfinished");
    cluster.stop().success();
    assert!(!cluster.file("spans").exists() || cluster.spans().is_empty());
}

#[test]
fn a_failing_exporter_is_tried_again_and_gets_every_span() {
    let cluster = with_exporter(BATCHES).start();
    notify(&cluster, "fail");
    for _ in 0..3 {
        cluster.submit(TARGET, &["3"]).success();
    }
    let counts = wait_until("the head keeps the spans", || {
        Some(cluster.status()["spans"].clone()).filter(|counts| counts["waiting"].as_u64() >= Some(3 * 6))
    });
    assert_eq!(counts["given_up"], 0);
    wait_until("it is said once", || cluster.head_log().contains("an exporter did not take").then_some(()));
    release(&cluster, "fail");
    let spans = wait_for_arrived(&cluster, "all that ended arrive", |spans| ids(spans).len() >= 3 * 6);
    assert_eq!(spans.len(), 3 * 6);
    assert_eq!(cluster.head_log().matches("an exporter did not take").count(), 1);
}

#[test]
fn more_spans_than_an_exporter_takes_wait_in_files_and_all_arrive() {
    let cluster = with_exporter(BATCHES).start();
    notify(&cluster, "hold");
    // More than may be under way, and more than the spool has slots.
    cluster.submit(TARGET, &["6000"]).success();
    let counts = wait_until("many wait", || {
        Some(cluster.status()["spans"].clone()).filter(|counts| counts["waiting"].as_u64() >= Some(2000))
    });
    assert_eq!((&counts["lost"], &counts["at_risk"]), (&0.into(), &0.into()));
    release(&cluster, "hold");
    let spans = wait_for_arrived(&cluster, "all arrive", |spans| ids(spans).len() >= 6003);
    assert_eq!(spans.len(), 6003);
}

#[test]
fn spans_that_an_exporter_has_got_are_not_given_to_another() {
    let cluster = with_exporter(BATCHES).start();
    cluster.submit(TARGET, &["3"]).success();
    wait_for_arrived(&cluster, "six spans arrive", |spans| spans.len() >= 6);
    let session = cluster.session_dir();
    // The note of it follows the export at once.
    wait_until("the spool knows", || {
        let spool = tracer::spool::Story::open(&session.join("spool/worker-1.spool")).ok()?;
        (spool.spans().iter().filter(|span| span.pending != 0).count() == 1).then_some(())
    });
    kill(cluster.worker_pids()[0], Signal::KILL);
    let spans = wait_for_arrived(&cluster, "the open one arrives", |spans| spans.len() >= 7);
    assert_whole(&spans);
}

#[test]
fn an_exporter_beside_the_file_gets_what_was_not_delivered_and_the_file_nothing_twice() {
    let cluster = with_exporter("exporters:batches_and_file").start();
    worker_dies_with_spans(&cluster);
    let in_file = cluster.wait_for_spans("all are in the files", |spans| spans.len() >= 7);
    in_file.assert_whole(&[]);
    assert_eq!(in_file.len(), 7, "{}", in_file.describe());
    release(&cluster, "hold");
    let spans = wait_for_arrived(&cluster, "seven spans arrive", |spans| spans.len() >= 7);
    assert_whole(&spans);
    let known: HashSet<String> = in_file.iter().map(|span| span.span_id()[2..].to_owned()).collect();
    assert_eq!(ids(&spans), known);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_simple_exporter_and_processors_that_tell_nothing_are_known_to_have_their_spans() {
    for hook in ["exporters:one_by_one", "exporters:processors"] {
        let cluster = if hook == "exporters:processors" {
            let flag = format!("--tracing-exporter={hook}");
            Cluster::builder().arg(flag).env("EXPORTED_DIR", "arrived").start()
        } else {
            with_exporter(hook).start()
        };
        cluster.submit(TARGET, &["3"]).success();
        wait_for_arrived(&cluster, "six spans arrive", |spans| spans.len() >= 6);
        let spool = cluster.session_dir().join("spool/worker-1.spool");
        wait_until("only the open one is left in the spool", || {
            let story = tracer::spool::Story::open(&spool).ok()?;
            (story.spans().iter().filter(|span| span.pending != 0).count() == 1).then_some(())
        });
        let pid = cluster.worker_pids()[0];
        kill(pid, Signal::KILL);
        let spans = wait_for_arrived(&cluster, "the open one arrives", |spans| spans.len() >= 7);
        assert_whole(&spans);
        assert_eq!(named(&spans, "left open")[0]["attributes"]["error.type"], "signal:9", "{hook}");
    }
}

#[test]
fn undelivered_spans_wait_for_the_hook_that_owes_them_and_are_shown_and_discarded() {
    const OTHER: &str = "exporters:one_by_one";
    // Job, PRODUCER, attempt, and one that the task makes.
    const COUNT: usize = 4;
    let cluster = with_exporter(BATCHES).start();
    notify(&cluster, "fail");
    cluster.submit("misbehaving_tasks:makes_one_span", &["1"]).success();
    let run = cluster.stop().success().stderr_contains("undelivered: 4 spans, waiting for an exporter");
    run.stderr_contains("(see `tracer hooks undelivered");
    release(&cluster, "fail");
    let start = |hook: &str| {
        let hook = format!("--tracing-startup-hook={hook}");
        cluster.tracer(&["start", "--head", "--num-workers", "1", &hook]).success()
    };
    let undelivered = |arguments: &[&str]| {
        let all = [&["hooks", "undelivered", "--format", "json"], arguments].concat();
        let report = cluster.tracer(&all).success().json();
        assert_eq!(report["discarded"], arguments.contains(&"--discard"));
        report
    };
    let expect_all = |report: &Value| {
        assert_eq!((&report["spans"], &report["hooks"][0]["hook"]), (&COUNT.into(), &BATCHES.into()), "{report}");
        assert_eq!(report["hooks"].as_array().map(Vec::len), Some(1), "{report}");
        assert!(report["hooks"][0]["oldest_time"].is_string() && report["bytes"].as_u64() > Some(0), "{report}");
    };
    expect_all(&undelivered(&[]));
    // Another hook, which has an exporter too, twice: what it has made itself arrives, and nothing else.
    for number in 1..=2 {
        start(OTHER).stderr_contains("4 spans of hooks that this head does not have (see `tracer hooks undelivered");
        cluster.submit("demo:my_function", &[]).success();
        let spans = wait_for_arrived(&cluster, "its own", |spans| spans.len() >= 3 * number);
        assert_eq!(named(&spans, "demo.my_function tracer.remote").len(), number, "{spans:#?}");
        assert_eq!(spans.len(), 3 * number, "{spans:#?}");
        let counts = cluster.status()["spans"].clone();
        let (own, others) = (&counts["waiting"], &counts["waiting_for_other_hooks"]);
        assert_eq!((own, others), (&0.into(), &COUNT.into()), "{counts}");
        expect_all(&undelivered(&[]));
        assert_eq!(undelivered(&[OTHER, "--discard"])["spans"], 0);
        cluster.stop().success().stderr_contains("4 spans of hooks that this head did not have");
    }
    // And the one that owes them.
    start(BATCHES);
    let spans = wait_for_arrived(&cluster, "all of them", |spans| spans.len() >= 6 + COUNT);
    assert_eq!(ids(&spans).len(), 6 + COUNT, "{spans:#?}");
    assert_whole(&spans);
    wait_until("the head knows", || (cluster.status()["spans"]["waiting"] == 0).then_some(()));
    assert_eq!(undelivered(&[])["hooks"], Value::Array(Vec::new()));
    // Spans that a head has are discarded too.
    notify(&cluster, "fail");
    cluster.submit("demo:my_function", &[]).success();
    wait_until("they wait", || (cluster.status()["spans"]["waiting"] == 3).then_some(()));
    let discarded = cluster.tracer(&["hooks", "undelivered", BATCHES, "--discard"]).success();
    discarded.stdout_contains("\ndiscarded 3 spans\n");
    wait_until("the head knows", || (cluster.status()["spans"]["waiting"] == 0).then_some(()));
    cluster.tracer(&["hooks", "undelivered"]).success().stdout("no undelivered spans\n");
    let run = cluster.stop().success();
    assert!(!run.stderr_text().contains("undelivered"), "{run:?}");
}

/// Reads a request, answers it, and says when it came.
fn answer(mut stream: TcpStream, answer: &str, came: &Sender<Instant>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length is a number");
            }
            if line.is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        let now = Instant::now();
        write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n")?;
        let _ = came.send(now);
    }
}

/// Returns a receiver of OTLP over HTTP that always says the same. The times at which requests come are sent on.
fn receiver(says: &'static str) -> (String, Receiver<Instant>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it has one"));
    let (sender, times) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || answer(stream, says, &sender));
        }
    });
    (endpoint, times)
}

#[test]
fn a_pause_that_a_receiver_asks_one_process_for_is_kept_by_all() {
    const WORKERS: usize = 3;
    // As the first hook, and as an additional one.
    for hooks in [&["otlp:setup_tracing"][..], &["local_tmp_tracing:setup_tracing", "otlp:setup_tracing"]] {
        let (endpoint, times) = receiver("429 Too Many Requests\r\nRetry-After: 600");
        let cluster = hooks
            .iter()
            .fold(Cluster::builder(), |builder, hook| builder.arg(format!("--tracing-startup-hook={hook}")));
        let cluster = cluster
            .workers(WORKERS)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .env("OTEL_BSP_SCHEDULE_DELAY", "1")
            .start();
        cluster.submit("demo:my_function", &[]).success();
        times.recv_timeout(Duration::from_secs(60)).expect("somebody asks the receiver");
        // The process that asked needs a moment to tell, and others may have asked meanwhile.
        let pause = || {
            fs::read_dir(cluster.session_dir().join("handover")).unwrap().flatten().any(|file| {
                file.file_name().to_string_lossy().starts_with("pause.")
                    && file.path().extension().is_some_and(|it| it != "part")
            })
        };
        wait_until("the session knows of the pause", || pause().then_some(()));
        let before = times.try_iter().count();
        assert!(before < 2 * WORKERS, "each worker may have asked, but no more: {before}");
        // Every worker has spans of its own to send now.
        let released = cluster.file("released");
        let submissions: Vec<_> = (0..WORKERS)
            .map(|number| {
                let started = cluster.file(&format!("started-{number}"));
                let [begin, end] = [&started, &released].map(|path| format!("{path:?}"));
                let submission = cluster.submit_in_background("misbehaving_tasks:waits", &[&begin, &end]);
                (started, submission)
            })
            .collect();
        wait_until("all workers are busy", || submissions.iter().all(|(started, _)| started.exists()).then_some(()));
        fs::write(&released, "").unwrap();
        for (_, submission) in submissions {
            submission.wait().success();
        }
        let all = 3 + 3 * WORKERS;
        wait_until("all spans wait with the head", || (cluster.status()["spans"]["waiting"] == all).then_some(()));
        cluster.stop().success();
        assert_eq!(times.try_iter().count(), 0, "{hooks:?}: nobody asks before the pause is over, not even at the end");
    }
}
