//! Configuration files of `nats-server`, for one server or three, with TLS and with a user for each role.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::roles::Role;
use crate::access;
use crate::server_version::ServerVersion;

/// The port of clients, unless said; those of a cluster and of the monitoring page are 2000 and 4000 above.
pub const PORT: u16 = 4222;

/// Settings of the servers that are to be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Their hosts: one, or three.
    pub hosts: Vec<String>,
    /// The port of the first; several on one host have the ports behind it.
    pub port: u16,
    /// Folder that a server keeps its streams in; several on one host have folders in it.
    pub store: PathBuf,
    /// Folder with `server.pem`, `server.key` and `authority.pem`, on the machine of each server.
    pub tls: Option<PathBuf>,
    /// The version of the servers, as far as it is known.
    pub version: Option<ServerVersion>,
}

/// A user of the servers.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Its role.
    pub role: Role,
    /// The seed of its nkey, which nobody else may know.
    pub seed: String,
    /// Its public key.
    pub public_key: String,
}

impl User {
    /// Makes a user with a new nkey.
    pub fn new(role: Role) -> User {
        let key = nkeys::KeyPair::new_user();
        User { role, seed: key.seed().expect("a new pair of keys has its seed"), public_key: key.public_key() }
    }
}

/// The configuration of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Name of the server.
    pub server_name: String,
    /// Address at which clients reach it.
    pub address: String,
    /// Text of its file.
    pub text: String,
}

impl Servers {
    /// Returns whether a server syncs each write before it acknowledges. One of an unknown version is taken for a current one.
    pub fn sync_always(&self) -> bool {
        self.version.is_none_or(|version| version >= ServerVersion::SYNCS_ALWAYS)
    }

    /// True if they can be reached from other machines.
    pub fn are_beyond_loopback(&self) -> bool {
        !self.hosts.iter().all(|host| access::is_loopback(host))
    }

    /// Writes the configurations.
    pub fn configurations(&self, users: &[User]) -> Vec<Configuration> {
        (0..self.hosts.len()).map(|at| self.configuration(at, users)).collect()
    }

    /// Returns how many of the servers before one are on its host.
    fn before_on_host(&self, at: usize) -> u16 {
        let host = &self.hosts[at];
        self.hosts[..at].iter().filter(|other| *other == host).count() as u16
    }

    fn port(&self, at: usize) -> u16 {
        self.port.saturating_add(self.before_on_host(at))
    }

    fn configuration(&self, at: usize, users: &[User]) -> Configuration {
        let server_name = match self.hosts.len() {
            1 => "tracer".to_owned(),
            _ => format!("tracer-{}", at + 1),
        };
        let host = &self.hosts[at];
        // A name may be one of several addresses of the machine.
        let listens =
            if access::is_loopback(host) || host.parse::<std::net::IpAddr>().is_ok() { host } else { "0.0.0.0" };
        let on_port = |host: &str, port: u16| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let port = self.port(at);
        let shares_host = self.hosts.iter().filter(|other| *other == host).count() > 1;
        let store = if shares_host { self.store.join(&server_name) } else { self.store.clone() };
        let sync = match self.version {
            Some(version) if !self.sync_always() => format!(
                "# nats-server {version} knows no `sync_interval: always`, as 2.10 and newer do: it syncs every two minutes, and\n  \
                 # when its machine loses power it may forget what it has acknowledged since."
            ),
            _ => "# Sync each write before it is acknowledged; nats-server knows this from 2.10 on.\n  sync_interval: always".into(),
        };
        let mut text = format!(
            "# nats-server for tracer, written by `tracer engine config`.\n\n\
             server_name: {}\nlisten: {}\n\
             # Of this machine alone: `tracer doctor` sees here whether the server syncs.\n\
             http: {}\n\n\
             jetstream {{\n  store_dir: {}\n  {sync}\n}}\n",
            quoted(&server_name),
            quoted(&on_port(listens, port)),
            quoted(&on_port("127.0.0.1", port.saturating_add(4000))),
            quoted_path(&store),
        );
        let tls = |with_authority: bool| match &self.tls {
            None => String::new(),
            Some(folder) => {
                let mut tls = format!(
                    "tls {{ cert_file: {}, key_file: {}",
                    quoted_path(&folder.join("server.pem")),
                    quoted_path(&folder.join("server.key"))
                );
                if with_authority {
                    let _ = write!(tls, ", ca_file: {}", quoted_path(&folder.join("authority.pem")));
                }
                tls + " }\n"
            }
        };
        if self.hosts.len() > 1 {
            let routes = (0..self.hosts.len()).filter(|other| *other != at).map(|other| {
                quoted(&format!("nats://{}", on_port(&self.hosts[other], self.port(other).saturating_add(2000))))
            });
            let routes: Vec<_> = routes.collect();
            let _ = write!(
                text,
                "\ncluster {{\n  name: \"tracer\"\n  listen: {}\n  routes: [ {} ]\n",
                quoted(&on_port(listens, port.saturating_add(2000))),
                routes.join(", ")
            );
            if self.tls.is_some() {
                // Servers show each other their certificates.
                let _ = write!(text, "  {}", tls(true));
            }
            text.push_str("}\n");
        }
        if self.tls.is_some() {
            let _ = write!(text, "\n{}", tls(false));
        }
        if !users.is_empty() {
            text.push_str("\naccounts {\n  TRACER {\n    jetstream: enabled\n    users: [\n");
            users.iter().for_each(|user| text.push_str(&user_text(user)));
            text.push_str("    ]\n  }\n}\n");
        }
        let scheme = if self.tls.is_some() { "tls" } else { "nats" };
        Configuration { server_name, address: format!("{scheme}://{}", on_port(host, port)), text }
    }
}

