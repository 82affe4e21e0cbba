//! HTTP requests to a hub. Answers are checked before they are used, because the server may be broken or
//! malicious.

mod connections;

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::certificates;
use super::url::{Origin, join, origin, without_userinfo};
use crate::sys::catch_panic::catch_panic;
use connections::Connections;

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 10;
/// Minimum number of bytes per second, on average over each timeout: a server that sends fewer counts as
/// stalled.
const MIN_BYTES_PER_SECOND: f64 = 1024.0;
/// Maximum size of a JSON answer.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Maximum duration of a JSON answer, as a multiple of the timeout for a silent server.
const MAX_JSON_TIMEOUTS: u32 = 10;
/// Size of the read buffer in bytes.
const BUFFER: usize = 1 << 16;

/// Why a request has no usable answer.
#[derive(Debug)]
pub(super) enum RequestError {
    /// No answer, for this reason.
    Unreachable(String),
    /// An HTTP status other than success, with the hub's `x-error-code`.
    Refused { status: u16, code: Option<String> },
    /// An answer that no hub gives, for this reason.
    Malformed(String),
    /// The certificate of the server failed the check: the certificate, what is wrong with it and what to do.
    Certificate(String),
    /// A variable of the environment cannot be used: a sentence.
    Setting(String),
}

/// Why a download did not complete.
#[derive(Debug)]
pub(super) enum DownloadError {
    /// The request failed.
    Request(RequestError),
    /// The connection broke or stalled, for this reason; whether the server had sent the file from its
    /// beginning in place of the rest.
    Interrupted { reason: String, from_start: bool },
    /// The content is longer than the file.
    TooLong,
    /// The content could not be written.
    Disk(io::Error),
}

/// A hub's description of a file.
#[derive(Debug)]
pub(super) struct FileInfo {
    /// The hub's identifier of the content; for large files its SHA-256. As the server sent it.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
}

/// An HTTP client of one hub.
pub(super) struct Client {
    connections: Connections,
    /// The URL of the hub, without user and password.
    endpoint: String,
    /// User and password of the URL.
    userinfo: Option<String>,
    token: Option<String>,
    /// Maximum time without a byte from the server.
    timeout: Duration,
}

impl Client {
    /// A client of the hub at `endpoint`. The token, and user and password of the URL, are sent only to the
    /// origin of `endpoint`, not to servers that it redirects to.
    pub(super) fn new(endpoint: &str, token: Option<String>, timeout: Duration) -> Self {
        let (endpoint, userinfo) = without_userinfo(endpoint.trim_end_matches('/'));
        Client { connections: Connections::new(timeout), endpoint, userinfo, token, timeout }
    }

    /// The URL of the hub, without user and password.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether requests carry a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The JSON value at a path of the hub.
    pub(super) fn json(&self, path: &str) -> Result<Value, RequestError> {
        let response = self.follow(path, None, |_, _| true)?;
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_reader();
        let (start, limit) = (Instant::now(), MAX_JSON_TIMEOUTS * self.timeout);
        self.copy(&mut body, MAX_JSON_BYTES, |part| {
            bytes.extend_from_slice(part);
            match start.elapsed() > limit {
                true => Err(io::Error::other(format!("it takes more than {} s", limit.as_secs_f64()))),
                false => Ok(()),
            }
        })
        .map_err(|error| match error {
            DownloadError::Request(error) => error,
            DownloadError::Interrupted { reason, .. } => RequestError::Unreachable(reason),
            DownloadError::TooLong => {
                RequestError::Malformed(format!("it is longer than {} MiB", MAX_JSON_BYTES >> 20))
            }
            DownloadError::Disk(error) => RequestError::Unreachable(error.to_string()),
        })?;
        serde_json::from_slice(&bytes).map_err(|_| RequestError::Malformed("it is not JSON".into()))
    }

