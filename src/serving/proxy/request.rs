//! One request, from its head to the head of its answer: route, place, attempts.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tracer_client::router::Preference;
use tracer_core::hosts::Found;
use tracer_core::http_field::is_authority;
use tracer_core::propagation::Carrier;
use tracer_core::request_names as names;
use tracer_ipc::fault;
use tracer_ipc::lane::{Opening, Reset};
use tracer_ipc::serving::Retry;

use super::admission::NoPlace;
use super::answer::{Answer, Cut, Stream};
use super::connection::{Connection, HTTPS, LateBody, Serving};
use super::exchange::{End, Exchange, Piece};
use super::grpc;
use super::headers::{self, TRACE_RESPONSE, Told, X_REQUEST_ID};
use super::pace::Pace;
use super::progress::{Arrived, Progress};
use super::refusals::{self, Refused};
use super::settings::{Route, Settings};
use super::thread::ProxyThread;
use super::tunnel::Tunnel;
use super::upload::{Upload, UploadEnd};
use crate::request_head::HEADERS;

/// Attempts at replicas that have not begun a request, and at those that have.
const ATTEMPTS: u32 = 32;
const REPEATED_ATTEMPTS: u32 = 3;
/// Pause of a request that got a place at a replica without a lane: the head is about to say that it is gone.
const NO_LANE_PAUSE: Duration = Duration::from_millis(5);

