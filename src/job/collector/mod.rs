//! The collector: takes waves in order, writes their rows to the output, lists skipped, failed and truncated
//! records in the ledger, and from time to time makes both durable, so that an interrupted run can be
//! resumed.

mod files;
mod ranking;
mod record;
mod save;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, select};
use indicatif::ProgressBar;

use self::files::OutputFiles;
use self::ranking::Ranking;
use super::columns;
use super::cursor::Cursor;
use super::identity::Identity;
use super::journal::Journal;
use super::manifest::{Manifest, SavedScore};
use super::messages::RecordMeta;
use super::signals::{Interrupted, Interrupts};
use super::source::{OnNull, RecordSource};
use super::stats::Stats;
use super::summary::Timings;
use super::tokenizer::{chunk_text, is_text_of};
use crate::engine::{Outgoing, Wave};
use crate::rows::{FieldValue, KeptColumn, OutputFormat, OutputSchema};
use crate::store::{OutputLock, SidecarPaths};
use crate::sys::console::{Console, QUIET_PERIOD, counted, thousands};
use crate::sys::threads::thread_panicked;

/// What to do with records that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Skip records that cannot be read (`--on-error skip`); otherwise they end the run.
    pub skip_unreadable: bool,
    /// End the run at a text over the limit (`--on-long error`); otherwise it is skipped.
    pub stop_at_long: bool,
    /// What to do with a text that is null.
    pub on_null: OnNull,
    /// Maximum tokens of a text.
    pub max_length: usize,
}

/// The columns that tell the query of a row.
#[derive(Debug, Clone, Default)]
pub struct QueryColumns {
    /// The columns, which follow those that are copied from the input.
    pub columns: Vec<KeptColumn>,
    /// Their values for each query.
    pub values: Vec<Vec<FieldValue>>,
}

/// The output of a run: where its rows go, and what is written of them.
pub struct RunOutput {
    /// The locked output.
    pub lock: OutputLock,
    /// Its schema. The types of the columns of fields are inferred from the first records.
    pub schema: OutputSchema,
    /// The values of the last columns for each query; empty if rows have no such columns.
    pub query_values: Vec<Vec<FieldValue>>,
    /// Sort rows by their scores, and write only this many of the best of each query at the end of the run.
    pub top_k: Option<usize>,
    /// What to do with records that have no row.
    pub policy: Policy,
    /// The identity of the run.
    pub identity: Identity,
    /// When the command started, and what it took so far.
    pub timings: Timings,
    /// Standard error.
    pub console: Console,
}

/// Writes the rows of a run in the order of input.
pub(super) struct Collector {
    files: OutputFiles,
    schema: OutputSchema,
    query_values: Vec<Vec<FieldValue>>,
    policy: Policy,
    identity: Identity,
    timings: Timings,
    console: Console,
    bar: ProgressBar,
    /// Present if the output is a file: only then the run can be resumed.
    journal: Option<Journal>,
    place: Place,
    /// The best rows, if rows are sorted by their scores.
    ranking: Option<Ranking>,
    stats: Stats,
    /// Rows in the last saved manifest, which the next run could resume after.
    saved_rows: Option<u64>,
}

/// How far a run has come.
struct Place {
    /// The position after the last record whose rows are all written.
    cursor: Cursor,
    /// The index of the first record of this run, or of its shard.
    first_record: u64,
    /// Whether some but not all rows of the record after the cursor are written. A checkpoint is not possible
    /// then.
    is_inside_record: bool,
    /// Rows per record, for formats whose rows have no record index.
    rows_per_record: Option<Vec<u64>>,
}

impl Collector {
    /// A collector for a run from the first record of `source`. The types of the columns are inferred from
    /// the first records of the whole input. With a journal, the run can be resumed.
    pub(super) fn start(
        mut output: RunOutput,
        journal: Option<Journal>,
        source: &mut RecordSource,
    ) -> Result<Self> {
        if output.schema.format.has_fixed_columns() {
            columns::infer(&mut output.schema, source);
            columns::adopt(&mut output.schema, source, output.policy.skip_unreadable)?;
        }
        Self::at_start_of(source, output, journal)
    }

