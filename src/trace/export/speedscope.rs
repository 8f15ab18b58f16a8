//! The file format of <https://www.speedscope.app>: frames by name, and an evented profile for each thread.
//!
//! Events of a profile have to nest. A span that overlaps another one of its thread without lying in it begins a further profile of that thread.
//! Times are nanoseconds since the first span, as in the format's published schema.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;

use super::processes::Processes;
use crate::loaded::Trace;
use crate::span::Span;

/// A file, after the schema at <https://www.speedscope.app/file-format-schema.json>.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    shared: Shared<'a>,
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    events: Vec<Event>,
}

/// The opening (`O`) or closing (`C`) of a frame.
#[derive(Serialize)]
struct Event {
    r#type: &'static str,
    frame: usize,
    at: u64,
}

/// Writes the spans of the traces that have ended.
pub fn speedscope(traces: &[&Trace], out: &mut dyn Write) -> io::Result<()> {
    let start = traces.iter().map(|trace| trace.start_unix_nano()).min().unwrap_or(0);
    let mut processes = Processes::default();
    let mut threads: BTreeMap<(u32, u64), Vec<&Span>> = BTreeMap::new();
    for span in traces.iter().flat_map(|trace| &trace.spans).filter(|span| !span.is_running()) {
        threads.entry(processes.thread(span, &span.details())).or_default().push(span);
    }
    let mut frames = Frames::default();
    let mut profiles = Vec::new();
    for (thread, spans) in threads {
        let name = thread_name(&processes, thread);
        for (index, track) in tracks(spans).into_iter().enumerate() {
            let name = if index == 0 { name.clone() } else { format!("{name} ({})", index + 1) };
            profiles.push(profile(name, &track, start, &mut frames));
        }
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: format!("tracer {}", env!("CARGO_PKG_VERSION")),
        shared: Shared { frames: frames.names.into_iter().map(|name| Frame { name }).collect() },
        profiles,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}

fn thread_name(processes: &Processes, (pid, tid): (u32, u64)) -> String {
    let process = processes.names.iter().find(|(known, _)| *known == pid).map_or("process", |(_, name)| name);
    match processes.threads.get(&(pid, tid)) {
        Some(thread) => format!("{process} {thread}"),
        None if tid == u64::from(pid) => process.to_owned(),
        None => format!("{process} thread {tid}"),
    }
}

/// Divides spans of one thread into tracks, in each of which they nest.
fn tracks(mut spans: Vec<&Span>) -> Vec<Vec<&Span>> {
    // The sort is stable: of spans at the same time, parents were before their children.
    spans.sort_by_key(|span| (span.start_unix_nano, Reverse(span.duration_ns())));
    let mut tracks: Vec<Vec<&Span>> = Vec::new();
    // The ends of the spans of each track that enclose what comes next.
    let mut open: Vec<Vec<u64>> = Vec::new();
    for span in spans {
        let end = end(span);
        let has_room = |ends: &mut Vec<u64>| {
            while ends.last().is_some_and(|end| *end <= span.start_unix_nano) {
                ends.pop();
            }
            ends.last().is_none_or(|enclosing| end <= *enclosing)
        };
        let at = open.iter_mut().position(has_room).unwrap_or_else(|| {
            tracks.push(Vec::new());
            open.push(Vec::new());
            tracks.len() - 1
        });
        tracks[at].push(span);
        open[at].push(end);
    }
    tracks
}

fn end(span: &Span) -> u64 {
    span.start_unix_nano + span.duration_ns()
}

fn profile<'a>(name: String, track: &[&'a Span], start: u64, frames: &mut Frames<'a>) -> Profile {
    let mut events = Vec::with_capacity(track.len() * 2);
    let mut open: Vec<(usize, u64)> = Vec::new();
    let close = |open: &mut Vec<(usize, u64)>, events: &mut Vec<Event>, until: u64| {
        while let Some((frame, at)) = open.pop_if(|(_, end)| *end <= until) {
            events.push(Event { r#type: "C", frame, at: at - start });
        }
    };
    for span in track {
        close(&mut open, &mut events, span.start_unix_nano);
        let frame = frames.number(span.name());
        events.push(Event { r#type: "O", frame, at: span.start_unix_nano - start });
        open.push((frame, end(span)));
    }
    close(&mut open, &mut events, u64::MAX);
    let at = |event: Option<&Event>| event.map_or(0, |event| event.at);
    let (start_value, end_value) = (at(events.first()), at(events.last()));
    Profile { r#type: "evented", name, unit: "nanoseconds", start_value, end_value, events }
}

/// Names of frames, each once.
#[derive(Default)]
struct Frames<'a> {
    names: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Frames<'a> {
    fn number(&mut self, name: &'a str) -> usize {
        let next = self.names.len();
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::{span, trace};
    use super::*;

    fn exported(spans: &[(u32, super::super::super::fixture::SpanText)]) -> serde_json::Value {
        let mut out = Vec::new();
        speedscope(&[&trace(spans)], &mut out).expect("memory takes everything");
        serde_json::from_slice(&out).expect("it is JSON")
    }

    /// Returns the events of a profile as `+name@time` and `-name@time`.
    fn events(file: &serde_json::Value, profile: usize) -> Vec<String> {
        let sign = |event: &serde_json::Value| if event["type"] == "O" { '+' } else { '-' };
        let name = |event: &serde_json::Value| {
            let frame = event["frame"].as_u64().and_then(|frame| usize::try_from(frame).ok()).expect("it is a number");
            file["shared"]["frames"][frame]["name"].as_str().expect("a frame has a name").to_owned()
        };
        let events = file["profiles"][profile]["events"].as_array().expect("events are a list");
        events.iter().map(|event| format!("{}{}@{}", sign(event), name(event), event["at"])).collect()
    }

    #[test]
    fn spans_of_a_thread_nest_and_others_have_a_track_of_their_own() {
        let file = exported(&[
            (7, span("job", 1, None, (0, 100))),
            (7, span("read", 2, 1, (10, 30))),
            (7, span("read", 3, 1, (30, 30))),
            (7, span("late", 4, 1, (90, 120))),
            (8, span("remote", 5, 1, (20, 25)).attributes(r#"{"thread.id": 3, "thread.name": "pool"}"#)),
        ]);
        let names: Vec<_> =
            file["profiles"].as_array().expect("a list").iter().map(|profile| profile["name"].clone()).collect();
        assert_eq!(names, ["tracer (pid 7)", "tracer (pid 7) (2)", "tracer (pid 8) pool"]);
        assert_eq!(
            events(&file, 0),
            ["+job@0", "+read@10000", "-read@30000", "+read@30000", "-read@30000", "-job@100000"]
        );
        assert_eq!(events(&file, 1), ["+late@90000", "-late@120000"]);
        assert_eq!(events(&file, 2), ["+remote@20000", "-remote@25000"]);
        assert_eq!(
            (&file["profiles"][1]["startValue"], &file["profiles"][1]["endValue"]),
            (&90_000.into(), &120_000.into())
        );
        assert_eq!(file["shared"]["frames"].as_array().map(Vec::len), Some(4));
    }

    proptest::proptest! {
        #[test]
        fn events_of_any_spans_nest_and_are_in_order(times in proptest::collection::vec((0_u64..50, 0_u64..20), 1..40)) {
            let spans: Vec<_> = times.iter().zip(1..).map(|((at, long), id)| (1, span(&format!("s{}", id % 5), id, None, (*at, at + long)))).collect();
            let file = exported(&spans);
            let mut opened = 0;
            for profile in file["profiles"].as_array().expect("a list") {
                let mut stack = Vec::new();
                let mut last = 0;
                for event in profile["events"].as_array().expect("a list") {
                    let at = event["at"].as_u64().expect("a time");
                    proptest::prop_assert!(at >= last);
                    last = at;
                    if event["type"] == "O" {
                        opened += 1;
                        stack.push(event["frame"].clone());
                    } else {
                        proptest::prop_assert_eq!(stack.pop(), Some(event["frame"].clone()));
                    }
                }
                proptest::prop_assert!(stack.is_empty());
            }
            proptest::prop_assert_eq!(opened, times.len());
        }
    }
}
