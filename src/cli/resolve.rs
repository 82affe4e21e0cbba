//! From arguments to the options of each command.

use std::env;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::{
    AttendArgs, DEFAULT_MODEL, DownloadArgs, EmbedArgs, HubArgs, InspectArgs, ModelArgs, OnError, PairsArgs,
    SearchArgs, SimilarityArgs, VectorArgs, VerbosityArgs, VerifyArgs,
};
use super::choice::OrAuto;
use crate::error::UsageError;
use crate::input::{self, Fields, Filter};
use crate::model::Source;
use crate::named::Named;
use crate::nn::{Isa, Pooling};
use crate::output::{self, TableFormat, Target};
use crate::pipeline::{Selection, StartMode};
use crate::run::attend::{AttendOptions, AttentionFormat};
use crate::run::embed::{EmbedOptions, Input};
use crate::run::inspect::InspectOptions;
use crate::run::pairs::{Found, PairsOptions};
use crate::run::search::{NeighbourWeights, Queries, Rescore, SearchOptions, WeightKind};
use crate::run::similarity::{SimilarityOptions, Style};
use crate::run::verify::VerifyOptions;
use crate::sys::console::{Console, Verbosity};
use crate::task::{AttentionOptions, Layers, ModelOptions, OnLong, PromptChoice, VectorOptions, Views};
use crate::text::Chunking;

/// The options of `embed`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn embed(args: EmbedArgs) -> Result<EmbedOptions> {
    check_long_text_options(&args)?;
    let chunking = chunking(&args)?;
    Ok(EmbedOptions {
        model: ModelOptions {
            max_memory: args.max_memory.map(|size| size.as_u64()),
            ..embedding_model(&args.model, &args.vectors)?
        },
        input: input(&args)?,
        format: output_format(args.output_format, args.output.as_deref())?,
        output: target(args.output),
        vectors: VectorOptions {
            dtype: args.output_dtype,
            on_long: args.on_long.value,
            chunking,
            ..vectors(&args.vectors)
        },
        batch_tokens: args.batch_tokens.map(|n| n as usize),
        skip_unreadable: args.on_error == OnError::Skip,
        start: match (args.resume, args.restart) {
            (true, _) => StartMode::Resume,
            (_, true) => StartMode::Restart,
            _ => StartMode::Fresh,
        },
        selection: Selection { skip_empty: args.skip_empty, limit: args.limit },
        // A user who names the format needs no hint that the input looks like another one.
        hints: args.input_format.0.is_none(),
        stats: args.stats,
        console: console(&args.model.verbosity),
    })
}

/// The options of `attend`.
///
/// # Errors
/// [`UsageError`] if the output format is not known, or it is binary and standard output is a terminal.
pub(super) fn attend(args: AttendArgs) -> Result<AttendOptions> {
    let output = args.output.filter(|path| !is_stdout(path));
    let format = attention_format(args.format, output.as_deref())?;
    let is_terminal = output.is_none() && std::io::stdout().is_terminal();
    if is_terminal && format.is_binary() {
        bail!(UsageError(format!(
            "--output-format {}: standard output is a terminal; name a file with --output",
            format.name()
        )));
    }
    let views = match (args.head, args.mean, args.rollout) {
        (Some(head), ..) => Views::Head(head),
        (_, true, _) => Views::Mean,
        (.., true) => Views::Rollout,
        _ => Views::Heads,
    };
    let layers = match args.layer {
        Some(layer) => Layers::One(layer),
        None if args.rollout => Layers::Last,
        None => Layers::All,
    };
    Ok(AttendOptions {
        model: ModelOptions {
            max_length: args.max_length.map(|n| n as usize),
            // No vector is computed. Models for other tasks than embedding are accepted, too.
            pooling: Some(Pooling::None),
            ..model(&args.model)?
        },
        text: args.text,
        pair: args.pair,
        is_selected: args.layer.is_some() || views != Views::Heads,
        attention: AttentionOptions {
            prompt: args.prompt.map(PromptChoice::Text).or(args.prompt_name.map(PromptChoice::Name)),
            layers,
            views,
            mixing: args.mixing,
        },
        format,
        has_colours: is_terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        output: output.map_or(Target::Stdout, Target::File),
        console: console(&args.model.verbosity),
    })
}