    /// The hub's description of the file at a path. A server that it redirects to is asked only for the size,
    /// and only if the hub does not state it.
    pub(super) fn info(&self, path: &str) -> Result<FileInfo, RequestError> {
        let (mut etag, mut size) = (None, None);
        let mut read_headers = |response: &Response<Body>| {
            let found = header(response, "x-linked-etag").or(header(response, "etag"));
            etag = found.map(|tag| tag.trim_start_matches("W/").replace('"', "")).or(etag.take());
            size = header(response, "x-linked-size").and_then(|size| size.parse().ok()).or(size);
            size.is_none()
        };
        let mut is_hub = true;
        let last = self.follow(path, Some("bytes=0-0"), |response, next_is_hub| {
            let needs_size = !is_hub || read_headers(response);
            is_hub &= next_is_hub;
            needs_size || next_is_hub
        })?;
        if is_hub {
            read_headers(&last);
        }
        let Some(etag) = etag else { return Err(RequestError::Malformed("it has no ETag".into())) };
        let content_size = || match last.status().as_u16() {
            206 => content_range(&last).map(|(_, total)| total),
            _ => header(&last, "content-length").and_then(|length| length.parse().ok()),
        };
        let Some(size) = size.or_else(content_size) else {
            return Err(RequestError::Malformed("it does not state the size of the file".into()));
        };
        Ok(FileInfo { etag, size })
    }

    /// Downloads a file of `size` bytes from byte `start` on, or from the beginning if the server does not
    /// support ranges: `begin` is called with the first byte, then `write` with the content.
    pub(super) fn content(
        &self,
        path: &str,
        start: u64,
        size: u64,
        begin: impl FnOnce(u64) -> io::Result<()>,
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), DownloadError> {
        let response = self
            .follow(path, Some(&format!("bytes={start}-")), |_, _| true)
            .map_err(DownloadError::Request)?;
        let malformed = |reason: String| Err(DownloadError::Request(RequestError::Malformed(reason)));
        let first = match response.status().as_u16() {
            206 => match content_range(&response) {
                Some(range) if range == (start, size) => start,
                _ => return malformed(format!("its range is not the one from byte {start} of {size}")),
            },
            _ => match header(&response, "content-length").map(str::parse::<u64>) {
                None => 0,
                Some(Ok(length)) if length == size => 0,
                Some(_) => return malformed(format!("its length is not {size} bytes")),
            },
        };
        begin(first).map_err(DownloadError::Disk)?;
        self.copy(&mut response.into_body().into_reader(), size - first, write).map_err(|error| match error {
            DownloadError::Interrupted { reason, .. } => {
                DownloadError::Interrupted { reason, from_start: first < start }
            }
            error => error,
        })
    }

