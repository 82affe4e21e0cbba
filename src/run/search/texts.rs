//! The texts of files as vectors in memory: those of their chunks, which are embedded, or taken from a cache
//! if an earlier search has embedded them.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::SearchOptions;
use super::skipped::{Reason, Skipped};
use crate::engine::{Engine, MemoryBudget, RowCache, TaskRow};
use crate::error::UsageError;
use crate::formats::{Kind, sniff};
use crate::input::{Entries, Fields, InputPath, ReadLimit, Source};
use crate::job::{
    EncodedRecord, FileDigests, Identity, OpenInput, Pace, RunIdentity, Selection, encode_records,
};
use crate::load::{Loaded, ModelOptions, load_embedding_or_sparse};
use crate::model::modules::Role;
use crate::rows::columns::{END_LINE, FILE, LINE};
use crate::rows::{
    ColumnType, Content, FieldValue, FileMetadata, KeptColumn, Span, StoredVector, VectorValues,
};
use crate::run::embed;
use crate::run::records::resolved;
use crate::store::{Target, digest_cache};
use crate::sys::console::{Console, counted, thousands};
use crate::sys::regular_file::is_same_file;
use crate::task::precision::warn_of_int8;
use crate::task::{Embedder, OnLong, TextEncoder, VectorOptions, workload};
use crate::text::Chunking;
use crate::vectors::{RowsInMemory, VectorFile};

/// Maximum tokens of a chunk, unless the user chooses another number or the model has a lower limit.
pub const CHUNK_TOKENS: usize = 128;
/// Maximum size of a file that is found in a directory, in bytes: people rarely write larger ones.
const MAX_FOUND_BYTES: u64 = 1 << 20;
/// Bytes at the start of a file that show whether it is text.
const START_BYTES: u64 = 8 << 10;
/// The folder of the rows in the cache directory of the user.
const CACHE_FOLDER: &str = "texts";
/// The column of the text of a chunk.
const TEXT: &str = "text";
/// The columns of the rows in memory, with their types.
pub(super) const COLUMNS: [(&str, ColumnType); 4] = [
    (FILE, ColumnType::Text),
    (LINE, ColumnType::Integer),
    (END_LINE, ColumnType::Integer),
    (TEXT, ColumnType::Text),
];

/// The texts that are searched.
pub struct SearchedTexts {
    /// What the user calls them.
    pub name: String,
    /// The files, one text each.
    pub sources: Vec<Source>,
    /// Maximum tokens of a chunk. `None`: [`CHUNK_TOKENS`], or the limit of the model if that is lower.
    pub chunk_tokens: Option<usize>,
    /// Maximum tokens that a chunk repeats of the one before it.
    pub chunk_overlap: usize,
    /// Where the vectors of chunks are kept.
    pub cache: TextCache,
    /// Lines before and after each chunk that are printed with it. `None`: only its first words are printed.
    pub context: Option<usize>,
}

/// Where the vectors of chunks are kept from one search to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextCache {
    /// Nowhere.
    None,
    /// In the cache directory of the user, which rows leave when they are not used.
    OfUser,
    /// In this directory, as `sconce embed --cache` keeps them.
    Directory(PathBuf),
}

/// Embeds the chunks of all texts.
pub(super) fn embed(options: &SearchOptions, texts: &SearchedTexts) -> Result<VectorFile> {
    let console = &options.console;
    let mut skipped = Skipped::default();
    let sources = readable(texts, &options.output, &mut skipped);
    let (engine, metadata) = engine(options, texts)?;
    let encoder = engine.task();
    let columns = COLUMNS.map(|(name, column_type)| KeptColumn::new(name, column_type));
    let mut rows = RowsInMemory::new(encoder.representation(), encoder.dimensions(), columns.into());
    let fields = Fields { keep: vec![TEXT.into()], ..Fields::default() };
    let selection = Selection { skip_empty: true, ..Selection::default() };
    let input = OpenInput::new(|| Entries::open(sources.clone(), fields.clone()), Pace::Files, selection)?;
    let limit = engine.budget().reading_bytes.map_or_else(ReadLimit::default, ReadLimit::new);
    encode_records(&engine, input.read(limit, None), console, |location, encoded| {
        match encoded {
            EncodedRecord::Failed(reason) => skipped.add(Reason::NotText, format!("{location} {reason}")),
            EncodedRecord::Rows(chunks, chunk_texts) => {
                for (chunk, text) in chunks.iter().zip(chunk_texts) {
                    match row(&location.source, chunk, text) {
                        Some((vectors, fields)) => rows.push(vectors, fields),
                        None => skipped.add(
                            Reason::NotFinite,
                            format!("{location} has a chunk whose vector is not finite"),
                        ),
                    }
                }
            }
        }
        Ok(())
    })?;
    skipped.report(console);
    console.detail(format!(
        "{}, {} of them from the cache",
        counted(rows.len() as u64, "chunk"),
        thousands(engine.cached())
    ));
    if rows.is_empty() {
        bail!("{} has no text to search; pass files or directories of texts", texts.name);
    }
    Ok(VectorFile::in_memory(&texts.name, rows, metadata))
}

