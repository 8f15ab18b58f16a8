//! `tracer engine`: setting an engine up.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Subcommand;
use serde_json::json;
use tracer_core::exit;
use tracer_core::queue::{QueueBound, check_queue_name};
use tracer_core::suggestion::shell_word;
use tracer_core::task::{parse_resource, sort_resources};
use tracer_engine::config::{Configuration, PORT, Servers, User};
use tracer_engine::interface::Queues;
use tracer_engine::process::{self, Made};
use tracer_engine::roles::Role;
use tracer_engine::server_version::ServerVersion;
use tracer_ipc::protocol::EngineAccess;

use super::{CommandError, CommandResult, Format, FormatArgs, report};

/// Set up an engine, over which machines share the tasks of queues
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer engine config --roles --output nats\n  nats-server -c nats/tracer.conf\n  tracer engine init --address nats://127.0.0.1:4222 \\\n    --credentials nats/admin.nk --queue default"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: EngineCommand,
}

#[derive(Subcommand)]
enum EngineCommand {
    Config(Box<ConfigArgs>),
    Init(InitArgs),
    Queue(QueueArgs),
}

/// Credentials for an engine, and trust in it.
#[derive(Debug, clap::Args)]
pub(super) struct TrustArgs {
    /// Show the engine these credentials: a NATS creds file, or a file with the seed of an nkey; its mode has to be 0600
    #[arg(long, value_name = "FILE", env = tracer_settings::CREDENTIALS_VARIABLE, value_parser = super::path_parser())]
    pub(super) credentials: Option<PathBuf>,
    /// Trust certificates of the engine that these authorities have signed, in PEM [default: the authorities that this machine trusts]
    #[arg(long, value_name = "FILE", env = tracer_settings::ENGINE_CA_VARIABLE, value_parser = super::path_parser())]
    pub(super) engine_ca: Option<PathBuf>,
    /// Speak to an engine on another machine without TLS, so that everybody on the way can read and change what goes there [default: false]
    #[arg(long, env = tracer_settings::INSECURE_ENGINE_VARIABLE, value_name = "BOOL", hide_possible_values = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) insecure_engine: Option<bool>,
}

/// Way to the engine.
#[derive(clap::Args)]
pub(super) struct AccessArgs {
    /// The address of the engine, such as nats://127.0.0.1:4222 or tls://HOST
    #[arg(long, value_name = "URL", env = tracer_settings::ADDRESS_VARIABLE)]
    address: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
}

impl AccessArgs {
    /// Returns the way to the engine; none if there is no address.
    pub(super) fn access(&self) -> Option<EngineAccess> {
        Some(EngineAccess {
            address: self.address.clone()?,
            credentials: self.trust.credentials.clone(),
            authority: self.trust.engine_ca.clone(),
            is_insecure: self.trust.insecure_engine.unwrap_or(false),
        })
    }

    /// Returns the way to the engine that is to be set up.
    fn required(&self) -> Result<EngineAccess, CommandError> {
        let access = self.access().ok_or_else(|| {
            let text = "an engine is set up where --address says\n(hint: `--address nats://127.0.0.1:4222`)";
            CommandError::new(exit::USAGE, text)
        })?;
        tracer_engine::access::check(&access).map_err(|error| CommandError::new(exit::USAGE, error))?;
        Ok(access)
    }
}

/// Write configuration files of nats-server: for one server or three, with TLS and users
///
/// Without --output the configuration of one server goes to standard output. Servers that other machines reach need --tls and --roles.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer engine config > tracer.conf\n  tracer engine config --host 10.0.0.5 --host 10.0.0.6 --host 10.0.0.7 \\\n    --tls /etc/tracer/tls --roles --output nats"
)]
struct ConfigArgs {
    /// Number of servers: 1, or 3, which keep three copies and go on without one of them [default: one for each --host, or 1]
    #[arg(long, value_name = "N", value_parser = parse_servers)]
    servers: Option<usize>,
    /// The host at which clients and other servers reach a server; may be repeated, for three [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// The port of clients; several servers of one host have those behind it, and servers speak to each other on ports 2000 above
    #[arg(long, value_name = "PORT", default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..=61_000))]
    port: u16,
    /// The folder that a server keeps tasks and records in
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tracer-nats", value_parser = super::path_parser())]
    store: PathBuf,
    /// The folder with server.pem, server.key and authority.pem, on the machine of each server
    #[arg(long, value_name = "DIR", value_parser = super::path_parser())]
    tls: Option<PathBuf>,
    /// Make users with the roles submitter, node, viewer and admin, each with its nkey in a file of mode 0600
    #[arg(long, requires = "output")]
    roles: bool,
    /// The folder to write the files into, which must not be there yet
    #[arg(long, value_name = "DIR", value_parser = super::path_parser())]
    output: Option<PathBuf>,
    /// The version of the servers [default: that of the nats-server installed here, or a current one]
    #[arg(long, value_name = "VERSION")]
    server_version: Option<ServerVersion>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Make the streams of an engine, so that nodes and submitters need no right to make any
///
/// Streams that are there stay, and get as many copies as --replicas says.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer engine init --address tls://10.0.0.5 --credentials admin.nk --queue gpu")]
struct InitArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// Make this queue; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_queue)]
    queue: Vec<String>,
    /// Make the part for commands of these queues too, for nodes that are started with --shared-commands
    #[arg(long, requires = "queue")]
    shared_commands: bool,
    /// Number of servers with a copy of each stream [default: 3 where there are several servers, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Set or show what tasks of a queue may ask for
///
/// A task may ask for one slot unless its queue permits more; a submission that asks for more than is permitted is refused. A node takes a task only while
/// everything that the queue permits is free there, so that each can begin. Setting it needs the role admin. Tasks that wait or run are not affected.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer engine queue gpu --address nats://127.0.0.1:4222 \\\n    --resource gpu=1 --num-cpus 4\n  tracer engine queue gpu --address nats://127.0.0.1:4222"
)]
struct QueueArgs {
    /// The queue
    #[arg(value_name = "NAME", value_parser = parse_queue)]
    queue: String,
    /// Slots that a task may ask for [default: 1, where something is set]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_cpus: Option<u32>,
    /// Amount of a named resource that a task may ask for; may be repeated [default: none]
    #[arg(long, value_name = "NAME=AMOUNT", value_delimiter = ',', value_parser = parse_resource)]
    resource: Vec<(String, u64)>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    format: FormatArgs,
}

