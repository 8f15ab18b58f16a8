//! Findings about an engine: problems, each with what mends it. Everything here follows from what was seen; nothing is asked.

use std::collections::BTreeSet;

use tracer_core::count::{Count, Elapsed, Size};
use tracer_core::queue::QueueBound;
use tracer_ipc::protocol::EngineAccess;

use crate::access::{self, EngineError};
use crate::clock::ClockOffset;
use crate::message::Heartbeat;
use crate::server_version::ServerVersion;
use crate::survey::{Beat, Survey};

mod modules;

/// The most bytes of a message that tracer sends, with its headers.
const LARGEST_MESSAGE: usize = 640 << 10;
/// Part of a limit from which on it is told, in percent.
const NEARLY_FULL: u64 = 80;
/// Offset of a node's clock above which it is told, in nanoseconds.
const CLOCK_LIMIT_NS: u64 = 1_000_000_000;

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Everything runs, until something happens for which nobody is prepared.
    Warning,
    /// Something does not run.
    Error,
}

impl Severity {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its weight.
    pub severity: Severity,
    /// Its kind, for programs.
    pub code: &'static str,
    /// Description of it.
    pub text: String,
    /// The next step.
    pub hint: String,
}

impl Finding {
    fn new(severity: Severity, code: &'static str, text: String, hint: impl Into<String>) -> Finding {
        Finding { severity, code, text, hint: hint.into() }
    }

    /// Returns the finding for an engine that cannot be used.
    pub fn of_error(error: &EngineError) -> Finding {
        let code = match error {
            EngineError::Address { .. } => "address",
            EngineError::File { .. } => "file",
            EngineError::Connect { .. } => "unreachable",
            EngineError::Tls { .. } => "tls",
            EngineError::Credentials { .. } => "credentials",
            EngineError::Permission { .. } => "permission",
            EngineError::NoJetStream { .. } => "no_jetstream",
            EngineError::Answer { .. } => "no_answer",
            EngineError::Monitor { .. } => "monitor",
            EngineError::ClusterVersion { .. } => "cluster_version",
            EngineError::NameTaken { .. } => "name_taken",
            EngineError::PlaceTaken { .. } => "place_taken",
            EngineError::TooSmall { .. } => "too_small",
            EngineError::NoQueue { .. } => "no_queue",
            EngineError::Asset { .. } => "stream",
        };
        Finding::of_text(code, error)
    }

    /// Returns the finding for a head that does not reach the engine, which can be asked all the same; the text is what the head says.
    pub fn of_head(text: &str) -> Finding {
        Finding::of_text("not_heard", &format!("the head of this place cannot use it: {text}"))
    }

    /// Returns the finding for an engine that is away while a head starts.
    pub fn of_absence(error: &EngineError) -> Finding {
        let Finding { text, hint, .. } = Finding::of_error(error);
        let text = format!("{text}; the head starts without it: tasks of queues wait or are refused until it is there");
        Finding::new(Severity::Warning, "away", text, hint)
    }

    fn of_text(code: &'static str, error: &dyn std::fmt::Display) -> Finding {
        let said = error.to_string();
        let no_hint = "see `agent.log` in the logs of the head, and the log of nats-server";
        let (text, hint) = said.split_once("\n(hint: ").unwrap_or((&said, no_hint));
        Finding::new(Severity::Error, code, text.into(), hint.strip_suffix(')').unwrap_or(hint))
    }
}

/// Everything that was seen of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// Its nodes, queues and streams.
    pub survey: Survey,
    /// True for each server of which it is known that it syncs every write before it acknowledges, false for each that does not.
    pub syncs: Vec<bool>,
    /// The problem.
    pub findings: Vec<Finding>,
}

/// Facts that were seen beside a survey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// See [`Examination::syncs`].
    pub syncs: Vec<bool>,
    /// Bytes that the account's streams take on disk, and how many they may.
    pub storage: Option<(u64, u64)>,
    /// Permissions that the credentials lack for their role, as clauses: `publish to "…"`.
    pub missing: Vec<String>,
    /// Name of that role.
    pub role: &'static str,
    /// Version of the cluster that this program is of.
    pub cluster_version: u32,
}

