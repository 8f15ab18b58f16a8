//! Services that are served: requests while replicas, proxies and the head begin, are replaced, and die.

use std::fs;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Answer, Cluster, HOOK, Run, is_alive, kill, module_folder, read_answer, wait_until};

/// Deadline of a request. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// A connection to a service.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(url: &str) -> std::io::Result<Client> {
        let stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/'))?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Client(BufReader::new(stream)))
    }

    fn get(&mut self, path: &str) -> std::io::Result<Answer> {
        self.0.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n").as_bytes())?;
        read_answer(&mut self.0, false)
    }
}

/// Asks once, on a connection of its own.
#[track_caller]
fn get(url: &str) -> Answer {
    Client::connect(url).and_then(|mut client| client.get("/")).unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Sets a flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Asks without a pause, on several connections, while `act` goes on. Returns the answers that were 200, and what else there was.
fn while_asked(url: &str, act: impl FnOnce()) -> (usize, Vec<String>) {
    let (is_over, good) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = || {
        let (mut client, mut others) = (None, Vec::new());
        while !is_over.load(SeqCst) {
            let answer = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(url),
            };
            let answer = answer.and_then(|mut open| open.get("/").map(|answer| (open, answer)));
            match answer {
                Ok((open, answer)) => {
                    client = Some(open).filter(|_| answer.header("connection") != "close");
                    match answer.status {
                        200 => drop(good.fetch_add(1, SeqCst)),
                        status => others.push(format!("{status}: {}", answer.text())),
                    }
                }
                Err(error) => others.push(error.to_string()),
            }
        }
        others
    };
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        // Those who ask end also when something here panics.
        let end = SetOnDrop(&is_over);
        let begun = good.load(SeqCst);
        wait_until("requests are answered", || (good.load(SeqCst) > begun).then_some(()));
        act();
        let done = good.load(SeqCst);
        wait_until("requests are answered after it", || (good.load(SeqCst) > done + 10).then_some(()));
        drop(end);
        let others = askers.into_iter().flat_map(|asker| asker.join().expect("an asker does not panic"));
        (good.load(SeqCst), others.collect())
    })
}

