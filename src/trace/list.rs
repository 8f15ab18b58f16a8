//! The traces of a folder, one row each.

use serde::{Serialize, Serializer};

use super::{Loaded, Trace, TraceId, time};

/// One row for each trace, the newest first. It serialises as the array of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The rows.
    pub rows: Vec<Row>,
    /// How many older traces were left out because of the limit.
    pub left_out: usize,
    /// As many digits as tell every trace in the folder from the others, 12 at least.
    pub id_digits: usize,
}

/// A trace in a few figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its id.
    pub trace_id: TraceId,
    /// The name of the span that it began with.
    pub root: String,
    /// When its first span started.
    #[serde(rename = "start_time", serialize_with = "serialize_time")]
    pub start_unix_nano: u64,
    /// When its last span ended.
    #[serde(rename = "end_time", serialize_with = "serialize_time")]
    pub end_unix_nano: u64,
    /// From the first start to the last end.
    pub duration_ns: u64,
    /// How many spans it has.
    pub spans: usize,
    /// How many of them have the status ERROR.
    pub errors: usize,
}

impl Serialize for List {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

fn serialize_time<S: Serializer>(unix_nano: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time::format(*unix_nano))
}

impl Row {
    pub(super) fn new(trace: &Trace) -> Row {
        Row {
            trace_id: trace.id,
            root: trace.root().name.clone(),
            start_unix_nano: trace.start_unix_nano(),
            end_unix_nano: trace.end_unix_nano(),
            duration_ns: trace.duration_ns(),
            spans: trace.spans.len(),
            errors: trace.error_count(),
        }
    }
}

impl Loaded {
    /// Lists the newest `limit` traces, or all.
    pub fn list(&self, limit: Option<usize>) -> List {
        let limit = limit.unwrap_or(usize::MAX);
        List {
            rows: self.traces.iter().rev().take(limit).map(Row::new).collect(),
            left_out: self.traces.len().saturating_sub(limit),
            id_digits: id_digits(self.traces.iter().map(|trace| trace.id).collect()),
        }
    }
}

fn id_digits(mut ids: Vec<TraceId>) -> usize {
    ids.sort();
    let common = ids.windows(2).map(|pair| (pair[0].0 ^ pair[1].0).leading_zeros() as usize / 4 + 1);
    common.max().unwrap_or(0).clamp(12, 32)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;

    #[test]
    fn a_list_for_programs_is_an_array_of_rows() {
        let spans = [
            span("old", 1, None, (0, 1)).trace(1).line(),
            span("job", 2, None, (10, 30)).trace(2).line(),
            span("child", 3, 2, (5, 40)).trace(2).failed("no").line(),
        ];
        let list = loaded([("1.json", spans.concat().into())]).list(Some(1));
        assert_eq!(list.left_out, 1);
        assert_eq!(
            serde_json::to_value(&list).expect("rows have nothing that JSON lacks"),
            serde_json::json!([{
                "trace_id": "00000000000000000000000000000002",
                "root": "job",
                "start_time": "2026-11-05T12:00:00.000005Z",
                "end_time": "2026-11-05T12:00:00.000040Z",
                "duration_ns": 35_000,
                "spans": 2,
                "errors": 1,
            }])
        );
    }

    #[test]
    fn as_many_digits_are_shown_as_tell_traces_apart() {
        let ids = |ids: &[u128]| id_digits(ids.iter().copied().map(TraceId).collect());
        assert_eq!(ids(&[]), 12);
        assert_eq!(ids(&[1]), 12);
        assert_eq!(ids(&[1 << 124, 2 << 124]), 12);
        assert_eq!(ids(&[0x10_0001 << 64, 0x10_0002 << 64]), 16);
        assert_eq!(ids(&[0x13, 1 << 127, 0x12]), 32);
    }
}
