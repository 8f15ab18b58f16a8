//! `GET /metrics`: what is counted, by whom it can be read, and what it survives.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Cluster, HOOK, kill_if_there, python_with, read_answer, skip, wait_until};

pub(crate) const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

/// Returns the token of scrapers, as the status says where it is.
fn scrape_token(cluster: &Cluster) -> String {
    let path = cluster.status()["http"]["metrics_token_path"].as_str().expect("a path").to_owned();
    std::fs::read_to_string(path).expect("there is a token").trim_end().to_owned()
}

pub(crate) fn scrape(cluster: &Cluster, accept: &str) -> Answer {
    let api = Api { token: scrape_token(cluster), ..Api::of(cluster) };
    api.ask("GET", "/metrics").header("Accept", accept).send().status(200)
}

/// Samples by name with labels.
pub(crate) fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let line = line.split(" # ").next().unwrap_or_default();
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("`{line}` is a sample"));
        (name.to_owned(), value.parse().unwrap_or_else(|error| panic!("`{line}`: {error}")))
    };
    lines.map(sample).collect()
}

pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).expect("it is text")
}

/// Runs tasks of which this many succeed and fail.
fn run_tasks(cluster: &Cluster, succeed: usize, fail: usize) {
    for _ in 0..succeed {
        cluster.submit("demo:my_function", &[]).success();
    }
    for _ in 0..fail {
        cluster.submit("misbehaving_tasks:panics", &["\"boom\""]).status(1);
    }
}

