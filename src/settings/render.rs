//! A service as the text of a `service.toml` that says the same.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use super::service_file::{Application, Autoscaling, Deployment, Detail, Retry, Service};

/// Renders a service. Keys whose value is what there is without them are left out.
pub fn render(service: &Service) -> String {
    let mut text = String::new();
    line(&mut text, "name", &string(&service.name));
    let http = &service.http;
    text.push_str("\n[http]\n");
    line(&mut text, "address", &string(&http.address.to_string()));
    if http.is_public {
        line(&mut text, "public", "true");
    }
    let proxies: Vec<_> = http.trusted_proxies.iter().map(ToString::to_string).collect();
    strings(&mut text, "trusted_proxies", &proxies);
    strings(&mut text, "host", &http.hosts);
    time(&mut text, "request_timeout", http.request_timeout);
    if let Some(bytes) = http.max_body {
        line(&mut text, "max_body", &string(&format!("{bytes}B")));
    }
    if let Some(tls) = &http.tls {
        text.push_str("\n[http.tls]\n");
        line(&mut text, "certificate", &string(&tls.certificate.display().to_string()));
        line(&mut text, "key", &string(&tls.key.display().to_string()));
        for name in &tls.names {
            text.push_str("\n[[http.tls.names]]\n");
            strings(&mut text, "host", &name.hosts);
            line(&mut text, "certificate", &string(&name.certificate.display().to_string()));
            line(&mut text, "key", &string(&name.key.display().to_string()));
        }
    }
    let tracing = &service.tracing;
    let mut of_tracing = String::new();
    if !tracing.is_enabled {
        line(&mut of_tracing, "enabled", "false");
    }
    if let Some(ratio) = tracing.sampling_ratio {
        line(&mut of_tracing, "sampling_ratio", &ratio.to_string());
    }
    strings(&mut of_tracing, "exporter", &tracing.exporters);
    if tracing.detail == Detail::Request {
        line(&mut of_tracing, "detail", "\"request\"");
    }
    if !of_tracing.is_empty() {
        let _ = write!(text, "\n[tracing]\n{of_tracing}");
    }
    service.applications.iter().for_each(|application| render_application(&mut text, application));
    text
}

fn render_application(text: &mut String, application: &Application) {
    text.push_str("\n[[applications]]\n");
    line(text, "name", &string(&application.name));
    strings(text, "host", &application.hosts);
    line(text, "route_prefix", &string(&application.route_prefix));
    let ingress = &application.deployments[application.ingress];
    if ingress.program().is_none() {
        line(text, "import_path", &string(&ingress.import_path));
    }
    application.deployments.iter().for_each(|deployment| render_deployment(text, deployment));
}

fn render_handler(text: &mut String, deployment: &Deployment) {
    if let Some((command, health)) = deployment.program() {
        let words: Vec<_> = command.into_iter().map(string).collect();
        line(text, "command", &format!("[{}]", words.join(", ")));
        if let Some(path) = health {
            line(text, "health", &string(path));
        }
        return;
    }
    line(text, "import_path", &string(&deployment.import_path));
    if !deployment.arguments.is_empty() {
        line(text, "arguments", &value(&Value::Array(deployment.arguments.clone())));
    }
}

fn render_deployment(text: &mut String, deployment: &Deployment) {
    let unless = Deployment::new(&deployment.import_path);
    text.push_str("\n[[applications.deployments]]\n");
    line(text, "name", &string(&deployment.name));
    render_handler(text, deployment);
    match deployment.autoscaling {
        Some(scaling) => line(text, "autoscaling", &autoscaling(&scaling)),
        None => line(text, "num_replicas", &deployment.num_replicas.to_string()),
    }
    if let Some(limit) = deployment.max_ongoing_requests {
        line(text, "max_ongoing_requests", &limit.to_string());
    }
    line(text, "max_queued_requests", &deployment.max_queued_requests.to_string());
    time(text, "queue_timeout", deployment.queue_timeout);
    if deployment.queue_full != unless.queue_full {
        line(text, "queue_full", &deployment.queue_full.to_string());
    }
    if deployment.retry == Retry::Idempotent {
        line(text, "retry", "\"idempotent\"");
    }
    if deployment.threads != unless.threads {
        line(text, "threads", &deployment.threads.to_string());
    }
    time(text, "start_timeout", Some(deployment.start_timeout));
    time(text, "health_check_period", Some(deployment.health_check_period));
    time(text, "drain_timeout", Some(deployment.drain_timeout));
    if let Some(config) = &deployment.user_config {
        line(text, "user_config", &value(config));
    }
    if !deployment.resources.is_empty() {
        let pairs = deployment.resources.iter().map(|(name, amount)| format!("{} = {amount}", string(name)));
        line(text, "resources", &format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", ")));
    }
    if !deployment.env.is_empty() {
        let pairs = deployment.env.iter().map(|(name, value)| format!("{} = {}", string(name), string(value)));
        line(text, "env", &format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", ")));
    }
    if let Some(folder) = &deployment.cwd {
        line(text, "cwd", &string(&folder.display().to_string()));
    }
}

