//! Ways to an engine: which ones are taken, the files that they need, and the reasons why an engine cannot be used, each with what mends it.
//!
//! Beyond loopback an engine is reached by TLS, and asks for credentials: whoever may write there runs functions as whoever serves its queues.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tracer_core::queue::QueueBound;
use tracer_ipc::protocol::EngineAccess;

/// Reason why an engine cannot be used.
#[derive(Debug)]
pub enum EngineError {
    /// The address is not one of this engine, or may not be used as it is.
    Address {
        /// The address.
        address: String,
        /// Problem with it, as a clause.
        problem: &'static str,
        /// The next step.
        hint: &'static str,
    },
    /// A file that the connection needs cannot be used.
    File {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Problem with it, as a clause.
        problem: String,
        /// The next step.
        hint: String,
    },
    /// Nobody can be connected to there.
    Connect {
        /// The address.
        address: String,
        /// Reason why not.
        reason: String,
    },
    /// The server speaks no TLS, or shows a certificate that is not trusted.
    Tls {
        /// The address.
        address: String,
        /// Problem with it.
        reason: String,
        /// The next step.
        hint: &'static str,
    },
    /// The server does not let these credentials in, or nobody without any.
    Credentials {
        /// The address.
        address: String,
        /// The file that they are in, if there are any.
        given: Option<PathBuf>,
    },
    /// The credentials are let in, and do not permit something.
    Permission {
        /// The address.
        address: String,
        /// The permission that is missing, such as `publish to "tracer.>"`.
        missing: String,
    },
    /// The server has no JetStream.
    NoJetStream {
        /// The address.
        address: String,
        /// The server's version.
        version: String,
    },
    /// The server does not answer a question, or says that it cannot.
    Answer {
        /// The address.
        address: String,
        /// The question, as its subject in JetStream's interface.
        question: String,
        /// Reason why there is no answer.
        reason: String,
    },
    /// The monitoring page of a server cannot be read.
    Monitor {
        /// Its address.
        url: String,
        /// Reason why not.
        reason: String,
    },
    /// A stream was made for another version of tracer, or by somebody else.
    ClusterVersion {
        /// The stream.
        stream: String,
        /// Its version; none if it does not say that it is of tracer.
        found: Option<u32>,
        /// The version of this program.
        own: u32,
    },
    /// Another living node has the name that this one would have.
    NameTaken {
        /// The address.
        address: String,
        /// The name.
        node_id: String,
        /// The place of the other one.
        place: String,
    },
    /// Another living node has the id of this one's place.
    PlaceTaken {
        /// The address.
        address: String,
        /// The name of the other one.
        node_id: String,
        /// The id.
        place: String,
    },
    /// Tasks of a queue may ask for more than the node has that is to serve it.
    TooSmall {
        /// The queue.
        queue: String,
        /// The most that they may ask for.
        bound: QueueBound,
        /// Everything that the node has.
        has: QueueBound,
    },
    /// A queue that does not exist.
    NoQueue {
        /// The address.
        address: String,
        /// Its name.
        queue: String,
    },
    /// A stream or a consumer cannot be made.
    Asset {
        /// Its name.
        name: String,
        /// Reason why not.
        reason: String,
    },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Address { address, problem, hint } => {
                write!(f, "the address `{address}` {problem}\n(hint: {hint})")
            }
            EngineError::File { path, problem, hint, .. } => {
                write!(f, "the file `{}` {problem}\n(hint: {hint})", path.display())
            }
            EngineError::Connect { address, reason } if host_of(address).is_some_and(is_loopback) => write!(
                f,
                "no engine can be reached at `{address}`: {reason}\n\
                 (hint: start one with `nats-server -a 127.0.0.1 -p {} -js -sd DIR`)",
                port_of(address)
            ),
            EngineError::Connect { address, reason } => write!(
                f,
                "no engine can be reached at `{address}`: {reason}\n\
                 (hint: see whether nats-server runs there, and whether a firewall lets port {} through)",
                port_of(address)
            ),
            EngineError::Tls { address, reason, hint } => {
                write!(f, "the engine at `{address}` cannot be trusted: {reason}\n(hint: {hint})")
            }
            EngineError::Credentials { address, given: None } => write!(
                f,
                "the engine at `{address}` asks for credentials, and none are given\n\
                 (hint: `--credentials FILE` names a NATS creds file, or a file with the seed of an nkey)"
            ),
            EngineError::Credentials { address, given: Some(path) } => write!(
                f,
                "the engine at `{address}` refuses the credentials of `{}`\n\
                 (hint: see whether its configuration has their user, and was loaded since: `nats-server --signal reload`)",
                path.display()
            ),
            EngineError::Permission { address, missing } if is_of_making(missing) => write!(
                f,
                "the credentials for the engine at `{address}` do not permit to {missing}\n\
                 (hint: have what is missing made with other ones: `tracer engine init --address {address} --credentials admin.nk --queue NAME`)"
            ),
            EngineError::Permission { address, missing } => write!(
                f,
                "the credentials for the engine at `{address}` do not permit to {missing}\n\
                 (hint: give their user this permission in the server's configuration, or use other credentials)"
            ),
            EngineError::NameTaken { address, node_id, place } => write!(
                f,
                "another living node of the engine at `{address}` has the name `{node_id}`: the one with the place {place}\n\
                 (hint: remove `place.id` in this place's folder, and it gets another name; tasks that it has in queues are then those of a lost node)"
            ),
            EngineError::PlaceTaken { address, node_id, place } => write!(
                f,
                "another living node of the engine at `{address}` has the id {place} of this place: `{node_id}`. One of the two places is a copy of the other\n\
                 (hint: remove `place.id` in the folder of the copy, and it gets an id of its own; tasks that it has in queues are then those of a lost node)"
            ),
            EngineError::TooSmall { queue, bound, has } => {
                let QueueBound { num_cpus, resources } = has.with(bound);
                let amounts = resources.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>();
                let resources = match amounts.join(",") {
                    none if none.is_empty() => none,
                    amounts => format!(" --resources {amounts}"),
                };
                write!(
                    f,
                    "a task of the queue `{queue}` may ask for {bound}, but this node has {has}\n\
                     (hint: start it with `--num-workers {num_cpus}{resources}`, or without this queue)"
                )
            }
            EngineError::NoQueue { address, queue } => write!(
                f,
                "the engine at `{address}` has no queue `{queue}`\n\
                 (hint: `tracer engine init --address {address} --queue {queue}` makes it)"
            ),
            EngineError::NoJetStream { address, version } => write!(
                f,
                "nats-server {version} at `{address}` has no JetStream, which keeps tasks and records\n\
                 (hint: start it with `-js -sd DIR`, or with `jetstream` in its configuration)"
            ),
            EngineError::Answer { address, question, reason } => write!(
                f,
                "the engine at `{address}` does not answer `{question}`: {reason}\n\
                 (hint: see the log of nats-server; of several, most have to run)"
            ),
            EngineError::Monitor { url, reason } => write!(
                f,
                "the monitoring page at `{url}` cannot be read: {reason}\n\
                 (hint: it is where `http` in the server's configuration says, and mostly for its own machine alone)"
            ),
            EngineError::ClusterVersion { stream, found: Some(found), own } => write!(
                f,
                "the stream `{stream}` in the engine is of cluster version {found}, and this tracer is of {own}\n\
                 (hint: {})",
                match found > own {
                    true => "install the version of tracer that the other nodes have",
                    false => "stop every node, delete the streams `TRACER_default_*`, and start all with this version",
                }
            ),
            EngineError::ClusterVersion { stream, found: None, .. } => write!(
                f,
                "the stream `{stream}` in the engine was not made by tracer, or by a version before its first release\n\
                 (hint: delete it if nobody needs it; or give tracer an account of its own in the server's configuration)"
            ),
            EngineError::Asset { name, reason } if reason.contains("insufficient") => write!(
                f,
                "`{name}` cannot be made in the engine: {reason}\n\
                 (hint: a queue reserves 1 GiB of the server's disk for each of its parts, of which there are two, and a third one for commands: give it more with `max_file` in `jetstream` of its configuration)"
            ),
            EngineError::Asset { name, reason } => write!(f, "`{name}` cannot be made in the engine: {reason}"),
        }
    }
}

