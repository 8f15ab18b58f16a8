//! Deployments of every kind: what answers requests of HTTP in a replica of `tracer serve`.
//!
//! Functions that are `async` run beside each other on the replica's loop, those that are not have a thread each, and a type is made once
//! in each replica. Bodies stream in both directions. The spans inside are made with the ordinary OpenTelemetry API, and are children of
//! the request's own span.

use std::sync::Mutex;
use std::time::Duration;

use opentelemetry::trace::Tracer;
use opentelemetry::{KeyValue, global};
use serde::{Deserialize, Serialize};
use tracer_sdk::remote;
use tracer_sdk::serve::{Body, Json, Request, Response, batch, deployment};

/// Time between two events of [`count`].
const EVENT_PERIOD: Duration = Duration::from_millis(100);

/// Says hello.
#[deployment]
async fn hello(_: Request<Body>) -> &'static str {
    "hello"
}

/// Sends back what it is sent, while it comes.
#[deployment]
async fn echo(request: Request<Body>) -> Response<Body> {
    Response::new(request.into_body())
}

/// Counts in server-sent events, one each tenth of a second: `?events=n`, 10 if it is not said.
#[deployment]
async fn count(request: Request<Body>) -> Result<Response<Body>, String> {
    let events = match parameter(&request, "events") {
        Some(events) => events.parse().map_err(|error| format!("`events`: {error}"))?,
        None => 10_u64,
    };
    let (sender, body) = Body::channel(1);
    tokio::spawn(async move {
        for event in 1..=events {
            if sender.send(format!("data: {event}\n\n")).await.is_err() {
                // The client has gone.
                return;
            }
            tokio::time::sleep(EVENT_PERIOD).await;
        }
    });
    let response = Response::builder().header("content-type", "text/event-stream").header("cache-control", "no-store");
    response.body(body).map_err(|error| error.to_string())
}

/// Adds the numbers of a list, on a thread of its own.
#[deployment]
fn add(terms: Json<Vec<i64>>) -> Result<Json<i64>, &'static str> {
    let attribute = KeyValue::new("terms", i64::try_from(terms.0.len()).unwrap_or(i64::MAX));
    let sum = || terms.0.iter().try_fold(0_i64, |sum, term| sum.checked_add(*term));
    let sum = global::tracer("shop").in_span("add up", |context| {
        opentelemetry::trace::TraceContextExt::span(&context).set_attribute(attribute);
        sum()
    });
    sum.map(Json).ok_or("the sum is too large")
}

/// Looks prices up, many at a time: what is asked for while a look-up runs goes into the next one, up to 32 at once. Each request is answered with its own
/// price, or that there is none.
#[deployment]
#[batch(max_size = 32)]
async fn price(names: Vec<String>) -> Vec<Result<Json<u32>, String>> {
    let look_up = |name: &String| match name.as_str() {
        "tea" => Ok(Json(3)),
        "coffee" => Ok(Json(4)),
        other => Err(format!("there is no `{other}`")),
    };
    names.iter().map(look_up).collect()
}

/// Panics.
#[deployment]
async fn panics(_: Request<Body>) -> &'static str {
    panic!("out of stock")
}

/// Returns an error.
#[deployment]
async fn fails(_: Request<Body>) -> Result<&'static str, std::num::ParseIntError> {
    "many".parse::<u32>().map(|_| "some")
}

/// Begins to answer, and breaks off.
#[deployment]
async fn breaks_off(_: Request<Body>) -> Response<Body> {
    let (sender, body) = Body::channel(1);
    tokio::spawn(async move {
        if sender.send("the first half\n").await.is_ok() {
            sender.abort("the second half is missing").await;
        }
    });
    Response::new(body)
}

/// Never answers.
#[deployment]
async fn waits(_: Request<Body>) -> &'static str {
    let _open = global::tracer("shop").start("wait");
    std::future::pending().await
}

/// Submits a task and answers its result.
#[deployment]
async fn submits(_: Request<Body>) -> Result<Json<u64>, tracer_sdk::RemoteError> {
    let task = remote("demo:my_function").submit()?;
    Ok(Json(task.get_async().await?))
}

/// A model that is read from a file, and how warm it answers.
pub struct Model {
    path: String,
    settings: Mutex<Settings>,
}

/// The model's `user_config`.
#[derive(Clone, Copy, Default, Deserialize)]
pub struct Settings {
    temperature: f64,
}

/// Answer of the model.
#[derive(Serialize)]
pub struct Prediction {
    path: String,
    temperature: f64,
    length: usize,
}

/// A model: it is made once in each replica, can be asked whether it is well, and takes settings.
#[deployment(max_ongoing_requests = 64)]
impl Model {
    /// Reads the model.
    pub fn new(path: String) -> Result<Self, String> {
        if path.is_empty() {
            return Err("expected the path of a model, found an empty one".into());
        }
        Ok(Model { path, settings: Mutex::default() })
    }

    /// Answers a request.
    pub async fn handle(&self, input: String) -> Json<Prediction> {
        let Settings { temperature } = self.settings();
        Json(Prediction { path: self.path.clone(), temperature, length: input.len() })
    }

    /// Says whether it is well: not above 100 degrees.
    pub async fn health(&self) -> Result<(), String> {
        let Settings { temperature } = self.settings();
        if temperature > 100.0 { Err(format!("it is too hot: {temperature} degrees")) } else { Ok(()) }
    }

    /// Takes settings.
    pub async fn reconfigure(&self, settings: Settings) -> Result<(), String> {
        if settings.temperature < 0.0 {
            return Err(format!("expected a temperature from 0 on, found {}", settings.temperature));
        }
        *self.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = settings;
        Ok(())
    }
}

impl Model {
    fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A parameter of the query.
fn parameter<'a>(request: &'a Request<Body>, name: &str) -> Option<&'a str> {
    let query = request.uri().query()?;
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
}
