//! Batches of requests: which go together, who gets which answer, and what their spans say.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use tracer::{EmbeddedHead, Init};

use crate::support::{Answer, Cluster, Run, Span, Spans, kill, read_answer, wait_until};

/// Deadline of a request. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(60);
const HOOK: &str = "local_tmp_tracing:setup_tracing";

/// A service whose handler collects requests.
struct Service {
    cluster: Cluster,
    address: SocketAddr,
}

impl Service {
    fn deploy() -> Service {
        let service = Service::start();
        service.deploy_again("").success();
        service
    }

    fn start() -> Service {
        let cluster = Cluster::builder().workers(1).hook(HOOK).start();
        let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        Service { cluster, address }
    }

    fn deploy_again(&self, further: &str) -> Run {
        let applications = format!(
            "[[applications]]\nimport_path = \"handlers:Batches\"\n\
             [[applications.deployments]]\nimport_path = \"handlers:Batches\"\narguments = [{:?}]\n{further}\n\
             [[applications]]\nroute_prefix = \"/measured\"\nimport_path = \"handlers:measured\"\n",
            self.gate().to_str().unwrap(),
        );
        self.deploy_applications(&applications)
    }

    fn deploy_applications(&self, applications: &str) -> Run {
        let text = format!("name = \"shop\"\n[http]\naddress = \"{}\"\n{applications}", self.address);
        let file = self.cluster.file("service.toml");
        std::fs::write(&file, text).unwrap();
        self.cluster.tracer(&["serve", "deploy", file.to_str().unwrap()])
    }

    /// Returns the file that closes the gate while it is there.
    fn gate(&self) -> PathBuf {
        self.cluster.file("gate")
    }

    fn send(&self, target: &str, trace: u32, is_sampled: bool) -> BufReader<TcpStream> {
        send(self.address, target, trace, is_sampled)
    }

    /// Sends a sampled request and waits for its answer on a thread of its own.
    fn ask(&self, target: &str, trace: u32) -> JoinHandle<Answer> {
        let mut reader = self.send(target, trace, true);
        std::thread::spawn(move || read_answer(&mut reader, false).expect("an answer"))
    }

    /// Asks for `/path?n` with n from 1 to `count`, and returns the answers in that order.
    fn ask_all(&self, path: &str, count: u32) -> Vec<Answer> {
        let asking: Vec<_> = (1..=count).map(|number| self.ask(&format!("{path}?{number}"), number)).collect();
        asking.into_iter().map(|thread| thread.join().expect("a client")).collect()
    }

    fn handled(&self) -> u64 {
        let status = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        let rows = status["services"][0]["deployments"].as_array().expect("it has deployments");
        rows.iter().map(|row| row["ongoing"].as_u64().expect("a count")).sum()
    }

    /// Waits until so many requests are at the replica.
    #[track_caller]
    fn wait_until_handled(&self, count: u64) {
        wait_until(&format!("{count} requests are at the replica"), || (self.handled() == count).then_some(()));
    }

    /// Closes the gate and sends a request that waits there, in a batch of its own.
    fn close_gate(&self, trace: u32) -> BufReader<TcpStream> {
        std::fs::write(self.gate(), "").unwrap();
        let first = self.send("/gated?first", trace, true);
        self.wait_until_begun();
        first
    }

    fn open_gate(&self) {
        std::fs::remove_file(self.gate()).unwrap();
    }

    /// Waits until a batch has begun.
    #[track_caller]
    fn wait_until_begun(&self) {
        wait_until("a batch has begun", || self.gate().with_extension("begun").exists().then_some(()));
    }

    fn replica_pids(&self) -> Vec<u32> {
        let is_it = |command: &str| command.split(' ').nth(1) == Some("replica");
        let mut pids: Vec<_> = self
            .cluster
            .processes()
            .iter()
            .filter(|process| is_it(&process.command))
            .map(|process| process.pid)
            .collect();
        pids.sort_unstable();
        pids
    }

    fn stop(&self) -> Spans {
        self.cluster.stop().success();
        let spans = self.cluster.spans();
        assert!(spans.torn_lines.is_empty(), "lines that are no spans: {:?}", spans.torn_lines);
        spans
    }
}

/// Sends a request as part of the trace with this number.
fn send(address: SocketAddr, target: &str, trace: u32, is_sampled: bool) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).expect("the service is there");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let flags = u8::from(is_sampled);
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: shop\r\ntraceparent: 00-{trace:032x}-{trace:016x}-{flags:02x}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    BufReader::new(stream)
}

