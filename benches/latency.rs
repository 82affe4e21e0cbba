//! The latency of a call of the library that embeds one text, one call after another: what
//! `scripts/bench/serve.py` compares the latency of an idle server with.
//!
//! `cargo bench --bench latency -- FILE.txt SECONDS [MODEL]` embeds the lines of FILE, again and again.
//! Prints the 50th and the 99th percentile in microseconds.

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use sconce::Embedder;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let (file, seconds, model) = match &args[..] {
        [file, seconds] => (file, seconds, "sentence-transformers/all-MiniLM-L6-v2"),
        [file, seconds, model] => (file, seconds, model.as_str()),
        _ => bail!("usage: latency FILE.txt SECONDS [MODEL]"),
    };
    let duration = Duration::from_secs_f64(seconds.parse()?);
    let embedder = Embedder::open(model)?;
    let texts = fs::read_to_string(file)?;
    ensure!(!texts.is_empty(), "{file} is empty");
    let mut latencies = Vec::new();
    let start = Instant::now();
    for text in texts.lines().cycle() {
        if start.elapsed() >= duration {
            break;
        }
        let since = Instant::now();
        embedder.embed(&[text])?;
        latencies.push(since.elapsed());
    }
    latencies.sort_unstable();
    let percentile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_micros();
    println!("{} {}", percentile(50), percentile(99));
    Ok(())
}
