//! Reading traces back from a folder of span files, and showing them.
//!
//! [`load`] reads every file of the folder, groups the spans into traces and keeps them with what it could not read; the rest is pure:
//! choosing a trace ([`Loaded::find`]), listing ([`Loaded::list`]), the tree of parents and children ([`Tree`]) and the text
//! for people ([`render`]). Reports for programs are values that serialise.
//!
//! Spans of several nodes are shown on one clock ([`Trace::on_one_clock`]), if the attempts among them say how far their clocks were apart.
//!
//! Formats that are read: that of the default hook, one object of the OpenTelemetry Python console format per line, and that
//! format's other layouts: pretty-printed objects one after another, and the older one of SDK 1.1; OTLP in JSON, as the hook
//! `otlp_file` and the collector's file exporter write it. No span file is written here.
//!
//! What runs is in no file yet: [`Live`] reads it from the spools of a session's living processes, and [`Loaded::add`] puts both together.
//!
//! Log records ([`log_entries`]) and the output of tasks ([`task_logs`]) are read here too.
//!
//! **For** the program and the web side. **Uses** `tracer-core`, and `tracer-ipc` for spools and the index of output.
//!
//! **Never** writes a file, or asks a head.

#![forbid(unsafe_code)]

mod by_id;
pub mod check;
mod clocks;
mod diff;
mod differences;
pub mod export;
#[cfg(test)]
mod fixture;
mod graft;
mod index;
pub mod json;
mod known_file;
mod list;
mod live;
mod load;
mod loaded;
pub mod log_entries;
mod log_records;
mod merging;
mod open;
mod owners;
mod path;
mod paths;
pub mod query;
mod read;
mod region;
pub mod render;
mod report;
mod select;
mod shared_ids;
mod span;
mod stand_ins;
mod stats;
pub mod task_logs;
pub mod task_summary;
mod time;
mod tree;

pub use clocks::ClockShift;
pub use diff::{Diff, DiffRow, Side, align};
pub use differences::{Difference, Differences};
pub use index::{Among, Changed, INDEX_BYTES, Index, Listed, Older, Reach, Sample, last_trace_of};
pub use list::{Filter, GatheredList, List, Row};
pub use live::{Live, LiveSpan, Look};
pub use load::{load, load_traces};
pub use loaded::{Loaded, Trace};
pub use log_records::{FoundRecord, LogRecord, RecordTail, severity_named};
pub use open::{Open, OpenSpan, OpenTrace};
pub use owners::Owners;
pub use path::{CriticalPath, Idle, Stretch, StretchKind, idle, walk_critical_path};
pub use query::{Query, QueryError, parse_time};
pub use read::{LoadError, Notice, Problem, Tail, other_files, span_files};
pub use region::{Cell, HeatMap, Point, Region};
pub use report::Report;
pub use select::{FindError, LAST};
pub use span::{Attributes, Kind, ParseIdError, Span, SpanEvent, SpanId, SpanLink, Status, TraceId};
pub use stats::{GatheredStats, Stats, StatsRow, nearest_rank};
pub use time::format as rfc3339;
pub use tree::{Item, Node, Tree};
