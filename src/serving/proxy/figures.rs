//! Metrics of the requests of a proxy's thread, in a file that outlives it.
//!
//! A thread takes the first file of the folder `metrics.serving` of the place that no living thread has, and goes on with the counts in it. So
//! a proxy that is killed or replaced takes no count along, and there are no more files than threads at a time. Whoever serves metrics sums them.

use std::cell::RefCell;
use std::path::Path;

use rustc_hash::FxHashMap;
use tracer_core::grpc::Status;
use tracer_core::metric_names::{
    ERROR_TYPE, HTTP_DURATION, REQUEST_BODIES, RESPONSE_BODIES, RPC_DURATION, SERVE_HANDSHAKE_FAILURES,
    SERVE_QUEUE_DURATION, SERVE_RETRIES, SERVE_SHED, SERVICE,
};
use tracer_core::propagation::{FLAG_SAMPLED, TraceContext};
use tracer_core::request_names as names;
use tracer_ipc::metrics::{Exemplar, SeriesFile, SeriesIndex};

use super::settings::Route;

/// The metrics of a thread. Without a file nothing is counted.
pub(super) struct Figures {
    service: Box<str>,
    counting: RefCell<Option<Counting>>,
}

struct Counting {
    file: SeriesFile,
    ended: FxHashMap<EndKey, [SeriesIndex; 3]>,
    others: FxHashMap<OtherKey, SeriesIndex>,
    /// Numbers of the routes that handlers say.
    handlers_routes: FxHashMap<Box<str>, u32>,
    /// Series of calls of gRPC by their methods.
    rpcs: FxHashMap<RpcKey, FxHashMap<Box<str>, SeriesIndex>>,
}

/// Methods of gRPC of a route that end with one status and have series of their own; further ones share one.
const RPC_METHODS: usize = 200;
/// Routes of handlers that have series of their own; requests of further ones are counted by the route prefix.
const HANDLERS_ROUTES: usize = 200;
/// The method of those, and of calls that no method has answered.
const OTHER_METHOD: &str = "_OTHER";

/// A call of gRPC that has ended, but for its method.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RpcKey {
    route: Option<u64>,
    status: Option<Status>,
}

/// A request that has ended, as far as its series are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct EndKey {
    /// The number of the route's names, which no other route ever has; none for a path that no application has.
    route: Option<u64>,
    /// The number of the handler's own route, if it says one.
    handlers_route: Option<u32>,
    method: &'static str,
    status: u16,
    outcome: &'static str,
    is_error: bool,
}

/// A metric of a route, with the reason that it counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OtherKey {
    metric: usize,
    route: u64,
    reason: &'static str,
}

/// A request that has ended.
pub(super) struct Ended<'a> {
    pub(super) route: Option<&'a Route>,
    /// The handler's own route, if it says one.
    pub(super) handlers_route: Option<&'a str>,
    /// One of the methods that are known, or `_OTHER`.
    pub(super) method: &'static str,
    /// The status that the client was told; 0 for none.
    pub(super) status: u16,
    /// The method of a call of gRPC, as `pkg.Service/Method`, and the status with which it has ended.
    pub(super) rpc: Option<(&'a str, Option<Status>)>,
    /// Value of [`names::OUTCOME`]; empty for a request that was answered as its handler meant.
    pub(super) outcome: &'static str,
    /// Value of `error.type`, if it is an error.
    pub(super) error_type: Option<&'a str>,
    pub(super) duration_ns: u64,
    pub(super) unix_nano: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) context: Option<&'a TraceContext>,
}

/// Returns the number of a handler's route; none when there are too many.
fn number_of(known: &mut FxHashMap<Box<str>, u32>, route: &str) -> Option<u32> {
    if let Some(number) = known.get(route) {
        return Some(*number);
    }
    let number = known.len();
    (number < HANDLERS_ROUTES).then(|| *known.entry(route.into()).or_insert(number as u32))
}

