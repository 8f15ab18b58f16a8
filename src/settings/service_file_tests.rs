//! Service files as people write them, right and wrong.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const WHOLE: &str = r#"
name = "shop"
[http]
address = "localhost:9000"
trusted_proxies = ["10.0.0.1", "::1"]
host = "shop.example"
request_timeout = "30s"
max_body = "64MiB"
[tracing]
sampling_ratio = 0.1
exporter = "my_tracing:exporter"
detail = "request"
[[applications]]
route_prefix = "/"
import_path = "shop:app"
[[applications.deployments]]
name = "Model"
import_path = "models:Model"
arguments = ["/models/7", 3, 0.5, true, { a = [1] }]
num_replicas = 2
max_ongoing_requests = 32
max_queued_requests = 0
queue_timeout = "10s"
queue_full = 429
retry = "idempotent"
threads = 4
user_config = { temperature = 0.2 }
start_timeout = "20m"
health_check_period = "5s"
drain_timeout = 60
resources = { gpu = 1 }
env = { MODEL = "7" }
cwd = "models"
[[applications]]
name = "admin"
route_prefix = "/admin"
import_path = "./lib/libadmin.so:app"
[[applications.deployments]]
import_path = "./lib/libadmin.so:app"
num_replicas = 3
[[applications.deployments]]
import_path = "models:Small"
autoscaling = { min = 0, max = 8, target_ongoing_requests = 3, upscale_delay = "500ms", downscale_delay = 90 }
"#;

fn read(text: &str) -> Result<Service, FileError> {
    parse(text, Path::new("/srv/shop"))
}

#[test]
fn all_that_a_file_can_say_is_read() {
    let file = read(WHOLE).unwrap();
    assert_eq!(file.name, "shop");
    let http = Http {
        address: "127.0.0.1:9000".parse().unwrap(),
        is_public: false,
        trusted_proxies: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        hosts: vec!["shop.example".into()],
        request_timeout: Some(Duration::from_secs(30)),
        max_body: Some(64 << 20),
        tls: None,
    };
    assert_eq!(file.http, http);
    let tracing = ServiceTracing {
        is_enabled: true,
        sampling_ratio: Some("0.1".parse().unwrap()),
        exporters: vec!["my_tracing:exporter".into()],
        detail: Detail::Request,
    };
    assert_eq!(file.tracing, tracing);
    let [shop, admin] = &file.applications[..] else { panic!("there are two") };
    assert_eq!((shop.name.as_str(), shop.route_prefix.as_str(), shop.ingress), ("app", "/", 1));
    let model = Deployment {
        name: "Model".into(),
        import_path: "models:Model".into(),
        module_version: None,
        arguments: vec![json!("/models/7"), json!(3), json!(0.5), json!(true), json!({"a": [1]})],
        num_replicas: 2,
        autoscaling: None,
        max_ongoing_requests: Some(32),
        authors_max_ongoing_requests: None,
        max_queued_requests: 0,
        queue_timeout: Some(Duration::from_secs(10)),
        queue_full: 429,
        retry: Retry::Idempotent,
        threads: 4,
        user_config: Some(json!({"temperature": 0.2})),
        start_timeout: Duration::from_secs(1200),
        health_check_period: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(60),
        resources: vec![("gpu".into(), 1)],
        env: [("MODEL".into(), "7".into())].into(),
        cwd: Some("/srv/shop/models".into()),
    };
    assert_eq!(shop.deployments, [model, Deployment::new("shop:app")]);
    assert_eq!((admin.name.as_str(), admin.route_prefix.as_str(), admin.ingress), ("admin", "/admin", 0));
    let small = Autoscaling {
        min: 0,
        max: 8,
        target_ongoing_requests: 3,
        upscale_delay: Duration::from_millis(500),
        downscale_delay: Duration::from_secs(90),
    };
    let small = Deployment { autoscaling: Some(small), ..Deployment::new("models:Small") };
    let own = Deployment { num_replicas: 3, ..Deployment::new("./lib/libadmin.so:app") };
    assert_eq!(admin.deployments, [own, small]);
    let least = read(
        "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications.deployments]]\nimport_path = 'a:b'\nautoscaling = { max = 4, min = 2 }",
    );
    let least = least.unwrap().applications.remove(0).deployments.remove(0);
    assert_eq!((least.num_replicas, least.autoscaling), (2, Some(Autoscaling { min: 2, ..Autoscaling::up_to(4) })));
}