impl std::error::Error for EngineError {}

impl EngineError {
    /// Returns whether the engine may be there later, without anything being changed about the way to it.
    pub fn is_away(&self) -> bool {
        match self {
            EngineError::Connect { .. } | EngineError::Answer { .. } => true,
            EngineError::Asset { reason, .. } => reason.contains("timed out"),
            _ => false,
        }
    }
}

/// True for a permission that whoever makes streams needs.
fn is_of_making(missing: &str) -> bool {
    missing.contains("$JS.API.STREAM.CREATE.") || (missing.contains("$JS.API.CONSUMER.") && missing.contains("_Q_"))
}

/// Credentials, as their file has them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// The seed of an nkey.
    Seed(String),
    /// The text of a NATS creds file: a token, and the seed of its nkey.
    File(String),
}

/// The most bytes of a file with credentials.
const CREDENTIALS_LIMIT: u64 = 64 * 1024;
/// Hint for a file that has no credentials.
const FORMS: &str = "it has to be a NATS creds file, as `nsc generate creds` writes it, or to have the seed of a user's nkey, which begins with `SU`";

/// Checks that a way to an engine may be used, with the files that it names.
pub fn check(access: &EngineAccess) -> Result<(), EngineError> {
    read(access).map(drop)
}

/// Checks that a way to an engine may be used, and returns the credentials, if it has any.
pub(crate) fn read(access: &EngineAccess) -> Result<Option<Credentials>, EngineError> {
    let address = &access.address;
    let refused = |problem, hint| Err(EngineError::Address { address: address.clone(), problem, hint });
    let Some(host) = host_of(address) else {
        let hint = "`--address nats://127.0.0.1:4222`, or `tls://HOST` for another machine";
        return refused("is of an engine that is not known; it begins with `nats://` or `tls://`", hint);
    };
    if address.contains('@') {
        return refused(
            "has credentials in it, which everybody on this machine could read",
            "`--credentials FILE` takes them from a file",
        );
    }
    if host.is_empty() {
        return refused("names no host", "`--address nats://127.0.0.1:4222`, or `tls://HOST` for another machine");
    }
    if port_of(address).parse::<u16>().is_err() {
        return refused("has a port that is no number from 0 to 65535", "`--address nats://127.0.0.1:4222`");
    }
    if !is_loopback(host) && !is_tls(address) && !access.is_insecure {
        return refused(
            "is on another machine, and `nats://` is not encrypted",
            "`tls://` in its place, with `tls` in the server's configuration; or `--insecure-engine`, where everybody on the way is trusted",
        );
    }
    if !is_loopback(host) && access.credentials.is_none() {
        return refused(
            "is on another machine, and no credentials are given: whoever may write there runs functions on every node that serves its queues",
            "`--credentials FILE` names a NATS creds file, or a file with the seed of an nkey, which the server's configuration has a user for",
        );
    }
    if let Some(path) = &access.authority {
        let unusable = |problem: String, hint: &str| EngineError::File {
            flag: "--engine-ca",
            path: path.clone(),
            problem,
            hint: hint.into(),
        };
        if !is_tls(address) {
            let hint = "write `tls://` in place of `nats://`, or leave `--engine-ca` out";
            return Err(unusable("is for engines that speak TLS, and the address is not one of them".into(), hint));
        }
        let form = "it has to have the certificates of the authorities that may have signed the server's, in PEM";
        let text = std::fs::read(path).map_err(|error| unusable(format!("cannot be read: {error}"), form))?;
        if !text.windows(PEM.len()).any(|at| at == PEM) {
            return Err(unusable("has no certificate in it".into(), form));
        }
    }
    access.credentials.as_deref().map(read_credentials).transpose()
}