#[test]
fn counts_are_what_happened_and_none_goes_back_when_the_head_is_killed() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    run_tasks(&cluster, 3, 2);
    let token = scrape_token(&cluster);
    let before = samples(&text(&scrape(&cluster, OPENMETRICS)));
    let of = |samples: &BTreeMap<String, f64>, name: &str| {
        *samples.get(name).unwrap_or_else(|| panic!("`{name}` in {samples:#?}"))
    };
    let succeeded = r#"tracer_task_ended_total{tracer_state="succeeded"}"#;
    let failed = r#"tracer_task_ended_total{tracer_state="failed"}"#;
    let ran = r#"tracer_task_duration_seconds_count{tracer_function="demo.my_function"}"#;
    let panicked =
        r#"tracer_task_duration_seconds_count{tracer_function="misbehaving_tasks.panics",error_type="panic"}"#;
    let queued = r#"tracer_task_queue_duration_seconds_count{tracer_function="demo.my_function"}"#;
    assert_eq!([succeeded, failed, ran, panicked, queued].map(|name| of(&before, name)), [3.0, 2.0, 3.0, 2.0, 3.0]);
    let requests = r#"http_server_request_duration_seconds_count{http_request_method="GET",http_route="/metrics",http_response_status_code="200"}"#;
    let asked = of(&before, r#"tracer_workers{tracer_state="idle"}"#);
    assert!(asked >= 1.0, "{before:#?}");

    cluster.kill_head();
    cluster.start_head(&[]).success();
    assert_eq!(scrape_token(&cluster), token, "a scraper is let in as before");
    let after = samples(&text(&scrape(&cluster, OPENMETRICS)));
    assert_eq!([succeeded, failed, ran, panicked, queued].map(|name| of(&after, name)), [3.0, 2.0, 3.0, 2.0, 3.0]);
    assert!(of(&after, requests) >= 1.0, "the request before is counted");
    run_tasks(&cluster, 1, 1);
    let after = samples(&text(&scrape(&cluster, OPENMETRICS)));
    assert_eq!([succeeded, failed, ran, panicked, queued].map(|name| of(&after, name)), [4.0, 3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn the_exemplar_of_a_bucket_names_a_trace_that_can_be_shown() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    run_tasks(&cluster, 1, 1);
    let text = text(&scrape(&cluster, OPENMETRICS));
    assert!(text.ends_with("# EOF\n"), "{text}");
    let with_exemplar = |part: &str| {
        let line = text
            .lines()
            .find(|line| line.contains(part) && line.contains(" # {"))
            .unwrap_or_else(|| panic!("{part}: {text}"));
        line.split("trace_id=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id").to_owned()
    };
    for function in ["demo.my_function", "misbehaving_tasks.panics"] {
        let trace = with_exemplar(&format!("tracer_task_duration_seconds_bucket{{tracer_function=\"{function}\""));
        cluster.tracer(&["trace", "show", &trace]).success().stdout_contains(function);
    }
}

/// Serves `shop:hello` and others, and returns the address.
#[track_caller]
pub(crate) fn serve(cluster: &Cluster) -> SocketAddr {
    let file = cluster.file("service.toml");
    let text = "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n\
         [[applications]]\nname = \"hello\"\nroute_prefix = \"/hello\"\nimport_path = \"shop:hello\"\n\
         [[applications.deployments]]\nimport_path = \"shop:hello\"\nnum_replicas = 2\n\
         [[applications]]\nname = \"echo\"\nroute_prefix = \"/echo\"\nimport_path = \"shop:echo\"\n";
    std::fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
    let url = service(cluster)["url"].as_str().expect("it has a URL").to_owned();
    url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address")
}

fn service(cluster: &Cluster) -> Value {
    cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"][0].take()
}

/// Asks until there is a whole answer. Returns its status.
pub(crate) fn ask(address: SocketAddr, head: &str, body: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    write!(stream, "{head}\r\nhost: shop\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")?;
    Ok(read_answer(&mut BufReader::new(stream), false)?.status)
}

/// The requests that were counted, by status.
fn requests(samples: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let of_service = samples.iter().filter(|(name, _)| {
        name.starts_with("http_server_request_duration_seconds_count") && name.contains("tracer_service=\"shop\"")
    });
    let mut counts = BTreeMap::new();
    for (name, count) in of_service {
        let status = name.split("http_response_status_code=\"").nth(1).and_then(|rest| rest.split('"').next());
        *counts.entry(status.unwrap_or_default().to_owned()).or_default() += count;
    }
    counts
}

#[test]
fn requests_of_a_service_are_counted_by_deployment_and_unknown_paths_are_one_series() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    let address = serve(&cluster);
    for _ in 0..3 {
        assert_eq!(ask(address, "GET /hello HTTP/1.1", "").expect("it answers"), 200);
    }
    assert_eq!(ask(address, "POST /echo HTTP/1.1", "twelve bytes").expect("it answers"), 200);
    for path in ["/a", "/b", "/c"] {
        assert_eq!(ask(address, &format!("GET {path} HTTP/1.1"), "").expect("it answers"), 404);
    }
    assert_eq!(ask(address, "BREW /hello HTTP/1.1", "").expect("it answers"), 200);
    let text = text(&scrape(&cluster, OPENMETRICS));
    let samples = samples(&text);
    let count = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("`{name}` in {text}"));
    let labels = |app: &str| format!("tracer_service=\"shop\",app=\"{app}\",deployment=\"{app}\"");
    let ended = |labels: &str, method: &str, rest: &str| {
        count(&format!(
            "http_server_request_duration_seconds_count{{{labels},http_request_method=\"{method}\",{rest}}}"
        ))
    };
    let ok = |route: &str| format!("http_route=\"{route}\",http_response_status_code=\"200\"");
    assert_eq!(ended(&labels("hello"), "GET", &ok("/hello")), 3.0);
    assert_eq!(ended(&labels("hello"), "_OTHER", &ok("/hello")), 1.0);
    assert_eq!(ended(&labels("echo"), "POST", &ok("/echo")), 1.0);
    assert_eq!(ended("tracer_service=\"shop\"", "GET", "http_response_status_code=\"404\""), 3.0);
    assert_eq!(count(&format!("tracer_serve_request_body_bytes_total{{{}}}", labels("echo"))), 12.0);
    assert_eq!(count(&format!("tracer_serve_response_body_bytes_total{{{}}}", labels("echo"))), 12.0);
    assert_eq!(count(&format!("tracer_serve_replicas{{{},tracer_state=\"serving\"}}", labels("hello"))), 2.0);
    assert_eq!(count(&format!("http_server_active_requests{{{}}}", labels("hello"))), 0.0);
    assert_eq!(count("tracer_serve_services{tracer_service=\"shop\",tracer_state=\"running\"}"), 1.0);
    // The exemplar of a bucket leads to the request's trace.
    let line = text.lines().find(|line| line.contains("app=\"echo\"") && line.contains(" # {trace_id=\""));
    let trace = line.and_then(|line| line.split("trace_id=\"").nth(1)?.split('"').next()).expect("an exemplar");
    cluster.tracer(&["trace", "show", trace]).success().stdout_contains("proxy_http_request echo POST /echo");
}

