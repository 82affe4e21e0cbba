//! The JSON summary of a run (`--stats`).

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde_json::json;

use super::stats::Stats;
use crate::engine::{MemoryBudget, Utilization};
use crate::output::{OutputMetadata, parent_dir, write_file};
use crate::sys::memory::peak_memory;

/// The timings of a run.
pub struct Timings {
    /// When the command started.
    pub start: Instant,
    /// Seconds from the start of the command until the model was loaded.
    pub loading: f64,
    /// The counts of earlier runs, which this run has resumed.
    pub resumed: Stats,
}

/// Checks that the summary can be written, before the run starts.
///
/// # Errors
/// If the file cannot be opened for writing.
pub fn check_writable(path: &Path) -> Result<()> {
    let checked = path.try_exists().and_then(|exists| {
        if path.is_file() {
            return OpenOptions::new().append(true).open(path).map(drop);
        }
        if exists {
            // Opening a pipe would block until it has a reader, who would take the end of this check for that of the summary.
            return if path.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(()) };
        }
        // A run that fails must not leave an empty summary, nor remove that of another run which ends meanwhile.
        tempfile::tempfile_in(parent_dir(path)).map(drop)
    });
    checked.map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot write --stats {} ({error}); choose another path", path.display())
}

/// Replaces a file, or writes over one that cannot be replaced: in a directory where no file can be created, mounted by itself, or
/// without a name.
fn replace_or_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_file(path, bytes).or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::ResourceBusy
        | ErrorKind::NotFound => fs::write(path, bytes),
        _ => Err(error),
    })
}

/// Writes the summary. `device` names the devices of the encoders; `metadata` is that of the output.
///
/// # Errors
/// If the file cannot be written.
pub fn write_summary(
    path: &Path,
    stats: &Stats,
    timings: &Timings,
    utilization: &Utilization,
    budget: &MemoryBudget,
    device: &str,
    metadata: &OutputMetadata,
) -> Result<()> {
    let (encoding, idle) = utilization.read();
    let tokens = stats.tokens - timings.resumed.tokens;
    let rows = stats.rows - timings.resumed.rows;
    let rate = |count: u64| if encoding > 0.0 { count as f64 / encoding } else { 0.0 };
    let seconds_resumed = timings.resumed.milliseconds as f64 / 1000.0;
    let mut summary = json!({
        "rows": stats.rows,
        "texts": stats.texts,
        "chunks": stats.chunks,
        "tokens": stats.tokens,
        "truncated": stats.truncated,
        "tokens_cut": stats.truncated_tokens,
        "chunked": stats.multi_sequence,
        "windows": stats.sequences,
        "skipped": stats.skipped,
        "failed": stats.failed,
        "nulled": stats.nulled,
        "not_finite": stats.not_finite,
        "rows_resumed": timings.resumed.rows,
        "seconds": seconds_resumed + timings.start.elapsed().as_secs_f64(),
        "seconds_resumed": seconds_resumed,
        "seconds_loading": timings.loading,
        "seconds_encoding": encoding,
        "rows_per_second": rate(rows),
        "tokens_per_second": rate(tokens),
        "idle": idle,
        "threads": budget.threads,
        "batch_tokens": budget.batch_tokens,
        "device": device,
        "empty": stats.empty,
        "skipped_empty": stats.skipped_empty,
        "unchanged": stats.unchanged,
        "cached": stats.cached,
        "repeated": stats.repeated,
        "peak_memory_bytes": peak_memory(),
    });
    // Under the same names as in the metadata of the output.
    summary.as_object_mut().into_iter().for_each(|summary| {
        summary.extend(metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    });
    let json = format!("{summary:#}\n");
    replace_or_write(path, json.as_bytes()).map_err(|error| cannot_write(path, &error))
}