/// Returns the spans of requests to the handler, by the number of the trace.
fn request(spans: &Spans, trace: u32) -> &Span {
    let trace = format!("0x{trace:032x}");
    spans.only("it is the request's", |span| {
        span.trace_id() == trace && span.name().starts_with("replica_handle_request")
    })
}

fn linked(span: &Span) -> Vec<String> {
    let mut ids: Vec<_> =
        span.links().iter().map(|link| link["context"]["span_id"].as_str().expect("a span id").to_owned()).collect();
    ids.sort();
    ids
}

#[track_caller]
fn assert_linked(batch: &Span, requests: &[&Span]) {
    let mut ids: Vec<_> = requests.iter().map(|span| span.span_id().to_owned()).collect();
    ids.sort();
    assert_eq!(linked(batch), ids, "{batch:?}");
    for request in requests {
        assert_eq!(linked(request), [batch.span_id()], "{request:?}");
    }
}

#[test]
fn requests_of_a_full_batch_have_one_span_and_each_its_own_answer() {
    let service = Service::deploy();
    for (path, first) in [("/full", 1), ("/plain", 5)] {
        let asking: Vec<_> =
            (first..first + 4).map(|number| service.ask(&format!("{path}?{number}"), number)).collect();
        for (number, thread) in (first..).zip(asking) {
            assert_eq!(thread.join().expect("a client").status(200).text(), format!("{number} of 4"));
        }
    }
    let spans = service.stop();
    for (name, first) in [("batch Batches.full", 1), ("batch Batches.plain", 5)] {
        let batch = spans.named(name);
        let requests: Vec<_> = (first..first + 4).map(|number| request(&spans, number)).collect();
        assert_linked(batch, &requests);
        assert_eq!((batch.kind(), batch.status_code()), ("SpanKind.INTERNAL", "UNSET"));
        assert_eq!(*batch.attribute("tracer.batch.size"), 4);
        assert_eq!(*batch.attribute("call_method"), name.rsplit('.').next().unwrap());
        assert_eq!((&batch.attribute("deployment"), &batch.attribute("app")), (&&"Batches".into(), &&"Batches".into()));
        // The parent is the one that came first.
        let parent = requests.iter().find(|request| Some(request.span_id()) == batch.parent_id());
        let parent = parent.unwrap_or_else(|| panic!("the parent is no request: {batch:?}"));
        assert_eq!(batch.trace_id(), parent.trace_id());
        let waited = batch.attribute("tracer.batch.waited_ns").as_u64().expect("a time");
        assert!(waited < LIMIT.as_nanos() as u64, "{batch:?}");
        let inside = spans.only("is inside of the batch", |span| span.parent_id() == Some(batch.span_id()));
        assert_eq!((inside.name(), inside.trace_id()), ("inside", batch.trace_id()));
        // It has ended before any of its requests had an answer.
        for request in requests {
            let end = |span: &Span| span.value["end_time"].as_str().expect("a time").to_owned();
            assert!(end(batch) <= end(request), "{batch:?} {request:?}");
        }
    }
}

fn answered(mut reader: BufReader<TcpStream>) -> Answer {
    read_answer(&mut reader, false).expect("an answer")
}

#[test]
fn a_batch_that_is_not_full_begins_when_its_time_is_up() {
    let service = Service::deploy();
    assert_eq!(service.ask("/timed?1", 1).join().unwrap().status(200).text(), "1 of 1");
    let spans = service.stop();
    let batch = spans.named("batch Batches.timed");
    let waited = batch.attribute("tracer.batch.waited_ns").as_u64().expect("a time");
    assert!(waited >= Duration::from_millis(20).as_nanos() as u64, "{waited} ns");
    assert_linked(batch, &[request(&spans, 1)]);
}

#[test]
fn without_a_wait_a_batch_is_what_came_while_the_handler_was_busy() {
    let service = Service::deploy();
    let first = service.close_gate(1);
    let others: Vec<_> = (2..11).map(|trace| service.send(&format!("/gated?{trace}"), trace, true)).collect();
    service.wait_until_handled(10);
    service.open_gate();
    assert_eq!(answered(first).status(200).text(), "first of 1");
    let others: Vec<_> = others.into_iter().map(|other| answered(other).status(200).text()).collect();
    for (trace, text) in (2..).zip(&others) {
        assert!(text.starts_with(&format!("{trace} of ")), "{others:?}");
    }
    assert_eq!(others.iter().filter(|text| text.ends_with(" of 8")).count(), 8, "{others:?}");
    assert_eq!(others.iter().filter(|text| text.ends_with(" of 1")).count(), 1, "{others:?}");
    let spans = service.stop();
    let mut sizes: Vec<_> = spans
        .all_named("batch Batches.gated")
        .iter()
        .map(|batch| {
            assert_eq!(*batch.attribute("tracer.batch.size"), batch.links().len());
            batch.links().len()
        })
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 8]);
}