#[test]
fn requests_are_counted_by_the_route_that_their_handler_says() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    crate::support::compile_c("examples/deployment_c/deployment_c.c", &cluster.file("libdeployment_c.so"));
    let text = "name = \"greeter\"\n[http]\naddress = \"127.0.0.1:0\"\n\
         [[applications]]\nimport_path = \"./libdeployment_c.so:echo\"\n";
    std::fs::write(cluster.file("service.toml"), text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", "service.toml"]).success();
    let url = service(&cluster)["url"].as_str().expect("it has a URL").to_owned();
    let address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    for (target, status) in [("/hello/Ada", 200), ("/hello/Grace", 200), ("/nowhere", 404)] {
        assert_eq!(ask(address, &format!("GET {target} HTTP/1.1"), "").expect("it answers"), status);
    }
    let text = self::text(&scrape(&cluster, OPENMETRICS));
    let count = |route: &str, status: u16| {
        let labels = format!("http_route=\"{route}\",http_response_status_code=\"{status}\"");
        let found = samples(&text)
            .into_iter()
            .find(|(name, _)| name.starts_with("http_server_request_duration_seconds_count") && name.contains(&labels));
        found.map(|(_, count)| count)
    };
    assert_eq!(count("/hello/{name}", 200), Some(2.0), "{text}");
    assert_eq!(count("/", 200), None, "{text}");
    assert_eq!(count("/", 404), Some(1.0), "no handler has a route for it: {text}");
}

/// Does something when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn no_count_of_requests_goes_back_when_proxies_and_replicas_are_killed() {
    const ROUNDS: usize = 20;
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    let address = serve(&cluster);
    let is_over = AtomicBool::new(false);
    let (answered, sent) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let client = || {
        while !is_over.load(Relaxed) {
            sent.fetch_add(1, Relaxed);
            if ask(address, "GET /hello HTTP/1.1", "").is_ok() {
                answered.fetch_add(1, Relaxed);
            }
        }
    };
    let counted = || requests(&samples(&text(&scrape(&cluster, OPENMETRICS)))).values().sum::<f64>();
    std::thread::scope(|scope| {
        // Also when something below fails: the scope waits for its threads.
        let _over = OnDrop(|| is_over.store(true, Relaxed));
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(client)).collect();
        let mut before = 0.0;
        for round in 0..ROUNDS {
            let list = if round % 2 == 0 { "replicas" } else { "proxies" };
            let victim = service(&cluster)[list][0]["pid"].as_u64();
            if let Some(pid) = victim.and_then(|pid| u32::try_from(pid).ok()) {
                kill_if_there(pid, Signal::KILL);
            }
            let goal = answered.load(Relaxed) + 20;
            wait_until("requests are answered again", || (answered.load(Relaxed) >= goal).then_some(()));
            let now = counted();
            assert!(now >= before, "{now} requests are counted after {before}");
            before = now;
        }
        is_over.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("it ends"));
    });
    let (answered, sent, counted) = (answered.into_inner() as f64, sent.into_inner() as f64, counted());
    assert!(answered <= counted && counted <= sent, "{answered} answered, {counted} counted, {sent} sent");
}