#[test]
fn what_a_file_does_not_say_is_as_documented() {
    let file = read("name = \"a\"\n[[applications]]\nimport_path = \"shop:app\"").unwrap();
    assert_eq!(file.http.address.to_string(), "127.0.0.1:8000");
    assert_eq!((file.tracing.is_enabled, file.tracing.sampling_ratio, file.tracing.detail), (true, None, Detail::Hops));
    let [application] = &file.applications[..] else { panic!("there is one") };
    assert_eq!((application.route_prefix.as_str(), application.ingress), ("/", 0));
    let [ingress] = &application.deployments[..] else { panic!("there is one") };
    assert_eq!((ingress.name.as_str(), ingress.num_replicas, ingress.queue_full), ("app", 1, 503));
    assert_eq!((ingress.ongoing_limit(), ingress.max_queued_requests, ingress.queue_timeout), (100, 1000, None));
}

#[test]
fn an_address_that_other_machines_reach_is_taken_if_the_file_says_so_wherever_it_does() {
    for text in ["address = \"0.0.0.0:80\"\npublic = true", "public = true\naddress = \"0.0.0.0:80\""] {
        let file = read(&format!("name = \"a\"\n[[applications]]\nimport_path = \"a:b\"\n[http]\n{text}")).unwrap();
        assert_eq!((file.http.address.to_string().as_str(), file.http.is_public), ("0.0.0.0:80", true));
    }
}

/// Files without a mistake, in which a line with one is put in the place of `@`.
const FRAMES: [(&str, &str); 5] = [
    ("", "@\nname = 'a'\n[[applications]]\nimport_path = 'a:b'"),
    ("http", "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[http]\n@"),
    ("tracing", "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[tracing]\n@"),
    ("application", "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n@"),
    (
        "deployment",
        "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications.deployments]]\nimport_path = 'c:d'\n@",
    ),
];

