//! HTTP/1.1 on one thread: the head of a request, its body, and the head of its answer. What takes time runs
//! on the workers of the queue.

use std::convert::Infallible;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request as HttpRequest, Response as HttpResponse, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use super::admission::Admitted;
use super::answer::{ARROW_TYPE, JSON_TYPE, Request, Response};
use super::app::{App, State};
use super::listener::{Accepted, Listener};
use super::route::{Matched, schema_of};
use super::schema::{Fault, FaultKind, Schema, ignored_header, truncated_header};
use super::sent::{ReadTimeout, SentBody};
use super::service::RowFormat;
use super::stop::Signals;

/// Maximum time until the head of a request is there, and between two requests of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum time between two parts of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop waits for the last answers, which are refusals, to be sent.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The thread for HTTP before it listens.
pub(super) struct Http {
    runtime: Runtime,
    signals: Signals,
}

impl Http {
    /// Signals that stop the process count from now on: a client may send one as soon as a socket is bound.
    pub(super) fn new(stop_with_input: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the thread for HTTP")?;
        let entered = runtime.enter();
        let signals = Signals::listen(stop_with_input)?;
        drop(entered);
        Ok(Http { runtime, signals })
    }

    /// Answers requests until the process is told to stop, and then those that were admitted, for
    /// `shutdown_timeout` at most.
    pub(super) fn serve(self, listener: Listener, app: &Arc<App>, shutdown_timeout: Duration) -> Result<()> {
        let Http { runtime, mut signals } = self;
        runtime.block_on(async {
            let connections = GracefulShutdown::new();
            let stream = |stream| serve_connection(stream, app.clone(), &connections);
            tokio::select! {
                accepted = listener.accept_all(stream) => accepted?,
                () = signals.requested(app) => {}
            }
            app.set_state(State::Stopping);
            tokio::select! {
                () = finish(app, connections, shutdown_timeout) => {}
                () = signals.forced() => {}
            }
            Ok(())
        })
    }
}

/// Waits until admitted requests are answered. Those that are not after `shutdown_timeout` are refused.
async fn finish(app: &App, connections: GracefulShutdown, shutdown_timeout: Duration) {
    let mut finished = pin!(connections.shutdown());
    if timeout(shutdown_timeout, &mut finished).await.is_err() {
        app.end();
        let _ = timeout(LAST_ANSWERS, finished).await;
    }
}

/// Answers the requests of a connection, as a task of its own.
fn serve_connection(stream: Accepted, app: Arc<App>, connections: &GracefulShutdown) {
    let served = app.clone();
    let answer = service_fn(move |request| respond(served.clone(), request));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let watcher = connections.watcher();
    tokio::spawn(async move {
        app.connections_changed(1);
        // A connection that breaks has no one to tell.
        if let Some((stream, _permit)) = stream.established().await {
            let _ =
                watcher.watch(http.serve_connection(TokioIo::new(ReadTimeout::new(stream)), answer)).await;
        }
        app.connections_changed(-1);
    });
}

/// The answer to a request, whatever it is.
async fn respond(
    app: Arc<App>,
    request: HttpRequest<Incoming>,
) -> Result<HttpResponse<SentBody>, Infallible> {
    let since = Instant::now();
    let (head, body) = request.into_parts();
    let id = app.request_id(head.headers.get("x-request-id"));
    let path = head.uri.path();
    let matched = Matched::of(path);
    let origin = app.allowed_origin(&head.headers);
    if head.method == Method::OPTIONS && origin.is_some() {
        return Ok(preflight(origin));
    }
    let checked = app.check_head(&head, matched);
    let mut result = match checked {
        Err(fault) => Err((fault, matched.map_or_else(|| schema_of(path), |matched| matched.schema))),
        Ok(matched) => answer(&app, matched, path, &head.headers, body, &id, since).await,
    };
    let mut response = match &mut result {
        Ok((response, admitted)) => response_of(response, admitted.take(), since),
        Err((fault, schema)) => response_of_fault(fault, *schema, matched),
    };
    add_origin(response.headers_mut(), origin);
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    }
    let reply = result.as_ref().ok().map(|(response, _)| &response.reply);
    let path = matched.map_or("other", |matched| matched.path);
    app.answered(path, response.status().as_u16(), since, reply, &id, result.as_ref().err());
    Ok(response)
}

/// The answer to a browser that asks whether a page may send a request.
fn preflight(origin: Option<HeaderValue>) -> HttpResponse<SentBody> {
    let mut answer = HttpResponse::new(SentBody::new(Vec::new(), None));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    let allowed = HeaderValue::from_static("authorization, content-type, x-request-id");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    add_origin(headers, origin);
    answer
}