impl Figures {
    /// Takes a file of the place for the requests of a service.
    pub(super) fn open(place: &Path, service: &str) -> Figures {
        let file = SeriesFile::open_free(&place.join(tracer_ipc::metrics::SERVING_FOLDER));
        if let Err(error) = &file {
            eprintln!("tracer: requests are not counted: {error}");
        }
        let counting = file.ok().map(|file| Counting {
            file,
            ended: FxHashMap::default(),
            others: FxHashMap::default(),
            handlers_routes: FxHashMap::default(),
            rpcs: FxHashMap::default(),
        });
        Figures { service: service.into(), counting: RefCell::new(counting) }
    }

    /// Forgets the series of routes that may be no more.
    pub(super) fn forget_routes(&self) {
        if let Some(counting) = &mut *self.counting.borrow_mut() {
            counting.ended.clear();
            counting.others.clear();
            counting.handlers_routes.clear();
            counting.rpcs.clear();
        }
    }

    /// Counts a request that has ended.
    pub(super) fn count_end(&self, ended: &Ended<'_>) {
        let mut counting = self.counting.borrow_mut();
        let Some(Counting { file, ended: known, handlers_routes, rpcs, .. }) = &mut *counting else { return };
        let handlers_route = ended.handlers_route.and_then(|route| number_of(handlers_routes, route));
        let key = EndKey {
            route: ended.route.map(|route| route.hop.id),
            handlers_route,
            method: ended.method,
            status: ended.status,
            outcome: ended.outcome,
            is_error: ended.error_type.is_some(),
        };
        let [duration, received, sent] = match known.get(&key) {
            Some(series) => *series,
            None => {
                let series = self.series_of(file, ended, ended.handlers_route.filter(|_| handlers_route.is_some()));
                if is_lasting(file) {
                    known.insert(key, series);
                }
                series
            }
        };
        observe(file, duration, ended);
        if let Some((method, status)) = ended.rpc {
            let series = self.series_of_rpc(file, rpcs, ended, (method, status));
            observe(file, series, ended);
        }
        file.count(received, ended.received_bytes);
        file.count(sent, ended.sent_bytes);
        drop(counting);
        if matches!(ended.outcome, names::OUTCOME_SHED | names::OUTCOME_UNAVAILABLE) {
            self.count(SERVE_SHED, ended.route, ended.outcome);
        }
    }

    fn series_of(&self, file: &mut SeriesFile, ended: &Ended<'_>, handlers_route: Option<&str>) -> [SeriesIndex; 3] {
        let mut status = [0; 3];
        let digits = [100, 10, 1].map(|by| b'0' + (ended.status / by % 10) as u8);
        status.copy_from_slice(&digits);
        let mut attributes = self.attributes(ended.route);
        let of_bodies = attributes.len();
        attributes.push((names::HTTP_REQUEST_METHOD, ended.method));
        if let Some(route) = ended.route {
            attributes.push((names::HTTP_ROUTE, handlers_route.unwrap_or(&route.of.route_prefix)));
        }
        if ended.status != 0 {
            attributes.push((names::HTTP_RESPONSE_STATUS_CODE, std::str::from_utf8(&status).unwrap_or_default()));
        }
        if let Some(error_type) = ended.error_type {
            attributes.push((ERROR_TYPE, error_type));
        }
        [
            file.series(HTTP_DURATION, &attributes),
            file.series(REQUEST_BODIES, &attributes[..of_bodies]),
            file.series(RESPONSE_BODIES, &attributes[..of_bodies]),
        ]
    }

