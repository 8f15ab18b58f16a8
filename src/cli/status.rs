//! `tracer status`.

use tracer_client::driver::Driver;
use tracer_core::count::{Count, Elapsed, Size};
use tracer_core::exit;
use tracer_ipc::protocol::{
    EngineReport, FurtherHook, Metrics, OtlpCounts, Query, Reply, ServiceState, ServiceSummary, StatusReport,
    WorkerCounts,
};
use tracer_web::http_api::otlp_counts;

use super::connect::unexpected_reply;
use super::{CommandResult, FormatArgs, PlaceArgs, cluster, hints, report, restart};

/// Show the state of the head, its workers, its tasks and its tracing
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer status --format json | jq .tasks")]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = match Driver::connect(&args.place.temp_dir()) {
        Err(error) if restart::is_of_another_version(&error) => {
            return restart::show_status_of_another(&args.place.temp_dir(), args.format.format);
        }
        connected => connected?,
    };
    let Reply::Status(mut status) = driver.query(&Query::Status)? else { return Err(unexpected_reply()) };
    if let Some(engine) = status.engine.as_mut().filter(|engine| engine.is_reachable) {
        let Reply::Cluster(found) = driver.query(&Query::Cluster)? else { return Err(unexpected_reply()) };
        match found {
            Ok(cluster) => engine.cluster = Some(cluster),
            Err(why) => status.warnings.push(why),
        }
    }
    otlp_counts::add(&mut status);
    for warning in &mut status.warnings {
        *warning = hints::with_place(warning).into_owned();
    }
    report::value(args.format.format, &*status, |status| hints::with_place(&render(status)).into_owned());
    Ok(exit::OK)
}

/// Returns a hook that gets the finished spans of the first, for people.
pub(super) fn further_hook(hook: &FurtherHook) -> String {
    let place = hook.library.as_ref().map_or_else(|| "built in".into(), |path| format!("from {}", path.display()));
    format!("\nand to {}, {place}\n{}", hook.import_string, hook.description)
}

fn worker_line(workers: &WorkerCounts) -> String {
    let running = workers.idle + workers.busy + workers.waiting;
    let mut parts = vec![format!("{} idle", workers.idle), format!("{} busy", workers.busy)];
    if workers.waiting > 0 {
        parts.push(format!("{} waiting for tasks of their tasks", workers.waiting));
    }
    let mut line = format!("{running} running ({})", parts.join(", "));
    match workers.actors {
        0 => {}
        1 => line.push_str(", 1 of them hosts an actor"),
        actors => line.push_str(&format!(", {actors} of them host actors")),
    }
    if workers.starting > 0 {
        line.push_str(&format!(", {} starting", workers.starting));
    }
    let missing = (workers.wanted + workers.actors).saturating_sub(running + workers.starting);
    if missing > 0 {
        line.push_str(&format!(", {missing} more wanted"));
    }
    if workers.lost > 0 {
        line.push_str(&format!(", {} lost so far", workers.lost));
    }
    line
}

fn service_line(service: &ServiceSummary) -> String {
    let ServiceSummary { name, state, url, ready, num_replicas, ongoing, waiting, lost, .. } = service;
    let replicas = Count(*num_replicas, "replica");
    if *state == ServiceState::Failed {
        return format!("{name}: failed, see `tracer serve status`");
    }
    let mut line = format!("{name}: {}, {url}, {ready} of {replicas} ready", state.name().replace('_', " "));
    if *ongoing > 0 || *waiting > 0 {
        line.push_str(&format!(", {} going on, {waiting} waiting", Count(*ongoing, "request")));
    }
    if *lost > 0 {
        line.push_str(&format!(", {lost} lost so far"));
    }
    line
}

/// Describes the engine that the head has joined, and its queues.
fn engine_lines(engine: &EngineReport) -> [(&'static str, String); 2] {
    let state = match (engine.is_reachable, &*engine.text) {
        (true, text) => format!(", {text}"),
        // A warning has all of it.
        (false, text) => format!(", cannot be reached: {}", text.lines().next().unwrap_or_default()),
    };
    let mut serves = served_queues(&engine.queues);
    if engine.shared_commands {
        serves.push_str(", commands too");
    }
    let (shared, imports) = (Count(engine.shared, "task"), Count(engine.imports, "task"));
    [
        ("engine", format!("{}{state}, place {}", engine.address, engine.place_id)),
        ("queues", format!("{serves}; {shared} of this node in queues, {imports} of queues here")),
    ]
}

/// Says which queues a head serves, each with the most tasks at a time.
pub(super) fn served_queues<'q>(queues: impl IntoIterator<Item = (&'q String, &'q u32)>) -> String {
    let queues = queues.into_iter().map(|(name, slots)| match slots {
        0 => name.clone(),
        slots => format!("{name} (up to {slots})"),
    });
    match queues.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "serves none".to_owned(),
        queues => format!("serves {queues}"),
    }
}

/// Returns a further line on what came by OTLP; empty if nothing did.
fn otlp_line(counts: &OtlpCounts) -> String {
    let OtlpCounts { accepted_requests, refused_requests, spans, log_records, metric_points, rejected, .. } = *counts;
    if accepted_requests + refused_requests == 0 {
        return String::new();
    }
    let mut line = format!(
        "\nreceived {}, {}, {} in {} ({})",
        Count(spans, "span"),
        Count(log_records, "log record"),
        Count(metric_points, "metric point"),
        Count(accepted_requests, "request"),
        Size(counts.written_bytes)
    );
    for (count, noun, what) in [(rejected, "item", "rejected"), (refused_requests, "request", "refused")] {
        if count > 0 {
            line.push_str(&format!(", {} {what}", Count(count, noun)));
        }
    }
    line
}

