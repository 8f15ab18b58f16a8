//! Costs of tracer from the outside: whole processes, a whole cluster, everything through the doors that users have.
//!
//! A user chooses a launcher by how long it takes until work runs, how much a task costs beyond the work itself, and what
//! tracing adds to that. So every figure is taken untraced and traced, and beside it stands its *floor*: what the bare
//! operating system needs for the least that the figure must do, measured in the same run on the same machine. The ratio of
//! the two carries over to other machines; the figures themselves do not. Where a peer was measured, its figure is shown too.
//!
//! ```text
//! cargo bench --bench end_to_end                    # everything, some minutes
//! cargo bench --bench end_to_end -- --quick         # does it work at all
//! cargo bench --bench end_to_end -- --only round_trip --json figures.json
//! cargo bench --bench end_to_end -- --only signals  # log records, metrics and OTLP in, each beside what else does it
//! cargo bench --bench end_to_end -- --only shared   # tasks of queues, beside what their engine alone takes
//! cargo bench --bench end_to_end -- --only peers    # Ray, Dask, HyperQueue, GNU parallel, xargs beside it, where they are installed
//! cargo bench --profile counted --bench end_to_end -- --only untraced    # against a build without tracing code, which it makes
//! ```
//!
//! Nothing is asserted about time. It does fail when work is lost: a task without its result or without its two spans; and when a task takes
//! more system calls than is said.

mod cluster;
mod cpu_time;
mod death;
mod driver;
mod floor;
mod http;
mod peer;
mod peers;
mod process;
mod queued;
mod report;
mod seeing;
mod shared;
mod signals;
mod spans;
mod steps;
mod strace;
mod system_calls;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cluster::{Cluster, HAS_SPINNING, Hook, Place};
use process::ProcessFigures;
use report::{Figure, Report, Variant};

/// Error of a measurement. It names what was being done.
type Failure = Box<dyn Error>;

/// Time that the cluster rests before its memory is measured: it gives back what many tasks took.
const REST: Duration = Duration::from_millis(500);

/// Turns of commands in each cluster.
const COMMAND_TURNS: usize = 5;

/// Numbers of repetitions.
#[derive(Clone, Copy, Debug)]
struct Effort {
    starts: usize,
    submits: usize,
    spawns: usize,
    tasks: usize,
    /// Tasks of a queue in a row, and those that must not be started twice.
    shared: usize,
    shared_once: usize,
    /// Clusters of each kind, where one differs from the next; the median of them is shown.
    runs: usize,
    round_trips: usize,
    /// Tasks that wait at once.
    queued: usize,
    /// Tasks that one task submits.
    nested: usize,
    large: usize,
    commands: usize,
    /// Tasks that make spans, and how often they all are run, in how many clusters; the cheapest run is shown.
    span_tasks: usize,
    span_runs: usize,
    span_clusters: usize,
    /// Workers that die, in each way.
    deaths: usize,
    /// Time that a receiver of OTLP is sent spans.
    otlp: Duration,
}

const FULL: Effort = Effort {
    starts: 15,
    submits: 50,
    spawns: 200,
    tasks: 50_000,
    shared: 300_000,
    shared_once: 20_000,
    runs: 5,
    round_trips: 2_000,
    queued: 1_000_000,
    nested: 10_000,
    large: 100,
    commands: 2_000,
    span_tasks: 20,
    span_runs: 5,
    span_clusters: 8,
    deaths: 100,
    otlp: Duration::from_secs(4),
};

const QUICK: Effort = Effort {
    starts: 2,
    submits: 3,
    spawns: 10,
    tasks: 2_000,
    shared: 2_000,
    shared_once: 100,
    runs: 1,
    round_trips: 50,
    queued: 10_000,
    nested: 1_000,
    large: 10,
    commands: 10,
    span_tasks: 2,
    span_runs: 1,
    span_clusters: 1,
    deaths: 3,
    otlp: Duration::from_millis(400),
};

/// Measures one thing, and puts it into the report of the run.
type Measure = fn(&mut Run) -> Result<(), Failure>;