/// The format of `attend`: as the option says, else by the extension of the output file, else text.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn attention_format(format: OrAuto<AttentionFormat>, output: Option<&Path>) -> Result<AttentionFormat> {
    let (Some(path), None) = (output, format.0) else { return Ok(format.0.unwrap_or(AttentionFormat::Text)) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let extension = extension.unwrap_or_default();
    let mut formats = AttentionFormat::ALL.iter();
    let found = formats.find(|format| format.name() == extension || format.aliases().contains(&&*extension));
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = AttentionFormat::ALL.iter().map(|format| format.name()).collect();
        let path = path.display();
        let names = names.join(", ");
        UsageError(match &*extension {
            "" => format!("--output {path}: no extension; pass --output-format with one of {names}"),
            unknown => format!(
                "--output {path}: no output format has the extension .{unknown}; pass --output-format with one of {names}"
            ),
        })
        .into()
    })
}

/// The options of every command that loads a model.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have, or a config has no weights.
pub(super) fn model(args: &ModelArgs) -> Result<ModelOptions> {
    if args.config.is_some() && args.random_weights.is_none() {
        bail!(UsageError("--config needs --random-weights SEED, because a config has no weights".into()));
    }
    model_or_config(args)
}

/// The options of `inspect`, which a config alone suffices for.
///
/// # Errors
/// As [`model_or_config`].
pub(super) fn inspect(args: &InspectArgs) -> Result<InspectOptions> {
    Ok(InspectOptions {
        model: model_or_config(&args.model)?,
        tokens: args.tokens.map(|n| n as usize),
        json: args.json,
        tensors: args.tensors,
        console: console(&args.model.verbosity),
    })
}

/// The options of a model, or of a config without weights.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have.
fn model_or_config(args: &ModelArgs) -> Result<ModelOptions> {
    Isa::check().map_err(UsageError)?;
    Ok(ModelOptions {
        config: args.config.clone(),
        random_weights: args.random_weights,
        tokenizer: args.tokenizer.clone(),
        device: args.device.clone(),
        compute_dtype: args.dtype,
        ..ModelOptions::of(source(args.source.model.clone(), &args.source.hub, &args.verbosity))
    })
}

/// The options of a command that embeds texts.
///
/// # Errors
/// As [`model`].
fn embedding_model(args: &ModelArgs, vectors: &VectorArgs) -> Result<ModelOptions> {
    Ok(ModelOptions {
        max_length: vectors.max_length.map(|n| n as usize),
        truncation_side: vectors.truncation_side,
        pooling: vectors.pooling.0.clone(),
        ..model(args)?
    })
}