    /// Requests a path of the hub and follows redirects while `follows` returns true; it gets each redirect
    /// and whether the next server is the hub. Returns the successful answer, or the redirect that was not
    /// followed.
    fn follow(
        &self,
        path: &str,
        range: Option<&str>,
        mut follows: impl FnMut(&Response<Body>, bool) -> bool,
    ) -> Result<Response<Body>, RequestError> {
        let invalid = || RequestError::Unreachable("it is no http or https URL".into());
        let hub = origin(&self.endpoint).ok_or_else(invalid)?;
        let mut url = format!("{}{path}", self.endpoint);
        let (mut server, mut is_hub) = (hub.clone(), true);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&url, &server, range, is_hub)?;
            let status = response.status().as_u16();
            match status {
                200 | 206 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {}
                _ => {
                    let code = header(&response, "x-error-code").map(String::from);
                    return Err(RequestError::Refused { status, code });
                }
            }
            let next = header(&response, "location").and_then(|location| join(&url, location));
            let Some((next, target)) = next.and_then(|next| origin(&next).map(|target| (next, target)))
            else {
                return Err(RequestError::Malformed(format!("it redirects (status {status}) to no URL")));
            };
            if url.starts_with("https:") && target.0 == "http" {
                return Err(RequestError::Malformed("it redirects from https to http".into()));
            }
            is_hub = target == hub;
            if !follows(&response, is_hub) {
                return Ok(response);
            }
            (url, server) = (next, target);
        }
        Err(RequestError::Unreachable(format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Sends one GET request to the server of a URL, with the credentials if it is for the hub.
    fn send(
        &self,
        url: &str,
        server: &Origin,
        range: Option<&str>,
        is_hub: bool,
    ) -> Result<Response<Body>, RequestError> {
        let with_userinfo = match (&self.userinfo, url.split_once("://")) {
            (Some(userinfo), Some((scheme, rest))) if is_hub => Some(format!("{scheme}://{userinfo}@{rest}")),
            _ => None,
        };
        let route = self.connections.to(server)?;
        let call = |agent: &Agent| {
            let mut request = agent.get(with_userinfo.as_deref().unwrap_or(url));
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            request.call()
        };
        let ask = |agent: &Agent| match call(agent) {
            // The server may close a kept-alive connection while the next request is sent on it.
            Err(ureq::Error::Io(error)) if is_closed(&error) => call(agent),
            answer => answer,
        };
        let mut answer = without_panic(|| ask(&route.agent))?;
        if answer.as_ref().is_err_and(certificates::is_of_unknown_authority)
            && let Some(roots) = certificates::of_system()
        {
            let route = self.connections.with_roots(server, || Ok(roots))?;
            answer = without_panic(|| ask(&route.agent))?;
        }
        answer.map_err(|error| {
            let through = route
                .proxy_variable
                .map(|variable| format!(", through the proxy of {variable}"))
                .unwrap_or_default();
            match certificates::fault(&error) {
                Some(fault) => {
                    RequestError::Certificate(format!("the certificate of {}{through} {fault}", server.1))
                }
                None => RequestError::Unreachable(self.reason(&error) + &through),
            }
        })
    }

    /// The message of a connection error, without user and password of the URL.
    fn reason(&self, error: &ureq::Error) -> String {
        let reason = match error {
            ureq::Error::Timeout(_) => return self.timeout_reason("no data"),
            ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => {
                return self.timeout_reason("no data");
            }
            error => error.to_string(),
        };
        match &self.userinfo {
            Some(userinfo) => reason.replace(&format!("{userinfo}@"), ""),
            None => reason,
        }
    }

    /// Passes up to `max_bytes` bytes of a body to `write`.
    fn copy(
        &self,
        body: &mut impl Read,
        max_bytes: u64,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), DownloadError> {
        let mut buffer = vec![0; BUFFER];
        let min_bytes = (MIN_BYTES_PER_SECOND * self.timeout.as_secs_f64()) as u64;
        let (mut left, mut since, mut recent) = (max_bytes, Instant::now(), 0);
        let interrupted = |reason| Err(DownloadError::Interrupted { reason, from_start: false });
        while left > 0 {
            let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = match body.read(&mut buffer[..room]) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return interrupted(self.reason(&error.into())),
            };
            write(&buffer[..count]).map_err(DownloadError::Disk)?;
            left -= count as u64;
            recent += count as u64;
            if recent >= min_bytes {
                (since, recent) = (Instant::now(), 0);
            } else if left > 0 && since.elapsed() > self.timeout {
                return interrupted(self.timeout_reason("less than 1 KiB/s"));
            }
        }
        // One more byte means that the content is too long.
        match body.read(&mut buffer[..1]) {
            Ok(1..) => Err(DownloadError::TooLong),
            Ok(0) | Err(_) => Ok(()),
        }
    }

    /// What has lasted for the timeout, and the variable that sets it.
    fn timeout_reason(&self, what: &str) -> String {
        format!("{what} for {} s; HF_HUB_DOWNLOAD_TIMEOUT sets the limit", self.timeout.as_secs_f64())
    }
}

/// The result of a request. ureq resolves host names in a thread of its own, and panics if the system refuses
/// to create it.
fn without_panic<T>(ask: impl FnOnce() -> T) -> Result<T, RequestError> {
    catch_panic(ask).ok_or_else(|| {
        RequestError::Unreachable(
            "no thread could be created to resolve its name; the limit of processes (ulimit -u) may be reached".into(),
        )
    })
}

/// Whether the server has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// `Content-Range`: the first byte of a partial answer, and the size of the complete file.
fn content_range(response: &Response<Body>) -> Option<(u64, u64)> {
    let (range, total) = header(response, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_request_is_an_error() {
        let error = without_panic::<()>(|| panic!("failed to spawn thread")).unwrap_err();
        assert!(matches!(error, RequestError::Unreachable(reason) if reason.contains("ulimit -u")));
        assert!(matches!(without_panic(|| 1), Ok(1)));
    }
}