/// Returns everything that is wrong, errors first.
pub fn examine(access: &EngineAccess, survey: &Survey, seen: &Seen) -> Vec<Finding> {
    let address = &access.address;
    let mut findings = of_servers(survey);
    findings.extend(of_syncs(survey, &seen.syncs));
    if !access::is_on_loopback(address) && !access::is_tls(address) {
        findings.push(Finding::new(
            Severity::Warning,
            "plain_nats",
            format!("what goes to `{address}` is not encrypted: everybody on the way can read and change it"),
            "`tls://` in its place, with `tls` in the server's configuration: `tracer engine config --tls DIR`",
        ));
    }
    for missing in &seen.missing {
        findings.push(Finding::new(
            Severity::Error,
            "permission",
            format!("the credentials do not permit to {missing}, which the role {} needs", seen.role),
            format!("use those of a user with the role {}, as `tracer engine config --roles` writes it", seen.role),
        ));
    }
    for stream in &survey.unanswered {
        findings.push(Finding::new(
            Severity::Error,
            "unanswered",
            format!("the stream `{stream}` does not answer: most of the servers that have a copy are needed"),
            "start those that do not run, and see in their logs whether they have found each other",
        ));
    }
    findings.extend(of_streams(survey));
    for stream in &survey.streams {
        let (stream, found, own) = (stream.name.clone(), stream.cluster_version, seen.cluster_version);
        if found != Some(own) {
            findings.push(Finding::of_error(&EngineError::ClusterVersion { stream, found, own }));
        }
    }
    findings.extend(of_limits(survey, seen.storage));
    findings.extend(of_nodes(survey));
    findings.extend(of_bounds(survey));
    findings.extend(modules::of_modules(survey));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Returns what is gone, and which servers are away.
fn of_streams(survey: &Survey) -> Vec<Finding> {
    let address = &survey.server.address;
    let mut findings = Vec::new();
    for name in &survey.missing {
        findings.push(Finding::new(
            Severity::Error,
            "no_stream",
            format!("the stream `{name}` is gone"),
            format!("`tracer engine init --address {address}` makes it; so does a node that may, when it starts"),
        ));
    }
    for queue in survey.queues() {
        let Some(problem) = queue.problem else { continue };
        findings.push(Finding::new(
            Severity::Error,
            "stuck_queue",
            format!("the queue `{}` stands still: {problem}", queue.name),
            queue_hint(address, &queue.name),
        ));
    }
    let servers: BTreeSet<&String> = survey.streams.iter().flat_map(|stream| &stream.away).collect();
    for server in servers {
        let copies = survey.streams.iter().filter(|stream| stream.away.contains(server)).count();
        findings.push(Finding::new(
            Severity::Warning,
            "server_away",
            format!("the server `{server}` is away: {} lack its copy", Count(copies, "stream")),
            "start it again, and see in its log why it ended; if another one dies too, queues stand still",
        ));
    }
    findings
}

/// Returns what has a queue go on that stands still.
pub fn queue_hint(address: &str, queue: &str) -> String {
    format!(
        "`tracer engine init --address {address} --queue {queue}` makes what is missing, and nodes that may do so by themselves within half a minute; \
         a stream that is no work queue has to be deleted before"
    )
}

/// True if the engine is not one server beside the only machine that uses it: what is on one machine ends with it, whatever is done.
fn is_shared(survey: &Survey) -> bool {
    let host = |node_id: &str| node_id.rsplit_once('-').map_or(node_id, |(host, _)| host).to_owned();
    let hosts: BTreeSet<_> = survey.living().map(|beat| host(&beat.heartbeat.node_id)).collect();
    survey.server.is_clustered || !access::is_on_loopback(&survey.server.address) || hosts.len() > 1
}

fn version_of(survey: &Survey) -> Option<ServerVersion> {
    survey.server.version.parse().ok()
}

/// Returns what is wrong with the servers, as far as it follows from what they say of themselves.
pub fn of_servers(survey: &Survey) -> Vec<Finding> {
    let (version, address) = (&survey.server.version, &survey.server.address);
    let mut findings = Vec::new();
    let mut found = |severity, code, text, hint: String| findings.push(Finding::new(severity, code, text, hint));
    let known = version_of(survey);
    if known.is_some_and(|known| known < ServerVersion::OLDEST) {
        let text =
            format!("nats-server {version} is older than {}, and lacks what tracer needs", ServerVersion::OLDEST);
        found(Severity::Error, "old_server", text, "install a current nats-server".into());
    }
    let copies = survey.streams.iter().map(|stream| stream.replicas).max().unwrap_or(0);
    if copies > 1 && known.is_some_and(|known| known < ServerVersion::REPLICATES_SAFELY) {
        let safe = ServerVersion::REPLICATES_SAFELY;
        let text = format!(
            "nats-server {version} keeps {copies} copies, and before {safe} they may lose what was acknowledged when servers are killed"
        );
        let hint = format!("install nats-server {safe} or newer on each of them, one after the other");
        found(Severity::Warning, "unsafe_replicas", text, hint);
    }
    let single = survey.streams.iter().filter(|stream| stream.replicas < 2 && !stream.is_dead);
    let single: Vec<_> = single.map(|stream| &*stream.name).collect();
    if let (Some(first), true) = (single.first(), is_shared(survey)) {
        let others = match single.len() - 1 {
            0 => String::new(),
            others => format!(" and {}", Count(others, "other stream")),
        };
        let text = format!("`{first}`{others} have one copy: without the disk of that server their tasks are gone");
        let hint = match survey.server.is_clustered {
            true => format!("`tracer engine init --address {address} --replicas 3` gives them three"),
            false => "`tracer engine config --servers 3` sets up three servers".into(),
        };
        found(Severity::Warning, "no_replicas", text, hint);
    }
    if known.is_some_and(|known| known < ServerVersion::SYNCS_ALWAYS) && is_shared(survey) {
        let text = format!(
            "nats-server {version} syncs every two minutes: when its machine loses power it may forget what it has acknowledged since"
        );
        let hint = format!(
            "install nats-server {} or newer, with `sync_interval: always`: `tracer engine config` writes it",
            ServerVersion::SYNCS_ALWAYS
        );
        found(Severity::Warning, "no_sync", text, hint);
    }
    if survey.server.max_payload < LARGEST_MESSAGE {
        let found_size = Size(survey.server.max_payload as u64);
        let text = format!(
            "the server takes messages of at most {found_size}, but tracer sends some of {}",
            Size(LARGEST_MESSAGE as u64)
        );
        found(
            Severity::Error,
            "max_payload",
            text,
            "`max_payload: 1MB` in its configuration, which is the default".into(),
        );
    }
    findings
}

fn of_syncs(survey: &Survey, syncs: &[bool]) -> Option<Finding> {
    let lazy = syncs.iter().filter(|is_always| !**is_always).count();
    let is_told = version_of(survey).is_some_and(|version| version < ServerVersion::SYNCS_ALWAYS);
    if lazy == 0 || is_told || !is_shared(survey) {
        return None;
    }
    Some(Finding::new(
        Severity::Warning,
        "no_sync",
        format!(
            "{lazy} of {} that were looked at may acknowledge what they have not synced, and forget it when they lose power",
            Count(syncs.len(), "server")
        ),
        "`sync_interval: always` in `jetstream` of its configuration: `tracer engine config` writes it",
    ))
}

fn of_limits(survey: &Survey, storage: Option<(u64, u64)>) -> Vec<Finding> {
    let is_nearly = |used: u64, limit: u64| limit > 0 && used.saturating_mul(100) / NEARLY_FULL >= limit;
    let mut findings = Vec::new();
    if let Some((used, limit)) = storage.filter(|(used, limit)| is_nearly(*used, *limit)) {
        findings.push(Finding::new(
            Severity::Warning,
            "storage",
            format!("the account's streams take {} of the {} that they may", Size(used), Size(limit)),
            "a higher `max_file` in the server's configuration, or a higher limit of the account",
        ));
    }
    for queue in survey.queues() {
        if let Some(limit) = queue.max_bytes.filter(|limit| is_nearly(queue.bytes, *limit)) {
            findings.push(Finding::new(
                Severity::Warning,
                "queue_full",
                format!("the queue `{}` has {} of the {} that it takes", queue.name, Size(queue.bytes), Size(limit)),
                "more nodes that serve it, or fewer submissions: those to a full queue are refused",
            ));
        }
    }
    findings
}

fn of_nodes(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in survey.queues() {
        if queue.waiting + queue.held > 0 && queue.served_by.is_empty() {
            let tasks = Count((queue.waiting + queue.held) as usize, "message");
            findings.push(Finding::new(
                Severity::Warning,
                "unserved_queue",
                format!("the queue `{}` has {tasks} with tasks, and no living node serves it", queue.name),
                format!("`tracer start --address {} --queue {}`", survey.server.address, queue.name),
            ));
        } else if queue.waiting_commands > 0 && queue.commands_run_by.is_empty() {
            let commands = Count(queue.waiting_commands as usize, "command");
            findings.push(Finding::new(
                Severity::Warning,
                "unserved_commands",
                format!("the queue `{}` has {commands}, and no living node that serves it runs commands", queue.name),
                format!("`tracer start --address {} --queue {} --shared-commands`", survey.server.address, queue.name),
            ));
        }
    }
    for stream in survey.streams.iter().filter(|stream| stream.is_dead && stream.messages > 0) {
        findings.push(Finding::new(
            Severity::Warning,
            "put_aside",
            format!(
                "{} of queues {} put aside, because nobody can run {}",
                Count(stream.messages, "message"),
                if stream.messages == 1 { "was" } else { "were" },
                if stream.messages == 1 { "it" } else { "them" },
            ),
            format!(
                "`nats stream view {0}` shows each with its reason, and `nats stream purge {0}` removes them; else they go after seven days",
                stream.name
            ),
        ));
    }
    let mut told = BTreeSet::new();
    for beat in survey.living() {
        let name = &beat.heartbeat.node_id;
        if let Some(other) = survey.other_of_name(beat.place, name).filter(|_| told.insert(name)) {
            findings.push(Finding::new(
                Severity::Error,
                "name_taken",
                format!(
                    "two living nodes have the name `{name}`: those with the places {} and {}",
                    beat.place, other.place
                ),
                "stop one of them, remove `place.id` in its folder, and start it again: it gets another name",
            ));
        }
    }
    findings.extend(survey.living().filter_map(of_clock));
    if survey.unread_beats > 0 {
        let nodes = Count(survey.unread_beats, "node");
        findings.push(Finding::new(
            Severity::Warning,
            "other_version",
            format!("{nodes} of another version of tracer: their heartbeats cannot be read here"),
            "the same version of tracer on every node",
        ));
    }
    findings
}

/// Returns the queues whose tasks may ask for more than a node has that is to serve them.
fn of_bounds(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for queue in survey.queues() {
        let bound = QueueBound { num_cpus: queue.num_cpus, resources: queue.resources.clone().into_iter().collect() };
        for beat in survey.living() {
            let Heartbeat { node_id, slots, resources, queues, too_large, .. } = &beat.heartbeat;
            let has = QueueBound { num_cpus: *slots, resources: resources.clone() };
            let is_for_it = queues.iter().chain(too_large).any(|name| *name == queue.name);
            // An agent that has not heard of its head yet knows of no slots.
            if !is_for_it || *slots == 0 || has.has(&bound) {
                continue;
            }
            let asks = has.with(&bound);
            let flags = asks.resources.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>();
            let resources = if flags.is_empty() { String::new() } else { format!(" --resources {}", flags.join(",")) };
            findings.push(Finding::new(
                Severity::Warning,
                "too_small",
                format!(
                    "a task of the queue `{}` may ask for {bound}, but node `{node_id}`, which is to serve it, has {has}: it takes nothing from it",
                    queue.name
                ),
                format!(
                    "start that node with `--num-workers {}{resources}`, or without this queue; or lower what a task may ask for: `tracer engine queue {}`",
                    asks.num_cpus, queue.name
                ),
            ));
        }
    }
    findings
}

fn of_clock(beat: &Beat) -> Option<Finding> {
    let ClockOffset { offset_ns, error_ns } = beat.heartbeat.clock?;
    let offset = offset_ns.unsigned_abs();
    if offset.saturating_sub(error_ns) <= CLOCK_LIMIT_NS {
        return None;
    }
    let side = if offset_ns < 0 { "behind" } else { "ahead of" };
    Some(Finding::new(
        Severity::Warning,
        "clock",
        format!(
            "the clock of the node `{}` is {} {side} the engine's: the times of its spans are that far from those of others",
            beat.heartbeat.node_id,
            Elapsed::from_nanos(offset)
        ),
        "keep its machine's clock by NTP (`timedatectl set-ntp true`, or chrony); if all nodes are off alike, that of the engine's machine",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::tests::{beat, queue};
    use crate::survey::{ServerSeen, StreamSeen};

    const NOW_NS: u64 = 100_000_000_000;

    fn survey(address: &str, version: &str, is_clustered: bool, replicas: usize) -> Survey {
        let cluster_version = Some(1);
        let records = StreamSeen { name: "RECORD".into(), cluster_version, replicas, ..StreamSeen::default() };
        let tasks = StreamSeen { cluster_version, replicas, ..queue("default", 0, 0) };
        Survey {
            server: ServerSeen { address: address.into(), version: version.into(), is_clustered, max_payload: 1 << 20 },
            streams: vec![records, tasks],
            beats: vec![beat(1, "host-a", NOW_NS, &["default"])],
            unread_beats: 0,
            unanswered: Vec::new(),
            missing: Vec::new(),
            now_ns: NOW_NS,
        }
    }

    /// Puts a stream into the place of the one for the same tasks.
    fn set(survey: &mut Survey, stream: StreamSeen) {
        let tasks = |stream: &StreamSeen| (stream.queue.clone(), stream.is_of_commands);
        survey.streams.retain(|other| tasks(other) != tasks(&stream));
        survey.streams.push(stream);
    }

    fn seen() -> Seen {
        Seen { role: "node", cluster_version: 1, ..Seen::default() }
    }

    fn codes(survey: &Survey, seen: &Seen) -> Vec<&'static str> {
        let access = EngineAccess { address: survey.server.address.clone(), ..EngineAccess::default() };
        let findings = examine(&access, survey, seen);
        assert!(findings.iter().all(|finding| !finding.text.is_empty() && !finding.hint.is_empty()), "{findings:?}");
        findings.into_iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn good_engines_have_nothing_to_mend() {
        let here = survey("nats://127.0.0.1", "2.9.10", false, 1);
        assert_eq!(codes(&here, &seen()), [""; 0], "one server beside its only machine");
        let three = survey("tls://broker", "2.12.3", true, 3);
        assert_eq!(codes(&three, &Seen { syncs: vec![true; 3], storage: Some((79, 100)), ..seen() }), [""; 0]);
    }

    #[test]
    fn servers_that_may_lose_what_they_have_acknowledged_are_found() {
        let old = survey("nats://127.0.0.1", "2.9.10", true, 3);
        assert_eq!(codes(&old, &seen()), ["unsafe_replicas", "no_sync"]);
        let single = survey("tls://broker", "2.15.1", false, 1);
        assert_eq!(codes(&single, &seen()), ["no_replicas"], "nobody knows whether it syncs");
        assert_eq!(codes(&single, &Seen { syncs: vec![false], ..seen() }), ["no_replicas", "no_sync"]);
        let mut of_many = survey("nats://127.0.0.1", "2.15.1", false, 1);
        of_many.beats.push(beat(2, "other-b", NOW_NS, &[]));
        assert_eq!(codes(&of_many, &seen()), ["no_replicas"], "another machine uses it");
        assert_eq!(codes(&survey("nats://127.0.0.1", "2.8.4", false, 1), &seen()), ["old_server"]);
    }

    #[test]
    fn queues_names_limits_permissions_and_versions_are_found() {
        let mut survey = survey("nats://127.0.0.1", "2.15.1", false, 1);
        let of = |change: &dyn Fn(&mut Survey), seen: &Seen| {
            let mut changed = survey.clone();
            change(&mut changed);
            codes(&changed, seen)
        };
        let with = |stream: StreamSeen| StreamSeen { cluster_version: Some(1), ..stream };
        assert_eq!(of(&|survey| set(survey, with(queue("gpu", 1, 0))), &seen()), ["unserved_queue"]);
        assert_eq!(of(&|survey| set(survey, with(queue("gpu", 0, 0))), &seen()), [""; 0]);
        assert_eq!(of(&|survey| set(survey, with(queue("default", 80, 0))), &seen()), ["queue_full"]);
        let command = |survey: &mut Survey| {
            set(survey, with(StreamSeen { is_of_commands: true, ..queue("default", 1, 0) }));
        };
        assert_eq!(of(&command, &seen()), ["unserved_commands"]);
        let runs_it = |survey: &mut Survey| {
            command(survey);
            survey.beats[0].heartbeat.shared_commands = true;
        };
        assert_eq!(of(&runs_it, &seen()), [""; 0]);
        assert_eq!(of(&|survey| survey.beats.push(beat(2, "host-a", NOW_NS, &[])), &seen()), ["name_taken"]);
        let clock = |offset_ns, error_ns| {
            move |survey: &mut Survey| survey.beats[0].heartbeat.clock = Some(ClockOffset { offset_ns, error_ns })
        };
        for (offset_ns, error_ns, is_found) in [
            (-1_100_000_000, 5, true),
            (i64::MAX, 5, true),
            (1_100_000_000, 200_000_000, false),
            (i64::MIN, u64::MAX, false),
        ] {
            let found = of(&clock(offset_ns, error_ns), &seen());
            assert_eq!(found, if is_found { vec!["clock"] } else { Vec::new() }, "{offset_ns} ± {error_ns}");
        }
        let silent = |survey: &mut Survey| survey.beats.push(beat(2, "host-a", 0, &[]));
        assert_eq!(of(&silent, &seen()), [""; 0], "the other one is gone");
        let dead = |messages| StreamSeen { name: "DEAD".into(), is_dead: true, messages, ..StreamSeen::default() };
        assert_eq!(of(&|survey| set(survey, with(dead(1))), &seen()), ["put_aside"]);
        assert_eq!(of(&|survey| set(survey, with(dead(0))), &seen()), [""; 0]);
        let raised = |slots| {
            move |survey: &mut Survey| {
                let bound = Some(QueueBound { num_cpus: 3, resources: Vec::new() });
                set(survey, with(StreamSeen { bound, ..queue("default", 0, 0) }));
                survey.beats[0].heartbeat.slots = slots;
            }
        };
        assert_eq!(of(&raised(2), &seen()), ["too_small"], "before the node has heard of it");
        assert_eq!(of(&raised(3), &seen()), [""; 0]);
        assert_eq!(of(&raised(0), &seen()), [""; 0], "it is not known what it has");
        let knows_it = |survey: &mut Survey| {
            raised(2)(survey);
            let heartbeat = &mut survey.beats[0].heartbeat;
            heartbeat.too_large = std::mem::take(&mut heartbeat.queues);
        };
        assert_eq!(of(&knows_it, &seen()), ["too_small"], "and after");
        assert_eq!(of(&|survey| survey.unread_beats = 1, &seen()), ["other_version"]);
        assert_eq!(of(&|survey| survey.unanswered.push("Q".into()), &seen()), ["unanswered"]);
        assert_eq!(of(&|survey| survey.missing.push("KEY".into()), &seen()), ["no_stream"]);
        let broken = |is_no_work_queue, lacks_consumer| {
            move |survey: &mut Survey| {
                let queue = StreamSeen { is_no_work_queue, lacks_consumer, ..queue("default", 0, 0) };
                set(survey, with(queue));
            }
        };
        assert_eq!(of(&broken(true, false), &seen()), ["stuck_queue"]);
        assert_eq!(of(&broken(false, true), &seen()), ["stuck_queue"]);
        assert_eq!(of(&broken(false, false), &seen()), [""; 0]);
        let away = |survey: &mut Survey| survey.streams[0].away.push("tracer-2".into());
        assert_eq!(of(&away, &seen()), ["server_away"]);
        assert_eq!(of(&|survey| survey.server.max_payload = 65_536, &seen()), ["max_payload"]);
        assert_eq!(of(&|survey| survey.streams[0].cluster_version = Some(2), &seen()), ["cluster_version"]);
        assert_eq!(of(&|survey| survey.streams[0].cluster_version = None, &seen()), ["cluster_version"]);
        let missing = Seen { missing: vec!["publish to \"a\"".into()], storage: Some((80, 100)), ..seen() };
        assert_eq!(of(&|_| (), &missing), ["permission", "storage"], "errors come first");
        survey.server.address = "nats://broker".into();
        assert_eq!(codes(&survey, &seen()), ["no_replicas", "plain_nats"]);
    }
}