#[test]
fn a_client_that_goes_leaves_the_batch_and_the_others_are_answered() {
    let service = Service::deploy();
    // Before its batch begins.
    let gone = service.send("/full?gone", 1, true);
    service.wait_until_handled(1);
    drop(gone);
    service.wait_until_handled(0);
    let answers: Vec<_> = (11..15).map(|trace| service.ask(&format!("/full?{trace}"), trace)).collect();
    for (trace, answer) in (11..).zip(answers) {
        assert_eq!(answer.join().unwrap().status(200).text(), format!("{trace} of 4"));
    }
    // While its batch runs, and while others wait for the next one.
    let gone = service.close_gate(2);
    let (other, third) = (service.send("/gated?other", 3, true), service.send("/gated?third", 4, true));
    service.wait_until_handled(3);
    drop((gone, other));
    service.wait_until_handled(1);
    service.open_gate();
    assert_eq!(answered(third).status(200).text(), "third of 1");
    let spans = service.stop();
    let full = spans.named("batch Batches.full");
    let requests: Vec<_> = (11..15).map(|trace| request(&spans, trace)).collect();
    assert_linked(full, &requests);
    let [first, second] = spans.all_named("batch Batches.gated")[..] else { panic!("{}", spans.describe()) };
    let (first, second) = if first.trace_id().ends_with('2') { (first, second) } else { (second, first) };
    assert_linked(first, &[request(&spans, 2)]);
    assert_linked(second, &[request(&spans, 4)]);
    assert!(request(&spans, 3).links().is_empty());
    for trace in [1, 2, 3] {
        let request = request(&spans, trace);
        assert_eq!((request.status_code(), request.attribute("tracer.outcome")), ("UNSET", &"client_gone".into()));
    }
}

#[test]
fn requests_that_are_not_sampled_take_nothing_from_those_that_are() {
    let service = Service::deploy();
    let mut waiting = Vec::new();
    for (trace, is_sampled) in [(1, false), (2, true), (3, false), (4, true)] {
        waiting.push(service.send("/full?", trace, is_sampled));
        if trace < 4 {
            service.wait_until_handled(trace.into());
        }
    }
    waiting.into_iter().for_each(|waiting| assert_eq!(answered(waiting).status(200).text(), " of 4"));
    // Of those of which none is sampled there is nothing.
    let waiting: Vec<_> = (5..9).map(|trace| service.send("/full?", trace, false)).collect();
    waiting.into_iter().for_each(|waiting| assert_eq!(answered(waiting).status(200).text(), " of 4"));
    let spans = service.stop();
    let batch = spans.named("batch Batches.full");
    assert_eq!(*batch.attribute("tracer.batch.size"), 4);
    assert_linked(batch, &[request(&spans, 2), request(&spans, 4)]);
    assert_eq!(spans.parent_of(batch), request(&spans, 2));
    assert_eq!(spans.parent_of(spans.named("inside")), batch);
    for trace in [1, 3, 5, 6, 7, 8] {
        let trace = format!("0x{trace:032x}");
        assert!(spans.iter().all(|span| span.trace_id() != trace), "{}", spans.describe());
    }
}

#[test]
fn a_batch_is_linked_to_more_requests_than_a_span_has_links_by_default() {
    let service = Service::deploy();
    let answers = service.ask_all("/large", 200);
    for (number, answer) in (1..).zip(answers) {
        assert_eq!(answer.status(200).text(), format!("{number} of 200"));
    }
    let spans = service.stop();
    let requests: Vec<_> = (1..=200).map(|trace| request(&spans, trace)).collect();
    assert_linked(spans.named("batch Batches.large"), &requests);
}

