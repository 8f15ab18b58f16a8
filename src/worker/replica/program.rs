//! Places where a program listens: a Unix socket in the session's folder, or a port of loopback.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tracer_core::task::WorkerId;
use tracer_ipc::serving::{Deployment, PORT, SOCKET};

use crate::command::Receiver;

/// The most bytes in the path of a Unix socket (`sun_path`, without the zero).
const PATH_LIMIT: usize = 107;

/// Returns the path of the socket of a replica's program.
pub(super) fn socket(session_dir: &Path, worker: WorkerId) -> PathBuf {
    session_dir.join(format!("program-{worker}.sock"))
}

/// Returns the arguments of a program's deployment with the place in them where this replica's program listens.
pub(super) fn arguments(
    deployment: &Deployment,
    socket: &Path,
    variables: BTreeMap<&'static str, String>,
) -> Result<Vec<Value>, String> {
    let [command, address, health, limit, ..] = deployment.arguments.as_slice() else {
        return Err("a program has a command and an address".into());
    };
    let (placeholder, place) = match address.as_str() {
        Some(PORT) => (PORT, free_port().map_err(|error| format!("there is no free port for the program: {error}"))?),
        _ => (SOCKET, path(socket)?),
    };
    let mut command = command.clone();
    for word in command.as_array_mut().into_iter().flatten() {
        if let Value::String(text) = word {
            *text = text.replace(placeholder, &place);
        }
    }
    let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    Ok(vec![command, place.into(), health.clone(), limit.clone(), Value::Object(variables)])
}

/// Returns the variables with which a replica's program exports what it traces, where the head receives OTLP. They are the program's alone: the replica's own spans
/// go where its hook exports them.
pub(super) fn exporting(session_dir: &Path, service: &str, worker: WorkerId) -> BTreeMap<&'static str, String> {
    let Some(receiver) = Receiver::of(session_dir) else { return BTreeMap::new() };
    let environment: BTreeMap<_, _> = std::env::vars_os().collect();
    let said = |name: &str| environment.get(OsStr::new(name)).map(|value| value.as_bytes());
    let set = receiver.variables(&format!("service.instance.id={service}-{worker}"), true, said);
    let mut variables: BTreeMap<_, _> =
        set.into_iter().map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned())).collect();
    let is_named = said("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variables
            .get("OTEL_RESOURCE_ATTRIBUTES")
            .is_some_and(|list| list.split(',').any(|attribute| attribute.trim_start().starts_with("service.name=")));
    if !is_named {
        variables.insert("OTEL_SERVICE_NAME", service.to_owned());
    }
    variables
}

fn path(socket: &Path) -> Result<String, String> {
    let text = socket.to_str().filter(|text| text.len() <= PATH_LIMIT);
    text.map(str::to_owned).ok_or_else(|| {
        format!(
            "a Unix socket's path has at most {PATH_LIMIT} bytes of UTF-8, and that of the program is `{}`\n\
             (hint: `{{port}}` in the command in place of `{{socket}}`, or a head with a shorter --temp-dir)",
            socket.display()
        )
    })
}

/// Returns a port that nobody has now. The program binds it a moment later, so another process may be quicker; then the replica fails and the
/// next one has another port.
fn free_port() -> std::io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(command: &[&str], address: &str) -> Deployment {
        let mut deployment = Deployment::new("");
        deployment.run_program(command.iter().map(|word| (*word).to_owned()).collect(), address, None);
        deployment
    }

    #[test]
    fn the_place_stands_wherever_the_command_names_it() {
        let found =
            arguments(&program(&["a", "unix:{socket}", "{socket}"], SOCKET), Path::new("/s/1.sock"), BTreeMap::new())
                .unwrap();
        assert_eq!(found[..2], [serde_json::json!(["a", "unix:/s/1.sock", "/s/1.sock"]), "/s/1.sock".into()]);
        let found =
            arguments(&program(&["a", "--port={port}"], PORT), Path::new("/s"), BTreeMap::from([("A", "b".into())]))
                .unwrap();
        let port: u16 = found[1].as_str().unwrap().parse().unwrap();
        assert_eq!(found[0][1], format!("--port={port}"));
        assert_eq!(found.last(), Some(&serde_json::json!({ "A": "b" })));
    }

    #[test]
    fn a_path_that_is_too_long_is_told_with_the_way_out() {
        let long = "/a".repeat(60);
        let error = arguments(&program(&["a", "{socket}"], SOCKET), Path::new(&long), BTreeMap::new()).unwrap_err();
        assert!(error.contains("at most 107 bytes") && error.contains("`{port}`"), "{error}");
    }
}
