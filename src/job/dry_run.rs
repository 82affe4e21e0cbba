//! What a run would take (`--dry-run`): all records are read and tokenized, and a few are encoded for the
//! rate.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::collector::Policy;
use super::messages::{Outcome, RecordMeta};
use super::queries::Queries;
use super::reader::start_tokenizers;
use super::source::{OnNull, RecordSource};
use super::stats::{ExitStatus, Stats};
use crate::engine::{Engine, Incoming, Item, RowOptions, Task, TaskInput};
use crate::input::Record;
use crate::rows::{ContentType, OutputSchema};
use crate::sys::console::{counted, thousands};
use crate::sys::threads::thread_panicked;

/// For how long texts are encoded to measure the rate.
const MEASURED_TIME: Duration = Duration::from_secs(2);
/// Texts that are encoded at a time.
const MEASURED_TEXTS: usize = 64;

/// What a run would do.
pub struct Estimate {
    policy: Policy,
    /// Size in bytes of the stored vector of a row, if rows have one.
    vector_bytes: Option<usize>,
    stats: Stats,
    /// Tokens per second, and the tokens that it was measured with; `None` if no text could be encoded.
    rate: Option<(f64, usize)>,
    /// Why the run would stop at a record.
    stop: Option<String>,
}

/// The rate of the encoder over the first texts.
fn rate<T: Task>(records: &[Record], engine: &Engine<T>) -> Result<Option<(f64, usize)>> {
    let (start, mut tokens) = (Instant::now(), 0);
    for records in records.chunks(MEASURED_TEXTS) {
        let input = |record: &Record| engine.task().tokenize(&input_of(record)).is_ok();
        let usable: Vec<TaskInput> = records.iter().filter(|record| input(record)).map(input_of).collect();
        let encoded = engine.encode(&usable, &RowOptions::default())?;
        tokens += encoded.iter().map(|text| text.tokens).sum::<usize>();
        if start.elapsed() >= MEASURED_TIME {
            break;
        }
    }
    let (seconds, _) = engine.utilization().read();
    Ok((tokens > 0).then_some((tokens as f64 / seconds, tokens)))
}

fn input_of(record: &Record) -> TaskInput<'_> {
    TaskInput { pair: record.pair.as_deref(), ..TaskInput::new(&record.text) }
}

impl Estimate {
    /// Reads and tokenizes all records, and encodes the first of them for a short time.
    pub(super) fn of<T: Task>(
        mut source: RecordSource,
        queries: Queries,
        engine: &Engine<T>,
        policy: Policy,
        schema: &OutputSchema,
    ) -> Result<Self> {
        let vector_bytes = match schema.content {
            ContentType::Vectors(vectors) if !vectors.per_token => Some(vectors.vector_bytes()),
            _ => None,
        };
        let rate = rate(&source.peek().cloned().collect::<Vec<_>>(), engine)?;
        let start = source.start()?.clone();
        let mut estimate = Estimate { policy, vector_bytes, stats: Stats::default(), rate, stop: None };
        for group in start_tokenizers(source, start, false, queries, engine)? {
            let Incoming::Group(group) = group else { return Ok(estimate) };
            for Item { carried, .. } in group.recv().map_err(thread_panicked)?? {
                estimate.count(&carried);
                if estimate.stop.is_some() {
                    return Ok(estimate);
                }
            }
        }
        bail!("a thread of the reader has ended; please report this as a bug")
    }

    /// Counts a record, or a part of it.
    fn count(&mut self, record: &RecordMeta) {
        let Estimate { policy, stats, .. } = self;
        stats.empty += u64::from(record.is_empty && record.is_last);
        match &record.outcome {
            Outcome::Encoded { tokens, truncated_tokens, sequences, has_chunks } => {
                stats.texts += u64::from(record.is_last);
                stats.rows += if *has_chunks { *sequences as u64 } else { 1 };
                stats.tokens += *tokens as u64;
                stats.truncated += u64::from(*truncated_tokens > 0);
                stats.truncated_tokens += *truncated_tokens as u64;
            }
            Outcome::Null if policy.on_null == OnNull::Null => {
                stats.rows += 1;
                stats.null_rows += 1;
            }
            Outcome::Null => stats.skipped_null += 1,
            Outcome::SkippedEmpty => stats.skipped_empty += 1,
            Outcome::Unchanged => stats.unchanged += 1,
            Outcome::TooLong { .. } => stats.skipped += 1,
            Outcome::NoTokens | Outcome::Failed(_) => stats.failed += 1,
        }
        if record.outcome.is_fatal(policy) {
            self.stop = record.outcome.reason().map(|reason| format!("{} {reason}", record.location));
        }
    }

    /// The report, a line for each count that is not 0.
    pub fn report(&self) -> String {
        let max_length = self.policy.max_length;
        let Stats { rows, tokens, truncated, truncated_tokens, empty, null_rows, unchanged, .. } = self.stats;
        let mut lines = format!("rows       {}\n", thousands(rows));
        let mut line = |name: &str, count: u64, text: String| {
            if count > 0 {
                lines += &format!("{name:<11}{text}\n");
            }
        };
        let skipped = self.stats.skipped_records();
        line("skipped", skipped, counted(skipped, "record"));
        line("unchanged", unchanged, counted(unchanged, "record"));
        line("null", null_rows, format!("{} of the rows", thousands(null_rows)));
        line("empty", empty, counted(empty, "text"));
        line("tokens", 1, format!("{}, at most {max_length} per text", thousands(tokens)));
        let removed = counted(truncated_tokens, "token");
        line("truncated", truncated, format!("{}; {removed} removed", counted(truncated, "text")));
        if let Some((rate, measured)) = self.rate {
            let time = duration(tokens as f64 / rate);
            let (rate, measured) = (thousands(rate as u64), counted(measured as u64, "token"));
            line("time", tokens, format!("about {time}, at {rate} tokens/s over the first {measured}"));
        }
        if let Some(bytes) = self.vector_bytes {
            line("vectors", rows, bytesize::ByteSize(rows * bytes as u64).display().si().to_string());
        }
        lines
    }

    /// What the exit code of the run would say.
    ///
    /// # Errors
    /// If the run would stop at a record.
    pub fn status(self) -> Result<ExitStatus> {
        match self.stop {
            Some(reason) => bail!("the run would stop: {reason}"),
            None => Ok(self.stats.exit_status()),
        }
    }
}

/// A number of seconds for people.
fn duration(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{minutes:.0} min"),
        _ => format!("{:.1} h", minutes / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_are_rounded() {
        assert_eq!(
            [0.4, 99.0, 120.0, 5999.0, 9000.0].map(duration),
            ["0 s", "99 s", "2 min", "100 min", "2.5 h"]
        );
    }
}
