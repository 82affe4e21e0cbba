//! `sconce embed`: texts in, one vector a text out.

use std::fs;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use indicatif::ProgressBar;

use super::{Choices, Console, Embedder, ModelOptions, WrongUsage, load};
use crate::input::{self, Fields, Place, Record, Records, arguments};
use crate::nn::Pooling;
use crate::output::{self, Format, Row, Shape, Target, Writer};

/// What `embed` is to do.
pub struct EmbedOptions {
    /// The model.
    pub model: ModelOptions,
    /// The texts.
    pub input: Input,
    /// Where the vectors go.
    pub output: Target,
    /// How they are written.
    pub format: Format,
    /// What the vectors are to be.
    pub choices: Choices,
    /// Standard error.
    pub console: Console,
}

/// Where the texts are.
pub enum Input {
    /// On the command line.
    Texts(Vec<String>),
    /// In files, one after another.
    Files(Vec<(Place, input::Format)>, Fields),
}

impl Input {
    /// Whether a person is to type the texts now.
    fn is_typed(&self) -> bool {
        matches!(self, Input::Files(files, _) if files.iter().any(|(place, _)| *place == Place::Stdin))
            && std::io::stdin().is_terminal()
    }
}

/// Records that are read before the batches among them are computed: bounds memory, whatever the input's size.
const WINDOW_RECORDS: usize = 1024;
/// The same where every token has a vector.
const WINDOW_RECORDS_PER_TOKEN: usize = 64;
/// The same in bytes of text.
const WINDOW_BYTES: usize = 4 << 20;

/// Runs `embed`.
///
/// # Errors
/// If the input, the model or the output fails; the sentence names it.
pub fn embed(options: EmbedOptions) -> Result<()> {
    let EmbedOptions { console, .. } = options;
    let start = Instant::now();
    let bar = console.bar(size(&options.input));
    if options.input.is_typed() {
        console.note("reading texts from the terminal, one a line; Ctrl-D ends them");
    }
    check_output(&options.input, &options.output)?;
    let mut records = open(options.input)?;
    let loaded = load(&options.model, &console)?;
    console.detail(format!(
        "{} from {}, loaded in {:.0?}",
        loaded.config.path().display(),
        loaded.weights,
        start.elapsed()
    ));
    if options.model.pooling.is_none() && loaded.pipeline.pooling.is_none() {
        let pooling = &loaded.pooling;
        console.note(format!("pooling is {pooling}, this family's custom: the model's files name none"));
    }
    let embedder = options.choices.embedder(loaded, &console)?;

    let shape = Shape { dimensions: embedder.dimensions, per_token: embedder.pooling == Pooling::None };
    let mut writer = output::open(&options.output, options.format, shape)?;
    let mut tally = Tally::default();
    let most = if shape.per_token { WINDOW_RECORDS_PER_TOKEN } else { WINDOW_RECORDS };
    loop {
        let window = read_window(&mut records, most)?;
        if window.is_empty() {
            break;
        }
        tally.write(&embedder, &window, &mut *writer, &bar)?;
    }
    writer.finish()?;
    bar.finish_and_clear();
    tally.report(&console, embedder.tokenizer.max_length(), start);
    Ok(())
}

/// What has been done so far.
#[derive(Default)]
struct Tally {
    rows: usize,
    tokens: usize,
    truncated: usize,
    cut: usize,
    not_finite: usize,
}

impl Tally {
    /// Embeds and writes a window of records.
    fn write(
        &mut self,
        embedder: &Embedder,
        window: &[Record],
        writer: &mut dyn Writer,
        bar: &ProgressBar,
    ) -> Result<()> {
        let texts = embedder.tokenize(window)?;
        let rows = AtomicUsize::new(self.rows);
        let vectors = embedder.embed(&texts, |range| {
            let rows = range.len() + rows.fetch_add(range.len(), Ordering::Relaxed);
            bar.inc(window[range].iter().map(|record| record.text.len() as u64 + 1).sum());
            bar.set_message(format!(
                "{rows} texts, {:.0} a second",
                rows as f64 / bar.elapsed().as_secs_f64()
            ));
        })?;
        for ((record, text), values) in window.iter().zip(&texts).zip(&vectors) {
            let truncated = text.cut > 0;
            let (index, tokens) = (self.rows, text.ids.len());
            writer.write(&Row { index, id: record.id.as_deref(), tokens, truncated, values })?;
            self.rows += 1;
            self.tokens += tokens;
            self.truncated += usize::from(truncated);
            self.cut += text.cut;
            self.not_finite += usize::from(values.iter().any(|x| !x.is_finite()));
        }
        Ok(())
    }

    fn report(&self, console: &Console, limit: usize, start: Instant) {
        if self.truncated > 0 {
            console.warn(format!(
                "{} of {} texts were longer than {limit} tokens and were truncated; {} tokens were cut",
                self.truncated, self.rows, self.cut
            ));
        }
        if self.not_finite > 0 {
            console.warn(format!("{} of {} rows hold NaN or infinite numbers", self.not_finite, self.rows));
        }
        console.detail(format!(
            "{} texts, {} tokens, {:.2?} in all",
            self.rows,
            self.tokens,
            start.elapsed()
        ));
    }
}

/// Bytes of input, where they can be known.
fn size(input: &Input) -> Option<u64> {
    match input {
        Input::Texts(texts) => Some(texts.iter().map(|text| text.len() as u64 + 1).sum()),
        Input::Files(files, _) => files
            .iter()
            .map(|(place, _)| match place {
                Place::File(path) => {
                    fs::metadata(path).ok().filter(|file| file.is_file()).map(|file| file.len())
                }
                Place::Stdin => None,
            })
            .sum(),
    }
}

/// The records of an input. Files are opened one after another, but each is tried now: a name that is wrong should
/// not be found out after hours.
fn open(input: Input) -> Result<Records> {
    match input {
        Input::Texts(texts) => Ok(arguments(texts)),
        Input::Files(files, fields) => {
            for (place, _) in &files {
                place.check()?;
            }
            Ok(Box::new(files.into_iter().flat_map(move |(place, format)| {
                match input::open(place, format, &fields) {
                    Ok(records) => records,
                    Err(error) => Box::new(std::iter::once(Err(error))),
                }
            })))
        }
    }
}

/// Refuses an output that is one of the inputs: it would take the place of the texts.
fn check_output(input: &Input, output: &Target) -> Result<()> {
    let (Input::Files(files, _), Target::File(output)) = (input, output) else { return Ok(()) };
    let Ok(output) = fs::canonicalize(output) else { return Ok(()) };
    for (place, _) in files {
        if let Place::File(path) = place
            && output.is_file()
            && fs::canonicalize(path).is_ok_and(|path| path == output)
        {
            let path = path.display();
            bail!(WrongUsage(format!(
                "--output {path} is the input, too; choose another name for the vectors"
            )));
        }
    }
    Ok(())
}

fn read_window(records: &mut Records, most: usize) -> Result<Vec<Record>> {
    let mut window = Vec::new();
    let mut bytes = 0;
    while window.len() < most && bytes < WINDOW_BYTES {
        let Some(record) = records.next().transpose()? else { break };
        bytes += record.text.len();
        window.push(record);
    }
    Ok(window)
}