/// An answer that can begin.
enum Answered {
    /// It is whole.
    Whole(StatusCode, HeaderMap, Bytes),
    /// The rest of it comes, so many bytes if that is known.
    Stream(StatusCode, HeaderMap, Rc<Exchange>, Option<u64>),
    /// The connection speaks this protocol from here on.
    Upgrade(&'static str, HeaderMap, Rc<Exchange>),
}

/// Serves a request.
pub(super) async fn serve(
    thread: Rc<ProxyThread>,
    connection: Rc<Connection>,
    pace: Option<Rc<Pace>>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Cut> {
    let serving = Serving::begin(&connection, pace.clone());
    let (parts, body) = request.into_parts();
    let settings = thread.settings();
    let mut progress = begin(&thread, &connection, &settings, &parts);
    fault::point("request_begun");
    let mut deadline = progress.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
    let answered = {
        let mut answering = std::pin::pin!(answer(&mut progress, &connection, &parts, (body, pace)));
        poll_fn(|context| match (answering.as_mut().poll(context), &mut deadline) {
            (Poll::Pending, Some(deadline)) => deadline.as_mut().poll(context).map(|()| Err(Refused::timeout())),
            (answered, _) => answered,
        })
        .await
    };
    let (status, headers, body) = match answered {
        Ok(Answered::Whole(status, headers, bytes)) => {
            progress.sent_bytes = bytes.len() as u64;
            let response = head(&progress, &connection, status, headers);
            progress.finish();
            return Ok(response.map(|()| Answer::Whole { bytes, serving }));
        }
        Ok(Answered::Stream(status, headers, exchange, left)) => (status, headers, (exchange, left)),
        Ok(Answered::Upgrade(protocol, headers, exchange)) => {
            let mut response = head(&progress, &connection, StatusCode::SWITCHING_PROTOCOLS, headers);
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(protocol));
            connection.upgrade(Tunnel::new(exchange, progress, serving));
            return Ok(response.map(|()| Answer::Upgraded));
        }
        Err(refused) => return Ok(refuse(progress, refused, &connection, serving)),
    };
    let response = head(&progress, &connection, status, headers);
    let stream = Stream::new(body.0, progress, body.1, deadline, serving);
    Ok(response.map(|()| Answer::Stream(Box::new(stream))))
}

/// Begins a request: its name, its trace, its span.
fn begin(thread: &Rc<ProxyThread>, connection: &Connection, settings: &Rc<Settings>, parts: &Parts) -> Progress {
    let route = match settings.routes.find(authority(parts), parts.uri.path()) {
        Found::Route(_, route) => Some(Rc::clone(route)),
        Found::NoPath | Found::NoHost => None,
    };
    let request_id = headers::request_id(&parts.headers).cloned().unwrap_or_else(|| thread.new_request_id());
    let client = connection.client(&parts.headers, settings);
    let is_grpc = grpc::is_grpc(parts.version, &parts.headers);
    let arrived = Arrived {
        settings,
        route,
        peer: &connection.peer,
        client: client.as_deref().unwrap_or(&connection.peer.address),
        method: &parts.method,
        uri: &parts.uri,
        authority: authority(parts),
        version: parts.version,
        headers: &parts.headers,
        request_id,
        carrier: carrier(thread, &parts.headers),
        is_grpc,
        scheme: connection.scheme(&parts.headers, settings),
    };
    let mut progress = Progress::begin(thread, arrived);
    let asked = if is_grpc { grpc::timeout(&parts.headers) } else { None };
    progress.timeout = settings.http.request_timeout.into_iter().chain(asked).min();
    progress
}

/// Returns the context in the headers of a request. What is malformed counts as absent.
fn carrier(thread: &ProxyThread, headers: &HeaderMap) -> Carrier {
    let names = ["traceparent", "tracestate", "baggage"];
    if !names.iter().any(|name| headers.contains_key(*name)) {
        return Carrier::default();
    }
    let values = |name: &'static str| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let (carrier, _) = Carrier::from_headers(values(names[0]), values(names[1]), values(names[2]));
    thread.propagators.pass_on(carrier)
}

/// Checks what can be checked before anything is begun.
fn check(progress: &Progress, parts: &Parts) -> Result<Rc<Route>, Refused> {
    let settings = &progress.settings;
    if parts.method == Method::CONNECT {
        return Err(Refused::bad(refusals::METHOD, "`CONNECT` is not served"));
    }
    if parts.headers.len() > HEADERS {
        let text = format!("the request has {} headers, expected {HEADERS} at most", parts.headers.len());
        return Err(Refused::bad(refusals::HEAD_TOO_LARGE, text));
    }
    let authority = authority(parts);
    let target = parts.uri.path_and_query().map_or("*", |target| target.as_str());
    if !is_authority(authority.as_bytes()) || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refused::bad(refusals::MALFORMED, "the target or the host has characters that none may have"));
    }
    let hosts = &settings.hosts;
    let is_other = !hosts.is_empty() && !hosts.iter().any(|host| host.matches(authority));
    let is_nobodys = || matches!(settings.routes.find(authority, parts.uri.path()), Found::NoHost);
    if is_other || (progress.route.is_none() && is_nobodys()) {
        return Err(Refused::bad(refusals::OTHER_HOST, format!("`{authority}` is not a host of this service")));
    }
    let Some(route) = &progress.route else {
        let text = format!("no application has the path `{}`", parts.uri.path().escape_debug());
        return Err(Refused::bad(refusals::NO_APPLICATION, text));
    };
    let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match settings.http.max_body {
        Some(limit) if length.is_some_and(|length| length > limit) => Err(too_large(limit)),
        _ => Ok(Rc::clone(route)),
    }
}

fn too_large(limit: u64) -> Refused {
    Refused::bad(refusals::BODY_TOO_LARGE, format!("the body has more than the {limit} bytes that it may have"))
}

