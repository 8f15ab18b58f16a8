//! What tracer costs from the outside: whole processes, a whole cluster, everything through the doors that users have.
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
//! cargo bench --bench end_to_end -- --only peers    # Ray, Dask, HyperQueue, GNU parallel, xargs beside it, where they are installed
//! cargo bench --profile counted --bench end_to_end -- --only untraced    # against a build without tracing code, which it makes
//! ```
//!
//! Nothing is asserted about time. It does fail when work is lost: a task without its result or without its two spans; and when a task takes
//! more system calls than is said.

mod cluster;
mod death;
mod driver;
mod floor;
mod peer;
mod peers;
mod process;
mod queued;
mod report;
mod spans;
mod steps;
mod system_calls;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cluster::{Cluster, HAS_SPINNING, Hook, Place};
use report::{Better, Figure, Report, Variant};

/// Why a figure could not be taken. It names what was being done.
type Failure = Box<dyn Error>;

/// How long the cluster rests before its memory is measured: it gives back what many tasks took.
const REST: Duration = Duration::from_millis(500);

/// How often everything is done.
#[derive(Clone, Copy, Debug)]
struct Effort {
    starts: usize,
    submits: usize,
    spawns: usize,
    tasks: usize,
    /// Clusters that run `tasks`; the median of them is shown.
    throughput_runs: usize,
    round_trips: usize,
    /// Tasks that wait at once.
    queued: usize,
    /// Tasks that one task submits.
    nested: usize,
    large: usize,
    commands: usize,
    /// Tasks that make spans, and how often they all are run; the cheapest run is shown.
    span_tasks: usize,
    span_runs: usize,
    /// Workers that die, in each way.
    deaths: usize,
}

const FULL: Effort = Effort {
    starts: 15,
    submits: 50,
    spawns: 200,
    tasks: 50_000,
    throughput_runs: 3,
    round_trips: 2_000,
    queued: 1_000_000,
    nested: 10_000,
    large: 100,
    commands: 1_000,
    span_tasks: 20,
    span_runs: 9,
    deaths: 100,
};

const QUICK: Effort = Effort {
    starts: 2,
    submits: 3,
    spawns: 10,
    tasks: 2_000,
    throughput_runs: 1,
    round_trips: 50,
    queued: 10_000,
    nested: 1_000,
    large: 10,
    commands: 10,
    span_tasks: 2,
    span_runs: 1,
    deaths: 3,
};

/// Measures one thing, and puts it into the report of the run.
type Measure = fn(&mut Run) -> Result<(), Failure>;

/// What is measured, by the names that `--only` takes.
const GROUPS: [(&str, Measure); 15] = [
    ("start", start),
    ("submit", submit),
    ("throughput", throughput),
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
    ("untraced", untraced),
    ("peers", peers::measure),
];

/// What is left out unless it is named: one builds everything a second time, and the other runs what others made, where it is installed.
const ON_REQUEST: [&str; 2] = ["untraced", "peers"];

