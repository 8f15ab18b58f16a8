//! Everything that an engine tells of a cluster, and what follows from it for whoever asks: the nodes, the queues, and who serves them.

use std::collections::BTreeMap;

use tracer_core::PlaceId;
use tracer_core::hex::hex;
use tracer_core::queue::QueueBound;
use tracer_ipc::protocol::{ClusterReport, ModuleReport, NodeReport, QueueReport};

use crate::message::Heartbeat;

/// Time without a heartbeat after which a node is not counted among the living, in nanoseconds: more than three of its intervals.
pub const SILENT_NS: u64 = 10_000_000_000;

/// State of a cluster, as it was read within some milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The server that was asked.
    pub server: ServerSeen,
    /// The streams of the account that are of this cluster.
    pub streams: Vec<StreamSeen>,
    /// Names of streams whose servers do not answer.
    pub unanswered: Vec<String>,
    /// Names of streams that every cluster has, and this one has not.
    pub missing: Vec<String>,
    /// Heartbeats of the nodes.
    pub beats: Vec<Beat>,
    /// Number of heartbeats that cannot be read here.
    pub unread_beats: usize,
    /// Time of the engine's clock, in nanoseconds since the Unix epoch, as near as it can be known.
    pub now_ns: u64,
}

/// A server, as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSeen {
    /// The address that it was reached at.
    pub address: String,
    /// Its version: `2.9.10`.
    pub version: String,
    /// True if it is one of several.
    pub is_clustered: bool,
    /// The most bytes of a message.
    pub max_payload: usize,
}

/// A stream of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamSeen {
    /// Its name.
    pub name: String,
    /// The queue that it is of; none for records and values.
    pub queue: Option<String>,
    /// True if it has the messages of queues that were put aside.
    pub is_dead: bool,
    /// True if it is the part of its queue for commands.
    pub is_of_commands: bool,
    /// Version of the cluster that it was made for; none if nothing is said of that.
    pub cluster_version: Option<u32>,
    /// The most that a task of its queue may ask for, if the stream says something of that.
    pub bound: Option<QueueBound>,
    /// Number of servers that have a copy.
    pub replicas: usize,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// The most bytes; none if nothing but the disk bounds it.
    pub max_bytes: Option<u64>,
    /// Number of messages of a queue that were delivered and not acknowledged: nodes have them, or had them and gave them back.
    pub held: u64,
    /// True for the part of a queue that keeps messages otherwise than a queue does.
    pub is_no_work_queue: bool,
    /// True for the part of a queue without the consumer that hands out its messages.
    pub lacks_consumer: bool,
    /// Names of the servers that have a copy and are not heard by the one that leads the stream.
    pub away: Vec<String>,
}

impl StreamSeen {
    /// Returns why nobody is given what a part of a queue has, if so, as a clause.
    fn problem(&self) -> Option<String> {
        let name = &self.name;
        if self.is_no_work_queue {
            return Some(format!("its stream `{name}` is not a work queue: somebody has made it otherwise"));
        }
        self.lacks_consumer
            .then(|| format!("the consumer `w` of its stream `{name}` is gone, so nobody gets its tasks"))
    }
}

/// The last heartbeat of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Its place.
    pub place: PlaceId,
    /// Time of the engine's clock, in nanoseconds since the Unix epoch.
    pub stamp_ns: u64,
    /// The heartbeat.
    pub heartbeat: Heartbeat,
}

impl Survey {
    /// True if the node was heard lately.
    pub fn is_alive(&self, beat: &Beat) -> bool {
        self.now_ns.saturating_sub(beat.stamp_ns) < SILENT_NS
    }

    /// Returns the nodes that were heard lately.
    pub fn living(&self) -> impl Iterator<Item = &Beat> {
        self.beats.iter().filter(|beat| self.is_alive(beat))
    }

    /// Returns a living node of another place that has this name.
    pub fn other_of_name(&self, place: PlaceId, node_id: &str) -> Option<&Beat> {
        self.living().find(|beat| beat.place != place && beat.heartbeat.node_id == node_id)
    }

    /// Returns a living node that has this place's id and is none that this place knows of: it has another name, or a life after the last one here.
    pub fn other_of_place(&self, place: PlaceId, node_id: &str, last_life: u64) -> Option<&Beat> {
        let is_other = |beat: &Heartbeat| beat.node_id != node_id || beat.life > last_life;
        self.living().find(|beat| beat.place == place && is_other(&beat.heartbeat))
    }

