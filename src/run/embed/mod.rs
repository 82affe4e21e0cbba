//! `sconce embed`: texts in, one vector a text out.

mod flow;
mod interrupt;
mod limits;
mod records;
mod resume;
mod sink;
mod tally;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};

use super::heads::normalized;
use super::{Choices, Console, ModelOptions, OnLong, WrongUsage, load};
use crate::disk::is_same_file;
use crate::input::{Entries, Fields, Format, Place, Record, Source};
use crate::model::files::is_model_file;
use crate::nn::Pooling;
use crate::output::{self, Claim, Column, Kind, Layout, Ledger, Target};

pub use flow::Meter;
pub use interrupt::{INTERRUPTED, Interrupted};
pub use limits::{Limits, usual_batch_tokens};
pub use tally::Tally;

use records::Records;
use resume::{Identity, Journal};
use sink::{Policy, Sink};
use tally::Clock;

/// What `embed` is to do.
pub struct EmbedOptions {
    /// The model.
    pub model: ModelOptions,
    /// The texts.
    pub input: Input,
    /// Where the vectors go.
    pub output: Target,
    /// How they are written.
    pub format: output::Format,
    /// What the vectors are to be.
    pub choices: Choices,
    /// Whether a record that cannot be read is left out; else it ends the run.
    pub skip_unreadable: bool,
    /// Whether to go on where an interrupted run stopped.
    pub resume: bool,
    /// Where a summary goes.
    pub stats: Option<PathBuf>,
    /// Standard error.
    pub console: Console,
}

/// Where the texts are.
pub enum Input {
    /// On the command line.
    Texts(Vec<String>),
    /// In files, one after another.
    Files(Vec<Source>, Fields),
}

impl Input {
    fn sources(&self) -> &[Source] {
        match self {
            Input::Texts(_) => &[],
            Input::Files(sources, _) => sources,
        }
    }

    /// The names of the fields that are carried through.
    fn keep(&self) -> &[String] {
        match self {
            Input::Texts(_) => &[],
            Input::Files(_, fields) => &fields.keep,
        }
    }

    /// Whether records may be long in coming: those of standard input and of pipes.
    fn is_stream(&self) -> bool {
        self.sources().iter().any(|source| match &source.place {
            Place::Stdin => true,
            Place::File(path) => !path.is_file(),
        })
    }

    /// Whether a person is to type the texts now.
    fn is_typed(&self) -> bool {
        self.sources().iter().any(|source| source.place == Place::Stdin) && std::io::stdin().is_terminal()
    }

    /// Whether rows have ids, whatever the first ones are like.
    fn has_ids(&self) -> bool {
        let is_named = matches!(self, Input::Files(_, Fields { id: Some(_), .. }));
        is_named || self.sources().iter().any(|source| source.format == Format::Files)
    }

    /// What has to be the same for a run to go on.
    fn identity(&self) -> Identity {
        match self {
            Input::Texts(texts) => {
                Identity::from([("the texts".into(), format!("SHA-256 {}", resume::hash_texts(texts)))])
            }
            Input::Files(sources, fields) => {
                let formats = sources.iter().map(|source| source.format.name()).collect::<Vec<_>>();
                let formats = match formats.split_first() {
                    Some((first, rest)) if rest.iter().all(|format| format == first) => first.to_string(),
                    _ => formats.join(" "),
                };
                let given = |name: &Option<String>| name.clone().unwrap_or_else(|| "not given".into());
                let mut identity = resume::inputs(sources);
                identity.extend([
                    ("--input-format".into(), formats),
                    ("--text-field".into(), fields.text.clone()),
                    ("--pair-field".into(), given(&fields.pair)),
                    ("--id-field".into(), given(&fields.id)),
                    ("--keep".into(), fields.keep.join(" ")),
                ]);
                identity
            }
        }
    }
}

/// How a run has ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every record has its row.
    Whole,
    /// Records were left out.
    LeftOut,
}