/// The files that can be texts. The output of an earlier search is none.
fn readable(texts: &SearchedTexts, output: &Target, skipped: &mut Skipped) -> Vec<Source> {
    let is_readable = |source: &&Source| {
        let InputPath::File(path) = &source.path else { return true };
        if matches!(output, Target::File(output) if is_same_file(path, output)) {
            return false;
        }
        // Compressed files of a directory are rarely texts.
        if source.is_lenient && source.compression.is_some() {
            skipped.add(Reason::NotText, format!("{} is compressed", source.path));
            return false;
        }
        // A file that cannot be read is skipped with a reason when it is read as a text.
        let Ok(file) = File::open(path) else { return true };
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        if source.is_lenient && bytes > MAX_FOUND_BYTES {
            skipped.add(Reason::TooLarge, format!("{} has {bytes} bytes", source.path));
            return false;
        }
        let mut start = Vec::new();
        let is_read = file.take(START_BYTES).read_to_end(&mut start).is_ok();
        let may_have_zeros = source.compression.is_some() || matches!(sniff(&start), Some(Kind::Utf16(_)));
        if is_read && start.contains(&0) && !may_have_zeros {
            skipped.add(Reason::NotText, format!("{} is binary data", source.path));
            return false;
        }
        true
    };
    texts.sources.iter().filter(is_readable).cloned().collect()
}

/// The engine that embeds chunks, and how it does so.
fn engine(options: &SearchOptions, texts: &SearchedTexts) -> Result<(Engine<TextEncoder>, FileMetadata)> {
    let model = ModelOptions { only_queries: false, ..options.model.clone() };
    // The model is loaded for the queries, too, and what there is to say about it is said then.
    let console = Console::silent();
    let loaded = load_embedding_or_sparse(&model, &console)?;
    warn_of_int8(&model, &loaded, &options.console);
    let vectors = document_vectors(options, texts, &loaded)?;
    let mut resolved = resolved::of_model(&model, &loaded);
    let files = loaded.origin.files.clone();
    let encoder = TextEncoder::new(loaded, &vectors, &console)?;
    resolved.extend(resolved::of_task(&encoder));
    resolved.extend(embed::resolved(&encoder));
    let cache = open_cache(&texts.cache, &resolved.identity(), files, &options.console)?;
    let budget = MemoryBudget::new(&workload(&encoder, None), model.max_memory)?;
    Ok((Engine::new(Arc::new(encoder), budget, cache), resolved.metadata()))
}

/// How documents become vectors: in chunks, with the prompt of the model for documents if it has prompts for
/// roles.
fn document_vectors(
    options: &SearchOptions,
    texts: &SearchedTexts,
    loaded: &Loaded,
) -> Result<VectorOptions> {
    if loaded.steps.pooling.is_sparse() {
        bail!(UsageError(format!(
            "{} gives sparse vectors, but texts are searched by dense ones; choose another --model, or embed the texts and search \
             the file",
            options.model.source.model
        )));
    }
    let tokens = match texts.chunk_tokens {
        Some(tokens) => tokens,
        None => CHUNK_TOKENS.min(Embedder::document_limit(loaded)?),
    };
    let overlap = texts.chunk_overlap;
    if overlap >= tokens {
        bail!(UsageError(format!("--chunk-overlap {overlap} must be less than --chunk {tokens}")));
    }
    let prompts = &loaded.modules.prompts;
    let has_prompts = [Role::Query, Role::Document].iter().any(|role| !prompts.of_role(*role).1.is_empty());
    let has_roles = has_prompts || loaded.role_lengths().is_some() || loaded.modules.multi_vector.is_some();
    Ok(VectorOptions {
        role: has_roles.then_some(Role::Document),
        on_long: OnLong::Truncate,
        prompt: None,
        chunking: Some(Chunking { tokens, overlap, late: false }),
        ..options.query_vectors.clone()
    })
}

/// Opens the cache of rows that depend on these choices and on the files of the model.
fn open_cache(
    cache: &TextCache,
    choices: &RunIdentity,
    files: Vec<PathBuf>,
    console: &Console,
) -> Result<Option<RowCache>> {
    let directory = match cache {
        TextCache::None => None,
        TextCache::OfUser => digest_cache::cache_directory().map(|cache| cache.join(CACHE_FOLDER)),
        TextCache::Directory(directory) => Some(directory.clone()),
    };
    let Some(directory) = directory else { return Ok(None) };
    let files = FileDigests::start(files);
    let mut identity = Identity { of_input: RunIdentity::new(), choices: choices.clone(), files };
    let identity = identity.digest_of_rows()?;
    if *cache != TextCache::OfUser {
        return RowCache::open(&directory, identity).map(Some);
    }
    // Without the cache of the user, a search only takes longer.
    let opened = RowCache::open_bounded(&directory, identity);
    Ok(opened.inspect_err(|error| console.detail(format!("without a cache: {error}"))).ok())
}

/// The vectors and the columns of a chunk. `None` if a vector has values that are not finite.
fn row<'a>(file: &str, chunk: &'a TaskRow, text: &FieldValue) -> Option<(&'a [f32], Vec<FieldValue>)> {
    let Content::Vector(StoredVector { values: VectorValues::F32(vectors), .. }) = &chunk.content else {
        return None;
    };
    let Span { line, end_line, .. } = chunk.span?;
    let [file, line, end_line] = [file.into(), line.into(), end_line.into()].map(FieldValue::Json);
    chunk.is_finite.then(|| (&vectors[..], vec![file, line, end_line, text.clone()]))
}