/// Measurements, by the names that `--only` takes.
const GROUPS: [(&str, Measure); 19] = [
    ("start", start),
    ("submit", submit),
    ("throughput", throughput),
    ("workers", workers),
    ("round_trip", round_trip),
    ("sparse", sparse),
    ("queued", queued),
    ("nested", nested),
    ("actor", actor),
    ("large", large),
    ("command", command),
    ("span", span),
    ("death", death),
    ("system_calls", system_calls),
    ("seeing", seeing::measure),
    ("signals", signals::measure),
    ("shared", shared::measure),
    ("untraced", untraced),
    ("peers", peers::measure),
];

/// Measurements that are left out unless they are named: one builds everything a second time, and the other runs what others made, where it is installed.
const ON_REQUEST: [&str; 2] = ["untraced", "peers"];

/// Options of the command line.
struct Options {
    effort: Effort,
    is_quick: bool,
    json: PathBuf,
    only: Option<String>,
}

/// One run of this program.
struct Run {
    effort: Effort,
    report: Report,
    hook: Hook,
    /// The p50 of starting and reaping `/bin/true`, in nanoseconds, once it was measured.
    spawn_ns: Option<(f64, f64)>,
    /// Figures that are beyond their stated limit.
    excesses: Vec<String>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    // Copies of this program that it starts itself: drivers, and the floor's relay and echo.
    if std::env::args().nth(1).as_deref() == Some("role") {
        let role: Vec<String> = arguments.by_ref().skip(1).collect();
        return finish(match role.first().map(String::as_str) {
            Some("relay" | "echo" | "burner") => floor::run_role(&role),
            Some(signals::MODULES) => signals::run_role(&role),
            Some(signals::DECODER) => signals::decode_for_ever(),
            _ => driver::run_role(&role),
        });
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("error: {text}");
            return ExitCode::from(2);
        }
    };
    cluster::stop_on_signals();
    finish(measure(&options))
}

fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { effort: FULL, is_quick: false, json: report::default_path(), only: None };
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo passes it to every benchmark.
            "--bench" => {}
            "--quick" => (options.effort, options.is_quick) = (QUICK, true),
            "--json" => options.json = arguments.next().ok_or("--json needs a path")?.into(),
            "--only" => {
                let name = arguments.next().ok_or("--only needs a name")?;
                if !GROUPS.iter().any(|(known, _)| *known == name) {
                    let known = GROUPS.map(|(known, _)| format!("`{known}`")).join(", ");
                    return Err(format!("nothing is called `{name}`; there are {known}"));
                }
                options.only = Some(name);
            }
            other => return Err(format!("unknown argument `{other}`; known are --quick, --json PATH and --only NAME")),
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<(), Failure> {
    let hook = Hook::find()?;
    say(&format!("tracing by `{}`: {}", cluster::HOOK, hook.place()));
    let report = Report::new(options.is_quick, hook.place());
    let mut run = Run { effort: options.effort, report, hook, spawn_ns: None, excesses: Vec::new() };
    for (name, group) in GROUPS {
        if options.only.as_ref().map_or(!ON_REQUEST.contains(&name), |only| only == name) {
            group(&mut run)?;
        }
    }
    println!("{}", run.report.table());
    run.report.write(&options.json)?;
    say(&format!("written to {}", options.json.display()));
    if run.excesses.is_empty() { Ok(()) } else { Err(run.excesses.join("\n").into()) }
}

/// Tells how far it is, to people who wait.
fn say(text: &str) {
    eprintln!("end_to_end: {text}");
}

const VARIANTS: [Variant; 2] = [Variant::Untraced, Variant::Traced];

/// Figures of the clusters of each kind.
type ByVariant<T> = [(Variant, Vec<T>); 2];

impl Run {
    /// p50 and p99 of starting and reaping `/bin/true`: the floor of everything that is a process.
    fn spawn_floor(&mut self) -> Result<(f64, f64), Failure> {
        if let Some(known) = self.spawn_ns {
            return Ok(known);
        }
        say("floor: /bin/true, one after the other");
        let times = floor::spawn_times(self.effort.spawns)?;
        let found = (report::percentile(&times, 50), report::percentile(&times, 99));
        self.spawn_ns = Some(found);
        Ok(found)
    }

    fn hook(&self, variant: Variant) -> Option<&Hook> {
        (variant == Variant::Traced).then_some(&self.hook)
    }

