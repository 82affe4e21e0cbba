//! The JSON summary of a run (`--stats`).

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value, json};

use super::stats::Stats;
use crate::engine::{Engine, MemoryBudget, Task};
use crate::rows::FileMetadata;
use crate::store::{parent_dir, write_file};
use crate::sys::memory::peak_memory;

/// The names of the counts that the summary does not call by the names of their fields.
const NAMES: [(&str, &str); 3] =
    [("truncated_tokens", "tokens_cut"), ("multi_sequence", "chunked"), ("sequences", "windows")];
/// The first of the counts that follow what the run took.
const FIRST_AFTER_RUN: &str = "empty";

/// The timings of a run.
pub struct Timings {
    /// When the command started.
    pub start: Instant,
    /// Seconds from the start of the command until the model was loaded.
    pub loading: f64,
    /// The counts of earlier runs, which this run has resumed.
    pub resumed: Stats,
}

/// What an engine did in a run.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineStats {
    /// Seconds from the start of the first batch to the end of the last.
    pub encoding: f64,
    /// The share of that time in which the threads were idle.
    pub idle: f64,
    /// The threads that encode.
    pub threads: usize,
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// The devices of the encoders.
    pub device: String,
    /// Rows that came from the cache (`--cache`).
    pub cached: u64,
    /// Rows that were not encoded, because an equal text was.
    pub repeated: u64,
}

impl EngineStats {
    /// Those of an engine that runs on these devices.
    pub(super) fn of<T: Task>(engine: &Engine<T>, device: String) -> Self {
        let (encoding, idle) = engine.utilization().read();
        let (cached, repeated) = (engine.cached(), engine.repeated());
        let MemoryBudget { threads, batch_tokens, .. } = *engine.budget();
        EngineStats { encoding, idle, threads, batch_tokens, device, cached, repeated }
    }

    /// Those of an engine that has nothing to do.
    pub(super) fn of_idle(budget: &MemoryBudget, device: String) -> Self {
        let MemoryBudget { threads, batch_tokens, .. } = *budget;
        EngineStats { threads, batch_tokens, device, ..EngineStats::default() }
    }
}

/// Checks that the summary can be written, before the run starts.
pub fn check_writable(path: &Path) -> Result<()> {
    let checked = path.try_exists().and_then(|exists| {
        if path.is_file() {
            return OpenOptions::new().append(true).open(path).map(drop);
        }
        if exists {
            // Opening a pipe would block until it has a reader, who would take the end of this check for that
            // of the summary.
            return if path.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { Ok(()) };
        }
        // A run that fails must not leave an empty summary, nor remove that of another run which ends
        // meanwhile.
        fs::create_dir_all(parent_dir(path))?;
        tempfile::tempfile_in(parent_dir(path)).map(drop)
    });
    checked.map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot write --stats {} ({error}); choose another path", path.display())
}

/// Replaces a file, or writes over one that cannot be replaced: in a directory where no file can be created,
/// mounted by itself, or without a name.
fn replace_or_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_file(path, bytes).or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::ResourceBusy
        | ErrorKind::NotFound => fs::write(path, bytes),
        _ => Err(error),
    })
}

/// Writes the summary. `metadata` is that of the output.
pub(super) fn write_summary(
    path: &Path,
    stats: &Stats,
    timings: &Timings,
    engine: &EngineStats,
    metadata: &FileMetadata,
) -> Result<()> {
    let mut summary = summary(stats, timings, engine)?;
    // Under the same names as in the metadata of the output.
    summary.extend(metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    let json = format!("{:#}\n", Value::Object(summary));
    replace_or_write(path, json.as_bytes()).map_err(|error| cannot_write(path, &error))
}

/// The counts under their published names, and what the run took.
fn summary(stats: &Stats, timings: &Timings, engine: &EngineStats) -> Result<Map<String, Value>> {
    let rate = |count: u64| if engine.encoding > 0.0 { count as f64 / engine.encoding } else { 0.0 };
    let seconds_resumed = timings.resumed.milliseconds as f64 / 1000.0;
    let mut of_run = object(json!({
        "rows_resumed": timings.resumed.rows,
        "seconds": seconds_resumed + timings.start.elapsed().as_secs_f64(),
        "seconds_resumed": seconds_resumed,
        "seconds_loading": timings.loading,
        "seconds_encoding": engine.encoding,
        "rows_per_second": rate(stats.rows - timings.resumed.rows),
        "tokens_per_second": rate(stats.tokens - timings.resumed.tokens),
        "idle": engine.idle,
        "threads": engine.threads,
        "batch_tokens": engine.batch_tokens,
        "device": engine.device,
    }));
    let mut summary = Map::new();
    for (field, count) in object(serde_json::to_value(stats)?) {
        if field == FIRST_AFTER_RUN {
            summary.append(&mut of_run);
        }
        let name = NAMES.iter().find(|(other, _)| *other == field).map_or(&*field, |(_, name)| name);
        summary.insert(name.into(), count);
    }
    // It is in the seconds.
    summary.shift_remove("milliseconds");
    summary.append(&mut object(json!({
        "cached": engine.cached,
        "repeated": engine.repeated,
        "peak_memory_bytes": peak_memory(),
    })));
    Ok(summary)
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(object) = value { object } else { Map::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and order are promises.
    #[test]
    fn the_keys_of_the_summary_are_these() {
        let timings = Timings { start: Instant::now(), loading: 0.5, resumed: Stats::default() };
        let stats = Stats { rows: 9, truncated_tokens: 7, sequences: 5, ..Stats::default() };
        let summary = summary(&stats, &timings, &EngineStats::default()).unwrap();
        let keys: Vec<&str> = summary.keys().map(String::as_str).collect();
        let expected = "rows texts chunks tokens truncated tokens_cut chunked windows skipped failed nulled not_finite rows_resumed \
                        seconds seconds_resumed seconds_loading seconds_encoding rows_per_second tokens_per_second idle threads \
                        batch_tokens device empty skipped_empty null_rows skipped_null unchanged added updated deleted cached repeated peak_memory_bytes";
        assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
        assert_eq!([&summary["rows"], &summary["tokens_cut"], &summary["windows"]], [9, 7, 5]);
    }
}