fn parse_servers(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => {
            Err(format!("expected 1 or 3, found `{text}`: of an even number one more has to be there than of one less"))
        }
    }
}

fn parse_queue(name: &str) -> Result<String, String> {
    check_queue_name(name).map_err(|problem| format!("the queue `{name}` {problem}"))?;
    Ok(name.into())
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.command {
        EngineCommand::Config(args) => args.run(),
        EngineCommand::Init(args) => args.run(),
        EngineCommand::Queue(args) => args.run(),
    }
}

/// Asks the installed `nats-server` for its version: Debian has it where only root looks.
fn installed_version() -> Option<ServerVersion> {
    ["nats-server", "/usr/sbin/nats-server"].into_iter().find_map(|program| {
        let said = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        String::from_utf8_lossy(&said.stdout).parse().ok()
    })
}

impl ConfigArgs {
    fn run(&self) -> CommandResult {
        let usage = |text: &str| CommandError::new(exit::USAGE, text.to_owned());
        let hosts = match (self.servers, &self.host[..]) {
            (servers, []) => vec!["127.0.0.1".to_owned(); servers.unwrap_or(1)],
            (servers, hosts) if [1, 3].contains(&hosts.len()) && servers.is_none_or(|count| count == hosts.len()) => {
                hosts.to_vec()
            }
            (servers, hosts) => {
                let expected = servers.map_or("1 or 3".to_owned(), |count| count.to_string());
                return Err(usage(&format!(
                    "expected {expected} of --host, found {}\n(hint: one for each server)",
                    hosts.len()
                )));
            }
        };
        let version = self.server_version.or_else(installed_version);
        let tls = self.tls.as_ref().map(std::path::absolute).transpose()?;
        let store = std::path::absolute(&self.store)?;
        let servers = Servers { hosts, port: self.port, store, tls, version };
        if servers.are_beyond_loopback() && !(self.roles && self.tls.is_some()) {
            return Err(usage(
                "servers that other machines reach have to speak TLS and to ask for credentials\n\
                 (hint: `--tls DIR --roles --output DIR`; or leave --host out, for this machine alone)",
            ));
        }
        if servers.hosts.len() > 1 && self.output.is_none() {
            return Err(usage("three servers have a file each\n(hint: `--output DIR`)"));
        }
        self.say_what_lacks(&servers);
        let users: Vec<_> = if self.roles { Role::ALL.map(User::new).into() } else { Vec::new() };
        let configurations = servers.configurations(&users);
        match &self.output {
            None => {
                let text = &configurations[0].text;
                let report = json!({ "configuration": text, "sync_always": servers.sync_always() });
                report::value(self.format.format, &report, |_| text.clone());
            }
            Some(folder) => self.write(&std::path::absolute(folder)?, &servers, &configurations, &users)?,
        }
        Ok(exit::OK)
    }

    /// Warns of what servers of this version do not do, and of files that have still to be put in place.
    fn say_what_lacks(&self, servers: &Servers) {
        let from = match (self.server_version, servers.version) {
            (None, Some(_)) => " (installed here; --server-version says of another one)",
            _ => "",
        };
        if let Some(version) = servers.version {
            if !servers.sync_always() {
                report::warning(&format!(
                    "nats-server {version}{from} knows no `sync_interval: always`: after a loss of power it may have forgotten what it has acknowledged in two minutes"
                ));
            }
            if servers.hosts.len() > 1 && version < ServerVersion::REPLICATES_SAFELY {
                report::warning(&format!(
                    "nats-server {version}{from} is older than {}: copies on several servers may lose what was acknowledged when servers are killed",
                    ServerVersion::REPLICATES_SAFELY
                ));
            }
        }
        if let Some(folder) = &servers.tls {
            let lacks = ["server.pem", "server.key", "authority.pem"].map(|file| folder.join(file));
            for file in lacks.iter().filter(|file| !file.is_file()) {
                report::warning(&format!("there is no `{}` here; each server needs it on its machine", file.display()));
            }
        }
    }