    /// Measures in several clusters of both kinds by turns: no machine is equally fast all the time, and the kernel does not put the
    /// processes on the same cores each time.
    fn by_turns<T>(
        &self,
        what: &str,
        mut measure: impl FnMut(&Place, &Cluster, Variant) -> Result<T, Failure>,
    ) -> Result<ByVariant<T>, Failure> {
        let mut found = VARIANTS.map(|variant| (variant, Vec::new()));
        for number in 1..=self.effort.runs {
            for (variant, found) in &mut found {
                say(&format!("{what}, {variant}, run {number} of {}", self.effort.runs));
                let place = Place::new()?;
                let cluster = Cluster::start(&place, self.hook(*variant))?;
                found.push(measure(&place, &cluster, *variant)?);
                cluster.stop()?;
            }
        }
        Ok(found)
    }
}

/// Returns a value of each run.
fn each<T>(runs: &[T], value: impl Fn(&T) -> f64) -> Vec<f64> {
    runs.iter().map(value).collect()
}

/// `tracer start --head`, from the start of its process until it has ended and the workers are ready.
fn start(run: &mut Run) -> Result<(), Failure> {
    let floor = run.spawn_floor()?;
    for variant in VARIANTS {
        say(&format!("start, {variant}, {} times", run.effort.starts));
        let mut times = Vec::new();
        for _ in 0..run.effort.starts {
            let place = Place::new()?;
            let begun = Instant::now();
            let cluster = Cluster::start(&place, run.hook(variant))?;
            times.push(report::nanos(begun.elapsed()));
            cluster.stop()?;
        }
        run.report.add(Figure {
            floor: Some(("spawn of /bin/true", floor.0)),
            peer: peer::START_NS.of(variant),
            ..Figure::time("start until two workers are ready, p50", variant, report::percentile(&times, 50))
        });
    }
    Ok(())
}

/// `tracer submit task`, the whole process.
fn submit(run: &mut Run) -> Result<(), Failure> {
    let floor = run.spawn_floor()?;
    for variant in VARIANTS {
        say(&format!("submit, {variant}, {} times", run.effort.submits));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        cluster.submit_once()?;
        let mut times = Vec::new();
        for _ in 0..run.effort.submits {
            let begun = Instant::now();
            cluster.submit_once()?;
            times.push(report::nanos(begun.elapsed()));
        }
        cluster.stop()?;
        for (percent, floor) in [(50, floor.0), (99, floor.1)] {
            let name = format!("`tracer submit task`, whole process, p{percent}");
            run.report.add(Figure {
                floor: Some(("spawn of /bin/true", floor)),
                ..Figure::time(&name, variant, report::percentile(&times, percent))
            });
        }
    }
    Ok(())
}

/// Figures of one cluster that ran many tasks.
struct Many {
    idle: Vec<ProcessFigures>,
    after: Vec<ProcessFigures>,
    found: driver::Throughput,
    span_bytes: u64,
}

impl Many {
    /// Nanoseconds of cpu time of a task, in the processes of one kind.
    fn cpu(&self, role: &str) -> f64 {
        process::cpu_between(&self.idle, &self.after, role) as f64 / self.found.tasks_in_all as f64
    }

    fn driver_cpu(&self) -> f64 {
        self.found.cpu_ns as f64 / self.found.tasks as f64
    }

    fn whole_cpu(&self) -> f64 {
        self.cpu("head") + self.cpu("worker") + self.driver_cpu()
    }
}

