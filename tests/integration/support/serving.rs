//! `sconce serve` as a process, and requests to it.
#![cfg(all(unix, feature = "serve"))]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;

use super::{fixture, model_command, rows, sconce};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. It is killed when this is dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    agent: Agent,
    log: Option<JoinHandle<String>>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// The body, which has to be JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {} {:?}", self.status, self.body))
    }

    /// The JSON of a successful answer.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The answer in bytes of HTTP. A body without a length ends with them.
    #[track_caller]
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let header = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a header");
            (name.to_ascii_lowercase(), value.to_owned())
        };
        Answer { status, headers: lines.map(header).collect(), body: body.to_owned() }
    }
}

/// The command of a server with fixtures as its models, on a free port unless the options have an address.
pub fn serve(models: &[&str], options: &[&str]) -> Command {
    let mut command = sconce();
    command.args(["serve", "--threads", "2"]);
    if !options.contains(&"--port") && !options.contains(&"--unix-socket") {
        command.args(["--port", "0"]);
    }
    for model in models {
        let model = match model.split_once('=') {
            Some((name, path)) => format!("{name}={}", fixture(path).display()),
            None => fixture(model).display().to_string(),
        };
        command.args(["-m", &model]);
    }
    command.args(options);
    command
}

/// The rows of a command over records.
pub fn rows_of_records(command: &str, model: &str, records: &[Value], args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.jsonl");
    let lines: Vec<String> = records.iter().map(Value::to_string).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    let args = [&["-i", path.to_str().unwrap()], args].concat();
    rows(&model_command(command, &fixture(model), &args).output().unwrap())
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub fn start(models: &[&str], options: &[&str]) -> Self {
        Self::spawn(serve(models, options))
    }

    /// The server with these arguments that other tests use now, or a new one.
    pub fn shared(models: &[&str], options: &[&str]) -> Arc<Self> {
        static RUNNING: Mutex<Vec<(String, Weak<Server>)>> = Mutex::new(Vec::new());
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let key = format!("{models:?} {options:?}");
        running.retain(|(_, server)| server.strong_count() > 0);
        if let Some(server) =
            running.iter().find(|(found, _)| *found == key).and_then(|(_, server)| server.upgrade())
        {
            return server;
        }
        let server = Arc::new(Self::start(models, options));
        running.push((key, Arc::downgrade(&server)));
        server
    }

    /// Starts a command and waits for the address that it prints.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (address, log) = read_log(&mut child);
        let Ok(address) = address.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("the server is not ready: {}", log.join().unwrap())
        };
        let config = Agent::config_builder().http_status_as_error(false).proxy(None);
        let agent = config.timeout_global(Some(PATIENCE)).build().new_agent();
        Server { child, address, agent, log: Some(log) }
    }

    /// Sends a signal: `"TERM"`, `"INT"`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    }

    /// Waits until the server ends, and returns its log.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if since.elapsed() > PATIENCE => panic!("the server does not end"),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        (status, self.log.take().unwrap().join().unwrap())
    }

    /// Stops the server in order, and returns its log.
    pub fn stop(self) -> String {
        self.signal("TERM");
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[])
    }

    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.agent.get(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request.call())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &body.to_string(), &[("content-type", "application/json")])
    }

    pub fn post_with(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.agent.post(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request.send(body.as_bytes()))
    }

    /// The body of an answer of this type, for a client that accepts no other.
    pub fn post_for(&self, content_type: &str, path: &str, body: &Value) -> Vec<u8> {
        let request =
            self.agent.post(format!("http://{}{path}", self.address)).header("accept", content_type);
        let request = request.header("content-type", "application/json");
        let mut response = request.send(body.to_string().as_bytes()).expect("an answer");
        let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec().expect("a body");
        assert_eq!(response.status(), 200, "{}", String::from_utf8_lossy(&body));
        assert_eq!(response.headers()["content-type"], content_type);
        body
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes on a connection of their own, and reads to its end.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        read_answer(&mut stream)
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// Waits until the value of a metric is accepted.
    pub fn await_metric(&self, name: &str, is_reached: impl Fn(f64) -> bool) {
        let since = Instant::now();
        while !is_reached(self.metric(name)) {
            assert!(since.elapsed() < PATIENCE, "{name} is {}", self.metric(name));
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer to the end of its connection.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    // A server that does not read a whole body may reset the connection after its answer.
    let _ = stream.read_to_end(&mut bytes);
    Answer::parse(&bytes)
}

/// The bytes of a request with a JSON body, after which the server closes the connection.
pub fn request_bytes(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn answer(response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = response.expect("an answer");
    let headers = response.headers().iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let (headers, status) = (headers.collect(), response.status().as_u16());
    let body = response.body_mut().with_config().limit(u64::MAX).read_to_vec().expect("a body");
    Answer { status, headers, body: String::from_utf8(body).expect("UTF-8") }
}

/// Reads standard error to its end, and sends the address on the way.
fn read_log(child: &mut Child) -> (Receiver<SocketAddr>, JoinHandle<String>) {
    let (send, receive) = mpsc::channel();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let read = move || {
        let mut log = String::new();
        for line in lines.map_while(Result::ok) {
            if let Some((_, rest)) =
                line.split_once("listening on ").and_then(|(_, url)| url.split_once("://"))
            {
                let address = rest.split(' ').next().and_then(|address| address.parse().ok());
                let _ = send.send(address.expect("an address"));
            }
            log += &line;
            log.push('\n');
        }
        log
    };
    (receive, thread::spawn(read))
}
