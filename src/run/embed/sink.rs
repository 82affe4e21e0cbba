//! Where windows end: their rows, in order, in the output; what is out of the ordinary, in the ledger; and from time to
//! time all of it on the disk, so that a run that is interrupted can go on from there.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Error, Result, anyhow, bail};
use crossbeam_channel::{Receiver, select};
use indicatif::ProgressBar;
use serde_json::Value;

use super::flow::{Fate, Item, Step, Window, died};
use super::interrupt::{self, Interrupted};
use super::resume::{Finished, Hashing, Journal, Manifest, Mark, weights_digest};
use super::tally::{Clock, Tally};
use crate::field::FieldValue;
use crate::input::{At, Spot};
use crate::output::{
    self, About, Claim, ClosedPipe, Durable, Event, Format, Kind, Layout, Ledger, LedgerEntry, Row, Span,
    Writer,
};
use crate::run::{Chunk, Console, Embedded, MOMENT, counted, thousands};

/// What is done about records that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Whether a record that cannot be read is left out; else it ends the run.
    pub skip_unreadable: bool,
    /// Whether a text over the limit that is not to be encoded ends the run; else it is left out.
    pub stop_at_long: bool,
    /// That limit, in tokens.
    pub limit: usize,
}

/// A run from the first window to the last: takes what the flow gives, in order, and puts it where it belongs.
pub struct Sink {
    claim: Claim,
    layout: Layout,
    policy: Policy,
    console: Console,
    bar: ProgressBar,
    /// Opened when the first window is encoded: what an earlier run has left stays until there is something new.
    writer: Option<Box<dyn Writer>>,
    ledger: Option<Ledger>,
    /// Where the output is a file, which can be gone on with.
    journal: Option<Journal>,
    /// The hashes of the model's files, where there is no journal that has them.
    hashing: Option<Hashing>,
    mark: Mark,
    /// Whether rows of the record after the mark are written: nothing can be saved before its last row.
    is_within: bool,
    /// Rows of each record so far, for a format whose rows do not say which record they are of.
    counts: Option<Vec<u64>>,
    tally: Tally,
    /// What earlier runs have done of it.
    before: Tally,
    /// What was saved last, once all is done.
    finished: Option<Manifest>,
    /// Rows that the next run would find, once there is a manifest.
    saved: Option<u64>,
    /// Whether writing has failed, so that what lies in the files may end in the middle of a row.
    broken: bool,
}

/// What is said of a vector that is not finite.
const NOT_FINITE: &str = "has a vector with NaN or infinite values";

/// A record that ends the run, though the next run may leave it out or take it otherwise.
#[derive(Debug)]
struct Stopped {
    message: String,
    /// The options to go on with.
    options: &'static str,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Stopped {}

/// What is out of the ordinary about a record.
struct Remark<'a> {
    index: u64,
    place: &'a Spot,
    event: Event,
    reason: String,
    tokens: Option<usize>,
    cut: Option<usize>,
}

impl Sink {
    /// A sink for a run from the beginning. With a journal, it can be gone on with.
    pub fn new(
        claim: Claim,
        layout: Layout,
        policy: Policy,
        journal: Option<Journal>,
        hashing: Option<Hashing>,
        console: Console,
        bar: ProgressBar,
    ) -> Self {
        let (writer, ledger, finished, saved, broken) = (None, None, None, None, false);
        let (mark, tally, before) = (Mark::default(), Tally::default(), Tally::default());
        let counts = (layout.chunks && layout.format == Format::Npy).then(Vec::new);
        Sink {
            claim,
            layout,
            policy,
            console,
            bar,
            writer,
            ledger,
            journal,
            hashing,
            mark,
            is_within: false,
            counts,
            tally,
            before,
            finished,
            saved,
            broken,
        }
    }

