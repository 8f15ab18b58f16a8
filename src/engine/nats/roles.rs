//! Roles of those who use an engine, as permissions of a NATS user: each has what this program needs for it, and nothing more.
//!
//! | | |
//! |---|---|
//! | submitter | puts tasks into queues, reads and writes records, and has its own heartbeat |
//! | node | as a submitter, and takes messages out of queues: runs their tasks, or puts them aside |
//! | viewer | reads |
//! | admin | makes, changes and removes streams |
//!
//! Nobody but an admin makes, changes or deletes a stream, or purges one: except the one with values, from which an origin removes those of its ended tasks.

use std::fmt;

use super::{CLUSTER, queue_stream, record_stream, values};
use crate::interface::Tier;

/// A role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A head that submits to queues.
    Submitter,
    /// A head that serves queues, and submits.
    Node,
    /// Somebody who looks.
    Viewer,
    /// Somebody who sets the engine up.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::Submitter, Role::Node, Role::Viewer, Role::Admin];

    /// Returns its name, as commands and files have it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Submitter => "submitter",
            Role::Node => "node",
            Role::Viewer => "viewer",
            Role::Admin => "admin",
        }
    }

    /// Returns the permissions to publish. Questions to JetStream are publications too.
    pub fn may_publish(self) -> Vec<Permission> {
        let (records, values) = (record_stream(), values::stream_name());
        let nobody = queue_stream("-", Tier::First);
        let api =
            |subject: &str, probe: &str| Permission::of(&format!("$JS.API.{subject}"), &format!("$JS.API.{probe}"));
        let reads = vec![
            api("INFO", "INFO"),
            api("STREAM.NAMES", "STREAM.NAMES"),
            api("STREAM.LIST", "STREAM.LIST"),
            api("STREAM.INFO.*", &format!("STREAM.INFO.{records}")),
            api("STREAM.MSG.GET.*", &format!("STREAM.MSG.GET.{records}")),
            api("CONSUMER.INFO.*.w", &format!("CONSUMER.INFO.{nobody}.w")),
            api(&format!("DIRECT.GET.{values}"), &format!("DIRECT.GET.{values}")),
            api(&format!("DIRECT.GET.{values}.>"), &format!("DIRECT.GET.{values}.-")),
        ];
        let own = |subject: &str, probe: &str| {
            Permission::of(&format!("tracer.{CLUSTER}.{subject}"), &format!("tracer.{CLUSTER}.{probe}"))
        };
        let writes = || {
            let of_records = format!("tracer.{CLUSTER}.record");
            vec![
                own("q.>", "q.-.-"),
                own("q2.>", "q2.-.-"),
                own("qc.>", "qc.-.-"),
                own("record.task.*.*", "record.task.-.-"),
                own("record.bundle.*.*", "record.bundle.-.-"),
                own("record.node.*", "record.node.-"),
                own("key.*", "key.-"),
                own("value.>", "value.-"),
                own("to.*", "to.-"),
                api(
                    &format!("CONSUMER.CREATE.{records}.*.{of_records}.*.*.*"),
                    &format!("CONSUMER.CREATE.{records}.-.{of_records}.task.-.-"),
                ),
                Permission {
                    // An empty purge would remove all.
                    probe_payload: format!("{{\"filter\":\"tracer.{CLUSTER}.value.-.-\"}}"),
                    ..api(&format!("STREAM.PURGE.{values}"), &format!("STREAM.PURGE.{values}"))
                },
            ]
        };
        let takes = || {
            vec![
                api("CONSUMER.MSG.NEXT.*.w", &format!("CONSUMER.MSG.NEXT.{nobody}.w")),
                Permission::of("$JS.ACK.>", "$JS.ACK.-"),
                own("dead.*", "dead.-"),
            ]
        };
        match self {
            Role::Viewer => reads,
            Role::Submitter => [reads, writes()].concat(),
            Role::Node => [reads, writes(), takes()].concat(),
            Role::Admin => vec![
                // What is no JSON makes nothing.
                Permission { probe_payload: "-".into(), ..api(">", &format!("STREAM.CREATE.{nobody}")) },
                own(">", "q.-.-"),
                Permission::of("$JS.ACK.>", "$JS.ACK.-"),
            ],
        }
    }

    /// Returns the subjects that it may subscribe to, for a user with this nkey. Nobody hears what others are answered.
    pub fn may_subscribe(self, public_key: &str) -> Vec<String> {
        let inbox = format!("{}.>", inbox_prefix(public_key));
        match self {
            Role::Viewer => vec![inbox],
            Role::Submitter | Role::Node => vec![inbox, format!("tracer.{CLUSTER}.to.*")],
            Role::Admin => vec![inbox, format!("tracer.{CLUSTER}.>")],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A permission to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The subjects, with wildcards.
    pub subject: String,
    /// One of these, under which a message changes nothing: no stream keeps it, and who answers has nobody to answer to.
    pub probe: String,
    /// Payload of that message.
    pub probe_payload: String,
}

impl Permission {
    fn of(subject: &str, probe: &str) -> Permission {
        Permission { subject: subject.into(), probe: probe.into(), probe_payload: String::new() }
    }
}

/// Returns the beginning of the subjects under which a user with this nkey is answered.
pub(super) fn inbox_prefix(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a pattern of NATS has a subject.
    fn has(pattern: &str, subject: &str) -> bool {
        let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
        loop {
            match (pattern.next(), subject.next()) {
                (Some(">"), Some(_)) => return true,
                (Some("*"), Some(_)) => {}
                (None, None) => return true,
                (one, other) if one == other => {}
                _ => return false,
            }
        }
    }

    #[test]
    fn each_probe_is_of_its_permission_and_only_an_admin_may_change_streams() {
        for role in Role::ALL {
            for permission in role.may_publish() {
                assert!(has(&permission.subject, &permission.probe), "{permission:?}");
            }
            let may = |subject: &str| role.may_publish().iter().any(|permission| has(&permission.subject, subject));
            for change in ["CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.DELETE"] {
                let subject = format!("$JS.API.STREAM.{change}.{}", queue_stream("default", Tier::First));
                assert_eq!(may(&subject), role == Role::Admin, "{role}: {subject}");
            }
            let pulls = format!("$JS.API.CONSUMER.MSG.NEXT.{}.w", queue_stream("default", Tier::First));
            assert_eq!(may(&pulls), matches!(role, Role::Node | Role::Admin), "{role}");
            assert_eq!(may(&format!("tracer.{CLUSTER}.q.default.a-1")), role != Role::Viewer, "{role}");
        }
    }
}
