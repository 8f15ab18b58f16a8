//! `service.toml`: the applications of a service and their deployments, checked as a whole before anything is changed.
//!
//! The keys are walked by hand, as those of `tracer.toml` are, so that each complaint names line, key, expectation, finding, and the nearest
//! name that is known. What a file says of modules, arguments and resources is checked where those are known.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};
use tracer_core::address::{AddressError, LoopbackAddress};
use tracer_core::hosts::HostPattern;
use tracer_core::routes::RoutePrefix;
use tracer_core::suggestion;
pub use tracer_ipc::serving::{
    Application, Autoscaling, Deployment, Detail, Http, Retry, Service, ServiceTracing, Tls, TlsName, attribute_of,
};
use tracer_ipc::serving::{PORT, SOCKET};

use crate::file::{FileError, Reader, Tables, Value};

const TOP_KEYS: &[&str] = &["name", "http", "tracing", "applications"];
const HTTP_KEYS: &[&str] = &["address", "public", "trusted_proxies", "host", "request_timeout", "max_body", "tls"];
const TLS_KEYS: &[&str] = &["certificate", "key", "names"];
const TLS_NAME_KEYS: &[&str] = &["host", "certificate", "key"];
const TRACING_KEYS: &[&str] = &["enabled", "sampling_ratio", "exporter", "detail"];
const APPLICATION_KEYS: &[&str] = &["name", "host", "route_prefix", "import_path", "deployments"];
const DEPLOYMENT_KEYS: &[&str] = &[
    "name",
    "import_path",
    "command",
    "health",
    "arguments",
    "num_replicas",
    "autoscaling",
    "max_ongoing_requests",
    "max_queued_requests",
    "queue_timeout",
    "queue_full",
    "retry",
    "threads",
    "user_config",
    "start_timeout",
    "health_check_period",
    "drain_timeout",
    "resources",
    "env",
    "cwd",
];
const AUTOSCALING_KEYS: &[&str] = &["min", "max", "target_ongoing_requests", "upscale_delay", "downscale_delay"];
const TABLES: Tables = &[
    ("", TOP_KEYS, "at the top of the file, above every table"),
    ("http.", HTTP_KEYS, "in the table `[http]`"),
    ("http.tls.", TLS_KEYS, "in the table `[http.tls]`"),
    ("http.tls.names.", TLS_NAME_KEYS, "in a table `[[http.tls.names]]`"),
    ("tracing.", TRACING_KEYS, "in the table `[tracing]`"),
    ("applications.deployments.autoscaling.", AUTOSCALING_KEYS, "in the table `autoscaling` of a deployment"),
    ("applications.deployments.", DEPLOYMENT_KEYS, "in a table `[[applications.deployments]]`"),
    ("applications.", APPLICATION_KEYS, "in a table `[[applications]]`"),
];

/// Address of a service whose file names none.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000);
/// The most replicas of one deployment, and the most requests at one or waiting for them.
const REPLICA_LIMIT: i64 = 4096;
const REQUEST_LIMIT: i64 = 1_000_000;
const THREAD_LIMIT: i64 = 1024;

/// Reads the text of a service file that is in `folder`.
pub fn parse(text: &str, folder: &Path) -> Result<Service, FileError> {
    let reader = Reader { text, folder, tables: TABLES };
    let document = reader.document()?;
    let mut name = None;
    let mut http = Http {
        address: ADDRESS,
        is_public: false,
        trusted_proxies: Vec::new(),
        hosts: Vec::new(),
        request_timeout: None,
        max_body: None,
        tls: None,
    };
    let mut tracing =
        ServiceTracing { is_enabled: true, sampling_ratio: None, exporters: Vec::new(), detail: Detail::Hops };
    let mut applications = Vec::new();
    for (key, value) in document.get_ref() {
        match key.get_ref().as_ref() {
            "name" => name = Some(self::name(&reader, "name", value)?),
            "http" => http = self::http(&reader, value, http)?,
            "tracing" => tracing = self::tracing(&reader, value, tracing)?,
            "applications" => applications = self::applications(&reader, value)?,
            unknown => return Err(reader.unknown_key("", unknown, key.span().start)),
        }
    }
    if let Some(value) = document.get_ref().get("applications") {
        check_hosts(&reader, value, &http, &applications)?;
    }
    let missing = |key, expected| reader.missing(key, expected, 0);
    let name = name.ok_or_else(|| missing("name", "a name for the service such as `name = \"shop\"`"))?;
    if applications.is_empty() {
        return Err(missing("applications", "a table `[[applications]]` with an `import_path`"));
    }
    Ok(Service { name, http, tracing, applications })
}

