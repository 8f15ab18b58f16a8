//! The state of the head for people and programs: its figures, failed hooks, warnings.

use tracer_core::count::{Count, Size};
use tracer_host::module_store::ModuleStore;
use tracer_ipc::protocol::{
    ActorReport, ActorState, HookFailure, HookReport, JournalCounts, METRICS_VERSION, MemoryReport, Metrics,
    QueueMemoryReport, ResourceReport, ServiceReport, ServiceSummary, SpanCounts, StatusReport, TaskCounts,
    WorkerCounts,
};
use tracer_reactor::Free;
use tracer_reactor::state::{self, Now, WorkerPhase};
use tracer_settings::otel;

use super::agent::AgentLink;
use super::front::Front;
use super::server::Server;

impl Server {
    /// Reads every figure of the head. Only here is anything counted for a report.
    fn metrics(&self, now: Now) -> Metrics {
        let workers = self.state.workers().values();
        let of_pool = || workers.clone().filter(|worker| !worker.is_of_actor());
        let count = |phase: WorkerPhase, is_idle: bool| {
            of_pool().filter(|worker| worker.phase() == phase && worker.leases().is_empty() == is_idle).count()
        };
        let waiting = of_pool().filter(|worker| worker.phase() == WorkerPhase::Ready && worker.is_waiting()).count();
        let journal = &self.io.kept.journal;
        Metrics {
            metrics_version: METRICS_VERSION,
            uptime_ns: now.monotonic_ns,
            workers: WorkerCounts {
                wanted: self.state.settings().workers_wanted,
                starting: self.state.workers().starting(),
                idle: count(WorkerPhase::Ready, true),
                busy: count(WorkerPhase::Ready, false) - waiting,
                waiting,
                actors: self.state.workers().of_actors(),
                lost: self.state.workers_lost(),
            },
            tasks: TaskCounts {
                ending: self.state.workers().values().filter(|worker| worker.ends_attempt()).count(),
                ..self.state.counts()
            },
            cpus: ResourceReport {
                name: "cpus".into(),
                total: self.state.settings().workers_wanted as u64,
                used: self.state.workers().slots() as u64,
            },
            resources: self.resource_reports(),
            queue_memory: Some(QueueMemoryReport {
                bytes: self.io.settings.queue_memory,
                used: self.state.open_bytes(),
                source: self.io.settings.queue_memory_source.clone(),
            }),
            spans: self.span_counts(),
            connections: self.io.clients.connections.len() as u64,
            journal: JournalCounts {
                written_bytes: journal.written(),
                synced_bytes: journal.synced(),
                is_failing: self.io.kept.failure.is_some(),
                is_sync_failing: journal.has_sync_failed(),
            },
            log_dropped_bytes: self.io.logs.dropped(),
            metrics_overflowed: self.io.figures.overflowed(&self.io.session_dir),
        }
    }

    /// Sums the spans that needed help or were lost, the spools of the living included.
    pub(super) fn span_counts(&self) -> SpanCounts {
        let living = self.io.workers.processes.values().map(|process| process.worker.claims.counts());
        let living = living.chain(self.io.services.span_counts());
        let handover = &self.io.stories.handover;
        let of_the_head = SpanCounts {
            handed_over: handover.delivered,
            waiting: handover.spans_waiting(),
            waiting_for_other_hooks: handover.spans_of_others(),
            given_up: self.io.stories.spans.given_up + handover.given_up,
            ..self.io.stories.spans
        };
        let all = living.fold(of_the_head, |sum, counts| SpanCounts {
            cut: sum.cut.saturating_add(counts.cut),
            dropped: sum.dropped.saturating_add(counts.dropped),
            untold: sum.untold.saturating_add(counts.untold),
            given_up: sum.given_up.saturating_add(counts.given_up),
            log_records_given_up: sum.log_records_given_up.saturating_add(counts.log_records_given_up),
            missed: sum.missed.saturating_add(counts.missed),
            forked: sum.forked.saturating_add(counts.forked),
            at_risk: sum.at_risk.saturating_add(counts.at_risk),
            ..sum
        });
        let lost = [all.dropped, all.lost_with_process, all.given_up, all.forked];
        SpanCounts { lost: lost.into_iter().fold(0, u64::saturating_add), ..all }
    }

    fn resource_reports(&self) -> Vec<ResourceReport> {
        let free = Free::of(&self.state);
        let report = |(resource, free): (&state::Resource, u64)| ResourceReport {
            name: resource.name.as_ref().into(),
            total: resource.total,
            used: resource.total - free,
        };
        self.state.settings().resources.iter().zip(free.resources).map(report).collect()
    }

    pub(super) fn hook_failures(&self) -> Vec<HookFailure> {
        self.state
            .workers()
            .iter()
            .filter_map(|(worker_id, worker)| {
                let reason = worker.hook_failure()?.to_owned();
                Some(HookFailure { worker_id, pid: worker.pid(), reason })
            })
            .collect()
    }

