//! Settings of a service as a thread uses them: the routes, and what is the same on all spans of one.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use http::Method;
use tracer_core::hosts::{HostPattern, HostRoute, HostRoutes};
use tracer_core::request_names as names;
use tracer_core::routes::RoutePrefix;
use tracer_ipc::replica_table::{DeploymentIndex, ReplicaTable};
use tracer_ipc::serving::{Detail, Http, ProxyRoute, ProxySettings, ServiceTracing};

use super::tls::Certified;

/// The methods that spans are named by; the last one stands for all others, as in OpenTelemetry's conventions.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "_OTHER"];

/// Settings, as a thread uses them. Replaced as a whole.
pub(super) struct Settings {
    pub(super) revision: u64,
    pub(super) http: Http,
    pub(super) tracing: ServiceTracing,
    /// Certificates, if clients speak TLS.
    pub(super) certified: Option<Arc<Certified>>,
    /// The hosts that are let in; all, if there is none.
    pub(super) hosts: Vec<HostPattern>,
    pub(super) routes: HostRoutes<Rc<Route>>,
    /// All of them.
    pub(super) all: Vec<Rc<Route>>,
    /// The address that it listens on, as spans say it.
    pub(super) server_address: String,
    /// Names of the spans of requests without an application.
    pub(super) nowhere: [SpanName; METHODS.len()],
}

/// A route.
pub(super) struct Route {
    /// Route that the head has sent.
    pub(super) of: ProxyRoute,
    /// Its deployment in the table.
    pub(super) deployment: DeploymentIndex,
    servers: [SpanName; METHODS.len()],
    /// The span of a caller.
    pub(super) hop: SpanName,
}

/// The name of spans that begin with the same attributes but for the scheme of their URL, and the number that says so; the next number says
/// the same of those with `https`.
pub(super) struct SpanName {
    pub(super) id: u64,
    pub(super) name: String,
    /// The method, as spans have it.
    pub(super) method: &'static str,
}

impl SpanName {
    fn new(name: String, method: &'static str) -> SpanName {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        SpanName { id: NEXT.fetch_add(2, Relaxed), name, method }
    }
}

fn patterns(hosts: &[String]) -> Result<Vec<HostPattern>, String> {
    hosts.iter().map(|host| host.parse().map_err(|error| format!("a host: {error}"))).collect()
}

impl Settings {
    /// Puts settings into this form.
    ///
    /// # Errors
    ///
    /// Why they cannot be used.
    pub(super) fn new(
        settings: &Arc<ProxySettings>,
        certified: Option<Arc<Certified>>,
        table: &ReplicaTable,
    ) -> Result<Settings, String> {
        let mut all = Vec::with_capacity(settings.routes.len());
        let mut routes = Vec::with_capacity(settings.routes.len());
        for route in &settings.routes {
            let prefix: RoutePrefix = route.route_prefix.parse().map_err(|error| format!("a route prefix: {error}"))?;
            let deployment = table.deployment(route.index as usize).ok_or_else(|| {
                format!("the deployment `{}` has the number {}, which the table has not", route.deployment, route.index)
            })?;
            let route = Rc::new(Route {
                deployment,
                servers: METHODS.map(|method| {
                    let span = names::PROXY_HTTP_REQUEST_SPAN;
                    let name = format!("{span} {} {method} {}", route.deployment, route.route_prefix);
                    SpanName::new(name, method)
                }),
                hop: SpanName::new(
                    format!("{} {} {}", names::ROUTE_TO_REPLICA_SPAN, route.deployment, names::HTTP_CALL_METHOD),
                    "",
                ),
                of: route.clone(),
            });
            all.push(Rc::clone(&route));
            routes.push(HostRoute { hosts: patterns(&route.of.hosts)?, prefix, target: route });
        }
        let routes = HostRoutes::new(&routes).map_err(|(prefix, host)| {
            let at = host.map_or(String::new(), |host| format!(" at the host `{host}`"));
            format!("the route prefix `{prefix}` is there twice{at}")
        })?;
        Ok(Settings {
            revision: settings.revision,
            http: settings.http.clone(),
            tracing: settings.tracing.clone(),
            certified,
            hosts: patterns(&settings.http.hosts)?,
            routes,
            all,
            server_address: settings.http.address.ip().to_string(),
            nowhere: METHODS
                .map(|method| SpanName::new(format!("{} {method}", names::PROXY_HTTP_REQUEST_SPAN), method)),
        })
    }

    /// Returns whether each hop has a span.
    pub(super) fn has_hops(&self) -> bool {
        self.tracing.detail == Detail::Hops
    }

    /// Returns what the SERVER span of a request is named.
    pub(super) fn span_name<'a>(&'a self, route: Option<&'a Route>, method: &Method) -> &'a SpanName {
        let names = route.map_or(&self.nowhere, |route| &route.servers);
        let other = METHODS.len() - 1;
        &names[METHODS[..other].iter().position(|known| *known == method.as_str()).unwrap_or(other)]
    }
}