    /// Where in the input the next record is.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// What has been done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Takes up what an interrupted run has left. Where that run was complete but for tidying up, this is all there is to
    /// do, and the answer is true.
    ///
    /// # Errors
    /// If less is there than the manifest says.
    pub fn go_on(&mut self, manifest: Manifest) -> Result<bool> {
        let run = manifest.clone();
        (self.layout.ids, self.layout.kept) = (manifest.ids, manifest.kept);
        (self.mark, self.tally, self.before) = (manifest.done, manifest.tally, manifest.tally);
        self.counts = manifest.counts;
        self.saved = Some(manifest.tally.rows);
        self.bar.set_position(self.mark.position);
        self.bar.reset_eta();
        let Some(beside) = self.claim.beside() else { return Ok(false) };
        // Other formats are made of the rows in the end.
        let is_rows = matches!(self.layout.format, Format::Jsonl | Format::Csv);
        let in_place = manifest.complete && beside.is_in_place(is_rows.then_some(manifest.output.bytes));
        if beside.ledger.exists() || !in_place {
            let ledger = Ledger::open(&beside.ledger, &beside.output, Some(manifest.ledger))?;
            if manifest.ledger_sha256.is_some_and(|written| written != ledger.digest()) {
                bail!(
                    "cannot resume: {} does not hold what was written; pass --restart to start over",
                    beside.ledger.display()
                );
            }
            self.ledger = Some(ledger);
        }
        if in_place {
            self.finished = Some(run);
            self.close()?;
        } else {
            self.writer = Some(output::open(&self.claim, &self.layout, Some(manifest.output))?);
        }
        Ok(in_place)
    }

