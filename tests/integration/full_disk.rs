//! A disk that is full: tasks run, what is lost is counted, and recording resumes when there is room.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use super::metrics::{OPENMETRICS, ask, samples, scrape, serve, text};
use crate::support::{Api, Cluster, HOOK, kill, skip, wait_until};

/// A small file system in memory, for as long as this lives.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// None, which skips the test, where mounting is not permitted.
    fn mount(path: &Path, size: &str) -> Option<SmallDisk> {
        fs::create_dir(path).expect("the test's folder is ours");
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk { path: path.into() }),
            Ok(output) => {
                skip("tmpfs", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                skip("tmpfs", error);
                None
            }
        }
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let error = fs::write(self.path.join("filler"), vec![b'x'; 64 << 20]).expect_err("it is smaller than that");
        assert_eq!(error.raw_os_error(), Some(28), "{error}");
    }

    fn make_room(&self) {
        fs::remove_file(self.path.join("filler")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

#[test]
fn tasks_run_on_while_the_disk_of_the_span_files_is_full_and_every_span_is_written_when_there_is_room() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "512k") else { return };
    assert_eq!(fs::metadata(cluster.spans_dir()).unwrap().permissions().mode() & 0o777, 0o700);
    cluster.start_head(&[]).success();
    cluster.submit("misbehaving_tasks:makes_one_span", &["1"]).success().stdout("1\n");
    disk.fill();
    for number in ["2", "3", "4"] {
        cluster.submit("misbehaving_tasks:makes_one_span", &[number]).success().stdout(&format!("{number}\n"));
    }
    let whole = cluster.spans();
    assert!(whole.torn_lines.is_empty(), "{:?}", whole.torn_lines);
    assert!(whole.len() < 4 * 4, "there was no room for all: {}", whole.describe());
    disk.make_room();
    cluster.submit("misbehaving_tasks:makes_one_span", &["5"]).success().stdout("5\n");
    // The submitters that ended while there was no room have left their spans to the head, which has tried once; the next head
    // tries again.
    cluster.stop().success();
    cluster.start_head(&[]).success();
    let spans = cluster.wait_for_spans("all of them", |spans| spans.len() >= 5 * 4);
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 5 * 4, "{}", spans.describe());
    cluster.stop().success();
}

#[test]
fn a_full_disk_of_the_journal_refuses_new_tasks_by_name_and_loses_none() {
    for sync in ["--journal-sync=false", "--journal-sync=true"] {
        let cluster = Cluster::builder().arg(sync).build();
        let Some(disk) = SmallDisk::mount(&cluster.temp_dir(), "48m") else { return };
        cluster.start_head(&[]).success();
        let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
        cluster.submit("misbehaving_tasks:waits", &[&started, &go, "--no-wait"]).success().stdout("1\n");
        cluster.wait_for_file(&cluster.file("started"));
        cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("2\n");
        disk.fill();
        // Larger than what is left of the last page.
        let text = json!("x".repeat(100_000)).to_string();
        let refused = cluster.submit("wordcount:count", &[&text]).status(1);
        refused.stderr_contains("the journal cannot be written, so nothing was accepted: ");
        // What was accepted goes on, and its end is told when it can be written.
        fs::write(cluster.file("go"), "").unwrap();
        assert_eq!(cluster.wait_for_task(2)["state"], "succeeded");
        assert_eq!(cluster.tasks().len(), 2);
        disk.make_room();
        cluster.submit("wordcount:count", &[&text]).success().stdout("1\n");
        assert_eq!(cluster.status()["warnings"], json!([]));
        cluster.kill_head();
        cluster.start_head(&[]).success();
        let outcomes: Vec<_> = (1..=3).map(|id| cluster.task(id)["state"].clone()).collect();
        assert_eq!(outcomes, ["succeeded", "succeeded", "succeeded"]);
        cluster.stop().success();
    }
}

