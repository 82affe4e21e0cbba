//! The load generator of `serve.py`, which compiles it with `rustc -O`. It has no dependencies: a thread for
//! each connection, HTTP/1.1 with keep-alive, bodies from a file.
//!
//! ```text
//! load ADDRESS PATH BODIES CONNECTIONS SECONDS [RATE|-] [LEAVE_MS]
//! ```
//!
//! `BODIES` has one JSON body per line, sent by POST in this order, again and again; `-`: GET without a body.
//! Without `RATE` each connection sends its next request when it has an answer (closed loop). With `RATE`
//! requests arrive at random at so many per second, whatever became of those before (open loop): a latency
//! counts from the arrival, and so includes the time in which all connections were in use. With `LEAVE_MS`,
//! every second connection closes when an answer takes longer, and connects again.
//!
//! Prints a line for each request whose arrival is within `SECONDS`: index of the body, microseconds from the
//! start to its arrival, its latency in microseconds, and its status; status 0 for a client that left, 1 for
//! a broken connection.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LEFT: u16 = 0;
const BROKEN: u16 = 1;

struct Load {
    address: String,
    requests: Vec<Vec<u8>>,
    seconds: f64,
    rate: Option<f64>,
    leave: Option<Duration>,
    start: Instant,
    next: AtomicUsize,
    /// The time of the next arrival in seconds, and the state of the random numbers.
    arrivals: Mutex<(f64, u64)>,
}

struct Sample {
    body: usize,
    arrival: Duration,
    latency: Duration,
    status: u16,
}

impl Load {
    /// The arrival of the next request after the start, or `None` at the end.
    fn arrive(&self) -> Option<Duration> {
        let Some(rate) = self.rate else {
            let now = self.start.elapsed();
            return (now.as_secs_f64() < self.seconds).then_some(now);
        };
        let at = {
            let (next, random) = &mut *self.arrivals.lock().unwrap();
            // xorshift64*; times between arrivals are exponentially distributed.
            *random ^= *random >> 12;
            *random ^= *random << 25;
            *random ^= *random >> 27;
            let uniform = (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64;
            *next -= (1.0 - uniform).ln() / rate;
            *next
        };
        (at < self.seconds).then(|| Duration::from_secs_f64(at))
    }

    /// The requests of one connection.
    fn connection(&self, leaves: bool) -> Vec<Sample> {
        let (mut samples, mut stream, mut buffer) = (Vec::new(), None, Vec::new());
        while let Some(arrival) = self.arrive() {
            if let Some(wait) = arrival.checked_sub(self.start.elapsed()) {
                thread::sleep(wait);
            }
            let body = self.next.fetch_add(1, Ordering::Relaxed) % self.requests.len();
            let leave = self.leave.filter(|_| leaves);
            let status =
                self.ask(&mut stream, &self.requests[body], leave, &mut buffer).unwrap_or_else(|error| {
                    stream = None;
                    match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut => LEFT,
                        _ => BROKEN,
                    }
                });
            let latency = self.start.elapsed().saturating_sub(arrival);
            samples.push(Sample { body, arrival, latency, status });
        }
        samples
    }

    /// Sends a request and reads its answer, whose status it returns.
    fn ask(
        &self,
        stream: &mut Option<TcpStream>,
        request: &[u8],
        leave: Option<Duration>,
        buffer: &mut Vec<u8>,
    ) -> Result<u16> {
        if stream.is_none() {
            let connected = TcpStream::connect(&self.address)?;
            connected.set_nodelay(true)?;
            connected.set_read_timeout(leave)?;
            *stream = Some(connected);
        }
        let Some(connected) = stream else { return Err(ErrorKind::NotConnected.into()) };
        connected.write_all(request)?;
        buffer.clear();
        let mut needed = None;
        while needed.is_none_or(|needed| buffer.len() < needed) {
            let mut chunk = [0; 1 << 16];
            let count = connected.read(&mut chunk)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            buffer.extend_from_slice(&chunk[..count]);
            if needed.is_none() {
                needed = answer_length(buffer)?;
            }
        }
        let status = buffer.get(9..12).and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
        if head(buffer).to_ascii_lowercase().contains("connection: close") {
            *stream = None;
        }
        status.ok_or_else(|| Error::other("an answer without a status"))
    }
}

/// The head of an answer.
fn head(answer: &[u8]) -> &str {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(0, |end| end + 4);
    std::str::from_utf8(&answer[..end]).unwrap_or_default()
}

/// The bytes of an answer with its head, if all of the head is there.
fn answer_length(answer: &[u8]) -> Result<Option<usize>> {
    let head = head(answer);
    if head.is_empty() {
        return Ok(None);
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.ok_or_else(|| Error::other("an answer without Content-Length"))?;
    Ok(Some(head.len() + length))
}

fn request(address: &str, path: &str, body: &str) -> Vec<u8> {
    match body {
        "-" => format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"),
        body => format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    }
    .into_bytes()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, path, bodies, connections, seconds, more @ ..] = &arguments[..] else {
        eprintln!("load ADDRESS PATH BODIES CONNECTIONS SECONDS [RATE|-] [LEAVE_MS]");
        std::process::exit(2);
    };
    let bodies = match &**bodies {
        "-" => "-".to_owned(),
        file => std::fs::read_to_string(file).expect("BODIES cannot be read"),
    };
    let rate = more.first().filter(|rate| *rate != "-").map(|rate| rate.parse().expect("RATE is a number"));
    let leave = more.get(1).map(|leave| Duration::from_millis(leave.parse().expect("LEAVE_MS is a number")));
    let load = Load {
        requests: bodies.lines().map(|body| request(address, path, body)).collect(),
        address: address.clone(),
        seconds: seconds.parse().expect("SECONDS is a number"),
        rate,
        leave,
        start: Instant::now(),
        next: AtomicUsize::new(0),
        arrivals: Mutex::new((0.0, 0x9e37_79b9_7f4a_7c15)),
    };
    let connections: usize = connections.parse().expect("CONNECTIONS is a number");
    let samples: Vec<Sample> = thread::scope(|scope| {
        let spawn = |index: usize| {
            let builder = thread::Builder::new().stack_size(256 << 10);
            builder.spawn_scoped(scope, {
                let load = &load;
                move || load.connection(index % 2 == 1)
            })
        };
        let threads: Vec<_> =
            (0..connections).map(|index| spawn(index).expect("no thread for a connection")).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a connection panicked")).collect()
    });
    let mut lines = String::with_capacity(32 * samples.len());
    for Sample { body, arrival, latency, status } in samples {
        lines += &format!("{body} {} {} {status}\n", arrival.as_micros(), latency.as_micros());
    }
    std::io::stdout().write_all(lines.as_bytes()).expect("standard output is closed");
}