    /// Opens the output if it is not open yet, in place of what an earlier run has left.
    fn open(&mut self) -> Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        if let Some(beside) = self.claim.beside() {
            // First of all: it would promise what is gone in a moment.
            output::manifest::remove(&beside.manifest)?;
            self.ledger = Some(Ledger::open(&beside.ledger, &beside.output, None)?);
        }
        if let Some(rows) = self.journal.as_mut().and_then(Journal::drop_rows) {
            self.console
                .note(format!("starting over: {} of an interrupted run dropped", counted(rows, "row")));
        }
        if self.journal.is_none() && self.layout.format == Format::Arrow {
            // A stream begins with what it says of itself.
            self.about()?;
        }
        self.writer = Some(output::open(&self.claim, &self.layout, None)?);
        Ok(())
    }

    /// Takes all windows and makes the output whole.
    ///
    /// # Errors
    /// Whatever fails; the rows before it are kept where a run can go on with them.
    pub fn take(&mut self, windows: &Receiver<Result<Step>>, interrupts: &Receiver<()>) -> Result<()> {
        let done = self.take_windows(windows, interrupts).and_then(|()| self.finish());
        self.bar.finish_and_clear();
        done.map_err(|error| self.break_off(error))
    }

    /// Says what the user may not expect.
    pub fn report(&self, clock: &Clock) {
        let ledger = self.claim.beside().map(|beside| beside.final_ledger.as_path());
        self.tally.report(&self.console, self.policy.limit, ledger);
        // Where rows went to a terminal or a pipe, they have been seen.
        if self.claim.beside().is_some() && clock.start.elapsed() >= MOMENT {
            self.console.note(format!(
                "{}, {} in {:.1} s: {}",
                counted(self.tally.rows, "row"),
                counted(self.tally.tokens, "token"),
                clock.start.elapsed().as_secs_f64(),
                self.claim.target()
            ));
        }
    }

    fn take_windows(&mut self, windows: &Receiver<Result<Step>>, interrupts: &Receiver<()>) -> Result<()> {
        loop {
            let step = select! {
                recv(windows) -> step => step,
                recv(interrupts) -> _ => bail!(Interrupted { kept: None }),
            };
            match step.map_err(died)?? {
                Step::Window(window) => self.take_window(window, interrupts)?,
                Step::End => return self.open(),
            }
        }
    }

    fn take_window(&mut self, window: Window, interrupts: &Receiver<()>) -> Result<()> {
        let Window { items, batches, results } = window;
        let mut embedded: Vec<_> = items.iter().map(|_| None).collect();
        let from = self.mark.position;
        let to = items.iter().rfind(|item| item.is_last).map_or(from, |item| item.end.position);
        for done in 1..=batches {
            let batch = select! {
                recv(results) -> batch => batch,
                recv(interrupts) -> _ => bail!(Interrupted { kept: None }),
            };
            for (slot, rows) in batch.map_err(died)?? {
                embedded[slot] = Some(rows);
            }
            self.bar.set_position(from + to.saturating_sub(from) * done as u64 / batches as u64);
            self.show();
        }
        let count = items.len();
        for (i, (item, embedded)) in items.into_iter().zip(embedded).enumerate() {
            let (end, is_last) = (item.end.clone(), item.is_last);
            self.take_item(item, embedded)?;
            if !is_last {
                continue;
            }
            (self.mark, self.is_within) = (end, false);
            // The window may end inside of a record, as most do where texts have many chunks.
            if (i + 1 == count || self.layout.chunks) && self.journal.as_ref().is_some_and(Journal::is_due) {
                self.save(false)?;
            }
        }
        self.bar.set_position(self.mark.position);
        match &self.journal {
            Some(_) => Ok(()),
            // Whoever reads the stream need not wait for more.
            None => self.writer()?.checkpoint().map(drop),
        }
    }

    /// Writes the rows of a record, or says why it has none.
    fn take_item(&mut self, item: Item, rows: Option<Vec<Embedded>>) -> Result<()> {
        let Item { place, mut id, mut kept, fate, is_empty, is_last, .. } = item;
        self.tally.empty += u64::from(is_empty && is_last);
        let index = self.mark.entries;
        let remark = |event, reason| Remark { index, place: &place, event, reason, tokens: None, cut: None };
        let stops = !self.policy.skip_unreadable;
        match (fate, rows) {
            (Fate::Encoded { tokens, cut, windows, chunks }, Some(rows)) => {
                if let Some(reason) = self.fit(&mut id, &mut kept)
                    && !self.is_within
                {
                    self.stop_over(&place, &reason, stops, "--on-error skip")?;
                    self.tally.nulled += 1;
                    self.note(remark(Event::Nulled, reason))?;
                }
                let is_one_row = chunks.is_empty();
                let spans = chunks.iter().map(|chunk| (Some(span(chunk)), chunk.tokens.len()));
                let spans: Vec<_> = if is_one_row { vec![(None, tokens)] } else { spans.collect() };
                let rows_before = self.tally.rows;
                for (row, (chunk, tokens)) in rows.iter().zip(spans) {
                    let named = |reason: &str| match &chunk {
                        Some(Span { chunk, .. }) => format!("chunk {chunk} {reason}"),
                        None => reason.into(),
                    };
                    if !row.finite && !self.layout.shows_not_finite() {
                        let dtype = self.layout.dtype;
                        let reason =
                            named(&format!("{NOT_FINITE}, which {dtype} does not show; check the model"));
                        self.stop_over(&place, &reason, stops, "--on-error skip")?;
                        self.tally.failed += 1;
                        self.note(remark(Event::Failed, reason))?;
                        continue;
                    }
                    let (id, truncated, vector) = (id.as_ref(), cut > 0, &row.vector);
                    self.write(&Row { index, id, chunk, tokens, truncated, kept: &kept, vector })?;
                    if !row.finite {
                        self.tally.not_finite += 1;
                        let remark = remark(Event::NotFinite, named(NOT_FINITE));
                        self.note(Remark { tokens: Some(tokens), ..remark })?;
                    }
                }
                let written = self.tally.rows - rows_before;
                self.tally.texts += u64::from(is_last && self.is_within);
                if written > 0 {
                    self.tally.tokens += tokens as u64;
                }
                if !is_one_row {
                    self.tally.chunks += written;
                    return Ok(());
                }
                if written == 0 {
                    return Ok(());
                }
                let remark = remark(Event::Truncated, String::new());
                self.count_long(Remark { tokens: Some(tokens), ..remark }, cut, windows)
            }
            (Fate::Empty, _) => {
                self.tally.skipped_empty += 1;
                self.open()
            }
            (Fate::NoTokens, _) => {
                let reason = "has no tokens: it is empty, and the model's tokenizer adds no special tokens";
                self.tally.failed += 1;
                self.note(Remark { tokens: Some(0), ..remark(Event::Skipped, reason.into()) })
            }
            (Fate::TooLong(tokens, reason), _) => {
                let stops = self.policy.stop_at_long;
                self.stop_over(&place, &reason, stops, "--on-long truncate, skip or mean")?;
                self.tally.skipped += 1;
                self.note(Remark { tokens: Some(tokens), ..remark(Event::Skipped, reason) })
            }
            (Fate::Failed(reason), _) => {
                self.stop_over(&place, &reason, stops, "--on-error skip")?;
                self.tally.failed += 1;
                self.note(remark(Event::Failed, reason))
            }
            (Fate::Encoded { .. }, None) => bail!("{place} has no vector; please report this as a bug"),
        }
    }

    /// Writes a row.
    fn write(&mut self, row: &Row) -> Result<()> {
        self.open()?;
        self.is_within = true;
        let written = self.writer()?.write(row);
        self.or_broken(written)?;
        self.tally.rows += 1;
        if let Some(counts) = &mut self.counts {
            counts.resize(row.index as usize + 1, 0);
            counts[row.index as usize] += 1;
        }
        Ok(())
    }

    /// Takes away what the columns of the output, which the first records have shown, cannot hold, and says what it was.
    fn fit(&self, id: &mut Option<Value>, kept: &mut Arc<Vec<FieldValue>>) -> Option<String> {
        let Layout { format, ids, kept: columns, .. } = &self.layout;
        if id.is_some() && ids.is_none() && format.has_fixed_columns() {
            *id = None;
            return Some("has an id, but the first records have none; name the field with --id-field".into());
        }
        if let Some(other) =
            id.take_if(|id| format.has_typed_columns() && ids.as_ref().is_some_and(|kind| !kind.fits(id)))
        {
            return Some(format!(
                "has the id {}, but the first records have {} for ids; write jsonl or csv, or make the ids alike",
                shown(&other),
                ids.as_ref().unwrap_or(&Kind::Text)
            ));
        }
        if !format.has_typed_columns() {
            return None;
        }
        if columns.iter().zip(kept.iter()).all(|(column, value)| column.kind.holds(value)) {
            return None;
        }
        let values = Arc::make_mut(kept);
        let mut misfits = columns.iter().zip(values).filter(|(column, value)| !column.kind.holds(value));
        let (column, value) = misfits.next()?;
        let reason = format!(
            "has {} in field {:?}, but the first records have {}; leave it out of --keep, or write jsonl or csv",
            shown(&value.json()),
            column.name,
            column.kind
        );
        *value = FieldValue::default();
        misfits.for_each(|(_, value)| *value = FieldValue::default());
        Some(reason)
    }

    /// Ends the run over a record, if that `stops` it. `options` would not.
    fn stop_over(&mut self, place: &Spot, reason: &str, stops: bool, options: &'static str) -> Result<()> {
        match stops {
            true => bail!(Stopped { message: format!("{place} {reason}"), options }),
            // It is entered into the ledger.
            false => self.open(),
        }
    }

    /// Counts a text over the limit that has its row all the same.
    fn count_long(&mut self, remark: Remark, cut: usize, windows: usize) -> Result<()> {
        let limit = self.policy.limit;
        if cut > 0 {
            self.tally.truncated += 1;
            self.tally.cut += cut as u64;
            let tokens = remark.tokens.unwrap_or_default() + cut;
            let reason = format!("has {tokens} tokens, over the limit of {limit}");
            self.enter(Remark { reason, cut: Some(cut), ..remark })
        } else if windows > 1 {
            self.tally.chunked += 1;
            self.tally.windows += windows as u64;
            let reason = format!("is encoded in {windows} windows of at most {limit} tokens");
            self.enter(Remark { event: Event::Chunked, reason, ..remark })
        } else {
            Ok(())
        }
    }

    /// Enters what is lost into the ledger; where there is none, it is said at once.
    fn note(&mut self, remark: Remark) -> Result<()> {
        if self.ledger.is_none() {
            let what = match remark.event {
                Event::Nulled => "null in",
                Event::NotFinite => "not finite",
                Event::Failed | Event::Skipped | Event::Truncated | Event::Chunked => "left out",
            };
            self.bar.suspend(|| self.console.warn(format!("{what}: {} {}", remark.place, remark.reason)));
        }
        self.enter(remark)
    }

    /// Enters a record into the ledger.
    fn enter(&mut self, Remark { index, place, event, reason, tokens, cut }: Remark) -> Result<()> {
        let Some(ledger) = &mut self.ledger else { return Ok(()) };
        let (line, row) = match place.at {
            At::Line(line) => (Some(line), None),
            At::Row(row) | At::Argument(row) => (None, Some(row)),
            At::Whole => (None, None),
        };
        let (file, reason) = (&*place.source, reason.into());
        let written = ledger.write(&LedgerEntry { index, file, line, row, event, reason, tokens, cut });
        self.or_broken(written)
    }

    /// Notes that writing has failed, if it has.
    fn or_broken<T>(&mut self, written: Result<T>) -> Result<T> {
        self.broken |= written.is_err();
        written
    }

    fn writer(&mut self) -> Result<&mut dyn Writer> {
        match &mut self.writer {
            Some(writer) => Ok(&mut **writer),
            None => bail!("the output is not open; please report this as a bug"),
        }
    }

    /// Makes what is done durable and notes how far it goes.
    fn save(&mut self, complete: bool) -> Result<()> {
        let since = Instant::now();
        let bytes = self.writer()?.checkpoint();
        let bytes = self.or_broken(bytes)?;
        let rows = self.tally.rows;
        let blocks = self.writer()?.blocks(rows);
        let ledger = self.ledger.as_mut().map_or(Ok(0), Ledger::checkpoint);
        let ledger = self.or_broken(ledger)?;
        let ledger_sha256 = self.ledger.as_ref().map(Ledger::digest);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let saved = journal.save(since, |identity| Manifest {
            identity,
            ids: self.layout.ids.clone(),
            kept: self.layout.kept.clone(),
            done: self.mark.clone(),
            tally: self.tally,
            counts: self.counts.clone(),
            output: Durable { rows, bytes, blocks },
            ledger,
            ledger_sha256,
            complete,
        })?;
        self.finished = complete.then_some(saved);
        self.saved = Some(self.tally.rows);
        Ok(())
    }

    /// Puts output and ledger in their places. Killed in between, the run is complete for the next one.
    fn finish(&mut self) -> Result<()> {
        self.save(true)?;
        interrupt::leave_at_once();
        let about = self.about()?;
        if let Some(mut writer) = self.writer.take() {
            writer.describe(&about);
            writer.finish()?;
        }
        self.close()
    }

    /// Puts the ledger in its place and removes the manifest.
    fn close(&mut self) -> Result<()> {
        let Some(beside) = self.claim.beside() else { return Ok(()) };
        if let Some(ledger) = self.ledger.take() {
            ledger.finish(&beside.final_ledger)?;
        }
        if self.layout.format == Format::Npy {
            let mut meta = serde_json::to_value(&self.layout.about)?;
            if let Some(counts) = &mut self.counts {
                // Records at the end may have no rows.
                counts.resize(self.mark.entries as usize, 0);
                meta["chunks"] = counts.as_slice().into();
            }
            output::manifest::save(&beside.meta, &beside.output, &meta)?;
        }
        if let Some(run) = self.finished.take() {
            Finished::leave(run, beside)?;
        }
        output::manifest::remove(&beside.manifest)
    }

    /// What the output says of itself: the layout's, with the digest of the weights, if the model's files are hashed.
    pub fn about(&mut self) -> Result<About> {
        let digest = match (&mut self.journal, self.hashing.take()) {
            (Some(journal), _) => weights_digest(journal.identity()?),
            (None, Some(hashing)) => weights_digest(&hashing.finish()?),
            (None, None) => None,
        };
        self.layout.about.extend(digest.map(|digest| ("weights_sha256".into(), digest)));
        Ok(self.layout.about.clone())
    }

    /// What a failure means for the rows before it: they are kept where there are any and a run can go on with them.
    fn break_off(&mut self, error: Error) -> Error {
        // Where nothing was opened, what an earlier run has left is as it was.
        if error.is::<ClosedPipe>() || self.journal.is_none() {
            return error;
        }
        if self.writer.is_none() && self.saved.is_none() {
            let kept = self.journal.as_ref().and_then(Journal::earlier_rows);
            return if error.is::<Interrupted>() { Interrupted { kept }.into() } else { error };
        }
        if self.writer.is_some() && self.mark.entries > 0 && !self.broken && !self.is_within {
            // Where this fails, the manifest before it stands.
            let _ = self.save(false);
        }
        let Some(rows) = self.saved else {
            (self.writer, self.ledger) = (None, None);
            // What cannot be removed now is replaced by the next run.
            let _ = self.claim.discard();
            return error;
        };
        if error.is::<Interrupted>() {
            return Interrupted { kept: Some(rows) }.into();
        }
        let kept = match rows {
            1 => "1 row is kept".into(),
            rows => format!("{} are kept", counted(rows, "row")),
        };
        match error.downcast::<Stopped>() {
            Ok(Stopped { message, options }) => {
                anyhow!(
                    "{message}; {kept}, and the same command with --resume and {options} goes on after that"
                )
            }
            Err(error) => anyhow!("{error:#}; {kept} for --resume"),
        }
    }

    fn show(&self) {
        let seconds = self.bar.elapsed().as_secs_f64();
        let (rows, tokens) = (self.tally.rows - self.before.rows, self.tally.tokens - self.before.tokens);
        let (rate, tokens) = (rows as f64 / seconds, tokens as f64 / seconds);
        let (rate, tokens) = (thousands(rate as u64), thousands(tokens as u64));
        let work = format!("{}, {rate} rows/s, {tokens} tokens/s", counted(self.tally.rows, "row"));
        self.console.draw(&self.bar, &work);
    }
}

/// Where a chunk is in its text.
fn span(chunk: &Chunk) -> Span {
    let Chunk { number, characters, .. } = chunk;
    Span { chunk: *number, start: characters.start, end: characters.end }
}

/// The beginning of a value.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}
