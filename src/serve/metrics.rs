//! Counters in the text format of Prometheus. All series are there from the start.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::route;
use super::service::Reply;
use crate::engine::{CallTimes, QueueCounters, QueueLength};

/// The upper bounds of the histogram of seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Reasons of refusals, by their status.
const REFUSALS: [(&str, u16); 5] =
    [("key", 401), ("origin", 403), ("body_size", 413), ("overloaded", 429), ("not_ready", 503)];

/// What is counted.
#[derive(Default)]
pub(super) struct Metrics {
    counters: Mutex<Counters>,
}

#[derive(Default)]
struct Counters {
    /// Requests by path and status.
    requests: BTreeMap<(&'static str, u16), u64>,
    /// Seconds of requests by path: the buckets, and the sum.
    seconds: BTreeMap<&'static str, ([u64; BUCKETS.len()], u64, f64)>,
    texts: u64,
    tokens: u64,
    truncated: u64,
    bytes: u64,
    tokenize: Duration,
    queue: Duration,
    encode: Duration,
}

/// What is read from elsewhere when the metrics are asked for.
pub(super) struct Gauges<'a> {
    pub length: QueueLength,
    pub counters: QueueCounters,
    pub requests: usize,
    pub bytes: u64,
    pub connections: usize,
    /// Name and dtype of each model.
    pub models: Vec<(&'a str, &'a str)>,
    pub is_ready: bool,
}

impl Metrics {
    /// Counts a request that was answered with this status.
    pub(super) fn answered(&self, path: &'static str, status: u16, seconds: f64, reply: Option<&Reply>) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        *counters.requests.entry((path, status)).or_default() += 1;
        let (buckets, count, sum) = counters.seconds.entry(path).or_default();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound);
        bucket.into_iter().for_each(|bucket| buckets[bucket] += 1);
        *count += 1;
        *sum += seconds;
        let Some(Reply { texts, tokens, truncated, bytes, times, .. }) = reply else { return };
        let CallTimes { queue, tokenize, encode } = times;
        counters.texts += *texts as u64;
        counters.tokens += *tokens as u64;
        counters.truncated += truncated.len() as u64;
        counters.bytes += *bytes as u64;
        counters.tokenize += *tokenize;
        counters.queue += *queue;
        counters.encode += *encode;
    }

    /// All metrics as text.
    pub(super) fn text(&self, gauges: &Gauges) -> String {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = Page(String::with_capacity(1 << 14));
        page.requests(&counters);
        page.work(&counters, gauges);
        page.state(gauges);
        page.0
    }
}

/// A page of metrics.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP sconce_{name} {help}\n# TYPE sconce_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.0, "sconce_{name} {value}"),
            labels => writeln!(self.0, "sconce_{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.value(name, "", value);
    }

    fn requests(&mut self, counters: &Counters) {
        self.head("requests_total", "counter", "Requests by route and status.");
        let seen = counters.requests.clone();
        let zero = route::paths().map(|path| ((path, 200), 0));
        let all: BTreeMap<_, u64> = zero.chain(seen).collect();
        for ((path, status), count) in &all {
            self.value("requests_total", &format!("route=\"{path}\",status=\"{status}\""), count);
        }
        self.head("request_seconds", "histogram", "Seconds from the head of a request to its answer.");
        for path in route::paths() {
            let (buckets, count, sum) = counters.seconds.get(path).copied().unwrap_or_default();
            let mut below = 0;
            for (bound, bucket) in BUCKETS.iter().zip(buckets) {
                below += bucket;
                self.value("request_seconds_bucket", &format!("route=\"{path}\",le=\"{bound}\""), below);
            }
            self.value("request_seconds_bucket", &format!("route=\"{path}\",le=\"+Inf\""), count);
            self.value("request_seconds_sum", &format!("route=\"{path}\""), sum);
            self.value("request_seconds_count", &format!("route=\"{path}\""), count);
        }
        self.head("refused_total", "counter", "Requests that were refused before work was done for them.");
        for (reason, status) in REFUSALS {
            let count: u64 =
                counters.requests.iter().filter(|((_, found), _)| *found == status).map(|(_, n)| n).sum();
            self.value("refused_total", &format!("reason=\"{reason}\""), count);
        }
    }

    fn work(&mut self, counters: &Counters, gauges: &Gauges) {
        self.single("texts_total", "counter", "Texts of answered requests.", counters.texts);
        self.single("tokens_total", "counter", "Tokens of answered requests.", counters.tokens);
        self.single(
            "text_bytes_total",
            "counter",
            "Bytes of the texts of answered requests.",
            counters.bytes,
        );
        self.single("truncated_texts_total", "counter", "Texts that were truncated.", counters.truncated);
        self.head("stage_seconds_total", "counter", "Seconds of answered requests by stage.");
        for (stage, time) in
            [("tokenize", counters.tokenize), ("queue", counters.queue), ("encode", counters.encode)]
        {
            self.value("stage_seconds_total", &format!("stage=\"{stage}\""), time.as_secs_f64());
        }
        let QueueCounters { batches, texts, tokens, cancelled, unclaimed, busy } = gauges.counters;
        self.single("batches_total", "counter", "Batches that were encoded.", batches);
        self.single("batch_texts_total", "counter", "Texts in batches.", texts);
        self.single("batch_tokens_total", "counter", "Tokens in batches.", tokens);
        self.single(
            "cancelled_texts_total",
            "counter",
            "Texts whose client went away before they were encoded.",
            cancelled,
        );
        self.single(
            "unclaimed_tokens_total",
            "counter",
            "Tokens that were encoded after their client had gone away.",
            unclaimed,
        );
        self.single("busy_seconds_total", "counter", "Busy seconds of all threads.", busy.as_secs_f64());
    }

    fn state(&mut self, gauges: &Gauges) {
        self.single("queue_texts", "gauge", "Texts that wait for a batch.", gauges.length.texts);
        self.single("queue_tokens", "gauge", "Tokens that wait for a batch.", gauges.length.tokens);
        self.single("requests_in_flight", "gauge", "Requests that are admitted.", gauges.requests);
        self.single(
            "bytes_in_flight",
            "gauge",
            "Bytes of admitted requests and their answers.",
            gauges.bytes,
        );
        self.single("connections", "gauge", "Open connections.", gauges.connections);
        self.single("ready", "gauge", "Whether requests are answered.", u8::from(gauges.is_ready));
        self.head("model_info", "gauge", "The models that are served.");
        for (name, dtype) in &gauges.models {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.value("model_info", &format!("model=\"{name}\",dtype=\"{dtype}\""), 1);
        }
        self.head("build_info", "gauge", "The build.");
        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("SCONCE_COMMIT"));
        self.value("build_info", &format!("version=\"{version}\",commit=\"{commit}\""), 1);
    }
}
