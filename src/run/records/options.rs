//! The options of commands that turn records into rows.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;

use crate::formats::HashedRows;
use crate::input::{Entries, Fields, Format, InputPath, KeptName, Source};
use crate::job::{Changes, FileRecords, OnNull, OpenInput, Pace, Selection, StartMode};
use crate::load::ModelOptions;
use crate::rows::OutputFormat;
use crate::rows::columns::ID;
use crate::store::{SidecarPaths, Target};
use crate::sys::console::Console;

/// The options of every command that turns records into rows.
pub struct RecordOptions {
    /// The model.
    pub model: ModelOptions,
    /// The texts.
    pub input: Input,
    /// The destination of the rows.
    pub output: Target,
    /// The format of the output.
    pub format: OutputFormat,
    /// Whether rows are chunks of texts (`--chunk`).
    pub chunks: bool,
    /// Tokens per batch. `None`: the fastest number for the device.
    pub batch_tokens: Option<usize>,
    /// Skip records that cannot be read; otherwise they end the run.
    pub skip_unreadable: bool,
    /// What to do with a text that is null.
    pub on_null: OnNull,
    /// Where to start if an earlier run has left rows.
    pub start: StartMode,
    /// Which records to process.
    pub selection: Selection,
    /// Add a column with the hash of each record, and write rows only of those that a file does not have yet
    /// (`--append`).
    pub append: Option<Append>,
    /// The name of the column of vectors, if it is not the usual one (`--vector-column`).
    pub vector_column: Option<String>,
    /// The name of the column of ids, if it is not the usual one (`--id-column`).
    pub id_column: Option<String>,
    /// Write what the run would take, and no row (`--dry-run`).
    pub dry_run: bool,
    /// The directory with rows of earlier runs (`--cache`).
    pub cache: Option<PathBuf>,
    /// Print a hint if texts look like another input format.
    pub hints: bool,
    /// The path of the JSON summary (`--stats`).
    pub stats: Option<PathBuf>,
    /// Standard error.
    pub console: Console,
}

/// The options of a command that turns records into rows, with those of its task.
pub struct TaskOptions<T> {
    /// The model, the texts and the output.
    pub records: RecordOptions,
    /// What the task makes of a text.
    pub task: T,
}

/// What a run with `--append` appends to.
#[derive(Debug, Clone)]
pub struct Append {
    /// The file with the rows of earlier runs, if there is one.
    pub file: Option<PathBuf>,
    /// The records of the file.
    pub records: Arc<FileRecords>,
}

impl Append {
    /// A run that changes the rows of a file that it has not looked for yet.
    pub fn new(changes: Changes) -> Self {
        Append { file: None, records: Arc::new(FileRecords::none(changes)) }
    }
}

/// The texts.
pub enum Input {
    /// Texts on the command line.
    Texts(Vec<String>),
    /// Files, one after another.
    Files(Vec<Source>, Fields),
}

impl RecordOptions {
    /// Where the rows have the records that they are made of.
    pub(in crate::run) fn hashed_rows(&self) -> HashedRows<'_> {
        let id_column = self.id_column.as_deref().unwrap_or(ID);
        HashedRows { format: self.format, chunks: self.chunks, id_column }
    }

    /// The file that the rows are appended to, with the files beside it. `None` without `--append`, and
    /// without such a file.
    pub(super) fn appended(&self) -> Result<Option<SidecarPaths>> {
        let file = self.append.as_ref().and_then(|append| append.file.clone());
        Ok(file.map(|file| SidecarPaths::of(&Target::File(file))).transpose()?.flatten())
    }

    /// Opens the input. `output_is_stream`: rows go to a terminal or a pipe, where someone may wait for them.
    pub(super) fn open_input(&self, output_is_stream: bool) -> Result<OpenInput> {
        let entries = || match &self.input {
            Input::Texts(texts) => Ok(Entries::arguments(texts.clone())),
            Input::Files(sources, fields) => Entries::open(sources.clone(), fields.clone()),
        };
        let pace = match (self.input.is_stream(), output_is_stream) {
            (false, _) => Pace::Files,
            (true, false) => Pace::Stream,
            (true, true) if self.input.is_arrow() => Pace::InteractiveBatches,
            (true, true) => Pace::Interactive,
        };
        OpenInput::new(entries, pace, self.selection)
    }
}

impl Input {
    /// The input files.
    pub(super) fn sources(&self) -> &[Source] {
        match self {
            Input::Texts(_) => &[],
            Input::Files(sources, _) => sources,
        }
    }

    /// The fields that are carried through (`--keep`).
    pub(in crate::run) fn keep(&self) -> &[KeptName] {
        match self {
            Input::Texts(_) => &[],
            Input::Files(_, fields) => &fields.keep,
        }
    }

    /// Whether reading may wait for a writer: standard input, or a named pipe.
    pub(super) fn is_stream(&self) -> bool {
        self.sources().iter().any(Source::is_stream)
    }

    /// Whether all inputs are Arrow files or streams.
    fn is_arrow(&self) -> bool {
        self.sources().iter().all(|source| source.format == Format::Arrow)
    }

    /// Whether texts are typed on a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.sources().iter().any(|source| source.path == InputPath::Stdin) && std::io::stdin().is_terminal()
    }

    /// Whether `--keep` names fields, which must be in the input.
    pub(super) fn keeps_fields(&self) -> bool {
        matches!(self, Input::Files(_, fields) if fields.keeps_id || !fields.keep.is_empty())
    }

    /// Whether rows have an id column, whatever the first records contain.
    pub(super) fn has_ids(&self) -> bool {
        let is_named = matches!(self, Input::Files(_, fields) if fields.keeps_id || fields.id.is_some());
        is_named || self.sources().iter().any(|source| source.format.has_ids())
    }
}
