//! `sconce search`: its arguments, and the options that they become.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{PossibleValue, TypedValueParser};

use super::args::{ModelArgs, TableArgs, VectorArgs, finite, temperature};
use super::choice::{OrAuto, named, named_or_auto, one_of};
use super::fields::text_fields;
use super::records::is_stdin;
use super::resolve::{self, console, embedding_model, inputs, table};
use crate::error::UsageError;
use crate::formats::TableFormat;
use crate::input::{self, Fields, Filter, InputPath};
use crate::load::ModelOptions;
use crate::model::modules::Role;
use crate::named::Named;
use crate::neighbours::Metric;
use crate::run::search::{
    CHUNK_TOKENS, Conditions, NeighbourWeights, Queries, Rescore, SearchOptions, Searched, SearchedTexts,
    TextCache, WeightKind,
};
use crate::sys::console::Console;
use crate::task::{OnLong, VectorOptions};
use crate::vectors::{SearchPaths, find_files, has_vectors, is_of_vectors, is_vector_file};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce search src \"how does resume work\"                    places in the text files below src
  sconce search . \"where are tokens counted\" --context 2      with the lines around them
  sconce search notes.md -o hits.jsonl < questions.txt         a row per place: file, line, end_line, text
  sconce search corpus.parquet \"how do lamps work\"            the ten nearest rows
  sconce search corpus.npy -k 3 --threshold 0.5 < queries.txt  at most three, with a score of 0.5 or more
  sconce search corpus.parquet --queries q.jsonl -o hits.jsonl a row per neighbour
  sconce search signs.npy --rescore corpus.npy \"a lamp\"       signs first, then f32
  sconce search corpus.parquet --query-vectors queries.npy     without a model

A model with a prompt named query embeds queries with it, unless --prompt or --prompt-name is given.";

