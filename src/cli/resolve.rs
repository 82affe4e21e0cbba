//! From what was typed to what was meant.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::{
    ComputeType, DEFAULT_MODEL, DownloadArgs, EmbedArgs, HubArgs, InputFormat, LongText, ModelArgs,
    OutputDtype, OutputFormat, PoolingMode, TalkArgs, TruncationSide, Unreadable,
};
use crate::input::{self, Fields, Filter};
use crate::model::Source;
use crate::nn::{Isa, Pool, Pooling, Precision};
use crate::output::{Dtype, Format, Target};
use crate::run::embed::{Begin, EmbedOptions, Input, Selection};
use crate::run::{Choices, Chunking, Console, ModelOptions, OnLong, PromptChoice, Verbosity, WrongUsage};

/// Options of `embed`.
///
/// # Errors
/// If options contradict each other: wrong usage.
pub fn embed(args: EmbedArgs) -> Result<EmbedOptions> {
    let max_length = args.max_length.map(|n| n as usize);
    check_long(&args)?;
    let chunking = chunking(&args)?;
    Ok(EmbedOptions {
        model: ModelOptions {
            max_length,
            cut_left: args.truncation_side.map(|side| side == TruncationSide::Left),
            pooling: pooling(args.pooling),
            max_memory: args.max_memory.map(|size| size.as_u64()),
            ..model(&args.model)?
        },
        input: input(&args)?,
        format: format(args.output_format, args.output.as_deref())?,
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
            dtype: match args.output_dtype {
                OutputDtype::F32 => Dtype::F32,
                OutputDtype::F16 => Dtype::F16,
                OutputDtype::Int8 => Dtype::Int8,
                OutputDtype::Binary => Dtype::Binary,
            },
            on_long: match args.on_long {
                LongText::Truncate => OnLong::Truncate,
                LongText::Error => OnLong::Error,
                LongText::Skip => OnLong::Skip,
                LongText::Mean | LongText::Chunk => OnLong::Mean,
            },
            chunking,
            batch_tokens: args.batch_tokens.map(|n| n as usize),
        },
        skip_unreadable: args.on_error == Unreadable::Skip,
        begin: match (args.resume, args.restart) {
            (true, _) => Begin::Resume,
            (_, true) => Begin::Restart,
            _ => Begin::Fresh,
        },
        selection: Selection { skip_empty: args.skip_empty, limit: args.limit },
        // Whoever names the format knows what the texts are.
        hints: args.input_format == InputFormat::Auto,
        stats: args.stats,
        console: console(&args.model.talk),
    })
}

/// Options that say which model.
///
/// # Errors
/// If the environment asks for instructions that the processor has not: wrong usage.
pub fn model(args: &ModelArgs) -> Result<ModelOptions> {
    Isa::check().map_err(WrongUsage)?;
    Ok(ModelOptions {
        config: args.config.clone(),
        random_weights: args.random_weights,
        tokenizer: args.tokenizer.clone(),
        device: args.device.clone(),
        precision: match args.dtype {
            ComputeType::F32 => Precision::F32,
            ComputeType::Bf16x3 => Precision::Bf16x3,
            ComputeType::Bf16 => Precision::Bf16,
            ComputeType::F16 => Precision::F16,
            ComputeType::Int8 => Precision::Int8,
        },
        ..ModelOptions::of(source(args.source.model.clone(), &args.source.hub, &args.talk))
    })
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
    let EmbedArgs { texts, input: files, text_field, pair_field, id_field, keep, .. } = args;
    let stdin = [PathBuf::from("-")];
    // Among others it is a text.
    let texts = if matches!(&texts[..], [text] if text == "-") { &[][..] } else { &texts[..] };
    let paths = match (files.is_empty(), texts.is_empty()) {
        (true, false) => &[][..],
        (true, true) => &stdin,
        (false, _) => files,
    };
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!(WrongUsage("--input names standard input twice; it can be read once".into()));
    }
    let filter = Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        no_ignore: args.no_ignore,
        is_lenient: args.on_error == Unreadable::Skip,
    };
    let sources = input::filtered_sources(paths, given_format(args.input_format), &filter);
    let sources = sources.map_err(|error| WrongUsage(error.to_string()))?;
    // A name for a field that no input has would do nothing.
    let named = [("--text-field", text_field), ("--pair-field", pair_field), ("--id-field", id_field)];
    let named = named.into_iter().find(|(_, name)| name.is_some()).map(|(option, _)| option);
    // A line has its text, its file and its number.
    let has_own = |name: &String| texts.is_empty() && Fields::is_own(name);
    if let Some(option) = named.or((!keep.iter().all(has_own)).then_some("--keep"))
        && !sources.iter().any(|source| source.format.has_fields())
    {
        bail!(WrongUsage(format!(
            "{option} is for jsonl, csv, tsv, parquet and arrow; pass --input FILE, and --input-format where its name \
             does not say it"
        )));
    }
    if !texts.is_empty() {
        if args.input_format != InputFormat::Auto {
            bail!(WrongUsage("--input-format is for files; pass --input FILE, or leave it out".into()));
        }
        return Ok(Input::Texts(texts.to_vec()));
    }
    let text = text_field.clone().unwrap_or_else(|| "text".into());
    let fields = Fields { text, pair: pair_field.clone(), id: id_field.clone(), keep: keep.clone() };
    Ok(Input::Files(sources, fields))
}

