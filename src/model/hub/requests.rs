//! Requests to a hub. What a server answers is checked before anything is made of it: it may be broken, or somebody
//! else's.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

use crate::guard::guard;

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 10;
/// Bytes that have to arrive within the time limit, again and again: a server that sends a byte now and then is stalled.
const MIN_BYTES: u64 = 1 << 10;
/// Bytes of a list of files at most.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Bytes that are read at a time.
const BUFFER: usize = 1 << 16;

/// Why there is no answer that can be used.
#[derive(Debug)]
pub enum Failure {
    /// No answer came; the reason.
    Unreachable(String),
    /// An HTTP status other than success, and the hub's own code for it.
    Refused { status: u16, code: Option<String> },
    /// An answer that no hub gives; what is wrong with it.
    Malformed(String),
}

/// Why the content of a file did not arrive.
#[derive(Debug)]
pub enum Gap {
    /// The request failed.
    Failed(Failure),
    /// The connection broke or stalled; the reason.
    Broken(String),
    /// The content is longer than the file.
    TooLong,
    /// It could not be written.
    Disk(io::Error),
}

/// What a hub says of a file.
#[derive(Debug)]
pub struct FileInfo {
    /// The hub's name for the content; for large files its SHA-256. Not checked.
    pub etag: String,
    /// Bytes.
    pub size: u64,
}

/// A scheme, a host and a port.
type Origin = (String, String, u16);

/// Whoever asks a hub.
pub struct Client {
    agent: Agent,
    /// The hub's address, without user and password.
    endpoint: String,
    /// User and password of the address.
    userinfo: Option<String>,
    token: Option<String>,
    /// How long a server may be silent.
    timeout: Duration,
}