#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    /// Directory or files of texts, or vector files of embed or other software
    ///
    /// Vector files are npy, npz, safetensors, parquet, arrow, jsonl or csv. Several, or a directory of them,
    /// such as shards, are searched as one. Any other file, directory or glob pattern names texts, whose
    /// chunks are embedded and searched: files that are not UTF-8 text, hidden files, those that .gitignore
    /// excludes and those of directories above 1 MiB are left out
    #[arg(id = "searched", value_name = "PATH")]
    pub path: PathBuf,

    /// What to search for [default: lines of standard input]
    ///
    /// More paths like PATH may come first. Without QUERY, --queries and --query-vectors, queries are read
    /// from standard input, one per line
    #[arg(id = "query_texts", value_name = "QUERY")]
    pub query: Vec<String>,

    /// File of queries
    ///
    /// The input formats are those of embed; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "query_vectors", help_heading = "Input")]
    pub queries: Option<PathBuf>,

    /// Vector file of queries; no model is loaded
    #[arg(long, value_name = "FILE", long_help, help_heading = "Input")]
    pub query_vectors: Option<PathBuf>,

    /// Take PATH as texts, even if it is a vector file or a directory of them
    #[arg(id = "are_texts", long = "texts", help_heading = "Input")]
    pub are_texts: bool,

    /// Of the texts in directories and patterns, search only those that match GLOB, for example '*.md'
    #[arg(id = "searched_include", long = "include", value_name = "GLOB", help_heading = "Input")]
    pub include: Vec<String>,

    /// Of the texts in directories and patterns, leave out files and directories that match GLOB
    #[arg(id = "searched_exclude", long = "exclude", value_name = "GLOB", help_heading = "Input")]
    pub exclude: Vec<String>,

    /// Do not respect .gitignore and .ignore files
    #[arg(id = "searched_no_ignore", long = "no-ignore", help_heading = "Input")]
    pub no_ignore: bool,

    #[arg(id = "searched_chunk", long = "chunk", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), help = chunk_help(), help_heading = "Input")]
    pub chunk: Option<u32>,

    /// Tokens at the end of a chunk that the next one repeats [default: 0]
    #[arg(id = "searched_chunk_overlap", long = "chunk-overlap", value_name = "N", help_heading = "Input")]
    pub chunk_overlap: Option<u32>,

    /// Keep the vectors of chunks in the directory DIR, as embed --cache does [default: texts/ in the cache
    /// directory, where vectors stay for thirty days after they were last used]
    #[arg(id = "texts_cache", long = "cache", value_name = "DIR", help_heading = "Input")]
    pub cache: Option<PathBuf>,

    /// Neither read nor keep vectors of chunks
    #[arg(long, conflicts_with = "texts_cache", help_heading = "Input")]
    pub no_cache: bool,

    /// Print the lines of each chunk of a text, and N lines around them
    ///
    /// Only chunks that are found are printed, each with N lines before and after it
    #[arg(id = "lines_around", long = "context", value_name = "N", help_heading = "Output")]
    pub context: Option<u32>,

    /// Column or field of the vectors [default: embedding]
    ///
    /// In npz an array, in safetensors a tensor; of PATH, and of --rescore and --query-vectors where they
    /// have it. Without embedding, the only one with vectors is taken
    #[arg(long, value_name = "NAME")]
    pub vector_field: Option<String>,

    /// Format of the queries. auto: by file extension; lines: one query per line; files: one query per file
    #[arg(id = "queries_format", long = "input-format", value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<input::Format>(), help_heading = "Input")]
    pub input_format: OrAuto<input::Format>,

    /// Field or column of the query, in jsonl, csv, tsv, parquet and arrow, or several, separated by commas,
    /// whose values are joined [default: text]
    #[arg(
        id = "query_field",
        long = "text-field",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Input"
    )]
    pub text_field: Vec<String>,

    /// What to put between the values of several fields of a query that are not blank [default: a newline]
    #[arg(long, value_name = "SEPARATOR", allow_hyphen_values = true, help_heading = "Input")]
    pub text_separator: Option<String>,

    /// Field or column of the query's id [default: id, if the input has one]
    #[arg(id = "query_id_field", long = "id-field", value_name = "NAME", help_heading = "Input")]
    pub id_field: Option<String>,

    /// Maximum neighbours per query
    #[arg(short = 'k', long = "top-k", value_name = "K", default_value = "10", value_parser = clap::value_parser!(u32).range(1..), long_help, help_heading = "Neighbours")]
    pub k: u32,

    /// Minimum score of a neighbour
    #[arg(id = "least_score", long = "threshold", value_name = "SCORE", value_parser = finite, allow_negative_numbers = true, long_help, help_heading = "Neighbours")]
    pub threshold: Option<f64>,

    /// Search only rows that meet conditions on columns
    ///
    /// For example 'status = "open" and year >= 2020': NAME OP VALUE with = != < <= > >=, joined by and, or
    /// with --where for each. A number is compared with numbers, dates and times with dates and times,
    /// another value with text; NAME.MEMBER is a member of a struct; a quote in quotes is doubled; null meets
    /// no condition
    #[arg(long = "where", value_name = "CONDITIONS", value_parser = str::parse::<Conditions>, help_heading = "Neighbours")]
    pub conditions: Vec<Conditions>,

    /// cosine, dot or euclidean [default: the model's similarity function]
    ///
    /// Score of two vectors; euclidean is the negative distance. Equal scores rank by row
    #[arg(id = "search_metric", long = "metric", value_name = "METRIC", value_parser = named::<Metric>(), help_heading = "Neighbours")]
    pub metric: Option<Metric>,

    /// The same vectors in f32, to rank the best candidates again
    ///
    /// PATH has int8 or binary vectors. FILE may also have f16
    #[arg(long, value_name = "FILE", help_heading = "Neighbours")]
    pub rescore: Option<PathBuf>,

    /// Candidates per neighbour that --rescore ranks again
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..), requires = "rescore", help_heading = "Neighbours")]
    pub rescore_multiplier: u32,

    /// Weights of the neighbours: softmax or uniform
    ///
    /// The weights of the neighbours of a query sum to 1. softmax: exp(score / temperature)
    #[arg(long, value_name = "KIND", value_parser = named::<WeightKind>(), help_heading = "Neighbours")]
    pub weights: Option<WeightKind>,

    /// Temperature of --weights softmax [default: 1]
    #[arg(long, value_name = "T", value_parser = temperature, requires = "weights", help_heading = "Neighbours")]
    pub temperature: Option<f64>,

    /// Write the weighted mean of this numeric column over the neighbours, one row per query. Rows without a
    /// value are left out
    #[arg(long, value_name = "NAME", requires = "weights", help_heading = "Neighbours")]
    pub value_field: Option<String>,

    /// Columns to show [default: all]
    ///
    /// Columns of PATH, separated by commas or spaces
    #[arg(id = "shown_columns", long = "keep", value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = "Neighbours")]
    pub keep: Option<Vec<String>>,

    /// Write the text of the query in each row, as query_text
    ///
    /// sconce rerank --query-field query_text ranks the rows of each query again
    #[arg(long, conflicts_with = "query_vectors", help_heading = "Output")]
    pub query_text: bool,

    #[command(flatten)]
    pub table: TableArgs,

    /// What to do with queries longer than the limit. error: stop; truncate: take their first tokens; mean:
    /// encode the query in chunks and take the mean of their vectors, weighted by tokens
    #[arg(id = "on_long_query", long = "on-long", value_name = "ACTION", default_value = "error", value_parser = on_long_query(), help_heading = "Input")]
    pub on_long: OnLong,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `search`.