#[test]
fn what_a_full_disk_costs_is_counted_and_recording_resumes() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "4m") else { return };
    cluster.start_head(&[]).success();
    cluster.submit("misbehaving_tasks:makes_one_span", &["1"]).success();
    disk.fill();
    // More than the spool has places.
    cluster.submit("misbehaving_tasks:makes_spans", &["6000"]).success().stdout("6000\n");
    let counts = wait_until("it is counted", || {
        Some(cluster.status()["spans"].clone()).filter(|counts| counts["at_risk"].as_u64() > Some(0))
    });
    assert!(counts["at_risk"].as_u64() >= Some(1900), "{counts}");
    assert_eq!(counts["lost"], 0, "{counts}");
    cluster.tracer(&["status"]).success().stdout_contains("not written yet, and in no spool");
    disk.make_room();
    cluster.submit("misbehaving_tasks:makes_one_span", &["2"]).success();
    let spans = cluster.wait_for_spans("the last task's", |spans| spans.all_named("inner").len() == 2);
    assert!(spans.torn_lines.is_empty(), "{:?}", spans.torn_lines);
    // What the process kept in memory is written too.
    assert!(spans.all_named("ended 6000").len() == 1, "{} spans", spans.len());
    let counts = cluster.status()["spans"].clone();
    assert_eq!((&counts["lost"], &counts["at_risk"]), (&json!(0), &json!(0)), "{counts}");
    cluster.stop().success();
}

/// Returns the number of spans in the file of a process.
fn count_of(cluster: &Cluster, pid: u32) -> u64 {
    let text = fs::read_to_string(cluster.spans_dir().join(format!("{pid}.json"))).expect("it has spans");
    text.lines().count() as u64
}

/// More spans than the hook keeps in memory.
const MANY: u64 = 40_000;

#[test]
fn what_the_hook_gives_up_on_a_full_disk_is_counted_to_the_span_and_said() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "24m") else { return };
    cluster.start_head(&[]).success();
    cluster.submit("misbehaving_tasks:makes_one_span", &["1"]).success();
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    disk.fill();
    cluster.submit("traced_tasks:many", &[&MANY.to_string()]).success();
    let counts = cluster.status()["spans"].clone();
    assert!(counts["lost"].as_u64() > Some(10_000), "{counts}");
    assert!(counts["at_risk"].as_u64() > Some(1_000), "{counts}");
    disk.make_room();
    cluster.submit("misbehaving_tasks:makes_one_span", &["2"]).success();
    // Each of the others has two, with that of the attempt.
    let missing = MANY + 1 + 2 * 2 - count_of(&cluster, worker);
    let counts = cluster.status()["spans"].clone();
    assert_eq!((&counts["lost"], &counts["dropped"]), (&json!(missing), &json!(missing)), "{counts}");
    assert_eq!(counts["at_risk"], 0, "{counts}");
    let said: u64 = logs_of(&cluster)
        .lines()
        .filter_map(|line| line.strip_prefix("tracer: spans could not be written: ")?.split_once(" spans are lost: "))
        .map(|(count, _)| count.parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(said, missing);
    cluster.stop().success();
}

#[test]
fn what_dies_with_a_process_on_a_full_disk_is_counted_to_the_span() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "24m") else { return };
    cluster.start_head(&[]).success();
    cluster.submit("misbehaving_tasks:makes_one_span", &["1"]).success();
    disk.fill();
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    cluster.submit("traced_tasks:many", &[&MANY.to_string()]).success();
    disk.make_room();
    kill(worker, Signal::KILL);
    let counts = wait_until("it is counted", || {
        Some(cluster.status()["spans"].clone()).filter(|counts| counts["lost_with_process"].as_u64() > Some(0))
    });
    let missing = MANY + 1 + 2 - count_of(&cluster, worker);
    let lost = counts["lost"].as_u64().expect("a number");
    // A write that failed may have filled the last page of the file.
    assert!((missing..missing + 12).contains(&lost), "{missing} are missing, {counts}");
    assert_eq!(counts["at_risk"], 0, "{counts}");
    cluster.stop().success();
}

/// Returns how often a text is in the files of log records.
fn logged(cluster: &Cluster, text: &str) -> usize {
    let files = fs::read_dir(cluster.spans_dir()).expect("the folder").flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.to_str().is_some_and(|path| path.ends_with(".logs.jsonl")));
    files.map(|path| fs::read_to_string(path).expect("it is text").matches(text).count()).sum()
}

