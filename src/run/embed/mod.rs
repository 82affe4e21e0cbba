//! `sconce embed`: texts in, one vector a text out.

mod about;
mod flow;
mod hints;
mod interrupt;
mod limits;
mod records;
mod resume;
mod sink;
mod tally;

use std::fs;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::heads::normalized;
use super::{Choices, Console, Embedder, Loaded, ModelOptions, OnLong, WrongUsage, counted, load};
use crate::disk::is_same_file;
use crate::input::{Entries, Fields, Format, Place, ReadLimit, Record, Source};
use crate::model::files::is_model_file;
use crate::nn::Pooling;
use crate::output::{self, About, Claim, Column, Kind, Layout, Ledger, Target};

pub use flow::Meter;
pub use interrupt::{INTERRUPTED, Interrupted};
pub use limits::{Limits, usual_batch_tokens};
pub use records::Selection;
pub use resume::Begin;
pub use tally::Tally;

use records::{Flow, Records};
use resume::{Found, Hashing, Identity, Journal, Manifest};
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
    /// Where to begin if an earlier run has left something.
    pub begin: Begin,
    /// Which records are taken.
    pub selection: Selection,
    /// Whether to say so if texts look like another input format than the one they are read as.
    pub hints: bool,
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

    /// What has to be the same for a run to go on. The records themselves are compared by their digest.
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
                Identity::from([
                    ("--input-format".into(), formats),
                    ("--text-field".into(), fields.text.clone()),
                    ("--pair-field".into(), given(&fields.pair)),
                    ("--id-field".into(), given(&fields.id)),
                    ("--keep".into(), fields.keep.join(" ")),
                ])
            }
        }
    }
}

/// How a run has ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every record has its row.
    Whole,
    /// Records were left out, or have vectors that are not finite.
    LeftOut,
}

/// Runs `embed`.
///
/// # Errors
/// If the input, the model or the output fails; the sentence names it. [`Interrupted`] if the user stops it.
pub fn embed(options: EmbedOptions) -> Result<Ended> {
    let start = Instant::now();
    let claim = claim(&options)?;
    let is_streamed = claim.beside().is_none();
    let console = match shows_progress(&claim) {
        true => options.console,
        false => options.console.without_progress(),
    };
    let mut records = options.records(is_streamed)?;
    let loaded = load(&options.model, &console)?;
    let loading = start.elapsed();
    say_loaded(&options, &loaded, loading);
    check_model(options.stats.as_deref(), &claim, loaded.config.path(), &loaded.files)?;
    let (mut about, files) = (about::of_model(&options.model, &loaded), loaded.files.clone());
    let mut identity = options.identity(&loaded);
    let mut embedder = options.choices.embedder(loaded, &console)?;
    about.extend(about::of_vectors(&embedder));
    let limits = Limits::new(&mut embedder, options.model.max_memory)?;
    records.set_limit(limits.reading);
    let mut layout = options.layout(&embedder, about);
    output::check(&layout).map_err(|error| WrongUsage(error.to_string()))?;
    identity.extend(resume::choices(&embedder));
    let is_hashed = !is_streamed || options.stats.is_some() || options.format == output::Format::Arrow;
    let hashing = is_hashed.then(|| Hashing::start(files));
    let (journal, found, hashing) = match (claim.beside(), hashing) {
        (Some(beside), Some(hashing)) => {
            let (journal, found) = Journal::open(beside, identity, hashing, options.begin, &console)?;
            (Some(journal), found, None)
        }
        (_, hashing) => (None, Found::Nothing, hashing),
    };
    let found = match options.sift(found, &mut records, is_streamed, limits.reading)? {
        ControlFlow::Break(ended) => return Ok(ended),
        ControlFlow::Continue(found) => found,
    };
    options.look_at(&mut records, &mut layout, found.is_some())?;
    let bar = console.bar(records.size());
    let policy = options.policy(&embedder);
    let mut sink = Sink::new(claim, layout, policy, journal, hashing, console, bar);
    let mut is_whole = false;
    if let Some(run) = found {
        run.done.pass(&mut records)?;
        is_whole = sink.go_on(run)?;
    }
    let clock = Clock { start, loading: loading.as_secs_f64(), before: *sink.tally() };
    let engines: Vec<String> = embedder.encoders.iter().map(|encoder| encoder.engine().to_string()).collect();
    let meter = Arc::new(Meter::new(limits.threads));
    if !is_whole {
        run(&mut sink, records, embedder, limits, meter.clone(), is_streamed)?;
    }
    sink.report(&clock);
    let tally = *sink.tally();
    console.detail(format!("{} texts, {} tokens, {:.2?} in all", tally.texts, tally.tokens, start.elapsed()));
    if let Some(path) = &options.stats {
        let about = sink.about()?;
        tally::write_stats(path, &tally, &clock, &meter, &limits, &engines.join("; "), &about)?;
    }
    Ok(tally.ended())
}

