//! `tracer view`: the server of the page, what it answers and to whom, and the page itself in a browser.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::clock::{now_unix_nano, utc};

use crate::support::{
    Answer, Api, Background, Cluster, HOOK, Spans, kill, read_chunk, read_head, skip, wait_until, wait_until_within,
};

/// Time for a script that drives a browser. Each ends by itself before, and says where it was.
const BROWSER_TIME: Duration = Duration::from_secs(300);

/// `tracer view` as it runs.
struct View {
    process: Background,
    api: Api,
    link: String,
    code: String,
}

impl View {
    /// Starts it with these arguments.
    #[track_caller]
    fn start(cluster: &Cluster, arguments: &[&str]) -> View {
        let process = cluster.tracer_in_background(&[&["view", "--format", "json"], arguments].concat());
        process.wait_for_stdout("\n");
        let said = process.stdout_text();
        View::of(process, &said)
    }

    #[track_caller]
    fn of(process: Background, said: &str) -> View {
        let said: Value = serde_json::from_str(said).expect("it says where it is as JSON");
        let link = said["link"].as_str().expect("a link").to_owned();
        let (_, code) = link.split_once("#code=").expect("the link has a code");
        let (code, _) = code.split_once('&').expect("the link says where to go");
        let url = said["url"].as_str().expect("a URL");
        let address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address and a port");
        View { process, api: Api { address, token: String::new() }, code: code.to_owned(), link }
    }

    /// The same with the token that its code is exchanged for.
    #[track_caller]
    fn let_in(mut self) -> View {
        self.api.token = self.exchange().status(200).json()["token"].as_str().expect("a token").to_owned();
        self
    }

    #[track_caller]
    fn exchange(&self) -> Answer {
        let ask = self.api.bare("POST", "/api/v1/viewer").header("Host", &self.api.address.to_string());
        ask.json(&json!({"code": self.code})).send()
    }

    #[track_caller]
    fn get(&self, target: &str) -> Value {
        self.api.get(target).status(200).json()
    }

    /// Waits for its end where the head serves the page.
    #[track_caller]
    fn has_ended(self) {
        self.process.wait().success();
    }

    /// Ends it as Ctrl-C does.
    #[track_caller]
    fn end(self) {
        self.process.signal(Signal::INT);
        self.process.wait().success();
    }
}

/// Starts a cluster that has run a task that succeeds and one that panics in a span of its own.
fn with_two_traces() -> Cluster {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    cluster
}

/// The same with a head that serves the page.
fn with_page() -> (Cluster, Api) {
    let cluster = Cluster::builder().arg("--http").arg("127.0.0.1:0").hook(HOOK).start();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    let api = Api::of(&cluster);
    (cluster, api)
}

/// Returns a task that waits in nested spans until it is released, as the command that submits it.
fn waiting(cluster: &Cluster) -> (Background, PathBuf) {
    let (started, release) = (cluster.file("started"), cluster.file("release"));
    let arguments = [&started, &release].map(|path| json!(path).to_string());
    let submission = cluster
        .submit_in_background("misbehaving_tasks:waits_in_nested_spans", &arguments.each_ref().map(String::as_str));
    cluster.wait_for_file(&started);
    (submission, release)
}

#[test]
fn a_link_lets_in_once_and_a_token_all_the_while() {
    let cluster = with_two_traces();
    let view = View::start(&cluster, &[]);
    let token = view.exchange().status(200).json()["token"].as_str().expect("a token").to_owned();
    view.exchange().problem(401, "unauthorized");
    let with_token = Api { token, ..view.api.clone() };
    for _ in 0..2 {
        assert_eq!(with_token.get("/api/v1/traces").status(200).json()["traces"].as_array().map(Vec::len), Some(2));
    }
    view.end();
}