///
/// # Errors
/// As [`model`]; [`UsageError`] if the queries cannot be found, or an option contradicts another.
pub(super) fn options(mut args: SearchArgs) -> Result<SearchOptions> {
    let weights = match (args.weights, args.temperature) {
        (Some(WeightKind::Uniform), Some(_)) => {
            bail!(UsageError(
                "--temperature needs --weights softmax, found --weights uniform; remove one of them".into()
            ))
        }
        (Some(WeightKind::Softmax), temperature) => {
            Some(NeighbourWeights::Softmax { temperature: temperature.unwrap_or(1.0) })
        }
        (Some(WeightKind::Uniform), None) => Some(NeighbourWeights::Uniform),
        (None, _) => None,
    };
    let console = console(&args.model.verbosity);
    let (format, output) = table(&args.table)?;
    if args.query_text && format == TableFormat::Text {
        bail!(UsageError(
            "--query-text writes a column, which a page for people does not have; pass --output-format jsonl, csv or parquet"
                .into()
        ));
    }
    let (first, more) = with_vector_globs(&args)?;
    let (found, query) = find_files(&first, more, args.are_texts, |text| !globbed(text).is_empty())?;
    args.query = query;
    hint_at_files(&args, &found, &console);
    let searched = match found {
        SearchPaths::Vectors(paths) => {
            refuse_text_options(&args)?;
            Searched::Vectors(paths)
        }
        SearchPaths::Texts(paths) => Searched::Texts(texts(&args, &paths, format, &console)?),
    };
    let has_prompt = args.vectors.prompt.is_some() || args.vectors.prompt_name.is_some();
    // As the queries are encoded: in the role of queries, unless another role or a prompt is chosen.
    let only_queries = args.vectors.role.map_or(!has_prompt, |role| role == Role::Query);
    Ok(SearchOptions {
        queries: queries(&args)?,
        searched,
        vector_field: args.vector_field,
        k: args.k as usize,
        conditions: args.conditions.into_iter().collect(),
        threshold: args.threshold.map(|threshold| threshold as f32),
        metric: args.metric,
        rescore: args.rescore.map(|path| Rescore { path, multiplier: args.rescore_multiplier as usize }),
        weights,
        value_field: args.value_field,
        keep: args.keep,
        query_text: args.query_text,
        format,
        output,
        model: ModelOptions { only_queries, ..embedding_model(&args.model, &args.vectors)? },
        query_vectors: VectorOptions { on_long: args.on_long, ..resolve::vectors(&args.vectors) },
        console,
    })
}

