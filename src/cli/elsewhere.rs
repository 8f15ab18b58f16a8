//! Tasks of queues whose lines the logs of other nodes have.

use std::collections::BTreeMap;

use tracer_client::driver::Driver;
use tracer_core::count::Count;
use tracer_core::names;
use tracer_ipc::protocol::{TaskFilter, TaskPages, TaskReport};
use tracer_trace::{Kind, Span, Trace};

use super::{CommandError, report};

/// Place where a task of a queue runs that was submitted here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    /// Nobody, for it waits.
    Nobody,
    Here,
    Node(String),
    /// A node that nobody here remembers any more.
    Forgotten,
}

/// The tasks of a trace that were submitted to queues here, by their ids in the cluster.
#[derive(Debug, Default)]
pub(super) struct Submitted(BTreeMap<String, Holder>);

impl Submitted {
    /// Finds those that the spans of a trace tell of.
    pub(super) fn of_spans(trace: &Trace) -> Submitted {
        let mut found = Submitted::default();
        let text = |value: Option<serde_json::Value>| value.and_then(|value| value.as_str().map(str::to_owned));
        let id_of = |span: &Span| text(span.attribute(names::CLUSTER_TASK_ID));
        let of_kind = |kind| trace.spans.iter().filter(move |span| span.kind == kind);
        for id in of_kind(Kind::Producer).filter_map(id_of) {
            found.0.insert(id, Holder::Forgotten);
        }
        if found.0.is_empty() {
            return found;
        }
        for span in of_kind(Kind::Consumer) {
            if let Some(holder) = id_of(span).and_then(|id| found.0.get_mut(&id))
                && let Some(node_id) = text(span.attribute(names::NODE_ID))
            {
                *holder = Holder::Node(node_id);
            }
        }
        found
    }

    /// Completes them with what the head here knows of the tasks of traces whose ids begin so.
    pub(super) fn ask(&mut self, driver: &mut Driver, beginnings: &[&str]) -> Result<(), CommandError> {
        let here = driver.welcome().node_id.clone();
        let whole = beginnings.first().filter(|id| beginnings.len() == 1 && id.len() == 32);
        let which = TaskFilter { trace_id: whole.map(|id| (*id).to_owned()), ..TaskFilter::default() };
        let mut pages = TaskPages::new(usize::MAX, which);
        let is_of_trace = |task: &&TaskReport| {
            task.trace_id.as_deref().is_some_and(|id| beginnings.iter().any(|beginning| id.starts_with(beginning)))
        };
        while let Some(tasks) = driver.next_tasks(&mut pages)? {
            for task in tasks.iter().filter(is_of_trace) {
                if let Some(id) = &task.cluster_task_id {
                    let holder = match &task.node_id {
                        Some(node_id) => Holder::Node(node_id.clone()),
                        None if self.0.contains_key(id) && task.ended_unix_nano.is_some() => continue,
                        None => Holder::Nobody,
                    };
                    self.0.insert(id.clone(), holder);
                }
            }
        }
        for holder in self.0.values_mut().filter(|holder| **holder == Holder::Node(here.clone())) {
            *holder = Holder::Here;
        }
        Ok(())
    }

    /// Takes the nodes that spans name for this one, where no head says which this is.
    pub(super) fn take_as_here(&mut self) {
        for holder in self.0.values_mut().filter(|holder| matches!(holder, Holder::Node(_))) {
            *holder = Holder::Here;
        }
    }

    /// Says which nodes have the lines that are not here; false if all are. `trace` is the id of their trace, or its beginning.
    pub(super) fn report(&self, trace: &str) -> bool {
        let mut by_node: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
        for (id, holder) in &self.0 {
            match holder {
                Holder::Nobody | Holder::Here => {}
                Holder::Node(node_id) => by_node.entry(Some(node_id)).or_default().push(id),
                Holder::Forgotten => by_node.entry(None).or_default().push(id),
            }
        }
        let is_any = !by_node.is_empty();
        for (node_id, ids) in by_node {
            let (what, command) = match ids.as_slice() {
                [id] => (format!("task {id}"), format!("tracer logs {id}")),
                ids => (Count(ids.len(), "task").to_string(), format!("tracer logs --trace {trace}")),
            };
            let node = match node_id {
                Some(node_id) => format!("the node `{node_id}`"),
                None => "the node that ran it, which is not known here any more".to_owned(),
            };
            report::talk(&format!(
                "what {what} of this trace wrote is in the log of {node}\n(hint: `{command}` there)"
            ));
        }
        is_any
    }
}