#[test]
fn log_records_wait_while_the_disk_is_full_and_those_beyond_that_are_counted_and_said() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "24m") else { return };
    cluster.start_head(&[]).success();
    cluster.submit("traced_tasks:logs_many", &["1"]).success();
    disk.fill();
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    cluster.submit("traced_tasks:logs_many", &["100"]).success();
    assert_eq!(logged(&cluster, "an event"), 1, "there is no room for them");
    wait_until("it is said", || logs_of(&cluster).contains("log records cannot be written, 100 wait: ").then_some(()));
    disk.make_room();
    // One is looked after again a second after it could not be written.
    wait_until("they are written", || (logged(&cluster, "an event") == 101).then_some(()));
    disk.fill();
    cluster.submit("traced_tasks:logs_many", &["50000"]).success();
    let said = wait_until("it is said", || {
        let logs = logs_of(&cluster);
        let said = logs.lines().filter(|line| line.contains("log records lost: ")).count();
        (said > 10).then_some(said)
    });
    assert!(said <= 16, "{said}: ever more rarely");
    disk.make_room();
    cluster.submit("traced_tasks:logs_many", &["3"]).success();
    let kept = wait_until("the latest are written", || Some(logged(&cluster, "an event")).filter(|kept| *kept > 200));
    assert!((1_000..50_000).contains(&kept), "{kept}");
    assert_eq!(cluster.worker_pids(), [worker]);
    cluster.stop().success();
}

#[test]
fn values_of_series_for_which_the_disk_has_no_room_are_added_up_and_that_is_said_once() {
    let cluster = Cluster::builder().hook(HOOK).arg("--metrics=127.0.0.1:0").build();
    fs::DirBuilder::new().mode(0o700).create(cluster.temp_dir()).expect("the test's folder is ours");
    let Some(_disk) = SmallDisk::mount(&cluster.temp_dir().join("metrics.modules"), "64k") else { return };
    cluster.start_head(&[]).success();
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    let sold = |cluster: &Cluster| -> Vec<(String, f64)> {
        let samples = samples(&text(&scrape(cluster, OPENMETRICS)));
        samples.into_iter().filter(|(name, _)| name.starts_with("shop_sold_total{")).collect()
    };
    for round in 1..=2 {
        cluster.submit("traced_tasks:counts_series", &["1000"]).success();
        let series = sold(&cluster);
        assert!((20..900).contains(&series.len()), "{} series", series.len());
        assert_eq!(series.iter().map(|(_, value)| value).sum::<f64>(), 1000.0 * f64::from(round));
    }
    assert_eq!(cluster.worker_pids(), [worker]);
    let log = logs_of(&cluster);
    let said: Vec<_> = log.lines().filter(|line| line.contains("metric `shop.sold`: ")).collect();
    assert_eq!(said.len(), 1, "{log}");
    assert!(said[0].contains("No space left on device"), "{log}");
    // The next process goes on with the same sums.
    kill(worker, Signal::KILL);
    wait_until("the worker is replaced", || (cluster.worker_pids() != [worker]).then_some(()));
    cluster.submit("traced_tasks:counts_series", &["1000"]).success();
    assert_eq!(sold(&cluster).iter().map(|(_, value)| value).sum::<f64>(), 3000.0);
    cluster.stop().success();
}

/// Returns the number of values of a metric's series that have this in their attributes.
fn counted(cluster: &Cluster, name: &str, attribute: &str) -> f64 {
    let samples = samples(&text(&scrape(cluster, OPENMETRICS)));
    let prefix = format!("{name}{{");
    samples.iter().filter(|(key, _)| key.starts_with(&prefix) && key.contains(attribute)).map(|(_, value)| value).sum()
}

/// Returns how often the head has said that its disk has no room for series.
fn said_by_head(cluster: &Cluster) -> usize {
    let log = cluster.head_log();
    log.lines().filter(|line| line.contains("for series of metrics") || line.contains("for further series")).count()
}

