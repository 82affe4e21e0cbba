//! The HTTP server: requests in, rows of the engine out. Clients of text-embeddings-inference, OpenAI,
//! Cohere, Jina and Ollama get the answers that they expect.
//!
//! ```text
//! connection ──► head ──► body ──► call ──► job ──► queue ──► body ──► head ──► connection
//! http           app      http     schema   service  engine   answer    http
//! ```
//!
//! * `schema`: requests and answers as bytes, without HTTP and models.
//! * `models`: what is served, each of a `kind`. `service`: from a call to the rows of its texts.
//! * `route`: paths, which `openapi` describes. `answer`: what a route does. `admission`: limits of requests
//!   and their memory.
//! * `listener`: sockets and TLS. `http`: connections, on one thread. `app`: what they share. `stop`:
//!   signals.
//! * `sent`: answers on their way to clients, which may not read them.
//! * `metrics`, `log`: counters of requests, and lines about them.

mod admission;
mod answer;
mod app;
mod http;
mod kind;
mod listener;
mod log;
mod metrics;
mod models;
mod openapi;
mod probe;
mod route;
pub mod schema;
mod sent;
mod service;
mod stop;

use std::time::Duration;

use anyhow::Result;

use self::answer::Limits;
use self::app::{App, AppOptions};
use self::http::Http;
use self::listener::Listener;
pub use self::listener::{Address, TlsFiles};
use self::log::Log;
pub use self::log::LogFormat;
use self::models::Models;
pub use self::probe::probe;
use self::service::{Defaults, Service};
use crate::engine::{Capacity, Queue};
use crate::load::ModelOptions;
use crate::nn::Isa;
use crate::sys::console::{Console, Verbosity};
use crate::sys::memory::{current_memory, memory_limit};
use crate::sys::threads::{spawn, thread_panicked};
use crate::task::VectorOptions;

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
    /// Where to listen.
    pub address: Address,
    /// The certificate. `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// Origins of pages that may use the server from a browser; `*`: all.
    pub origins: Vec<String>,
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
    /// Whether the end of standard input stops the server.
    pub stop_with_input: bool,
    /// The format of the log.
    pub log_format: LogFormat,
    /// What is written to standard error.
    pub verbosity: Verbosity,
}

/// The share of the machine's memory that a server may use unless an option says.
const MEMORY_SHARE: f64 = 0.8;

/// Runs `sconce serve` until the process is told to stop.
pub fn serve(options: &ServeOptions, console: &Console) -> Result<()> {
    let http = Http::new(options.stop_with_input)?;
    let listener = Listener::bind(&options.address, options.tls.as_ref())?;
    let url = listener.url()?;
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
        origins: options.origins.clone(),
        log: Log { format: options.log_format, verbosity: options.verbosity },
    });
    let (served, timeout) = (app.clone(), options.shutdown_timeout);
    let http = spawn("http", move || http.serve(listener, &served, timeout))?;
    let models = Models::load(options, console)?;
    let described = models.describe();
    let capacity = capacity(&models, threads, options);
    let queue = Queue::start(capacity, threads)?;
    let defaults = Defaults { on_long: options.vectors.on_long, normalize: options.normalize };
    app.admission.limit_bytes(bytes_for_requests(options, &models, &capacity));
    for model in models.not_normalized().filter(|_| options.normalize == Some(true)) {
        console.note(format!(
            "the files of {model} do not normalize its vectors, but this server does; pass --no-normalize for vectors as they are"
        ));
    }
    app.ready(Service { models: models.into(), queue, defaults });
    let listening =
        format!("listening on {url} · {described} on {}, {threads} threads", Isa::selected().name());
    // A free port is told nowhere else.
    let is_told = options.address.is_free_port() || options.verbosity > Verbosity::Quiet;
    if options.log_format == LogFormat::Json && is_told {
        app.log.listening(&listening);
    } else if options.address.is_free_port() {
        Console::new(options.verbosity.max(Verbosity::Normal), false).note(listening);
    } else {
        console.note(listening);
    }
    http.join().map_err(thread_panicked)?
}

/// The workers of the queue.
fn capacity(models: &Models, threads: usize, options: &ServeOptions) -> Capacity {
    let first = models.first();
    let workload = &first.workload;
    let workers = if workload.is_gpu { workload.batches_per_gpu * workload.encoders } else { threads };
    let max_batch_tokens = options.max_batch_tokens.unwrap_or(workload.batch_tokens);
    let tokens_per_second = models.all.iter().map(|model| model.tokens_per_second).fold(1.0, f64::max);
    let short_workers = if workload.is_gpu { 0 } else { (workers / 4).max(1) };
    Capacity { workers, short_workers, can_share: !workload.is_gpu, max_batch_tokens, tokens_per_second }
}

/// What `--max-memory` leaves beside weights and batches.
fn bytes_for_requests(options: &ServeOptions, models: &Models, capacity: &Capacity) -> u64 {
    let max = options.max_memory.or_else(|| Some((memory_limit()? as f64 * MEMORY_SHARE) as u64));
    let workers = capacity.workers + capacity.short_workers;
    let batches: usize = (models.all.iter())
        .map(|model| model.workload.batch_bytes(model.workload.batch_tokens) * workers)
        .sum();
    let used = current_memory().unwrap_or(0) + batches as u64;
    max.map_or(u64::MAX, |max| max.saturating_sub(used).max(options.payload_limit))
}
