//! Findings about modules: those that are not the same on all nodes, and those that a node lacks and another one of its queue has.

use std::collections::{BTreeMap, BTreeSet};

use tracer_ipc::protocol::Digest;

use super::{Finding, Severity};
use crate::digest::short;
use crate::message::Heartbeat;
use crate::survey::Survey;

/// Returns what is wrong with the modules of the living nodes. Of a module that no node has read yet nothing is known, nor whether it is one.
pub(super) fn of_modules(survey: &Survey) -> Vec<Finding> {
    let nodes: Vec<&Heartbeat> = survey.living().map(|beat| &beat.heartbeat).collect();
    let mut builds: BTreeMap<&str, BTreeMap<Digest, BTreeSet<&str>>> = BTreeMap::new();
    for node in &nodes {
        for (module, digest) in &node.modules.modules {
            if let Some(digest) = digest {
                builds.entry(module).or_default().entry(*digest).or_default().insert(&node.node_id);
            }
        }
    }
    let mut findings = Vec::new();
    for (module, builds) in &builds {
        if builds.len() > 1 {
            findings.push(differs(module, builds));
        }
        for (queue, lacking) in lacking(module, builds, &nodes) {
            findings.push(lacks(module, queue, &lacking));
        }
    }
    findings
}

fn differs(module: &str, builds: &BTreeMap<Digest, BTreeSet<&str>>) -> Finding {
    let build = |(digest, nodes): (&Digest, &BTreeSet<&str>)| format!("{} on {}", short(digest), names(nodes));
    let builds: Vec<_> = builds.iter().map(build).collect();
    Finding::new(
        Severity::Warning,
        "modules_differ",
        format!("the module `{module}` is not the same on all nodes, by SHA-256: {}", builds.join("; ")),
        format!("copy the same `lib{module}.so` into the module folders of each: the next task runs it"),
    )
}

/// Returns by queue the nodes that serve it and lack a module which another node of it has.
fn lacking<'a>(
    module: &str,
    builds: &BTreeMap<Digest, BTreeSet<&str>>,
    nodes: &[&'a Heartbeat],
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let has = |node: &Heartbeat| builds.values().any(|of_build| of_build.contains(&*node.node_id));
    let mut lacking: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for queue in nodes.iter().filter(|node| has(node)).flat_map(|node| &node.queues) {
        let of_queue = nodes.iter().filter(|node| node.queues.contains(queue) && !node.modules.may_have(module));
        for node in of_queue {
            lacking.entry(&**queue).or_default().insert(&*node.node_id);
        }
    }
    lacking
}

fn lacks(module: &str, queue: &str, nodes: &BTreeSet<&str>) -> Finding {
    Finding::new(
        Severity::Warning,
        "module_lacking",
        format!("{} serves the queue `{queue}` and lacks the module `{module}`, which others of it have", names(nodes)),
        format!("copy `lib{module}.so` into a module folder there, or start it with that folder in --module-path"),
    )
}

fn names(nodes: &BTreeSet<&str>) -> String {
    nodes.iter().map(|node| format!("`{node}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ListedModules;
    use crate::survey::ServerSeen;
    use crate::survey::tests::beat;

    type Listed<'a> = &'a [(&'a str, Option<u8>)];

    fn found(nodes: &[(&str, &[&str], Listed<'_>, u32)]) -> Vec<String> {
        let beats = nodes.iter().zip(1..).map(|((node_id, queues, modules, left_out), place)| {
            let mut beat = beat(place, node_id, 1, queues);
            let digest = |number: u8| [number; 32];
            let modules = modules.iter().map(|(name, number)| ((*name).to_owned(), number.map(digest))).collect();
            beat.heartbeat.modules = ListedModules { modules, left_out: *left_out };
            beat
        });
        let (streams, unanswered) = (Vec::new(), Vec::new());
        let server = ServerSeen::default();
        let survey = Survey {
            server,
            streams,
            unanswered,
            missing: Vec::new(),
            beats: beats.collect(),
            unread_beats: 0,
            now_ns: 1,
        };
        of_modules(&survey).into_iter().map(|finding| format!("{}: {}", finding.code, finding.text)).collect()
    }

    #[test]
    fn nodes_that_have_the_same_have_nothing_to_mend() {
        let same: Listed<'_> = &[("m", Some(1)), ("n", None)];
        assert_eq!(found(&[("a", &["q"], same, 0), ("b", &["q"], same, 0)]), [""; 0]);
        // Not read yet, left out, of another queue, or none that anybody runs.
        let other: Listed<'_> = &[("m", None)];
        assert_eq!(found(&[("a", &["q"], same, 0), ("b", &["q"], other, 0)]), [""; 0]);
        assert_eq!(found(&[("a", &["q"], same, 0), ("b", &["q"], &[], 1)]), [""; 0]);
        assert_eq!(found(&[("a", &["q"], same, 0), ("b", &["r"], &[], 0)]), [""; 0]);
        assert_eq!(found(&[("a", &["q"], other, 0), ("b", &["q"], &[], 0)]), [""; 0]);
    }

    #[test]
    fn other_builds_and_lacking_modules_are_told_with_their_nodes() {
        let nodes: [(&str, &[&str], Listed<'_>, u32); 4] = [
            ("a", &["q"], &[("m", Some(0x1a))], 0),
            ("b", &["q"], &[("m", Some(0x2b))], 0),
            ("c", &["q"], &[("m", Some(0x2b))], 0),
            ("d", &["q"], &[], 0),
        ];
        assert_eq!(
            found(&nodes),
            [
                "modules_differ: the module `m` is not the same on all nodes, by SHA-256: 1a1a1a1a1a1a on `a`; 2b2b2b2b2b2b on `b`, `c`",
                "module_lacking: `d` serves the queue `q` and lacks the module `m`, which others of it have",
            ]
        );
    }
}