    /// Returns the series of a call of gRPC. A client may name methods that there are not, so those that nobody has are one series.
    fn series_of_rpc(
        &self,
        file: &mut SeriesFile,
        known: &mut FxHashMap<RpcKey, FxHashMap<Box<str>, SeriesIndex>>,
        ended: &Ended<'_>,
        (method, status): (&str, Option<Status>),
    ) -> SeriesIndex {
        let known = known.entry(RpcKey { route: ended.route.map(|route| route.hop.id), status }).or_default();
        let is_there = ended.route.is_some() && ended.outcome.is_empty() && status != Some(Status::UNIMPLEMENTED);
        let method = if is_there { method } else { OTHER_METHOD };
        let method = if known.len() < RPC_METHODS || known.contains_key(method) { method } else { OTHER_METHOD };
        if let Some(series) = known.get(method) {
            return *series;
        }
        let mut attributes = self.attributes(ended.route);
        attributes.push((names::RPC_SYSTEM_NAME, "grpc"));
        attributes.push((names::RPC_METHOD, method));
        if let Some(status) = status {
            attributes.push((names::RPC_RESPONSE_STATUS_CODE, status.name()));
        }
        if let Some(error_type) = ended.error_type {
            attributes.push((ERROR_TYPE, error_type));
        }
        let series = file.series(RPC_DURATION, &attributes);
        if is_lasting(file) {
            known.insert(method.into(), series);
        }
        series
    }

    fn attributes<'a>(&'a self, route: Option<&'a Route>) -> Vec<(&'a str, &'a str)> {
        let mut attributes: Vec<(&str, &str)> = vec![(SERVICE, &self.service)];
        if let Some(route) = route {
            attributes.push((names::APP, &route.of.application));
            attributes.push((names::DEPLOYMENT, &route.of.deployment));
        }
        attributes
    }

    /// Counts an attempt after which another one follows.
    pub(super) fn count_retry(&self, route: Option<&Route>, outcome: &'static str) {
        self.count(SERVE_RETRIES, route, outcome);
    }

    fn count(&self, metric: usize, route: Option<&Route>, reason: &'static str) {
        self.with_series(metric, route, reason, |file, series| file.count(series, 1));
    }

    /// Counts how long a request has waited for a place at a replica.
    pub(super) fn count_wait(&self, route: Option<&Route>, waited_ns: u64) {
        self.with_series(SERVE_QUEUE_DURATION, route, "", |file, series| {
            file.observe(series, waited_ns as f64 / 1e9);
        });
    }

    /// Counts a handshake of TLS that has failed, with the value of `error.type`.
    pub(super) fn count_handshake_failure(&self, error_type: &'static str) {
        let Some(Counting { file, .. }) = &mut *self.counting.borrow_mut() else { return };
        let mut attributes = self.attributes(None);
        attributes.push((ERROR_TYPE, error_type));
        let series = file.series(SERVE_HANDSHAKE_FAILURES, &attributes);
        is_lasting(file);
        file.count(series, 1);
    }

    fn with_series(
        &self,
        metric: usize,
        route: Option<&Route>,
        reason: &'static str,
        count: impl FnOnce(&SeriesFile, SeriesIndex),
    ) {
        let (Some(route), Some(Counting { file, others, .. })) = (route, &mut *self.counting.borrow_mut()) else {
            return;
        };
        let key = OtherKey { metric, route: route.hop.id, reason };
        let series = match others.get(&key) {
            Some(series) => *series,
            None => {
                let mut attributes = self.attributes(Some(route));
                if !reason.is_empty() {
                    attributes.push((names::OUTCOME, reason));
                }
                let series = file.series(metric, &attributes);
                if is_lasting(file) {
                    others.insert(key, series);
                }
                series
            }
        };
        count(file, series);
    }
}

/// Returns whether the series that were found may be remembered. Says once that the disk has no room for some.
fn is_lasting(file: &mut SeriesFile) -> bool {
    if let Some(failure) = file.take_failure() {
        eprintln!("tracer: {failure}");
    }
    !file.take_refused()
}

/// Adds the duration of a request to a series, with its span if one is wanted.
fn observe(file: &SeriesFile, series: SeriesIndex, ended: &Ended<'_>) {
    let seconds = ended.duration_ns as f64 / 1e9;
    let bucket = file.observe(series, seconds);
    if let Some(context) = ended.context.filter(|context| context.parent.flags & FLAG_SAMPLED != 0)
        && file.wants_exemplar(series, bucket, ended.unix_nano)
    {
        let (trace_id, span_id) = (context.parent.trace_id, context.parent.span_id);
        file.set_exemplar(series, bucket, &Exemplar { value: seconds, unix_nano: ended.unix_nano, trace_id, span_id });
    }
}
