//! Progress of a service, printed as it happens.

use tracer_client::driver::Driver;
use tracer_core::count::Count;
use tracer_ipc::protocol::{ServiceAccepted, ServiceEvent, ServiceNews, ServiceQuery, ServiceReply};

use super::super::connect::unexpected_reply;
use super::super::{CommandError, Format, report};
use super::ask;

/// Follows a service until what was asked for has come to its end, which is returned. `tell` hears of each event.
pub(super) fn until_done(
    driver: &mut Driver,
    accepted: &ServiceAccepted,
    tell: &mut dyn FnMut(&ServiceEvent),
) -> Result<ServiceNews, CommandError> {
    let mut after = accepted.after;
    loop {
        let query = ServiceQuery::Follow { service: accepted.service.clone(), after };
        let ServiceReply::Events(events) = ask(driver, query)? else { return Err(unexpected_reply()) };
        for event in events {
            after = event.number;
            tell(&event);
            if event.what.is_final() {
                return Ok(event.what);
            }
        }
    }
}

/// Tells a person of an event.
pub(super) fn talk(event: &ServiceEvent) {
    if let Some(text) = text(&event.what) {
        report::talk(&text);
    }
}

/// Tells a person of an event, if the report is for people.
pub(super) fn talk_in(format: Format) -> impl FnMut(&ServiceEvent) {
    move |event| {
        if format == Format::Text {
            talk(event);
        }
    }
}

/// Returns an event in words; none for those that are told otherwise.
pub(super) fn text(news: &ServiceNews) -> Option<String> {
    let with_pid = |pid: &Option<u32>| pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    Some(match news {
        ServiceNews::ReplicaStarted { replica, pid } => format!("replica {replica} (pid {pid}) is starting"),
        ServiceNews::ReplicaReady { replica, pid } => format!("replica {replica}{} is ready", with_pid(pid)),
        ServiceNews::ReplicaLost { replica, pid, reason } => {
            format!("replica {replica}{} is lost: {reason}", with_pid(pid))
        }
        ServiceNews::ReplicaEnded { replica, pid } => format!("replica {replica}{} has ended", with_pid(pid)),
        ServiceNews::Scaled { deployment, from, to, .. } => {
            let replicas = Count(*to, "replica");
            format!("deployment {deployment} is to have {replicas} instead of {from}, because of its load")
        }
        ServiceNews::ProxyLost { pid, reason } => format!("the proxy{} is lost: {reason}", with_pid(pid)),
        ServiceNews::ProxyStarted { .. }
        | ServiceNews::RolledOut { .. }
        | ServiceNews::RolloutFailed { .. }
        | ServiceNews::ShutDown => return None,
    })
}