/// Many tasks that do nothing, by one driver: what a task costs in time, cpu, memory and bytes of spans.
fn throughput(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.tasks;
    let measured = run.by_turns(&format!("throughput, {tasks} tasks"), |place, cluster, variant| {
        let idle = cluster.processes()?;
        let before = place.span_bytes()?;
        let found: driver::Throughput = cluster.drive(&["throughput".into(), tasks.to_string()])?;
        std::thread::sleep(REST);
        let after = cluster.processes()?;
        let span_bytes = place.span_bytes()? - before;
        let lines = place.span_lines()?;
        let expected = if variant == Variant::Traced { 2 * found.tasks_in_all } else { 0 };
        if lines != expected {
            return Err(format!("{} tasks left {lines} spans, expected {expected}", found.tasks_in_all).into());
        }
        Ok(Many { idle, after, found, span_bytes })
    })?;
    for (variant, runs) in &measured {
        let variant = *variant;
        let rate = Figure::rate(&format!("no-op tasks, {tasks} by one driver"), variant, f64::NAN);
        let rate = rate.over(&each(runs, |one| tasks as f64 / one.found.seconds));
        run.report.add(Figure { peer: peer::TASKS_PER_SECOND.of(variant), ..rate });
        let cpu = |name, value: &dyn Fn(&Many) -> f64| Figure::cpu(name, variant, f64::NAN).over(&each(runs, value));
        run.report.add(cpu("head", &|one| one.cpu("head")));
        run.report.add(cpu("workers together", &|one| one.cpu("worker")));
        run.report.add(cpu("driver", &Many::driver_cpu));
        if variant == Variant::Traced {
            let untraced = &measured[0].1;
            let added: Vec<f64> =
                runs.iter().zip(untraced).map(|(with, without)| with.whole_cpu() - without.whole_cpu()).collect();
            run.report.add(Figure::cpu("what tracing adds", variant, f64::NAN).over(&added));
            let bytes = each(runs, |one| one.span_bytes as f64 / one.found.tasks_in_all as f64);
            run.report.add(Figure::bytes("spans of a task, in the file", variant, f64::NAN).over(&bytes));
        }
        for (when, peer, processes) in [
            ("idle", &peer::IDLE_BYTES, (|one| &one.idle) as fn(&Many) -> &[ProcessFigures]),
            ("after the tasks", &peer::WARM_BYTES, |one| &one.after),
        ] {
            for index in 0..runs.first().map_or(0, |one| processes(one).len()) {
                let name = format!("memory of {}, {when} (PSS)", processes(&runs[0])[index].name);
                let bytes = each(runs, |one| processes(one).get(index).map_or(f64::NAN, |one| one.pss as f64));
                run.report.add(Figure::bytes(&name, variant, f64::NAN).over(&bytes));
            }
            let whole = each(runs, |one| processes(one).iter().map(|one| one.pss as f64).sum());
            let figure = Figure::bytes(&format!("memory of the cluster, {when} (PSS)"), variant, f64::NAN).over(&whole);
            run.report.add(Figure { peer: peer.of(variant), ..figure });
        }
        let bytes = each(runs, |one| one.found.pss as f64);
        run.report.add(Figure::bytes("memory of the driver, after the tasks (PSS)", variant, f64::NAN).over(&bytes));
    }
    Ok(())
}

/// The same tasks with many more workers than cores, beside as few as the other figures are taken with.
fn workers(run: &mut Run) -> Result<(), Failure> {
    const MANY: usize = 64;
    let tasks = run.effort.tasks;
    for variant in VARIANTS {
        let mut times = [Vec::new(), Vec::new()];
        for number in 1..=run.effort.runs {
            for (times, workers) in times.iter_mut().zip([cluster::WORKERS, MANY]) {
                say(&format!("{workers} workers, {tasks} tasks, {variant}, run {number} of {}", run.effort.runs));
                let place = Place::new()?;
                let cluster = Cluster::start_with(&place, run.hook(variant), workers)?;
                let found: driver::Throughput = cluster.drive(&["throughput".into(), tasks.to_string()])?;
                times.push(found.seconds * 1e9 / tasks as f64);
                cluster.stop()?;
            }
        }
        let few = report::percentile(&times[0], 50);
        let figure = Figure::time(&format!("a no-op task with {MANY} workers"), variant, f64::NAN).over(&times[1]);
        run.report.add(Figure { floor: Some(("with two workers", few)), ..figure });
    }
    Ok(())
}

