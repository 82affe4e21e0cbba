//! The rows of records in memory, for a caller that writes no file of them.

use anyhow::{Result, bail};
use crossbeam_channel::Receiver;
use indicatif::ProgressBar;

use super::messages::{Outcome, RecordMeta};
use super::queries::Queries;
use super::reader::start_stages;
use super::source::RecordSource;
use crate::engine::{Engine, Outgoing, Task, TaskRow, Wave};
use crate::input::Location;
use crate::rows::FieldValue;
use crate::sys::console::{Console, counted};
use crate::sys::threads::thread_panicked;

/// What has become of a record, or of a part of one with many chunks.
pub enum EncodedRecord<'a> {
    /// Its rows, and for chunks their texts if a carried-through field is the text.
    Rows(&'a [TaskRow], &'a [FieldValue]),
    /// Why it has none: the predicate of a sentence whose subject is the record.
    Failed(&'a str),
}

/// Encodes records and calls `visit` with each, in their order. Empty ones are left out if the source does
/// not select them.
///
/// # Errors
/// If the input or the model fails, or `visit` does.
pub fn encode_records<T: Task>(
    engine: &Engine<T>,
    mut source: RecordSource,
    console: &Console,
    visit: impl FnMut(&Location, EncodedRecord) -> Result<()>,
) -> Result<()> {
    let bar = console.bar(source.size());
    let start = source.start()?.clone();
    let waves = start_stages(source, start, false, Queries::default(), engine)?;
    let visited = visit_all(&waves, &bar, console, visit);
    bar.finish_and_clear();
    visited
}

/// Calls `visit` with the records of all waves.
fn visit_all(
    waves: &Receiver<Result<Outgoing<RecordMeta>>>,
    bar: &ProgressBar,
    console: &Console,
    mut visit: impl FnMut(&Location, EncodedRecord) -> Result<()>,
) -> Result<()> {
    let mut rows = 0;
    while let Outgoing::Wave(Wave { items, batches, done }) = waves.recv().map_err(thread_panicked)?? {
        for _ in 0..batches {
            done.recv().map_err(thread_panicked)??;
            console.draw(bar, &counted(rows, "chunk"));
        }
        for (RecordMeta { location, chunk_texts, outcome, end, .. }, encoded) in &items {
            let encoded = match (outcome, encoded.as_ref().and_then(|rows| rows.get())) {
                (_, Some(encoded)) => {
                    rows += encoded.len() as u64;
                    EncodedRecord::Rows(encoded, &chunk_texts.texts)
                }
                (Outcome::Encoded { .. }, None) => {
                    bail!("{location} has no row; please report this as a bug")
                }
                (outcome, None) => match outcome.reason() {
                    Some(reason) => EncodedRecord::Failed(reason),
                    None => continue,
                },
            };
            visit(location, encoded)?;
            bar.set_position(end.position);
        }
        console.draw(bar, &counted(rows, "chunk"));
    }
    Ok(())
}