#[test]
fn runs_of_functions_for_which_the_disk_has_no_room_are_counted_without_their_names_and_that_is_said_once() {
    let cluster = Cluster::builder().arg("--metrics=127.0.0.1:0").build();
    let Some(disk) = SmallDisk::mount(&cluster.temp_dir(), "48m") else { return };
    cluster.start_head(&[]).success();
    let overflowed = |cluster: &Cluster| cluster.status()["metrics_overflowed"].as_u64().expect("a number");
    cluster.submit("demo:my_function", &[]).success();
    assert_eq!((overflowed(&cluster), said_by_head(&cluster)), (0, 0));
    // Each command has a series of its own. Those who are to run are accepted while there is room, and wait.
    let go = cluster.file("go");
    let (started, argument) = (json!(cluster.file("started")).to_string(), json!(go).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &argument, "--no-wait"]).success();
    cluster.wait_for_file(&cluster.file("started"));
    const COMMANDS: u64 = 20;
    for number in 0..COMMANDS {
        let program = cluster.file(&format!("program-{number}"));
        std::os::unix::fs::symlink("/bin/true", &program).expect("the folder is ours");
        let name = program.to_str().expect("it is text");
        cluster.tracer(&["submit", "command", "--no-wait", "--", name]).success();
    }
    disk.fill();
    fs::write(&go, "").expect("it is on another disk");
    for task in 3..3 + COMMANDS {
        assert_eq!(cluster.wait_for_task(task)["state"], "succeeded");
    }
    let refused = overflowed(&cluster);
    assert!(refused > 20, "{refused}: run time and time in the queue of most of them");
    let run = |attribute: &str| counted(&cluster, "tracer_task_duration_seconds_count", attribute);
    let with_names = run("tracer_function=");
    assert_eq!(with_names + run("otel_metric_overflow=\"true\""), COMMANDS as f64 + 2.0);
    assert!(run("otel_metric_overflow=\"true\"") > 5.0);
    assert!(text(&scrape(&cluster, OPENMETRICS)).contains(&format!("\ntracer_metrics_overflowed_total {refused}\n")));
    let line = "values counted with `otel.metric.overflow`: the disk had no room";
    cluster.tracer(&["status"]).success().stdout_contains(&format!("{refused} {line}"));
    disk.make_room();
    // The disk is asked again after a second, and the log has what it had no room for.
    wait_until("there is a series again", || {
        cluster.tracer(&["submit", "command", "--", "/bin/true"]).success();
        (run("tracer_function=") > with_names).then_some(())
    });
    let refused = overflowed(&cluster);
    cluster.tracer(&["submit", "command", "--", "/bin/true"]).success();
    assert_eq!(overflowed(&cluster), refused);
    wait_until("it is said", || (said_by_head(&cluster) > 0).then_some(()));
    assert_eq!(said_by_head(&cluster), 1);
    // The next head goes on with the counts, and begins to count what has no room.
    cluster.kill_head();
    cluster.start_head(&[]).success();
    assert!(run("otel_metric_overflow=\"true\"") > 5.0);
    assert_eq!(overflowed(&cluster), 0);
    cluster.stop().success();
}

/// Asks a service with several methods for two applications. Returns the number of requests.
fn ask_in_many_ways(address: std::net::SocketAddr) -> f64 {
    let mut requests = 0.0;
    for path in ["/hello", "/echo"] {
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
            assert_eq!(ask(address, &format!("{method} {path} HTTP/1.1"), "").expect("it answers"), 200);
            requests += 1.0;
        }
    }
    requests
}

#[test]
fn requests_for_which_the_disk_has_no_room_are_counted_without_their_attributes_and_none_is_missing() {
    for is_full_from_the_start in [false, true] {
        let cluster = Cluster::builder().arg("--metrics=127.0.0.1:0").build();
        fs::DirBuilder::new().mode(0o700).create(cluster.temp_dir()).expect("the test's folder is ours");
        let Some(disk) = SmallDisk::mount(&cluster.temp_dir().join("metrics.serving"), "1m") else { return };
        cluster.start_head(&[]).success();
        if is_full_from_the_start {
            disk.fill();
        }
        let address = serve(&cluster);
        if !is_full_from_the_start {
            disk.fill();
        }
        let overflowed = || cluster.status()["metrics_overflowed"].as_u64().expect("a number");
        let count = |attribute: &str| counted(&cluster, "http_server_request_duration_seconds_count", attribute);
        let all = || count("tracer_service=") + count("otel_metric_overflow=");
        let mut asked = (0..3).map(|_| ask_in_many_ways(address)).sum::<f64>();
        let without_room = "for further series of metrics, whose values are counted with `otel.metric.overflow`";
        wait_until("the proxy has said it", || logs_of(&cluster).contains(without_room).then_some(()));
        if is_full_from_the_start {
            assert_eq!(all(), 0.0, "there is no file");
        } else {
            assert_eq!(all(), asked);
            assert!(count("otel_metric_overflow=") > 0.0 && overflowed() > 0);
            let said = said_by_head(&cluster);
            assert_eq!(said, 1, "{}", cluster.head_log());
        }
        disk.make_room();
        // The disk is asked again a second after it had no room, by each thread of the proxy that is asked.
        wait_until("each request has a series again", || {
            let before = overflowed();
            asked += ask_in_many_ways(address);
            (all() == asked && overflowed() == before).then_some(())
        });
        assert!(count("tracer_service=") > 0.0 && count("otel_metric_overflow=") > 0.0);
        let line = "values counted with `otel.metric.overflow`: the disk had no room";
        cluster.tracer(&["status"]).success().stdout_contains(line);
        assert_eq!(said_by_head(&cluster), 1, "{}", cluster.head_log());
        let service = cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"][0].take();
        assert_eq!((&service["state"], &service["proxies"][0]["lost"]), (&json!("running"), &json!(null)), "{service}");
        cluster.stop().success();
    }
}