/// Part of a service that something is wrong with which its file alone does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The address that it listens on.
    Address,
    /// Its exporters.
    Exporters,
    /// A certificate or a key.
    Certificate {
        /// The `[[http.tls.names]]` that it is in; none for `[http.tls]` itself.
        name: Option<usize>,
        /// The key.
        key: &'static str,
    },
    /// A key of a deployment.
    Deployment {
        /// Name of its application.
        application: String,
        /// Its name.
        name: String,
        /// The key.
        key: &'static str,
    },
}

/// Finds the line of a valid service file that says something of a subject, and the key there: the nearest one if it does not say it itself.
pub fn place_of(text: &str, subject: &Subject) -> Option<(usize, String)> {
    let reader = Reader { text, folder: Path::new("/"), tables: TABLES };
    let document = reader.document().ok()?;
    let document = document.get_ref();
    let of_table = |table: &str, key: &str| {
        let value = document.get(table)?.get_ref().as_table()?.get(key)?;
        Some((reader.line_of(value), format!("{table}.{key}")))
    };
    match subject {
        Subject::Address => of_table("http", "address"),
        Subject::Exporters => of_table("tracing", "exporter"),
        Subject::Certificate { name, key } => {
            let tls = document.get("http")?.get_ref().as_table()?.get("tls")?.get_ref().as_table()?;
            let (table, of) = match name {
                None => (tls, "http.tls"),
                Some(index) => {
                    let names = tls.get("names")?.get_ref().as_array()?;
                    (names.get(*index)?.get_ref().as_table()?, "http.tls.names")
                }
            };
            Some((reader.line_of(table.get(*key)?), format!("{of}.{key}")))
        }
        Subject::Deployment { application, name, key } => {
            let tables = document.get("applications")?.get_ref().as_array()?.iter();
            let table =
                tables.filter_map(|value| value.get_ref().as_table()).find(|table| named(table, application))?;
            let deployments = table.get("deployments").and_then(|value| value.get_ref().as_array());
            let deployment = deployments
                .into_iter()
                .flatten()
                .find(|value| value.get_ref().as_table().is_some_and(|deployment| named(deployment, name)));
            let (in_table, of) = match deployment.and_then(|value| value.get_ref().as_table()) {
                Some(deployment) => (deployment, "applications.deployments"),
                None => (table, "applications"),
            };
            let (key, value) =
                [*key, "import_path", "command"].iter().find_map(|key| Some((*key, in_table.get(*key)?)))?;
            Some((reader.line_of(value), format!("{of}.{key}")))
        }
    }
}

/// Returns whether an application or a deployment has a name: one that it says, or that of its handler.
fn named(table: &DeTable<'_>, name: &str) -> bool {
    let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
    if let Some(own) = text("name").or_else(|| text("import_path").map(attribute_of)) {
        return own == name;
    }
    let array = |key: &str| table.get(key).and_then(|value| value.get_ref().as_array());
    if let Some(program) = array("command").and_then(|words| words.first()?.get_ref().as_str()) {
        return program_name(program) == name;
    }
    // An application whose requests a program answers.
    let programs = array("deployments").into_iter().flatten().filter_map(|value| value.get_ref().as_table());
    programs.filter(|table| table.contains_key("command")).take(1).any(|table| named(table, name))
}

fn table<'v, 't>(reader: &Reader<'_>, key: &str, value: &'v Value<'t>) -> Result<&'v DeTable<'t>, FileError> {
    value.get_ref().as_table().ok_or_else(|| reader.wrong_type(key, "a table", value))
}

