//! `tracer.toml`: keys, types and line numbers.
//!
//! The keys are walked by hand and not with serde, so that every complaint names key, expectation, finding and line.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tracer_core::address::AddressError;
use tracer_core::propagation::Propagators;
use tracer_core::suggestion;
use tracer_core::task::check_resource;
use tracer_engine::signed::check_key;

use super::{
    Error, Overrides, SamplingRatio, SamplingRatioError, check_hook_timeout, check_log_size, check_max_processes,
    check_memory, check_num_workers, hooks_of, parse_duration, parse_queue, parse_size,
};

const TOP_KEYS: &[&str] = &[
    "block",
    "num_workers",
    "max_processes",
    "queue_memory",
    "max_log_size",
    "journal_sync",
    "worker_memory",
    "resources",
    "temp_dir",
    "module_path",
    "tracing",
    "logs",
    "http",
    "metrics",
    "otlp",
    "engine",
];
const TRACING_KEYS: &[&str] = &[
    "enabled",
    "startup_hook",
    "exporter",
    "required",
    "spans_dir",
    "hook_timeout",
    "sampling_ratio",
    "propagators",
    "runtime",
    "record_arguments",
];
const LOGS_KEYS: &[&str] = &["events", "level"];
const HTTP_KEYS: &[&str] = &["address", "commands"];
const METRICS_KEYS: &[&str] = &["address"];
const OTLP_KEYS: &[&str] = &["address"];
const ENGINE_KEYS: &[&str] = &[
    "address",
    "credentials",
    "ca",
    "insecure",
    "queues",
    "max_shared_value",
    "shared_commands",
    "trusted_keys",
    "wait",
];
/// The tables of a file with their keys, and with where to put a key that is in another one.
pub(crate) type Tables = &'static [(&'static str, &'static [&'static str], &'static str)];

const TABLES: Tables = &[
    ("", TOP_KEYS, "at the top of the file, above every table"),
    ("tracing.", TRACING_KEYS, "in the table `[tracing]`"),
    ("logs.", LOGS_KEYS, "in the table `[logs]`"),
    ("http.", HTTP_KEYS, "in the table `[http]`"),
    ("metrics.", METRICS_KEYS, "in the table `[metrics]`"),
    ("otlp.", OTLP_KEYS, "in the table `[otlp]`"),
    ("engine.", ENGINE_KEYS, "in the table `[engine]`"),
];

/// A mistake in a configuration file. The message begins with the line's number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .line, .message)]
pub struct FileError {
    line: usize,
    message: String,
}

/// Returns a hint for a text that is YAML or JSON, as far as its first line shows.
fn other_format(text: &str) -> &'static str {
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let is_key =
        |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if first.starts_with('{') {
        "\n(hint: this looks like JSON, expected TOML: `key = value`, and tables as `[name]`)"
    } else if first == "---" || first.split_once(':').is_some_and(|(key, _)| is_key(key)) {
        "\n(hint: this looks like YAML, expected TOML: `key = value`, and tables as `[name]`)"
    } else {
        ""
    }
}

/// Reads the text of a configuration file that is in `folder`.
pub(super) fn parse(text: &str, folder: &Path) -> Result<Overrides, FileError> {
    let reader = Reader { text, folder, tables: TABLES };
    let document = reader.document()?;
    let mut file = Overrides::default();
    for (key, value) in document.get_ref() {
        match key.get_ref().as_ref() {
            "block" => file.block = Some(reader.boolean("block", value)?),
            "num_workers" => file.num_workers = Some(reader.number("num_workers", value, check_num_workers)?),
            "max_processes" => file.max_processes = Some(reader.number("max_processes", value, check_max_processes)?),
            "queue_memory" => file.queue_memory = Some(reader.memory("queue_memory", value)?),
            "max_log_size" => file.max_log_size = Some(reader.log_size("max_log_size", value)?),
            "journal_sync" => file.journal_sync = Some(reader.boolean("journal_sync", value)?),
            "worker_memory" => file.worker_memory = Some(reader.memory("worker_memory", value)?),
            "resources" => file.resources = Some(reader.resources("resources", value)?),
            "temp_dir" => file.temp_dir = Some(reader.path("temp_dir", value)?),
            "module_path" => file.module_path = Some(reader.paths("module_path", value)?),
            "tracing" => reader.tracing(value, &mut file)?,
            "logs" => reader.logs(value, &mut file)?,
            "http" => reader.http(value, &mut file)?,
            "metrics" => reader.metrics(value, &mut file)?,
            "otlp" => reader.otlp(value, &mut file)?,
            "engine" => reader.engine(value, &mut file)?,
            unknown => return Err(reader.unknown_key("", unknown, key.span().start)),
        }
    }
    Ok(file)
}