/// The files that match a glob; none if the text is none.
fn globbed(text: &str) -> Vec<PathBuf> {
    let path = PathBuf::from(text);
    let files = input::expand_globs(std::slice::from_ref(&path)).unwrap_or_default();
    if files == [path] { Vec::new() } else { files }
}

/// The path and the other arguments, in which globs that match nothing but vector files are these files.
///
/// # Errors
/// [`UsageError`] if the path is none, but an argument after it is.
fn with_vector_globs(args: &SearchArgs) -> Result<(PathBuf, Vec<String>)> {
    let first = args.path.to_string_lossy().into_owned();
    let expand = |text: &String| {
        let files = globbed(text);
        let are_vectors = !args.are_texts && files.iter().all(|path| is_of_vectors(path));
        let vectors = files.iter().filter(|path| are_vectors && is_vector_file(path));
        let names: Vec<String> = vectors.filter_map(|path| path.to_str().map(str::to_owned)).collect();
        if names.is_empty() { vec![text.clone()] } else { names }
    };
    let mut arguments: Vec<String> = expand(&first);
    arguments.extend(args.query.iter().flat_map(expand));
    if !args.path.exists()
        && globbed(&first).is_empty()
        && let Some(path) = args.query.iter().find(|text| Path::new(text).exists())
    {
        bail!(UsageError(format!(
            "{first} is not a file or directory; write the path before the query: sconce search {path} {first:?}"
        )));
    }
    // A path that is not UTF-8 is no glob.
    let rest = arguments.split_off(1);
    let first = if arguments[0] == first { args.path.clone() } else { arguments.remove(0).into() };
    Ok((first, rest))
}

/// The texts that `paths` name.
fn texts(
    args: &SearchArgs,
    paths: &[PathBuf],
    format: TableFormat,
    console: &Console,
) -> Result<SearchedTexts> {
    let name = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let of_vectors = [
        ("--rescore", args.rescore.is_some()),
        ("--vector-field", args.vector_field.is_some() && args.query_vectors.is_none()),
    ];
    if let Some((option, _)) = of_vectors.into_iter().find(|(_, is_given)| *is_given) {
        bail!(UsageError(format!("{option} needs vectors, but {name} is searched as texts; remove it")));
    }
    if args.context.is_some() && (format != TableFormat::Text || args.value_field.is_some()) {
        bail!(UsageError(
            "--context prints lines with places, which only --output-format text without --value-field has; remove one of them"
                .into()
        ));
    }
    let filter = Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        no_ignore: args.no_ignore,
        is_lenient: true,
    };
    let inputs = input::find(paths, Some(input::Format::Files), &filter);
    let mut sources = inputs.map_err(|error| UsageError(error.to_string().replace("--input ", "")))?.sources;
    for path in paths.iter().filter(|path| !args.are_texts && path.is_dir() && has_vectors(path)) {
        console.note(format!(
            "{} has vector files beside other files, and is searched as texts; pass the vector files to search those",
            path.display()
        ));
    }
    if paths.len() > 1 {
        // They may name a file twice, or directories one of which holds another.
        let mut seen = HashSet::new();
        sources.retain(|source| seen.insert(identity(&source.path)));
    }
    Ok(SearchedTexts {
        name,
        sources,
        chunk_tokens: args.chunk.map(|tokens| tokens as usize),
        chunk_overlap: args.chunk_overlap.unwrap_or(0) as usize,
        cache: match (&args.cache, args.no_cache) {
            (_, true) => TextCache::None,
            (Some(directory), _) => TextCache::Directory(directory.clone()),
            (None, _) => TextCache::OfUser,
        },
        context: args.context.map(|lines| lines as usize),
    })
}

/// What is the same for all names of a file.
fn identity(path: &InputPath) -> PathBuf {
    match path {
        InputPath::File(path) => path.canonicalize().unwrap_or_else(|_| path.clone()),
        InputPath::Stdin => path.to_string().into(),
    }
}

