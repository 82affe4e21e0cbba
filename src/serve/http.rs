//! HTTP/1.1 on one thread: connections, the checks of a request's head, its body, and the head of its answer. What takes time runs on the
//! workers of the queue.

use std::convert::Infallible;
use std::mem;
use std::net::TcpListener as BoundListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::admission::Admitted;
use super::answer::{Request, Response};
use super::app::{App, State};
use super::route::{Matched, Route, schema_of};
use super::schema::{Fault, FaultKind, Schema, ignored_header, truncated_header};

/// Maximum time until the head of a request is there, and between two requests of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum time between two parts of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum open connections. Others wait until one is closed.
const MAX_CONNECTIONS: usize = 8192;
/// How long nothing is accepted after the system has refused a connection, for example because of the limit of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers requests until the process is told to stop, and then those that were admitted, for `shutdown_timeout` at most.
pub(super) fn serve(listener: BoundListener, app: &Arc<App>, shutdown_timeout: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the thread for HTTP")?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let connections = GracefulShutdown::new();
        tokio::select! {
            () = accept(&listener, app, &connections) => {}
            () = super::stop::requested(app) => {}
        }
        drop(listener);
        app.set_state(State::Stopping);
        tokio::select! {
            () = connections.shutdown() => {}
            () = sleep(shutdown_timeout) => {}
            () = super::stop::forced() => {}
        }
        Ok(())
    })
}

/// Accepts connections, each of which is a task.
async fn accept(listener: &TcpListener, app: &Arc<App>, connections: &GracefulShutdown) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Small answers must not wait for more of the same.
        let _ = stream.set_nodelay(true);
        let served = app.clone();
        let answer = service_fn(move |request| respond(served.clone(), request));
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), answer);
        let connection = connections.watch(connection);
        let app = app.clone();
        tokio::spawn(async move {
            app.connections_changed(1);
            // A connection that breaks has no one to tell.
            let _ = connection.await;
            app.connections_changed(-1);
            drop(permit);
        });
    }
}

/// The answer to a request, whatever it is.
async fn respond(
    app: Arc<App>,
    request: HttpRequest<Incoming>,
) -> Result<HttpResponse<Full<Bytes>>, Infallible> {
    let since = Instant::now();
    let (head, body) = request.into_parts();
    let id = app.request_id(head.headers.get("x-request-id"));
    let path = head.uri.path();
    let matched = Matched::of(path);
    let checked = app.check_head(&head, matched);
    let mut result = match checked {
        Err(fault) => Err((fault, matched.map_or_else(|| schema_of(path), |matched| matched.schema))),
        Ok(matched) => answer(&app, matched, path, &head.headers, body, &id, since).await,
    };
    let mut response = match &mut result {
        Ok(response) => response_of(response, matched, since),
        Err((fault, schema)) => response_of_fault(fault, *schema),
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    }
    let reply = result.as_ref().ok().map(|response| &response.reply);
    let path = matched.map_or("other", |matched| matched.path);
    app.answered(path, response.status().as_u16(), since, reply, &id, result.as_ref().err());
    Ok(response)
}

/// The answer to a request whose head is in order.
async fn answer(
    app: &App,
    matched: Matched,
    path: &str,
    headers: &HeaderMap,
    body: Incoming,
    id: &str,
    since: Instant,
) -> Result<Response, (Fault, Schema)> {
    let in_schema = |fault| (fault, matched.schema);
    if let Some(page) = app.page(matched.route) {
        return page.map_err(in_schema);
    }
    let service = app.service().map_err(in_schema)?;
    let mut admitted = app.admit(&matched, headers).map_err(in_schema)?;
    let body = read(app, body, &mut admitted).await.map_err(in_schema)?;
    let request = Request { route: matched, path, body: body.into(), id, since };
    match timeout(app.request_timeout(), service.answer(request, &mut admitted, app.limits())).await {
        Ok(answer) => answer,
        Err(_) => {
            let seconds = app.request_timeout().as_secs();
            let message = format!("the request took longer than {seconds} seconds; send fewer texts at once");
            Err(in_schema(Fault::new(FaultKind::Timeout, message)))
        }
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
                return Err(Fault::new(FaultKind::Timeout, message));
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
    matched: Option<Matched>,
    since: Instant,
) -> HttpResponse<Full<Bytes>> {
    let Response { reply, ignored } = response;
    let mut answer = HttpResponse::new(Full::new(Bytes::from(mem::take(&mut reply.body))));
    let is_text = matched.is_some_and(|matched| matched.route == Route::Metrics);
    let content_type = if is_text { "text/plain; version=0.0.4" } else { "application/json" };
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
        add("x-compute-type", "cpu".into());
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

fn response_of_fault(fault: &Fault, schema: Schema) -> HttpResponse<Full<Bytes>> {
    let mut answer = HttpResponse::new(Full::new(Bytes::from(fault.body(schema))));
    let status = StatusCode::from_u16(fault.status(schema)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}