#[test]
fn calls_and_batches_of_deployments_are_counted() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    let deploy = |name: &str, import_path: &str, further: &str| -> SocketAddr {
        let file = cluster.file("service.toml");
        let text = format!(
            "name = \"{name}\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nname = \"main\"\nimport_path = \"{import_path}\"\n\
             [[applications.deployments]]\n{further}\n"
        );
        std::fs::write(&file, text).expect("the folder is ours");
        cluster.tracer(&["serve", "deploy", file.to_str().expect("a plain name")]).success();
        let report = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        let services = report["services"].as_array().expect("there are services");
        let url = services.iter().find(|row| row["name"] == name).expect("it is one")["url"].as_str().expect("a URL");
        url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address")
    };
    let address = deploy("shop", "handlers:caller", "import_path = \"handlers:Counter\"");
    for path in ["/add", "/add", "/add", "/fails"] {
        assert_eq!(ask(address, &format!("GET {path} HTTP/1.1"), "").expect("it answers"), 200);
    }
    let batches = deploy("batches", "handlers:Batches", "import_path = \"handlers:Batches\"\narguments = [\"none\"]");
    std::thread::scope(|scope| {
        let ask_full = || scope.spawn(|| ask(batches, "GET /full HTTP/1.1", "").expect("it answers"));
        let all: Vec<_> = (0..4).map(|_| ask_full()).collect();
        assert_eq!(all.into_iter().map(|asked| asked.join().expect("it ends")).collect::<Vec<_>>(), [200; 4]);
    });
    let text = text(&scrape(&cluster, OPENMETRICS));
    let samples = samples(&text);
    let count = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("`{name}` in {text}"));
    let of_calls =
        "tracer_serve_call_duration_seconds_count{tracer_service=\"shop\",app=\"main\",deployment=\"Counter\"";
    assert_eq!(count(&format!("{of_calls},call_method=\"add\"}}")), 3.0);
    assert_eq!(count(&format!("{of_calls},call_method=\"fails\",error_type=\"handler_failed\"}}")), 1.0);
    let of_batches = |name: &str| {
        let labels = ["app=\"main\"", "deployment=\"Batches\"", "call_method=\"full\"", "otel_scope_name=\"tracer\""];
        let is_it =
            |found: &str| found.starts_with(&format!("{name}{{")) && labels.iter().all(|label| found.contains(label));
        let found = samples.iter().find(|(found, _)| is_it(found));
        *found.unwrap_or_else(|| panic!("`{name}` in {text}")).1
    };
    assert_eq!((of_batches("tracer_serve_batch_size_count"), of_batches("tracer_serve_batch_size_sum")), (1.0, 4.0));
    assert_eq!(of_batches("tracer_serve_batch_wait_seconds_count"), 1.0);
    assert!(of_batches("tracer_serve_batch_wait_seconds_sum") > 0.0);
}

#[test]
fn scrapers_are_let_in_with_their_own_token_and_see_nothing_else() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").start();
    let api = Api::of(&cluster);
    let scraper = Api { token: scrape_token(&cluster), ..api.clone() };
    assert_ne!(api.token, scraper.token);
    let plain = scraper.get("/metrics").status(200);
    assert_eq!(plain.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(!text(&plain).contains("# EOF"));
    let open = scrape(&cluster, OPENMETRICS);
    assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    api.get("/metrics").status(200);
    for target in ["/api/v1", "/api/v1/tasks", "/api/v1/status", "/metrics/", "/metrics/x"] {
        scraper.get(target).problem(401, "unauthorized");
    }
    api.ask("GET", "/metrics").without("Authorization").send().problem(401, "unauthorized");
    api.ask("POST", "/metrics").send().problem(405, "method-not-allowed");
    api.get("/metrics?x=1").problem(400, "invalid-request");
}

#[test]
fn metrics_are_served_alone_and_with_the_api_at_one_address_only() {
    let cluster = Cluster::builder().arg("--metrics=127.0.0.1:0").start();
    let api = Api::of(&cluster);
    scrape(&cluster, OPENMETRICS);
    let problem = api.get("/api/v1/tasks").problem(404, "no-such-path");
    assert_eq!(problem["detail"], "`/api/v1/tasks` is not served here, only /metrics is");
    let status = cluster.tracer(&["status"]).success().stdout_text();
    assert!(status.contains("/metrics, token in ") && !status.contains("http.token"), "{status}");
    cluster.stop().success();
    let refused = cluster.start_head(&["--http=127.0.0.1:1"]).status(2);
    refused.stderr_contains("expected the address of the HTTP API, 127.0.0.1:1, found 127.0.0.1:0");
}