/// How texts stand in every input, unless their names are to say it.
fn given_format(format: InputFormat) -> Option<input::Format> {
    Some(match format {
        InputFormat::Auto => return None,
        InputFormat::Lines => input::Format::Lines,
        InputFormat::Jsonl => input::Format::Jsonl,
        InputFormat::Csv => input::Format::Csv,
        InputFormat::Tsv => input::Format::Tsv,
        InputFormat::Parquet => input::Format::Parquet,
        InputFormat::Arrow => input::Format::Arrow,
        InputFormat::Files => input::Format::Files,
    })
}

/// Options for long texts that would do nothing, or would do it to pairs, which have no windows.
fn check_long(args: &EmbedArgs) -> Result<()> {
    if args.truncation_side.is_some() && args.on_long != LongText::Truncate {
        bail!(WrongUsage("--truncation-side is for --on-long truncate; leave one of them out".into()));
    }
    if args.pair_field.is_some() && matches!(args.on_long, LongText::Mean | LongText::Chunk) {
        bail!(WrongUsage("--on-long mean is not for pairs; pass --on-long truncate, skip or error".into()));
    }
    if args.on_long == LongText::Chunk {
        console(&args.model.talk).note("--on-long chunk is now called --on-long mean, and does the same");
    }
    Ok(())
}

/// How texts are cut into chunks, unless options contradict that or would do nothing.
fn chunking(args: &EmbedArgs) -> Result<Option<Chunking>> {
    let refuse = |reason: String| -> Result<Option<Chunking>> { bail!(WrongUsage(reason)) };
    let overlap = args.chunk_overlap.unwrap_or(0);
    let Some(tokens) = args.chunk else {
        let alone = [("--chunk-overlap", args.chunk_overlap.is_some()), ("--chunk-late", args.chunk_late)];
        return match alone.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => refuse(format!("{option} is for chunks; pass --chunk TOKENS, too")),
            None => Ok(None),
        };
    };
    if overlap >= tokens {
        return refuse(format!("--chunk-overlap {overlap} has to be less than --chunk {tokens}"));
    }
    if args.pooling == PoolingMode::None {
        return refuse(
            "--chunk makes one vector per chunk, but --pooling none one per token; leave one of them out"
                .into(),
        );
    }
    if args.pair_field.is_some() {
        return refuse("--chunk is not for pairs; leave out --pair-field or --chunk".into());
    }
    if args.on_long != LongText::Truncate || args.truncation_side.is_some() {
        let option = if args.truncation_side.is_some() { "--truncation-side" } else { "--on-long" };
        return refuse(format!(
            "{option} is for texts over the limit, but no chunk is over it; leave out {option} or --chunk"
        ));
    }
    Ok(Some(Chunking { tokens: tokens as usize, overlap: overlap as usize, late: args.chunk_late }))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn format(format: OutputFormat, output: Option<&Path>) -> Result<Format> {
    Ok(match format {
        OutputFormat::Jsonl => Format::Jsonl,
        OutputFormat::Csv => Format::Csv,
        OutputFormat::Npy => Format::Npy,
        OutputFormat::Parquet => Format::Parquet,
        OutputFormat::Arrow => Format::Arrow,
        OutputFormat::Safetensors => Format::Safetensors,
        OutputFormat::Auto => match output.filter(|path| !is_stdout(path)) {
            None => Format::Jsonl,
            Some(path) => match suffix(path).as_str() {
                "csv" => Format::Csv,
                "npy" => Format::Npy,
                "parquet" | "pq" => Format::Parquet,
                "arrow" | "feather" | "ipc" => Format::Arrow,
                "safetensors" => Format::Safetensors,
                "jsonl" | "ndjson" | "" => Format::Jsonl,
                other => bail!(WrongUsage(format!(
                    "--output {}: the suffix .{other} names no format that is supported; pass --output-format jsonl, \
                     csv, npy, parquet, arrow or safetensors",
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
