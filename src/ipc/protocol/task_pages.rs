//! A list of tasks that comes in several answers, so that neither the head nor whoever asks has all of them in memory.

use super::{Query, TaskFilter, TaskList, TaskReport};
use tracer_core::task::TaskId;

impl TaskList {
    /// The most tasks of one answer.
    pub const LIMIT: usize = 1000;
    /// Bytes of texts behind which an answer ends.
    pub const BYTES: usize = 1 << 20;
}

/// Tasks that are asked for page by page, newest first: further ones begin before the last of a page, so that none comes twice.
#[derive(Clone, Debug)]
pub struct TaskPages {
    which: TaskFilter,
    /// Number of tasks that are still wanted.
    wanted: usize,
    before: Option<TaskId>,
    is_at_end: bool,
    /// Counts of what the answers until now leave out.
    rest: TaskList,
}

impl TaskPages {
    /// Returns a list of which nothing has been asked for.
    pub fn new(limit: usize, which: TaskFilter) -> TaskPages {
        let rest = TaskList { tasks: Vec::new(), left_out: 0, filtered_out: 0, forgotten: 0 };
        TaskPages { which, wanted: limit, before: None, is_at_end: false, rest }
    }

    /// Returns the question for the next page; none behind the last one.
    pub fn next_query(&self) -> Option<Query> {
        let query = Query::Tasks { limit: self.wanted, which: self.which.clone(), before: self.before };
        (!self.is_at_end).then_some(query)
    }

    /// Takes the answer to the last question, and returns its tasks.
    pub fn take(&mut self, page: TaskList) -> Vec<TaskReport> {
        let TaskList { tasks, left_out, filtered_out, forgotten } = page;
        match self.before {
            None => self.rest = TaskList { tasks: Vec::new(), left_out, filtered_out, forgotten },
            Some(_) if tasks.is_empty() => self.rest.left_out = 0,
            // Others may have come to it meanwhile.
            Some(_) => self.rest.left_out = self.rest.left_out.saturating_sub(tasks.len()),
        }
        self.wanted = self.wanted.saturating_sub(tasks.len());
        self.before = tasks.last().map(|last| last.id).or(self.before);
        self.is_at_end = self.wanted == 0 || self.rest.left_out == 0 || tasks.is_empty();
        tasks
    }

    /// Returns what the list leaves out, without tasks.
    pub fn rest(&self) -> &TaskList {
        &self.rest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(ids: &[u64], left_out: usize) -> TaskList {
        let report = |id: &u64| {
            let report = json!({
                "id": id, "name": null, "target": "a.f", "state": "waiting", "job_id": 1, "trace_id": null, "attempt": 0, "attempts": [],
                "worker_id": null, "worker_pid": null, "submitted_unix_nano": 1, "started_unix_nano": null, "ended_unix_nano": null,
                "result": null, "failure": null, "message": null,
            });
            serde_json::from_value(report).expect("it has all fields")
        };
        TaskList { tasks: ids.iter().map(report).collect(), left_out, filtered_out: 3, forgotten: 2 }
    }

    fn asked(pages: &TaskPages) -> Option<(usize, Option<u64>)> {
        match pages.next_query()? {
            Query::Tasks { limit, before, .. } => Some((limit, before.map(|id| id.0))),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_follow_each_other_until_there_are_as_many_as_wanted() {
        let mut pages = TaskPages::new(5, TaskFilter::default());
        assert_eq!(asked(&pages), Some((5, None)));
        assert_eq!(pages.take(page(&[9, 8], 6)).len(), 2);
        assert_eq!(asked(&pages), Some((3, Some(8))));
        pages.take(page(&[6, 4], 0));
        assert_eq!(asked(&pages), Some((1, Some(4))));
        pages.take(page(&[3], 0));
        assert_eq!(asked(&pages), None);
        let rest = pages.rest();
        assert_eq!((rest.left_out, rest.filtered_out, rest.forgotten), (3, 3, 2));
    }

    #[test]
    fn a_list_ends_where_there_are_no_more() {
        let mut pages = TaskPages::new(100, TaskFilter::default());
        pages.take(page(&[9, 8], 1));
        assert_eq!(asked(&pages), Some((98, Some(8))));
        // It was forgotten meanwhile.
        pages.take(page(&[], 0));
        assert_eq!((asked(&pages), pages.rest().left_out), (None, 0));
        let mut none_wanted = TaskPages::new(0, TaskFilter::default());
        assert_eq!(asked(&none_wanted), Some((0, None)));
        none_wanted.take(page(&[], 7));
        assert_eq!((asked(&none_wanted), none_wanted.rest().left_out), (None, 7));
    }
}