/// Returns the tables of `[[key]]`.
fn tables<'v, 't>(reader: &Reader<'_>, key: &str, value: &'v Value<'t>) -> Result<&'v [Value<'t>], FileError> {
    let tables = value.get_ref().as_array().ok_or_else(|| reader.wrong_type(key, "tables `[[…]]`", value))?;
    Ok(tables)
}

fn http(reader: &Reader<'_>, value: &Value<'_>, mut http: Http) -> Result<Http, FileError> {
    let mut address = None;
    for (key, value) in table(reader, "http", value)? {
        match key.get_ref().as_ref() {
            "address" => address = Some(value),
            "public" => http.is_public = reader.boolean("http.public", value)?,
            "trusted_proxies" => {
                let names = reader.names("http.trusted_proxies", value)?.into_iter();
                let addresses = names.map(|name| name.parse().map_err(|_| name));
                http.trusted_proxies = addresses.collect::<Result<_, _>>().map_err(|found| {
                    let reason = format!("expected an IP address such as `10.0.0.1`, found `{found}`");
                    reader.invalid("http.trusted_proxies", &reason, value)
                })?;
            }
            "host" => http.hosts = hosts(reader, "http.host", value)?,
            "tls" => http.tls = Some(tls(reader, value)?),
            "request_timeout" => http.request_timeout = Some(time(reader, "http.request_timeout", value)?),
            "max_body" => http.max_body = Some(reader.size("http.max_body", "a size such as `64MiB`", value)?),
            unknown => return Err(reader.unknown_key("http.", unknown, key.span().start)),
        }
    }
    // Once it is known whether it may be public, wherever the file says that.
    if let Some(value) = address {
        let text = reader.string("http.address", value)?;
        let address = match local_address(
            text,
            "with `public = true` in `[http]`, whoever reaches this machine reaches the service",
        ) {
            // `localhost` is an address of the machine alone, so the rest are numbers.
            Err(reason) if http.is_public => text.parse().map_err(|_| reason),
            address => address.map(LoopbackAddress::get),
        };
        http.address = address.map_err(|reason| reader.invalid("http.address", &reason, value))?;
    }
    Ok(http)
}

/// Returns the hosts that a key names, in lower case.
fn hosts(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<Vec<String>, FileError> {
    let invalid = |reason: &str| reader.invalid(key, reason, value);
    let mut hosts = Vec::new();
    for name in reader.names(key, value)? {
        let host = name.parse::<HostPattern>().map_err(|error| invalid(&error.to_string()))?.to_string();
        if hosts.contains(&host) {
            return Err(invalid(&format!("expected each host once, found `{host}` twice")));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(invalid("expected a host or more, found none\n(hint: without the key it is every host)"));
    }
    Ok(hosts)
}

fn tls(reader: &Reader<'_>, value: &Value<'_>) -> Result<Tls, FileError> {
    let (mut certificate, mut key_file, mut names) = (None, None, Vec::new());
    for (key, value) in table(reader, "http.tls", value)? {
        match key.get_ref().as_ref() {
            "certificate" => certificate = Some(reader.path("http.tls.certificate", value)?),
            "key" => key_file = Some(reader.path("http.tls.key", value)?),
            "names" => names = tls_names(reader, value)?,
            unknown => return Err(reader.unknown_key("http.tls.", unknown, key.span().start)),
        }
    }
    let (certificate, key) = pair(reader, "http.tls", (certificate, key_file), value)?;
    Ok(Tls { certificate, key, names })
}

fn tls_names(reader: &Reader<'_>, value: &Value<'_>) -> Result<Vec<TlsName>, FileError> {
    let (mut names, mut lines) = (Vec::new(), HashMap::new());
    for value in tables(reader, "http.tls.names", value)? {
        let (mut own_hosts, mut certificate, mut key_file) = (Vec::new(), None, None);
        for (key, value) in table(reader, "http.tls.names", value)? {
            match key.get_ref().as_ref() {
                "host" => own_hosts = hosts(reader, "http.tls.names.host", value)?,
                "certificate" => certificate = Some(reader.path("http.tls.names.certificate", value)?),
                "key" => key_file = Some(reader.path("http.tls.names.key", value)?),
                unknown => return Err(reader.unknown_key("http.tls.names.", unknown, key.span().start)),
            }
        }
        if own_hosts.is_empty() {
            let expected = "the host or hosts that the certificate is for, such as `host = \"api.example.com\"`";
            return Err(reader.missing("http.tls.names.host", expected, value.span().start));
        }
        let line = reader.line_of(value);
        for host in &own_hosts {
            if let Some(other) = lines.insert(host.clone(), line) {
                let reason = format!("expected one certificate for each host, found `{host}` in line {other} too");
                return Err(reader.invalid("http.tls.names.host", &reason, value));
            }
        }
        let (certificate, key) = pair(reader, "http.tls.names", (certificate, key_file), value)?;
        names.push(TlsName { hosts: own_hosts, certificate, key });
    }
    Ok(names)
}

/// Returns the files of a certificate and its key, which belong together.
fn pair(
    reader: &Reader<'_>,
    table: &str,
    (certificate, key): (Option<PathBuf>, Option<PathBuf>),
    value: &Value<'_>,
) -> Result<(PathBuf, PathBuf), FileError> {
    let missing = |name: &str, expected: &str| reader.missing(&format!("{table}.{name}"), expected, value.span().start);
    let certificate = certificate.ok_or_else(|| {
        missing("certificate", "a file with the certificate in PEM, followed by those that have signed it")
    })?;
    let key = key.ok_or_else(|| missing("key", "a file with the key of the certificate, in PEM"))?;
    Ok((certificate, key))
}

/// Checks that requests of every host that an application names are let in.
fn check_hosts(
    reader: &Reader<'_>,
    value: &Value<'_>,
    http: &Http,
    applications: &[Application],
) -> Result<(), FileError> {
    let is_let_in = |host: &String| {
        let plain = host.strip_prefix("*.").map_or(host.clone(), |rest| format!("any-name.{rest}"));
        let mut known = http.hosts.iter().filter_map(|known| known.parse::<HostPattern>().ok());
        http.hosts.is_empty() || http.hosts.contains(host) || known.any(|known| known.matches(&plain))
    };
    for (application, value) in applications.iter().zip(tables(reader, "applications", value)?) {
        if let Some(host) = application.hosts.iter().find(|host| !is_let_in(host)) {
            let all = http.hosts.join("`, `");
            let reason = format!("expected one of the hosts that `host` in `[http]` lets in, `{all}`, found `{host}`");
            return Err(reader.invalid("applications.host", &reason, value));
        }
    }
    Ok(())
}

/// Reads an address that no other machine reaches. `hint` says what to do about one that others do.
pub fn local_address(text: &str, hint: &str) -> Result<LoopbackAddress, String> {
    text.parse().map_err(|error| match error {
        AddressError::Malformed { found } => {
            format!("expected an address such as `127.0.0.1:8000`, `[::1]:8000` or `localhost:0`, found `{found}`")
        }
        AddressError::NotLoopback { found, port } => format!(
            "expected an address of this machine alone, such as `127.0.0.1:{port}`, found `{found}`\n(hint: {hint})"
        ),
    })
}

fn tracing(reader: &Reader<'_>, value: &Value<'_>, mut tracing: ServiceTracing) -> Result<ServiceTracing, FileError> {
    for (key, value) in table(reader, "tracing", value)? {
        match key.get_ref().as_ref() {
            "enabled" => tracing.is_enabled = reader.boolean("tracing.enabled", value)?,
            "sampling_ratio" => tracing.sampling_ratio = Some(reader.ratio("tracing.sampling_ratio", value)?),
            "exporter" => {
                tracing.exporters = reader.names("tracing.exporter", value)?;
                for exporter in &tracing.exporters {
                    check_import_path(exporter).map_err(|reason| reader.invalid("tracing.exporter", &reason, value))?;
                }
            }
            "detail" => {
                let words = [("hops", Detail::Hops), ("request", Detail::Request)];
                tracing.detail = word(reader, "tracing.detail", value, words)?;
            }
            unknown => return Err(reader.unknown_key("tracing.", unknown, key.span().start)),
        }
    }
    Ok(tracing)
}

fn applications(reader: &Reader<'_>, value: &Value<'_>) -> Result<Vec<Application>, FileError> {
    let mut applications: Vec<Application> = Vec::new();
    let (mut prefixes, mut names) = (HashMap::new(), HashMap::new());
    for value in tables(reader, "applications", value)? {
        let application = application(reader, value)?;
        let line = reader.line_of(value);
        let every_host = [String::new()];
        let own = if application.hosts.is_empty() { &every_host[..] } else { &application.hosts };
        for host in own {
            if let Some(other) = prefixes.insert((host.clone(), application.route_prefix.clone()), line) {
                let at = if host.is_empty() { String::new() } else { format!(" at `{host}`") };
                let reason = format!(
                    "expected a prefix that no other application has{at}, found `{}`, which the one in line {other} has\n\
                     (hint: `host = \"…\"` tells applications with one prefix apart)",
                    application.route_prefix
                );
                return Err(reader.invalid("applications.route_prefix", &reason, value));
            }
        }
        if let Some(other) = names.insert(application.name.clone(), line) {
            let reason = format!(
                "expected a name that no other application has, found `{}`, which the one in line {other} has\n\
                 (hint: `name = \"…\"` in its `[[applications]]` gives it one of its own)",
                application.name
            );
            return Err(reader.invalid("applications.name", &reason, value));
        }
        applications.push(application);
    }
    Ok(applications)
}

fn application(reader: &Reader<'_>, value: &Value<'_>) -> Result<Application, FileError> {
    let (mut name, mut route_prefix, mut import_path, mut deployments) =
        (None, RoutePrefix::root().to_string(), None, Vec::new());
    let mut hosts = Vec::new();
    for (key, value) in table(reader, "applications", value)? {
        match key.get_ref().as_ref() {
            "name" => name = Some(self::name(reader, "applications.name", value)?),
            "route_prefix" => {
                let text = reader.string("applications.route_prefix", value)?;
                let invalid = |error| reader.invalid("applications.route_prefix", &format!("{error}"), value);
                route_prefix = text.parse::<RoutePrefix>().map_err(invalid)?.to_string();
            }
            "import_path" => import_path = Some(self::import_path(reader, "applications.import_path", value)?),
            "host" => hosts = self::hosts(reader, "applications.host", value)?,
            "deployments" => {
                let mut lines: HashMap<String, usize> = HashMap::new();
                for value in tables(reader, "applications.deployments", value)? {
                    let deployment = deployment(reader, value)?;
                    if let Some(other) = lines.insert(deployment.name.clone(), reader.line_of(value)) {
                        let reason = format!(
                            "expected a name that no other deployment of the application has, found `{}`, which the one in line {other} has\n\
                             (hint: `name = \"…\"` gives it one of its own)",
                            deployment.name
                        );
                        return Err(reader.invalid("applications.deployments.name", &reason, value));
                    }
                    deployments.push(deployment);
                }
            }
            unknown => return Err(reader.unknown_key("applications.", unknown, key.span().start)),
        }
    }
    let expected = "the handler of its requests as `module:attribute`, such as `import_path = \"shop:app\"`";
    let at = value.span().start;
    let program = deployments.iter().position(|deployment| deployment.program().is_some());
    if let (None, Some(ingress)) = (&import_path, program) {
        let name = name.unwrap_or_else(|| deployments[ingress].name.clone());
        return Ok(Application { name, route_prefix, hosts, ingress, deployments });
    }
    let import_path = import_path.ok_or_else(|| reader.missing("applications.import_path", expected, at))?;
    let of_ingress = |deployment: &Deployment| deployment.import_path == import_path;
    let ingress = deployments.iter().position(of_ingress).unwrap_or(deployments.len());
    if ingress == deployments.len() {
        let deployment = Deployment::new(&import_path);
        if deployments.iter().any(|other: &Deployment| other.name == deployment.name) {
            let reason = format!(
                "the handler of the requests and another deployment are both named `{}`\n\
                 (hint: give one of them another `name` in its `[[applications.deployments]]`)",
                deployment.name
            );
            return Err(reader.invalid("applications.import_path", &reason, value));
        }
        deployments.push(deployment);
    }
    let name = name.unwrap_or_else(|| attribute_of(&import_path).to_owned());
    Ok(Application { name, route_prefix, hosts, ingress, deployments })
}

fn deployment(reader: &Reader<'_>, value: &Value<'_>) -> Result<Deployment, FileError> {
    let mut deployment = Deployment::new("");
    let (mut name, mut command, mut health, mut num_replicas) = (None, None, None, None);
    for (key, value) in table(reader, "applications.deployments", value)? {
        let key_name = key.get_ref().as_ref();
        let full = format!("applications.deployments.{key_name}");
        let key = (full.as_str(), key);
        match key_name {
            "name" => name = Some(self::name(reader, key.0, value)?),
            "import_path" => deployment.import_path = import_path(reader, key.0, value)?,
            "command" => command = Some((self::command(reader, key.0, value)?, value)),
            "health" => health = Some((health_path(reader, key.0, value)?, value)),
            "arguments" => {
                let array = value.get_ref().as_array();
                let array = array.ok_or_else(|| reader.wrong_type(key.0, "an array", value))?;
                let arguments = array.iter().map(|value| to_json(reader, key.0, value));
                deployment.arguments = arguments.collect::<Result<_, _>>()?;
            }
            "num_replicas" => {
                deployment.num_replicas = reader.number(key.0, value, check_replicas)?;
                num_replicas = Some(value);
            }
            "autoscaling" => deployment.autoscaling = Some(autoscaling(reader, key.0, value)?),
            "max_ongoing_requests" => {
                deployment.max_ongoing_requests = Some(reader.number(key.0, value, check_requests)?);
            }
            "max_queued_requests" => deployment.max_queued_requests = reader.number(key.0, value, check_queued)?,
            "queue_timeout" => deployment.queue_timeout = Some(time(reader, key.0, value)?),
            "queue_full" => {
                let check = |number| match number {
                    503 | 429 => Ok(number as u32),
                    _ => Err(format!("expected 503 or 429, found {number}")),
                };
                deployment.queue_full = reader.number(key.0, value, check)? as u16;
            }
            "retry" => {
                let words = [("never", Retry::Never), ("idempotent", Retry::Idempotent)];
                deployment.retry = word(reader, key.0, value, words)?;
            }
            "threads" => deployment.threads = reader.number(key.0, value, check_threads)?,
            "user_config" => deployment.user_config = Some(to_json(reader, key.0, value)?),
            "start_timeout" => deployment.start_timeout = time(reader, key.0, value)?,
            "health_check_period" => deployment.health_check_period = time(reader, key.0, value)?,
            "drain_timeout" => deployment.drain_timeout = time(reader, key.0, value)?,
            "resources" => deployment.resources = reader.resources(key.0, value)?,
            "env" => {
                for (variable, value) in table(reader, key.0, value)? {
                    let variable = variable.get_ref().as_ref();
                    let text = reader.string(key.0, value)?;
                    if variable.is_empty() || variable.contains(['=', '\0']) || text.contains('\0') {
                        let reason =
                            format!("expected a variable of an environment, found `{}`", variable.escape_debug());
                        return Err(reader.invalid(key.0, &reason, value));
                    }
                    deployment.env.insert(variable.to_owned(), text.to_owned());
                }
            }
            "cwd" => deployment.cwd = Some(reader.path(key.0, value)?),
            unknown => return Err(reader.unknown_key("applications.deployments.", unknown, key.1.span().start)),
        }
    }
    if let Some(value) = num_replicas.filter(|_| deployment.autoscaling.is_some()) {
        let reason = "expected either a fixed number of replicas or `autoscaling`, found both";
        return Err(reader.invalid("applications.deployments.num_replicas", reason, value));
    }
    deployment.num_replicas = deployment.autoscaling.map_or(deployment.num_replicas, |scaling| scaling.min.max(1));
    match (command, health) {
        (Some((_, value)), _) if !deployment.import_path.is_empty() || !deployment.arguments.is_empty() => {
            let reason = "expected either a program or a handler with its `import_path` and `arguments`, found both";
            return Err(reader.invalid("applications.deployments.command", reason, value));
        }
        (Some(((command, address), _)), health) => {
            deployment.name = program_name(&command[0]);
            deployment.run_program(command, address, health.map(|(path, _)| path));
            deployment.name = name.unwrap_or(deployment.name);
            return Ok(deployment);
        }
        (None, Some((_, value))) => {
            let reason = "expected the `command` of a program beside it\n(hint: a handler of a library has `pub async fn health(&self)`)";
            return Err(reader.invalid("applications.deployments.health", reason, value));
        }
        (None, None) => {}
    }
    if deployment.import_path.is_empty() {
        let expected = "its handler as `module:attribute`, such as `import_path = \"models:Model\"`";
        return Err(reader.missing("applications.deployments.import_path", expected, value.span().start));
    }
    deployment.name = name.unwrap_or_else(|| attribute_of(&deployment.import_path).to_owned());
    Ok(deployment)
}

/// Reads the bounds of the number of replicas.
fn autoscaling(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<Autoscaling, FileError> {
    let mut scaling = Autoscaling::up_to(0);
    let (mut min, mut max) = (None, None);
    for (name, of) in table(reader, key, value)? {
        let full = format!("{key}.{}", name.get_ref());
        match name.get_ref().as_ref() {
            "min" => min = Some(reader.number(&full, of, check_least)?),
            "max" => max = Some((reader.number(&full, of, check_replicas)?, of)),
            "target_ongoing_requests" => {
                scaling.target_ongoing_requests = reader.number(&full, of, check_requests)?;
            }
            "upscale_delay" => scaling.upscale_delay = reader.duration(&full, of)?,
            "downscale_delay" => scaling.downscale_delay = reader.duration(&full, of)?,
            unknown => return Err(reader.unknown_key(&format!("{key}."), unknown, name.span().start)),
        }
    }
    let expected = "the most replicas, such as `autoscaling = { min = 0, max = 8 }`";
    let Some((max, at)) = max else {
        return Err(reader.missing(&format!("{key}.max"), expected, value.span().start));
    };
    (scaling.min, scaling.max) = (min.unwrap_or(scaling.min), max);
    if scaling.min > max {
        let reason = format!("expected at least `min`, which is {}, found {max}", scaling.min);
        return Err(reader.invalid(&format!("{key}.max"), &reason, at));
    }
    Ok(scaling)
}

/// Returns the command of a program, and which of the two places it is told to listen at.
fn command(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<(Vec<String>, &'static str), FileError> {
    let words = value.get_ref().as_array().ok_or_else(|| reader.wrong_type(key, "an array of strings", value))?;
    let words = words.iter().map(|word| Ok(reader.string(key, word)?.to_owned()));
    let words = words.collect::<Result<Vec<_>, FileError>>()?;
    let address = check_command(&words).map_err(|reason| reader.invalid(key, &reason, value))?;
    Ok((words, address))
}

/// Checks the command of a program, and returns the place that it is told to listen at: [`SOCKET`] or [`PORT`].
pub fn check_command(words: &[String]) -> Result<&'static str, String> {
    if words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0')) {
        return Err(
            "expected a program and its arguments, such as `[\"uvicorn\", \"shop:app\", \"--uds\", \"{socket}\"]`"
                .into(),
        );
    }
    let has = |place: &str| words.iter().any(|word| word.contains(place));
    match (has(SOCKET), has(PORT)) {
        (true, false) => Ok(SOCKET),
        (false, true) => Ok(PORT),
        (found, _) => {
            let found = if found { "both" } else { "neither" };
            let hint = "the program listens there: tracer chooses a path or a port for each replica";
            Err(format!("expected `{{socket}}` or `{{port}}` among the arguments, found {found}\n(hint: {hint})"))
        }
    }
}

/// Returns the name that a deployment has by its program: that of its file, with `_` for what no name has.
pub fn program_name(program: &str) -> String {
    let file = program.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = file.chars().take(64).map(plain).collect();
    if name.is_empty() { "program".into() } else { name }
}

fn health_path(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<String, FileError> {
    let path = reader.string(key, value)?;
    let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if is_path {
        return Ok(path.to_owned());
    }
    let reason = format!("expected a path such as `/health`, found `{}`", path.escape_debug());
    Err(reader.invalid(key, &reason, value))
}

fn check_between(number: i64, least: i64, most: i64) -> Result<u32, String> {
    let is_between = (least..=most).contains(&number);
    let number = u32::try_from(number).ok().filter(|_| is_between).ok_or(number);
    number.map_err(|found| format!("expected a number from {least} to {most}, found {found}"))
}

/// Checks a number of replicas.
pub fn check_replicas(number: i64) -> Result<u32, String> {
    check_between(number, 1, REPLICA_LIMIT)
}

fn check_least(number: i64) -> Result<u32, String> {
    check_between(number, 0, REPLICA_LIMIT)
}

fn check_requests(number: i64) -> Result<u32, String> {
    check_between(number, 1, REQUEST_LIMIT)
}

fn check_queued(number: i64) -> Result<u32, String> {
    check_between(number, 0, REQUEST_LIMIT)
}

fn check_threads(number: i64) -> Result<u32, String> {
    check_between(number, 1, THREAD_LIMIT)
}

/// Returns a time that is not 0.
fn time(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<Duration, FileError> {
    let time = reader.duration(key, value)?;
    if time.is_zero() {
        return Err(reader.invalid(key, "expected a time that is longer than 0, found 0", value));
    }
    Ok(time)
}

/// Returns a name that can be part of a path, a file's name and a span's name.
fn name(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<String, FileError> {
    let text = reader.string(key, value)?;
    check_name(text).map_err(|reason| reader.invalid(key, &reason, value))?;
    Ok(text.to_owned())
}

/// Checks the name of a service, an application or a deployment.
pub fn check_name(text: &str) -> Result<(), String> {
    let is_name = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if is_name {
        return Ok(());
    }
    Err(format!("expected a name of 1 to 64 letters, digits, `_` and `-`, found `{}`", text.escape_debug()))
}

/// Checks the form of `module:attribute`.
pub fn check_import_path(text: &str) -> Result<(), String> {
    match text.rsplit_once(':') {
        Some((module, attribute)) if !module.is_empty() && !attribute.is_empty() && !attribute.contains('/') => Ok(()),
        _ => Err(format!("expected `module:attribute` such as `shop:app`, found `{}`", text.escape_debug())),
    }
}

fn import_path(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<String, FileError> {
    let text = reader.string(key, value)?;
    check_import_path(text).map_err(|reason| reader.invalid(key, &reason, value))?;
    Ok(text.to_owned())
}

/// Returns one of a few words.
fn word<T: Copy, const N: usize>(
    reader: &Reader<'_>,
    key: &str,
    value: &Value<'_>,
    words: [(&str, T); N],
) -> Result<T, FileError> {
    let text = reader.string(key, value)?;
    let known = words.map(|(word, _)| word);
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let hint = suggestion::hint(text, known);
        let reason = format!("expected `{}`, found `{}`{hint}", known.join("` or `"), text.escape_debug());
        reader.invalid(key, &reason, value)
    })
}

/// Returns a value of TOML as JSON, in which there are no dates and no infinite numbers.
fn to_json(reader: &Reader<'_>, key: &str, value: &Value<'_>) -> Result<serde_json::Value, FileError> {
    let invalid =
        |expected: &str, found: &str| Err(reader.invalid(key, &format!("expected {expected}, found `{found}`"), value));
    Ok(match value.get_ref() {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(value) => (*value).into(),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            Err(_) => return invalid("a number of 64 bits", number.as_str()),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
            Some(number) => number.into(),
            None => return invalid("a finite number", number.as_str()),
        },
        DeValue::Datetime(date) => return invalid("a value that JSON has, such as a string", &date.to_string()),
        DeValue::Array(values) => {
            values.iter().map(|value| to_json(reader, key, value)).collect::<Result<Vec<_>, _>>()?.into()
        }
        DeValue::Table(table) => {
            let entries =
                table.iter().map(|(name, value)| Ok((name.get_ref().to_string(), to_json(reader, key, value)?)));
            serde_json::Value::Object(entries.collect::<Result<_, FileError>>()?)
        }
    })
}

#[cfg(test)]
#[path = "service_file_tests.rs"]
mod tests;
