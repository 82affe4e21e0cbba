//! A small hub on 127.0.0.1: it responds like the Hugging Face hub, injects faults, and records requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::fixture;

/// The content and behaviour of the hub; tests may change it at any time through [`Hub::site`].
pub struct Site {
    pub model: String,
    pub files: BTreeMap<String, Vec<u8>>,
    /// The commit of each branch.
    pub branches: BTreeMap<String, String>,
    /// The token that requests must have.
    pub token: Option<String>,
    /// A former name of the model and its present name, to which requests are redirected.
    pub moved: Option<(String, String)>,
    /// Faults by file name; [`LIST`] is the list of files.
    pub faults: BTreeMap<String, Fault>,
}

/// The key of the list of files in [`Site::faults`].
pub const LIST: &str = "list";

/// A fault of the response for a file.
#[derive(Clone)]
pub enum Fault {
    /// The connection breaks before this byte of the file, this number of times.
    Break { at: usize, times: usize },
    /// The response ends before this byte and has no Content-Length, so that the client cannot notice.
    Short { at: usize },
    /// Ranges are not supported: the response is the whole file.
    NoRange,
    /// Ranges are not supported, and the connection breaks before this byte of the file.
    NoRangeBreak { at: usize },
    /// The ETag of the file, as a server without checksums gives it.
    Etag(String),
    /// One bit of the file is flipped.
    Damaged,
    /// These bytes replace the HTTP response.
    Raw(Vec<u8>),
    /// Bytes from this one on are sent once two processes have requested the list of files.
    Hold { at: usize },
    /// Nothing is sent, not even headers.
    Silent,
    /// Nothing is sent from this byte on, while the connection stays open.
    Stall { at: usize },
    /// From this byte on, one byte is sent every 200 ms.
    Drip { at: usize },
    /// The response has no Content-Length, and after the file it continues without an end.
    Endless,
    /// The first request is answered as usual, later ones with these bytes.
    Later(Vec<u8>),
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let headers = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                line.split_once(':').map(|(key, value)| (key.to_lowercase(), value.trim().to_owned()))
            })
            .collect();
        Some(Request { method, path, headers })
    }
}

/// A running hub, with a second server as the storage that large files are redirected to.
pub struct Hub {
    pub url: String,
    state: Arc<State>,
    servers: Vec<(SocketAddr, JoinHandle<()>)>,
}

struct State {
    site: Mutex<Site>,
    requests: Mutex<Vec<Request>>,
    storage: String,
    stopped: AtomicBool,
}

impl Hub {
    pub fn start(site: Site) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let listeners = [listen(), listen()];
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("an address"));
        let state = Arc::new(State {
            site: Mutex::new(site),
            requests: Mutex::default(),
            storage: format!("http://{}", addresses[1]),
            stopped: AtomicBool::new(false),
        });
        let servers = listeners.into_iter().zip(addresses).map(|(listener, address)| {
            let state = state.clone();
            (address, thread::spawn(move || serve(&listener, &state)))
        });
        Hub { url: format!("http://{}", addresses[0]), servers: servers.collect(), state }
    }

    pub fn site(&self) -> MutexGuard<'_, Site> {
        self.state.site.lock().expect("no handler panicked")
    }

    /// Injects a fault for a file.
    pub fn fail(&self, file: &str, fault: Fault) {
        self.site().faults.insert(file.into(), fault);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.site().faults.clear();
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.requests.lock().expect("no handler panicked"))
    }

    /// Stops the servers.
    pub fn stop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        for (address, server) in self.servers.drain(..) {
            // A connection wakes the server, which then sees the flag.
            let _ = TcpStream::connect(address);
            server.join().expect("no server panicked");
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a server on localhost that passes encrypted requests on to a hub; returns its URL. Its certificate
/// is signed by `tests/fixtures/tls/ca.pem`.
pub fn encrypted(hub: &Hub) -> String {
    let folder = fixture("tls");
    let chain = CertificateDer::pem_file_iter(folder.join("server.pem")).expect("a file");
    let chain = chain.map(|certificate| certificate.expect("a certificate")).collect();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a key of the certificate");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("an address").port();
    let plain = hub.url.strip_prefix("http://").expect("an address").to_owned();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, plain) = (config.clone(), plain.clone());
            // A client that refuses the certificate closes the connection.
            thread::spawn(move || stream.and_then(|stream| decrypt(stream, config, &plain)));
        }
    });
    format!("https://localhost:{port}")
}

/// Passes one encrypted request on to the hub at an address, and its response back.
fn decrypt(stream: TcpStream, config: Arc<ServerConfig>, hub: &str) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).expect("a connection");
    let mut client = StreamOwned::new(connection, stream);
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        request.extend(byte);
    }
    let mut hub = TcpStream::connect(hub)?;
    hub.write_all(&request)?;
    std::io::copy(&mut hub, &mut client)?;
    client.conn.send_close_notify();
    client.flush()
}