/// Beginning of a certificate.
const PEM: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Reads a file with credentials, which nobody else may read.
fn read_credentials(path: &Path) -> Result<Credentials, EngineError> {
    let unusable = |problem: String, hint: &str| EngineError::File {
        flag: "--credentials",
        path: path.to_owned(),
        problem,
        hint: hint.to_owned(),
    };
    let unread = |error: std::io::Error| unusable(format!("cannot be read: {error}"), FORMS);
    let file = File::open(path).map_err(unread)?;
    let metadata = file.metadata().map_err(unread)?;
    if !metadata.is_file() {
        return Err(unusable("is no regular file".into(), FORMS));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let problem = format!("has credentials that others can read: expected mode 0600, found 0{mode:o}");
        return Err(unusable(problem, &format!("`chmod 600 {}`", path.display())));
    }
    let mut text = String::new();
    file.take(CREDENTIALS_LIMIT).read_to_string(&mut text).map_err(unread)?;
    if text.contains("-----BEGIN NATS USER JWT-----") {
        return Ok(Credentials::File(text));
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_seed = |seed: &str| {
        seed.len() == 58 && seed.starts_with("SU") && seed.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'))
    };
    match (lines.next(), lines.next()) {
        (Some(seed), None) if is_seed(seed) => Ok(Credentials::Seed(seed.to_owned())),
        _ => Err(unusable("has no credentials in it".into(), FORMS)),
    }
}

/// Returns the error for credentials that were read, and are of no use.
pub(crate) fn bad_credentials(access: &EngineAccess, reason: &str) -> EngineError {
    EngineError::File {
        flag: "--credentials",
        path: access.credentials.clone().unwrap_or_default(),
        problem: format!("has credentials that cannot be used: {reason}"),
        hint: FORMS.into(),
    }
}

/// Returns the error of a connection that could not be made, from what the client says of it.
pub(crate) fn not_connected(access: &EngineAccess, said: &str) -> EngineError {
    let address = access.address.clone();
    let untrusted = |reason: &str, hint| EngineError::Tls { address: address.clone(), reason: reason.into(), hint };
    if said.contains("authorization violation") {
        return EngineError::Credentials { address, given: access.credentials.clone() };
    }
    if said.starts_with("authentication") {
        return bad_credentials(access, said);
    }
    if let Some((_, problem)) = said.split_once("invalid peer certificate: ") {
        let hint = match problem {
            _ if problem.contains("not valid for") => {
                "the address has to name the host as the certificate does; or have one made for this name"
            }
            _ if problem.contains("Expired") || problem.contains("expired") => "renew the server's certificate",
            _ => "`--engine-ca FILE` names the authority that has signed the server's certificate",
        };
        return untrusted(&format!("its certificate is not accepted: {problem}"), hint);
    }
    if said.contains("InvalidContentType") || said.contains("corrupt message") {
        return untrusted(
            "it speaks no TLS",
            "write `tls` with `cert_file` and `key_file` in the server's configuration",
        );
    }
    EngineError::Connect { address, reason: said.into() }
}

/// True for what a server says when a permission is missing.
pub(crate) fn is_missing_permission(said: &str) -> bool {
    said.to_ascii_lowercase().starts_with(VIOLATION)
}

const VIOLATION: &str = "permissions violation for ";

/// Returns the error for a missing permission, from what the server says of it.
pub(crate) fn missing_permission(address: &str, said: &str) -> EngineError {
    let missing = said.get(VIOLATION.len()..).unwrap_or(said);
    let missing = missing.replacen("Publish", "publish", 1).replacen("Subscription", "subscribe", 1);
    EngineError::Permission { address: address.into(), missing }
}

/// True for an address on this machine's loopback.
pub(crate) fn is_on_loopback(address: &str) -> bool {
    host_of(address).is_some_and(is_loopback)
}

/// True for an address that is reached by TLS only.
pub(crate) fn is_tls(address: &str) -> bool {
    address.starts_with("tls://")
}

fn behind_scheme(address: &str) -> Option<&str> {
    address.strip_prefix("nats://").or_else(|| address.strip_prefix("tls://"))
}

/// Returns the host of an address; none if it is not one of this engine.
fn host_of(address: &str) -> Option<&str> {
    let rest = behind_scheme(address)?;
    Some(match rest.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => rest.split(':').next().unwrap_or_default(),
    })
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns the port of an address, as it is written; NATS' own if it has none.
fn port_of(address: &str) -> &str {
    let rest = behind_scheme(address).unwrap_or(address);
    rest.rsplit(':').next().filter(|port| *port != rest && !port.contains(']')).unwrap_or("4222")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const SEED: &str = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU";

    fn access(address: &str) -> EngineAccess {
        EngineAccess { address: address.into(), ..EngineAccess::default() }
    }

    fn refusal(access: &EngineAccess) -> String {
        read(access).map(drop).map_err(|error| error.to_string()).expect_err(&access.address)
    }

    #[test]
    fn addresses_of_this_machine_are_taken_and_wrong_ones_are_told_by_name() {
        let taken = ["nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:4222", "nats://127.0.0.2:1"];
        for address in taken.into_iter().chain(["tls://127.0.0.1", "tls://localhost:1"]) {
            assert!(read(&access(address)).is_ok(), "{address}");
        }
        for (address, problem) in [
            ("127.0.0.1:4222", "begins with `nats://` or `tls://`"),
            ("redis://127.0.0.1", "begins with `nats://` or `tls://`"),
            ("nats://10.0.0.5:4222", "is not encrypted\n(hint: `tls://` in its place"),
            ("nats://broker:4222", "is not encrypted\n(hint: `tls://` in its place"),
            ("tls://broker:4222", "no credentials are given"),
            ("nats://", "names no host"),
            ("nats://user:password@127.0.0.1", "has credentials in it"),
            ("nats://127.0.0.1:70000", "has a port that is no number"),
        ] {
            let text = refusal(&access(address));
            assert!(text.contains(problem) && text.contains("(hint: "), "{address}: {text}");
        }
        let insecure = EngineAccess { is_insecure: true, ..access("nats://broker:4222") };
        assert!(refusal(&insecure).contains("no credentials are given"), "one permission is not the other");
    }

    #[test]
    fn credentials_that_others_can_read_or_that_are_none_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.nk");
        let with = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            EngineAccess { credentials: Some(path.clone()), ..access("tls://broker") }
        };
        let seed = format!("# node b\n{SEED}\n");
        let taken = |access| read(&access).ok().flatten();
        assert!(taken(with(&seed, 0o600)) == Some(Credentials::Seed(SEED.into())));
        assert!(taken(with(&seed, 0o400)).is_some());
        let creds = format!("-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n{SEED}");
        assert!(taken(with(&creds, 0o600)) == Some(Credentials::File(creds)));
        let insecure = EngineAccess { is_insecure: true, address: "nats://broker".into(), ..with(&seed, 0o600) };
        assert!(taken(insecure).is_some());
        for mode in [0o640, 0o604, 0o644] {
            let text = refusal(&with(&seed, mode));
            assert!(text.contains(&format!("expected mode 0600, found 0{mode:o}")), "{text}");
            assert!(text.contains("(hint: `chmod 600 "), "{text}");
        }
        for text in ["", "password", "SUAM", &format!("{SEED}\n{SEED}"), &SEED.replacen("SU", "SA", 1)] {
            assert!(refusal(&with(text, 0o600)).contains("has no credentials in it\n(hint: "), "{text}");
        }
        let none = EngineAccess { credentials: Some("/nonexistent/node.nk".into()), ..access("tls://broker") };
        assert!(refusal(&none).contains("cannot be read"));
    }

    #[test]
    fn what_a_client_says_becomes_what_to_do() {
        let told = |said: &str| not_connected(&access("tls://broker"), said).to_string();
        assert!(told("authorization violation: nats: authorization violation").contains("`--credentials FILE`"));
        assert!(told("IO error: invalid peer certificate: UnknownIssuer").contains("(hint: `--engine-ca FILE`"));
        let other = "IO error: invalid peer certificate: certificate not valid for name \"broker\"";
        assert!(told(other).contains("(hint: the address has to name the host"));
        assert!(told("IO error: received corrupt message of type InvalidContentType").contains("it speaks no TLS"));
        assert!(told("IO error: Connection refused").contains("a firewall lets port 4222 through"));
        let said = "Permissions Violation for Publish to \"$JS.API.STREAM.CREATE.X\"";
        assert!(is_missing_permission(said) && !is_missing_permission("maximum payload violation"));
        let missing = missing_permission("tls://broker", said).to_string();
        assert!(missing.contains("do not permit to publish to \"$JS.API.STREAM.CREATE.X\""), "{missing}");
    }
}