/// Runs `embed`.
///
/// # Errors
/// If the input, the model or the output fails; the sentence names it. [`Interrupted`] if the user stops it.
pub fn embed(options: EmbedOptions) -> Result<Ended> {
    let start = Instant::now();
    let console = options.console;
    if options.input.is_typed() {
        console.note("reading texts from the terminal, one a line; Ctrl-D ends them");
    }
    options.stats.as_deref().map_or(Ok(()), tally::check_stats)?;
    let claim = Claim::take(&options.output)?;
    check_names(&options, &claim)?;
    claim.beside().map_or(Ok(()), |beside| Ledger::check(&beside.final_ledger))?;
    let mut identity = options.input.identity();
    let keep = options.input.keep().to_vec();
    let (has_ids, is_stream) = (options.input.has_ids(), options.input.is_stream());
    let entries = match options.input {
        Input::Texts(texts) => Entries::arguments(texts),
        Input::Files(sources, fields) => Entries::open(sources, fields)?,
    };
    let size = entries.size();
    let mut records = Records::new(entries, is_stream);
    let loaded = load(&options.model, &console)?;
    let loading = start.elapsed();
    console.detail(format!(
        "{} from {}, loaded in {loading:.0?}",
        loaded.config.path().display(),
        loaded.weights
    ));
    if options.model.pooling.is_none() && loaded.pipeline.pooling.is_none() {
        let pooling = &loaded.pooling;
        console.note(format!("pooling is {pooling}, this family's custom: the model's files name none"));
    }
    let is_streamed = claim.beside().is_none();
    let model_files = loaded.files.clone();
    check_model(options.stats.as_deref(), &claim, loaded.config.path(), &model_files)?;
    let weights = loaded.weights.clone();
    let mut embedder = options.choices.embedder(loaded, &console)?;
    let engines: Vec<String> = embedder.encoders.iter().map(|encoder| encoder.engine().to_string()).collect();
    let computing = (engines.join("; "), embedder.encoders[0].engine().dtype());
    let limits = Limits::new(&mut embedder, options.model.max_memory)?;
    let mut layout = Layout {
        format: options.format,
        dtype: embedder.dtype,
        dimensions: embedder.dimensions,
        per_token: embedder.pooling == Pooling::None,
        normalized: normalized(&embedder.heads),
        ids: has_ids,
        kept: keep.into_iter().map(|name| Column { name, kind: Kind::Text }).collect(),
    };
    output::check(&layout).map_err(|error| WrongUsage(error.to_string()))?;
    identity.extend(resume::choices(&embedder));
    identity.extend([
        ("the release of Sconce".into(), env!("CARGO_PKG_VERSION").into()),
        ("--output-format".into(), options.format.name().into()),
    ]);
    if options.model.random_weights.is_some() {
        identity.insert("--random-weights".into(), weights);
    }
    let policy = Policy {
        skip_unreadable: options.skip_unreadable,
        stop_at_long: embedder.on_long == OnLong::Error,
        limit: embedder.tokenizer.max_length(),
    };
    let (journal, found) = match claim.beside() {
        Some(beside) => {
            let (journal, found) = Journal::open(beside, identity, model_files, options.resume, &console)?;
            (Some(journal), found)
        }
        None if options.resume => bail!(WrongUsage(format!(
            "--resume: {} is no file that can be gone on with; leave the option out",
            options.output
        ))),
        None => (None, None),
    };
    if found.is_none() && options.format.has_fixed_columns() {
        settle(&mut layout, &mut records);
    }
    let mut sink = Sink::new(claim, layout, policy, journal, console, console.bar(size));
    let mut is_whole = false;
    if let Some(manifest) = found {
        manifest.done.pass(&mut records)?;
        is_whole = sink.go_on(manifest)?;
    }
    let clock = Clock { start, loading: loading.as_secs_f64(), before: *sink.tally() };
    let meter = Arc::new(Meter::new(limits.threads));
    if !is_whole {
        let interrupts = interrupt::listen()?;
        if is_streamed {
            // Nothing of it is kept.
            interrupt::leave_at_once();
        }
        let windows = flow::start(records, sink.mark().clone(), Arc::new(embedder), limits, meter.clone())?;
        sink.take(&windows, &interrupts)?;
    }
    sink.report();
    let tally = *sink.tally();
    if let Some(path) = &options.stats {
        tally::write_stats(path, &tally, &clock, &meter, &limits, &computing)?;
    }
    console.detail(format!("{} texts, {} tokens, {:.2?} in all", tally.rows, tally.tokens, start.elapsed()));
    Ok(if tally.left_out() > 0 || tally.nulled > 0 { Ended::LeftOut } else { Ended::Whole })
}

/// Settles by the first records what columns there are and what they hold.
fn settle(layout: &mut Layout, records: &mut Records) {
    let head: Vec<&Record> = records.head().collect();
    layout.ids |= head.iter().any(|record| record.id.is_some());
    for (i, column) in layout.kept.iter_mut().enumerate() {
        column.kind = Kind::of(head.iter().filter_map(|record| record.kept.get(i)));
    }
}

/// Refuses to write over a file of the model.
fn check_model(stats: Option<&Path>, claim: &Claim, config: &Path, files: &[PathBuf]) -> Result<()> {
    let folder = config.parent().unwrap_or(Path::new(""));
    let is_of_model = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder.join(&*name);
        files.iter().any(|file| is_same_file(file, path))
            || is_model_file(&name) && is_same_file(&beside, path)
    };
    let outputs = claim.beside().into_iter().flat_map(|beside| {
        [("--output", &*beside.output), ("the ledger of the output,", &*beside.final_ledger)]
    });
    for (option, path) in outputs.chain(stats.map(|path| ("--stats", path))) {
        if is_of_model(path) {
            return refuse(option, path, "a file of the model");
        }
    }
    Ok(())
}

fn refuse(option: &str, path: &Path, what: &str) -> Result<()> {
    bail!(WrongUsage(format!("{option} {} is {what}, too; choose another name", path.display())))
}

/// Refuses names that stand for two things: one would take the place of the other.
fn check_names(options: &EmbedOptions, claim: &Claim) -> Result<()> {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = claim.beside();
    let stats = options.stats.as_deref().map(real);
    if let (Some(stats), Some(beside)) = (&stats, beside) {
        for (name, what) in
            [(&beside.output, "the output"), (&beside.final_ledger, "the ledger of the output")]
        {
            if *stats == real(name) {
                return refuse("--stats", stats, what);
            }
        }
    }
    for source in options.input.sources() {
        let Place::File(path) = &source.place else { continue };
        let input = real(path);
        if stats.as_ref().is_some_and(|stats| is_same_file(stats, path)) {
            return refuse("--stats", path, "the input");
        }
        if let Some(beside) = beside {
            if is_same_file(path, &beside.output) {
                return refuse("--output", path, "the input");
            }
            if input == real(&beside.final_ledger) {
                return refuse("the ledger of the output,", path, "the input");
            }
        }
    }
    Ok(())
}