/// Embeds the records and puts their rows where they belong.
fn run(
    sink: &mut Sink,
    records: Records,
    embedder: Embedder,
    limits: Limits,
    meter: Arc<Meter>,
    is_streamed: bool,
) -> Result<()> {
    let interrupts = interrupt::listen()?;
    if is_streamed {
        // Nothing of it is kept.
        interrupt::leave_at_once();
    }
    let windows = flow::start(records, sink.mark().clone(), Arc::new(embedder), limits, meter)?;
    sink.take(&windows, &interrupts)
}

/// Claims the output, once nothing is in its way.
fn claim(options: &EmbedOptions) -> Result<Claim> {
    if options.input.is_typed() {
        options.console.note("reading texts from the terminal, one per line; press Ctrl-D to end");
    }
    if options.hints {
        hints::of_arguments(&options.input, &options.console);
    }
    options.stats.as_deref().map_or(Ok(()), tally::check_stats)?;
    let claim = Claim::take(&options.output)?;
    check_names(options, &claim)?;
    match claim.beside() {
        Some(beside) => {
            Ledger::check(&beside.final_ledger)?;
            if options.format == output::Format::Npy {
                output::manifest::check_replaceable(&beside.meta, "release")?;
            }
            if options.begin == Begin::Fresh {
                resume::check_interrupted(beside)?;
            }
        }
        None if options.begin != Begin::Fresh => bail!(WrongUsage(format!(
            "{}: {} cannot be continued, since it is not a file; leave the option out",
            if options.begin == Begin::Resume { "--resume" } else { "--restart" },
            options.output
        ))),
        None => {}
    }
    if options.choices.chunking.is_some() && options.format == output::Format::Npy && claim.beside().is_none()
    {
        bail!(WrongUsage(format!(
            "--chunk: npy says in a file beside it which text a row is of, but {} is not a file; write --output FILE, or \
             another --output-format",
            options.output
        )));
    }
    Ok(claim)
}

/// Whether progress can be shown: not between rows that go to a terminal or into a pipe.
fn shows_progress(claim: &Claim) -> bool {
    claim.beside().is_some() || *claim.target() == Target::Stdout && output::stdout_is_file()
}

fn say_loaded(options: &EmbedOptions, loaded: &Loaded, loading: Duration) {
    let console = options.console;
    console.detail(format!(
        "{} from {}, loaded in {loading:.0?}",
        loaded.config.path().display(),
        loaded.weights
    ));
    if options.model.pooling.is_none() && loaded.pipeline.pooling.is_none() {
        let pooling = &loaded.pooling;
        console.note(format!("pooling is {pooling}, this family's custom: the model's files name none"));
    }
}

impl EmbedOptions {
    /// Opens the input.
    fn records(&self, is_streamed: bool) -> Result<Records> {
        let entries = match &self.input {
            Input::Texts(texts) => Entries::arguments(texts.clone()),
            Input::Files(sources, fields) => Entries::open(sources.clone(), fields.clone())?,
        };
        let flow = match (self.input.is_stream(), is_streamed) {
            (false, _) => Flow::Files,
            (true, false) => Flow::Stream,
            (true, true) => Flow::Live,
        };
        Ok(Records::new(entries, flow, self.selection))
    }

