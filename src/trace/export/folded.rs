//! Folded stacks, as Brendan Gregg's `flamegraph.pl`, inferno and speedscope read them: `job;count;read 1200`, a line for each path of names, with its
//! own time in microseconds. Times of spans that ran beside each other add up.

use std::io::{self, Write};

use crate::loaded::Trace;
use crate::paths::Paths;

/// Writes the own time of each path of names in the traces. Paths below half a microsecond are left out.
pub fn folded(traces: &[&Trace], out: &mut dyn Write) -> io::Result<()> {
    let mut folded = Folded::default();
    traces.iter().for_each(|trace| folded.add(trace));
    folded.finish(out)
}

/// Own times of the traces that were added, by path.
#[derive(Default)]
pub struct Folded(Paths);

impl Folded {
    /// Adds the spans of a trace.
    pub fn add(&mut self, trace: &Trace) {
        self.0.add(trace);
    }

    /// Writes the own time of each path of names. Paths below half a microsecond are left out.
    pub fn finish(self, out: &mut dyn Write) -> io::Result<()> {
        let Folded(paths) = self;
        for (at, node) in paths.iter() {
            let micros = node.self_ns.saturating_add(500) / 1000;
            if micros > 0 {
                let names: Vec<String> = paths.names(at).into_iter().map(frame).collect();
                writeln!(out, "{} {micros}", names.join(";"))?;
            }
        }
        Ok(())
    }
}

/// Returns a name without what ends a frame or a line.
fn frame(name: &str) -> String {
    let name: String = name.chars().map(|c| if c == ';' { ':' } else { c }).collect();
    tracer_core::escape::line(&name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::{loaded, span};
    use super::*;

    #[test]
    fn own_times_of_a_path_add_up() {
        let lines = [
            span("job; a\nb", 1, None, (0, 100)),
            span("read", 2, 1, (10, 30)),
            span("read", 3, 1, (40, 70)),
            span("all of it", 4, 3, (40, 70)),
            span("orphan", 5, 99, (80, 81)),
        ];
        let text: String = lines.iter().map(|line| line.line()).collect();
        let loaded = loaded([("1.json", text.into_bytes())]);
        let mut out = Vec::new();
        folded(&[&loaded.traces[0]], &mut out).expect("memory takes everything");
        let out = String::from_utf8(out).expect("it is a text");
        assert_eq!(out, "job: a\\nb 50\njob: a\\nb;read 20\njob: a\\nb;read;all of it 30\n(missing);orphan 1\n");
    }
}
