//! What all connections share: the models, once they are loaded, and the limits.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicIsize, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::admission::{Admission, Admitted};
use super::answer::{Limits, Response};
use super::log::Log;
use super::metrics::{Gauges, Metrics};
use super::openapi::{self, METRICS_TYPE};
use super::route::{Matched, Route};
use super::schema::{Fault, FaultKind, Schema, shown};
use super::service::{Reply, Service, stopping};

/// Where the server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Models are being loaded.
    Loading,
    /// Requests are answered.
    Ready,
    /// Only admitted requests are answered.
    Stopping,
}

/// What a server is started with, beside models.
pub(super) struct AppOptions {
    pub limits: Limits,
    /// Maximum bytes of a body.
    pub payload_limit: u64,
    pub request_timeout: Duration,
    /// Keys of clients; none: everyone may ask.
    pub keys: Vec<String>,
    /// Origins of pages that may use the server; `*`: all.
    pub origins: Vec<String>,
    pub log: Log,
}

/// What precedes a key.
const BEARER: &str = "Bearer ";

/// What all connections share.
pub(super) struct App {
    limits: Limits,
    payload_limit: u64,
    request_timeout: Duration,
    /// SHA-256 of the keys.
    keys: Vec<[u8; 32]>,
    origins: Vec<String>,
    service: OnceLock<Service>,
    state: AtomicU8,
    /// Tells the requests that are still answered that there is no time left.
    ended: Notify,
    pub admission: Arc<Admission>,
    metrics: Metrics,
    connections: AtomicIsize,
    requests: AtomicU64,
    /// What tells the requests of this process from those of others.
    process: u64,
    pub log: Log,
}

impl App {
    /// A server that loads its models.
    pub(super) fn new(options: AppOptions) -> Arc<Self> {
        let AppOptions { limits, payload_limit, request_timeout, keys, origins, log } = options;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(App {
            admission: Admission::new(limits.concurrent_requests),
            limits,
            payload_limit,
            request_timeout,
            keys: keys.iter().map(|key| Sha256::digest(key).into()).collect(),
            origins,
            service: OnceLock::new(),
            state: AtomicU8::new(State::Loading as u8),
            ended: Notify::new(),
            metrics: Metrics::default(),
            connections: AtomicIsize::new(0),
            requests: AtomicU64::new(0),
            process: now.as_nanos() as u64,
            log,
        })
    }