/// Tasks that wait: the head's memory for each, and its cpu time for each, beside that for a few.
fn queued(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.queued;
    cluster::build("misbehaving_tasks")?;
    let measured = run.by_turns(&format!("queued, {count} tasks"), |_, cluster, _| {
        cluster.drive::<[queued::Queued; 2]>(&["queued".into(), count.to_string()])
    })?;
    for (variant, runs) in &measured {
        for (name, bytes) in [
            (format!("head's memory for each of {count} queued"), each(runs, |[_, many]| many.bytes)),
            ("the same at the peak".into(), each(runs, |[_, many]| many.peak_bytes)),
        ] {
            run.report.add(Figure::bytes(&name, *variant, f64::NAN).over(&bytes));
        }
        let name = format!("head's cpu time for each of {count} queued");
        let few = report::percentile(&each(runs, |[few, _]| few.cpu_ns), 50);
        let figure = Figure::time(&name, *variant, f64::NAN).over(&each(runs, |[_, many]| many.cpu_ns));
        run.report.add(Figure { floor: Some(("for each of 1,000 queued", few)), ..figure });
    }
    Ok(())
}

/// Submit one, get one, over and over.
fn round_trip(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.round_trips;
    say(&format!("floor: {count} round trips through a relay process"));
    let floors = floor::relay_times(count)?;
    let measured = run.by_turns(&format!("round trip, {count} times"), |_, cluster, _| {
        cluster.drive::<Vec<f64>>(&["round_trips".into(), count.to_string()])
    })?;
    for (variant, runs) in &measured {
        for (percent, peer) in [(50, peer::ROUND_TRIP_P50_NS), (99, peer::ROUND_TRIP_P99_NS)] {
            let times = each(runs, |times| report::percentile(times, percent));
            run.report.add(Figure {
                floor: Some(("64 bytes through a relay process and back", report::percentile(&floors, percent))),
                peer: peer.of(*variant),
                ..Figure::time(&format!("round trip, p{percent}"), *variant, f64::NAN).over(&times)
            });
        }
    }
    Ok(())
}

/// Measures spinning where it is not made for: one request each millisecond, and other work on every core. Beside
/// each figure stands the same without it, as the floor.
fn sparse(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.round_trips;
    for (when, burners) in [("", 0), (", all cores busy", std::thread::available_parallelism()?.get())] {
        let mut figures = Vec::new();
        for has_spinning in [false, true] {
            say(&format!("one request each millisecond{when}, spinning {has_spinning}, {count} times"));
            HAS_SPINNING.store(has_spinning, Ordering::Relaxed);
            let place = Place::new()?;
            let cluster = Cluster::start(&place, None)?;
            let burners = floor::Burners::start(burners)?;
            let close: Vec<f64> = cluster.drive(&["round_trips".into(), count.to_string()])?;
            let before = cluster.processes()?;
            let (times, own_cpu): (Vec<f64>, u64) = cluster.drive(&["sparse".into(), count.to_string()])?;
            let after = cluster.processes()?;
            drop(burners);
            cluster.stop()?;
            let cpu = own_cpu
                + process::cpu_between(&before, &after, "head")
                + process::cpu_between(&before, &after, "worker");
            figures.push([
                report::percentile(&times, 50),
                cpu as f64 / times.len() as f64,
                report::percentile(&close, 50),
            ]);
        }
        HAS_SPINNING.store(true, Ordering::Relaxed);
        let names =
            ["one request each millisecond, p50", "one request each millisecond, cpu time of each", "round trip, p50"];
        for ((name, without), with) in names.into_iter().zip(figures[0]).zip(figures[1]) {
            let figure = Figure::time(&format!("{name}{when}"), Variant::Untraced, with);
            run.report.add(Figure { floor: Some(("the same without spinning", without)), ..figure });
        }
    }
    Ok(())
}

/// Calls of an actor: one after the other, each waited for, and many in a row, which the head leases ahead of time.
fn actor(run: &mut Run) -> Result<(), Failure> {
    let (back_to_back, in_a_row) = (run.effort.round_trips, run.effort.tasks);
    cluster::build("counter")?;
    say(&format!("floor: {back_to_back} round trips through a relay process"));
    let floors = floor::relay_times(back_to_back)?;
    let what = format!("actor, {back_to_back} calls one after the other, {in_a_row} in a row");
    let measured = run.by_turns(&what, |_, cluster, _| {
        let times: Vec<f64> = cluster.drive(&["calls".into(), back_to_back.to_string()])?;
        let seconds: f64 = cluster.drive(&["calls_in_a_row".into(), in_a_row.to_string()])?;
        Ok((times, seconds))
    })?;
    for (variant, runs) in &measured {
        for percent in [50, 99] {
            let times = each(runs, |(times, _)| report::percentile(times, percent));
            run.report.add(Figure {
                floor: Some(("64 bytes through a relay process and back", report::percentile(&floors, percent))),
                ..Figure::time(&format!("call of an actor, p{percent}"), *variant, f64::NAN).over(&times)
            });
        }
        let rates = each(runs, |(_, seconds)| in_a_row as f64 / seconds);
        run.report.add(
            Figure::rate(&format!("calls of an actor, {in_a_row} by one driver"), *variant, f64::NAN).over(&rates),
        );
    }
    Ok(())
}

