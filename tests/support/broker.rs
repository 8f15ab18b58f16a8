//! A real NATS server, in a folder and on a port of its own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::skip;
use super::wait::wait_until;

/// A `nats-server` with JetStream. Dropped, it is killed.
pub struct Broker {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

/// Returns the program, if it is installed: Debian has it where only root looks.
fn program() -> Option<&'static str> {
    ["nats-server", "/usr/sbin/nats-server"]
        .into_iter()
        .find(|program| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok())
}

impl Broker {
    /// Starts one, or skips the test.
    pub fn start() -> Option<Broker> {
        Broker::start_with(true)
    }

    /// Starts one that has no JetStream, or skips the test.
    pub fn start_without_jetstream() -> Option<Broker> {
        Broker::start_with(false)
    }

    fn start_with(jetstream: bool) -> Option<Broker> {
        if program().is_none() {
            skip("nats-server", "it is not installed");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("tracer-broker-").tempdir().expect("a folder for the broker");
        let mut broker = Broker { folder, port: free_port(), child: None };
        broker.run(jetstream);
        Some(broker)
    }

    fn run(&mut self, jetstream: bool) {
        let mut command = Command::new(program().expect("it was found"));
        command.args(["-a", "127.0.0.1", "-p", &self.port.to_string()]);
        if jetstream {
            command.arg("-js").arg("-sd").arg(self.folder.path());
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the broker starts"));
        wait_until("the broker listens", || TcpStream::connect(("127.0.0.1", self.port)).ok());
    }

    /// `nats://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it is ours");
        }
    }

    /// Starts it again over what it has on its disk.
    pub fn start_again(&mut self) {
        self.run(true);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a port on which nobody listens.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it is bound").port()
}
