//! What a run has done: counted as it goes, said at its end.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Ended, Limits, Meter};
use crate::output::About;
use crate::run::{Console, counted, thousands};

/// What has been done so far, by all runs that one output took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Rows written.
    pub rows: u64,
    /// Texts that they are of.
    pub texts: u64,
    /// Those of them that are a chunk of a text.
    pub chunks: u64,
    /// Tokens encoded.
    pub tokens: u64,
    /// Texts that the limit cut.
    pub truncated: u64,
    /// Tokens that it cut off.
    pub cut: u64,
    /// Texts that were encoded in several windows.
    pub chunked: u64,
    /// Those windows.
    pub windows: u64,
    /// Texts over the limit that were left out.
    pub skipped: u64,
    /// Records that could not be read or tokenized and were left out.
    pub failed: u64,
    /// Rows that have null where a field did not fit its column.
    pub nulled: u64,
    /// Rows with NaN or infinite numbers.
    pub not_finite: u64,
    /// Records with nothing but white space, whether they were embedded or left out.
    pub empty: u64,
    /// Those of them that were left out because that was asked for.
    pub skipped_empty: u64,
}

impl Tally {
    /// Records that have no row.
    pub fn left_out(&self) -> u64 {
        self.skipped + self.failed
    }

    /// How a run with these counts has ended. A field that is null in its column costs no row.
    pub fn ended(&self) -> Ended {
        if self.left_out() > 0 || self.not_finite > 0 { Ended::LeftOut } else { Ended::Whole }
    }

    /// Texts over the limit.
    pub fn long(&self) -> u64 {
        self.truncated + self.chunked + self.skipped
    }

    /// Says what the user may not expect; `ledger` names the file that has the details.
    pub fn report(&self, console: &Console, limit: usize, ledger: Option<&Path>) {
        let texts = self.texts + self.skipped;
        let (noun, verb) = if texts == 1 { ("text", "was") } else { ("texts", "were") };
        let long = |count: u64| {
            format!("{} of {} {noun} {verb} longer than {limit} tokens", thousands(count), thousands(texts))
        };
        let details = ledger.map(|path| format!("; {} says which", path.display())).unwrap_or_default();
        if self.truncated > 0 {
            console.warn(format!(
                "{} and {verb} truncated; {} tokens were cut{details}",
                long(self.truncated),
                thousands(self.cut)
            ));
        }
        if self.chunked > 0 {
            console.note(format!(
                "{}; each is encoded in windows, {} in all",
                long(self.chunked),
                thousands(self.windows)
            ));
        }
        if self.skipped > 0 {
            console.warn(format!("{} and {verb} left out{details}", long(self.skipped)));
        }
        if self.failed > 0 {
            let they = if self.failed == 1 { "it" } else { "they" };
            console
                .warn(format!("{} left out because {they} could not be used{details}", records(self.failed)));
        }
        if self.nulled > 0 {
            let records = records(self.nulled);
            console.warn(format!("{records} written with null for what did not fit its column{details}"));
        }
        if self.not_finite > 0 {
            console.warn(format!(
                "{} of {} {} NaN or infinite values{details}",
                thousands(self.not_finite),
                counted(self.rows, "row"),
                if self.not_finite == 1 { "holds" } else { "hold" }
            ));
        }
        let kept = self.empty - self.skipped_empty;
        if kept >= MANY_EMPTY {
            console.note(format!(
                "{} of {} texts are empty; pass --skip-empty to leave them out",
                thousands(kept),
                thousands(texts)
            ));
        }
    }
}

/// From this number on, empty texts are likely to be a slip.
const MANY_EMPTY: u64 = 10;

/// So many records, with the verb.
fn records(count: u64) -> String {
    if count == 1 { "1 record was".into() } else { format!("{} records were", thousands(count)) }
}

/// How long things took.
pub struct Clock {
    /// When the process began its work.
    pub start: Instant,
    /// Seconds until the model was ready.
    pub loading: f64,
    /// Rows and tokens that an earlier run has left, which this one did not compute.
    pub before: Tally,
}

/// Tries whether a summary can be written, before there is anything to sum up.
///
/// # Errors
/// If it cannot.
pub fn check_stats(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    OpenOptions::new().append(true).create(true).open(path).map_err(|error| no_stats(path, &error))?;
    if is_new {
        // A run that fails leaves no empty summary.
        fs::remove_file(path).map_err(|error| no_stats(path, &error))?;
    }
    Ok(())
}

fn no_stats(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot write --stats {} ({error}); choose another name", path.display())
}

/// Writes the summary of a run as JSON; what it ran on comes by name, and `about` is what the vectors are.
///
/// # Errors
/// If the file cannot be written.
pub fn write_stats(
    path: &Path,
    tally: &Tally,
    clock: &Clock,
    meter: &Meter,
    limits: &Limits,
    device: &str,
    about: &About,
) -> Result<()> {
    let (encoding, idle) = meter.read();
    let tokens = tally.tokens - clock.before.tokens;
    let rows = tally.rows - clock.before.rows;
    let rate = |count: u64| if encoding > 0.0 { count as f64 / encoding } else { 0.0 };
    let mut stats = json!({
        "rows": tally.rows,
        "texts": tally.texts,
        "chunks": tally.chunks,
        "tokens": tally.tokens,
        "truncated": tally.truncated,
        "tokens_cut": tally.cut,
        "chunked": tally.chunked,
        "windows": tally.windows,
        "skipped": tally.skipped,
        "failed": tally.failed,
        "nulled": tally.nulled,
        "not_finite": tally.not_finite,
        "rows_resumed": clock.before.rows,
        "seconds": clock.start.elapsed().as_secs_f64(),
        "seconds_loading": clock.loading,
        "seconds_encoding": encoding,
        "rows_per_second": rate(rows),
        "tokens_per_second": rate(tokens),
        "idle": idle,
        "threads": limits.threads,
        "batch_tokens": limits.batch_tokens,
        "device": device,
        "empty": tally.empty,
        "skipped_empty": tally.skipped_empty,
        "peak_memory_bytes": peak_memory(),
    });
    // What the vectors are, by the names that the output itself has for it.
    stats.as_object_mut().into_iter().for_each(|stats| {
        stats.extend(about.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    });
    let page = format!("{stats:#}\n");
    fs::write(path, page).map_err(|error| no_stats(path, &error))
}

/// The most memory that the process has held, in bytes, where the system says it.
pub fn peak_memory() -> Option<u64> {
    memory("VmHWM:")
}

/// The memory that the process holds now.
pub fn current_memory() -> Option<u64> {
    memory("VmRSS:")
}

fn memory(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