/// Returns the standard error of workers and of processes of services.
fn logs_of(cluster: &Cluster) -> String {
    let folders = ["logs", "logs/serve"].map(|folder| fs::read_dir(cluster.session_dir().join(folder)));
    let files = folders.into_iter().flatten().flatten().flatten();
    files.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect()
}

#[test]
fn span_files_are_put_aside_at_their_size_without_a_gap() {
    let cluster = Cluster::builder().hook(HOOK).env("TRACER_SPANS_MAX_BYTES", "65536").start();
    let lines: String = (0..100).map(|number| format!("{number}\n")).collect();
    fs::write(cluster.file("lines"), lines).expect("the folder is ours");
    cluster.submit("misbehaving_tasks:makes_one_span", &["--map", "lines"]).success();
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    let size = |name: &str| fs::metadata(cluster.spans_dir().join(name)).map_or(0, |file| file.len());
    let sizes = ["", ".1", ".2"].map(|part| size(&format!("{worker}{part}.json")));
    assert!(sizes.iter().all(|size| (1..=65_536).contains(size)), "{sizes:?}");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!((spans.all_named("inner").len(), spans.torn_lines.len()), (100, 0));
    // The reader knows them too.
    assert_eq!(cluster.tracer(&["trace", "list", "--format", "json"]).success().json()["traces"][0]["spans"], 301);
}

#[test]
fn a_size_of_span_files_that_is_no_number_is_refused() {
    let (cluster, run) = Cluster::builder().hook(HOOK).env("TRACER_SPANS_MAX_BYTES", "1 GB").try_start();
    run.status(2).stderr_contains("`TRACER_SPANS_MAX_BYTES` is `1 GB`, but takes a number of bytes from 1\n(hint: ");
    cluster.assert_nothing_runs();
}

#[test]
fn a_full_disk_of_the_place_is_no_fault_of_the_hook() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let Some(_disk) = SmallDisk::mount(&cluster.temp_dir(), "64k") else { return };
    let refused = cluster.start_head(&[]).status(1).stdout("");
    let text = refused.stderr_text();
    assert!(text.contains("No space left on device") && !text.contains("hook"), "{text}");
    cluster.assert_nothing_runs();
}

#[test]
fn what_is_sent_to_a_full_disk_is_to_be_sent_again_and_is_there_once_when_it_was() {
    let cluster = Cluster::builder().hook(HOOK).arg("--otlp=127.0.0.1:0").build();
    let Some(disk) = SmallDisk::mount(&cluster.spans_dir(), "512k") else { return };
    cluster.start_head(&[]).success();
    let path = cluster.status()["http"]["otlp_token_path"].as_str().expect("a path").to_owned();
    let token = fs::read_to_string(path).expect("there is a token").trim_end().to_owned();
    let api = Api { token, ..Api::of(&cluster) };
    let send = |id: u8| {
        let attributes = json!([{"key": "long", "value": {"stringValue": "x".repeat(20_000)}}]);
        let span = json!({"traceId": "ab".repeat(16), "spanId": format!("{id:016x}"), "name": "sent", "startTimeUnixNano": "1",
            "endTimeUnixNano": "2", "attributes": attributes});
        let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]});
        api.ask("POST", "/v1/traces").json(&body).send()
    };
    send(1).status(200);
    disk.fill();
    let refused = wait_until("the disk is full", || Some(send(2)).filter(|answer| answer.status != 200));
    assert_eq!((refused.status, refused.header("retry-after")), (503, "5"), "{}", refused.text());
    assert!(refused.text().contains("No space left"), "{}", refused.text());
    disk.make_room();
    send(2).status(200);
    let list = cluster.tracer(&["trace", "show", &"ab".repeat(16), "--format", "json"]).success();
    assert_eq!(list.stderr_text(), "");
    assert_eq!(list.json()["spans"].as_array().map(Vec::len), Some(2));
}