/// Refuses options that only apply to texts.
fn refuse_text_options(args: &SearchArgs) -> Result<()> {
    let given = [
        ("--include", !args.include.is_empty()),
        ("--exclude", !args.exclude.is_empty()),
        ("--no-ignore", args.no_ignore),
        ("--chunk", args.chunk.is_some()),
        ("--chunk-overlap", args.chunk_overlap.is_some()),
        ("--cache", args.cache.is_some()),
        ("--no-cache", args.no_cache),
        ("--context", args.context.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        bail!(UsageError(format!(
            "{option} needs texts, but {} is searched as vectors; remove it, or pass --texts",
            args.path.display()
        )));
    }
    Ok(())
}

fn chunk_help() -> String {
    format!(
        "Maximum tokens of a chunk of a text, including special tokens and the prompt [default: {CHUNK_TOKENS}, or the limit of the \
         model if that is lower]"
    )
}

/// Prints a hint if a query is the path of a file, or if what may be the only query is taken as a path.
fn hint_at_files(args: &SearchArgs, found: &SearchPaths, console: &Console) {
    if let Some(name) = args.query.iter().find(|text| Path::new(text).is_file()) {
        console.note(format!(
            "hint: {name:?} is taken as a query; pass --queries {name} to search for the texts in the file"
        ));
    } else if let [before @ .., _] = &args.query[..]
        && let Some(name) = before.iter().find(|text| text.contains(['/', '.', '*']) && !text.contains(' '))
    {
        console
            .note(format!("hint: there is no file {name}, so that it is taken as a query; check the path"));
    }
    let has_queries = !args.query.is_empty() || args.queries.is_some() || args.query_vectors.is_some();
    let (SearchPaths::Texts(paths) | SearchPaths::Vectors(paths)) = found;
    if let [_, .., last] = &paths[..]
        && !has_queries
        && std::io::stdin().is_terminal()
    {
        console.note(format!(
            "hint: {} exists, and is searched; to search for the word, write it as a line of standard input",
            last.display()
        ));
    }
}

/// The queries of `search`.
fn queries(args: &SearchArgs) -> Result<Queries> {
    // Not a conflict of clap's, to which vector files after the first are queries, too.
    let files = [("--queries", &args.queries), ("--query-vectors", &args.query_vectors)];
    if let (Some(text), Some((option, _))) =
        (args.query.first(), files.into_iter().find(|(_, file)| file.is_some()))
    {
        bail!(UsageError(format!(
            "{text:?} is not a file but a query, and {option} reads the queries from a file; check the path, or remove \
             one of the two"
        )));
    }
    if let Some(path) = &args.query_vectors {
        return Ok(Queries::Vectors(path.clone()));
    }
    let options = [
        ("--input-format", args.input_format.0.is_some()),
        ("--text-field", !args.text_field.is_empty()),
        ("--text-separator", args.text_separator.is_some()),
        ("--id-field", args.id_field.is_some()),
    ];
    if !args.query.is_empty() {
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            bail!(UsageError(format!("{option} needs --queries FILE; remove it, or the QUERY arguments")));
        }
        return Ok(Queries::Texts(args.query.clone()));
    }
    let path = args.queries.clone().unwrap_or_else(|| "-".into());
    if is_stdin(&path) && std::io::stdin().is_terminal() {
        console(&args.model.verbosity)
            .note("reading queries from the terminal, one per line; press Ctrl-D to end");
    }
    let (paths, format) = (std::slice::from_ref(&path), args.input_format.0);
    let sources = inputs(paths, format, &Filter::default(), "--queries", &args.model.verbosity)?;
    let text = text_fields(&args.text_field, args.text_separator.as_deref())?;
    Ok(Queries::Files(sources, Fields { text, id: args.id_field.clone(), ..Fields::default() }))
}

/// A parser for the values of `--on-long` of queries, each of which has a result.
fn on_long_query() -> impl TypedValueParser<Value = OnLong> {
    let values = [OnLong::Error, OnLong::Truncate, OnLong::Mean];
    one_of(values.map(|value| (PossibleValue::new(value.name()), value)).into())
}