fn autoscaling(scaling: &Autoscaling) -> String {
    let Autoscaling { min, max, target_ongoing_requests, upscale_delay, downscale_delay } = scaling;
    let (up, down) = (in_words(*upscale_delay), in_words(*downscale_delay));
    format!(
        "{{ min = {min}, max = {max}, target_ongoing_requests = {target_ongoing_requests}, \
         upscale_delay = \"{up}\", downscale_delay = \"{down}\" }}"
    )
}

fn line(text: &mut String, key: &str, value: &str) {
    let _ = writeln!(text, "{key} = {value}");
}

fn strings(text: &mut String, key: &str, values: &[String]) {
    if !values.is_empty() {
        let values: Vec<_> = values.iter().map(|value| string(value)).collect();
        line(text, key, &format!("[{}]", values.join(", ")));
    }
}

fn time(text: &mut String, key: &str, time: Option<Duration>) {
    let Some(time) = time else { return };
    line(text, key, &string(&in_words(time)));
}

fn in_words(time: Duration) -> String {
    match (time.as_secs(), time.subsec_nanos()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// Returns a basic string of TOML.
fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => drop(write!(out, "\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a value that came from TOML, which has no null.
fn value(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text),
        Value::Array(values) => format!("[{}]", values.iter().map(self::value).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let pairs = table.iter().map(|(name, value)| format!("{} = {}", string(name), self::value(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::service_file::parse;
    use super::*;

    const WHOLE: &str = r#"
name = "shop"
[http]
address = "0.0.0.0:8000"
public = true
trusted_proxies = ["10.0.0.1"]
host = ["shop.example"]
request_timeout = "1500ms"
max_body = "64MiB"
[tracing]
sampling_ratio = 0.25
exporter = "my_tracing:exporter"
detail = "request"
[[applications]]
route_prefix = "/api"
import_path = "shop:app"
[[applications.deployments]]
name = "Model"
import_path = "models:Model"
arguments = ["a \"quoted\" \\ path", 7, 1.5, true, [1, 2], { x = "y" }]
num_replicas = 2
max_ongoing_requests = 32
max_queued_requests = 5
queue_timeout = "10s"
queue_full = 429
retry = "idempotent"
threads = 3
user_config = { temperature = 0.2, "odd key" = ["z"] }
start_timeout = "90s"
health_check_period = "3s"
drain_timeout = "7s"
resources = { gpu = 1 }
env = { MODEL = "7\n8" }
cwd = "/tmp"
[[applications]]
name = "other"
route_prefix = "/other"
import_path = "other:app"
[[applications.deployments]]
import_path = "other:small"
autoscaling = { min = 0, max = 3, target_ongoing_requests = 7, upscale_delay = "1500ms", downscale_delay = "2m" }
"#;

    #[test]
    fn what_is_rendered_says_the_same() {
        let service = parse(WHOLE, Path::new("/")).unwrap();
        let text = render(&service);
        assert_eq!(parse(&text, Path::new("/")).unwrap_or_else(|error| panic!("{error}\n{text}")), service, "{text}");
        assert_eq!(render(&parse(&text, Path::new("/")).unwrap()), text);
        let least = parse("name = \"a\"\n[[applications]]\nimport_path = \"a:b\"", Path::new("/")).unwrap();
        let text = render(&least);
        assert!(!text.contains("tracing") && !text.contains("retry"), "{text}");
        assert_eq!(parse(&text, Path::new("/")).unwrap(), least);
    }
}
