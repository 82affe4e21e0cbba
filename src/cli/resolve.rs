//! From what was typed to what was meant.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::{
    DEFAULT_MODEL, DownloadArgs, EmbedArgs, HubArgs, InputFormat, ModelArgs, OutputFormat, PoolingMode,
    TalkArgs, TruncationSide,
};
use crate::input::{self, Fields, Place};
use crate::model::Source;
use crate::nn::{Pool, Pooling};
use crate::output::{Format, Target};
use crate::run::embed::{EmbedOptions, Input};
use crate::run::{Choices, Console, ModelOptions, PromptChoice, Verbosity, WrongUsage};

/// Options of `embed`.
///
/// # Errors
/// If options contradict each other: wrong usage.
pub fn embed(args: EmbedArgs) -> Result<EmbedOptions> {
    let max_length = args.max_length.map(|n| n as usize);
    let format = format(args.output_format, args.output.as_deref())?;
    if args.pooling == PoolingMode::None && format != Format::Jsonl {
        let name = format!("{format:?}").to_lowercase();
        bail!(WrongUsage(format!(
            "{name} has one vector a row; write --pooling none with --output-format jsonl"
        )));
    }
    Ok(EmbedOptions {
        model: ModelOptions {
            max_length,
            cut_left: args.truncation_side.map(|side| side == TruncationSide::Left),
            pooling: pooling(args.pooling),
            ..model(&args.model)
        },
        input: input(&args)?,
        format,
        output: match args.output {
            Some(path) if !is_stdout(&path) => Target::File(path),
            _ => Target::Stdout,
        },
        choices: Choices {
            normalize: match (args.normalize, args.no_normalize) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            },
            dimensions: args.dimensions.map(|n| n as usize),
            prompt: args.prompt.map(PromptChoice::Text).or(args.prompt_name.map(PromptChoice::Name)),
            batch_tokens: args.batch_tokens as usize,
        },
        console: console(&args.model.talk),
    })
}

/// Options that say which model.
pub fn model(args: &ModelArgs) -> ModelOptions {
    ModelOptions {
        source: source(args.source.model.clone(), &args.source.hub, &args.talk),
        config: args.config.clone(),
        random_weights: args.random_weights,
        tokenizer: args.tokenizer.clone(),
        max_length: None,
        cut_left: None,
        pooling: None,
    }
}

/// How tokens become a vector, unless the model's files are to say it.
fn pooling(mode: PoolingMode) -> Option<Pooling> {
    let pool = match mode {
        PoolingMode::Auto => return None,
        PoolingMode::None => return Some(Pooling::None),
        PoolingMode::Cls => Pool::Cls,
        PoolingMode::Mean => Pool::Mean,
        PoolingMode::Max => Pool::Max,
        PoolingMode::MeanSqrtLen => Pool::MeanSqrtLen,
        PoolingMode::WeightedMean => Pool::WeightedMean,
        PoolingMode::Last => Pool::Last,
        PoolingMode::Pooler => Pool::Pooler,
    };
    Some(Pooling::Text(vec![pool]))
}

/// What to download.
pub fn download(args: DownloadArgs) -> Source {
    source(args.model, &args.hub, &args.talk)
}

/// How much to say on standard error.
pub fn console(talk: &TalkArgs) -> Console {
    let verbosity = match (talk.quiet, talk.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    Console::new(verbosity, !talk.no_progress)
}

fn source(model: String, hub: &HubArgs, talk: &TalkArgs) -> Source {
    // What Hugging Face's own tools take for a yes; clap would refuse any other value.
    let yes =
        |name| env::var(name).is_ok_and(|v| matches!(v.to_lowercase().as_str(), "1" | "on" | "yes" | "true"));
    Source {
        // A variable that is set to nothing is as good as none.
        model: if model.is_empty() { DEFAULT_MODEL.into() } else { model },
        revision: hub.revision.clone(),
        offline: hub.offline || yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
        progress: console(talk).progress(),
    }
}

fn input(args: &EmbedArgs) -> Result<Input> {
    let EmbedArgs { texts, input: files, text_field, pair_field, id_field, .. } = args;
    let stdin = [PathBuf::from("-")];
    let paths = match (files.is_empty(), texts.is_empty()) {
        (true, false) => &[][..],
        (true, true) => &stdin,
        (false, _) => files,
    };
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!(WrongUsage("--input names standard input twice; it can be read once".into()));
    }
    let files: Vec<_> = paths
        .iter()
        .map(|path| Ok((place(path), input_format(path, args.input_format)?)))
        .collect::<Result<_>>()?;
    // A name for a field that no input has would do nothing.
    let named = [("text", text_field), ("pair", pair_field), ("id", id_field)];
    if let Some((what, _)) = named.iter().find(|(_, name)| name.is_some())
        && files.iter().all(|(_, format)| *format == input::Format::Lines)
    {
        bail!(WrongUsage(format!(
            "--{what}-field is for jsonl, csv and tsv; pass --input FILE, and --input-format where its name does not \
             say it"
        )));
    }
    if !texts.is_empty() {
        return Ok(Input::Texts(texts.clone()));
    }
    let text = text_field.clone().unwrap_or_else(|| "text".into());
    Ok(Input::Files(files, Fields { text, pair: pair_field.clone(), id: id_field.clone() }))
}

fn place(path: &Path) -> Place {
    if is_stdin(path) { Place::Stdin } else { Place::File(path.to_owned()) }
}

/// How texts stand in a file, by what was typed or by its name.
fn input_format(path: &Path, format: InputFormat) -> Result<input::Format> {
    Ok(match format {
        InputFormat::Lines => input::Format::Lines,
        InputFormat::Jsonl => input::Format::Jsonl,
        InputFormat::Csv => input::Format::Csv,
        InputFormat::Tsv => input::Format::Tsv,
        InputFormat::Auto => match suffix(path).as_str() {
            "jsonl" | "ndjson" => input::Format::Jsonl,
            "csv" => input::Format::Csv,
            "tsv" => input::Format::Tsv,
            suffix @ ("json" | "parquet" | "arrow" | "feather" | "gz" | "zst") => bail!(WrongUsage(format!(
                "--input {}: .{suffix} files are not supported yet; --input-format says how texts stand in one",
                path.display()
            ))),
            _ => input::Format::Lines,
        },
    })
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn format(format: OutputFormat, output: Option<&Path>) -> Result<Format> {
    Ok(match format {
        OutputFormat::Jsonl => Format::Jsonl,
        OutputFormat::Csv => Format::Csv,
        OutputFormat::Npy => Format::Npy,
        OutputFormat::Auto => match output.filter(|path| !is_stdout(path)) {
            None => Format::Jsonl,
            Some(path) => match suffix(path).as_str() {
                "csv" => Format::Csv,
                "npy" => Format::Npy,
                "jsonl" | "ndjson" | "" => Format::Jsonl,
                other => bail!(WrongUsage(format!(
                    "--output {}: the suffix .{other} names no format that is supported; pass --output-format jsonl, csv or npy",
                    path.display()
                ))),
            },
        },
    })
}

/// Opening the device anew would write over what already lies in the file behind it.
fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

fn suffix(path: &Path) -> String {
    path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase()).unwrap_or_default()
}