/// How texts become vectors: one f32 vector per text, of its first tokens if it is too long.
fn vectors(args: &VectorArgs) -> VectorOptions {
    VectorOptions {
        normalize: match (args.normalize, args.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        dimensions: args.dimensions.map(|n| n as usize),
        prompt: (args.prompt.clone().map(PromptChoice::Text))
            .or(args.prompt_name.clone().map(PromptChoice::Name)),
        dtype: output::OutputDtype::F32,
        on_long: OnLong::Truncate,
        chunking: None,
    }
}

/// The options of `search`.
///
/// # Errors
/// As [`model`]; [`UsageError`] if the queries cannot be found, or an option contradicts another.
pub(super) fn search(args: SearchArgs) -> Result<SearchOptions> {
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
    Ok(SearchOptions {
        queries: queries(&args)?,
        vectors: args.file,
        k: args.k as usize,
        threshold: args.threshold.map(|threshold| threshold as f32),
        metric: args.metric,
        rescore: args.rescore.map(|path| Rescore { path, multiplier: args.rescore_multiplier as usize }),
        weights,
        value_field: args.value_field,
        keep: args.keep,
        format: table_format(args.output_format, args.output.as_deref())?,
        output: target(args.output),
        model: embedding_model(&args.model, &args.vectors)?,
        query_vectors: VectorOptions { on_long: args.on_long, ..vectors(&args.vectors) },
        console: console(&args.model.verbosity),
    })
}

/// The options of `similarity`.
///
/// # Errors
/// As [`model`].
pub(super) fn similarity(args: SimilarityArgs) -> Result<SimilarityOptions> {
    Ok(SimilarityOptions {
        model: embedding_model(&args.model, &args.vectors)?,
        vectors: vectors(&args.vectors),
        texts: args.texts,
        metric: args.metric,
        style: if args.json { Style::Json } else { Style::Table(args.format) },
        console: console(&args.model.verbosity),
    })
}

/// The queries of `search`.
fn queries(args: &SearchArgs) -> Result<Queries> {
    if let Some(path) = &args.query_vectors {
        return Ok(Queries::Vectors(path.clone()));
    }
    let options = [
        ("--input-format", args.input_format.0.is_some()),
        ("--text-field", args.text_field.is_some()),
        ("--id-field", args.id_field.is_some()),
    ];
    if !args.texts.is_empty() {
        if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
            bail!(UsageError(format!("{option} needs --queries FILE; remove it, or the QUERY arguments")));
        }
        return Ok(Queries::Texts(args.texts.clone()));
    }
    let path = args.queries.clone().unwrap_or_else(|| "-".into());
    let sources = input::sources(std::slice::from_ref(&path), args.input_format.0);
    let sources = sources.map_err(|error| UsageError(error.to_string().replace("--input", "--queries")))?;
    let text = args.text_field.clone().unwrap_or_else(|| "text".into());
    Ok(Queries::Files(sources, Fields { text, pair: None, id: args.id_field.clone(), keep: Vec::new() }))
}

/// The format of a table: as the option says, else by the extension of the output file, else text.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn table_format(format: OrAuto<TableFormat>, output: Option<&Path>) -> Result<TableFormat> {
    if let Some(format) = format.0 {
        return Ok(format);
    }
    let Some(path) = output.filter(|path| !is_stdout(path)) else { return Ok(TableFormat::Text) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    Ok(match extension.as_deref().unwrap_or_default() {
        "txt" | "" => TableFormat::Text,
        "jsonl" | "ndjson" => TableFormat::Jsonl,
        "csv" => TableFormat::Csv,
        "parquet" | "pq" => TableFormat::Parquet,
        unknown => {
            let names: Vec<&str> = TableFormat::ALL.iter().map(|format| format.name()).collect();
            bail!(UsageError(format!(
                "--output {}: no output format has the extension .{unknown}; pass --output-format with one of {}",
                path.display(),
                names.join(", ")
            )))
        }
    })
}

/// The destination of an output.
fn target(output: Option<PathBuf>) -> Target {
    output.filter(|path| !is_stdout(path)).map_or(Target::Stdout, Target::File)
}

/// The options of `verify`.
///
/// # Errors
/// As [`model`]; [`UsageError`] if the texts cannot be found.
pub(super) fn verify(args: VerifyArgs) -> Result<VerifyOptions> {
    let path = args.texts.as_ref().unwrap_or(&args.against);
    let sources = input::sources(std::slice::from_ref(path), None);
    let sources = sources.map_err(|error| UsageError(error.to_string()))?;
    if args.texts.is_none() && !sources.iter().all(|source| source.format.has_fields()) {
        bail!(UsageError(format!(
            "--against {}: a file of this format has no texts; pass --input FILE with the texts",
            path.display()
        )));
    }
    let text = args.text_field.unwrap_or_else(|| "text".into());
    Ok(VerifyOptions {
        model: embedding_model(&args.model, &args.vectors)?,
        vectors: vectors(&args.vectors),
        against: args.against,
        texts: sources,
        fields: Fields { text, pair: None, id: None, keep: Vec::new() },
        max_difference: args.max_difference,
        min_cosine: args.min_cosine,
        min_neighbours: args.min_neighbours,
        json: args.json,
        console: console(&args.model.verbosity),
    })
}