/// Reads a file whose keys are walked by hand.
pub(crate) struct Reader<'a> {
    /// All of it.
    pub(crate) text: &'a str,
    /// The folder that it is in, to which its paths are relative.
    pub(crate) folder: &'a Path,
    /// Tables and keys that are known.
    pub(crate) tables: Tables,
}

/// A value with its place in the file.
pub(crate) type Value<'a> = Spanned<DeValue<'a>>;

impl<'a> Reader<'a> {
    /// Returns the tables of the file, before anything is known of their keys.
    pub(crate) fn document(&self) -> Result<Spanned<DeTable<'a>>, FileError> {
        DeTable::parse(self.text).map_err(|error| FileError {
            line: line_at(self.text, error.span().map_or(0, |span| span.start)),
            message: format!("{}{}", error.message().trim_end().replace('\n', ", "), other_format(self.text)),
        })
    }

    fn tracing(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("tracing", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "startup_hook" => file.tracing_startup_hooks = self.names("tracing.startup_hook", value)?,
                "exporter" => file.tracing_exporters = self.names("tracing.exporter", value)?,
                "enabled" => file.tracing_enabled = Some(self.boolean("tracing.enabled", value)?),
                "runtime" => file.trace_runtime = Some(self.boolean("tracing.runtime", value)?),
                "required" => file.tracing_required = Some(self.boolean("tracing.required", value)?),
                "spans_dir" => file.spans_dir = Some(self.path("tracing.spans_dir", value)?),
                "hook_timeout" => {
                    let key = "tracing.hook_timeout";
                    let timeout = self.duration(key, value)?;
                    file.hook_timeout =
                        Some(check_hook_timeout(timeout).map_err(|reason| self.invalid(key, &reason, value))?);
                }
                "sampling_ratio" => file.sampling_ratio = Some(self.ratio("tracing.sampling_ratio", value)?),
                "propagators" => file.propagators = Some(self.propagators("tracing.propagators", value)?),
                "record_arguments" => file.record_arguments = Some(self.boolean("tracing.record_arguments", value)?),
                unknown => return Err(self.unknown_key("tracing.", unknown, key.span().start)),
            }
        }
        match hooks_of(file) {
            Err(Error::Invalid { reason, .. }) => Err(self.invalid("tracing", &reason, value)),
            _ => Ok(()),
        }
    }

    /// Reads an address; an empty text says nothing, as everywhere.
    fn address<T: FromStr<Err = AddressError>>(&self, key: &str, value: &Value<'_>) -> Result<Option<T>, FileError> {
        let address = self.string(key, value)?;
        if address.is_empty() {
            return Ok(None);
        }
        let parsed = address.parse().map_err(|error: AddressError| error.to_string());
        Ok(Some(parsed.map_err(|reason| self.invalid(key, &reason, value))?))
    }

    fn metrics(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("metrics", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "address" => file.metrics = self.address("metrics.address", value)?,
                unknown => return Err(self.unknown_key("metrics.", unknown, key.span().start)),
            }
        }
        Ok(())
    }

    fn otlp(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("otlp", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "address" => file.otlp = self.address("otlp.address", value)?,
                unknown => return Err(self.unknown_key("otlp.", unknown, key.span().start)),
            }
        }
        Ok(())
    }

    fn engine(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("engine", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "address" => file.address = Some(self.string("engine.address", value)?.to_owned()),
                "credentials" => file.credentials = Some(self.path("engine.credentials", value)?),
                "ca" => file.engine_ca = Some(self.path("engine.ca", value)?),
                "insecure" => file.insecure_engine = Some(self.boolean("engine.insecure", value)?),
                "queues" => {
                    let queues = self.names("engine.queues", value)?;
                    let queues = queues.iter().map(|queue| parse_queue(queue)).collect::<Result<_, _>>();
                    file.queues = Some(queues.map_err(|reason| self.invalid("engine.queues", &reason, value))?);
                }
                "max_shared_value" => {
                    file.max_shared_value =
                        Some(self.size("engine.max_shared_value", "a size such as `1GiB`", value)?);
                }
                "trusted_keys" => {
                    let keys = self.names("engine.trusted_keys", value)?;
                    let keys = keys.iter().map(|key| check_key(key)).collect::<Result<_, _>>();
                    file.trusted_keys =
                        Some(keys.map_err(|reason| self.invalid("engine.trusted_keys", &reason, value))?);
                }
                "shared_commands" => file.shared_commands = Some(self.boolean("engine.shared_commands", value)?),
                "on_partition" => file.on_partition = Some(self.word("engine.on_partition", value)?),
                "wait" => file.engine_wait = Some(self.duration("engine.wait", value)?),
                unknown => return Err(self.unknown_key("engine.", unknown, key.span().start)),
            }
        }
        Ok(())
    }

    /// Reads one of a few words.
    fn word<T: FromStr<Err = String>>(&self, key: &str, value: &Value<'_>) -> Result<T, FileError> {
        self.string(key, value)?.parse().map_err(|reason: String| self.invalid(key, &reason, value))
    }

    fn logs(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("logs", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "events" => file.log_events = Some(self.word("logs.events", value)?),
                "level" => file.log_level = Some(self.word("logs.level", value)?),
                unknown => return Err(self.unknown_key("logs.", unknown, key.span().start)),
            }
        }
        Ok(())
    }

    fn http(&self, value: &Value<'_>, file: &mut Overrides) -> Result<(), FileError> {
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type("http", "a table", value))?;
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "address" => file.http = self.address("http.address", value)?,
                "commands" => file.http_commands = Some(self.boolean("http.commands", value)?),
                unknown => return Err(self.unknown_key("http.", unknown, key.span().start)),
            }
        }
        Ok(())
    }

    /// Returns a time, as text or in seconds.
    pub(crate) fn duration(&self, key: &str, value: &Value<'_>) -> Result<Duration, FileError> {
        let duration = match value.get_ref() {
            DeValue::String(text) => parse_duration(text),
            DeValue::Integer(seconds) if seconds.radix() == 10 => parse_duration(seconds.as_str()),
            DeValue::Float(seconds) => parse_duration(seconds.as_str()),
            _ => return Err(self.wrong_type(key, "a duration such as `500ms`, `10s` or `2m`", value)),
        };
        duration.map_err(|error| self.invalid(key, &error.to_string(), value))
    }

    /// Returns a whole number that passes a check.
    pub(crate) fn number(
        &self,
        key: &str,
        value: &Value<'_>,
        check: fn(i64) -> Result<u32, String>,
    ) -> Result<u32, FileError> {
        let integer = value.get_ref().as_integer().ok_or_else(|| self.wrong_type(key, "an integer", value))?;
        // A number that does not fit is far out of range on the side of its sign.
        let far_out = if integer.as_str().starts_with('-') { i64::MIN } else { i64::MAX };
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(far_out);
        check(number).map_err(|reason| self.invalid(key, &reason, value))
    }

    /// Returns a number of bytes.
    pub(crate) fn size(&self, key: &str, expected: &str, value: &Value<'_>) -> Result<u64, FileError> {
        let text = value.get_ref().as_str().ok_or_else(|| self.wrong_type(key, expected, value))?;
        parse_size(text).map_err(|error| self.invalid(key, &error.to_string(), value))
    }

    fn memory(&self, key: &str, value: &Value<'_>) -> Result<u64, FileError> {
        let bytes = self.size(key, "a size such as `2GiB`", value)?;
        check_memory(bytes).map_err(|reason| self.invalid(key, &reason, value))
    }

    fn log_size(&self, key: &str, value: &Value<'_>) -> Result<u64, FileError> {
        let bytes = self.size(key, "a size such as `100MiB`", value)?;
        check_log_size(bytes).map_err(|reason| self.invalid(key, &reason, value))
    }

    /// Amounts of what a machine has, by name.
    pub(crate) fn resources(&self, key: &str, value: &Value<'_>) -> Result<Vec<(String, u64)>, FileError> {
        let expected = "a table of whole numbers such as `{ gpu = 2 }`";
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong_type(key, expected, value))?;
        let mut resources = Vec::new();
        for (name, value) in table {
            let integer = value.get_ref().as_integer().ok_or_else(|| self.wrong_type(key, "a whole number", value))?;
            let far_out = if integer.as_str().starts_with('-') { i64::MIN } else { i64::MAX };
            let amount = i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(far_out);
            let resource = check_resource(name.get_ref(), amount);
            resources.push(resource.map_err(|reason| self.invalid(key, &reason, value))?);
        }
        Ok(resources)
    }

    fn propagators(&self, key: &str, value: &Value<'_>) -> Result<Propagators, FileError> {
        let read = if let Some(text) = value.get_ref().as_str() {
            text.parse()
        } else {
            let array = value.get_ref().as_array();
            let array = array.ok_or_else(|| self.wrong_type(key, "an array of strings", value))?;
            let names = array.iter().map(|name| self.string(key, name)).collect::<Result<Vec<_>, _>>()?;
            Propagators::from_names(names)
        };
        read.map_err(|error| self.invalid(key, &error.to_string(), value))
    }

    /// Returns a truth value.
    pub(crate) fn boolean(&self, key: &str, value: &Value<'_>) -> Result<bool, FileError> {
        value.get_ref().as_bool().ok_or_else(|| self.wrong_type(key, "a boolean", value))
    }

    /// Returns a share, from 0 to 1.
    pub(crate) fn ratio(&self, key: &str, value: &Value<'_>) -> Result<SamplingRatio, FileError> {
        let text = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => return Err(self.wrong_type(key, "a number from 0 to 1", value)),
        };
        text.parse().map_err(|error: SamplingRatioError| self.invalid(key, &error.to_string(), value))
    }

    /// Returns a text.
    pub(crate) fn string<'v>(&self, key: &str, value: &'v Value<'_>) -> Result<&'v str, FileError> {
        value.get_ref().as_str().ok_or_else(|| self.wrong_type(key, "a string", value))
    }

    /// Returns one name, or an array of them.
    pub(crate) fn names(&self, key: &str, value: &Value<'_>) -> Result<Vec<String>, FileError> {
        match value.get_ref() {
            DeValue::Array(names) => names.iter().map(|name| Ok(self.string(key, name)?.to_owned())).collect(),
            DeValue::String(name) => Ok(vec![name.to_string()]),
            _ => Err(self.wrong_type(key, "a string or an array of strings", value)),
        }
    }

    /// Returns a path.
    pub(crate) fn path(&self, key: &str, value: &Value<'_>) -> Result<PathBuf, FileError> {
        let path = self.string(key, value)?;
        // An empty path says nothing; it must not become the file's folder.
        Ok(if path.is_empty() { PathBuf::new() } else { self.folder.join(path) })
    }

    fn paths(&self, key: &str, value: &Value<'_>) -> Result<Vec<PathBuf>, FileError> {
        let paths = value.get_ref().as_array().ok_or_else(|| self.wrong_type(key, "an array of strings", value))?;
        paths.iter().map(|path| self.path(key, path)).collect()
    }

    /// Returns the complaint over a key of a table that has none of that name.
    pub(crate) fn unknown_key(&self, table: &str, key: &str, offset: usize) -> FileError {
        let known = self.tables.iter().find(|(name, ..)| *name == table).map_or(&[][..], |(_, keys, _)| keys);
        let elsewhere = self.tables.iter().find(|(name, keys, _)| *name != table && keys.contains(&key));
        let mut message = format!("unknown key `{table}{key}`");
        if let Some((.., place)) = elsewhere {
            message += &format!("\n(hint: it belongs {place})");
        } else {
            match suggestion::hint(key, known.iter().copied()) {
                none if none.is_empty() => message += &format!("; known are `{}`", known.join("`, `")),
                hint => message += &hint,
            }
        }
        FileError { line: line_at(self.text, offset), message }
    }

    /// Returns the complaint over a key that is not there, in the table that begins at `offset`.
    pub(crate) fn missing(&self, key: &str, expected: &str, offset: usize) -> FileError {
        let message = format!("`{key}`: expected {expected}, found nothing");
        FileError { line: line_at(self.text, offset), message }
    }

    /// Returns the number of the line, from 1, in which a value begins.
    pub(crate) fn line_of(&self, value: &Value<'_>) -> usize {
        line_at(self.text, value.span().start)
    }

    /// Returns the complaint over a value of another type.
    pub(crate) fn wrong_type(&self, key: &str, expected: &str, value: &Value<'_>) -> FileError {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.invalid(key, &format!("expected {expected}, found {found}"), value)
    }

    /// Returns the complaint over a value that cannot be.
    pub(crate) fn invalid(&self, key: &str, reason: &str, value: &Value<'_>) -> FileError {
        FileError { line: self.line_of(value), message: format!("`{key}`: {reason}") }
    }
}

/// Returns the number of the line, from 1, that has the byte at `offset`.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}
