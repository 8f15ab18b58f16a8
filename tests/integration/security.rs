//! Access to a head, and attacks by hostile clients, which achieve nothing.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tracer::protocol::frame::put_frame;
use tracer::protocol::{Hello, PROTOCOL_VERSION, Role, kind};
use tracer::task::{Refusal, RefusalCode};

use crate::support::{Cluster, skip, wait_until};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it exists").mode() & 0o7777
}

/// Returns all paths below a folder.
fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder is ours").flatten() {
        if entry.path().is_dir() {
            all.extend(walk(&entry.path()));
        }
        all.push(entry.path());
    }
    all
}

#[track_caller]
fn connect(cluster: &Cluster) -> UnixStream {
    let stream = UnixStream::connect(cluster.session_dir().join("head.sock")).expect("the head listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it is a socket");
    stream
}

/// Sends bytes and reads until the head closes the connection. Sending may fail: the head may have closed it before.
#[track_caller]
fn answer_to(cluster: &Cluster, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(cluster);
    let _ = stream.write_all(bytes);
    read_to_end(&mut stream)
}

#[track_caller]
fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => answer,
        // Closed with something unread in it.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => answer,
        Err(error) => panic!("the head does not close the connection: {error}"),
    }
}

/// Returns a connection that has said hello.
#[track_caller]
fn connect_as_driver(cluster: &Cluster) -> UnixStream {
    let mut stream = connect(cluster);
    stream.write_all(&hello()).expect("the head reads");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("the head answers");
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).expect("the head answers");
    assert_eq!(frame[0], kind::WELCOME);
    stream
}

fn hello() -> Vec<u8> {
    let mut frame = Vec::new();
    Hello::of_this_process(Role::Driver).encode(&mut frame);
    frame
}

fn frame(frame_kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, frame_kind, |out| out.extend_from_slice(body));
    bytes
}

#[test]
fn what_a_head_makes_is_for_its_user_alone() {
    let cluster = Cluster::traced();
    // The most permissive mask must not open anything.
    cluster.tracer(&["submit", "task"]).success();
    cluster.submit("misbehaving_tasks:prints_bytes", &["[104,10]"]).success();
    assert_eq!(mode(&cluster.temp_dir()), 0o700);
    assert_eq!(mode(&cluster.session_dir()), 0o700);
    for path in walk(&cluster.temp_dir()) {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{} has mode {:04o}", path.display(), mode(&path));
    }
    assert_eq!(mode(&cluster.spans_dir()), 0o700);
}

#[test]
fn a_place_that_is_a_link_or_open_to_others_is_refused() {
    let cluster = Cluster::builder().build();
    let refuse_with = |place: &str, reason: &str, hint: &str| {
        cluster.start_head(&["--temp-dir", place]).status(2).stdout("").stderr(&format!(
            "error: `<folder>/{place}` cannot hold a session: {reason}\n(hint: {hint}name another folder with --temp-dir)\n"
        ));
    };
    let refuse = |place: &str, reason: &str| refuse_with(place, reason, "");
    fs::create_dir(cluster.file("open")).expect("the folder is ours");
    fs::set_permissions(cluster.file("open"), fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    let reason = "others may enter it (its mode is 0755, expected 0700)";
    refuse_with("open", reason, "`chmod 700 <folder>/open`, or ");
    fs::create_dir(cluster.file("private")).expect("the folder is ours");
    fs::set_permissions(cluster.file("private"), fs::Permissions::from_mode(0o700)).expect("the folder is ours");
    symlink(cluster.file("private"), cluster.file("link")).expect("the folder is ours");
    refuse("link", "it is a symbolic link");
    fs::write(cluster.file("file"), "").expect("the folder is ours");
    refuse("file", "it is not a folder");
    assert_eq!(fs::read_dir(cluster.file("private")).expect("it exists").count(), 0, "nothing is made in it");
    cluster.start_head(&["--temp-dir", "private"]).success();
    cluster.tracer(&["stop", "--temp-dir", "private"]).success();
}

#[test]
fn a_place_of_another_user_is_refused() {
    let cluster = Cluster::builder().build();
    let place = cluster.file("theirs");
    fs::create_dir(&place).expect("the folder is ours");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).expect("the folder is ours");
    if std::os::unix::fs::chown(&place, Some(12345), None).is_err() {
        return skip("root", "only root can give a folder to somebody else");
    }
    cluster
        .start_head(&["--temp-dir", "theirs"])
        .status(2)
        .stderr_contains("it belongs to user 12345, but this process runs as user 0\n");
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let cluster = Cluster::builder().build();
    fs::create_dir(cluster.temp_dir()).expect("the folder is ours");
    fs::set_permissions(cluster.temp_dir(), fs::Permissions::from_mode(0o700)).expect("the folder is ours");
    fs::write(cluster.file("precious"), "precious").expect("the folder is ours");
    symlink(cluster.file("precious"), cluster.temp_dir().join("head.lock")).expect("the folder is ours");
    cluster.start_head(&[]).status(1).stdout("").stderr_contains("error: cannot open `<folder>/place/head.lock`: ");
    assert_eq!(fs::read_to_string(cluster.file("precious")).expect("it exists"), "precious");
}