/// The model that `download` downloads.
pub(super) fn download(args: DownloadArgs) -> Source {
    source(args.model, &args.hub, &args.verbosity)
}

/// The options of `pairs`.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have, or the extension of the output is not
/// known.
pub(super) fn pairs(args: PairsArgs) -> Result<PairsOptions> {
    Isa::check().map_err(UsageError)?;
    let (top_k, max_pairs) = (args.top_k as usize, args.max_pairs as usize);
    Ok(PairsOptions {
        vectors: args.file,
        metric: args.metric,
        threshold: args.threshold.map(|threshold| threshold as f32),
        found: if args.clusters { Found::Clusters } else { Found::Pairs { top_k, max_pairs } },
        keep: args.keep,
        format: table_format(args.output_format, args.output.as_deref())?,
        output: target(args.output),
        console: console(&args.verbosity),
    })
}

/// What is written to standard error besides errors.
pub(super) fn console(args: &VerbosityArgs) -> Console {
    let verbosity = match (args.quiet, args.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    Console::new(verbosity, !args.no_progress)
}

fn source(model: String, hub: &HubArgs, verbosity: &VerbosityArgs) -> Source {
    // The values that huggingface_hub takes as true. clap's own parser of flags would refuse any other value.
    let is_set =
        |name| env::var(name).is_ok_and(|v| matches!(v.to_lowercase().as_str(), "1" | "on" | "yes" | "true"));
    Source {
        // SCONCE_MODEL may be set to an empty string.
        model: if model.is_empty() { DEFAULT_MODEL.into() } else { model },
        revision: hub.revision.clone(),
        offline: hub.offline || is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
        progress: console(verbosity).progress(),
    }
}

/// The texts, or the files that hold them.
fn input(args: &EmbedArgs) -> Result<Input> {
    let EmbedArgs { texts, input: files, text_field, pair_field, id_field, keep, .. } = args;
    let stdin = [PathBuf::from("-")];
    // A single - is standard input. Among other texts, it is a text.
    let texts = if matches!(&texts[..], [text] if text == "-") { &[][..] } else { &texts[..] };
    let paths = match (files.is_empty(), texts.is_empty()) {
        (true, false) => &[][..],
        (true, true) => &stdin,
        (false, _) => files,
    };
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!(UsageError("--input names standard input twice, but it can be read only once".into()));
    }
    let filter = Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        no_ignore: args.no_ignore,
        is_lenient: args.on_error == OnError::Skip,
    };
    let sources = input::filtered_sources(paths, args.input_format.0, &filter);
    let sources = sources.map_err(|error| UsageError(error.to_string()))?;
    let field_options =
        [("--text-field", text_field), ("--pair-field", pair_field), ("--id-field", id_field)];
    let field_option = field_options.into_iter().find(|(_, name)| name.is_some()).map(|(option, _)| option);
    // Records of any format have a text, a file and a line, which --keep may name.
    let is_own = |name: &String| texts.is_empty() && Fields::is_built_in(name);
    if let Some(option) = field_option.or((!keep.iter().all(is_own)).then_some("--keep"))
        && !sources.iter().any(|source| source.format.has_fields())
    {
        bail!(UsageError(format!(
            "{option} needs an input with fields (jsonl, csv, tsv, parquet or arrow); pass --input FILE, and \
             --input-format if the file extension does not tell the format"
        )));
    }
    if !texts.is_empty() {
        if args.input_format.0.is_some() {
            bail!(UsageError("--input-format needs --input FILE; remove it, or the TEXT arguments".into()));
        }
        return Ok(Input::Texts(texts.to_vec()));
    }
    let text = text_field.clone().unwrap_or_else(|| "text".into());
    let fields = Fields { text, pair: pair_field.clone(), id: id_field.clone(), keep: keep.clone() };
    Ok(Input::Files(sources, fields))
}

