//! Metrics of modules: what tasks measure through OpenTelemetry's API, summed over processes and their deaths.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::metrics::{OPENMETRICS, samples, scrape, text};
use crate::support::{Cluster, HOOK, Receiver, build_standalone, compile_c, kill_if_there, wait_until};

/// The labels of the scope of the fixtures.
const SCOPE: &str = r#"otel_scope_name="traced_tasks",otel_scope_version="1.2""#;

fn cluster(workers: usize) -> Cluster {
    Cluster::builder().workers(workers).hook(HOOK).arg("--http=127.0.0.1:0").start()
}

/// Returns the samples now, those of one process without its id.
fn values(cluster: &Cluster) -> BTreeMap<String, f64> {
    let without_pid = |name: String| match name.split_once("process_pid=\"") {
        Some((before, rest)) => format!("{before}{}", rest.split_once("\",").map_or("", |(_, after)| after)),
        None => name,
    };
    samples(&text(&scrape(cluster, OPENMETRICS))).into_iter().map(|(name, value)| (without_pid(name), value)).collect()
}

#[track_caller]
fn value(values: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let labels = if labels.is_empty() { SCOPE.to_owned() } else { format!("{labels},{SCOPE}") };
    let name = format!("{name}{{{labels}}}");
    *values.get(&name).unwrap_or_else(|| panic!("`{name}` in {values:#?}"))
}

#[test]
fn every_kind_of_instrument_is_scraped_with_its_attributes_and_scope() {
    let cluster = cluster(1);
    cluster.submit("traced_tasks:measure", &[]).success();
    let now = values(&cluster);
    let east = r#"shop_region="east""#;
    assert_eq!(value(&now, "shop_revenue_EUR_total", east), 2.5);
    assert_eq!(value(&now, "shop_carts", east), 2.0);
    assert_eq!(value(&now, "shop_balance", ""), -0.5);
    assert_eq!(value(&now, "shop_shelves", ""), 7.0);
    assert_eq!(value(&now, "shop_floor", ""), -1.0);
    assert_eq!(value(&now, "shop_temperature_celsius", east), 21.5);
    assert_eq!(value(&now, "shop_items_sum", east), 56.0);
    assert_eq!(value(&now, "shop_items_count", east), 3.0);
    assert_eq!(now[&format!("shop_items_bucket{{{east},{SCOPE},le=\"10.0\"}}")], 2.0);
    // Nobody said boundaries: those of the specification.
    assert_eq!(now[&format!("shop_wait_seconds_bucket{{{SCOPE},le=\"25.0\"}}")], 0.0);
    assert_eq!(now[&format!("shop_wait_seconds_bucket{{{SCOPE},le=\"50.0\"}}")], 1.0);
    // Gauges say whose value it is.
    let pid = cluster.worker_pids()[0];
    let whole = text(&scrape(&cluster, OPENMETRICS));
    assert!(whole.contains(&format!("shop_shelves{{process_pid=\"{pid}\",{SCOPE}}} 7\n")), "{whole}");
    assert!(whole.contains("# TYPE shop_carts gauge\n") && whole.contains("# TYPE shop_items histogram\n"), "{whole}");
}