    /// Returns the number of servers that have a copy of each record; 0 while there are no records.
    pub fn replicas(&self) -> usize {
        self.streams.iter().filter(|stream| stream.queue.is_none()).map(|stream| stream.replicas).min().unwrap_or(0)
    }

    /// Returns the queues by name, each with who serves it.
    pub fn queues(&self) -> Vec<QueueReport> {
        let mut queues: BTreeMap<&str, QueueReport> = BTreeMap::new();
        let mut slots: BTreeMap<&str, u64> = BTreeMap::new();
        for Beat { heartbeat, .. } in self.living() {
            for name in &heartbeat.queues {
                *slots.entry(name).or_default() += u64::from(heartbeat.slots);
            }
        }
        for stream in &self.streams {
            let Some(name) = &stream.queue else { continue };
            let queue = queues.entry(name).or_insert_with(|| QueueReport {
                name: name.clone(),
                waiting: 0,
                held: 0,
                bytes: 0,
                max_bytes: None,
                replicas: stream.replicas,
                served_by: Vec::new(),
                num_cpus: 1,
                resources: BTreeMap::new(),
                waiting_commands: 0,
                commands_run_by: Vec::new(),
                problem: None,
            });
            queue.problem = queue.problem.take().or_else(|| stream.problem());
            // Whatever was given back stays among what is held until it is delivered again.
            let held = stream.held.min(slots.get(name.as_str()).copied().unwrap_or(0));
            let waiting = stream.messages.saturating_sub(held);
            queue.waiting += waiting;
            if let Some(QueueBound { num_cpus, resources }) = stream.bound.clone() {
                (queue.num_cpus, queue.resources) = (num_cpus, resources.into_iter().collect());
            }
            queue.waiting_commands += if stream.is_of_commands { waiting } else { 0 };
            queue.held += held;
            queue.bytes += stream.bytes;
            queue.max_bytes = stream.max_bytes.map(|bytes| bytes + queue.max_bytes.unwrap_or(0));
            queue.replicas = queue.replicas.min(stream.replicas);
        }
        // A part of a queue that does not answer is somewhere.
        let is_answered = self.unanswered.is_empty();
        for name in self.living().flat_map(|beat| &beat.heartbeat.queues).filter(|_| is_answered) {
            queues.entry(name).or_insert_with(|| QueueReport {
                name: name.clone(),
                num_cpus: 1,
                problem: Some("its stream is gone: nothing can be put into it, and nobody gets its tasks".into()),
                ..QueueReport::default()
            });
        }
        for beat in self.living() {
            for name in &beat.heartbeat.queues {
                if let Some(queue) = queues.get_mut(name.as_str()) {
                    queue.served_by.push(beat.heartbeat.node_id.clone());
                    let commands = beat.heartbeat.shared_commands.then(|| beat.heartbeat.node_id.clone());
                    queue.commands_run_by.extend(commands);
                }
            }
        }
        let mut queues: Vec<_> = queues.into_values().collect();
        for queue in &mut queues {
            queue.served_by.sort();
            queue.commands_run_by.sort();
        }
        queues
    }