/// Refuses options for long texts that would have no effect, and chunks of pairs, which are not supported.
fn check_long_text_options(args: &EmbedArgs) -> Result<()> {
    let on_long = args.on_long.value;
    if args.vectors.truncation_side.is_some() && on_long != OnLong::Truncate {
        bail!(UsageError(format!(
            "--truncation-side needs --on-long truncate, found --on-long {}; remove one of them",
            on_long.name()
        )));
    }
    if args.pair_field.is_some() && on_long == OnLong::Mean {
        bail!(UsageError(
            "--on-long mean does not support pairs; pass --on-long truncate, skip or error".into()
        ));
    }
    if args.on_long.is_deprecated {
        console(&args.model.verbosity)
            .note("--on-long chunk is deprecated; pass --on-long mean, which does the same");
    }
    Ok(())
}

/// How texts are split into chunks, if they are.
///
/// # Errors
/// [`UsageError`] if an option contradicts `--chunk`, or has no effect with or without it.
fn chunking(args: &EmbedArgs) -> Result<Option<Chunking>> {
    let overlap = args.chunk_overlap.unwrap_or(0);
    let Some(tokens) = args.chunk else {
        let dependent =
            [("--chunk-overlap", args.chunk_overlap.is_some()), ("--chunk-late", args.chunk_late)];
        if let Some((option, _)) = dependent.into_iter().find(|(_, is_given)| *is_given) {
            bail!(UsageError(format!("{option} needs --chunk TOKENS")));
        }
        return Ok(None);
    };
    if overlap >= tokens {
        bail!(UsageError(format!("--chunk-overlap {overlap} must be less than --chunk {tokens}")));
    }
    if args.vectors.pooling.0 == Some(Pooling::None) {
        bail!(UsageError(
            "--chunk writes one vector per chunk, --pooling none one per token; remove one of them".into()
        ));
    }
    if args.pair_field.is_some() {
        bail!(UsageError("--chunk does not support pairs; remove --pair-field or --chunk".into()));
    }
    if args.on_long.value != OnLong::Truncate || args.vectors.truncation_side.is_some() {
        let option = if args.vectors.truncation_side.is_some() { "--truncation-side" } else { "--on-long" };
        bail!(UsageError(format!(
            "{option} has no effect with --chunk, since no chunk exceeds the limit; remove one of them"
        )));
    }
    Ok(Some(Chunking { tokens: tokens as usize, overlap: overlap as usize, late: args.chunk_late }))
}

/// The output format: as the option says, else by the extension of the output file, else jsonl.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn output_format(
    format: OrAuto<output::OutputFormat>,
    output: Option<&Path>,
) -> Result<output::OutputFormat> {
    use output::OutputFormat::{Arrow, Csv, Jsonl, Npy, Parquet, Safetensors};
    if let Some(format) = format.0 {
        return Ok(format);
    }
    let Some(path) = output.filter(|path| !is_stdout(path)) else { return Ok(Jsonl) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    Ok(match extension.as_deref().unwrap_or_default() {
        "jsonl" | "ndjson" | "" => Jsonl,
        "csv" => Csv,
        "npy" => Npy,
        "parquet" | "pq" => Parquet,
        "arrow" | "feather" | "ipc" => Arrow,
        "safetensors" => Safetensors,
        unknown => {
            let names: Vec<&str> = output::OutputFormat::ALL.iter().map(|format| format.name()).collect();
            bail!(UsageError(format!(
                "--output {}: no output format has the extension .{unknown}; pass --output-format with one of {}",
                path.display(),
                names.join(", ")
            )))
        }
    })
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Whether a path is standard output. If standard output is redirected to a file, opening such a path would truncate the file.
fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}