/// What the command line asks for.
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
    /// What took more than is said.
    excesses: Vec<String>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    // Copies of this program that it starts itself: drivers, and the floor's relay and echo.
    if std::env::args().nth(1).as_deref() == Some("role") {
        let role: Vec<String> = arguments.by_ref().skip(1).collect();
        return finish(match role.first().map(String::as_str) {
            Some("relay" | "echo" | "burner") => floor::run_role(&role),
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

/// Many tasks that do nothing, by one driver: what a task costs in time, cpu, memory and bytes of spans.
fn throughput(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.tasks;
    for variant in VARIANTS {
        let mut rates = Vec::new();
        let mut last = None;
        for number in 1..=run.effort.throughput_runs {
            say(&format!("throughput, {variant}, {tasks} tasks, run {number} of {}", run.effort.throughput_runs));
            let place = Place::new()?;
            let cluster = Cluster::start(&place, run.hook(variant))?;
            let idle = cluster.processes()?;
            let before = place.span_bytes()?;
            let found: driver::Throughput = cluster.drive(&["throughput".into(), tasks.to_string()])?;
            std::thread::sleep(REST);
            let after = cluster.processes()?;
            let spans = place.span_bytes()? - before;
            let lines = place.span_lines()?;
            cluster.stop()?;
            let expected = if variant == Variant::Traced { 2 * found.tasks_in_all } else { 0 };
            if lines != expected {
                return Err(format!("{} tasks left {lines} spans, expected {expected}", found.tasks_in_all).into());
            }
            rates.push(tasks as f64 / found.seconds);
            last = Some((idle, after, found, spans));
        }
        let Some((idle, after, found, span_bytes)) = last else { continue };
        run.report.add(Figure {
            peer: peer::TASKS_PER_SECOND.of(variant),
            range: Some(report::range(&rates)),
            ..Figure::rate(&format!("no-op tasks, {tasks} by one driver"), variant, report::percentile(&rates, 50))
        });
        let per_task = |ns: u64| ns as f64 / found.tasks_in_all as f64;
        let cpu = |role: &str| -> u64 { process::cpu_between(&idle, &after, role) };
        run.report.add(Figure::cpu("head", variant, per_task(cpu("head"))));
        run.report.add(Figure::cpu("workers together", variant, per_task(cpu("worker"))));
        run.report.add(Figure::cpu("driver", variant, found.cpu_ns as f64 / tasks as f64));
        if variant == Variant::Traced {
            run.report.add(Figure::bytes("spans of a task, in the file", variant, per_task(span_bytes)));
        }
        for (when, processes) in [("idle", &idle), ("after the tasks", &after)] {
            for one in processes {
                run.report.add(Figure::bytes(
                    &format!("memory of {}, {when} (PSS)", one.name),
                    variant,
                    one.pss as f64,
                ));
            }
            let whole: u64 = processes.iter().map(|one| one.pss).sum();
            let peer = if when == "idle" { &peer::IDLE_BYTES } else { &peer::WARM_BYTES };
            run.report.add(Figure {
                peer: peer.of(variant),
                ..Figure::bytes(&format!("memory of the cluster, {when} (PSS)"), variant, whole as f64)
            });
        }
        run.report.add(Figure::bytes("memory of the driver, after the tasks (PSS)", variant, found.pss as f64));
    }
    Ok(())
}

/// Tasks that wait: the head's memory for each, and its cpu time for each, beside that for a few.
fn queued(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.queued;
    cluster::build("misbehaving_tasks")?;
    for variant in VARIANTS {
        say(&format!("queued, {variant}, {count} tasks"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let [few, many]: [queued::Queued; 2] = cluster.drive(&["queued".into(), count.to_string()])?;
        cluster.stop()?;
        run.report.add(Figure::bytes(&format!("head's memory for each of {count} queued"), variant, many.bytes));
        run.report.add(Figure::bytes("the same at the peak", variant, many.peak_bytes));
        let name = format!("head's cpu time for each of {count} queued");
        let floor = Some(("for each of 1,000 queued", few.cpu_ns));
        run.report.add(Figure { floor, ..Figure::time(&name, variant, many.cpu_ns) });
    }
    Ok(())
}

/// Submit one, get one, over and over.
fn round_trip(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.round_trips;
    say(&format!("floor: {count} round trips through a relay process"));
    let floors = floor::relay_times(count)?;
    for variant in VARIANTS {
        say(&format!("round trip, {variant}, {count} times"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let times: Vec<f64> = cluster.drive(&["round_trips".into(), count.to_string()])?;
        cluster.stop()?;
        for (percent, peer) in [(50, peer::ROUND_TRIP_P50_NS), (99, peer::ROUND_TRIP_P99_NS)] {
            run.report.add(Figure {
                floor: Some(("64 bytes through a relay process and back", report::percentile(&floors, percent))),
                peer: peer.of(variant),
                ..Figure::time(&format!("round trip, p{percent}"), variant, report::percentile(&times, percent))
            });
        }
    }
    Ok(())
}

/// What looking before sleeping costs and gains where it is not made for: one request each millisecond, and other work on every core. Beside
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
    for variant in VARIANTS {
        say(&format!("actor, {variant}, {back_to_back} calls one after the other"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let times: Vec<f64> = cluster.drive(&["calls".into(), back_to_back.to_string()])?;
        say(&format!("actor, {variant}, {in_a_row} calls in a row"));
        let seconds: f64 = cluster.drive(&["calls_in_a_row".into(), in_a_row.to_string()])?;
        cluster.stop()?;
        for percent in [50, 99] {
            run.report.add(Figure {
                floor: Some(("64 bytes through a relay process and back", report::percentile(&floors, percent))),
                ..Figure::time(&format!("call of an actor, p{percent}"), variant, report::percentile(&times, percent))
            });
        }
        let name = format!("calls of an actor, {in_a_row} by one driver");
        run.report.add(Figure::rate(&name, variant, in_a_row as f64 / seconds));
    }
    Ok(())
}

/// One task that submits many, and sums what they return.
fn nested(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.nested;
    cluster::build("nested_tasks")?;
    for variant in VARIANTS {
        let mut rates = Vec::new();
        for number in 1..=run.effort.throughput_runs {
            say(&format!("nested, {variant}, {count} tasks, run {number} of {}", run.effort.throughput_runs));
            let place = Place::new()?;
            let cluster = Cluster::start(&place, run.hook(variant))?;
            let seconds: f64 = cluster.drive(&["nested".into(), count.to_string()])?;
            cluster.stop()?;
            rates.push(count as f64 / seconds);
        }
        run.report.add(Figure {
            range: Some(report::range(&rates)),
            ..Figure::rate(&format!("tasks of one task, {count}, summed"), variant, report::percentile(&rates, 50))
        });
    }
    Ok(())
}

/// Large arguments and results.
fn large(run: &mut Run) -> Result<(), Failure> {
    cluster::build("nested_tasks")?;
    for variant in VARIANTS {
        say(&format!("large values, {variant}"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let [both_ways, out, bytes_out]: [Vec<f64>; 3] =
            cluster.drive(&["large".into(), run.effort.large.to_string()])?;
        cluster.stop()?;
        for (name, times, peer) in [
            ("1 MiB in and out, p50", both_ways, peer::LARGE_BOTH_WAYS_NS),
            ("100 MiB of text out, as a text of its own, p50", out, peer::LARGE_OUT_NS),
            ("100 MiB of zeroes out, each page looked at, p50", bytes_out, peer::LARGE_OUT_NS),
        ] {
            let figure = Figure::time(name, variant, report::percentile(&times, 50));
            run.report.add(Figure { peer: peer.of(variant), ..figure });
        }
    }
    Ok(())
}

/// Commands: a process for each task.
fn command(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.commands;
    // Around each cluster, because a machine is not equally fast all the time.
    let mut floors = vec![(floor::spawns_per_second(count, 2)?, floor::supervised_per_second(count, 2)?)];
    for variant in VARIANTS {
        say(&format!("commands, {variant}, {count} times /bin/true"));
        let place = Place::new()?;
        let cluster = Cluster::start(&place, run.hook(variant))?;
        let seconds: f64 = cluster.drive(&["commands".into(), count.to_string()])?;
        cluster.stop()?;
        floors.push((floor::spawns_per_second(count, 2)?, floor::supervised_per_second(count, 2)?));
        let around = &floors[floors.len() - 2..];
        let bare = (around[0].0 + around[1].0) / 2.0;
        let supervised = (around[0].1 + around[1].1) / 2.0;
        let rate = count as f64 / seconds;
        for (name, floor) in [
            ("commands (/bin/true), two workers, by bare spawns", ("spawn of /bin/true, two at a time", bare)),
            (
                "commands (/bin/true), two workers, by like for like",
                ("the same with pipes, group and usage", supervised),
            ),
        ] {
            run.report.add(Figure { floor: Some(floor), better: Better::Higher, ..Figure::rate(name, variant, rate) });
        }
    }
    Ok(())
}

/// What a span of a task costs its worker, through OpenTelemetry's traits, the boundary and the spool, against the same span without them.
fn span(run: &mut Run) -> Result<(), Failure> {
    let tasks = run.effort.span_tasks;
    cluster::build("traced_tasks")?;
    let place = Place::new()?;
    let cluster = Cluster::start(&place, run.hook(Variant::Traced))?;
    let (mut through, mut direct) = (Vec::new(), Vec::new());
    say(&format!("spans of {tasks} tasks, {} each", spans::TOGETHER));
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

/// What tracing costs where it is off: the instructions of an untraced round trip, beside those of the same build without tracing code.
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