    fn at_start_of(source: &mut RecordSource, output: RunOutput, journal: Option<Journal>) -> Result<Self> {
        let RunOutput { lock, schema, query_values, top_k, policy, identity, timings, console } = output;
        let cursor = source.start()?.clone();
        let rows_per_record = (schema.chunks && schema.format == OutputFormat::Npy).then(Vec::new);
        let first_record = cursor.entries;
        let collector = Collector {
            files: OutputFiles::new(lock),
            schema,
            query_values,
            policy,
            identity,
            timings,
            bar: console.bar(source.size()),
            console,
            journal,
            place: Place { cursor, first_record, is_inside_record: false, rows_per_record },
            ranking: top_k.map(Ranking::new),
            stats: Stats::default(),
            saved_rows: None,
        };
        collector.show_start();
        Ok(collector)
    }

    /// A collector that continues an interrupted run after the records that it has read from `source`. The
    /// flag is true if that run had written all rows, so that nothing is left to do.
    pub(super) fn resume(
        output: RunOutput,
        journal: Journal,
        manifest: Manifest,
        source: &mut RecordSource,
    ) -> Result<(Self, bool)> {
        let mut run = Self::at_start_of(source, output, Some(journal))?;
        // The schema has the columns of the interrupted run.
        (run.schema.ids, run.schema.kept) = (manifest.ids.clone(), manifest.kept.clone());
        run.skip_records(&manifest, source)?;
        run.place.cursor = manifest.cursor.clone();
        run.place.rows_per_record = manifest.rows_per_record.clone();
        (run.stats, run.timings.resumed) = (manifest.stats, manifest.stats);
        run.saved_rows = Some(manifest.stats.rows);
        run.show_start();
        let is_renamed = run.files.resume(&run.schema, &manifest)?;
        if is_renamed {
            run.clean_up(Some(manifest))?;
        }
        Ok((run, is_renamed))
    }

    /// Skips the records of an interrupted run, and adds the best rows of that run to the ranking, with the
    /// columns of their records.
    fn skip_records(&mut self, manifest: &Manifest, source: &mut RecordSource) -> Result<()> {
        // A complete run has written its best rows.
        self.ranking.take_if(|_| manifest.complete);
        let Some(ranking) = &mut self.ranking else { return source.skip_to(&manifest.cursor, |_, _| {}) };
        let mut saved: BTreeMap<u64, Vec<SavedScore>> = BTreeMap::new();
        for row in &manifest.ranking {
            saved.entry(row.index).or_default().push(*row);
        }
        let kept_texts = source.kept_texts();
        source.skip_to(&manifest.cursor, |index, record| {
            let Some(rows) = saved.get(&index) else { return };
            let is_text = |field: &usize| is_text_of(&record, *field);
            let texts: Vec<usize> = kept_texts.iter().copied().filter(is_text).collect();
            let (mut id, mut kept) = (record.id, Arc::new(record.kept));
            columns::null_misfits(&self.schema, &mut id, &mut kept);
            for row in rows {
                let mut kept = kept.to_vec();
                if let Some(chunk) = row.chunk {
                    texts.iter().for_each(|i| kept[*i] = chunk_text(&kept[*i], &record.text, chunk));
                }
                ranking.restore(row, id.as_ref(), &kept);
            }
        })
    }

    /// The position after the last record whose rows are all written.
    pub(super) fn cursor(&self) -> &Cursor {
        &self.place.cursor
    }

    /// The counts so far.
    pub(super) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The timings of the run.
    pub(super) fn timings(&self) -> &Timings {
        &self.timings
    }

    /// Whether the run can be resumed.
    pub(super) fn is_resumable(&self) -> bool {
        self.journal.is_some()
    }

    /// Opens the output, if it is not open yet, and deletes the rows of an earlier run.
    fn open(&mut self) -> Result<()> {
        if self.files.is_open() {
            return Ok(());
        }
        if self.journal.is_none() && self.schema.format == OutputFormat::Arrow {
            // The metadata of an Arrow stream precede its rows.
            self.metadata()?;
        }
        self.files.open(&self.schema)?;
        if let Some(rows) = self.journal.as_mut().and_then(Journal::take_dropped_rows) {
            self.console
                .note(format!("starting over: dropped {} of an interrupted run", counted(rows, "row")));
        }
        Ok(())
    }