#[test]
fn the_page_needs_the_right_name_and_data_needs_a_token() {
    let cluster = with_two_traces();
    let view = View::start(&cluster, &[]);
    let host = view.api.address.to_string();
    let page = |path: &str| view.api.bare("GET", path).header("Host", &host);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
    ] {
        let answer = page(path).send().status(200);
        assert_eq!(answer.header("content-type"), content_type);
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
        assert!(policy.contains("require-trusted-types-for 'script'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("set-cookie"), "");
        assert!(!answer.text().contains("wordcount"), "a file of the page has no data");
        page(path).without("Host").header("Host", "evil.example").send().problem(403, "forbidden-host");
        page(path).header("Origin", "http://evil.example").send().problem(403, "forbidden-origin");
    }
    for path in ["/api/v1/traces", "/api/v1/open", "/api/v1/events", "/api/v1/traces/last"] {
        page(path).send().problem(401, "unauthorized");
        page(path).header("Authorization", "Bearer wrong").send().problem(401, "unauthorized");
    }
    let view = view.let_in();
    view.api.get("/nothing").problem(404, "no-such-path");
    view.api.get("/api/v1/nothing").problem(404, "no-such-path");
    view.api.ask("POST", "/api/v1/traces").send().problem(405, "method-not-allowed");
    view.api
        .ask("GET", "/api/v1/traces")
        .header("Origin", "http://evil.example")
        .send()
        .problem(403, "forbidden-origin");
    view.end();
}

#[test]
fn a_head_with_an_http_api_serves_the_page_and_its_tokens_do_no_more_than_they_may() {
    let (cluster, owner) = with_page();
    let view = View::start(&cluster, &[]);
    assert_eq!(view.api.address, owner.address, "it is the head's address");
    let host = view.api.address.to_string();
    let bare = |method: &str, path: &str| view.api.bare(method, path).header("Host", &host);
    let page = bare("GET", "/").send().status(200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.header("content-security-policy").contains("trusted-types 'none'"));
    bare("GET", "/page.js").without("Host").header("Host", "evil.example").send().problem(403, "forbidden-host");
    bare("GET", "/page.js").header("Origin", "http://evil.example").send().problem(403, "forbidden-origin");
    for path in ["/api/v1", "/api/v1/traces", "/api/v1/tasks", "/api/v1/events", "/api/v1/summary"] {
        bare("GET", path).send().problem(401, "unauthorized");
    }
    let answer = view.exchange().status(200).json();
    assert_eq!(answer["may_cancel"], false);
    view.exchange().problem(401, "unauthorized");
    let viewer = Api { token: answer["token"].as_str().expect("a token").to_owned(), ..view.api.clone() };
    view.has_ended();
    for path in ["/api/v1/traces/last", "/api/v1/tasks/1", "/api/v1/actors", "/api/v1/summary", "/api/v1/openapi.json"]
    {
        viewer.get(path).status(200);
    }
    let body = json!({"function": "wordcount:count", "arguments": ["a"]});
    viewer.submission("", &body).send().problem(403, "forbidden-by-token");
    viewer.ask("POST", "/api/v1/tasks/1/cancel").send().problem(403, "forbidden-by-token");
    let file = cluster.status()["http"]["viewer_token_path"].as_str().expect("a path").to_owned();
    assert_eq!(fs::read_to_string(file).expect("a token").trim_end(), viewer.token);

    let view = View::start(&cluster, &["--control"]);
    let answer = view.exchange().status(200).json();
    assert_eq!(answer["may_cancel"], true);
    let control = Api { token: answer["token"].as_str().expect("a token").to_owned(), ..view.api.clone() };
    view.has_ended();
    assert_eq!(control.ask("POST", "/api/v1/tasks/1/cancel").send().status(200).json()["state"], "ended");
    control.submission("", &body).send().problem(403, "forbidden-by-token");

    // A page that is open goes on when the process is started again.
    let pid = cluster.status()["http"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs");
    kill(pid, Signal::KILL);
    wait_until("another process answers", || {
        viewer.ask("GET", "/api/v1/traces").try_send().ok().filter(|answer| answer.status == 200)
    });
    assert_ne!(cluster.status()["http"]["pid"], json!(pid));
}

#[test]
fn both_servers_answer_the_same() {
    let (cluster, _) = with_page();
    let (own, by_head) =
        (View::start(&cluster, &["--address", "127.0.0.1:0"]).let_in(), View::start(&cluster, &[]).let_in());
    assert_ne!(own.api.address, by_head.api.address);
    for path in [
        "/api/v1/traces/last",
        "/api/v1/heat",
        "/api/v1/differences",
        "/api/v1/tasks",
        "/api/v1/tasks/1",
        "/api/v1/actors",
        "/api/v1/services",
        "/api/v1/tasks/99",
        "/api/v1/tasks?state=x",
        "/api/v1/tasks?query=state:ended+name:frequencies",
        "/api/v1/tasks?query=error",
        "/api/v1/traces/nothing",
        "/api/v1/open",
    ] {
        let [mut left, mut right] = [&own, &by_head].map(|view| view.api.get(path).json());
        for answer in [&mut left, &mut right] {
            answer.as_object_mut().expect("an object").retain(|field, _| field != "revision" && field != "time");
        }
        assert_eq!(left, right, "{path}");
    }
    let summary = own.get("/api/v1/summary");
    assert_eq!(summary["functions"][0]["target"], "wordcount.frequencies");
    assert_eq!(summary["tasks"]["succeeded"], 1, "{summary}");
    by_head.has_ended();
    own.api.ask("POST", "/api/v1/tasks/1/cancel").send().problem(403, "forbidden-by-token");
    own.end();
    let own = View::start(&cluster, &["--address", "127.0.0.1:0", "--control"]).let_in();
    assert_eq!(own.api.ask("POST", "/api/v1/tasks/1/cancel").send().status(200).json()["state"], "ended");
    cluster.stop().success();
    own.api.get("/api/v1/tasks").problem(503, "unavailable");
    own.get("/api/v1/traces");
    own.end();
}

#[test]
fn lists_traces_and_spans_are_those_of_the_files() {
    let cluster = with_two_traces();
    let view = View::start(&cluster, &[]).let_in();
    let spans = Spans::read(&cluster.spans_dir());
    let list = view.get("/api/v1/traces");
    assert_eq!(list["folder"], cluster.spans_dir().display().to_string());
    let [failed, good] = list["traces"].as_array().expect("a list").as_slice() else { panic!("{list}") };
    assert!(failed["errors"].as_u64() > Some(0) && good["errors"] == 0, "{list}");
    let id = good["trace_id"].as_str().expect("an id");
    let found = view.get("/api/v1/traces?query=error&limit=1");
    assert_eq!((&found["traces"][0]["trace_id"], &found["filtered_out"]), (&failed["trace_id"], &json!(1)));

    let trace = view.get(&format!("/api/v1/traces/{id}"));
    let ids = trace["span_id"].as_array().expect("a column").clone();
    let written: Vec<_> = spans.spans.iter().filter(|span| span.trace_id().trim_start_matches("0x") == id).collect();
    assert_eq!(ids.len(), written.len());
    for column in ["depth", "name", "process", "start", "duration", "flags"] {
        assert_eq!(trace[column].as_array().map(Vec::len), Some(ids.len()), "{column}");
    }
    for (row, span_id) in ids.iter().enumerate() {
        let span = written
            .iter()
            .find(|span| span.span_id().trim_start_matches("0x") == span_id)
            .expect("a span of the files");
        let name = &trace["names"][trace["name"][row].as_u64().expect("an index") as usize];
        assert_eq!(*name, span.name());
        let whole = view.get(&format!("/api/v1/traces/{id}/spans/{}", span_id.as_str().unwrap_or_default()));
        assert_eq!(whole["name"], *name);
    }
    assert_eq!(view.get("/api/v1/traces/last")["trace_id"], failed["trace_id"]);
    assert_eq!(view.get(&format!("/api/v1/traces/{}", &id[..10]))["trace_id"], id);
    view.end();
}

#[test]
fn a_heat_map_has_all_traces_and_a_region_says_what_is_different_in_it() {
    let cluster = with_two_traces();
    let view = View::start(&cluster, &[]).let_in();
    let map = view.get("/api/v1/heat?columns=10&rows=5")["map"].clone();
    assert_eq!((&map["traces"], &map["columns"], &map["rows"]), (&json!(2), &json!(10), &json!(5)));
    let cells = map["cells"].as_array().expect("a list");
    let sum = |name: &str| cells.iter().filter_map(|cell| cell[name].as_u64()).sum::<u64>();
    assert_eq!((sum("traces"), sum("errors")), (2, 1));
    assert_eq!(view.get("/api/v1/heat?query=name:nothing")["map"], Value::Null);

    let list = view.get("/api/v1/traces");
    let (failed, good) = (&list["traces"][0], &list["traces"][1]);
    let region = format!("since={}", failed["start_time"].as_str().expect("a time"));
    let found = view.get(&format!("/api/v1/traces?{region}"));
    assert_eq!((&found["traces"][0]["trace_id"], &found["filtered_out"]), (&failed["trace_id"], &json!(1)));
    let found = view.get(&format!("/api/v1/differences?{region}"));
    assert_eq!((&found["selected"], &found["others"]), (&json!(1), &json!(1)));
    let values = found["values"].as_array().expect("a list");
    let value = |key: &str| values.iter().find(|value| value["key"] == key).unwrap_or_else(|| panic!("{key}: {found}"));
    assert_eq!((&value("error")["difference"], &value("error")["example"]), (&json!(1.0), &failed["trace_id"]));
    assert_eq!(value("error.type")["query"], "error.type=panic");
    let rarer =
        values.iter().find(|value| value["value"] == "wordcount.frequencies").expect("what is not in the region");
    assert_eq!((&rarer["difference"], &rarer["example"]), (&json!(-1.0), &good["trace_id"]));
    view.end();
}

#[test]
fn what_is_asked_wrongly_is_said() {
    let cluster = with_two_traces();
    let view = View::start(&cluster, &[]).let_in();
    for (target, status, name, part) in [
        ("/api/v1/traces?query=kind:consumr", 422, "not-a-question", "did you mean `consumer`?"),
        ("/api/v1/tasks?query=state:wating", 422, "not-a-question", "did you mean `waiting`?"),
        ("/api/v1/traces?limit=0", 400, "invalid-request", "limit"),
        ("/api/v1/traces?limits=1", 400, "invalid-request", "limits"),
        ("/api/v1/heat?columns=501", 400, "invalid-request", "from 1 to 500"),
        ("/api/v1/differences?since=noon", 400, "invalid-request", "expected a time"),
        ("/api/v1/traces/nothing", 400, "invalid-request", "nothing"),
        ("/api/v1/traces/00000000000000000000000000000001", 404, "no-such-trace", "00000000000000000000000000000001"),
        ("/api/v1/traces/last/spans/xyz", 400, "invalid-request", "expected a span id of 16 hex digits, found `xyz`"),
        ("/api/v1/traces/last/spans/0000000000000001", 404, "no-such-span", "there is no span 0000000000000001"),
    ] {
        let problem = view.api.get(target).problem(status, name);
        assert!(problem.to_string().contains(part), "{target}: {problem}");
    }
    view.end();
    cluster.tracer(&["view", "abcdef"]).status(1).stderr_contains("abcdef");
    cluster.tracer(&["view", "--address", "0.0.0.0:1"]).status(2).stderr_contains("an address of this machine alone");
}

#[test]
fn what_runs_is_there_and_changes_are_told() {
    let cluster = Cluster::traced();
    let view = View::start(&cluster, &[]).let_in();
    let mut events = view.api.ask("GET", "/api/v1/events").open().expect("it answers");
    let (status, headers) = read_head(&mut events).expect("it answers");
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-type".into(), "text/event-stream".into())), "{headers:?}");
    let mut revision = || {
        let chunk = read_chunk(&mut events).expect("the stream goes on").expect("it does not end");
        let event = String::from_utf8(chunk).expect("it is text");
        event.strip_prefix("id: ").and_then(|rest| rest.split('\n').next()?.parse::<u64>().ok())
    };
    let before = revision().expect("the first event has the revision of now");
    let (submission, release) = waiting(&cluster);
    let mut next = before;
    while next == before {
        next = revision().unwrap_or(before);
    }
    let open = wait_until("the task's spans are open", || {
        let open = view.get("/api/v1/open");
        (open["open"].as_u64() >= Some(3)).then_some(open)
    });
    let names: Vec<&str> = open["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|process| process["spans"].as_array().into_iter().flatten().filter_map(|span| span["name"].as_str()))
        .collect();
    assert!(names.contains(&"misbehaving_tasks.waits_in_nested_spans tracer.remote_worker"), "{names:?}");
    let id = open["processes"][0]["spans"][0]["trace_id"].as_str().expect("an id");
    assert_eq!(view.get("/api/v1/traces?query=running")["traces"][0]["trace_id"], id);
    // The bit of what runs, of a trace's columns.
    let is_running = |trace: &Value| {
        trace["flags"].as_array().expect("a column").iter().any(|flags| flags.as_u64().unwrap_or(0) & 2 != 0)
    };
    assert!(is_running(&view.get(&format!("/api/v1/traces/{id}"))));
    fs::write(release, "").expect("it can be written");
    submission.wait().success();
    let trace = wait_until("nothing of it runs", || {
        Some(view.get(&format!("/api/v1/traces/{id}"))).filter(|trace| !is_running(trace))
    });
    assert!(trace["revision"].as_u64() > Some(next), "{trace}");
    assert_eq!(view.get("/api/v1/open")["open"], 0);
    view.end();
}

#[test]
fn a_stream_that_breaks_off_goes_on_where_it_was() {
    let cluster = Cluster::traced();
    let view = View::start(&cluster, &[]).let_in();
    let first_event = |target: &str, seen: Option<&str>| {
        let ask = view.api.ask("GET", target);
        let ask = if let Some(seen) = seen { ask.header("Last-Event-ID", seen) } else { ask };
        let mut events = ask.open().expect("it answers");
        assert_eq!(read_head(&mut events).expect("it answers").0, 200);
        let chunk = read_chunk(&mut events).expect("the stream goes on").expect("it does not end");
        let event = String::from_utf8(chunk).expect("it is text");
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event has data").to_owned();
        serde_json::from_str::<Value>(&data).expect("it is JSON")
    };
    let before = first_event("/api/v1/events", None);
    assert_eq!((&before["traces"], &before["left_out"]), (&json!([]), &json!(0)));
    let seen = before["revision"].to_string();
    cluster.submit("wordcount:count", &["\"a\""]).success();
    // An answer may be of a look some milliseconds ago.
    let id = wait_until("the trace is listed", || {
        let id = view.get("/api/v1/traces")["traces"][0]["trace_id"].clone();
        id.is_string().then_some(id)
    });
    for (target, header) in [(format!("/api/v1/events?after={seen}"), None), ("/api/v1/events".into(), Some(&*seen))] {
        let since = first_event(&target, header);
        assert_eq!((&since["traces"], &since["left_out"]), (&json!([id]), &json!(0)), "{since}");
        assert!(since["revision"].as_u64() > before["revision"].as_u64());
    }
    // More than are named: it says how many.
    for _ in 0..22 {
        cluster.submit("wordcount:count", &["\"a\""]).success();
    }
    wait_until("all but 20 are left out", || {
        let since = first_event(&format!("/api/v1/events?after={seen}"), None);
        (since["traces"].as_array().map(Vec::len) == Some(20) && since["left_out"].as_u64() >= Some(3)).then_some(())
    });
    view.api.get("/api/v1/events?after=x").problem(400, "invalid-request");
    view.end();
}

#[test]
fn a_folder_is_shown_without_a_head() {
    let cluster = with_two_traces();
    cluster.stop().success();
    let view = View::start(&cluster, &[cluster.spans_dir().to_str().expect("a text")]).let_in();
    assert_eq!(view.get("/api/v1/traces")["traces"].as_array().map(Vec::len), Some(2));
    // What is added is found, and a folder that is gone is no trace, nor the end.
    let name = fs::read_dir(cluster.spans_dir()).unwrap().next().expect("a file").unwrap().path();
    fs::copy(&name, cluster.spans_dir().join("1.json")).unwrap();
    assert_eq!(view.get("/api/v1/traces")["traces"].as_array().map(Vec::len), Some(2));
    fs::remove_dir_all(cluster.spans_dir()).unwrap();
    view.api.get("/api/v1/traces");
    view.end();
}

#[test]
fn a_link_of_text_is_for_people() {
    let cluster = with_two_traces();
    let process = cluster.tracer_in_background(&["view", "last"]);
    process.wait_for_stderr("Ctrl-C ends");
    let list = cluster.tracer(&["trace", "list", "--format", "json"]).success().json();
    let id = list["traces"][0]["trace_id"].as_str().expect("an id").to_owned();
    process.wait_for_stdout(&format!("&to=/trace/{id}\n"));
    let text = process.stdout_text();
    assert!(text.starts_with("traces of "), "{text}");
    process.signal(Signal::TERM);
    process.wait().success();
}

/// The folder with the page's packages, which the gate names.
pub(crate) fn page_tools() -> Option<PathBuf> {
    let tools = std::env::var_os("TRACER_PAGE_TOOLS").map(PathBuf::from);
    let tools = tools.unwrap_or_else(|| source().join("node_modules"));
    if tools.join("esbuild").is_dir() {
        return Some(tools);
    }
    skip("page tools", format!("`npm ci` in src/web/view/page installs them; there is no {}", tools.display()));
    None
}

fn source() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/view/page"))
}

/// A copy of the page's sources with its packages beside it.
fn copy_of_page(folder: &Path, tools: &Path) {
    fs::create_dir_all(folder).unwrap();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(source().join(&inner)).unwrap() {
            let name = inner.join(entry.unwrap().file_name());
            let from = source().join(&name);
            if name == Path::new("node_modules") || name == Path::new("dist") {
                continue;
            }
            if from.is_dir() {
                fs::create_dir_all(folder.join(&name)).unwrap();
                folders.push(name);
            } else {
                fs::copy(&from, folder.join(&name)).unwrap();
            }
        }
    }
    symlink(tools, folder.join("node_modules")).unwrap();
}

/// Programs that drive the page in a browser.
struct BrowserTools {
    modules: PathBuf,
    chromium: PathBuf,
}

/// Returns what drives the page, or says what is not there.
fn browser_tools() -> Option<BrowserTools> {
    let modules = page_tools()?;
    let chromium = ["chromium", "chromium-browser"].into_iter().find_map(program);
    if chromium.is_none() {
        skip("chromium", "it is not installed");
    }
    Some(BrowserTools { modules, chromium: chromium? })
}

impl BrowserTools {
    /// Returns a script of the page's tests, in a copy of its folder.
    fn script(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let page = cluster.file("page");
        copy_of_page(&page, &self.modules);
        let mut command = cluster.program("node");
        command.current_dir(page).env("CHROMIUM", &self.chromium).env("HOME", cluster.folder());
        // Where somebody wants to look at them.
        let screenshots = std::env::var_os("TRACER_PAGE_SCREENSHOTS");
        command.envs(screenshots.map(|folder| ("TRACER_PAGE_SCREENSHOTS", folder)));
        command.args(arguments);
        command
    }
}

fn node(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.current_dir(folder).args(arguments);
    command
}

#[track_caller]
fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

#[test]
fn the_page_is_what_its_sources_build() {
    let Some(tools) = page_tools() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    copy_of_page(&page, &tools);
    run(node(&page, &["build.mjs"]));
    let mut bytes = 0;
    for name in ["index.html", "page.css", "page.js"] {
        let built = fs::read(page.join("dist").join(name)).unwrap();
        bytes += built.len();
        let kept = fs::read(source().join("dist").join(name)).unwrap();
        assert!(
            built == kept,
            "dist/{name} is not what `npm run build` makes in src/web/view/page: build it and check it in"
        );
    }
    assert!(bytes < 130_000, "the page has {bytes} bytes, at most 130,000 are wanted");
    run(node(&page, &["node_modules/typescript/bin/tsc", "--noEmit"]));
    let said = run(node(&page, &["test/run.mjs", folder.path().to_str().expect("a text")]));
    assert!(said.contains("# fail 0"), "{said}");
}

/// A span whose name, attribute and event would be scripts, or steer what they are shown on.
fn hostile_span() -> String {
    let text = "<img src=x onerror=alert(1)>\u{202e}txt\u{7}\u{200b}";
    let now = utc(now_unix_nano()).to_string();
    let span = json!({
        "name": text, "kind": "SpanKind.INTERNAL", "parent_id": null,
        "context": {"trace_id": "0x000000000000000000000000000000f0", "span_id": "0x00000000000000f1", "trace_state": "[]"},
        "start_time": now, "end_time": now, "status": {"status_code": "UNSET", "description": text}, "attributes": {text: text},
        "events": [{"name": text, "timestamp": now, "attributes": {text: text}}], "links": [],
        "resource": {"attributes": {"service.name": text}, "schema_url": ""},
    });
    format!("{span}\n")
}

#[test]
fn what_a_worker_runs_is_named_while_it_is_being_cancelled() {
    let cluster = Cluster::builder().hook(HOOK).workers(1).start();
    let script = "trap '' TERM INT; echo $$ > own; while :; do sleep 1000; done";
    let submission = cluster.tracer_in_background(&["submit", "command", "--grace=1h", "--", "sh", "-c", script]);
    cluster.wait_for_file(&cluster.file("own"));
    let view = View::start(&cluster, &[]).let_in();
    cluster.tracer(&["cancel", "1"]).success();
    wait_until("it is told to end", || (cluster.task(1)["state"] == "terminating").then_some(()));
    let now = view.get("/api/v1/now");
    assert_eq!((&now["tracks"][0]["runs"], &now["queue"]), (&json!("sh"), &json!([])), "{now}");
    cluster.tracer(&["cancel", "1", "--grace", "0"]).success();
    submission.wait().status(1);
}

#[test]
fn questions_about_a_trace_and_about_the_head_are_answered() {
    let cluster = Cluster::builder().hook(HOOK).workers(1).start();
    let count = cluster.file("count");
    let tries = [json!(count).to_string(), "1".into()];
    let submit = ["submit", "task", "--retries", "1", "misbehaving_tasks:fails_at_first"];
    cluster.tracer(&[&submit[..], &tries.each_ref().map(String::as_str)].concat()).success();
    cluster.tracer(&["submit", "command", "--", "sh", "-c", "echo one; echo two >&2"]).success();
    let (submission, release) = waiting(&cluster);
    let queued = cluster.submit_in_background("wordcount:count", &["\"a b\""]);
    let view = View::start(&cluster, &[]).let_in();

    // What runs, and what waits behind it.
    let now = wait_until("a task waits", || {
        let now = view.get("/api/v1/now");
        (now["queue"].as_array().is_some_and(|queue| queue.len() == 1)).then_some(now)
    });
    let track = &now["tracks"][0];
    assert_eq!((&track["worker_id"].is_u64(), &track["state"]), (&true, &json!("busy")), "{now}");
    let names: Vec<_> =
        track["spans"].as_array().expect("a list").iter().map(|span| (&span["name"], &span["depth"])).collect();
    assert_eq!(names[1..], [(&json!("outer"), &json!(1)), (&json!("inner"), &json!(2))], "{now}");
    assert_eq!((&now["queue"][0]["target"], &now["queue"][0]["tasks"]), (&json!("wordcount.count"), &json!(1)));
    let reason = now["queue"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("busy"), "{reason}");
    assert_eq!(now["head"]["tasks"]["succeeded"], 2);
    let waiting_trace = now["queue"][0]["trace_id"].as_str().expect("it is traced");
    wait_until("its submission says which task it is", || {
        // None as long as no span of it is there.
        let attempts = view.api.get(&format!("/api/v1/traces/{waiting_trace}/attempts")).json();
        attempts["waiting"][0]["why"].as_str().is_some_and(|why| why.contains("busy")).then_some(())
    });

    // Tasks of the head and of spans alone.
    let history = view.get("/api/v1/history");
    let tasks = history["tasks"].as_array().expect("a list");
    assert_eq!(tasks.len(), 4, "{history}");
    let retried = tasks.iter().find(|task| task["target"] == "misbehaving_tasks.fails_at_first").expect("it is there");
    assert_eq!(
        (&retried["state"], &retried["attempt"], &retried["is_from_spans"]),
        (&json!("succeeded"), &json!(2), &json!(false))
    );
    assert_eq!(retried["result"], json!("2"), "what it returned");
    assert!(retried["cpu_time_ns"].as_u64() > Some(0) && retried["peak_memory_bytes"].as_u64() > Some(0), "{retried}");
    let states = |state: &str| {
        let found = view.get(&format!("/api/v1/history?state={state}&text=COUNT"));
        found["tasks"].as_array().map(Vec::len)
    };
    assert_eq!((states("waiting"), states("running"), states("failed")), (Some(1), Some(0), Some(0)));

    // Both attempts of the task, in its trace, and links both ways.
    let id = retried["trace_id"].as_str().expect("it is traced");
    let attempts = view.get(&format!("/api/v1/traces/{id}/attempts"));
    let [first, second] = attempts["attempts"].as_array().expect("a list").as_slice() else { panic!("{attempts}") };
    assert_eq!((&first["attempt"], &second["attempt"]), (&json!(1), &json!(2)));
    assert!(first["error"].is_string() && second["error"].is_null(), "{attempts}");
    let links = view.get(&format!("/api/v1/traces/{id}/links"));
    let links = links["links"].as_array().expect("a list");
    let from = |is_from_other: bool| links.iter().filter(|link| link["is_from_other"] == is_from_other).count();
    assert_eq!((from(true), from(false)), (1, 1), "the second attempt names the first: {links:?}");
    let found = view.get(&format!("/api/v1/traces/{id}/find?text=tracer.attempt%3D2"));
    assert_eq!((&found["span_ids"], &found["problem"]), (&json!([second["span_id"]]), &Value::Null));
    let found = view.get(&format!("/api/v1/traces/{id}/find?text=kind%3Aconsumr"));
    assert!(found["problem"].as_str().is_some_and(|problem| problem.contains("did you mean")), "{found}");

    // What was written, with the span of its attempt.
    let command = tasks.iter().find(|task| task["target"] == "sh").expect("it is there");
    let id = command["trace_id"].as_str().expect("it is traced");
    let written = view.get(&format!("/api/v1/traces/{id}/written"));
    let mut lines: Vec<_> = written["entries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (entry["kind"].as_str(), entry["text"].as_str()))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [(Some("stderr"), Some("two")), (Some("stdout"), Some("one"))], "{written}");
    assert_eq!(written["entries"][0]["span_id"], command["span_id"]);

    // Two groups by path of names.
    let compared = view.get("/api/v1/compare?before=name:sh&after=name:fails_at_first");
    assert_eq!((&compared["before"]["traces"], &compared["after"]["traces"]), (&json!(1), &json!(1)));
    let paths = compared["paths"].as_array().expect("a list");
    let shared = paths.iter().filter(|path| path["before"].is_object() && path["after"].is_object()).count();
    assert_eq!((shared, paths.len()), (1, 5), "the job is in both: {compared}");

    for (name, rows) in [("workers", 1), ("actors", 0), ("services", 0)] {
        let list = view.get(&format!("/api/v1/{name}"));
        assert_eq!(list[name].as_array().map(Vec::len), Some(rows), "{list}");
    }
    for (target, status, name, part) in [
        ("/api/v1/history?state=lost", 400, "invalid-request", "waiting, running, succeeded, failed"),
        ("/api/v1/compare?before=kind:consumr&after=last", 422, "not-a-question", "did you mean"),
        ("/api/v1/traces/last/find?texts=a", 400, "invalid-request", "texts"),
    ] {
        let problem = view.api.get(target).problem(status, name);
        assert!(problem.to_string().contains(part), "{target}: {problem}");
    }
    fs::write(release, "").expect("it can be written");
    submission.wait().success();
    queued.wait().success();
    view.end();

    // Without the head, from the spans alone.
    cluster.stop().success();
    let view = View::start(&cluster, &[cluster.spans_dir().to_str().expect("a text")]).let_in();
    let history = view.get("/api/v1/history");
    assert_eq!(
        (&history["has_head"], history["tasks"].as_array().map(Vec::len)),
        (&json!(false), Some(4)),
        "{history}"
    );
    assert!(history["tasks"].as_array().expect("a list").iter().all(|task| task["is_from_spans"] == true));
    assert_eq!(view.get("/api/v1/now")["head"], Value::Null);
    view.api.get("/api/v1/workers").problem(503, "unavailable");
    view.end();
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(tools) = browser_tools() else { return };
    let cluster = with_two_traces();
    let hostile = hostile_span();
    fs::write(cluster.spans_dir().join("999999998.json"), &hostile).unwrap();
    // To be added later: it has another id.
    fs::write(cluster.file("hostile.json"), hostile.replace("00000000000000f1", "00000000000000f2")).unwrap();
    let (submission, _) = waiting(&cluster);
    let view = View::start(&cluster, &[]);
    let browser = tools.script(&cluster, &["test/browser.mjs", &view.link, cluster.folder().to_str().expect("a text")]);
    let said = cluster.spawn(browser).wait_within(BROWSER_TIME).success().stdout_text();
    assert_eq!(said, "ok\n");
    submission.wait().success();
    view.end();
}

#[test]
fn the_page_of_a_head_goes_on_when_its_server_is_killed_also_in_a_second_tab() {
    let Some(tools) = browser_tools() else { return };
    let (cluster, _) = with_page();
    cluster.submit("traced_tasks:logs", &["4"]).success();
    cluster.submit("traced_tasks:measure", &[]).success();
    let script = "echo 'a line of the task'; echo 'what went wrong' >&2";
    cluster.tracer(&["submit", "command", "--", "sh", "-c", script]).success();
    let view = View::start(&cluster, &[]);
    let browser = tools.script(&cluster, &["test/served.mjs", &view.link, cluster.folder().to_str().expect("a text")]);
    let mut browser = cluster.spawn(browser);
    let mut has_ended = |file: &str| {
        let path = cluster.file(file);
        // What the browser says when it has failed is more than that the file is not there.
        wait_until_within(BROWSER_TIME, &format!("the browser writes `{file}` or ends"), || {
            if !browser.is_running() { Some(true) } else { path.exists().then_some(false) }
        })
    };
    if !has_ended("kill") {
        let pid = cluster.status()["http"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs");
        kill(pid, Signal::KILL);
    }
    let submission = (!has_ended("go-on")).then(|| {
        let arguments = [cluster.file("started"), cluster.file("release")].map(|path| json!(path).to_string());
        let arguments = arguments.each_ref().map(String::as_str);
        cluster.submit_in_background("misbehaving_tasks:waits_in_nested_spans", &arguments)
    });
    let said = browser.wait_within(BROWSER_TIME).success().stdout_text();
    assert_eq!(said, "ok\n");
    submission.expect("it was submitted").wait().success();
    view.has_ended();
}

#[test]
fn the_page_of_speedscope_opens_an_export() {
    let Some(tools) = browser_tools() else { return };
    if !tools.modules.join("speedscope").is_dir() {
        return skip("page tools", "speedscope is not among them: `npm ci` in src/web/view/page installs it");
    }
    let cluster = with_two_traces();
    let profile = cluster.file("profile.json");
    let to = profile.to_str().expect("a text");
    cluster.tracer(&["trace", "export", "--all", "--format", "speedscope", "--output", to]).success();
    let written: Value = serde_json::from_slice(&fs::read(&profile).unwrap()).expect("it is JSON");
    let name = written["profiles"][0]["name"].as_str().expect("a profile has a name").to_owned();
    let browser = tools.script(&cluster, &["test/speedscope.mjs", to, &name]);
    let said = cluster.spawn(browser).wait_within(BROWSER_TIME).success().stdout_text();
    assert_eq!(said, "ok\n");
}

/// Figures of the page with a large trace: as many spans as `TRACER_PAGE_SPANS` says, 3000 unless it is set. They are printed, beside the time that
/// `tracer trace show` takes for the same.
#[test]
fn a_large_trace_is_shown_and_measured() {
    let Some(tools) = browser_tools() else { return };
    let spans: u64 = std::env::var("TRACER_PAGE_SPANS").ok().and_then(|spans| spans.parse().ok()).unwrap_or(3000);
    let cluster = Cluster::traced();
    cluster.submit("wordcount:count", &["\"a b\""]).success();
    let trace = "0123456789abcdef0123456789abcdef";
    fs::write(cluster.spans_dir().join("999999997.json"), large_trace(trace, spans)).unwrap();
    let start = std::time::Instant::now();
    cluster.tracer(&["trace", "show", trace]).success();
    let shown = start.elapsed();
    let view = View::start(&cluster, &[]);
    let mut browser =
        tools.script(&cluster, &["test/speed.mjs", &view.link, trace, cluster.folder().to_str().expect("a text")]);
    browser.env("TRACER", env!("CARGO_BIN_EXE_tracer")).env("SUBMISSIONS", if spans > 3000 { "20" } else { "2" });
    let said = cluster.spawn(browser).wait_within(BROWSER_TIME).success().stdout_text();
    let figures: Value = serde_json::from_str(&said).expect("it prints figures");
    println!("{spans} spans: trace show {} ms; page {figures}", shown.as_millis());
    assert_eq!(figures["rows"], spans);
    view.end();
}

/// Spans of one trace in a tree of names, attributes and errors, a line each.
fn large_trace(trace: &str, spans: u64) -> String {
    use std::fmt::Write as _;
    let begun = now_unix_nano();
    let mut lines = String::new();
    for span in 0..spans {
        let parent = if span == 0 { Value::Null } else { json!(format!("0x{:016x}", (span - 1) / 8 + 1)) };
        let time = |micros: u64| format!("{}", utc(begun + micros * 1000));
        let status = if span % 1000 == 999 { "ERROR" } else { "UNSET" };
        let line = json!({
            "name": format!("step {}", span % 40), "kind": "SpanKind.INTERNAL", "parent_id": parent,
            "context": {"trace_id": format!("0x{trace}"), "span_id": format!("0x{:016x}", span + 1), "trace_state": "[]"},
            "start_time": time(span * 10), "end_time": time(spans * 10 + 2000), "status": {"status_code": status},
            "attributes": {"region": if span % 3 == 0 { "eu" } else { "us" }, "code": 200 + span % 5, "path": "/orders/7/items"},
            "events": [], "links": [],
            "resource": {"attributes": {"service.name": "shop", "process.pid": 1000 + span % 6}, "schema_url": ""},
        });
        writeln!(lines, "{line}").expect("a text takes it");
    }
    lines
}

/// Returns the path of a program that is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}