fn serve(listener: &TcpListener, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.stopped.load(Ordering::SeqCst) {
            return;
        }
        let state = state.clone();
        // A client may close the connection early.
        thread::spawn(move || stream.and_then(|stream| state.respond(stream)));
    }
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The ETag of a small file: its SHA-1 in git.
pub fn small_etag(content: &[u8]) -> String {
    let hash = Sha1::new_with_prefix(format!("blob {}\0", content.len())).chain_update(content).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How long a silent connection stays open.
const SILENCE: Duration = Duration::from_secs(30);

/// Status line and headers.
fn head(status: &str, headers: &[(&str, String)]) -> String {
    let headers: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n")
}

/// An error response without content.
fn error_response(status: &str, code: &str) -> String {
    head(status, &[("X-Error-Code", code.into()), ("Content-Length", "0".into())]) + "\r\n"
}

fn redirect(status: &str, location: String, headers: &[(&str, String)]) -> String {
    head(status, headers) + &format!("Location: {location}\r\nContent-Length: 0\r\n\r\n")
}

/// The response to a request.
enum Response {
    Text(String),
    Raw(Vec<u8>),
    Silence,
    Content { name: String, etag: String },
}

impl Site {
    fn route(&self, storage: &str, request: &Request) -> Response {
        let path = request.path.as_str();
        if let Some(digest) = path.strip_prefix("/storage/") {
            let file = self.files.iter().find(|(_, content)| sha256(content) == digest);
            // Clients must ignore the ETag of the storage.
            let (name, etag) =
                (file.expect("only redirected files are requested").0.clone(), "storage-1".into());
            return Response::Content { name, etag };
        }
        if self
            .token
            .as_ref()
            .is_some_and(|t| request.header("authorization") != Some(&format!("Bearer {t}")))
        {
            return Response::Text(error_response("401 Unauthorized", "RepoNotFound"));
        }
        if let Some((from, to)) = self.moved.as_ref().filter(|(from, _)| path.contains(&format!("/{from}/")))
        {
            let location = path.replacen(&format!("/{from}/"), &format!("/{to}/"), 1);
            return Response::Text(redirect("307 Temporary Redirect", location, &[]));
        }
        if let Some(revision) = path.strip_prefix(&format!("/api/models/{}/revision/", self.model)) {
            return match self.faults.get(LIST) {
                Some(Fault::Raw(bytes)) => Response::Raw(bytes.clone()),
                Some(Fault::Silent) => Response::Silence,
                _ => Response::Text(self.list(revision)),
            };
        }
        let inside = |prefix: &str| path.strip_prefix(&format!("{prefix}/"))?.split_once('/');
        if let Some((_, name)) = inside(&format!("/api/resolve-cache/models/{}", self.model)) {
            return Response::Content { name: name.into(), etag: small_etag(&self.files[name]) };
        }
        match inside(&format!("/{}/resolve", self.model)) {
            Some((commit, name)) => self.resolve(storage, commit, name),
            None => Response::Text(error_response("404 Not Found", "RepoNotFound")),
        }
    }

    fn list(&self, revision: &str) -> String {
        let revision = revision.replace("%2F", "/");
        let commit = self.branches.get(&revision).or(self.branches.values().find(|c| **c == revision));
        let Some(commit) = commit else { return error_response("404 Not Found", "RevisionNotFound") };
        let files: Vec<_> = self.files.keys().map(|name| json!({ "rfilename": name })).collect();
        let body = json!({ "id": self.model, "sha": commit, "siblings": files }).to_string();
        let length = ("Content-Length", body.len().to_string());
        head("200 OK", &[("Content-Type", "application/json".into()), length]) + "\r\n" + &body
    }

    /// A file or a redirect: large files are in the storage, some small ones at another path of the hub.
    fn resolve(&self, storage: &str, commit: &str, name: &str) -> Response {
        match self.faults.get(name) {
            Some(Fault::Raw(bytes)) => return Response::Raw(bytes.clone()),
            Some(Fault::Silent) => return Response::Silence,
            _ => {}
        }
        let known = self.branches.values().any(|known| known == commit);
        let Some(content) = self.files.get(name).filter(|_| known) else {
            return Response::Text(error_response("404 Not Found", "EntryNotFound"));
        };
        let linked = |etag: &str| {
            [
                ("X-Linked-ETag", format!("\"{etag}\"")),
                ("X-Linked-Size", content.len().to_string()),
                ("X-Repo-Commit", commit.to_owned()),
            ]
        };
        if name.ends_with(".safetensors") {
            let digest = sha256(content);
            let location = format!("{storage}/storage/{digest}");
            return Response::Text(redirect("302 Found", location, &linked(&digest)));
        }
        let etag = match self.faults.get(name) {
            Some(Fault::Etag(etag)) => etag.clone(),
            _ => small_etag(content),
        };
        if name == "tokenizer_config.json" {
            let location = format!("/api/resolve-cache/models/{}/{commit}/{name}", self.model);
            return Response::Text(redirect("307 Temporary Redirect", location, &linked(&etag)));
        }
        Response::Content { name: name.into(), etag }
    }
}

impl State {
    fn site(&self) -> MutexGuard<'_, Site> {
        self.site.lock().expect("no handler panicked")
    }

    fn respond(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(request) = Request::read(&stream) else { return Ok(()) };
        self.requests.lock().expect("no handler panicked").push(request.clone());
        let response = self.site().route(&self.storage, &request);
        let mut site = self.site();
        let name = request.path.rsplit('/').next().unwrap_or_default();
        if let Some(Fault::Later(bytes)) = site.faults.get(name).cloned() {
            site.faults.insert(name.into(), Fault::Raw(bytes));
        }
        drop(site);
        match response {
            Response::Silence => {
                thread::sleep(SILENCE);
                Ok(())
            }
            Response::Text(text) => stream.write_all(text.as_bytes()),
            Response::Raw(bytes) => stream.write_all(&bytes),
            Response::Content { name, etag } => self.send(&mut stream, &request, &name, &etag),
        }
    }

    /// Sends a file, or the requested range of it.
    fn send(&self, stream: &mut TcpStream, request: &Request, name: &str, etag: &str) -> std::io::Result<()> {
        let site = self.site();
        let mut content = site.files[name].clone();
        let commit = site.branches["main"].clone();
        // Clients request the first byte for size and hash; that response has no fault.
        let probe = request.header("range") == Some("bytes=0-0");
        let fault = site.faults.get(name).cloned();
        let fault = fault.filter(|fault| !probe || matches!(fault, Fault::NoRange));
        drop(site);
        if let Some(Fault::Damaged) = fault {
            let middle = content.len() / 2;
            content[middle] ^= 1;
        }

        let has_ranges = !matches!(fault, Some(Fault::NoRange | Fault::NoRangeBreak { .. }));
        let range = request.header("range").filter(|_| has_ranges);
        let bounds = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (start, end) = match bounds {
            Some((start, end)) => (
                start.parse().expect("a number"),
                end.parse().map_or(content.len(), |end: usize| content.len().min(end + 1)),
            ),
            None => (0, content.len()),
        };
        if bounds.is_some() && start >= content.len() {
            let total = format!("bytes */{}", content.len());
            let response = head("416 Range Not Satisfiable", &[("Content-Range", total)]);
            return stream.write_all((response + "\r\n").as_bytes());
        }
        let mut headers = vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", commit)];
        if !matches!(fault, Some(Fault::Short { .. } | Fault::Endless)) || request.method == "HEAD" {
            headers.push(("Content-Length", (end - start).to_string()));
        }
        let status = match bounds {
            Some(_) => {
                headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, content.len())));
                "206 Partial Content"
            }
            None => "200 OK",
        };
        stream.write_all((head(status, &headers) + "\r\n").as_bytes())?;
        if request.method == "HEAD" {
            return Ok(());
        }
        let mut start = start;
        match fault {
            Some(Fault::Hold { at }) => {
                stream.write_all(&content[start..at])?;
                self.wait_for_two();
                start = at;
            }
            Some(Fault::Stall { at }) => {
                stream.write_all(&content[start..at.max(start)])?;
                thread::sleep(SILENCE);
                return Ok(());
            }
            Some(Fault::Drip { at }) => {
                stream.write_all(&content[start..at.max(start)])?;
                for byte in &content[at.max(start)..] {
                    stream.write_all(&[*byte])?;
                    thread::sleep(Duration::from_millis(200));
                }
            }
            Some(Fault::Endless) => {
                stream.write_all(&content[start..])?;
                loop {
                    stream.write_all(&[b'x'; 4096])?;
                }
            }
            _ => {}
        }
        let end = self.end_of_response(name, fault, start, end);
        stream.write_all(&content[start..end])
    }

    /// The end of the response for `start..end`, which a fault may truncate.
    fn end_of_response(&self, name: &str, fault: Option<Fault>, start: usize, end: usize) -> usize {
        match fault {
            Some(Fault::Break { at, times }) if times > 0 && start <= at && at < end => {
                self.site().faults.insert(name.into(), Fault::Break { at, times: times - 1 });
                at
            }
            Some(Fault::Short { at } | Fault::NoRangeBreak { at }) => at.clamp(start, end),
            _ => end,
        }
    }

    /// Waits up to ten seconds for a second process.
    fn wait_for_two(&self) {
        let lists = || {
            let requests = self.requests.lock().expect("no handler panicked");
            requests.iter().filter(|request| request.path.contains("/revision/")).count()
        };
        for _ in 0..1000 {
            if lists() >= 2 {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