#[test]
fn each_mistake_is_told_with_line_key_expectation_and_finding() {
    let cases = [
        ("", "nane = 'b'", "unknown key `nane`\n(hint: did you mean `name`?)"),
        ("", "address = 'b'", "unknown key `address`\n(hint: it belongs in the table `[http]`)"),
        ("", "zzzz = 1", "unknown key `zzzz`; known are `name`, `http`, `tracing`, `applications`"),
        ("", "http = 1", "`http`: expected a table, found an integer"),
        ("http", "adress = 'a'", "unknown key `http.adress`\n(hint: did you mean `address`?)"),
        ("http", "num_replicas = 1", "it belongs in a table `[[applications.deployments]]`"),
        ("http", "address = 80", "`http.address`: expected a string, found an integer"),
        ("http", "address = '127.0.0.1'", "`http.address`: expected an address such as"),
        (
            "http",
            "address = '0.0.0.0:80'",
            "expected an address of this machine alone, such as `127.0.0.1:80`, found `0.0.0.0:80`\n(hint: with `public = true`",
        ),
        ("http", "public = 'yes'", "`http.public`: expected a boolean, found a string"),
        (
            "http",
            "trusted_proxies = ['a']",
            "`http.trusted_proxies`: expected an IP address such as `10.0.0.1`, found `a`",
        ),
        ("http", "request_timeout = 'soon'", "`http.request_timeout`: expected"),
        ("http", "request_timeout = 0", "`http.request_timeout`: expected a time that is longer than 0"),
        ("http", "max_body = 64", "`http.max_body`: expected a size such as `64MiB`, found an integer"),
        ("http", "max_body = '64'", "`http.max_body`: expected a size such as"),
        ("tracing", "sampling_ratio = 1.5", "`tracing.sampling_ratio`: "),
        ("tracing", "sampling_ratio = 'all'", "expected a number from 0 to 1, found a string"),
        (
            "tracing",
            "exporter = 'mine'",
            "`tracing.exporter`: expected `module:attribute` such as `shop:app`, found `mine`",
        ),
        (
            "tracing",
            "detail = 'hop'",
            "`tracing.detail`: expected `hops` or `request`, found `hop`\n(hint: did you mean `hops`?)",
        ),
        ("tracing", "startup_hook = 'a:b'", "unknown key `tracing.startup_hook`"),
        (
            "application",
            "route_prefix = 'api'",
            "`applications.route_prefix`: expected a prefix that begins with `/`, found `api`",
        ),
        ("application", "route_prefix = '/api/'", "expected a prefix without `/` at its end, found `/api/`"),
        (
            "application",
            "name = 'a b'",
            "`applications.name`: expected a name of 1 to 64 letters, digits, `_` and `-`, found `a b`",
        ),
        (
            "application",
            "route_prefx = '/'",
            "unknown key `applications.route_prefx`\n(hint: did you mean `route_prefix`?)",
        ),
        ("application", "deployments = 1", "`applications.deployments`: expected tables `[[…]]`, found an integer"),
        (
            "deployment",
            "num_replicas = 0",
            "`applications.deployments.num_replicas`: expected a number from 1 to 4096, found 0",
        ),
        ("deployment", "num_replicas = 1e3", "expected an integer, found a float"),
        (
            "deployment",
            "autoscaling = { min = 1 }",
            "`applications.deployments.autoscaling.max`: expected the most replicas, such as `autoscaling = { min = 0, max = 8 }`, found nothing",
        ),
        ("deployment", "autoscaling = 3", "`applications.deployments.autoscaling`: expected a table, found an integer"),
        (
            "deployment",
            "autoscaling = { min = 4, max = 3 }",
            "`applications.deployments.autoscaling.max`: expected at least `min`, which is 4, found 3",
        ),
        (
            "deployment",
            "autoscaling = { max = 0 }",
            "`applications.deployments.autoscaling.max`: expected a number from 1 to 4096, found 0",
        ),
        (
            "deployment",
            "autoscaling = { min = -1, max = 3 }",
            "`applications.deployments.autoscaling.min`: expected a number from 0 to 4096, found -1",
        ),
        (
            "deployment",
            "autoscaling = { max = 3, target_ongoing_requests = 0 }",
            "`applications.deployments.autoscaling.target_ongoing_requests`: expected a number from 1 to 1000000, found 0",
        ),
        (
            "deployment",
            "autoscaling = { max = 3, upscale_delay = 'soon' }",
            "`applications.deployments.autoscaling.upscale_delay`: ",
        ),
        (
            "deployment",
            "autoscaling = { max = 3, downscale_dely = '1s' }",
            "unknown key `applications.deployments.autoscaling.downscale_dely`\n(hint: did you mean `downscale_delay`?)",
        ),
        (
            "deployment",
            "num_replicas = 2\nautoscaling = { max = 3 }",
            "`applications.deployments.num_replicas`: expected either a fixed number of replicas or `autoscaling`, found both",
        ),
        (
            "deployment",
            "max_ongoing_requests = 0",
            "`applications.deployments.max_ongoing_requests`: expected a number from 1 to 1000000, found 0",
        ),
        ("deployment", "max_queued_requests = -1", "expected a number from 0 to 1000000, found -1"),
        ("deployment", "threads = 99999999999999999999", "expected a number from 1 to 1024"),
        ("deployment", "queue_full = 500", "`applications.deployments.queue_full`: expected 503 or 429, found 500"),
        ("deployment", "queue_timeout = '-1s'", "`applications.deployments.queue_timeout`: expected"),
        ("deployment", "retry = 'always'", "expected `never` or `idempotent`, found `always`"),
        ("deployment", "arguments = 'a'", "`applications.deployments.arguments`: expected an array, found a string"),
        (
            "deployment",
            "arguments = [1979-05-27]",
            "expected a value that JSON has, such as a string, found `1979-05-27`",
        ),
        ("deployment", "user_config = { a = inf }", "expected a finite number, found `inf`"),
        ("deployment", "arguments = [99999999999999999999]", "expected a number of 64 bits"),
        ("deployment", "resources = { gpu = 0 }", "expected a whole number from 1, found 0 for `gpu`"),
        ("deployment", "env = { A = 1 }", "`applications.deployments.env`: expected a string, found an integer"),
        ("deployment", "env = { 'A=B' = '' }", "expected a variable of an environment, found `A=B`"),
        ("deployment", "name = ''", "`applications.deployments.name`: expected a name of 1 to 64"),
        ("deployment", "command = ['a', '{port}']", "expected either a program or a handler with its `import_path`"),
        ("deployment", "command = 'a'", "`applications.deployments.command`: expected an array of strings"),
        ("deployment", "command = []", "expected a program and its arguments, such as"),
        ("deployment", "command = ['a']", "expected `{socket}` or `{port}` among the arguments, found neither"),
        ("deployment", "command = ['a', '{socket}', '{port}']", "among the arguments, found both"),
        (
            "deployment",
            "health = 'a'",
            "`applications.deployments.health`: expected a path such as `/health`, found `a`",
        ),
        ("deployment", "health = '/a'", "expected the `command` of a program beside it"),
    ];
    for (place, line, expected) in cases {
        let frame = FRAMES.iter().find(|(name, _)| *name == place).map(|(_, frame)| frame).unwrap();
        let number = 1 + frame[..frame.find('@').unwrap()].matches('\n').count();
        let text = frame.replace('@', line);
        let error = read(&text).expect_err(line).to_string();
        assert!(error.starts_with(&format!("{number}: ")), "{line}: {error}");
        assert!(error.contains(expected), "{line}: {error}");
        assert!(read(&frame.replace('@', "")).is_ok(), "it is that line alone");
    }
}

