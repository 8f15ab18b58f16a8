//! Networks of a test: nodes that are cut off from their engine, by a relay that holds everything back or by links that are down.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use super::skip;
use super::wait::wait_until;

/// State of a relay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    Held,
    Ended,
}

/// A TCP relay on a port of loopback, which can hold back all that goes through it. Dropped, it closes everything.
pub struct Relay {
    address: SocketAddr,
    flow: Arc<(Mutex<Flow>, Condvar)>,
}

impl Relay {
    /// Starts one to a port of loopback, on a port that the kernel chooses.
    pub fn start(to: u16) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
        let address = listener.local_addr().expect("it has an address");
        let flow = Arc::new((Mutex::new(Flow::Open), Condvar::new()));
        let of_thread = flow.clone();
        std::thread::spawn(move || {
            for from in listener.incoming() {
                if *of_thread.0.lock().expect("nobody panics with it") == Flow::Ended {
                    return;
                }
                // Whoever is not answered comes again.
                let Ok(from) = from else { continue };
                let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else { continue };
                let back = (to.try_clone().expect("a descriptor"), from.try_clone().expect("a descriptor"));
                for (from, to) in [(from, to), back] {
                    let flow = of_thread.clone();
                    std::thread::spawn(move || pass_on(from, to, &flow));
                }
            }
        });
        Relay { address, flow }
    }

    /// `nats://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Holds everything back from now on, or lets it go.
    pub fn hold(&self, is_held: bool) {
        self.set(if is_held { Flow::Held } else { Flow::Open });
    }

    fn set(&self, flow: Flow) {
        *self.flow.0.lock().expect("nobody panics with it") = flow;
        self.flow.1.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.set(Flow::Ended);
        // The thread that accepts looks then.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, (flow, changed): &(Mutex<Flow>, Condvar)) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let flow = flow.lock().expect("nobody panics with it");
        let flow = *changed.wait_while(flow, |flow| *flow == Flow::Held).expect("nobody panics with it");
        if flow == Flow::Ended || to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    // The other direction ends too.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// `nsenter` into the network namespace of a process, to which a program and its arguments are added.
pub fn in_network_of(pid: u32) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--net", "--"]);
    command
}

/// A network namespace, which lives for as long as a process that does nothing but wait for the end of its input: also a test that is killed leaves none.
struct Namespace(Child);

impl Namespace {
    fn new() -> Option<Namespace> {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut namespace = Namespace(command.spawn().ok()?);
        let is_made = wait_until("it has a network of its own, or may have none", || {
            if !matches!(namespace.0.try_wait(), Ok(None)) {
                return Some(false);
            }
            let own = of(&namespace.pid().to_string());
            (own.is_some() && own != of("self")).then_some(true)
        });
        is_made.then_some(namespace)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    #[track_caller]
    fn ip(&self, arguments: &str) {
        let output = in_network_of(self.pid()).arg("ip").args(arguments.split(' ')).output().expect("nsenter runs");
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Networks of their own for an engine and its nodes, with a link from the engine to each node. Dropped, they are gone with all that is in them.
pub struct Network {
    engine: Namespace,
    nodes: Vec<Namespace>,
}

impl Network {
    /// Makes them, or skips the test.
    pub fn start(nodes: usize) -> Option<Network> {
        if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
            skip("ip", "it is not installed");
            return None;
        }
        let namespaces: Option<Vec<_>> = (0..=nodes).map(|_| Namespace::new()).collect();
        let Some(mut nodes) = namespaces else {
            skip("network namespaces", "`unshare --net` fails");
            return None;
        };
        let engine = nodes.pop().expect("there is one more");
        engine.ip("link set lo up");
        for (at, node) in nodes.iter().enumerate() {
            engine.ip(&format!("link add node{at} type veth peer name engine netns {}", node.pid()));
            engine.ip(&format!("address add 10.99.{at}.1/24 dev node{at}"));
            engine.ip(&format!("link set node{at} up"));
            node.ip(&format!("address add 10.99.{at}.2/24 dev engine"));
            node.ip("link set lo up");
            node.ip("link set engine up");
        }
        Some(Network { engine, nodes })
    }

    /// Returns the process whose network is that of the engine.
    pub fn of_engine(&self) -> u32 {
        self.engine.pid()
    }

    /// Returns the process whose network is that of a node, and the address of the engine as this node sees it.
    pub fn of_node(&self, at: usize) -> (u32, Ipv4Addr) {
        (self.nodes[at].pid(), Ipv4Addr::new(10, 99, u8::try_from(at).expect("there are few"), 1))
    }

    /// Takes the link between the engine and a node down, or up again.
    #[track_caller]
    pub fn set_link(&self, at: usize, is_up: bool) {
        self.engine.ip(&format!("link set node{at} {}", if is_up { "up" } else { "down" }));
    }
}
