//! Attributes by which some traces differ from others: for each value the share of traces on either side that have it, ranked by how far the
//! two shares are apart. So a slow corner of a heat map says by itself which region, version or error it has in common.
//!
//! A trace has a value if one of its spans has it, or the resource of one. Numbers with many values are put together by powers of ten; keys whose
//! values are all different, such as ids, say nothing about a group and are left out.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;

use crate::loaded::Trace;
use crate::span::{Span, Status, TraceId};

/// Values of a key that are told apart. Further ones count as many different ones.
const VALUES: usize = 1000;
/// Numbers with more values than this are put together by powers of ten.
const NUMBERS: usize = 20;
/// Characters of a value that are kept.
const VALUE_LIMIT: usize = 200;

/// Values that are more or less frequent among the selected traces than among the others, the greatest difference first. One by which a value is rarer
/// counts half.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Differences {
    /// Number of selected traces.
    pub selected: usize,
    /// Number of the others.
    pub others: usize,
    /// Values, ranked.
    pub values: Vec<Difference>,
    /// Number of values with smaller differences that were left out.
    pub left_out: usize,
}

/// A value of a key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The attribute's key; `name` is a span's name, `error` the name of a failed span.
    pub key: String,
    /// The value; for many different numbers `10^3..10^4`.
    pub value: String,
    /// A term of the query language that finds traces with it; null where there is none.
    pub query: Option<String>,
    /// Number of selected traces that have it.
    pub selected: usize,
    /// Number of the others that have it.
    pub others: usize,
    /// Share of the selected traces minus the share of the others, from -1 to 1.
    pub difference: f64,
    /// A trace that has it, a selected one if there is one.
    pub example: TraceId,
}

/// Counts of the traces with a value.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// The trace that was counted last, by its number.
    last: usize,
    selected: usize,
    others: usize,
    example: TraceId,
}

/// Values of a key.
#[derive(Default)]
struct Key {
    values: HashMap<String, Counts>,
    /// Numbers by powers of ten.
    decades: BTreeMap<i32, Counts>,
    /// True if there are more values than are told apart.
    is_full: bool,
}

impl Differences {
    /// Compares traces; `is_selected` says on which side one is. At most `limit` values are returned.
    pub fn new<T: Borrow<Trace>>(traces: impl IntoIterator<Item = (T, bool)>, limit: usize) -> Differences {
        let mut keys: HashMap<String, Key> = HashMap::new();
        let mut totals = [0, 0];
        for (number, (trace, is_selected)) in traces.into_iter().enumerate() {
            let trace: &Trace = trace.borrow();
            totals[usize::from(is_selected)] += 1;
            let mut count = |key: &str, value: &Value| {
                if !keys.contains_key(key) {
                    keys.insert(key.to_owned(), Key::default());
                }
                if let Some(known) = keys.get_mut(key) {
                    known.count(key, value, number, trace.id, is_selected);
                }
            };
            for span in &trace.spans {
                count_span(span, &mut count);
            }
        }
        let [others, selected] = totals;
        if selected == 0 || others == 0 {
            return Differences { selected, others, values: Vec::new(), left_out: 0 };
        }
        let all = keys.into_iter().flat_map(|(key, counted)| counted.into_differences(key, selected, others));
        let mut values: Vec<Difference> = all.filter(|value| value.difference != 0.0).collect();
        // Half as much for a value that is rarer here: that is often the other face of one that is more frequent.
        let weight = |value: &Difference| value.difference.max(value.difference / -2.0);
        let size = |value: &Difference| (weight(value) * 1e9) as u64;
        values.sort_by(|left, right| {
            size(right).cmp(&size(left)).then_with(|| (&left.key, &left.value).cmp(&(&right.key, &right.value)))
        });
        let left_out = values.len().saturating_sub(limit);
        values.truncate(limit);
        Differences { selected, others, values, left_out }
    }
}

fn count_span(span: &Span, count: &mut impl FnMut(&str, &Value)) {
    let name = Value::String(span.name().to_string());
    if span.status == Status::Error {
        count("error", &name);
    }
    count("name", &name);
    for attributes in [span.attributes(), span.resource()] {
        attributes.0.iter().for_each(|(key, value)| count(key, value));
    }
}

impl Key {
    fn count(&mut self, key: &str, value: &Value, number: usize, trace: TraceId, is_selected: bool) {
        let text = match value {
            Value::String(text) => text.chars().take(VALUE_LIMIT).collect(),
            other => other.to_string().chars().take(VALUE_LIMIT).collect::<String>(),
        };
        let new = Counts { last: usize::MAX, selected: 0, others: 0, example: trace };
        if let Some(known) = self.values.get_mut(&text) {
            known.add(number, trace, is_selected);
        } else if self.values.len() < VALUES {
            self.values.entry(text).or_insert(new).add(number, trace, is_selected);
        } else {
            self.is_full = true;
        }
        // An id is a number that says nothing by its size.
        if let Some(amount) = value.as_f64().filter(|_| !key.ends_with("id")) {
            let decade = if amount > 0.0 { amount.log10().floor() as i32 } else { i32::MIN };
            self.decades.entry(decade).or_insert(new).add(number, trace, is_selected);
        }
    }