    /// Returns what people and programs are told of it.
    pub fn report(&self) -> ClusterReport {
        let mut nodes: Vec<_> = self
            .beats
            .iter()
            .map(|beat| NodeReport {
                node_id: beat.heartbeat.node_id.clone(),
                place_id: beat.place.to_string(),
                version: beat.heartbeat.version.clone(),
                is_alive: self.is_alive(beat),
                heard_ns: self.now_ns.saturating_sub(beat.stamp_ns),
                queues: beat.heartbeat.queues.clone(),
                slots: beat.heartbeat.slots,
                free: beat.heartbeat.free,
                shared_commands: beat.heartbeat.shared_commands,
                modules: beat
                    .heartbeat
                    .modules
                    .modules
                    .iter()
                    .map(|(name, digest)| ModuleReport {
                        name: name.clone(),
                        digest: digest.map(|digest| hex(&digest)),
                    })
                    .collect(),
                modules_left_out: beat.heartbeat.modules.left_out,
                clock_offset_ns: beat.heartbeat.clock.map(|clock| clock.offset_ns),
                clock_error_ns: beat.heartbeat.clock.map(|clock| clock.error_ns),
            })
            .collect();
        nodes.sort_by(|a, b| (!a.is_alive, &a.node_id, &a.place_id).cmp(&(!b.is_alive, &b.node_id, &b.place_id)));
        ClusterReport {
            address: self.server.address.clone(),
            engine: "nats-server".into(),
            version: self.server.version.clone(),
            replicas: self.replicas(),
            nodes,
            queues: self.queues(),
            unread_nodes: self.unread_beats,
            unanswered: self.unanswered.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn beat(place: u64, node_id: &str, stamp_ns: u64, queues: &[&str]) -> Beat {
        let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
        let version = "0.1.0".into();
        let node_id = node_id.into();
        let heartbeat = Heartbeat { life: 1, node_id, version, free: 1, slots: 2, queues, ..Heartbeat::default() };
        Beat { place: PlaceId(place), stamp_ns, heartbeat }
    }

    pub(crate) fn queue(name: &str, messages: u64, held: u64) -> StreamSeen {
        StreamSeen {
            name: format!("Q_{name}"),
            queue: Some(name.into()),
            replicas: 1,
            messages,
            held,
            bytes: messages * 100,
            max_bytes: Some(10_000),
            ..StreamSeen::default()
        }
    }

    #[test]
    fn queues_are_served_by_the_living_alone_and_the_dead_are_listed_last() {
        let now_ns = 100_000_000_000;
        let survey = Survey {
            server: ServerSeen { version: "2.9.10".into(), ..ServerSeen::default() },
            streams: vec![
                StreamSeen { replicas: 3, ..StreamSeen::default() },
                queue("b", 5, 2),
                queue("a", 1, 0),
                queue("a", 3, 1),
                queue("c", 9, 7),
            ],
            beats: vec![
                beat(1, "a", now_ns - SILENT_NS, &["a", "b"]),
                beat(2, "c", now_ns, &["a"]),
                // The clock was read before it came.
                beat(3, "b", now_ns + 5, &["a", "c", "gone"]),
            ],
            unread_beats: 1,
            unanswered: vec!["c".into()],
            missing: Vec::new(),
            now_ns,
        };
        let report = survey.report();
        let nodes: Vec<_> = report.nodes.iter().map(|node| (&*node.node_id, node.is_alive, node.heard_ns)).collect();
        assert_eq!(nodes, [("b", true, 0), ("c", true, 0), ("a", false, SILENT_NS)]);
        let queues: Vec<_> =
            report.queues.iter().map(|queue| (&*queue.name, queue.waiting, queue.held, queue.bytes)).collect();
        // Streams of one queue are added up; nobody serves `b`, and no more run than there are slots.
        assert_eq!(queues, [("a", 3, 1, 400), ("b", 5, 0, 500), ("c", 7, 2, 900)]);
        assert_eq!(report.queues[0].served_by, ["b", "c"]);
        assert_eq!((report.queues[0].max_bytes, report.queues[1].served_by.len()), (Some(20_000), 0));
        assert_eq!((report.replicas, report.unread_nodes, &*report.version), (3, 1, "2.9.10"));
        assert_eq!(report.unanswered, ["c"]);
        // Nobody says any more that a queue may be where nobody answers.
        let queues = Survey { unanswered: Vec::new(), ..survey }.queues();
        let stuck = queues.iter().filter(|queue| queue.problem.is_some()).map(|queue| &*queue.name);
        assert_eq!(stuck.collect::<Vec<_>>(), ["gone"]);
    }

    #[test]
    fn a_node_with_the_id_of_a_place_is_a_copy_if_that_does_not_know_its_life() {
        let now_ns = 100_000_000_000;
        let survey = Survey {
            server: ServerSeen::default(),
            streams: Vec::new(),
            beats: vec![beat(1, "a", now_ns, &[]), beat(2, "b", now_ns - SILENT_NS, &[])],
            unread_beats: 0,
            unanswered: Vec::new(),
            missing: Vec::new(),
            now_ns,
        };
        let is_other = |place, node_id, life| survey.other_of_place(PlaceId(place), node_id, life).is_some();
        assert!(!is_other(1, "a", 1), "the head before, which has just ended");
        assert!(is_other(1, "a", 0) && is_other(1, "other", 1));
        assert!(!is_other(2, "b", 0) && !is_other(3, "a", 0), "one that is silent, and another place");
    }
}