    /// Lists the actors, with the names that spans give to the versions of their modules.
    pub(super) fn actors(&self) -> Vec<ActorReport> {
        let store = ModuleStore::of_session(&self.io.session_dir);
        let mut actors = tracer_reactor::list_actors(&self.state);
        for actor in &mut actors {
            let version = actor.module_version.as_deref().and_then(|version| version.parse().ok());
            if let Some(version) = version {
                actor.module_version = Some(store.name(version));
                actor.is_outdated |= actor.state != ActorState::Dead && store.has_changed(version);
            }
        }
        actors
    }

    /// Lists what a person should know, most important first.
    fn warnings(
        &self,
        metrics: &Metrics,
        hook_failures: &[HookFailure],
        services: &[ServiceReport],
        now: Now,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(reason) = self.state.no_worker() {
            let again = tracer_reactor::when_again(&self.state, now);
            warnings.push(format!("no worker is started now: {reason}{again}"));
        }
        if let Some(again) = self.state.start_again() {
            warnings.push(format!("a worker {}; it is tried again every second", again.reason));
        }
        if let Some(first) = hook_failures.first() {
            warnings.push(format!(
                "the hook failed in {}, whose spans tracer writes itself: {}",
                Count(hook_failures.len(), "worker"),
                first.reason
            ));
        }
        if metrics.log_dropped_bytes > 0 {
            warnings.push(format!(
                "{} of output of workers were dropped from the logs of the session, which may take {} (--max-log-size)",
                Size(metrics.log_dropped_bytes),
                Size(self.io.settings.max_log_size)
            ));
        }
        if let Some((count, worker, pid, what)) = self.io.workers.disturbed {
            warnings.push(format!(
                "a worker was replaced, because {what} ({} so far, the last was worker {worker}, pid {pid}); \
                 a task may have used its connection to the head",
                Count(count, "worker")
            ));
        }
        if let Some((count, worker, pid)) = self.io.workers.damaged {
            warnings.push(format!(
                "a task wrote over the spool of its worker, or cut or removed it ({} so far, the last was worker {worker}, pid {pid}); \
                 spans that were only there are lost",
                Count(count, "worker")
            ));
        }
        if metrics.spans.unwritten > 0 {
            let spans = Count(metrics.spans.unwritten, "span");
            warnings.push(format!("{spans} of dead processes could not be written to the span folder"));
        }
        if let Some(reason) = &self.io.kept.failure {
            warnings.push(format!("the journal cannot be written, so no task is accepted: {reason}"));
        }
        warnings.extend(self.io.front.iter().flat_map(Front::warnings));
        warnings.extend(self.io.agent.iter().flat_map(AgentLink::warnings));
        if metrics.journal.is_sync_failing {
            warnings.push("the journal cannot be synced, so no task is acknowledged until it can".into());
        }
        warnings.extend(self.io.warnings.iter().cloned());
        for service in services {
            warnings.extend(service.warnings.iter().map(|text| format!("service `{}`: {text}", service.name)));
        }
        for actor in self.actors().iter().filter(|actor| actor.is_outdated) {
            let name = actor.name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
            let (id, module, type_name) = (actor.id, &actor.module, &actor.type_name);
            warnings.push(format!(
                "actor {id}{name} ({module}:{type_name}) runs an older build of its module; it gets the new one when it is created again"
            ));
        }
        warnings
    }

    /// Reports the head's state.
    pub(super) fn status(&mut self, now: Now) -> StatusReport {
        let services = self.service_rows(now);
        let (metrics, hook_failures) = (self.metrics(now), self.hook_failures());
        self.io.say_no_room_for_metrics(metrics.metrics_overflowed);
        let settings = &self.io.settings;
        let warnings = self.warnings(&metrics, &hook_failures, &services, now);
        StatusReport {
            version: tracer_ipc::VERSION.into(),
            head_pid: std::process::id(),
            head_restarts: self.io.restarts,
            node_id: self.io.node_id.clone(),
            session_dir: self.io.session_dir.clone(),
            spans_dir: settings.tracing.spans_dir.clone(),
            tracing_off: settings.tracing_off.clone(),
            hook: settings.tracing.hook.as_ref().map(|hook| HookReport {
                import_string: hook.import_string.clone(),
                contract: hook.contract,
                library: hook.library.clone(),
                description: settings.hook_description.clone(),
                sampling_ratio: settings.tracing.sampling_ratio,
                sampling: otel::sampling_line(settings.tracing.sampling_ratio),
                further: hook.further.clone(),
                failed_workers: hook_failures,
            }),
            metrics,
            http: self.io.front.as_ref().map(Front::report),
            engine: self.io.agent.as_ref().map(|agent| agent.report(tracer_reactor::shared_counts(&self.state))),
            worker_memory: self
                .io
                .settings
                .worker_memory
                .map(|bytes| MemoryReport { bytes, is_held_by_kernel: self.io.workers.groups.is_some() }),
            services: services.iter().map(ServiceSummary::from).collect(),
            warnings,
        }
    }
}
