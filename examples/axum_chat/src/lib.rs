//! An axum router as a deployment, as it is: extractors, state, middleware, a 404 of its own, and a WebSocket. What it has over HTTP is described
//! at `/openapi.json`.
//!
//! ```console
//! $ tracer serve run axum_chat:chat
//! $ curl --json '{"text": "hello"}' http://127.0.0.1:8000/rooms/lobby
//! $ curl http://127.0.0.1:8000/rooms/lobby
//! $ python3 -m websockets ws://127.0.0.1:8000/rooms/lobby/talk
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{MatchedPath, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use opentelemetry::trace::{TraceContextExt, Tracer};
use opentelemetry::{KeyValue, global};
use serde::{Deserialize, Serialize};
use tracer_sdk::serve::{RequestScope, deployment, set_route};

/// Messages that a room keeps.
const KEPT: usize = 100;

/// The rooms of this replica, each with what was said there.
#[derive(Clone, Default)]
struct Rooms(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Rooms {
    fn say(&self, room: &str, text: &str) -> usize {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = rooms.entry(room.into()).or_default();
        said.push(text.into());
        said.drain(..said.len().saturating_sub(KEPT));
        said.len()
    }

    fn said(&self, room: &str) -> Option<Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(room).cloned()
    }
}

/// The lines of a room.
#[derive(Serialize)]
struct Said {
    room: String,
    lines: Vec<String>,
}

/// A line that is said over HTTP.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    text: String,
}

/// The number of lines that a room has.
#[derive(Serialize)]
struct Count {
    lines: usize,
}

#[derive(Deserialize)]
struct Limit {
    /// The newest lines, so many at most.
    newest: Option<usize>,
}

/// Rooms in which one talks over a WebSocket, and reads over HTTP.
#[deployment]
fn chat() -> Router {
    Router::new()
        .route("/rooms/{room}", get(read).post(say))
        .route("/rooms/{room}/talk", any(talk))
        .route("/openapi.json", get(describe))
        .route_layer(middleware::from_fn(name_route))
        .fallback(nothing)
        .with_state(Rooms::default())
}

/// Tells the request's span the pattern that the router has found: `http.route`.
async fn name_route(path: MatchedPath, request: Request, next: Next) -> Response {
    set_route(path.as_str());
    next.run(request).await
}

async fn read(
    State(rooms): State<Rooms>,
    Path(room): Path<String>,
    Query(limit): Query<Limit>,
) -> Result<Json<Said>, (StatusCode, String)> {
    let Some(mut lines) = rooms.said(&room) else {
        return Err((StatusCode::NOT_FOUND, format!("nobody has said anything in `{room}`\n")));
    };
    lines.drain(..lines.len().saturating_sub(limit.newest.unwrap_or(KEPT)));
    Ok(Json(Said { room, lines }))
}

async fn say(
    State(rooms): State<Rooms>,
    Path(room): Path<String>,
    Json(line): Json<Line>,
) -> (StatusCode, Json<Count>) {
    (StatusCode::CREATED, Json(Count { lines: said_in_span(&rooms, &room, &line.text) }))
}

async fn describe() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}

/// Says a line, in a span below the request's.
fn said_in_span(rooms: &Rooms, room: &str, text: &str) -> usize {
    global::tracer("axum_chat").in_span("say", |context| {
        context.span().set_attribute(KeyValue::new("chat.room", room.to_owned()));
        rooms.say(room, text)
    })
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there are rooms only, such as /rooms/lobby\n")
}

async fn talk(State(rooms): State<Rooms>, Path(room): Path<String>, upgrade: WebSocketUpgrade) -> Response {
    // axum serves the connection in a future of its own: the scope has it belong to the request.
    let scope = RequestScope::current();
    upgrade.on_upgrade(move |socket| scope.run(converse(socket, rooms, room)))
}

/// Takes lines until the client closes, and says of each how many there are; each is a span below the request's.
async fn converse(mut socket: WebSocket, rooms: Rooms, room: String) {
    while let Some(Ok(message)) = socket.recv().await {
        let answer = match message {
            Message::Text(text) => Message::Text(format!("{}: {text}", said_in_span(&rooms, &room, &text)).into()),
            Message::Binary(bytes) => Message::Binary(bytes),
            // Pings are answered, and a close is, by axum.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => continue,
        };
        if socket.send(answer).await.is_err() {
            return;
        }
    }
}