fn render(status: &StatusReport) -> String {
    let tracing = match &status.hook {
        None => match &status.tracing_off {
            Some(reason) => format!("off: {reason}"),
            None => "off".to_owned(),
        },
        Some(hook) => {
            let place =
                hook.library.as_ref().map_or_else(|| "built in".into(), |path| format!("from {}", path.display()));
            let sampling = &hook.sampling;
            let further: String = hook.further.iter().map(further_hook).collect();
            format!("{}, {place}\n{}\n{sampling}{further}", hook.import_string, hook.description)
        }
    };
    let Metrics { workers, tasks, spans, .. } = &status.metrics;
    let ending = if tasks.ending > 0 { format!(" ({} of them being ended)", tasks.ending) } else { String::new() };
    let cancelled = if tasks.cancelled > 0 { format!(", {} cancelled", tasks.cancelled) } else { String::new() };
    let mut fields = vec![
        (
            "head",
            format!(
                "tracer {}, pid {}, up {}{}",
                status.version,
                status.head_pid,
                Elapsed::from_nanos(status.metrics.uptime_ns),
                restarts(status.head_restarts)
            ),
        ),
        ("node", status.node_id.clone()),
        ("session", status.session_dir.display().to_string()),
        ("tracing", tracing),
        ("workers", worker_line(workers)),
        (
            "tasks",
            format!(
                "{} queued, {} running{}, {} succeeded, {} failed{}",
                tasks.waiting, tasks.leased, ending, tasks.succeeded, tasks.failed, cancelled
            ),
        ),
    ];
    // Slots alone are what the workers say.
    let is_told = !status.metrics.resources.is_empty() || status.metrics.cpus.used > (workers.busy as u64);
    if is_told {
        let all = std::iter::once(&status.metrics.cpus).chain(&status.metrics.resources);
        let used: Vec<_> = all.map(|one| format!("{} {} of {}", one.name, one.used, one.total)).collect();
        fields.push(("in use", used.join(", ")));
    }
    if !status.services.is_empty() {
        fields.push(("services", status.services.iter().map(service_line).collect::<Vec<_>>().join("\n")));
    }
    if let Some(http) = &status.http {
        if !http.is_metrics_only {
            fields.push(("http", format!("{}, token in {}", http.url, http.token_path.display())));
        }
        fields.push(("metrics", format!("{}/metrics, token in {}", http.url, http.metrics_token_path.display())));
    }
    if let Some(http) = status.http.as_ref().filter(|http| http.receives_otlp) {
        let counts = http.otlp.as_ref().map(otlp_line).unwrap_or_default();
        fields.push(("otlp", format!("{}, token in {}{counts}", http.url, http.otlp_token_path.display())));
    }
    if let Some(engine) = &status.engine {
        fields.extend(engine_lines(engine));
        fields.extend(engine.cluster.as_deref().into_iter().flat_map(cluster::status_lines));
    }
    if let Some(memory) = &status.worker_memory {
        let how = if memory.is_held_by_kernel { "held by a control group" } else { "watched by the head" };
        fields.push(("memory", format!("at most {} for each worker, {how}", Size(memory.bytes))));
    }
    if let Some(queue) = &status.metrics.queue_memory {
        let text = format!("{} of memory used, up to {}, {}", Size(queue.used), Size(queue.bytes), queue.source);
        fields.push(("queue", text));
    }
    let completed = spans.recovered + spans.closed;
    if completed > 0 {
        fields.push(("spans", format!("{} of dead processes completed", Count(completed, "span"))));
    }
    if spans.handed_over > 0 {
        fields
            .push(("handed over", format!("{} to the exporter of another process", Count(spans.handed_over, "span"))));
    }
    if spans.waiting > 0 {
        let waiting = Count(spans.waiting, "span");
        fields.push((
            "undelivered",
            format!("{waiting}, waiting for an exporter that accepts them (see `tracer hooks undelivered`)"),
        ));
    }
    if spans.waiting_for_other_hooks > 0 {
        let waiting = Count(spans.waiting_for_other_hooks, "span");
        fields.push((
            "undelivered",
            format!("{waiting} of hooks that this head does not have (see `tracer hooks undelivered`)"),
        ));
    }
    let counts = [
        ("lost", spans.dropped, "span", "could not be written by the hook, whose memory was full"),
        ("lost", spans.lost_with_process, "span", "died with the process that had them in its memory"),
        ("lost", spans.given_up, "span", "given up: no exporter took them"),
        ("lost", spans.forked, "span", "begun in processes that tasks had forked, which have no spool"),
        ("lost", spans.cut, "attribute, event or link", "did not fit the spool"),
        ("not forwarded", spans.missed, "span", "found no room in the spool, so additional hooks did not get them"),
        ("at risk", spans.at_risk, "span", "not written yet, and in no spool: lost if the process dies now"),
        ("unknown", spans.untold, "span", "left the spool, and the hook does not tell whether it delivered them"),
        (
            "not exported",
            spans.log_records_given_up,
            "log record",
            "given up: no exporter took them; they are in the files of log records",
        ),
        (
            "metrics",
            status.metrics.metrics_overflowed,
            "value",
            "counted with `otel.metric.overflow`: the disk had no room for series of their own",
        ),
        (
            "unwritten",
            spans.unwritten,
            "span",
            "of dead processes: the span file cannot be written; the next head tries again",
        ),
    ];
    for (label, count, noun, what) in counts {
        if count > 0 {
            fields.push((label, format!("{} {what}", Count(count, noun))));
        }
    }
    for warning in &status.warnings {
        fields.push(("warning", warning.clone()));
    }
    report::fields(&fields)
}
/// Returns how often the head has died and was followed by another.
fn restarts(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => ", restarted once".into(),
        count => format!(", restarted {count} times"),
    }
}
