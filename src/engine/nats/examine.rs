//! An examination: a survey, and what else can be seen of a server without changing anything.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use serde::Deserialize;
use serde_json::json;
use tracer_core::causes::with_causes;
use tracer_ipc::protocol::EngineAccess;

use super::roles::Role;
use super::survey::{ask, survey};
use super::{CLUSTER_VERSION, Connected, REQUEST_LIMIT, record_stream};
use crate::access::{self, EngineError};
use crate::doctor::{self, Examination, Seen};

/// A revision that no subject has.
const NO_REVISION: &str = "9007199254740991";
/// Time in which the client tells what the server has said before.
const TOLD: Duration = Duration::from_millis(50);
/// Time within which a monitoring page is read.
const MONITOR_LIMIT: Duration = Duration::from_secs(2);
/// The most bytes of a monitoring page.
const MONITOR_BYTES: u64 = 1 << 20;
/// The port of the monitoring page that is looked at unless said: the usual one, which `tracer engine config` writes.
const MONITOR: &str = "http://127.0.0.1:8222";

#[derive(Deserialize)]
struct Account {
    storage: u64,
    limits: Limits,
}

#[derive(Deserialize)]
struct Limits {
    max_storage: i64,
}

#[derive(Deserialize)]
struct Monitored {
    server_id: String,
    #[serde(default)]
    jetstream: MonitoredJetStream,
}

#[derive(Default, Deserialize)]
struct MonitoredJetStream {
    #[serde(default)]
    config: Option<MonitoredConfig>,
}

#[derive(Deserialize)]
struct MonitoredConfig {
    #[serde(default)]
    sync_always: bool,
}

/// Examines an engine for somebody of this role.
pub(crate) async fn examine(
    access: &EngineAccess,
    role: Role,
    monitors: &[String],
) -> Result<Examination, EngineError> {
    let connected = Connected::to(access).await?;
    let Connected { client, context, address, .. } = &connected;
    let survey = connected.unless_violated(survey(client, context, address)).await?;
    let account: Account =
        connected.unless_violated(ask(context, "INFO", &json!(null), address, &survey.server.version)).await?;
    let limit = u64::try_from(account.limits.max_storage).ok().filter(|limit| *limit > 0);
    let mut syncs = Vec::new();
    for monitor in monitors {
        syncs.extend(read_monitor(monitor)?.jetstream.config.map(|config| config.sync_always));
    }
    if monitors.is_empty() && access::is_on_loopback(address) {
        // Another server may have the port, or nobody.
        let page = read_monitor(MONITOR).ok().filter(|page| page.server_id == client.server_info().server_id);
        syncs.extend(page.and_then(|page| page.jetstream.config).map(|config| config.sync_always));
    }
    let seen = Seen {
        syncs,
        storage: limit.map(|limit| (account.storage, limit)),
        missing: connected.missing(role).await?,
        role: role.name(),
        cluster_version: CLUSTER_VERSION,
    };
    let findings = doctor::examine(access, &survey, &seen);
    Ok(Examination { survey, syncs: seen.syncs, findings })
}

impl Connected {
    /// Returns what a role needs and the server does not permit: says to each subject what changes nothing, and hears which are refused.
    pub(super) async fn missing(&self, role: Role) -> Result<Vec<String>, EngineError> {
        let lost = |reason: String| EngineError::Connect { address: self.address.clone(), reason };
        let before = self.violations.borrow().len();
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NO_REVISION);
        let permissions = role.may_publish();
        for permission in &permissions {
            let (probe, payload) = (permission.probe.clone(), permission.probe_payload.clone());
            let said = self.client.publish_with_headers(probe, headers.clone(), payload.into()).await;
            said.map_err(|error| lost(with_causes(&error)))?;
        }
        // Every role may ask this, and the answer comes behind what the server has said before.
        let question = format!("STREAM.INFO.{}", record_stream());
        let asked = self.context.request(question.clone(), &json!(null));
        let Ok(Ok(serde_json::Value::Object(_))) = tokio::time::timeout(REQUEST_LIMIT, asked).await else {
            let (address, reason) = (self.address.clone(), "it does not answer".into());
            return Err(EngineError::Answer { address, question, reason });
        };
        tokio::time::sleep(TOLD).await;
        let violations = self.violations.borrow();
        let refused = |probe: &str| violations[before..].iter().any(|said| said.contains(&format!("\"{probe}\"")));
        let missing = permissions.iter().filter(|permission| refused(&permission.probe));
        Ok(missing.map(|permission| format!("publish to \"{}\"", permission.subject)).collect())
    }
}

/// Reads the monitoring page of a server.
fn read_monitor(url: &str) -> Result<Monitored, EngineError> {
    let failed = |reason: String| EngineError::Monitor { url: url.into(), reason };
    let unread = |error: std::io::Error| failed(error.to_string());
    let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')).filter(|host| !host.contains('/'));
    let host = host.ok_or_else(|| failed("it is no address such as `http://127.0.0.1:8222`".into()))?;
    let address = host.to_socket_addrs().map_err(unread)?.next();
    let address = address.ok_or_else(|| failed("its host has no address".into()))?;
    let mut stream = TcpStream::connect_timeout(&address, MONITOR_LIMIT).map_err(unread)?;
    stream.set_read_timeout(Some(MONITOR_LIMIT)).map_err(unread)?;
    write!(stream, "GET /varz HTTP/1.0\r\nHost: {host}\r\n\r\n").map_err(unread)?;
    let mut answer = String::new();
    stream.take(MONITOR_BYTES).read_to_string(&mut answer).map_err(unread)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| failed("it does not speak HTTP".into()))?;
    serde_json::from_str(body).map_err(|_| failed("it is not the page of a nats-server".into()))
}