/// One task that submits many, and sums what they return.
fn nested(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.nested;
    cluster::build("nested_tasks")?;
    let measured = run.by_turns(&format!("nested, {count} tasks"), |_, cluster, _| {
        let seconds: f64 = cluster.drive(&["nested".into(), count.to_string()])?;
        Ok(count as f64 / seconds)
    })?;
    for (variant, rates) in &measured {
        run.report.add(Figure::rate(&format!("tasks of one task, {count}, summed"), *variant, f64::NAN).over(rates));
    }
    Ok(())
}

/// Large arguments and results.
fn large(run: &mut Run) -> Result<(), Failure> {
    cluster::build("nested_tasks")?;
    let count = run.effort.large;
    let measured = run.by_turns("large values", |_, cluster, _| {
        let times: [Vec<f64>; 4] = cluster.drive(&["large".into(), count.to_string()])?;
        Ok(times.map(|times| report::percentile(&times, 50)))
    })?;
    for (variant, runs) in &measured {
        for (index, (name, peer)) in [
            ("1 MiB of bytes in and out, each page looked at, p50", peer::LARGE_BOTH_WAYS_NS),
            ("1 MiB of text in and out, as a text of its own, p50", peer::LARGE_BOTH_WAYS_NS),
            ("100 MiB of zeroes out, each page looked at, p50", peer::LARGE_OUT_NS),
            ("100 MiB of text out, as a text of its own, p50", peer::LARGE_OUT_NS),
        ]
        .into_iter()
        .enumerate()
        {
            let figure = Figure::time(name, *variant, f64::NAN).over(&each(runs, |times| times[index]));
            run.report.add(Figure { peer: peer.of(*variant), ..figure });
        }
    }
    Ok(())
}

/// Commands: a process for each task. The floors and tracer take short turns, because the machine may be faster or slower in the next second.
fn command(run: &mut Run) -> Result<(), Failure> {
    let (count, turns) = (run.effort.commands.div_ceil(COMMAND_TURNS), COMMAND_TURNS);
    let measured = run.by_turns(&format!("commands, {turns} times {count} of /bin/true"), |_, cluster, _| {
        let turn = |_| {
            let floors = [floor::spawns_per_second(count, 2)?, floor::supervised_per_second(count, 2)?];
            let seconds: f64 = cluster.drive(&["commands".into(), count.to_string()])?;
            Ok((count as f64 / seconds, floors))
        };
        (0..turns).map(turn).collect::<Result<Vec<_>, Failure>>()
    })?;
    for (variant, runs) in measured {
        let turns: Vec<_> = runs.into_iter().flatten().collect();
        for (index, (name, floor)) in [
            ("commands (/bin/true), two workers, by bare spawns", "spawn of /bin/true, two at a time"),
            ("commands (/bin/true), two workers, by like for like", "the same with pipes, group and usage"),
        ]
        .into_iter()
        .enumerate()
        {
            let around = report::percentile(&each(&turns, |(_, floors)| floors[index]), 50);
            let figure = Figure::rate(name, variant, f64::NAN).over(&each(&turns, |(rate, _)| *rate));
            run.report.add(Figure { floor: Some((floor, around)), ..figure });
        }
    }
    Ok(())
}

