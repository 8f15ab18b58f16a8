//! Figures, their table and their file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::Failure;

/// Kind of a cluster: traced or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Variant {
    Untraced,
    Traced,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Variant::Untraced => "untraced",
            Variant::Traced => "traced",
        })
    }
}

/// Direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Lower,
    Higher,
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Nanoseconds,
    PerSecond,
    Bytes,
    Count,
}

/// One measured value with what it is to be compared to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) variant: Variant,
    pub(crate) value: f64,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
    /// The least and the greatest, where `value` is a median of whole runs.
    pub(crate) range: Option<(f64, f64)>,
    /// The operating system's part, with its value in the same unit.
    pub(crate) floor: Option<(&'static str, f64)>,
    /// The peer's value in the same unit.
    pub(crate) peer: Option<f64>,
}

impl Figure {
    pub(crate) fn time(name: &str, variant: Variant, nanoseconds: f64) -> Figure {
        Figure::new(name, variant, nanoseconds, Unit::Nanoseconds, Better::Lower)
    }

    pub(crate) fn rate(name: &str, variant: Variant, per_second: f64) -> Figure {
        Figure::new(name, variant, per_second, Unit::PerSecond, Better::Higher)
    }

    pub(crate) fn bytes(name: &str, variant: Variant, bytes: f64) -> Figure {
        Figure::new(name, variant, bytes, Unit::Bytes, Better::Lower)
    }

    pub(crate) fn count(name: &str, variant: Variant, count: f64) -> Figure {
        Figure::new(name, variant, count, Unit::Count, Better::Lower)
    }

    /// Returns the cpu time of one task in one kind of process.
    pub(crate) fn cpu(role: &str, variant: Variant, nanoseconds: f64) -> Figure {
        Figure::time(&format!("cpu time of a task, {role}"), variant, nanoseconds)
    }

    fn new(name: &str, variant: Variant, value: f64, unit: Unit, better: Better) -> Figure {
        Figure { name: name.into(), variant, value, unit, better, range: None, floor: None, peer: None }
    }

    /// Returns the median of so many runs.
    pub(crate) fn over(self, runs: &[f64]) -> Figure {
        let range = (runs.len() > 1).then(|| range(runs));
        Figure { value: percentile(runs, 50), range, ..self }
    }

    /// Returns the multiple of the floor that it takes; for a rate, the multiple by which it is slower than the floor.
    fn times_floor(&self) -> Option<f64> {
        let (_, floor) = self.floor?;
        Some(if self.better == Better::Higher { floor / self.value } else { self.value / floor })
    }

    /// Returns the multiple by which it is better than the peer.
    fn times_peer(&self) -> Option<f64> {
        let peer = self.peer?;
        Some(if self.better == Better::Higher { self.value / peer } else { peer / self.value })
    }
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: &'static str,
    unix_seconds: u64,
    cpus: usize,
    kernel: String,
    is_quick: bool,
    /// Origin of the hook.
    hook: String,
    peer: &'static str,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(is_quick: bool, hook: String) -> Report {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Report {
            version: tracer::VERSION,
            unix_seconds: now.as_secs(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            is_quick,
            hook,
            peer: "Ray 2.60.0, measured on two cores of the same kind of machine; where a figure says `beside`, the one it names, in the same run",
            figures: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, figure: Figure) {
        super::say(&format!("  {}, {}: {}", figure.name, figure.variant, show(figure.value, figure.unit)));
        self.figures.push(figure);
    }

    /// Returns the figures for people. `/ floor` is how many times the floor a figure takes, `× PEER` how many times better than the peer it is:
    /// Ray, where no other is named.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["FIGURE", "", "VALUE", "RANGE", "FLOOR", "/ FLOOR", "PEER", "× PEER"]);
        for column in 2..8 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for figure in &self.figures {
            let show_one = |value: f64| show(value, figure.unit);
            table.add_row([
                figure.name.clone(),
                figure.variant.to_string(),
                show_one(figure.value),
                figure
                    .range
                    .map(|(least, most)| format!("{} to {}", show_one(least), show_one(most)))
                    .unwrap_or_default(),
                figure.floor.map(|(_, floor)| show_one(floor)).unwrap_or_default(),
                figure.times_floor().map(|times| format!("{times:.2}")).unwrap_or_default(),
                figure.peer.map(show_one).unwrap_or_default(),
                figure.times_peer().map(|times| format!("{times:.1}")).unwrap_or_default(),
            ]);
        }
        table
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| format!("cannot write `{}`: {error}", path.display());
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).map_err(failed)?;
        Ok(())
    }
}

/// `bench/end_to_end.json` in the target folder.
pub(crate) fn default_path() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench").join("end_to_end.json")
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds if value >= 1e9 => format!("{:.2} s", value / 1e9),
        Unit::Nanoseconds if value >= 1e6 => format!("{:.2} ms", value / 1e6),
        Unit::Nanoseconds if value >= 1e3 => format!("{:.2} µs", value / 1e3),
        Unit::Nanoseconds => format!("{value:.1} ns"),
        Unit::PerSecond => format!("{value:.0}/s"),
        Unit::Bytes if value >= 1048576.0 => format!("{:.2} MiB", value / 1048576.0),
        Unit::Bytes => format!("{value:.0} B"),
        Unit::Count => format!("{value:.3}"),
    }
}

/// Returns the value below which `percent` of the values are, by nearest rank.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Returns the least and the greatest.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| (least.min(value), most.max(value)))
}

pub(crate) fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}