fn deploy(cluster: &Cluster, deployment: &str) -> Run {
    let path = cluster.file("service.toml");
    let text = format!(
        "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nname = \"shop\"\nimport_path = \"shop:hello\"\n\
         [[applications.deployments]]\nimport_path = \"shop:hello\"\n{deployment}\n"
    );
    fs::write(&path, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", &path.display().to_string()])
}

fn status(cluster: &Cluster) -> Value {
    let report = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    report["services"][0].clone()
}

fn url(cluster: &Cluster) -> String {
    status(cluster)["url"].as_str().expect("it has a url").to_owned()
}

fn pids(report: &Value, of: &str) -> Vec<u32> {
    let rows = report[of].as_array().expect("there are rows");
    rows.iter().map(|row| row["pid"].as_u64().expect("it has a process") as u32).collect()
}

#[track_caller]
fn wait_until_running(cluster: &Cluster) -> Value {
    wait_until("the service is running", || Some(status(cluster)).filter(|status| status["state"] == "running"))
}

#[test]
fn a_command_serves_a_deployment_with_a_head_of_its_own_until_ctrl_c() {
    let cluster = Cluster::builder().build();
    let run = cluster.tracer_in_background(&["serve", "run", "shop:hello", "--address", "127.0.0.1:0"]);
    run.wait_for_stdout("http://127.0.0.1:");
    let url = wait_until("the url is whole", || run.stdout_text().strip_suffix('\n').map(str::to_owned));
    assert!(get(&url).status(200).text().starts_with("hello"));
    run.wait_for_stderr("\"GET /\" 200");
    run.wait_for_stderr("replica hello#1");
    let report = status(&cluster);
    assert_eq!(
        (&report["name"], &report["state"], &report["version"]),
        (&"hello".into(), &"running".into(), &1.into())
    );
    let list = cluster.tracer(&["list", "workers", "--format", "json"]).success().json();
    let replicas =
        list["workers"].as_array().expect("there are workers").iter().filter(|row| row["replica"] == "hello#1");
    assert_eq!(replicas.count(), 1, "{list}");
    run.signal(Signal::INT);
    run.wait().success().stderr_contains("finishing requests in progress");
    assert!(Client::connect(&url).is_err(), "nobody listens any more");
    cluster.assert_nothing_runs();
    // What was served for the life of a command is not served again.
    cluster.start_head(&[]).success();
    assert_eq!(
        cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"],
        Value::Array(Vec::new())
    );
}

#[test]
fn what_a_command_serves_with_the_head_of_the_place_ends_with_the_command_also_when_that_is_killed() {
    let cluster = Cluster::untraced();
    let run = cluster.tracer_in_background(&["serve", "run", "shop:hello", "--address", "127.0.0.1:0"]);
    run.wait_for_stdout("http://127.0.0.1:");
    let replica = pids(&status(&cluster), "replicas")[0];
    run.signal(Signal::KILL);
    run.wait();
    wait_until("the replica has ended", || (!is_alive(replica)).then_some(()));
    wait_until("the service is gone", || {
        let report = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        (report["services"] == Value::Array(Vec::new())).then_some(())
    });
}

#[test]
fn a_new_version_is_rolled_out_and_rolled_back_without_a_failed_request() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "num_replicas = 2").success().stderr_contains("version 1 of service `shop` is served at http://");
    let (url, first) = (url(&cluster), pids(&status(&cluster), "replicas"));
    let (good, others) = while_asked(&url, || {
        deploy(&cluster, "num_replicas = 3\nenv = { A = \"1\" }").success();
        cluster.tracer(&["serve", "rollback"]).success().stderr_contains("version 3 of service `shop` is served");
    });
    assert_eq!(others, Vec::<String>::new(), "beside {good} good ones");
    let report = wait_until("old replicas are gone", || {
        Some(status(&cluster)).filter(|report| pids(report, "replicas").len() == 2)
    });
    assert!(pids(&report, "replicas").iter().all(|pid| !first.contains(pid)), "each version has processes of its own");
    let history = cluster.tracer(&["serve", "history", "--format", "json"]).success().json();
    let versions = history["versions"].as_array().expect("there are versions");
    let told: Vec<_> = versions.iter().map(|row| (row["version"].as_u64(), row["is_served"] == true)).collect();
    assert_eq!(told, [(Some(1), false), (Some(2), false), (Some(3), true)]);
    assert_eq!((&versions[0]["file"], versions[1]["file"] == versions[0]["file"]), (&versions[2]["file"], false));
    // A setting that needs no process.
    let before = pids(&status(&cluster), "replicas");
    deploy(&cluster, "num_replicas = 2\nmax_ongoing_requests = 7").success();
    assert_eq!(pids(&status(&cluster), "replicas"), before);
    let config = cluster.tracer(&["serve", "config"]).success().stdout_text();
    assert!(config.contains("max_ongoing_requests = 7"), "{config}");
}

#[test]
fn a_version_whose_replica_fails_is_not_served_and_the_one_before_it_is() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "num_replicas = 2").success();
    let (url, before) = (url(&cluster), pids(&status(&cluster), "replicas"));
    let failing = "[[applications.deployments]]\nimport_path = \"shop:Model\"\narguments = [\"\"]";
    let (_, others) = while_asked(&url, || {
        deploy(&cluster, failing)
            .status(1)
            .stderr_contains(
                "version 2 of service `shop` could not be rolled out, and version 1 is served on: replica Model#1: ",
            )
            .stderr_contains("expected the path of a model, found an empty one");
    });
    assert_eq!(others, Vec::<String>::new());
    let report = status(&cluster);
    assert_eq!((pids(&report, "replicas"), &report["version"]), (before, &1.into()));
    assert!(report["last_failure"].as_str().is_some_and(|failure| failure.contains("Model#1")), "{report}");
}