    /// Takes all waves and completes the output.
    pub(super) fn run(
        &mut self,
        waves: &Receiver<Result<Outgoing<RecordMeta>>>,
        interrupts: &Interrupts,
    ) -> Result<()> {
        let done = self.take_waves(waves, interrupts).and_then(|()| self.finish(interrupts));
        self.bar.finish_and_clear();
        done.map_err(|error| self.abort(error))
    }

    /// Prints the warnings and totals of the run. `output` names the file that the rows are appended to, if
    /// it is not that of the run.
    pub(super) fn report(&self, output: Option<&SidecarPaths>) {
        let lock = &self.files.lock;
        let ledger = output.or_else(|| lock.sidecars()).map(|sidecars| sidecars.final_ledger.as_path());
        self.stats.report(&self.console, self.policy.max_length, ledger);
        let elapsed = self.timings.start.elapsed();
        // On a terminal or a pipe, the rows themselves are visible.
        if lock.sidecars().is_some() && elapsed >= QUIET_PERIOD {
            self.console.note(format!(
                "{}, {} in {:.1} s: {}",
                counted(self.stats.rows, "row"),
                counted(self.stats.tokens, "token"),
                elapsed.as_secs_f64(),
                output.map_or(lock.target().to_string(), |output| output.output.display().to_string())
            ));
        }
    }

    fn take_waves(
        &mut self,
        waves: &Receiver<Result<Outgoing<RecordMeta>>>,
        interrupts: &Interrupts,
    ) -> Result<()> {
        loop {
            let message = select! {
                recv(waves) -> message => message,
                recv(interrupts.first) -> _ => bail!(Interrupted { saved_rows: None }),
            };
            match message.map_err(thread_panicked)?? {
                Outgoing::Wave(wave) => self.take_wave(wave, interrupts)?,
                Outgoing::End => return self.open(),
            }
        }
    }

    fn take_wave(&mut self, wave: Wave<RecordMeta>, interrupts: &Interrupts) -> Result<()> {
        let Wave { items, batches, done } = wave;
        let from = self.place.cursor.position;
        let last = items.iter().rfind(|(record, _)| record.is_last);
        let to = last.map_or(from, |(record, _)| record.end.position);
        for finished in 1..=batches {
            let batch = select! {
                recv(done) -> batch => batch,
                recv(interrupts.first) -> _ => bail!(Interrupted { saved_rows: None }),
            };
            batch.map_err(thread_panicked)??;
            self.bar.set_position(from + to.saturating_sub(from) * finished as u64 / batches as u64);
            self.draw_progress();
        }
        let count = items.len();
        for (i, (record, rows)) in items.into_iter().enumerate() {
            let (end, is_last, ends_batch) = (record.end.clone(), record.is_last, record.ends_batch);
            self.take_record(record, rows.as_ref().and_then(|rows| rows.get()))?;
            if !is_last {
                continue;
            }
            (self.place.cursor, self.place.is_inside_record) = (end, false);
            if ends_batch && self.schema.follows_batches {
                self.files.end_batch()?;
            }
            // With chunks, a wave often ends inside of a record: save after any record.
            let may_save = i + 1 == count || self.schema.chunks;
            if may_save && self.journal.as_ref().is_some_and(Journal::is_due) {
                self.save(false)?;
            }
        }
        self.bar.set_position(self.place.cursor.position);
        // A wave of texts that were encoded before has no batches.
        self.draw_progress();
        if self.journal.is_some() || self.schema.follows_batches {
            return Ok(());
        }
        // Without a file, the reader of the output gets the rows of each wave at once.
        self.files.flush()
    }

    fn show_start(&self) {
        self.bar.set_position(self.place.cursor.position);
        self.bar.reset_eta();
    }

    fn draw_progress(&self) {
        let (seconds, resumed) = (self.bar.elapsed().as_secs_f64(), &self.timings.resumed);
        let rate = |count: u64, before: u64| thousands(((count - before) as f64 / seconds) as u64);
        let rows = rate(self.stats.rows, resumed.rows);
        let tokens = rate(self.stats.tokens, resumed.tokens);
        let work = format!("{}, {rows} rows/s, {tokens} tokens/s", counted(self.stats.rows, "row"));
        self.console.draw(&self.bar, &work);
    }
}
