//! Peers: what others wrote, before the same second hyper process.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::floors::{Role, upstream};
use super::load::Load;
use super::{Failure, Server};

/// A proxy of others, and the process behind it.
struct Peer {
    port: u16,
    own: Role,
    upstream: Role,
    /// For nginx, the process that serves is a child.
    serving: u32,
    has_h2: bool,
    has_tls: bool,
    _folder: TempDir,
}

impl Server for Peer {
    fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", if self.has_tls { "https" } else { "http" }, self.port)
    }

    fn processes(&self) -> Vec<(String, u32)> {
        vec![("proxy".into(), self.serving), ("upstream".into(), self.upstream.pid())]
    }

    fn takes(&self, load: &Load) -> bool {
        load.streams == 0 || self.has_h2
    }
}

/// nginx with one worker.
pub(crate) fn nginx() -> Result<Box<dyn Server>, Failure> {
    nginx_before(new_folder()?, upstream, "")
}

/// nginx with one worker, before what `behind` starts on the socket `upstream.sock` of a folder. `listen` is what is said of its port.
pub(crate) fn nginx_before(
    folder: TempDir,
    behind: impl Fn(&Path) -> Result<Role, Failure>,
    listen: &str,
) -> Result<Box<dyn Server>, Failure> {
    // Its worker would else be another user, who may not use the socket.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    start("nginx", folder, behind, !listen.is_empty(), |port, socket, folder| {
        format!(
            "{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n access_log {folder}/access.log;\n client_body_temp_path {folder}; proxy_temp_path {folder};\n\
             fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};\n\
             client_max_body_size 0; proxy_request_buffering off; upstream back {{ server unix:{socket}; keepalive 64; }}\n\
             server {{ listen 127.0.0.1:{port} {listen}; keepalive_requests 100000000;\n\
             location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
        )
    })
}

/// haproxy with one thread.
pub(crate) fn haproxy() -> Result<Box<dyn Server>, Failure> {
    start("haproxy", new_folder()?, upstream, false, |port, socket, _| {
        format!(
            "global\n nbthread 1\ndefaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 5s\n\
             frontend front\n bind 127.0.0.1:{port}\n default_backend back\n\
             backend back\n http-reuse always\n server one unix@{socket}\n"
        )
    })
}

pub(crate) fn new_folder() -> Result<TempDir, Failure> {
    Ok(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

fn start(
    program: &str,
    folder: TempDir,
    behind: impl Fn(&Path) -> Result<Role, Failure>,
    has_tls: bool,
    configuration: impl Fn(u16, &str, &str) -> String,
) -> Result<Box<dyn Server>, Failure> {
    let path = folder.path().to_str().ok_or("the target folder has a name that is no text")?;
    let (upstream, socket) = (behind(folder.path())?, format!("{path}/upstream.sock"));
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let file = folder.path().join("configuration");
    fs::write(&file, configuration(port, &socket, path))?;
    let mut command = Command::new(program);
    command.arg(if program == "nginx" { "-c" } else { "-f" }).arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
    let own = Role::of(command.spawn().map_err(|error| format!("`{program}` cannot be run: {error}"))?);
    own.wait_for_port(port)?;
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", own.pid()))?;
    let serving = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(own.pid());
    Ok(Box::new(Peer { port, own, upstream, serving, has_h2: program != "nginx", has_tls, _folder: folder }))
}

impl Drop for Peer {
    fn drop(&mut self) {
        // nginx ends its children when it is asked to end, and not when it is killed.
        self.own.terminate();
    }
}