#[test]
fn a_version_that_panics_is_ill_or_hangs_is_not_served_and_the_one_before_it_is() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "num_replicas = 2").success();
    let (url, before) = (url(&cluster), pids(&status(&cluster), "replicas"));
    let (_, others) = while_asked(&url, || {
        for (how, said) in [
            ("panic", "replica Broken#1: "),
            ("panic", "it broke"),
            ("ill", "it feels ill"),
            ("hang", " is not ready after 2 s"),
        ] {
            let broken = format!(
                "[[applications.deployments]]\nimport_path = \"handlers:Broken\"\narguments = [\"{how}\"]\nstart_timeout = \"2s\""
            );
            deploy(&cluster, &broken)
                .status(1)
                .stderr_contains("could not be rolled out, and version 1 is served on: replica Broken#")
                .stderr_contains(said);
            // The broken one is killed, which takes a moment.
            wait_until(&format!("what was there before is left, and nothing else ({how})"), || {
                let report = status(&cluster);
                assert_eq!(report["version"], 1, "{how}");
                (pids(&report, "replicas") == before).then_some(())
            });
        }
    });
    assert_eq!(others, Vec::<String>::new());
}

#[test]
fn settings_that_live_replicas_refuse_or_are_not_well_with_are_not_served_and_lose_no_request() {
    let cluster = Cluster::untraced();
    let with = |temperature: f64| {
        format!(
            "num_replicas = 3\n[[applications]]\nname = \"model\"\nroute_prefix = \"/model\"\nimport_path = \"shop:Model\"\n\
             [[applications.deployments]]\nimport_path = \"shop:Model\"\narguments = [\"/m/7\"]\nnum_replicas = 2\n\
             health_check_period = \"200ms\"\nuser_config = {{ temperature = {temperature:?} }}"
        )
    };
    deploy(&cluster, &with(0.5)).success();
    let (url, before) = (url(&cluster), pids(&status(&cluster), "replicas"));
    let temperature = |client: &mut Client| {
        let body = "POST /model HTTP/1.1\r\nhost: shop\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nx";
        client.0.get_mut().write_all(body.as_bytes()).and_then(|()| read_answer(&mut client.0, false))
    };
    let mut client = Client::connect(&url).expect("it is served");
    for (refused, said) in [(150.0, "is not well with its `user_config`"), (-1.0, "does not take its `user_config`")] {
        deploy(&cluster, &with(refused))
            .status(1)
            .stderr_contains("could not be rolled out, and version 1 is served on: replica Model#")
            .stderr_contains(said);
        // Each has what it had, after as many questions as a replica may say no to.
        for _ in 0..20 {
            let answer = temperature(&mut client).expect("it answers");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        wait_until("all have what they had", || {
            (0..8).all(|_| temperature(&mut client).expect("it answers").text().contains("0.5")).then_some(())
        });
        let report = status(&cluster);
        assert_eq!((pids(&report, "replicas"), &report["version"]), (before.clone(), &1.into()));
        assert_eq!((&report["state"], &report["deployments"][1]["lost"]), (&"running".into(), &0.into()), "{report}");
    }
    deploy(&cluster, &with(7.5)).success();
    assert!(temperature(&mut client).expect("it answers").text().contains("7.5"));
    assert_eq!(pids(&status(&cluster), "replicas"), before);
}

#[test]
fn a_replica_whose_loop_hangs_is_found_by_its_health_check_and_replaced() {
    let cluster = Cluster::untraced();
    let text = "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"handlers:misbehaving\"\n\
                [[applications.deployments]]\nimport_path = \"handlers:misbehaving\"\nhealth_check_period = \"1s\"\n";
    let file = cluster.file("service.toml");
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
    let (url, before) = (url(&cluster), pids(&status(&cluster), "replicas"));
    let mut client = Client::connect(&url).expect("it is served");
    assert_eq!(client.get("/hang").expect("it is answered").status, 502, "its replica is killed");
    let report = wait_until_running(&cluster);
    assert_ne!(pids(&report, "replicas"), before);
    assert_eq!(report["deployments"][0]["lost"], 1);
    assert_eq!(client.get("/503").expect("it is answered").text(), "well\n");
    let log = fs::read_to_string(cluster.session_dir().join("logs/head.log")).expect("there is a log");
    assert!(log.contains("it did not say within 5 s whether it is well"), "{log}");
}

#[test]
fn replicas_and_proxies_that_are_killed_are_replaced() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "num_replicas = 2").success();
    let url = url(&cluster);
    let killed = pids(&status(&cluster), "replicas")[0];
    let (_, others) = while_asked(&url, || {
        kill(killed, Signal::KILL);
        wait_until("another one serves", || {
            let report = status(&cluster);
            (report["state"] == "running" && !pids(&report, "replicas").contains(&killed)).then_some(())
        });
    });
    assert!(others.iter().all(|other| other.starts_with("502: ")), "{others:?}");
    let proxy = pids(&status(&cluster), "proxies")[0];
    kill(proxy, Signal::KILL);
    // Whoever comes meanwhile waits.
    assert_eq!(get(&url).status, 200);
    let report = wait_until_running(&cluster);
    assert_ne!(pids(&report, "proxies"), [proxy]);
    assert_eq!(report["deployments"][0]["lost"], 1);
}

