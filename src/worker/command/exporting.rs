//! The `OTEL_*` variables that a program gets where the head receives OTLP, so that what it traces arrives there: a command's with its task and attempt, that of a
//! deployment with its service.
//!
//! The command's own environment comes first. A command that has an endpoint of its own gets neither ours nor the token, which is nobody
//! else's business; one that has headers or attributes of its own keeps them, and ours stand behind them.

use std::path::Path;

use tracer_core::names;
use tracer_core::propagation::{FLAG_SAMPLED, TraceParent};
use tracer_core::task::TaskId;
use tracer_ipc::http_place;

/// Time after which a batch of spans or log records is sent that is not full, in milliseconds: what a command has done is seen while it runs.
const DELAY_MS: &[u8] = b"200";

/// Address and token of the receiver of OTLP.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    url: String,
    token: String,
}

/// The attempt that a command is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandAttempt {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    /// The attempt's span, if there is one.
    pub(crate) context: Option<TraceParent>,
}

impl Receiver {
    /// Returns the receiver of a session, if it has one.
    pub(crate) fn of(session_dir: &Path) -> Option<Receiver> {
        http_place::receiver(session_dir).map(|(url, token)| Receiver { url, token })
    }

    /// Returns the variables for a program that is an attempt of a command, or serves a deployment: with these attributes of its resource. What is not sampled is to record nothing. `said` is what its environment
    /// says without them.
    pub(crate) fn variables<'a>(
        &self,
        attributes: &str,
        is_sampled: bool,
        said: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Vec<(&'static str, Vec<u8>)> {
        // An empty variable counts as not set, as the specification has it.
        let said = |name: &str| said(name).filter(|value| !value.is_empty());
        let is_elsewhere = [
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        ]
        .into_iter()
        .any(|name| said(name).is_some());
        let behind = |name: &str, ours: &str| [said(name).unwrap_or_default(), ours.as_bytes()].join(&b',').to_vec();
        let mut variables = Vec::new();
        if !is_elsewhere {
            let header = format!("authorization=Bearer%20{}", self.token);
            variables.push(("OTEL_EXPORTER_OTLP_ENDPOINT", self.url.clone().into_bytes()));
            variables.push(("OTEL_EXPORTER_OTLP_HEADERS", trimmed(behind("OTEL_EXPORTER_OTLP_HEADERS", &header))));
            variables.push(("OTEL_EXPORTER_OTLP_PROTOCOL", b"http/protobuf".to_vec()));
            variables.push(("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS.to_vec()));
            variables.push(("OTEL_BLRP_SCHEDULE_DELAY", DELAY_MS.to_vec()));
            if !is_sampled {
                // Few kinds of automatic instrumentation read `TRACEPARENT`: the others would begin traces of their own.
                variables.push(("OTEL_TRACES_SAMPLER", b"always_off".to_vec()));
            }
        }
        const MERGED: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        variables.retain(|(name, _)| *name == MERGED || said(name).is_none());
        let attributes = trimmed(behind("OTEL_RESOURCE_ATTRIBUTES", attributes));
        variables.push(("OTEL_RESOURCE_ATTRIBUTES", attributes));
        variables
    }
}

/// Returns the list without the comma that stands before the first.
fn trimmed(mut list: Vec<u8>) -> Vec<u8> {
    if list.first() == Some(&b',') {
        list.remove(0);
    }
    list
}

impl CommandAttempt {
    /// Returns whether the trace of the attempt is recorded. Where no hook traces attempts, those of commands stand alone.
    pub(super) fn is_sampled(&self) -> bool {
        self.context.is_none_or(|context| context.flags & FLAG_SAMPLED != 0)
    }

    pub(super) fn attributes(&self) -> String {
        let mut attributes = format!("{}={},{}={}", names::TASK_ID, self.task, names::ATTEMPT, self.attempt);
        if let Some(context) = self.context.filter(|context| context.flags & FLAG_SAMPLED != 0) {
            attributes.push_str(&format!(",{}={context}", names::TRACEPARENT));
        }
        attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(said: &[(&str, &str)]) -> Vec<String> {
        variables_in("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", said)
    }

    fn variables_in(context: &str, said: &[(&str, &str)]) -> Vec<String> {
        let receiver = Receiver { url: "http://127.0.0.1:4318".into(), token: "0a".into() };
        let context = TraceParent::parse(context).ok();
        let of = CommandAttempt { task: TaskId(7), attempt: 2, context };
        let value = |name: &str| said.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_bytes());
        let pair = |(name, value): (&str, Vec<u8>)| format!("{name}={}", String::from_utf8(value).unwrap());
        receiver.variables(&of.attributes(), of.is_sampled(), value).into_iter().map(pair).collect()
    }

    const ATTRIBUTES: &str = "tracer.task_id=7,tracer.attempt=2,\
         tracer.traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_command_that_says_nothing_gets_all_of_it() {
        let all = [
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318",
            "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%200a",
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY=200",
            "OTEL_BLRP_SCHEDULE_DELAY=200",
        ];
        let mut expected = all.map(str::to_owned).to_vec();
        expected.push(format!("OTEL_RESOURCE_ATTRIBUTES={ATTRIBUTES}"));
        assert_eq!(variables(&[]), expected);
        assert_eq!(variables(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), expected, "empty is not set");
    }

    #[test]
    fn a_command_whose_attempt_is_not_sampled_records_nothing_unless_it_says_otherwise() {
        const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02";
        let sampler = |context: &str, said: &[(&str, &str)]| {
            variables_in(context, said).into_iter().find(|pair| pair.starts_with("OTEL_TRACES_SAMPLER"))
        };
        assert_eq!(sampler(NOT_SAMPLED, &[]).as_deref(), Some("OTEL_TRACES_SAMPLER=always_off"));
        assert_eq!(sampler("no context: nothing traces attempts", &[]), None);
        for said in [("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")] {
            assert_eq!(sampler(NOT_SAMPLED, &[said]), None, "{said:?}");
        }
    }

    #[test]
    fn an_endpoint_of_its_own_wins_and_gets_no_token() {
        for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
            let said = [(name, "http://collector:4318"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop")];
            let expected = format!("OTEL_RESOURCE_ATTRIBUTES=service.name=shop,{ATTRIBUTES}");
            assert_eq!(variables(&said), [expected], "{name}");
        }
    }

    #[test]
    fn what_it_says_stays_and_headers_are_put_together() {
        let said = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a"),
            ("OTEL_BSP_SCHEDULE_DELAY", "1000"),
        ];
        let expected = [
            "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318".to_owned(),
            "OTEL_EXPORTER_OTLP_HEADERS=x-tenant=a,authorization=Bearer%200a".to_owned(),
            "OTEL_BLRP_SCHEDULE_DELAY=200".to_owned(),
            format!("OTEL_RESOURCE_ATTRIBUTES={ATTRIBUTES}"),
        ];
        assert_eq!(variables(&said), expected);
    }
}