    /// The interrupted run to go on with, if there is one; or how this run has ended, since a finished one has done its work.
    fn sift(
        &self,
        found: Found,
        records: &mut Records,
        is_streamed: bool,
        reading: ReadLimit,
    ) -> Result<ControlFlow<Ended, Option<Manifest>>> {
        let (console, output) = (&self.console, &self.output);
        Ok(ControlFlow::Continue(match found {
            Found::Interrupted(run) => Some(run),
            Found::Finished(run) if !records.is_stream() => {
                if resume::is_up_to_date(&run, records) {
                    console.note(format!("{output} is up to date: {}", counted(run.tally.rows, "row")));
                    return Ok(ControlFlow::Break(run.tally.ended()));
                }
                console.note(format!(
                    "{output} is finished, but the input has changed; starting from the beginning"
                ));
                *records = self.records(is_streamed)?;
                records.set_limit(reading);
                None
            }
            // What a stream has given cannot be read once more.
            Found::Nothing | Found::Finished(_) => None,
        }))
    }

    /// What rows are like, before the first records are known.
    fn layout(&self, embedder: &Embedder, about: About) -> Layout {
        let keep = self.input.keep().iter().cloned();
        Layout {
            format: self.format,
            dtype: embedder.dtype,
            dimensions: embedder.dimensions,
            per_token: embedder.pooling == Pooling::None,
            normalized: normalized(&embedder.heads),
            chunks: embedder.chunking.is_some(),
            ids: self.input.has_ids().then_some(Kind::Text),
            kept: keep.map(|name| Column { name, kind: Kind::Text }).collect(),
            about,
        }
    }

    fn policy(&self, embedder: &Embedder) -> Policy {
        Policy {
            skip_unreadable: self.skip_unreadable,
            stop_at_long: embedder.on_long == OnLong::Error,
            limit: embedder.tokenizer.max_length(),
        }
    }

    /// What has to be the same for a run to go on, but for the choices that the model's files complete.
    fn identity(&self, loaded: &Loaded) -> Identity {
        let mut identity = self.input.identity();
        identity.extend([
            // Builds of one release may differ in what they compute, too.
            (
                "the release of Sconce".into(),
                concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("SCONCE_BUILD"), ")").into(),
            ),
            ("--output-format".into(), self.format.name().into()),
            ("--skip-empty".into(), if self.selection.skip_empty { "yes" } else { "no" }.into()),
        ]);
        if self.model.random_weights.is_some() {
            identity.insert("--random-weights".into(), loaded.weights.clone());
        }
        identity
    }

    /// Looks at the first records: what they show is said, refused, or settles what columns there are. A run that is
    /// resumed has its columns already.
    fn look_at(&self, records: &mut Records, layout: &mut Layout, is_resumed: bool) -> Result<()> {
        if self.hints {
            hints::of_records(&self.input, records, &self.console);
        }
        if !layout.kept.is_empty() {
            records.check_kept()?;
        }
        if !is_resumed && self.format.has_fixed_columns() {
            settle(layout, records);
        }
        Ok(())
    }
}

/// Settles by the first records what columns there are and what they hold.
fn settle(layout: &mut Layout, records: &mut Records) {
    let head: Vec<&Record> = records.head().collect();
    let ids: Vec<_> = head.iter().filter_map(|record| record.id.as_ref()).collect();
    if !ids.is_empty() {
        let integers = ids.iter().all(|id| Kind::Integer.fits(id));
        layout.ids = Some(if integers { Kind::Integer } else { Kind::Text });
    }
    for (i, column) in layout.kept.iter_mut().enumerate() {
        let kind = Kind::of_fields(head.iter().filter_map(|record| record.kept.get(i)));
        column.kind = kind.in_format(layout.format);
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