#[test]
fn promtool_and_the_parser_of_prometheus_client_find_nothing_wrong() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").arg("--resources=gpu=2").start();
    run_tasks(&cluster, 2, 1);
    let plain = scrape(&cluster, "text/plain").body;
    let open = scrape(&cluster, OPENMETRICS).body;
    let Some((families, exemplars)) = read_by_others(&plain, &open) else { return };
    assert!(families >= 15 && exemplars >= 3, "{families} families and {exemplars} exemplars");
}

/// Has scrapes in both forms read by promtool and by the parser of `prometheus_client`. Returns how many families and exemplars that found.
fn read_by_others(plain: &[u8], open: &[u8]) -> Option<(u64, u64)> {
    match Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(mut promtool) => {
            promtool.stdin.take().expect("it is a pipe").write_all(plain).expect("it reads");
            let said = promtool.wait_with_output().expect("it ends");
            let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
            assert!(said.status.success() && text.trim().is_empty(), "{text}");
        }
        Err(error) => skip("promtool", error),
    }
    let python = python_with("prometheus_client")?;
    let program = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
        families = list(read(sys.stdin.read()))\n\
        print(len(families), sum(1 for f in families for s in f.samples if s.exemplar))";
    let mut parser = Command::new(python)
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    parser.stdin.take().expect("it is a pipe").write_all(open).expect("it reads");
    let said = parser.wait_with_output().expect("it ends");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(open));
    let counts: Vec<u64> = String::from_utf8_lossy(&said.stdout)
        .split_whitespace()
        .map(|count| count.parse().expect("a number"))
        .collect();
    Some((counts[0], counts[1]))
}

#[test]
fn no_series_of_a_program_is_dropped_merged_or_doubled_by_its_labels() {
    let cluster = Cluster::builder().arg("--http=127.0.0.1:0").arg("--otlp").start();
    let attributes = |pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect()
    };
    let point = |pairs: &[(&str, &str)], value: u64| json!({"asInt": value, "attributes": attributes(pairs)});
    let gauge = |name: &str, unit: &str, points: Value| json!({"name": name, "description": "d", "unit": unit, "gauge": {"dataPoints": points}});
    let counter = |name: &str, points: Value| json!({"name": name, "description": "d", "sum": {"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points}});
    let bounded = |bound: &str| json!({"attributes": attributes(&[("le", bound)]), "sum": 1.5, "count": "2", "bucketCounts": ["1", "1"], "explicitBounds": [1.0]});
    let of_pid = |pid: &str, value: u64| point(&[("process.pid", pid)], value);
    let metrics = json!([
        gauge("jobs.waiting", "", json!([point(&[("job", "nightly")], 1), point(&[("job", "hourly")], 2)])),
        counter("jobs.done", json!([point(&[("instance", "a")], 10), point(&[("instance", "b")], 20)])),
        counter("same", json!([point(&[("a.b", "v")], 1), point(&[("a_b", "v")], 2), point(&[("a-b", "v")], 4)])),
        gauge("bounds", "", json!([point(&[("le", "1")], 1), point(&[("le", "2")], 2)])),
        gauge("pids", "", json!([of_pid("1", 1), of_pid("2", 2)])),
        gauge("lat", "s", json!([point(&[], 1)])),
        gauge("lat.seconds", "", json!([point(&[], 2)])),
        {"name": "took", "description": "d", "histogram": {"aggregationTemporality": 2, "dataPoints": [bounded("1"), bounded("2")]}},
    ]);
    let resource =
        json!({"attributes": attributes(&[("service.name", "shop"), ("service.instance.id", "one"), ("job", "mine")])});
    let body = json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]});
    let api = Api::of(&cluster);
    api.ask("POST", "/v1/metrics").json(&body).send().status(200);
    let plain = scrape(&cluster, "text/plain").body;
    let open = scrape(&cluster, OPENMETRICS).body;
    let text = String::from_utf8(open.clone()).expect("it is text");
    for expected in [
        r#"jobs_waiting{job="shop",instance="one",exported_job="nightly"} 1"#,
        r#"jobs_waiting{job="shop",instance="one",exported_job="hourly"} 2"#,
        r#"jobs_done_total{job="shop",instance="one",exported_instance="a"} 10"#,
        r#"jobs_done_total{job="shop",instance="one",exported_instance="b"} 20"#,
        r#"same_total{job="shop",instance="one",a_b="v"} 7"#,
        r#"bounds{job="shop",instance="one",exported_le="1"} 1"#,
        r#"pids{job="shop",instance="one",process_pid="2"} 2"#,
        r#"lat_seconds{job="shop",instance="one"} 1"#,
        r#"took_bucket{job="shop",instance="one",exported_le="2",le="+Inf"} 2"#,
        r#"target_info{job="shop",instance="one",exported_job="mine"} 1"#,
        "tracer_metrics_series_not_shown 1",
        "tracer_otlp_points_not_shown_total 0",
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected}: {text}");
    }
    let series: Vec<_> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(series.iter().collect::<BTreeSet<_>>().len(), series.len(), "{text}");
    read_by_others(&plain, &open);
}

