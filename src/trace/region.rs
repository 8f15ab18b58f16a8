//! A map of traces by start and duration, and the traces in a part of it.

use serde::Serialize;

use crate::loaded::Trace;
use crate::time::format as rfc3339;

/// Bounds of the start and the duration of a trace. The default is all traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The earliest start, in nanoseconds since the Unix epoch.
    pub since_unix_nano: u64,
    /// The end of the starts, which is outside.
    pub until_unix_nano: u64,
    /// The shortest duration in nanoseconds.
    pub min_ns: u64,
    /// The end of the durations, which is outside.
    pub max_ns: u64,
}

impl Default for Region {
    fn default() -> Region {
        Region { since_unix_nano: 0, until_unix_nano: u64::MAX, min_ns: 0, max_ns: u64::MAX }
    }
}

impl Region {
    /// Returns whether a trace is in it.
    pub fn contains(&self, trace: &Trace) -> bool {
        self.has(trace.start_unix_nano(), trace.duration_ns())
    }

    /// Returns whether a trace of this start and duration is in it.
    pub(super) fn has(&self, start_unix_nano: u64, duration_ns: u64) -> bool {
        (self.since_unix_nano..self.until_unix_nano).contains(&start_unix_nano)
            && (self.min_ns..self.max_ns).contains(&duration_ns)
    }
}

/// Start of a trace, its duration, and whether there was an error.
pub type Point = (u64, u64, bool);

/// Counts of traces in cells of start and duration. Columns are equal in time; rows are equal in the logarithm of the duration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeatMap {
    /// The first start, as text of RFC 3339.
    pub start_time: String,
    /// Time that the columns cover, in nanoseconds; at least one for each.
    pub span_ns: u64,
    /// The shortest duration, at the lower edge of the first row; at least 1.
    pub min_ns: u64,
    /// The upper edge of the last row.
    pub max_ns: u64,
    /// Number of columns.
    pub columns: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of traces in all cells.
    pub traces: usize,
    /// Cells with traces, in the order of columns, then rows.
    pub cells: Vec<Cell>,
}

/// A cell of a [`HeatMap`] with a trace in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Column, from the first start on.
    pub column: usize,
    /// Row, from the shortest duration on.
    pub row: usize,
    /// Number of traces.
    pub traces: usize,
    /// Number of traces in which a span has the status ERROR.
    pub errors: usize,
}

impl HeatMap {
    /// Counts traces in so many columns and rows, at least one of each. None if there are no traces.
    pub fn new<'a>(traces: impl IntoIterator<Item = &'a Trace>, columns: usize, rows: usize) -> Option<HeatMap> {
        let point = |trace: &Trace| (trace.start_unix_nano(), trace.duration_ns(), trace.error_count() > 0);
        HeatMap::of_points(traces.into_iter().map(point).collect(), columns, rows)
    }

    /// The same of points.
    pub fn of_points(mut points: Vec<Point>, columns: usize, rows: usize) -> Option<HeatMap> {
        points.iter_mut().for_each(|point| point.1 = point.1.max(1));
        let start = points.iter().map(|point| point.0).min()?;
        let last = points.iter().map(|point| point.0).max()?;
        let (columns, rows) = (columns.max(1), rows.max(1));
        let mut map = HeatMap {
            start_time: rfc3339(start),
            span_ns: (last - start + 1).max(columns as u64),
            min_ns: points.iter().map(|point| point.1).min()?,
            max_ns: points.iter().map(|point| point.1).max()?.saturating_add(1),
            columns,
            rows,
            traces: points.len(),
            cells: Vec::new(),
        };
        let mut cells = vec![Cell::default(); columns * rows];
        for (began, duration, is_error) in points {
            let (column, row) = (map.column(began - start), map.row(duration));
            let cell = &mut cells[column * rows + row];
            (cell.column, cell.row) = (column, row);
            cell.traces += 1;
            cell.errors += usize::from(is_error);
        }
        cells.retain(|cell| cell.traces > 0);
        map.cells = cells;
        Some(map)
    }

    fn column(&self, since_start: u64) -> usize {
        let column = u128::from(since_start) * self.columns as u128 / u128::from(self.span_ns);
        (column as usize).min(self.columns - 1)
    }

    fn row(&self, duration: u64) -> usize {
        let logarithm = |ns: u64| (ns as f64).ln();
        let share = (logarithm(duration) - logarithm(self.min_ns)) / (logarithm(self.max_ns) - logarithm(self.min_ns));
        ((share * self.rows as f64) as usize).min(self.rows - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{EPOCH, loaded, span};
    use super::*;

    /// Traces that start and end so many microseconds after the epoch.
    fn traces(micros: &[(u64, u64)]) -> Vec<Trace> {
        let line =
            |(id, &micros): (usize, &(u64, u64))| span("job", id as u64 + 1, None, micros).trace(id as u128 + 1).line();
        loaded([("1.json", micros.iter().enumerate().map(line).collect::<String>().into())]).traces
    }

    #[test]
    fn each_trace_is_counted_in_one_cell_and_edges_are_inside() {
        let traces = traces(&[(0, 1), (0, 1000), (50, 60), (99, 100), (99, 1_000_099)]);
        let map = HeatMap::new(&traces, 10, 6).unwrap();
        assert_eq!((map.min_ns, map.max_ns, map.traces), (1000, 1_000_000_001, 5));
        assert_eq!(map.start_time, "2026-11-05T12:00:00.000000Z");
        assert_eq!(map.cells.iter().map(|cell| cell.traces).sum::<usize>(), 5);
        let at = |column, row| {
            map.cells.iter().find(|cell| (cell.column, cell.row) == (column, row)).map(|cell| cell.traces)
        };
        assert_eq!([at(0, 0), at(0, 2), at(5, 0), at(9, 0), at(9, 5)], [Some(1); 5]);
        assert_eq!(map.cells.len(), 5);
    }

    #[test]
    fn one_trace_and_traces_alike_have_a_map_and_none_has_none() {
        assert_eq!(HeatMap::new(&[], 10, 10), None);
        for micros in [&[(7, 7)][..], &[(7, 9), (7, 9)]] {
            let map = HeatMap::new(&traces(micros), 10, 10).unwrap();
            assert_eq!(map.cells.len(), 1);
            assert_eq!((map.cells[0].column, map.cells[0].traces), (0, micros.len()));
        }
    }

    #[test]
    fn a_region_has_its_beginning_and_not_its_end() {
        let traces = traces(&[(10, 20), (20, 40), (30, 60)]);
        let found = |region: Region| {
            traces.iter().filter(|trace| region.contains(trace)).map(|trace| trace.id.0).collect::<Vec<_>>()
        };
        let at = |micros: u64| EPOCH + micros * 1000;
        assert_eq!(found(Region::default()), [1, 2, 3]);
        assert_eq!(found(Region { since_unix_nano: at(20), until_unix_nano: at(30), ..Region::default() }), [2]);
        assert_eq!(found(Region { min_ns: 10_000, max_ns: 20_000, ..Region::default() }), [1]);
        assert_eq!(found(Region { min_ns: 30_000, max_ns: 20_000, ..Region::default() }), Vec::<u128>::new());
    }
}