#[test]
fn a_batch_that_fails_fails_each_request_and_the_replica_serves_on() {
    let service = Service::deploy();
    let pids = service.replica_pids();
    let count = "the batch of `wrong_count` failed: expected as many outputs as inputs, 3, found 1";
    let expected = [
        ("/one_of_all", "wrong_count", count),
        ("/panic", "panics", "the batch of `panics` panicked: no room for 3 at "),
        ("/error", "fails", "the batch of `fails` failed: no luck with 3"),
    ];
    for (index, (path, _, _)) in (0..).zip(&expected) {
        let asking: Vec<_> = (1..4).map(|number| service.ask(path, 100 + 10 * index + number)).collect();
        for answer in asking {
            let text = answer.join().unwrap().status(500).text();
            assert!(!text.contains("batch"), "it says nothing of the inside: {text}");
        }
    }
    assert_eq!(service.ask_all("/full", 4)[0].clone().status(200).text(), "1 of 4");
    assert_eq!(service.replica_pids(), pids, "no replica has ended");
    let spans = service.stop();
    for (index, (_, function, message)) in (0..).zip(&expected) {
        let batch = spans.named(&format!("batch Batches.{function}"));
        assert_eq!(batch.status_code(), "ERROR", "{batch:?}");
        let [exception] = batch.events("exception")[..] else { panic!("one exception: {batch:?}") };
        assert_eq!(*batch.attribute("error.type"), exception["attributes"]["exception.type"]);
        let requests: Vec<_> = (1..4).map(|number| request(&spans, 100 + 10 * index + number)).collect();
        assert_linked(batch, &requests);
        for request in requests {
            let [exception] = request.events("exception")[..] else { panic!("one exception: {request:?}") };
            let found = exception["attributes"]["exception.message"].as_str().expect("a text");
            assert!(found.starts_with(message), "{found}");
            assert_eq!(request.status_code(), "ERROR");
        }
    }
    let panicked = spans.named("batch Batches.panics");
    assert_eq!((panicked.attribute("error.type"), panicked.status_description()), (&"panic".into(), "no room for 3"));
}

#[test]
fn every_span_of_a_batch_that_is_killed_is_closed() {
    let service = Service::deploy();
    let asking: Vec<_> = (1..4).map(|trace| service.ask("/hang", trace)).collect();
    service.wait_until_begun();
    // The other replica is that of another deployment.
    service.replica_pids().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    asking.into_iter().for_each(|answer| drop(answer.join().unwrap().status(502)));
    let spans = service.stop();
    let batch = spans.named("batch Batches.hangs");
    let requests: Vec<_> = (1..4).map(|trace| request(&spans, trace)).collect();
    assert_linked(batch, &requests);
    let hanging = spans.named("hanging");
    assert_eq!(spans.parent_of(hanging), batch);
    for span in requests.into_iter().chain([batch, hanging]) {
        assert_eq!((span.status_code(), span.attribute("error.type")), ("ERROR", &"signal:9".into()), "{span:?}");
    }
}

#[test]
fn a_batch_of_many_that_is_killed_is_linked_to_all_of_its_requests() {
    let service = Service::deploy();
    let asking: Vec<_> = (1..=120).map(|trace| service.ask("/hang_with_many", trace)).collect();
    service.wait_until_begun();
    service.replica_pids().into_iter().for_each(|pid| kill(pid, Signal::KILL));
    asking.into_iter().for_each(|answer| drop(answer.join().unwrap().status(502)));
    let spans = service.stop();
    let requests: Vec<_> = (1..=120).map(|trace| request(&spans, trace)).collect();
    assert_linked(spans.named("batch Batches.hangs_with_many"), &requests);
}

#[test]
fn calls_by_handles_and_requests_go_into_one_batch() {
    let service = Service::deploy();
    let init = Init::new().temp_dir(service.cluster.temp_dir()).embedded(EmbeddedHead::Never).untraced();
    let parent = format!("00-{:032x}-{:016x}-01", 3, 3);
    let program = init.parent(&parent).init().expect("the head runs");
    let asking: Vec<_> = (1..3).map(|number| service.ask(&format!("/full?{number}"), number)).collect();
    let handle = program.deployment("Batches");
    let calls: Vec<_> = ["a", "b"]
        .map(|input| {
            let call = handle.call("full").arg(input);
            std::thread::spawn(move || call.send::<String>())
        })
        .into();
    for (number, answer) in (1..).zip(asking) {
        assert_eq!(answer.join().unwrap().status(200).text(), format!("{number} of 4"));
    }
    let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    assert_eq!(answers, [Ok("a of 4".to_owned()), Ok("b of 4".to_owned())]);
    drop((handle, program));
    let spans = service.stop();
    let called = spans.all_named("replica_handle_request Batches full");
    let requests: Vec<_> = [request(&spans, 1), request(&spans, 2)].into_iter().chain(called).collect();
    assert_linked(spans.named("batch Batches.full"), &requests);
}

