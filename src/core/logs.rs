//! Settings of log records: which form events take, and the least level that is kept.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Settings of the log records of modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSettings {
    /// Form of `tracing` events.
    pub events: LogEvents,
    /// Least level that is kept.
    pub level: LogLevel,
}

/// Form that `tracing` events of modules take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogEvents {
    /// Log records with the ids of their span.
    Log,
    /// Events of their span.
    Span,
    /// Both of these.
    #[default]
    Both,
}

/// Level of a log record, from the one of which there are most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Every step: all records.
    Trace,
    /// Details for whoever looks for a fault.
    Debug,
    /// Course of events, and all that is worse.
    #[default]
    Info,
    /// Possible faults, and what is worse.
    Warn,
    /// Faults.
    Error,
    /// No log records at all.
    Off,
}

impl LogLevel {
    /// Returns the first of OpenTelemetry's severity numbers of this level; for [`Off`](LogLevel::Off), one that no record has.
    pub fn severity(self) -> u32 {
        match self {
            LogLevel::Trace => 1,
            LogLevel::Debug => 5,
            LogLevel::Info => 9,
            LogLevel::Warn => 13,
            LogLevel::Error => 17,
            LogLevel::Off => u32::MAX,
        }
    }
}

/// Makes the words of an enumeration: how it is shown, and what is read.
macro_rules! words {
    ($type:ident, $expected:literal, $($word:literal => $value:ident),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($type::$value => $word,)+
                })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($word => Ok($type::$value),)+
                    other => Err(format!(concat!("expected ", $expected, ", found `{}`"), other)),
                }
            }
        }
    };
}

words!(LogEvents, "`log`, `span` or `both`", "log" => Log, "span" => Span, "both" => Both);
words!(
    LogLevel, "`trace`, `debug`, `info`, `warn`, `error` or `off`",
    "trace" => Trace, "debug" => Debug, "info" => Info, "warn" => Warn, "error" => Error, "off" => Off
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_shown_and_others_are_refused() {
        for events in [LogEvents::Log, LogEvents::Span, LogEvents::Both] {
            assert_eq!(events.to_string().parse(), Ok(events));
        }
        let levels = [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error, LogLevel::Off];
        for level in levels {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!(levels.windows(2).all(|pair| pair[0].severity() < pair[1].severity()));
        assert_eq!("all".parse::<LogEvents>().unwrap_err(), "expected `log`, `span` or `both`, found `all`");
    }
}