#[test]
fn what_is_missing_and_what_is_there_twice_is_told_with_its_place() {
    for (text, expected) in [
        ("", "1: `name`: expected a name for the service such as `name = \"shop\"`, found nothing"),
        ("name = 'a'", "1: `applications`: expected a table `[[applications]]` with an `import_path`, found nothing"),
        (
            "name = 'a'\n[[applications]]\nroute_prefix = '/'",
            "2: `applications.import_path`: expected the handler of its requests",
        ),
        (
            "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications.deployments]]\nname = 'c'",
            "4: `applications.deployments.import_path`: expected its handler",
        ),
        (
            "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications]]\nimport_path = 'c:d'",
            "4: `applications.route_prefix`: expected a prefix that no other application has, found `/`, which the one in line 2 has",
        ),
        (
            "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications]]\nimport_path = 'c:b'\nroute_prefix = '/c'",
            "4: `applications.name`: expected a name that no other application has, found `b`, which the one in line 2 has",
        ),
        (
            "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications.deployments]]\nimport_path = 'c:d'\n[[applications.deployments]]\nimport_path = 'e:d'",
            "6: `applications.deployments.name`: expected a name that no other deployment of the application has, found `d`, which the one in line 4 has",
        ),
        (
            "name = 'a'\n[[applications]]\nimport_path = 'a:b'\n[[applications.deployments]]\nimport_path = 'c:b'",
            "2: `applications.import_path`: the handler of the requests and another deployment are both named `b`\n(hint: ",
        ),
        ("name = 'a'\n[http]\nhost = 'http://a'", "3: `http.host`: expected a host without scheme, port and path"),
        ("name = 'a'\n[http]\nhost = []", "3: `http.host`: expected a host or more, found none"),
        ("name = 'a'\n[http.tls]\nkey = 'k'", "2: `http.tls.certificate`: expected a file with the certificate in PEM"),
        (
            "name = 'a'\n[http.tls]\ncertificate = 'c'",
            "2: `http.tls.key`: expected a file with the key of the certificate",
        ),
        ("name = 'a'\n[http.tls]\ncertificat = 'c'", "3: unknown key `http.tls.certificat`\n(hint: "),
        (
            "name = 'a'\n[http.tls]\ncertificate = 'c'\nkey = 'k'\n[[http.tls.names]]\ncertificate = 'c'\nkey = 'k'",
            "5: `http.tls.names.host`: expected the host or hosts that the certificate is for",
        ),
        (
            "name = 'a'\n[http.tls]\ncertificate = 'c'\nkey = 'k'\n[[http.tls.names]]\nhost = 'a.b'\ncertificate = 'c'\nkey = 'k'\n\
             [[http.tls.names]]\nhost = ['c.d', 'A.b']\ncertificate = 'c'\nkey = 'k'",
            "9: `http.tls.names.host`: expected one certificate for each host, found `a.b` in line 5 too",
        ),
        (
            "name = 'a'\n[[applications]]\nhost = ['a.b', 'c.d']\nimport_path = 'a:b'\n[[applications]]\nhost = 'c.d'\nimport_path = 'c:d'",
            "5: `applications.route_prefix`: expected a prefix that no other application has at `c.d`, found `/`, which the one in line 2 has",
        ),
        (
            "name = 'a'\n[http]\nhost = ['*.b', 'c']\n[[applications]]\nhost = 'x.c'\nimport_path = 'a:b'",
            "4: `applications.host`: expected one of the hosts that `host` in `[http]` lets in, `*.b`, `c`, found `x.c`",
        ),
        ("name = 'a'\nname = 'b'", "2: duplicate key"),
        ("name = ", "1: "),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_damage_is_told_and_never_panics(at: prop::sample::Index, removed in 0..20_usize, put in "[\\[\\]{}='\".,a-z0-9\n ]{0,6}") {
        let start = at.index(WHOLE.len());
        let mut text = WHOLE.to_owned();
        let end = (start + removed).min(text.len());
        text.replace_range(start..end, &put);
        if let Err(error) = read(&text) {
            let error = error.to_string();
            let line = error.split(':').next().and_then(|line| line.parse::<usize>().ok());
            prop_assert!(line.is_some_and(|line| (1..=text.lines().count() + 1).contains(&line)), "{}", error);
        }
    }
}

const WITH_TLS: &str = r#"
name = "shop"
[http]
host = ["shop.example", "*.example.com"]
[http.tls]
certificate = "shop.pem"
key = "/etc/shop.key"
[[http.tls.names]]
host = "API.example.com"
certificate = "api.pem"
key = "api.key"
[[applications]]
host = "api.example.com"
import_path = "shop:app"
[[applications]]
name = "rest"
import_path = "shop:app"
"#;

#[test]
fn certificates_and_hosts_are_read_and_written_again() {
    let file = read(WITH_TLS).unwrap();
    let tls = Tls {
        certificate: "/srv/shop/shop.pem".into(),
        key: "/etc/shop.key".into(),
        names: vec![TlsName {
            hosts: vec!["api.example.com".into()],
            certificate: "/srv/shop/api.pem".into(),
            key: "/srv/shop/api.key".into(),
        }],
    };
    assert_eq!((file.http.tls.as_ref(), file.http.scheme()), (Some(&tls), "https"));
    let hosts: Vec<_> = file.applications.iter().map(|application| application.hosts.clone()).collect();
    assert_eq!(hosts, [vec!["api.example.com".to_owned()], Vec::new()]);
    assert_eq!(read(&crate::render::render(&file)).unwrap(), file);
    for (subject, place) in [
        (Subject::Certificate { name: None, key: "key" }, (7, "http.tls.key")),
        (Subject::Certificate { name: Some(0), key: "certificate" }, (10, "http.tls.names.certificate")),
    ] {
        assert_eq!(place_of(WITH_TLS, &subject), Some((place.0, place.1.to_owned())));
    }
}

#[test]
fn a_mistake_that_is_found_elsewhere_has_a_place_in_the_file() {
    let text = "name = 'shop'\n[http]\naddress = '127.0.0.1:80'\n[tracing]\nexporter = 'a:b'\n[[applications]]\nimport_path = 'm:app'\n\
                [[applications]]\nroute_prefix = '/b'\nimport_path = 'm:b'\nname = 'second'\n\
                [[applications.deployments]]\nimport_path = 'm:b'\n\
                [[applications.deployments]]\nname = 'other'\nimport_path = 'm:c'\narguments = [7]\n";
    let of = |application: &str, name: &str, key| Subject::Deployment {
        application: application.into(),
        name: name.into(),
        key,
    };
    for (subject, place) in [
        (Subject::Address, Some((3, "http.address"))),
        (Subject::Exporters, Some((5, "tracing.exporter"))),
        // A deployment that is not written down is that of its application.
        (of("app", "app", "import_path"), Some((7, "applications.import_path"))),
        (of("second", "b", "cwd"), Some((13, "applications.deployments.import_path"))),
        (of("second", "other", "arguments"), Some((17, "applications.deployments.arguments"))),
        (of("third", "app", "import_path"), None),
    ] {
        let found = place_of(text, &subject);
        assert_eq!(found, place.map(|(line, key)| (line, key.to_owned())), "{subject:?}");
    }
    assert_eq!(place_of("name = 'shop'\n[[applications]]\nimport_path = 'm:app'\n", &Subject::Address), None);
}

#[test]
fn a_program_is_a_deployment_that_is_named_after_it() {
    let text = "name = 'shop'\n[[applications]]\n[[applications.deployments]]\n\
                command = ['/usr/bin/python3.11', 'shop.py', '{port}']\nhealth = '/well'\nstart_timeout = '2s'";
    let service = read(text).unwrap();
    let [application] = &service.applications[..] else { panic!("{service:?}") };
    assert_eq!((&*application.name, &*application.route_prefix, application.ingress), ("python3_11", "/", 0));
    let deployment = &application.deployments[0];
    let command = vec!["/usr/bin/python3.11", "shop.py", "{port}"];
    assert_eq!(deployment.program(), Some((command, Some("/well"))));
    assert_eq!(deployment.arguments[3], 2000);
    let rendered = crate::render::render(&service);
    assert_eq!(read(&rendered).unwrap(), service, "{rendered}");
    let subject =
        Subject::Deployment { application: "python3_11".into(), name: "python3_11".into(), key: "import_path" };
    assert_eq!(place_of(text, &subject), Some((4, "applications.deployments.command".into())));
}