#[test]
fn the_prices_of_the_example_are_looked_up_together() {
    let service = Service::start();
    service.deploy_applications("[[applications]]\nimport_path = \"shop:price\"\n").success();
    let asking = ["tea", "cake", "coffee"].map(|name| post(&service, "/", name));
    let answers = asking.map(answered);
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 500, 200]);
    assert_eq!((answers[0].text(), answers[2].text()), ("3".into(), "4".into()));
    let spans = service.stop();
    let batches = spans.all_named("batch price.price");
    let sizes = batches.iter().map(|batch| batch.attribute("tracer.batch.size").as_u64().expect("a size"));
    assert_eq!(sizes.sum::<u64>(), 3);
}

/// Sends a request with a body.
fn post(service: &Service, path: &str, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(service.address).expect("the service is there");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    BufReader::new(stream)
}

#[test]
fn a_function_that_answers_requests_in_batches_answers_each_by_itself() {
    let service = Service::deploy();
    let asking = ["1", "x", "3"].map(|body| post(&service, "/measured", body));
    let answers = asking.map(answered);
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 500, 200]);
    assert_eq!((answers[0].text(), answers[2].text()), ("1 of 3".into(), "3 of 3".into()));
    let spans = service.stop();
    let batch = spans.named("batch measured.measured");
    assert_eq!((batch.links().len(), batch.status_code()), (3, "UNSET"));
}

#[test]
fn a_batch_that_the_limits_would_never_fill_is_refused_by_name() {
    let service = Service::deploy();
    let refused = service.deploy_again("max_ongoing_requests = 100");
    refused.status(1).stderr_contains(
        "service.toml:9: `applications.deployments.max_ongoing_requests`: a replica handles 100 requests at a time, and `large` collects up to 200 into a \
         batch, which would never be full\n(hint: `max_ongoing_requests = 200` or more, or a `max_size` of its `#[batch]` of at most 100)",
    );
    // What was served is served on.
    assert_eq!(service.ask("/timed?1", 1).join().unwrap().status(200).text(), "1 of 1");
}

/// Sends requests one after the other, and takes some back at once. Returns the traces of those that were answered, all with their own answer.
fn storm(address: SocketAddr, client: u32) -> Vec<u32> {
    let mut answered = Vec::new();
    for number in 1..61 {
        let trace = client * 60 + number;
        let mut reader = send(address, &format!("/gated?{trace}"), trace, number % 7 != 0);
        if number % 5 == 0 {
            continue;
        }
        let answer = read_answer(&mut reader, false).expect("an answer").status(200).text();
        assert!(answer.starts_with(&format!("{trace} of ")), "request {trace}: {answer}");
        if number % 7 != 0 {
            answered.push(trace);
        }
    }
    answered
}

#[test]
fn in_a_storm_on_several_threads_each_has_its_own_answer_and_links_that_agree() {
    let service = Service::deploy();
    service.deploy_again("num_replicas = 2\nthreads = 2").success();
    std::fs::write(service.gate(), "").unwrap();
    let address = service.address;
    let answered: Vec<u32> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|client| scope.spawn(move || storm(address, client))).collect();
        // Each replica has several, of which some wait for the next batch.
        service.wait_until_handled(8);
        service.open_gate();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let spans = service.stop();
    let batches = spans.all_named("batch Batches.gated");
    let by_id: HashMap<&str, &Span> = batches.iter().map(|batch| (batch.span_id(), *batch)).collect();
    assert_eq!(by_id.len(), batches.len());
    for batch in &batches {
        let size = batch.attribute("tracer.batch.size").as_u64().expect("a size");
        assert!((1..=8).contains(&size) && batch.links().len() as u64 <= size, "{batch:?}");
        assert_eq!(batch.status_code(), "UNSET");
    }
    assert!(batches.iter().any(|batch| batch.links().len() > 1), "no two requests went together");
    for trace in answered {
        let request = request(&spans, trace);
        let [batch] = &linked(request)[..] else { panic!("one batch: {request:?}") };
        let batch = by_id.get(&**batch).unwrap_or_else(|| panic!("no span of {batch}"));
        assert!(linked(batch).contains(&request.span_id().to_owned()), "{batch:?} {request:?}");
    }
}