/// Lets a page of this origin read the answer.
fn add_origin(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    let Some(origin) = origin else { return };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("x-truncated-count, x-truncated, x-ignored-fields, x-request-id");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

/// The answer to a request whose head is in order, with what it takes until it is sent.
async fn answer(
    app: &App,
    matched: Matched,
    path: &str,
    headers: &HeaderMap,
    body: Incoming,
    id: &str,
    since: Instant,
) -> Result<(Response, Option<Admitted>), (Fault, Schema)> {
    let in_schema = |fault| (fault, matched.schema);
    if let Some(page) = app.page(matched.route) {
        return page.map(|page| (page, None)).map_err(in_schema);
    }
    let service = app.service().map_err(in_schema)?;
    if matched.takes_texts() {
        service.check_waiting(app.request_timeout()).map_err(in_schema)?;
    }
    let mut admitted = app.admit(&matched, headers).map_err(in_schema)?;
    let work = async {
        let body = read(app, body, &mut admitted).await.map_err(in_schema)?;
        let rows = row_format(headers);
        let request = Request { route: matched, path, body: body.into(), rows, id, since };
        service.answer(request, &mut admitted, app.limits()).await
    };
    let late = async {
        sleep(app.request_timeout()).await;
        let seconds = app.request_timeout().as_secs();
        let message = format!("the request took longer than {seconds} seconds; send fewer texts at once");
        Fault::new(FaultKind::Timeout, message)
    };
    tokio::select! {
        answer = work => answer.map(|response| (response, Some(admitted))),
        fault = late => Err(in_schema(fault)),
        fault = app.ended() => Err(in_schema(fault)),
    }
}

/// How a client wants rows: as JSON unless it accepts only Arrow.
fn row_format(headers: &HeaderMap) -> RowFormat {
    match headers.get(header::ACCEPT) {
        Some(accepted) if accepted == ARROW_TYPE => RowFormat::Arrow,
        _ => RowFormat::Json,
    }
}

/// Reads a body, whose bytes are counted as they come.
async fn read(app: &App, mut body: Incoming, admitted: &mut Admitted) -> Result<Vec<u8>, Fault> {
    let counted = body.size_hint().lower();
    let mut bytes: Vec<u8> = Vec::with_capacity(counted.min(1 << 20) as usize);
    loop {
        let frame = match timeout(BODY_TIMEOUT, body.frame()).await {
            Err(_) => {
                let message = "the body did not come within 30 seconds; send it again";
                return Err(Fault::new(FaultKind::SlowBody, message));
            }
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(error))) => {
                let message = format!("the body ends early ({error}); send it again");
                return Err(Fault::new(FaultKind::MalformedJson, message));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let length = (bytes.len() + data.len()) as u64;
        app.check_body(length)?;
        if length > counted {
            admitted.read(data.len() as u64)?;
        }
        bytes.extend_from_slice(&data);
    }
}

fn response_of(
    response: &mut Response,
    admitted: Option<Admitted>,
    since: Instant,
) -> HttpResponse<SentBody> {
    let Response { reply, ignored, content_type } = response;
    let mut answer = HttpResponse::new(SentBody::new(mem::take(&mut reply.body), admitted));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    ignored_header(ignored).into_iter().for_each(|names| add("x-ignored-fields", names));
    if !reply.truncated.is_empty() {
        add("x-truncated-count", reply.truncated.len().to_string());
        add("x-truncated", truncated_header(&reply.truncated));
    }
    if reply.texts > 0 {
        let milliseconds = |time: Duration| time.as_millis().to_string();
        add("x-compute-type", if reply.is_gpu { "gpu" } else { "cpu" }.into());
        add("x-compute-characters", reply.bytes.to_string());
        add("x-compute-tokens", reply.tokens.to_string());
        add("x-compute-time", milliseconds(since.elapsed()));
        add("x-total-time", milliseconds(since.elapsed()));
        add("x-tokenization-time", milliseconds(reply.times.tokenize));
        add("x-queue-time", milliseconds(reply.times.queue));
        add("x-inference-time", milliseconds(reply.times.encode));
    }
    answer
}

fn response_of_fault(fault: &Fault, schema: Schema, matched: Option<Matched>) -> HttpResponse<SentBody> {
    let mut answer = HttpResponse::new(SentBody::new(fault.body(schema), None));
    let status = StatusCode::from_u16(fault.status(schema)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_TYPE));
    let more = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, "1")),
        StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
        StatusCode::METHOD_NOT_ALLOWED => matched.map(|matched| (header::ALLOW, matched.allowed())),
        _ => None,
    };
    if let Some((name, value)) = more {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