/// Measures a span of a task in its worker, through OpenTelemetry's traits, the boundary and the spool, against the same span without them.
fn span(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.span_tasks;
    cluster::build("traced_tasks")?;
    let place = Place::new()?;
    let (mut through, mut direct) = (Vec::new(), Vec::new());
    say(&format!("spans of {tasks} tasks, {} each", spans::TOGETHER));
    // What memory a worker happens to get makes a tenth of the whole.
    for _ in 0..run.effort.span_clusters {
        let cluster = Cluster::start(&place, run.hook(Variant::Traced))?;
        // The first of each touches memory for the first time.
        for number in 0..=run.effort.span_runs {
            let before = cluster.processes()?;
            let made: usize = cluster.drive(&["spans".into(), tasks.to_string()])?;
            let after = cluster.processes()?;
            let directly = spans::directly(tasks)?;
            if number > 0 {
                through.push(process::cpu_between(&before, &after, "worker") as f64 / made as f64);
                direct.push(directly);
            }
        }
        cluster.stop()?;
    }
    run.report.add(Figure {
        range: Some(report::range(&through)),
        floor: Some(("the same by the SDK and the processor of the default hook", report::range(&direct).0)),
        ..Figure::time("cpu time of a span with 5 attributes in a task", Variant::Traced, report::range(&through).0)
    });
    Ok(())
}

/// From the death of a worker until its spans are in the file.
fn death(run: &mut Run) -> Result<(), Failure> {
    cluster::build("misbehaving_tasks")?;
    let memory = death::SmallMemory::new();
    for way in death::WAYS {
        let group = (way == "oom").then_some(memory.as_ref());
        if let Some(None) = group {
            say("death, oom: left out, because no control group can be made");
            continue;
        }
        say(&format!("death, {way}, {} times", run.effort.deaths));
        let place = Place::new()?;
        let group = group.flatten().map(death::SmallMemory::processes);
        let cluster = Cluster::start_in(&place, Some(&run.hook), group.as_deref())?;
        let times = (0..run.effort.deaths).map(|number| death::one(&cluster, way, number));
        let times: Vec<f64> = times.collect::<Result<_, _>>()?;
        cluster.stop()?;
        for percent in [50, 99] {
            run.report.add(Figure {
                range: Some(report::range(&times)),
                ..Figure::time(
                    &format!("death ({way}) until all spans are in the file, p{percent}"),
                    Variant::Traced,
                    report::percentile(&times, percent),
                )
            });
        }
    }
    Ok(())
}

/// System calls of a task, of many that are submitted at once and of one that is waited for. Less start-up and warm-up, which are counted alone.
fn system_calls(run: &mut Run) -> Result<(), Failure> {
    if let Some(obstacle) = system_calls::obstacle() {
        say(&format!("system calls are not counted: {obstacle}"));
        return Ok(());
    }
    HAS_SPINNING.store(false, Ordering::Relaxed);
    let place = Place::new()?;
    let cluster = Cluster::start(&place, run.hook(Variant::Traced))?;
    for counted in [system_calls::AMONG_MANY, system_calls::ROUND_TRIP] {
        say(&format!("system calls {}, {} times", counted.name, counted.times));
        let found = system_calls::per_task(&cluster, &counted)?;
        for ((process, calls), said) in system_calls::PROCESSES.into_iter().zip(found).zip(counted.said) {
            let sum = system_calls::sum(&calls);
            let name = format!("system calls {}, {process}", counted.name);
            if sum > said * counted.tolerance {
                run.excesses.push(format!("{name}: {sum:.3}, {said} are said: {calls:.3?}"));
            }
            let figure = Figure::count(&name, Variant::Traced, sum);
            run.report.add(Figure { floor: Some(("what is said", said)), ..figure });
        }
    }
    cluster.stop()?;
    HAS_SPINNING.store(true, Ordering::Relaxed);
    Ok(())
}

/// Measures tracing where it is off: the instructions of an untraced round trip, beside those of the same build without tracing code.
fn untraced(run: &mut Run) -> Result<(), Failure> {
    say("instructions of round trips");
    HAS_SPINNING.store(false, Ordering::Relaxed);
    let place = Place::new()?;
    let cluster = Cluster::start(&place, None)?;
    let with = steps::of_round_trip(&cluster)?;
    cluster.stop()?;
    HAS_SPINNING.store(true, Ordering::Relaxed);
    let without = steps::without_tracing()?;
    for (name, steps) in with {
        let floor = without.as_ref().and_then(|without| without.get(&name));
        let floor = floor.map(|&floor| ("without tracing code", floor));
        run.report.add(Figure { floor, ..Figure::count(&name, Variant::Untraced, steps) });
    }
    Ok(())
}