    /// Writes all files into a new folder, and tells how to go on.
    fn write(
        &self,
        folder: &Path,
        servers: &Servers,
        configurations: &[Configuration],
        users: &[User],
    ) -> Result<(), CommandError> {
        let mut builder = fs::DirBuilder::new();
        // Not what is there already: the seeds of those who use it would be of no use any more.
        builder.mode(0o700).create(folder).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    "name another folder, or remove this one: its credentials are of no use then"
                }
                _ => "name a folder that can be made",
            };
            CommandError::new(exit::FAILED, format!("`{}` cannot be made: {error}\n(hint: {hint})", folder.display()))
        })?;
        let mut files = Vec::new();
        for configuration in configurations {
            let path = folder.join(format!("{}.conf", configuration.server_name));
            create(&path, 0o600)?.write_all(configuration.text.as_bytes())?;
            files.push(json!({ "path": path, "server": configuration.server_name, "address": configuration.address }));
        }
        for user in users {
            let path = folder.join(format!("{}.nk", user.role));
            let text = format!("# nkey {} with the role {}\n{}\n", user.public_key, user.role, user.seed);
            create(&path, 0o600)?.write_all(text.as_bytes())?;
            files.push(json!({ "path": path, "role": user.role.name() }));
        }
        let report = json!({ "files": files, "sync_always": servers.sync_always() });
        report::value(self.format.format, &report, |_| {
            let paths = files.iter().filter_map(|file| file["path"].as_str());
            paths.map(|path| format!("{path}\n")).collect()
        });
        if self.format.format == Format::Text {
            report::talk(&next(folder, servers, configurations, users));
        }
        Ok(())
    }
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Returns the commands that come next, each in a line.
fn next(folder: &Path, servers: &Servers, configurations: &[Configuration], users: &[User]) -> String {
    let file = |name: &str| shell_word(&folder.join(name).display().to_string());
    let of_role = |role: Role| match users {
        [] => String::new(),
        _ => format!(" --credentials {}", file(&format!("{role}.nk"))),
    };
    let ca = servers.tls.as_ref().map_or(String::new(), |folder| {
        format!(" --engine-ca {}", shell_word(&folder.join("authority.pem").display().to_string()))
    });
    let address = &configurations[0].address;
    let mut lines = vec!["Next".to_owned()];
    lines.extend(
        configurations
            .iter()
            .map(|server| format!("  nats-server -c {}", file(&format!("{}.conf", server.server_name)))),
    );
    lines.push(format!("  tracer engine init --address {address}{ca}{} --queue default", of_role(Role::Admin)));
    lines.push(format!("  tracer start --address {address}{ca}{} --queue default", of_role(Role::Node)));
    lines.push(format!("  tracer doctor --address {address}{ca}{}", of_role(Role::Viewer)));
    lines.join("\n")
}

impl QueueArgs {
    fn run(&self) -> CommandResult {
        let access = self.access.required()?;
        let resources = sort_resources(self.resource.clone())
            .map_err(|problem| CommandError::new(exit::USAGE, format!("`--resource`: {problem}")))?;
        let is_set = self.num_cpus.is_some() || !resources.is_empty();
        let wanted = is_set.then(|| QueueBound { num_cpus: self.num_cpus.unwrap_or(1), resources });
        let bound = process::bound(&access, &self.queue, wanted.as_ref())
            .map_err(|error| CommandError::new(exit::FAILED, error))?;
        let resources: BTreeMap<_, _> = bound.resources.iter().cloned().collect();
        let report = json!({
            "address": access.address, "queue": self.queue, "num_cpus": bound.num_cpus, "resources": resources,
        });
        report::value(self.format.format, &report, |_| {
            format!("a task of the queue `{}` may ask for {bound}\n", self.queue)
        });
        Ok(exit::OK)
    }
}

impl InitArgs {
    fn run(&self) -> CommandResult {
        let access = self.access.required()?;
        let queues = Queues { names: self.queue.clone(), shared_commands: self.shared_commands };
        let (copies, made) = process::init(&access, &queues, self.replicas.map(usize::from))
            .map_err(|error| CommandError::new(exit::FAILED, error))?;
        let word = |made: &Made| match made {
            Made::New => "made",
            Made::Changed => "changed",
            Made::Kept => "kept",
        };
        let streams: Vec<_> = made.iter().map(|(name, made)| json!({ "name": name, "is": word(made) })).collect();
        let report = json!({ "address": access.address, "replicas": copies, "streams": streams });
        report::value(self.format.format, &report, |_| {
            let mut text =
                report::table(["STREAM", "WAS"], made.iter().map(|(name, made)| [name.clone(), word(made).to_owned()]));
            let each = if copies == 1 { "one copy".to_owned() } else { format!("{copies} copies") };
            text.push_str(&format!("\n{each} of each, at {}\n", access.address));
            text
        });
        Ok(exit::OK)
    }
}