    /// Answers requests from now on.
    pub(super) fn ready(&self, service: Service) {
        let _ = self.service.set(service);
        self.set_state(State::Ready);
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Loading,
            1 => State::Ready,
            _ => State::Stopping,
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Refuses the requests that are still answered.
    pub(super) fn end(&self) {
        self.ended.notify_waiters();
    }

    /// Waits until the server refuses the requests that are still answered.
    pub(super) async fn ended(&self) -> Fault {
        self.ended.notified().await;
        stopping()
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    pub(super) fn connections_changed(&self, by: isize) {
        self.connections.fetch_add(by, Ordering::AcqRel);
    }

    /// The id of a request: its own, or a new one.
    pub(super) fn request_id(&self, own: Option<&HeaderValue>) -> String {
        let own = own.and_then(|id| id.to_str().ok());
        let is_usable = |id: &&str| (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        match own.filter(is_usable) {
            Some(id) => id.to_owned(),
            None => {
                format!("{:016x}-{:x}", self.process, self.requests.fetch_add(1, Ordering::Relaxed))
            }
        }
    }

    /// Checks the head of a request: key, route, method, origin, and whether there is a server yet.
    pub(super) fn check_head(&self, head: &Parts, matched: Option<Matched>) -> Result<Matched, Fault> {
        let is_open = matched.is_some_and(|matched| matched.is_open());
        if !is_open && !self.has_key(&head.headers) {
            let message = "the key is missing or unknown; send the header Authorization: Bearer KEY";
            return Err(Fault::new(FaultKind::Unauthorized, message));
        }
        let path = head.uri.path();
        let Some(matched) = matched else {
            let path: String = path.chars().take(100).collect();
            let message = format!("there is no route {path}; /openapi.json lists those that there are");
            return Err(Fault::new(FaultKind::NotFound, message));
        };
        let is_head = head.method == Method::HEAD && *matched.method == Method::GET;
        if head.method != *matched.method && !is_head {
            let message = format!("{path} does not take {}; send {}", head.method, matched.method);
            return Err(Fault::new(FaultKind::Method, message));
        }
        if is_foreign(&head.headers) && self.allowed_origin(&head.headers).is_none() {
            let message = "the request comes from a page of another origin; start the server with --cors-allow-origin to allow it";
            return Err(Fault::new(FaultKind::Origin, message));
        }
        Ok(matched)
    }

    /// The origin of a request if it is one that the options allow.
    pub(super) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let is_allowed = |allowed: &String| allowed == "*" || allowed.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is_allowed).then(|| origin.clone())
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        if self.keys.is_empty() {
            return true;
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.map(|value| match value.split_at_checked(BEARER.len()) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(BEARER) => key.trim(),
            _ => value.trim(),
        });
        // Digests, so that the time does not tell how much of a key is right.
        given.is_some_and(|key| self.keys.contains(&Sha256::digest(key).into()))
    }

    /// The models.
    ///
    /// # Errors
    /// A fault if they are not loaded yet, or the server stops.
    pub(super) fn service(&self) -> Result<&Service, Fault> {
        match (self.state(), self.service.get()) {
            (State::Ready, Some(service)) => Ok(service),
            (State::Stopping, _) => Err(stopping()),
            _ => Err(Fault::new(
                FaultKind::NotReady,
                "the models are being loaded; send the request again in a moment",
            )),
        }
    }

    /// The answer to a route that needs no model: health, metrics and the document of all routes.
    pub(super) fn page(&self, route: Route) -> Option<Result<Response, Fault>> {
        let body = match route {
            Route::Live => Ok(b"{}".to_vec()),
            Route::Ready => self.service().map(|_| b"{}".to_vec()),
            Route::Metrics => {
                let page = Response::plain(self.metrics_text().into_bytes());
                return Some(Ok(Response { content_type: METRICS_TYPE, ..page }));
            }
            Route::OpenApi => Ok(openapi::document().to_vec()),
            _ => return None,
        };
        Some(body.map(Response::plain))
    }

    /// Admits a request by its head.
    pub(super) fn admit(&self, matched: &Matched, headers: &HeaderMap) -> Result<Admitted, Fault> {
        let length =
            headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let length = length.unwrap_or(0);
        self.check_body(length)?;
        let encodings = headers.get_all(header::CONTENT_ENCODING);
        let is_encoded = |value: &&HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
        if let Some(encoding) = encodings.iter().find(is_encoded).filter(|_| *matched.method == Method::POST)
        {
            let encoding = String::from_utf8_lossy(encoding.as_bytes());
            let message = format!(
                "the body is encoded as {:?} by its header Content-Encoding; send it uncompressed",
                shown(&encoding)
            );
            return Err(Fault::new(FaultKind::MediaType, message));
        }
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        // Ollama's own examples send no type of JSON.
        let is_json = content_type.is_none_or(|value| {
            let value = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            value == "application/json" || value.ends_with("+json")
        });
        if !is_json && matched.takes_texts() && matched.schema != Schema::Ollama {
            let message = "the body is not JSON by its type; send the header Content-Type: application/json";
            return Err(Fault::new(FaultKind::MediaType, message));
        }
        if !matched.takes_texts() {
            return self.admission.admit_beside(length);
        }
        self.admission.admit(length)
    }

    /// Refuses a body over the limit.
    pub(super) fn check_body(&self, bytes: u64) -> Result<(), Fault> {
        if bytes <= self.payload_limit {
            return Ok(());
        }
        let message = format!(
            "the body has over {} bytes, the limit; send fewer texts at once, or start the server with a larger --payload-limit",
            self.payload_limit
        );
        Err(Fault::new(FaultKind::BodyTooLarge, message))
    }

    /// Counts an answered request, and writes it to the log.
    pub(super) fn answered(
        &self,
        path: &'static str,
        status: u16,
        since: Instant,
        reply: Option<&Reply>,
        id: &str,
        fault: Option<&(Fault, Schema)>,
    ) {
        let seconds = since.elapsed().as_secs_f64();
        self.metrics.answered(path, status, seconds, reply);
        self.log.request(path, status, seconds, reply, id, fault.map(|(fault, _)| fault));
    }

    fn metrics_text(&self) -> String {
        let service = self.service.get();
        let models = service.map(|service| &service.models.all[..]).unwrap_or_default();
        let gauges = Gauges {
            length: service.map(|service| service.queue.length()).unwrap_or_default(),
            counters: service.map(|service| service.queue.counters()).unwrap_or_default(),
            requests: self.admission.requests(),
            bytes: self.admission.bytes(),
            connections: self.connections.load(Ordering::Acquire).max(0) as usize,
            models: models.iter().map(|model| (&*model.name, model.facts.dtype)).collect(),
            is_ready: self.state() == State::Ready,
        };
        self.metrics.text(&gauges)
    }
}

/// Whether a request comes from a page of another origin than the server. A name other than `localhost` is
/// always foreign: a page may make its own name resolve to the address of the server (DNS rebinding).
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let origin = origin.to_str().unwrap_or_default();
    origin.split_once("://").is_none_or(|(_, origin)| origin != host || !is_address(origin))
}

/// Whether a host, which may have a port, is `localhost` or an IP address.
fn is_address(host: &str) -> bool {
    let without_port = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_v6 = |host: &str| host.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    without_port == "localhost"
        || without_port.parse::<Ipv4Addr>().is_ok()
        || is_v6(host).or_else(|| is_v6(without_port)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_address_of_the_server_are_its_own() {
        for (origin, host, foreign) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", false),
            ("http://localhost:8080", "localhost:8080", false),
            ("http://[::1]:8080", "[::1]:8080", false),
            ("http://[::1]", "[::1]", false),
            ("http://10.0.0.1", "10.0.0.1", false),
            ("http://127.0.0.1:3000", "127.0.0.1:8080", true),
            ("http://example.com:8080", "example.com:8080", true),
            ("http://127.0.0.1.example.com", "127.0.0.1.example.com", true),
            ("null", "127.0.0.1:8080", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, origin.parse().unwrap());
            headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(is_foreign(&headers), foreign, "{origin} {host}");
        }
        assert!(!is_foreign(&HeaderMap::new()));
    }
}