/// Returns the host that a request is for: that of its URL, if it has one, else what `Host` says.
fn authority(parts: &Parts) -> &str {
    let host = || parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    parts.uri.authority().map(|authority| authority.as_str()).or_else(host).unwrap_or_default()
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// Gets an answer for a request.
async fn answer(
    progress: &mut Progress,
    connection: &Rc<Connection>,
    parts: &Parts,
    body: (Incoming, Option<Rc<Pace>>),
) -> Result<Answered, Refused> {
    let route = check(progress, parts)?;
    let upgrade = headers::upgrade(&parts.method, parts.version, &parts.headers);
    connection.set_upgrading(upgrade.is_some());
    let answered = attempt(progress, connection, parts, body, &route, upgrade).await;
    if !matches!(answered, Ok(Answered::Upgrade(..))) {
        connection.set_upgrading(false);
    }
    answered
}

/// Sends a request to replicas until one has answered it.
async fn attempt(
    progress: &mut Progress,
    connection: &Rc<Connection>,
    parts: &Parts,
    (body, pace): (Incoming, Option<Rc<Pace>>),
    route: &Rc<Route>,
    upgrade: Option<&'static str>,
) -> Result<Answered, Refused> {
    let is_repeatable = route.of.retry == Retry::Idempotent && is_safe(&parts.method);
    let mut upload = Upload::new(body, pace, progress.settings.http.max_body, is_repeatable);
    let (mut attempts, mut begun_attempts) = (0, 0);
    loop {
        attempts += 1;
        progress.begin_attempt();
        let exchange = send(progress, connection, parts, route, (&upload, upgrade)).await?;
        progress.sent_to(Rc::clone(&exchange));
        let end = match wait_for_head(progress, connection, &mut upload, &exchange).await? {
            Ok((status, headers)) => {
                progress.answered(status, exchange.take_route());
                if exchange.has_program_failed() {
                    return Err(Refused::program_failed());
                }
                if progress.is_grpc {
                    progress.grpc_status = grpc::status(&headers);
                }
                match (status, upgrade) {
                    (StatusCode::SWITCHING_PROTOCOLS, Some(protocol)) => {
                        return Ok(Answered::Upgrade(protocol, headers, exchange));
                    }
                    (StatusCode::SWITCHING_PROTOCOLS, None) => {
                        progress.abandon(Reset::ClientGone);
                        return Err(Refused::failed(progress.request_id()));
                    }
                    // What would have gone over the connection does not come.
                    (_, Some(_)) => exchange.end_sending(),
                    (_, None) => resume_sending(progress, connection, upload, &exchange),
                }
                return take_head(progress, parts, status, headers, exchange).await;
            }
            Err(end) => end,
        };
        let outcome = match end {
            End::Unclaimed if attempts < ATTEMPTS => names::OUTCOME_NOT_BEGUN,
            End::Lost | End::Reset(Reset::Refused) if is_repeatable && begun_attempts + 1 < REPEATED_ATTEMPTS => {
                begun_attempts += 1;
                names::OUTCOME_REPLICA_LOST
            }
            End::Reset(Reset::HandlerFailed | Reset::BodyFailed) => {
                return Err(Refused::failed(progress.request_id()));
            }
            // A replica has no other time than that in which it is to end.
            End::Reset(Reset::Timeout) => return Err(Refused::drained()),
            End::Unclaimed | End::Lost | End::Reset(_) | End::Complete => return Err(Refused::lost()),
        };
        if !upload.begin_again() {
            return Err(Refused::lost());
        }
        progress.end_attempt(outcome);
        if attempts > 1 {
            // Replicas that take nothing are about to be gone from the table.
            tokio::time::sleep(NO_LANE_PAUSE).await;
        }
    }
}

/// Finds a place, and sends the head of the request there.
async fn send(
    progress: &mut Progress,
    connection: &Connection,
    parts: &Parts,
    route: &Route,
    (upload, upgrade): (&Upload, Option<&'static str>),
) -> Result<Rc<Exchange>, Refused> {
    let thread = Rc::clone(&progress.thread);
    let room = |replica| thread.quick_room(replica);
    let (mut place, lane, number) = loop {
        let preference = match progress.model() {
            "" => Preference::Awake(&room),
            model => Preference::Model(model),
        };
        let admitted = thread.admission.admit(route.deployment, preference, route.of.queue_timeout);
        let place = match admitted.await {
            Ok(place) => thread.hold(place),
            Err(NoPlace::Full { retry_after_s }) => {
                return Err(Refused::full(route.of.queue_full, retry_after_s, &route.of.deployment));
            }
            Err(NoPlace::TimedOut) => return Err(Refused::unavailable(&route.of.deployment)),
        };
        if let Some(lane) = thread.lane(place.replica()) {
            let number = poll_fn(|context| lane.poll_number(context)).await;
            // It may have ended while all its numbers were taken.
            if lane.is_open() {
                break (place, lane, number);
            }
            lane.give_back(number);
        }
        drop(place);
        tokio::time::sleep(NO_LANE_PAUSE).await;
    };
    progress.placed(place.waited_ns(), place.is_cold());
    fault::point("request_placed");
    let authority = authority(parts);
    let context = progress.context();
    let is_trusted = connection.is_trusted(&progress.settings);
    let forwarded_for =
        if is_trusted { headers::forwarded_for(&parts.headers, &connection.peer.address) } else { String::new() };
    let told = Told {
        trace_state: context.map_or("", |context| &context.trace_state),
        baggage: &progress.carrier.baggage,
        request_id: progress.request_id(),
        authority,
        peer: &connection.peer.address,
        is_peer_trusted: is_trusted,
        forwarded_for: &forwarded_for,
        upgrade: upgrade.unwrap_or_default(),
        scheme: connection.own_scheme(),
    };
    let opening = Opening {
        trace_id: context.map_or([0; 16], |context| context.parent.trace_id),
        span_id: context.map_or([0; 8], |context| context.parent.span_id),
        trace_flags: context.map_or(0, |context| context.parent.flags),
        deadline_unix_nano: progress.timeout.map_or(0, |timeout| {
            progress.begun_unix_nano().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
        }),
        is_secure: progress.scheme == HTTPS,
        version: match parts.version {
            Version::HTTP_10 => 10,
            Version::HTTP_2 => 20,
            _ => 11,
        },
        method: parts.method.as_str(),
        authority,
        target: parts.uri.path_and_query().map_or("*", |target| target.as_str()),
        request_id: told.request_id,
        client: &connection.peer.text,
    };
    let exchange =
        lane.open(number, upload.is_empty() && upgrade.is_none(), &opening, headers::to_replica(&parts.headers, &told));
    place.keep();
    fault::point("request_sent");
    thread.spinning.request_was_sent();
    Ok(exchange)
}

/// Sends the body, and waits for the head of the answer.
async fn wait_for_head(
    progress: &Progress,
    connection: &Connection,
    upload: &mut Upload,
    exchange: &Rc<Exchange>,
) -> Result<Result<(StatusCode, HeaderMap), End>, Refused> {
    let max_body = progress.settings.http.max_body.unwrap_or(u64::MAX);
    poll_fn(|context| {
        // An answer that is there counts, whatever becomes of the body.
        if let Poll::Ready(head) = exchange.poll_head(context) {
            return Poll::Ready(Ok(head));
        }
        if !upload.is_done() {
            match upload.poll(exchange, progress.thread.look(), context) {
                Poll::Ready(UploadEnd::TooLarge) => return Poll::Ready(Err(too_large(max_body))),
                Poll::Ready(UploadEnd::Broken) => return Poll::Ready(Err(connection.why_broken())),
                Poll::Ready(UploadEnd::TooSlow) => return Poll::Ready(Err(Refused::too_slow())),
                Poll::Ready(UploadEnd::Sent | UploadEnd::Over) | Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await
}

/// Sends the rest of a body whose answer has begun.
fn resume_sending(progress: &Progress, connection: &Rc<Connection>, mut upload: Upload, exchange: &Rc<Exchange>) {
    if upload.is_done() || exchange.is_over() {
        return;
    }
    let (thread, exchange) = (Rc::clone(&progress.thread), Rc::clone(exchange));
    let late = LateBody::new(connection);
    // A call that streams both ways may have nothing to say for as long as its handler listens.
    upload.may_pause(progress.is_grpc);
    drop(tokio::task::spawn_local(async move {
        let end = poll_fn(|context| upload.poll(&exchange, thread.look(), context)).await;
        if matches!(end, UploadEnd::TooLarge | UploadEnd::Broken | UploadEnd::TooSlow) {
            thread.abandon(&exchange, Reset::ClientGone);
        }
        drop(upload);
        drop(late);
    }));
}

/// Looks what follows the head of an answer.
async fn take_head(
    progress: &Progress,
    parts: &Parts,
    status: StatusCode,
    headers: HeaderMap,
    exchange: Rc<Exchange>,
) -> Result<Answered, Refused> {
    let length = match content_length(&headers) {
        Ok(length) => length,
        Err(()) => {
            progress.thread.abandon(&exchange, Reset::ClientGone);
            return Err(Refused::lost());
        }
    };
    let has_no_body = parts.method == Method::HEAD || matches!(status.as_u16(), 204 | 304);
    if has_no_body {
        // Its end is that of the head, which waits for it.
        loop {
            match poll_fn(|context| exchange.poll_piece(context, |_| true)).await {
                Piece::Data(piece) => exchange.took(piece.len()),
                Piece::Trailers(_) => {}
                Piece::End(End::Complete) => return Ok(Answered::Whole(status, headers, Bytes::new())),
                Piece::End(_) => return Err(Refused::lost()),
            }
        }
    }
    if length == Some(0) {
        poll_fn(|context| exchange.poll_end(context)).await;
    }
    match exchange.whole_body() {
        Some(bytes) if length.is_none_or(|length| length == bytes.len() as u64) => {
            Ok(Answered::Whole(status, headers, bytes))
        }
        Some(_) => Err(Refused::lost()),
        None => Ok(Answered::Stream(status, headers, exchange, length)),
    }
}

/// Returns the length that an answer says it has.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ()> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).into_iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|text| text.parse().ok()).map(Some).ok_or(())
        }
        (Some(_), Some(_)) => Err(()),
    }
}

/// Returns the head of an answer, with what the proxy says.
fn head(progress: &Progress, connection: &Connection, status: StatusCode, headers: HeaderMap) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    say(progress, connection, response.headers_mut());
    response
}

fn say(progress: &Progress, connection: &Connection, headers: &mut HeaderMap) {
    headers.insert(X_REQUEST_ID, progress.request_id.clone());
    if let Some(value) = progress.trace_response() {
        headers.insert(TRACE_RESPONSE, value);
    }
    if connection.is_closing() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Tells the client why there is no answer of a handler.
fn refuse(mut progress: Progress, refused: Refused, connection: &Connection, serving: Serving) -> Response<Answer> {
    let reason = if refused.outcome == names::OUTCOME_TIMEOUT { Reset::Timeout } else { Reset::ClientGone };
    progress.abandon(reason);
    let mut status = refused.problem.kind.status;
    let mut response = match progress.is_grpc {
        false => refused.problem.into_response(|json| Answer::Whole { bytes: json.into(), serving }),
        true => {
            let grpc_status = refused.grpc_status();
            progress.grpc_status = Some(grpc_status);
            let mut response = Response::new(Answer::Whole { bytes: Bytes::new(), serving });
            grpc::refuse(response.headers_mut(), grpc_status, refused.problem.detail());
            status = StatusCode::OK;
            response
        }
    };
    say(&progress, connection, response.headers_mut());
    if progress.method == Method::HEAD
        && let Answer::Whole { bytes, .. } = response.body_mut()
    {
        bytes.clear();
    }
    if let Answer::Whole { bytes, .. } = response.body() {
        progress.sent_bytes = bytes.len() as u64;
    }
    progress.finish_as(refused.outcome, Some(status));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_one_length_at_most_and_it_is_a_number() {
        let of = |values: &[&'static str]| {
            let pairs = values.iter().map(|value| (header::CONTENT_LENGTH, HeaderValue::from_static(value)));
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, value);
            }
            content_length(&headers)
        };
        assert_eq!((of(&[]), of(&["5"])), (Ok(None), Ok(Some(5))));
        assert!([&["5", "5"][..], &["+5"], &["5, 5"], &[""], &["-1"]].iter().all(|values| of(values).is_err()));
    }
}