#[test]
fn bytes_that_are_no_hello_close_their_connection_and_nothing_else() {
    let cluster = Cluster::builder().workers(2).hook(crate::support::HOOK).start();
    let mut wrong_mark = hello();
    wrong_mark[5] = b'X';
    let torn_hello = &hello()[..9];
    let trailing = {
        let mut body = hello().split_off(5);
        body.push(0);
        frame(kind::HELLO, &body)
    };
    let cases: [(&str, &[u8]); 8] = [
        ("garbage", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("a huge length", &[0xff, 0xff, 0xff, 0xff, kind::HELLO]),
        ("a frame without a kind", &[0, 0, 0, 0]),
        ("another kind", &frame(kind::SUBMIT, b"")),
        ("a kind of the head's", &frame(kind::WELCOME, b"")),
        ("another mark", &wrong_mark),
        ("a hello that is too short", &frame(kind::HELLO, b"TRCR")),
        ("a hello that goes on", &trailing),
    ];
    let mut well_behaved = cluster.submit_in_background(
        "misbehaving_tasks:waits",
        &[
            &serde_json::json!(cluster.file("started")).to_string(),
            &serde_json::json!(cluster.file("released")).to_string(),
        ],
    );
    cluster.wait_for_file(&cluster.file("started"));
    for (what, bytes) in cases {
        let answer = answer_to(&cluster, bytes);
        assert!(answer.is_empty(), "{what} is answered: {}", String::from_utf8_lossy(&answer));
        cluster.tracer(&["submit", "command", "true"]).success();
    }
    // Torn and then closed, or left hanging.
    let mut torn = connect(&cluster);
    torn.write_all(torn_hello).expect("the head reads");
    torn.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert!(read_to_end(&mut torn).is_empty());
    let mut hanging = connect(&cluster);
    hanging.write_all(torn_hello).expect("the head reads");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");

    assert!(well_behaved.is_running());
    fs::write(cluster.file("released"), "").expect("the folder is ours");
    well_behaved.wait().success();
    drop(hanging);
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    let log = cluster.head_log();
    assert!(log.contains("is closed: a frame of 4294967295 bytes arrived, but at most 4096 are taken"), "{log}");
}

#[test]
fn another_version_of_the_protocol_is_refused_in_words() {
    let cluster = Cluster::untraced();
    let mut old = hello();
    let version = 5 + 4;
    old[version..version + 4].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    let answer = answer_to(&cluster, &old);
    assert_eq!(answer[4], kind::REFUSED);
    let refusal = Refusal::decode(&answer[5..]).unwrap();
    assert_eq!(refusal.code, RefusalCode::ProtocolVersion);
    assert_eq!(
        refusal.text,
        format!(
            "the head (tracer {}) speaks version {PROTOCOL_VERSION} of the protocol, but this program speaks version {}",
            env!("CARGO_PKG_VERSION"),
            PROTOCOL_VERSION + 1
        )
    );
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn nobody_can_pass_for_a_worker() {
    let cluster = Cluster::untraced();
    // Two bits of the number tell the connections of a worker apart.
    let workers = [1, 2, u64::MAX >> 2].map(tracer::task::WorkerId);
    let roles = |it| [(it, Role::Worker(it)), (it, Role::Tasks(it)), (it, Role::Sink(it))];
    for (worker, role) in workers.into_iter().flat_map(roles) {
        let mut bytes = Vec::new();
        Hello::of_this_process(role).encode(&mut bytes);
        let answer = answer_to(&cluster, &bytes);
        assert_eq!(answer[4], kind::REFUSED);
        let text = format!("the head has not started worker {worker} as process {}", std::process::id());
        assert_eq!(Refusal::decode(&answer[5..]), Ok(Refusal::new(RefusalCode::UnknownWorker, text)));
    }
    assert_eq!(cluster.status()["workers"]["lost"], 0);
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn a_client_that_turns_hostile_loses_its_connection_alone() {
    let cluster = Cluster::traced();
    let cases: [(&str, Vec<u8>); 7] = [
        ("a second hello", hello()),
        ("results of tasks it has not", frame(kind::RESULTS, &[0; 64])),
        ("a worker's report", frame(kind::WORKER_READY, b"")),
        ("an unknown kind", frame(250, b"x")),
        ("a query that is none", frame(kind::QUERY, b"\xc1\xff")),
        ("a submission that ends too early", frame(kind::SUBMIT, &[0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0])),
        ("a huge length", vec![0xff, 0xff, 0xff, 0xff]),
    ];
    for (what, bytes) in cases {
        let mut stream = connect_as_driver(&cluster);
        let _ = stream.write_all(&bytes);
        let answer = read_to_end(&mut stream);
        assert!(answer.len() < 4096, "{what} is answered with {} bytes", answer.len());
        cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    }
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn a_frame_that_announces_much_takes_no_memory() {
    let cluster = Cluster::untraced();
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", cluster.head_pid())).expect("the head runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory").trim();
        line.trim_end_matches(" kB").trim().parse::<u64>().expect("a number")
    };
    let before = memory();
    let streams: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connect_as_driver(&cluster);
            stream
                .write_all(&(200_u32 << 20).to_le_bytes())
                .and_then(|()| stream.write_all(&[kind::SUBMIT; 1000]))
                .expect("it reads");
            stream
        })
        .collect();
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    let grown = memory().saturating_sub(before);
    assert!(grown < 50 << 10, "20 frames that announce 200 MiB each took {grown} KiB");
    drop(streams);
}

#[test]
fn random_bytes_never_harm_the_head() {
    let cluster = Cluster::untraced();
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    let bodies = prop::collection::vec((0_u8..10, prop::collection::vec(any::<u8>(), 0..200)), 0..4);
    let outcome = runner.run(&(any::<bool>(), bytes, bodies), |(says_hello, bytes, bodies)| {
        let mut stream = if says_hello { connect_as_driver(&cluster) } else { connect(&cluster) };
        for (frame_kind, body) in bodies {
            let _ = stream.write_all(&frame(frame_kind, &body));
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        read_to_end(&mut stream);
        // Another client is answered.
        connect_as_driver(&cluster);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    assert_eq!(cluster.status()["workers"]["lost"], 0);
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let cluster = Cluster::untraced();
    let mut deaf = connect_as_driver(&cluster);
    let mut query = Vec::new();
    tracer::protocol::put_query(
        &mut query,
        1,
        &tracer::protocol::Query::Tasks { limit: 1000, which: Default::default(), before: None },
    );
    deaf.set_nonblocking(true).expect("it is a socket");
    for _ in 0..20_000 {
        // Its answers fill the socket and then the head's own room.
        if deaf.write_all(&query).is_err() {
            break;
        }
    }
    wait_until("others are served", || {
        (cluster.tracer(&["submit", "task"]).output.status.code() == Some(0)).then_some(())
    });
}

#[test]
fn clients_beyond_the_limit_on_open_files_wait_and_the_head_stays_calm() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let cluster = Cluster::untraced();
    let head = Pid::from_raw(cluster.head_pid().cast_signed()).expect("a process id");
    let few = Rlimit { current: Some(32), maximum: Some(32) };
    prlimit(Some(head), Resource::Nofile, few).expect("it is a process of this user");
    let socket = tracer::session::socket_path(&cluster.session_dir());
    let clients: Vec<_> = (0..64).map(|_| UnixStream::connect(&socket).expect("the head listens")).collect();
    let complaint = "no connection can be accepted for now";
    wait_until("the head has said that it can take no more", || cluster.head_log().contains(complaint).then_some(()));
    let waiting = cluster.tracer_in_background(&["submit", "task"]);
    // The loop turns only when there is something to do: for a little while it is as good as asleep.
    let turns = || fs::read_to_string(format!("/proc/{}/status", cluster.head_pid())).unwrap_or_default();
    wait_until("the head sleeps", || turns().contains("State:\tS").then_some(()));
    drop(clients);
    waiting.wait().success().stdout("1\n");
    assert_eq!(cluster.head_log().matches(complaint).count(), 1, "{}", cluster.head_log());
    cluster.tracer(&["status"]).success().stdout_contains("commands had to wait for a connection");
}

#[test]
fn a_span_folder_that_others_may_write_to_is_warned_of_and_kept_as_it_is() {
    let mode =
        |cluster: &Cluster| fs::metadata(cluster.spans_dir()).expect("it is there").permissions().mode() & 0o7777;
    for (given, is_warned) in [(0o777, true), (0o1777, true), (0o775, true), (0o755, false), (0o700, false)] {
        let cluster = Cluster::builder().hook(crate::support::HOOK).build();
        fs::create_dir(cluster.spans_dir()).expect("the folder is ours");
        fs::set_permissions(cluster.spans_dir(), fs::Permissions::from_mode(given)).expect("the folder is ours");
        let start = cluster.start_head(&[]).success();
        let said = format!(
            "warning: others may write to the span folder `<folder>/spans` (its mode is {given:04o}, expected 0700): "
        );
        let text = start.normalized(&start.stderr_text());
        assert_eq!(text.contains(&said), is_warned, "{given:o}: {text}");
        assert_eq!(text.contains("(hint: `chmod 700 <folder>/spans`)"), is_warned, "{given:o}: {text}");
        assert_eq!(mode(&cluster), given);
    }
    // One that tracer makes is its user's alone.
    let cluster = Cluster::traced();
    cluster.tracer(&["submit", "task"]).success();
    assert_eq!(mode(&cluster), 0o700);
}

/// Returns a copy of a library that is there for tests, in a folder of its own that only this user can change.
fn copy_of(cluster: &Cluster, library: &str, folder: &str) -> PathBuf {
    let folder = cluster.file(folder);
    fs::create_dir(&folder).expect("the folder is ours");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    let copy = folder.join(library);
    fs::copy(crate::support::module_folder().join(library), &copy).expect("the library was built");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    copy
}

#[test]
fn a_library_that_others_can_change_is_warned_of_wherever_it_is_loaded() {
    const SAID: &str = "it runs with your rights, and others can change it: everybody can change `";
    let cluster = Cluster::builder().workers(2).build();
    let (library, hook) = (copy_of(&cluster, "libwordcount.so", "open"), copy_of(&cluster, "libconsole.so", "hooks"));
    let named = format!("{}:setup_tracing", hook.display());
    let show = || cluster.tracer(&["modules", "show", library.to_str().expect("a plain name")]).success();
    let check = || cluster.tracer(&["hooks", "check", &named]).success();
    for run in [show(), check()] {
        assert!(!run.stdout_text().contains("others can change it"), "{run:?}");
    }
    for path in [library.parent(), hook.parent()] {
        fs::set_permissions(path.expect("a folder"), fs::Permissions::from_mode(0o777)).expect("the folder is ours");
    }
    show().stdout_contains(SAID).stdout_contains("/open` (mode 0777)").stdout_contains("(hint: `chmod go-w ");
    check().stdout_contains(SAID).stdout_contains("/hooks` (mode 0777)");
    let shown = cluster.tracer(&["modules", "show", library.to_str().expect("a plain name"), "--format", "json"]);
    let said = shown.success().json()["changeable_by_others"].as_str().map(str::to_owned);
    assert!(said.as_deref().is_some_and(|said| said.contains("/open` (mode 0777)")), "{said:?}");

    let mut start = cluster.start_command(&["--tracing-startup-hook", &named]);
    start.env("TRACER_MODULE_PATH", library.parent().expect("a folder"));
    let start = cluster.run(start).success();
    let start = start.stderr_contains(
        &format!("warning: hook `{named}`: {SAID}").replace(&*cluster.folder().to_string_lossy(), "<folder>"),
    );
    start.stderr_contains(
        "modules run with your rights, and others can put some in `<folder>/open`: everybody can change `",
    );
    let warnings = cluster.status()["warnings"].to_string();
    assert!(warnings.contains("/hooks` (mode 0777)"), "{warnings}");
    let submitted: Vec<_> = (0..4).map(|_| cluster.submit_in_background("wordcount:count", &["\"to be\""])).collect();
    let outputs: String = submitted.into_iter().map(|submitted| submitted.wait().success().stderr_text()).collect();
    let logs = fs::read_dir(cluster.session_dir().join("logs")).expect("a session has logs");
    let logs: String = logs.filter_map(|log| fs::read_to_string(log.ok()?.path()).ok()).collect();
    let said = format!("tracer: module `wordcount` ({}): {SAID}", library.display());
    assert_eq!(logs.matches(&said).count(), 1, "{logs}\n{outputs}");
    cluster.stop().success();

    // With the sticky bit others may add files, and not replace these. Who owns it may do anything.
    fs::set_permissions(library.parent().expect("a folder"), fs::Permissions::from_mode(0o1777)).expect("it is ours");
    assert!(!show().stdout_text().contains("others can change it"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&library, Some(12345), None).expect("root may do that");
        show().stdout_contains("libwordcount.so` belongs to another user (uid 12345), who can change it");
    }
}