    fn into_differences(self, key: String, selected: usize, others: usize) -> Vec<Difference> {
        let of = |value: String, query: Option<String>, counts: Counts| {
            let difference = counts.selected as f64 / selected as f64 - counts.others as f64 / others as f64;
            let (key, example) = (key.clone(), counts.example);
            Difference { key, value, query, selected: counts.selected, others: counts.others, difference, example }
        };
        let is_number = !self.decades.is_empty();
        if is_number && self.values.len() > NUMBERS {
            let decade = |(decade, counts): (i32, Counts)| of(decade_text(decade), decade_query(&key, decade), counts);
            return self.decades.into_iter().map(decade).collect();
        }
        // Values of which each is one trace's own tell traces apart, and not groups.
        let own = self.values.values().filter(|counts| counts.selected + counts.others == 1).count();
        if self.is_full || (selected + others > 2 && own * 2 > self.values.len() && own > 2) {
            return Vec::new();
        }
        self.values.into_iter().map(|(value, counts)| of(value.clone(), Some(term(&key, &value)), counts)).collect()
    }
}

impl Counts {
    fn add(&mut self, number: usize, trace: TraceId, is_selected: bool) {
        if self.last == number {
            return;
        }
        self.last = number;
        if is_selected {
            if self.selected == 0 {
                self.example = trace;
            }
            self.selected += 1;
        } else {
            self.others += 1;
        }
    }
}

fn decade_text(decade: i32) -> String {
    if decade == i32::MIN { "0 and less".into() } else { format!("10^{decade}..10^{}", decade + 1) }
}

fn decade_query(key: &str, decade: i32) -> Option<String> {
    (decade != i32::MIN && (0..18).contains(&decade)).then(|| format!("{key}>={}", 10_u64.pow(decade as u32)))
}

/// Returns the term of the query language that finds a value.
fn term(key: &str, value: &str) -> String {
    if key == "error" {
        return format!("state:failed name={}", quoted(value));
    }
    format!("{key}={}", quoted(value))
}

fn quoted(value: &str) -> String {
    let is_plain =
        !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._/:@+-".contains(&byte));
    if is_plain { value.to_owned() } else { format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")) }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{loaded, span};
    use super::*;
    use crate::list::Filter;
    use crate::loaded::Loaded;
    use crate::query::Query;

    /// Ten traces; the odd ones are of region `eu`, and those from 8 on failed.
    fn ten() -> Loaded {
        let lines = (1..=10_u64).map(|number| {
            let region = if number % 2 == 1 { "eu" } else { "us \\\"west\\\"" };
            let attributes = format!(
                r#"{{"region": "{region}", "request.id": {number}, "text": "t{number}", "size": {}}}"#,
                10_u64.pow(number as u32 / 4)
            );
            let root = span("job", 2 * number + 1, None, (0, 10)).trace(number.into()).attributes(&attributes);
            let child = span("step", 2 * number + 2, 2 * number + 1, (1, 2)).trace(number.into());
            let child = if number >= 8 { child.failed("no") } else { child };
            root.line() + &child.line()
        });
        loaded([("1.json", lines.collect::<String>().into())])
    }

    fn differences(loaded: &Loaded, is_selected: impl Fn(u128) -> bool) -> Differences {
        Differences::new(loaded.traces.iter().map(|trace| (trace, is_selected(trace.id.0))), 50)
    }

    #[test]
    fn what_the_selected_have_in_common_comes_first() {
        let loaded = ten();
        let found = differences(&loaded, |id| id >= 8);
        assert_eq!((found.selected, found.others), (3, 7));
        let first = &found.values[0];
        assert_eq!((&*first.key, &*first.value, first.selected, first.others), ("error", "step", 3, 0));
        assert_eq!(first.difference, 1.0);
        assert!(found.values.iter().all(|value| !["name", "request.id", "text"].contains(&&*value.key)), "{found:?}");
        let regions: Vec<_> = found.values.iter().filter(|value| value.key == "region").collect();
        assert_eq!(regions.iter().map(|value| value.selected + value.others).collect::<Vec<_>>(), [5, 5]);
        assert!((regions[0].difference + regions[1].difference).abs() < 1e-9, "what is more here is less there");
    }

    #[test]
    fn the_term_of_a_value_finds_the_traces_that_have_it() {
        let loaded = ten();
        for value in differences(&loaded, |id| id % 3 == 0).values {
            let query = Query::parse(&value.query.expect("no number here has many values"), 0).expect("it parses");
            let found = loaded.list(&Filter { query, ..Filter::default() }, None).rows.len();
            assert_eq!(found, value.selected + value.others, "{}={}", value.key, value.value);
        }
    }

    #[test]
    fn many_numbers_are_put_together_by_powers_of_ten() {
        let lines = (1..=100_u64).map(|number| {
            let attributes = format!(r#"{{"bytes": {}}}"#, number * number);
            span("job", number, None, (0, 1)).trace(number.into()).attributes(&attributes).line()
        });
        let loaded = loaded([("1.json", lines.collect::<String>().into())]);
        let found = differences(&loaded, |id| id >= 32);
        assert_eq!(found.values[0].value, "10^3..10^4");
        assert_eq!((found.values[0].selected, found.values[0].others), (68, 0));
        assert_eq!(found.values[0].query.as_deref(), Some("bytes>=1000"));
    }

    #[test]
    fn without_another_side_nothing_differs() {
        let loaded = ten();
        for all in [true, false] {
            let found = differences(&loaded, |_| all);
            assert_eq!((found.values.len(), found.selected + found.others), (0, 10));
        }
    }
}