fn user_text(user: &User) -> String {
    let list = |subjects: Vec<String>| {
        let lines: Vec<_> = subjects.iter().map(|subject| format!("            {}\n", quoted(subject))).collect();
        format!("[\n{}          ]", lines.concat())
    };
    let publish = user.role.may_publish().into_iter().map(|permission| permission.subject).collect();
    format!(
        "      # {}\n      {{\n        nkey: {}\n        permissions: {{\n          publish: {}\n          subscribe: {}\n        }}\n      }}\n",
        user.role,
        user.public_key,
        list(publish),
        list(user.role.may_subscribe(&user.public_key))
    )
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(hosts: &[&str], version: Option<&str>) -> Servers {
        Servers {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            port: PORT,
            store: "/var/lib/tracer-nats".into(),
            tls: None,
            version: version.map(|version| version.parse().unwrap()),
        }
    }

    #[test]
    fn a_server_that_knows_no_sync_is_told_of_it_in_a_comment_alone() {
        let text = |version: Option<&str>| servers(&["127.0.0.1"], version).configurations(&[])[0].text.clone();
        for version in [None, Some("2.10.0"), Some("2.15.1")] {
            assert!(text(version).contains("\n  sync_interval: always\n"), "{version:?}");
        }
        let old = text(Some("2.9.10"));
        assert!(old.contains("# nats-server 2.9.10 knows no `sync_interval: always`"), "{old}");
        assert!(old.lines().all(|line| !line.trim().starts_with("sync_interval")), "{old}");
    }

    #[test]
    fn three_servers_of_one_machine_share_no_port_and_no_folder_and_those_of_three_have_the_same() {
        let here = servers(&["127.0.0.1"; 3], None).configurations(&[]);
        for (at, configuration) in here.iter().enumerate() {
            let text = &configuration.text;
            assert!(text.contains(&format!("store_dir: \"/var/lib/tracer-nats/tracer-{}\"", at + 1)), "{text}");
            assert_eq!(configuration.address, format!("nats://127.0.0.1:{}", 4222 + at));
            let routes: Vec<_> = (0..3).filter(|other| *other != at).map(|other| 6222 + other).collect();
            let routes = format!("routes: [ \"nats://127.0.0.1:{}\", \"nats://127.0.0.1:{}\" ]", routes[0], routes[1]);
            assert!(text.contains(&routes), "{text}");
        }
        let tls = Servers { tls: Some("/etc/tls".into()), ..servers(&["a", "b", "10.0.0.7"], None) };
        let apart = tls.configurations(&[User::new(Role::Node)]);
        for (configuration, listens) in apart.iter().zip(["0.0.0.0", "0.0.0.0", "10.0.0.7"]) {
            let text = &configuration.text;
            assert!(text.contains(&format!("\nlisten: \"{listens}:4222\"\n")), "{text}");
            assert!(text.contains("store_dir: \"/var/lib/tracer-nats\"\n"), "{text}");
            assert_eq!(text.matches("cert_file: \"/etc/tls/server.pem\"").count(), 2, "clients and servers: {text}");
            assert_eq!(text.matches("ca_file: \"/etc/tls/authority.pem\"").count(), 1, "{text}");
        }
        assert_eq!(apart[0].address, "tls://a:4222");
    }

    #[test]
    fn a_seed_is_in_no_configuration() {
        let users: Vec<_> = Role::ALL.into_iter().map(User::new).collect();
        let text = servers(&["127.0.0.1"], None).configurations(&users)[0].text.clone();
        for user in &users {
            assert!(user.seed.starts_with("SU") && !text.contains(&user.seed));
            assert_eq!(text.matches(&format!("nkey: {}\n", user.public_key)).count(), 1);
        }
    }
}
