//! The HTTP server: a door to the engine like the command line. Clients of text-embeddings-inference, OpenAI, Cohere, Jina and Ollama get
//! the answers that they expect.
//!
//! ```text
//! connection ──► head ──► body ──► call ──► job ──► queue ──► body ──► head ──► connection
//! http           app      http     schema   service  engine   answer    http
//! ```
//!
//! * `schema`: requests and answers as bytes, without HTTP and models.
//! * `models`: what is served. `service`: from a call to the rows of its texts.
//! * `route`: paths. `answer`: what a route does. `admission`: what is taken on.
//! * `http`: connections, on one thread. `app`: what they share. `stop`: signals.
//! * `metrics`, `log`: what is told about requests.

mod admission;
mod answer;
mod app;
mod http;
mod log;
mod metrics;
mod models;
mod route;
pub mod schema;
mod service;
mod stop;

use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Result, anyhow};

use self::answer::Limits;
use self::app::{App, AppOptions};
use self::log::Log;
pub use self::log::LogFormat;
use self::models::Models;
use self::service::{Defaults, Service};
use crate::engine::{Capacity, Queue};
use crate::nn::Isa;
use crate::sys::console::{Console, Verbosity};
use crate::sys::memory::{current_memory, memory_limit};
use crate::sys::threads::{spawn, thread_panicked};
use crate::task::{ModelOptions, VectorOptions};

/// A model, with its name in requests.
pub struct ServedModel {
    /// The name.
    pub name: String,
    /// Where it is, and how it is loaded.
    pub options: ModelOptions,
}

/// The options of `sconce serve`.
pub struct ServeOptions {
    /// The models, one or more.
    pub models: Vec<ServedModel>,
    /// How vectors are computed where a request does not say.
    pub vectors: VectorOptions,
    /// Whether vectors have unit length where a request does not say. `None`: as the model's files say.
    pub normalize: Option<bool>,
    /// The address to listen on.
    pub host: String,
    /// Its port; 0: a free one.
    pub port: u16,
    /// Maximum tokens of a forward pass.
    pub max_batch_tokens: Option<usize>,
    /// Maximum requests that wait or run.
    pub max_concurrent_requests: usize,
    /// Maximum texts of a request.
    pub max_client_batch_size: usize,
    /// Maximum bytes of a body.
    pub payload_limit: u64,
    /// Maximum memory of the process in bytes. `None`: a share of the machine's.
    pub max_memory: Option<u64>,
    /// Maximum time of a request.
    pub request_timeout: Duration,
    /// Maximum time that a stop waits for admitted requests.
    pub shutdown_timeout: Duration,
    /// Keys of clients; none: everyone may ask.
    pub keys: Vec<String>,
    /// The format of the log.
    pub log_format: LogFormat,
    /// What is written to standard error.
    pub verbosity: Verbosity,
}

/// The share of the machine's memory that a server may use unless an option says.
const MEMORY_SHARE: f64 = 0.8;

/// Runs `sconce serve` until the process is told to stop.
pub fn serve(options: &ServeOptions, console: &Console) -> Result<()> {
    let listener = bind(&options.host, options.port)?;
    let address = listener.local_addr()?;
    let threads = rayon::current_num_threads();
    let limits = Limits {
        concurrent_requests: options.max_concurrent_requests,
        client_batch_size: options.max_client_batch_size,
        threads,
    };
    let app = App::new(AppOptions {
        limits,
        payload_limit: options.payload_limit,
        request_timeout: options.request_timeout,
        keys: options.keys.clone(),
        log: Log { format: options.log_format, verbosity: options.verbosity },
    });
    let (served, timeout) = (app.clone(), options.shutdown_timeout);
    let http = spawn("http", move || http::serve(listener, &served, timeout))?;
    let models = Models::load(options, console)?;
    let described = models.describe();
    let queue = Queue::start(capacity(&models, threads, options), threads)?;
    let defaults = Defaults { on_long: options.vectors.on_long, normalize: options.normalize };
    app.admission.limit_bytes(bytes_for_requests(options, &models, threads));
    for model in models.not_normalized().filter(|_| options.normalize == Some(true)) {
        console.note(format!(
            "the files of {model} do not normalize its vectors, but this server does; pass --no-normalize for vectors as they are"
        ));
    }
    app.ready(Service { models, queue, defaults });
    console.note(format!(
        "listening on http://{address} · {described} on {}, {threads} threads",
        Isa::selected().name()
    ));
    http.join().map_err(thread_panicked)?
}

/// Listens on an address. A name that does not resolve is an error, and not another address.
fn bind(host: &str, port: u16) -> Result<TcpListener> {
    let addresses = (host, port).to_socket_addrs();
    let addresses: Vec<_> = match addresses {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            return Err(anyhow!("--host {host}: not an address ({error}); pass one of this machine"));
        }
    };
    let listener = TcpListener::bind(&addresses[..]).map_err(|error| {
        anyhow!("cannot listen on {host}:{port} ({error}); choose another --port, or stop the process that uses it")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The workers of the queue.
fn capacity(models: &Models, threads: usize, options: &ServeOptions) -> Capacity {
    let first = models.first();
    let workload = &first.workload;
    let workers = if workload.is_gpu { workload.batches_per_gpu * workload.encoders } else { threads };
    let max_batch_tokens = options.max_batch_tokens.unwrap_or(workload.batch_tokens);
    let tokens_per_second = models.all.iter().map(|model| model.tokens_per_second).fold(1.0, f64::max);
    Capacity { workers, are_cpu_threads: !workload.is_gpu, max_batch_tokens, tokens_per_second }
}

/// What `--max-memory` leaves beside weights and batches.
fn bytes_for_requests(options: &ServeOptions, models: &Models, threads: usize) -> u64 {
    let max = options.max_memory.or_else(|| Some((memory_limit()? as f64 * MEMORY_SHARE) as u64));
    let batches: usize = (models.all.iter())
        .map(|model| model.workload.batch_bytes(model.workload.batch_tokens) * (threads + 1))
        .sum();
    let used = current_memory().unwrap_or(0) + batches as u64;
    max.map_or(u64::MAX, |max| max.saturating_sub(used).max(options.payload_limit))
}
