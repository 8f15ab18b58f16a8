//! The share of new traces that are sampled.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The share of new traces that are sampled, from 0 (none) to 1 (all, the default).
///
/// It is a default for new traces only: a context that comes from outside keeps the decision that it carries, and neither a
/// hook's own sampler nor `OTEL_TRACES_SAMPLER` is overruled.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct SamplingRatio(f64);

/// Never `NaN`, so that it equals itself.
impl Eq for SamplingRatio {}

impl SamplingRatio {
    /// Every new trace is sampled.
    pub const ALL: SamplingRatio = SamplingRatio(1.0);

    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for SamplingRatio {
    fn default() -> SamplingRatio {
        SamplingRatio::ALL
    }
}

impl fmt::Display for SamplingRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<SamplingRatio> for f64 {
    fn from(ratio: SamplingRatio) -> f64 {
        ratio.0
    }
}

impl TryFrom<f64> for SamplingRatio {
    type Error = SamplingRatioError;

    fn try_from(ratio: f64) -> Result<SamplingRatio, SamplingRatioError> {
        // Not for `NaN`, which is in no range. The sum makes a 0 of -0.
        let is_in_range = (0.0..=1.0).contains(&ratio);
        if is_in_range { Ok(SamplingRatio(ratio + 0.0)) } else { Err(SamplingRatioError { found: ratio.to_string() }) }
    }
}

impl FromStr for SamplingRatio {
    type Err = SamplingRatioError;

    /// Fit for use as a value parser of a flag.
    fn from_str(text: &str) -> Result<SamplingRatio, SamplingRatioError> {
        let error = || SamplingRatioError { found: text.to_owned() };
        let ratio: f64 = text.trim().parse().map_err(|_| error())?;
        SamplingRatio::try_from(ratio).map_err(|_| error())
    }
}

/// A text or a number that is not a ratio. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number from 0 to 1, found `{}`", .found)]
pub struct SamplingRatioError {
    found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        for (text, expected) in [("0", 0.0), ("-0", 0.0), ("1", 1.0), ("0.25", 0.25), (" 1e-3 ", 0.001), ("1.0", 1.0)] {
            assert_eq!(text.parse::<SamplingRatio>().map(SamplingRatio::get), Ok(expected), "{text}");
        }
        for text in ["", "half", "50%", "1.01", "-0.1", "NaN", "inf", "0,5"] {
            let error = text.parse::<SamplingRatio>().expect_err(text).to_string();
            assert_eq!(error, format!("expected a number from 0 to 1, found `{text}`"));
        }
    }

    #[test]
    fn a_ratio_reads_as_it_was_given() {
        for text in ["0", "0.5", "0.001", "1"] {
            assert_eq!(text.parse::<SamplingRatio>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn a_ratio_out_of_range_does_not_come_over_the_wire() {
        assert_eq!(serde_json::from_str::<SamplingRatio>("0.5").ok(), SamplingRatio::try_from(0.5).ok());
        assert!(serde_json::from_str::<SamplingRatio>("1.5").is_err());
    }
}
