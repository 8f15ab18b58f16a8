//! The start of a head: what a dead one has left is taken over, and what there is now is said.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use tracer_core::task::TaskId;
use tracer_ipc::identity::{DYING_LIMIT, wait_for_end};
use tracer_ipc::spool::Story;
use tracer_ipc::start_report::Started;
use tracer_ipc::{session, stored};
use tracer_reactor::state::{Progress, TASK_BYTES, Unfinished, WorkerPhase};
use tracer_reactor::{Effects, LeftClaim, LostAttempt};

use super::Server;
use crate::front::Front;
use crate::recovery::left_by_a_dead_head;
use crate::restore::{ReadBack, read_back};

impl Server {
    /// Takes over what a dead head left behind: its tasks, from the journal, and the story of its processes, from their spools.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        let (mut abandoned, mut dying) = (Vec::new(), Vec::new());
        // Those of this session are there if a head before this one had it; what has outlived that one writes on.
        let own = self.session.own_spools();
        let own = own.into_iter().filter(|spool| !self.io.services.has_spool(spool));
        for spool in self.session.leavings().into_iter().chain(own.collect::<Vec<_>>()) {
            let owner = Story::open(&spool).ok().filter(Story::is_owner_alive).and_then(|story| story.pid());
            match owner {
                // A worker dies with its head, and may be dying still; a driver may live on.
                Some(pid) if !session::is_of_head(&spool) || !wait_for_end(pid, DYING_LIMIT) => {
                    self.io.finish_at_end_of(pid, vec![spool.clone()], left_by_a_dead_head(Vec::new()));
                    // A worker that takes its time to die has begun what it has begun.
                    dying.push(spool);
                }
                _ => abandoned.push(spool),
            }
        }
        let mut claimed: HashMap<TaskId, LeftClaim> = HashMap::new();
        for (task, claim) in abandoned.iter().chain(&dying).flat_map(|spool| left_claims(spool)) {
            let latest = claimed.entry(task).or_insert(claim);
            if claim.attempt > latest.attempt {
                *latest = claim;
            }
        }
        let lost = self.restore(&claimed)?;
        for spool in &abandoned {
            let noted = Story::noted_worker(spool).map(|(pid, _)| pid);
            let pid = noted.or_else(|| Story::open(spool).ok()?.pid());
            let is_here = |lost: &&LostAttempt| claimed.get(&lost.task).map(|claim| claim.worker_pid) == pid;
            let attempts = lost.iter().filter(is_here).cloned().collect();
            self.io.finish_left(spool, &left_by_a_dead_head(attempts));
        }
        tracer_reactor::on_attempt_spans(&mut self.state, std::mem::take(&mut self.io.stories.attempt_spans));
        self.io.stories.handover.take_over(&self.session.handovers_left());
        if self.io.restarts > 0 {
            // The head before this one had it in this very folder.
            self.io.stories.handover.look();
        }
        self.found.recovered = self.span_counts();
        Ok(())
    }

    /// Reads the journal back. Returns the attempts that were going on when the head died.
    pub(super) fn restore(&mut self, claimed: &HashMap<TaskId, LeftClaim>) -> io::Result<Vec<LostAttempt>> {
        let now = self.now();
        let ReadBack { next_job, started, services, unread } = read_back(&self.io.kept.journal, &mut self.state)?;
        self.io.clients.next_job = self.io.clients.next_job.max(next_job);
        unread.into_iter().for_each(|line| self.io.log(line));
        self.found.services = services;
        self.state.reserve_ids(self.found.next_task);
        let lost = tracer_reactor::on_restored(&mut self.state, &mut self.io, claimed, &started, now);
        let needed = tracer_reactor::value_files(&self.state);
        stored::remove_others(&stored::folder(&self.io.session_dir), |name| needed.contains(name));
        self.found.restored = self.state.counts().waiting;
        let is_again = |lost: &&LostAttempt| {
            self.state.task(lost.task).is_some_and(|task| !matches!(task.progress(), Progress::Ended(_)))
        };
        self.found.again = lost.iter().filter(is_again).count();
        self.found.lost = lost.len() - self.found.again;
        self.io.write_journal();
        Ok(lost)
    }

    /// Writes a new journal when most of the old one is about tasks that nobody remembers.
    pub(super) fn keep_journal_short(&mut self) {
        let open = self.state.counts().waiting + self.state.counts().leased;
        let open_bytes = self.state.open_bytes().saturating_sub(open as u64 * TASK_BYTES);
        if !self.io.kept.journal.needs_compaction(open_bytes) {
            return;
        }
        if let Err(error) = self.io.kept.journal.begin_compaction() {
            self.io.log(format!("the journal cannot be compacted: {error}"));
        }
    }

    pub(super) fn say_started(&mut self, on_started: &mut dyn FnMut(&Started, &std::path::Path)) {
        let starting = self.state.workers().starting() > 0;
        let missing =
            self.state.workers().len() < self.state.settings().workers_wanted && self.state.no_worker().is_none();
        if self.has_said_started || ((starting || missing) && self.state.no_worker().is_none()) {
            return;
        }
        self.has_said_started = true;
        self.state.begin();
        let started = Started {
            head_pid: std::process::id(),
            session_dir: self.io.session_dir.clone(),
            workers_ready: self.state.workers().values().filter(|worker| worker.phase() == WorkerPhase::Ready).count(),
            hook_failures: self.hook_failures(),
            recovered: self.found.recovered,
            tasks_restored: self.found.restored,
            tasks_again: self.found.again,
            tasks_lost: self.found.lost,
            http: self.io.front.as_ref().map(Front::report),
            no_worker: self.state.no_worker().map(str::to_owned),
            is_hook_to_blame: self.state.is_hook_to_blame(),
            warnings: self.found.warnings.iter().cloned().chain(self.public_services()).collect(),
            put_aside: self.found.put_aside.clone(),
        };
        on_started(&started, &self.io.session_dir);
        // Also when some are ready: whoever asked for more is told that it did not start, and waits for this end.
        if self.state.no_worker().is_some() {
            // What another head had accepted waits for one that can start.
            self.io.kept.journal.suspend();
            let now = self.now();
            self.begin_stop(None, Duration::ZERO, Unfinished::Kept, true, now);
        }
    }
}

/// Returns what the worker whose spool this is had claimed.
fn left_claims(spool: &Path) -> Vec<(TaskId, LeftClaim)> {
    let Some(worker) = session::worker_of_spool(spool) else { return Vec::new() };
    let claimed = match Story::open(spool) {
        Ok(story) => story.pid().map(|pid| (pid, story.claimed_tasks())),
        // A task has removed it, or written over it.
        Err(_) => Story::claimed_tasks_without_spool(spool),
    };
    let Some((worker_pid, claims)) = claimed else { return Vec::new() };
    claims.into_iter().map(|(task, attempt)| (TaskId(task), LeftClaim { attempt, worker, worker_pid })).collect()
}