impl Client {
    /// A client of the hub at `endpoint`. The token, and user and password that are part of the address, are sent to
    /// that address only, wherever it redirects to.
    pub fn new(endpoint: &str, token: Option<String>, timeout: Duration) -> Self {
        let (endpoint, userinfo) = without_userinfo(endpoint.trim_end_matches('/'));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .timeout_per_write(Some(timeout))
            .user_agent(concat!("sconce/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .build();
        Client { agent: config.new_agent(), endpoint, userinfo, token, timeout }
    }

    /// The hub's address, without user and password.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether requests carry a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The JSON value at a path of the hub.
    pub fn json(&self, path: &str) -> Result<Value, Failure> {
        let response = self.follow(path, None, |_, _| true)?;
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_reader();
        self.copy(&mut body, MAX_LIST_BYTES, |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .map_err(|gap| match gap {
            Gap::Failed(failure) => failure,
            Gap::Broken(reason) => Failure::Unreachable(reason),
            Gap::TooLong => Failure::Malformed(format!("it is longer than {} MiB", MAX_LIST_BYTES >> 20)),
            Gap::Disk(error) => Failure::Unreachable(error.to_string()),
        })?;
        serde_json::from_slice(&bytes).map_err(|_| Failure::Malformed("it is not JSON".into()))
    }

    /// What the hub says of the file at a path. Another server that it redirects to is asked for the size only, where
    /// the hub does not say it.
    pub fn info(&self, path: &str) -> Result<FileInfo, Failure> {
        let (mut etag, mut size) = (None, None);
        let mut note = |response: &Response<Body>| {
            let found = header(response, "x-linked-etag").or(header(response, "etag"));
            etag = found.map(|tag| tag.trim_start_matches("W/").replace('"', "")).or(etag.take());
            size = header(response, "x-linked-size").and_then(|size| size.parse().ok()).or(size);
            size.is_none()
        };
        let mut is_hub = true;
        let last = self.follow(path, Some("bytes=0-0"), |response, next_is_hub| {
            let go_on = !is_hub || note(response);
            is_hub &= next_is_hub;
            go_on || next_is_hub
        })?;
        if is_hub {
            note(&last);
        }
        let Some(etag) = etag else { return Err(Failure::Malformed("it has no ETag".into())) };
        let announced = || match last.status().as_u16() {
            206 => content_range(&last).map(|(_, total)| total),
            _ => header(&last, "content-length").and_then(|length| length.parse().ok()),
        };
        let Some(size) = size.or_else(announced) else {
            return Err(Failure::Malformed("it does not say the size of the file".into()));
        };
        Ok(FileInfo { etag, size })
    }

    /// Hands the content of a file of `size` bytes on, from byte `start` on, or from the beginning if the server cannot
    /// begin elsewhere: `begin` is told.
    pub fn content(
        &self,
        path: &str,
        start: u64,
        size: u64,
        begin: impl FnOnce(u64) -> io::Result<()>,
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Gap> {
        let response =
            self.follow(path, Some(&format!("bytes={start}-")), |_, _| true).map_err(Gap::Failed)?;
        let malformed = |reason: String| Err(Gap::Failed(Failure::Malformed(reason)));
        let start = match response.status().as_u16() {
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
        begin(start).map_err(Gap::Disk)?;
        self.copy(&mut response.into_body().into_reader(), size - start, write)
    }

    /// Asks for a path of the hub and follows redirects, for as long as `go_on` agrees to each: it is told whether the
    /// next answer is the hub's own. The answer is a success, or the redirect where it did not agree.
    fn follow(
        &self,
        path: &str,
        range: Option<&str>,
        mut go_on: impl FnMut(&Response<Body>, bool) -> bool,
    ) -> Result<Response<Body>, Failure> {
        let no_address = || Failure::Unreachable("it is no http or https address".into());
        let hub = origin(&self.endpoint).ok_or_else(no_address)?;
        let mut url = format!("{}{path}", self.endpoint);
        let mut is_hub = true;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&url, range, is_hub)?;
            let status = response.status().as_u16();
            match status {
                200 | 206 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {}
                _ => {
                    let code = header(&response, "x-error-code").map(String::from);
                    return Err(Failure::Refused { status, code });
                }
            }
            let next = header(&response, "location").and_then(|location| join(&url, location));
            let Some((next, place)) = next.and_then(|next| origin(&next).map(|place| (next, place))) else {
                return Err(Failure::Malformed(format!("it redirects (status {status}) to no address")));
            };
            if url.starts_with("https:") && place.0 == "http" {
                return Err(Failure::Malformed("it redirects from https to http".into()));
            }
            is_hub = place == hub;
            if !go_on(&response, is_hub) {
                return Ok(response);
            }
            url = next;
        }
        Err(Failure::Unreachable(format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send(&self, url: &str, range: Option<&str>, is_hub: bool) -> Result<Response<Body>, Failure> {
        let with_userinfo = match (&self.userinfo, url.split_once("://")) {
            (Some(userinfo), Some((scheme, rest))) if is_hub => Some(format!("{scheme}://{userinfo}@{rest}")),
            _ => None,
        };
        let call = || {
            let mut request = self.agent.get(with_userinfo.as_deref().unwrap_or(url));
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            request.call()
        };
        let ask = || match call() {
            // A server may close a connection that was kept for the next request just when that is sent.
            Err(ureq::Error::Io(error)) if is_closed(&error) => call(),
            answer => answer,
        };
        answered(ask)?.map_err(|error| Failure::Unreachable(self.reason(&error)))
    }

    /// What is wrong with a connection, without user and password of the address.
    fn reason(&self, error: &ureq::Error) -> String {
        let reason = match error {
            ureq::Error::Timeout(_) => return self.silence(),
            ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => return self.silence(),
            error => error.to_string(),
        };
        match &self.userinfo {
            Some(userinfo) => reason.replace(&format!("{userinfo}@"), ""),
            None => reason,
        }
    }

    /// Hands on what comes, `most` bytes at most.
    fn copy(
        &self,
        body: &mut impl Read,
        most: u64,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Gap> {
        let mut buffer = vec![0; BUFFER];
        let (mut left, mut since, mut arrived) = (most, Instant::now(), 0);
        while left > 0 {
            let room = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = match body.read(&mut buffer[..room]) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Gap::Broken(self.reason(&error.into()))),
            };
            write(&buffer[..count]).map_err(Gap::Disk)?;
            left -= count as u64;
            arrived += count as u64;
            if arrived >= MIN_BYTES {
                (since, arrived) = (Instant::now(), 0);
            } else if left > 0 && since.elapsed() > self.timeout {
                return Err(Gap::Broken(self.silence()));
            }
        }
        // Whatever comes now is no part of the file; where nothing does, it has arrived.
        match body.read(&mut buffer[..1]) {
            Ok(1..) => Err(Gap::TooLong),
            Ok(0) | Err(_) => Ok(()),
        }
    }

    fn silence(&self) -> String {
        format!("no data for {} s; HF_HUB_DOWNLOAD_TIMEOUT sets the limit", self.timeout.as_secs_f64())
    }
}

/// What a request gives. Names are looked up in a thread of the library's own, which panics where the system grants none.
fn answered<T>(ask: impl FnOnce() -> T) -> Result<T, Failure> {
    guard(ask).ok_or_else(|| {
        Failure::Unreachable(
            "no thread to look up its name; the limit of processes (ulimit -u) may be reached".into(),
        )
    })
}

/// Whether the other side has closed a connection.
fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// An address without user and password, and those.
fn without_userinfo(address: &str) -> (String, Option<String>) {
    let start = address.find("://").map_or(0, |at| at + 3);
    let end = address[start..].find(['/', '?', '#']).map_or(address.len(), |at| start + at);
    match address[start..end].rsplit_once('@') {
        Some((userinfo, host)) => {
            (format!("{}{host}{}", &address[..start], &address[end..]), Some(userinfo.into()))
        }
        None => (address.into(), None),
    }
}

/// Where an http or https address leads.
fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_lowercase();
    let usual = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    Some((scheme, uri.host()?.to_lowercase(), uri.port_u16().unwrap_or(usual)))
}

/// The address that a redirect from `url` names.
fn join(url: &str, location: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, rest) = url.split_once("://")?;
    let is_absolute = location.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
    if is_absolute {
        return Some(location.into());
    }
    if location.starts_with("//") {
        return Some(format!("{scheme}:{location}"));
    }
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    if location.starts_with('/') {
        return Some(format!("{scheme}://{host}{location}"));
    }
    let path = path.split('?').next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    (!location.is_empty()).then(|| format!("{scheme}://{host}{folder}{location}"))
}

/// The first byte of a partial answer and the bytes of the whole file.
fn content_range(response: &Response<Body>) -> Option<(u64, u64)> {
    let (range, total) = header(response, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// A path of a repository as part of an address.
pub fn encode_path(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_asking_is_a_failure() {
        let failure = answered::<()>(|| panic!("failed to spawn thread")).unwrap_err();
        assert!(matches!(failure, Failure::Unreachable(reason) if reason.contains("ulimit -u")));
        assert!(matches!(answered(|| 1), Ok(1)));
    }

    #[test]
    fn redirects_lead_where_a_browser_would_go() {
        let base = "http://hub:1/a/b?c";
        for (location, expected) in [
            ("https://elsewhere/x", Some("https://elsewhere/x")),
            ("//elsewhere/x", Some("http://elsewhere/x")),
            ("/x?y=http://z", Some("http://hub:1/x?y=http://z")),
            ("x#y", Some("http://hub:1/a/x")),
            ("", None),
        ] {
            assert_eq!(join(base, location).as_deref(), expected, "{location}");
        }
        assert_eq!(join("http://hub", "x").as_deref(), Some("http://hub/x"));
    }

    #[test]
    fn an_address_is_compared_by_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/x"), origin("https://u:p@hub.example:443"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.org"] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        for none in ["hub.example", "ftp://hub.example", "http://a b", "file:///etc/passwd", ""] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn user_and_password_are_kept_apart_from_an_address() {
        for (address, shown, secret) in [
            ("https://u:p@hub/x", "https://hub/x", Some("u:p")),
            ("https://u:p@w@hub", "https://hub", Some("u:p@w")),
            ("u:p@hub", "hub", Some("u:p")),
            ("https://hub/a@b", "https://hub/a@b", None),
        ] {
            assert_eq!(without_userinfo(address), (shown.into(), secret.map(String::from)));
        }
    }
}
