//! An application upstream and one downstream, whose requests are in one trace: `storefront` asks `catalogue` for a price, by its handle or over HTTP.
//!
//! ```text
//! $ cargo build -p storefront
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer serve deploy examples/storefront/service.toml
//! $ curl localhost:8000/by-handle?item=tea localhost:8000/by-http?item=tea
//! $ tracer trace show last
//! ```
//!
//! By handle the call goes straight from replica to replica, and its spans are below the current one without a line of code. Over HTTP, as to a service that
//! is somewhere else, the caller makes a CLIENT span and says it in `traceparent`; the proxy of the other application takes it from there.

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::HeaderInjector;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracer_sdk::serve::{Body, CallError, Request, Response, StatusCode, deployment, deployment_handle};
use ureq::http::HeaderMap;

/// Variable of the environment with the URL of the catalogue.
const CATALOGUE_URL: &str = "CATALOGUE_URL";

/// Says what an item costs: the application downstream.
pub struct Catalogue;

#[deployment]
impl Catalogue {
    /// Makes it.
    pub fn new() -> Catalogue {
        Catalogue
    }

    /// Answers requests of HTTP.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        match self.price(item(&request)).await {
            Some(price) => Response::new(Body::from(price.to_string())),
            None => {
                let mut response = Response::new(Body::from("no such item\n"));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }

    /// Answers calls by handle.
    pub async fn price(&self, item: String) -> Option<u32> {
        global::tracer("storefront").in_span("look up", |context| {
            context.span().set_attribute(KeyValue::new("item", item.clone()));
            [("coffee", 450), ("tea", 320)].into_iter().find(|(name, _)| *name == item).map(|(_, price)| price)
        })
    }
}

/// Asks the catalogue by its handle: the application upstream.
#[deployment]
async fn by_handle(request: Request<Body>) -> Result<String, CallError> {
    let item = item(&request);
    let price: Option<u32> = deployment_handle("catalogue/Catalogue")?.call("price").arg(&item).send().await?;
    Ok(said(&item, price))
}

/// Asks the catalogue over HTTP, on a thread of its own because the client blocks: the application upstream.
#[deployment]
fn by_http(request: Request<Body>) -> Result<String, String> {
    let item = item(&request);
    let url = std::env::var(CATALOGUE_URL).map_err(|_| format!("expected the catalogue's URL in {CATALOGUE_URL}"))?;
    let price = get(&format!("{url}?item={item}"))?;
    Ok(said(&item, price.and_then(|price| price.parse().ok())))
}

fn said(item: &str, price: Option<u32>) -> String {
    match price {
        Some(price) => format!("{item} costs {}.{:02}\n", price / 100, price % 100),
        None => format!("there is no {item}\n"),
    }
}

/// Returns the value of `?item=`.
fn item(request: &Request<Body>) -> String {
    let query = request.uri().query().unwrap_or_default();
    let value = query.split('&').find_map(|pair| pair.strip_prefix("item="));
    value.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect()
}

/// Fetches a text, in a CLIENT span by the semantic conventions of OpenTelemetry, which goes along. None if there is no such thing.
fn get(url: &str) -> Result<Option<String>, String> {
    let tracer = global::tracer("storefront");
    let attributes = [KeyValue::new("http.request.method", "GET"), KeyValue::new("url.full", url.to_owned())];
    let span = tracer.span_builder("GET").with_kind(SpanKind::Client).with_attributes(attributes).start(&tracer);
    let context = Context::current_with_span(span);
    let mut headers = HeaderMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(&mut headers));
    let request = headers.iter().fold(ureq::get(url), |request, (name, value)| request.header(name, value));
    let answer = request.config().http_status_as_error(false).build().call();
    let answer = answer.map_err(|error| error.to_string()).and_then(|mut answer| {
        let status = answer.status().as_u16();
        context.span().set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        match status {
            200 => answer.body_mut().read_to_string().map(Some).map_err(|error| error.to_string()),
            404 => Ok(None),
            status => Err(format!("the catalogue answered {status}")),
        }
    });
    if let Err(error) = &answer {
        context.span().set_status(Status::error(error.clone()));
    }
    context.span().end();
    answer
}