#[test]
fn sums_outlive_a_killed_worker_and_what_was_of_it_alone_goes() {
    let cluster = cluster(1);
    cluster.submit("traced_tasks:measure", &[]).success();
    cluster.submit("traced_tasks:order", &["\"west\"", "2"]).success();
    let east = r#"shop_region="east""#;
    let before = values(&cluster);
    assert_eq!(value(&before, "shop_orders_total", r#"shop_express="true",shop_region="west""#), 1.0);
    let pid = cluster.worker_pids()[0];
    kill_if_there(pid, Signal::KILL);
    wait_until("the worker is replaced", || cluster.worker_pids().iter().all(|&other| other != pid).then_some(()));
    let after = values(&cluster);
    for (name, labels) in
        [("shop_revenue_EUR_total", east), ("shop_items_count", east), ("shop_wait_seconds_count", "")]
    {
        assert_eq!(value(&after, name, labels), value(&before, name, labels), "{name}");
    }
    let is_there = |name: &str| after.keys().any(|key| key.starts_with(&format!("{name}{{")));
    assert!(!["shop_carts", "shop_shelves", "shop_temperature_celsius"].into_iter().any(is_there), "{after:#?}");
    cluster.submit("traced_tasks:measure", &[]).success();
    let again = values(&cluster);
    assert_eq!(value(&again, "shop_revenue_EUR_total", east), 5.0);
    assert_eq!(value(&again, "shop_items_sum", east), 112.0);
    assert_eq!(value(&again, "shop_carts", east), 2.0);
    let files = fs::read_dir(cluster.session_dir().ancestors().nth(2).expect("a place").join("metrics.modules"));
    assert_eq!(files.expect("there is a folder").count(), 1, "the next worker goes on with the file");
}

#[test]
fn observers_are_asked_at_each_scrape_and_one_that_panics_harms_nobody() {
    let cluster = cluster(1);
    cluster.submit("traced_tasks:observe", &[]).success();
    let first = values(&cluster);
    assert_eq!(value(&first, "shop_visits_total", ""), 10.0);
    assert_eq!(value(&first, "shop_queue", ""), -4.0);
    assert_eq!(value(&first, "shop_load", r#"shop_room="front""#), 0.25);
    assert_eq!(value(&first, "shop_load", r#"shop_room="back""#), 0.75);
    let second = values(&cluster);
    assert_eq!(value(&second, "shop_visits_total", ""), 20.0);
    assert!(!second.keys().any(|key| key.contains("shop_room=\"back\"")), "it was not told any more: {second:#?}");
    // A sum that observers tell goes on where that of the dead process ended.
    let pid = cluster.worker_pids()[0];
    kill_if_there(pid, Signal::KILL);
    wait_until("the worker is replaced", || cluster.worker_pids().iter().all(|&other| other != pid).then_some(()));
    assert_eq!(value(&values(&cluster), "shop_visits_total", ""), 20.0);
    cluster.submit("traced_tasks:observe", &[]).success();
    assert_eq!(value(&values(&cluster), "shop_visits_total", ""), 30.0);
}

#[test]
fn what_an_instrument_does_not_take_is_left_out_and_what_cannot_be_made_is_said() {
    let cluster = cluster(1);
    cluster.submit("traced_tasks:mismeasure", &[]).success();
    cluster.submit("traced_tasks:order", &["\"west\"", "1"]).success();
    let now = values(&cluster);
    assert!(!now.keys().any(|key| key.contains("refused")), "{now:#?}");
    assert_eq!(value(&now, "shop_orders_total", r#"shop_express="false",shop_region="west""#), 1.0);
    let log = wait_until("it is said", || {
        let logs = fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
        let log: String = logs.filter_map(|log| fs::read_to_string(log.ok()?.path()).ok()).collect();
        log.contains("an instrument is not made").then_some(log)
    });
    assert!(log.contains("instrument `shop.refused.boundaries` is not made"), "{log}");
}

#[test]
fn values_of_more_attributes_than_there_are_series_are_added_up_in_little_memory_and_that_is_said_once() {
    // Ten million take as little: this is what a test has time for.
    const VALUES: u32 = 100_000;
    let cluster = cluster(1);
    cluster.submit("traced_tasks:counts_series", &["3000"]).success();
    let [pid] = cluster.worker_pids()[..] else { panic!("one worker") };
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory").trim();
        memory.trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    let before = memory();
    cluster.submit("traced_tasks:counts_series", &[&VALUES.to_string()]).success();
    assert!(memory() < before + (4 << 10), "{before} KiB before, {} after", memory());
    let sold: Vec<_> = values(&cluster).into_iter().filter(|(name, _)| name.starts_with("shop_sold_total{")).collect();
    assert_eq!(sold.len(), 2000);
    assert_eq!(sold.iter().map(|(_, value)| value).sum::<f64>(), f64::from(3000 + VALUES));
    let overflow = sold.iter().find(|(name, _)| name.contains("otel_metric_overflow=\"true\"")).expect("the rest").1;
    assert_eq!(overflow, f64::from(3000 + VALUES - 2 * 1999));
    let folder = cluster.temp_dir().join("metrics.modules");
    let blocks =
        |entry: std::io::Result<fs::DirEntry>| entry.and_then(|entry| entry.metadata()).map_or(0, |file| file.blocks());
    let bytes = fs::read_dir(folder).expect("there are files").map(blocks).sum::<u64>() * 512;
    assert!(bytes < 1 << 20, "{bytes} bytes on the disk");
    let logs = fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    let log: String = logs.filter_map(|log| fs::read_to_string(log.ok()?.path()).ok()).collect();
    assert_eq!(log.matches("metric `shop.sold`: ").count(), 1, "{log}");
    assert!(log.contains("an instrument has at most 2000 series"), "{log}");
}

#[test]
fn the_exemplar_of_a_modules_counter_names_the_trace_of_its_task() {
    let cluster = cluster(1);
    cluster.submit("traced_tasks:order", &["\"north\"", "7"]).success();
    let whole = text(&scrape(&cluster, OPENMETRICS));
    let line = whole.lines().find(|line| line.starts_with("shop_orders_total{")).expect("it is counted");
    let trace = line.split("trace_id=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an exemplar");
    cluster.tracer(&["trace", "show", trace]).success().stdout_contains("traced_tasks.order");
    let span = line.split("span_id=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an exemplar");
    let spans = cluster.spans();
    let named = spans.iter().find(|found| found.span_id().trim_start_matches("0x") == span).expect("it is a span");
    assert_eq!(named.name(), "traced_tasks.order tracer.remote_worker");
}

#[test]
fn a_module_on_opentelemetry_0_31_measures_like_any_other() {
    let Some(folder) = build_standalone("otel_0_31", "") else { return };
    let builder = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0");
    let cluster = builder.env("TRACER_MODULE_PATH", &folder).start();
    cluster.submit("otel_0_31:measure", &[]).success();
    let now = values(&cluster);
    let scope = r#"otel_scope_name="otel_0_31""#;
    assert_eq!(now[&format!("old_orders_total{{old_region=\"east\",{scope}}}")], 3.0);
    assert_eq!(now[&format!("old_wait_seconds_count{{{scope}}}")], 1.0);
    assert_eq!(now[&format!("old_depth{{{scope}}}")], 9.0);
}

#[test]
fn a_task_in_c_counts_with_its_span_as_the_exemplar() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").build();
    compile_c("examples/hook_c/hook_c.c", &cluster.file("libhook_c.so"));
    cluster.start_head(&[]).success();
    let library = cluster.file("libhook_c.so");
    let target = format!("{}:greet", library.display());
    (0..2).for_each(|_| drop(cluster.submit(&target, &[]).success()));
    let whole = text(&scrape(&cluster, OPENMETRICS));
    assert!(whole.contains("# HELP greetings Greetings said.\n"), "{whole}");
    let line = whole.lines().find(|line| line.starts_with("greetings_total{")).expect("it is counted");
    assert!(line.starts_with(r#"greetings_total{language="C",otel_scope_name="hook_c"} 2 # {trace_id=""#), "{line}");
}

/// Each task counts once, so what was counted lies between the tasks and the attempts at them.
#[test]
fn no_count_of_ten_thousand_tasks_is_lost_or_goes_back_while_workers_are_killed() {
    let count: u64 = 10_000;
    let cluster = cluster(3);
    let lines: String = (0..count).map(|number| format!("{number}\n")).collect();
    fs::write(cluster.file("lines"), lines).expect("the folder is ours");
    let flags = ["\"all\"", "--map", "lines", "--format", "json", "--crash-limit", "20"];
    let mut running = cluster.submit_in_background("traced_tasks:order", &flags);
    let orders = |values: &BTreeMap<String, f64>| -> f64 {
        values.iter().filter(|(name, _)| name.starts_with("shop_orders_total{")).map(|(_, value)| value).sum()
    };
    let (mut kills, mut before) = (0, 0.0);
    while running.is_running() && kills < 8 {
        let said = running.stdout_text().lines().count();
        wait_until("more tasks end", || {
            (running.stdout_text().lines().count() > said + 50 || !running.is_running()).then_some(())
        });
        if let Some(&pid) = cluster.worker_pids().get(kills % 3).filter(|_| running.is_running()) {
            kills += usize::from(kill_if_there(pid, Signal::KILL));
        }
        let now = orders(&values(&cluster));
        assert!(now >= before, "{now} orders are counted after {before}");
        before = now;
    }
    running.wait().success();
    assert!(kills > 0, "no worker was killed");
    let now = values(&cluster);
    let lost: f64 = now
        .iter()
        .filter(|(name, _)| name.starts_with("tracer_task_duration_seconds_count") && name.contains("signal:9"))
        .map(|(_, value)| value)
        .sum();
    let counted = orders(&now);
    assert!(
        (count as f64..=count as f64 + lost).contains(&counted),
        "{counted} are counted, {lost} attempts were lost"
    );
}

/// Returns the points of a metric in the requests that a receiver has got, in their order.
fn points(receiver: &Receiver, name: &str) -> Vec<Value> {
    let requests = receiver.requests();
    let all = requests.iter().filter_map(|request| request["metrics"].as_array()).flatten();
    all.filter(|point| point["name"] == name).cloned().collect()
}

fn exporting(receiver: &Receiver) -> crate::support::Builder {
    let builder = Cluster::builder().workers(1).hook(HOOK).env("OTEL_METRICS_EXPORTER", "otlp");
    let endpoint = format!("{}/v1/metrics", receiver.endpoint().trim_end_matches('/'));
    builder.env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &endpoint)
}

#[test]
fn metrics_go_to_a_collector_at_an_interval_with_their_exemplars() {
    let Some(receiver) = Receiver::start(&["503:0", "200"]) else { return };
    let cluster =
        exporting(&receiver).env("OTEL_METRIC_EXPORT_INTERVAL", "200").env("OTEL_SERVICE_NAME", "shop").start();
    cluster.submit("traced_tasks:measure", &[]).success();
    cluster.submit("traced_tasks:observe", &[]).success();
    let counted = wait_until("what was measured arrives", || points(&receiver, "shop.visits").pop());
    assert_eq!(counted["attributes"], json!({}));
    let [revenue, items] =
        ["shop.revenue", "shop.items"].map(|name| points(&receiver, name).pop().expect("it is there"));
    assert_eq!((&revenue["value"], &revenue["kind"], &revenue["unit"]), (&json!(2.5), &json!("sum"), &json!("EUR")));
    assert_eq!((&revenue["is_monotonic"], &revenue["temporality"]), (&json!(true), &json!(2)));
    assert_eq!(revenue["attributes"], json!({"shop.region": {"string_value": "east"}}));
    assert_eq!(revenue["resource"]["service.name"], json!({"string_value": "shop"}));
    assert_eq!((&items["count"], &items["sum"], &items["scope"]), (&json!(3), &json!(56.0), &json!("traced_tasks")));
    let ended = points(&receiver, "tracer.task.ended").pop().expect("tracer's own are there");
    assert_eq!((&ended["value"], &ended["scope"]), (&json!(2), &json!("tracer")));
    let trace = revenue["exemplars"][0][0].as_str().expect("an exemplar");
    cluster.tracer(&["trace", "show", trace]).success().stdout_contains("traced_tasks.measure");
    assert!(points(&receiver, "tracer.uptime").len() > 1, "the receiver that had no time was asked again");
    cluster.stop().success();
}

#[test]
fn deltas_add_up_to_what_happened_also_over_a_killed_exporter_and_the_last_go_at_the_end() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    let delta = ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta");
    let cluster = exporting(&receiver).env("OTEL_METRIC_EXPORT_INTERVAL", "100").env(delta.0, delta.1).start();
    let sum = || points(&receiver, "shop.orders").iter().map(|point| point["value"].as_u64().unwrap_or(0)).sum::<u64>();
    let submit = |number: u64| drop(cluster.submit("traced_tasks:order", &["\"west\"", &number.to_string()]).success());
    (0..5).for_each(submit);
    wait_until("five have arrived", || (sum() == 5).then_some(()));
    let pid = cluster.status()["http"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs");
    kill_if_there(pid, Signal::KILL);
    (5..8).for_each(submit);
    wait_until("eight have arrived", || (sum() >= 8).then_some(()));
    assert_eq!(sum(), 8);
    assert!(points(&receiver, "shop.orders").iter().all(|point| point["temporality"] == 1));
    submit(8);
    cluster.stop().success();
    assert_eq!(sum(), 9, "what was counted last goes with the head's end");
}

/// Takes a request, answers it, and returns its body. None if its sender has given it up before it was whole.
fn take_request(listener: &TcpListener) -> Option<Vec<u8>> {
    let mut stream = BufReader::new(listener.accept().expect("somebody comes").0);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.get_mut().write_all(answer).ok()?;
    Some(body)
}

#[test]
fn a_receiver_of_metrics_that_is_away_slows_no_task_is_said_rarely_and_has_all_when_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    drop(listener);
    let cluster = Cluster::builder()
        .workers(1)
        .hook(HOOK)
        .env("OTEL_METRICS_EXPORTER", "otlp")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "20")
        .env("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "50")
        .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("http://{address}/v1/metrics"))
        .start();
    let said = || {
        let log = fs::read_to_string(cluster.session_dir().join("logs/http.log")).unwrap_or_default();
        log.matches(&format!("metrics have not reached http://{address}/v1/metrics: ")).count()
    };
    wait_until("it is said", || (said() > 0).then_some(()));
    for number in 0..50 {
        cluster.submit("traced_tasks:order", &["\"west\"", &number.to_string()]).success();
    }
    assert!(said() < 10, "{} times", said());
    let listener = TcpListener::bind(address).expect("the port is still free");
    wait_until("it has what was counted meanwhile", || {
        take_request(&listener).filter(|body| body.windows(11).any(|part| part == b"shop.orders"))
    });
    drop(listener);
    cluster.stop().success();
}

#[test]
fn an_export_of_metrics_that_cannot_be_is_refused_at_the_start() {
    let cluster = Cluster::builder().env("OTEL_METRICS_EXPORTER", "otlp").build();
    let with = |name: &str, value: &str| {
        let mut command = cluster.command(&["start", "--head"]);
        command.env(name, value);
        cluster.run(command)
    };
    let run = with("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "not a url").status(2);
    run.stderr_contains("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
    let run = with("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc").status(2);
    run.stderr_contains("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL");
}