#[test]
fn a_head_that_is_started_again_serves_what_was_served_and_a_shutdown_is_for_good() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "").success();
    let (url, before) = (url(&cluster), status(&cluster));
    cluster.kill_head_and_guard();
    for pid in pids(&before, "replicas").into_iter().chain(pids(&before, "proxies")) {
        wait_until("its processes end with the head", || (!is_alive(pid)).then_some(()));
    }
    cluster.start_head(&[]).success();
    assert_eq!(get(&url).status, 200);
    let report = wait_until_running(&cluster);
    assert_eq!((&report["version"], &report["url"]), (&before["version"], &before["url"]));
    cluster.stop().success();
    cluster.assert_nothing_runs();
    cluster.start_head(&[]).success();
    assert_eq!(get(&url).status, 200);
    let served = wait_until_running(&cluster);
    let mut idle = Client::connect(&url).expect("it is served");
    assert_eq!(idle.get("/").expect("it answers").status, 200);
    let asked = std::time::Instant::now();
    cluster.tracer(&["serve", "shutdown"]).success().stderr_contains("service `shop` is shut down");
    // It may take 30 s for requests to end, and there is none.
    assert!(asked.elapsed() < Duration::from_secs(25), "a connection that has nothing to do is not waited for");
    assert!(Client::connect(&url).is_err());
    for pid in pids(&served, "replicas").into_iter().chain(pids(&served, "proxies")) {
        assert!(!is_alive(pid), "nothing of it runs");
    }
    cluster.stop().success();
    cluster.start_head(&[]).success();
    assert_eq!(
        cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"],
        Value::Array(Vec::new())
    );
}

#[test]
fn a_head_whose_service_finds_its_port_taken_says_so_and_serves_it_once_the_port_is_free() {
    let cluster = Cluster::untraced();
    deploy(&cluster, "").success();
    let url = url(&cluster);
    let told = cluster.tracer(&["status"]).success().stdout_text();
    assert!(told.contains(&format!("shop: running, {url}, 1 of 1 replica ready")), "{told}");
    cluster.stop().success();
    let taken = TcpListener::bind(url.trim_start_matches("http://").trim_end_matches('/')).expect("nobody has it");
    cluster.start_head(&[]).success();
    let report = status(&cluster);
    assert_eq!((&report["state"], pids(&report, "replicas").len()), (&"degraded".into(), 0));
    let warning = report["warnings"][0].as_str().expect("it warns");
    assert!(
        warning.starts_with("it is not served, and tried again every second: a service cannot listen on"),
        "{warning}"
    );
    let of_head = cluster.status();
    assert_eq!(of_head["warnings"], serde_json::json!([format!("service `shop`: {warning}")]));
    assert_eq!(
        (&of_head["services"][0]["name"], &of_head["services"][0]["state"]),
        (&"shop".into(), &"degraded".into())
    );
    let told = cluster.tracer(&["serve", "status"]).success().stdout_text();
    assert!(told.contains("it is not served, and tried again every second"), "{told}");
    drop(taken);
    wait_until_running(&cluster);
    assert_eq!(get(&url).status, 200);
    assert_eq!(cluster.status()["warnings"], serde_json::json!([]));
}