/// A process that is killed with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_prometheus_server_finds_the_trace_of_a_slow_task_by_its_exemplar() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http=127.0.0.1:0").start();
    run_tasks(&cluster, 1, 0);
    let slow = cluster.tracer(&["submit", "command", "--format", "json", "--", "sleep", "0.6"]).success().json();
    let api = Api::of(&cluster);
    let status = cluster.status();
    let mut settings = String::new();
    writeln!(settings, "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: tracer").expect("text");
    writeln!(settings, "  authorization: {{credentials_file: {}}}", status["http"]["metrics_token_path"])
        .expect("text");
    writeln!(settings, "  static_configs: [{{targets: ['{}']}}]", api.address).expect("text");
    let path = cluster.file("prometheus.yml");
    std::fs::write(&path, settings).expect("it can be written");
    // It says nowhere which port it got.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port is free").port();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", path.display()))
        .arg(format!("--storage.tsdb.path={}", cluster.file("prometheus").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--enable-feature=exemplar-storage")
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(cluster.file("prometheus.log")).expect("it can be made"));
    let _server = match command.spawn() {
        Ok(server) => Killed(server),
        Err(error) => return skip("prometheus", error),
    };
    let prometheus = Api { address: ([127, 0, 0, 1], port).into(), token: String::new() };
    let query = "/api/v1/query_exemplars?query=tracer_task_duration_seconds_bucket&start=1&end=99999999999";
    let found = wait_until("Prometheus has an exemplar of the slow task", || {
        let connected = std::net::TcpStream::connect(prometheus.address).is_ok();
        let answer: Value = connected.then(|| prometheus.get(query)).filter(|answer| answer.status == 200)?.json();
        let all = answer["data"].as_array()?.clone();
        let exemplars = all.iter().flat_map(|series| series["exemplars"].as_array().cloned().unwrap_or_default());
        exemplars
            .filter(|exemplar| exemplar["value"].as_str().and_then(|value| value.parse::<f64>().ok()) > Some(0.5))
            .find_map(|exemplar| exemplar["labels"]["trace_id"].as_str().map(str::to_owned))
    });
    assert_eq!(slow["trace_id"], found.as_str());
    cluster.tracer(&["trace", "show", &found]).success().stdout_contains("sleep");

    // Every query of the dashboard has data.
    run_tasks(&cluster, 1, 1);
    let dashboard = std::fs::read_to_string(example("dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("it is JSON");
    let targets = dashboard["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    for query in targets.map(|target| target["expr"].as_str().expect("a query")) {
        wait_until(&format!("`{query}` has data"), || {
            let answer = prometheus.get(&format!("/api/v1/query?query={}", encoded(query))).status(200).json();
            answer["data"]["result"].as_array().filter(|found| !found.is_empty()).map(drop)
        });
    }
}

/// Returns a file of the example.
fn example(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/prometheus").join(name)
}

/// Returns a text as a part of a query of a URL.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => out.push(byte.into()),
            byte => write!(out, "%{byte:02X}").expect("text"),
        }
        out
    })
}

#[test]
fn the_alert_rules_of_the_example_are_valid() {
    match Command::new("promtool").args(["check", "rules"]).arg(example("alerts.yml")).output() {
        Ok(said) => assert!(said.status.success(), "{said:?}"),
        Err(error) => skip("promtool", error),
    }
}