#[test]
fn what_the_author_says_of_requests_at_a_time_counts_unless_the_file_says_otherwise() {
    let cluster = Cluster::untraced();
    let limits = || {
        let rows = cluster.tracer(&["list", "deployments", "--format", "json"]).success().json()["deployments"].take();
        let limit = |name: &str| {
            let rows = rows.as_array().expect("there are deployments");
            rows.iter()
                .find(|row| row["name"] == name)
                .map_or(0, |row| row["max_ongoing_requests"].as_u64().unwrap_or(0))
        };
        (limit("hello"), limit("Model"))
    };
    let model = "[[applications.deployments]]\nimport_path = \"shop:Model\"\narguments = [\"/m\"]";
    deploy(&cluster, model).success();
    assert_eq!(limits(), (100, 64));
    let config = cluster.tracer(&["serve", "config"]).success().stdout_text();
    assert!(!config.contains("max_ongoing_requests"), "the file does not say it: {config}");
    deploy(&cluster, &format!("{model}\nmax_ongoing_requests = 9")).success();
    assert_eq!(limits(), (100, 9));
    deploy(&cluster, model).success();
    assert_eq!(limits(), (100, 64));
}

#[test]
fn a_replica_that_takes_more_memory_than_it_may_is_killed_and_it_is_said_why() {
    let bounded = Cluster::builder().hook(HOOK).arg("--worker-memory=96MiB");
    let cluster = bounded.env("TRACER_TEST_WITHOUT", "control_groups").start();
    let text = "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"handlers:misbehaving\"\n";
    let file = cluster.file("service.toml");
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
    let url = url(&cluster);
    let mut client = Client::connect(&url).expect("it is served");
    assert_eq!(client.get("/memory").expect("it is answered").status, 502);
    let log = wait_until("it is said", || {
        let log = fs::read_to_string(cluster.session_dir().join("logs/head.log")).unwrap_or_default();
        log.contains("replica misbehaving#1 of service `shop`").then_some(log)
    });
    assert!(log.contains("it was killed, because it may take 96 MiB and had"), "{log}");
    wait_until_running(&cluster);
    cluster.stop().success();
    let spans = cluster.spans();
    let replica = spans.only("of the replica", |span| span.name().starts_with("replica_handle_request"));
    assert_eq!(*replica.attribute("error.type"), "oom", "{replica:?}");
}

#[test]
fn what_replicas_have_is_named_where_others_wait_for_it_and_more_than_there_may_be_are_refused() {
    let cluster = Cluster::builder().workers(1).arg("--resources=gpu=1").arg("--max-processes=3").start();
    deploy(&cluster, "resources = { gpu = 1 }").success();
    let task = cluster.tracer(&["submit", "task", "--no-wait", "--resource", "gpu=1", "demo:my_function"]).success();
    let id = task.stdout_text().trim().to_owned();
    let told = cluster.tracer(&["explain", &id]).success().stdout_text();
    let expected = "it asks for 1 of the resource `gpu`, and 0 of 1 are free; replicas of services have 1 (`tracer list replicas` names them)";
    assert!(told.contains(expected), "{told}");
    deploy(&cluster, "num_replicas = 4")
        .status(1)
        .stderr_contains("service `shop` wants 4 new replicas beside 1 replica that there are, and the head may have 2 such processes")
        .stderr_contains("--max-processes");
    cluster.tracer(&["serve", "shutdown"]).success();
    cluster.tracer(&["wait", &id]).success();
}

#[test]
fn a_library_that_changes_is_rolled_out_by_a_command_that_reloads_it_and_one_that_is_none_is_not() {
    let cluster = Cluster::builder().hook(HOOK).start();
    let library = cluster.file("libown_shop.so");
    fs::copy(module_folder().join("libshop.so"), &library).expect("it was built");
    let path = format!("{}:hello", library.display());
    let run =
        cluster.tracer_in_background(&["serve", "run", &path, "--address", "127.0.0.1:0", "--reload", "--console"]);
    run.wait_for_stdout("http://127.0.0.1:");
    let url = url(&cluster);
    assert_eq!(get(&url).status, 200);
    run.wait_for_stderr("span replica_handle_request hello handle");
    run.wait_for_stderr("(proxy pid=");
    let first = pids(&status(&cluster), "replicas");
    let replace = |bytes: &[u8]| {
        let next = cluster.file("next");
        fs::write(&next, bytes).expect("the folder is ours");
        fs::rename(next, &library).expect("the folder is ours");
    };
    replace(b"no library");
    run.wait_for_stderr("not reloaded: ");
    assert_eq!(get(&url).status, 200);
    let mut other = fs::read(module_folder().join("libshop.so")).expect("it was built");
    other.push(0);
    replace(&other);
    run.wait_for_stderr("the library has changed: version 2 is rolled out");
    wait_until("the new one serves alone", || {
        let report = status(&cluster);
        let now = pids(&report, "replicas");
        (report["version"] == 2 && now.len() == 1 && now != first).then_some(())
    });
    assert_eq!(get(&url).status, 200);
    // Lines of another service are not shown.
    deploy(&cluster, "").success();
    let other = status_of(&cluster, "shop")["url"].as_str().expect("it has one").to_owned();
    let mut client = Client::connect(&other).expect("it is served");
    client.get("/of-others").expect("it is answered");
    wait_until("it is in the log", || {
        let log = fs::read_to_string(cluster.session_dir().join("logs/serve/access.log")).unwrap_or_default();
        log.lines().any(|line| line.contains("/of-others") && line.ends_with(" service=shop")).then_some(())
    });
    Client::connect(&url).and_then(|mut client| client.get("/own")).expect("it is answered");
    run.wait_for_stderr("\"GET /own\" 200");
    run.signal(Signal::INT);
    let run = run.wait().success();
    assert!(!run.stderr_text().contains("/of-others"), "{}", run.stderr_text());
}

fn status_of(cluster: &Cluster, service: &str) -> Value {
    let report = cluster.tracer(&["serve", "status", "--service", service, "--format", "json"]).success().json();
    report["services"][0].clone()
}

#[test]
fn requests_that_are_being_served_are_among_the_open_spans() {
    let cluster = Cluster::builder().hook(HOOK).env("OTEL_SERVICE_NAME", "named").start();
    let text = "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"handlers:misbehaving\"\n";
    let file = cluster.file("service.toml");
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
    let mut client = Client::connect(&url(&cluster)).expect("it is served");
    client.0.get_mut().write_all(b"GET /never HTTP/1.1\r\nhost: shop\r\n\r\n").expect("it is connected");
    wait_until("all spans of the request are open", || {
        let open = cluster.tracer(&["trace", "open"]).success().stdout_text();
        let names = [
            "proxy_http_request misbehaving GET /",
            "route_to_replica misbehaving",
            "replica_handle_request misbehaving",
        ];
        names.iter().all(|name| open.contains(name)).then_some(())
    });
    drop(client);
    wait_until("the client has gone, and nothing is open", || {
        let open = cluster.tracer(&["trace", "open", "--format", "json"]).success().json();
        (open["open"] == 0).then_some(())
    });
    cluster.stop().success();
    let spans = cluster.spans();
    assert!(spans.iter().all(|span| *span.resource_attribute("service.name") == "named"));
}
