//! From shared arguments to the options of commands.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::{DEFAULT_MODEL, HardwareArgs, HubArgs, ModelArgs, TableArgs, VectorArgs, VerbosityArgs};
use super::choice::OrAuto;
use crate::error::UsageError;
use crate::formats::TableFormat;
use crate::hub::Source;
use crate::input::{self, Filter, Format};
use crate::load::ModelOptions;
use crate::model::modules::Role;
use crate::named::Named;
use crate::nn::Isa;
use crate::store::Target;
use crate::sys::console::{Console, Verbosity};
use crate::sys::environment;
use crate::task::{OnLong, PromptChoice, VectorOptions};

/// The options of every command that loads a model.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have, or a config has
/// no weights.
pub(super) fn model(args: &ModelArgs) -> Result<ModelOptions> {
    if args.config.is_some() && args.random_weights.is_none() {
        bail!(UsageError("--config needs --random-weights SEED, because a config has no weights".into()));
    }
    model_or_config(args)
}

/// The options of a command that embeds texts.
pub(super) fn embedding_model(args: &ModelArgs, vectors: &VectorArgs) -> Result<ModelOptions> {
    let model = for_vectors(model(args)?, vectors);
    Ok(ModelOptions { only_queries: vectors.role == Some(Role::Query), ..model })
}

/// A model with what the options of vectors say about it.
pub(super) fn for_vectors(model: ModelOptions, vectors: &VectorArgs) -> ModelOptions {
    let dimensions = vectors.dimensions.map(|n| n as usize);
    ModelOptions {
        source: Source { dimensions, ..model.source },
        max_length: vectors.limit.max_length.map(|n| n as usize),
        truncation_side: vectors.limit.truncation_side,
        pooling: vectors.pooling.0.clone(),
        ..model
    }
}

/// How texts become vectors: one f32 vector per text, of its first tokens if it is too long.
pub(super) fn vectors(args: &VectorArgs) -> VectorOptions {
    VectorOptions {
        normalize: match (args.normalize, args.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        dimensions: args.dimensions.map(|n| n as usize),
        prompt: (args.prompt.clone().map(PromptChoice::Text))
            .or(args.prompt_name.clone().map(PromptChoice::Name)),
        role: args.role,
        ..VectorOptions::new(OnLong::Truncate)
    }
}

/// The format of an output: as the option says, else that of the extension of the file by `of_extension`, in
/// lower case and empty if there is none. `default`: the format of standard output.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
pub(super) fn format_of<T: Named>(
    format: OrAuto<T>,
    output: Option<&Path>,
    default: T,
    of_extension: impl FnOnce(&str) -> Option<T>,
) -> Result<T> {
    if let Some(format) = format.0 {
        return Ok(format);
    }
    let Some(path) = output.filter(|path| !is_stdout(path)) else { return Ok(default) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let extension = extension.unwrap_or_default();
    of_extension(&extension).ok_or_else(|| {
        let found = match &*extension {
            "" => "no extension".into(),
            unknown => format!("no output format has the extension .{unknown}"),
        };
        let (path, names) = (path.display(), T::names());
        UsageError(format!("--output {path}: {found}; pass --output-format with one of {names}")).into()
    })
}

/// The format of a table, as the option says, else by the extension of the output file, else text; and its
/// destination.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
pub(super) fn table(args: &TableArgs) -> Result<(TableFormat, Target)> {
    let (format, output) = (args.output_format.clone(), args.output.as_deref());
    let format = format_of(format, output, TableFormat::Text, |extension| match extension {
        "txt" | "" => Some(TableFormat::Text),
        "jsonl" | "ndjson" => Some(TableFormat::Jsonl),
        "csv" => Some(TableFormat::Csv),
        "parquet" | "pq" => Some(TableFormat::Parquet),
        _ => None,
    })?;
    Ok((format, target(args.output.clone())))
}

/// The destination of an output.
pub(super) fn target(output: Option<PathBuf>) -> Target {
    output.filter(|path| !is_stdout(path)).map_or(Target::Stdout, Target::File)
}

/// The options of a model, or of a config without weights.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have.
pub(super) fn model_or_config(args: &ModelArgs) -> Result<ModelOptions> {
    Ok(ModelOptions {
        config: args.config.clone(),
        random_weights: args.random_weights,
        task: args.task.clone(),
        tokenizer: args.tokenizer.clone(),
        ..model_on(&args.hardware, source(args.source.model.clone(), &args.source.hub, &args.verbosity)?)?
    })
}

/// A model with the options of its hardware.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have.
pub(super) fn model_on(hardware: &HardwareArgs, source: Source) -> Result<ModelOptions> {
    Isa::check().map_err(UsageError)?;
    Ok(ModelOptions {
        weight_cache: !hardware.no_weight_cache,
        device: hardware.device.clone(),
        compute_dtype: hardware.dtype,
        ..ModelOptions::of(source)
    })
}

/// What is written to standard error besides errors.
pub(super) fn console(args: &VerbosityArgs) -> Console {
    Console::new(verbosity(args), !args.no_progress)
}

/// How much is written to standard error.
pub(super) fn verbosity(args: &VerbosityArgs) -> Verbosity {
    match (args.quiet, args.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    }
}

/// The inputs that the paths of `option` name. Prints a note about files that are left out.
///
/// # Errors
/// [`UsageError`] if they cannot be found.
pub(super) fn inputs(
    paths: &[PathBuf],
    format: Option<Format>,
    filter: &Filter,
    option: &str,
    verbosity: &VerbosityArgs,
) -> Result<Vec<input::Source>> {
    let with_option = |message: String| message.replace("--input ", &format!("{option} "));
    let inputs = input::find(paths, format, filter);
    let inputs = inputs.map_err(|error| UsageError(with_option(error.to_string())))?;
    inputs.notes().for_each(|note| console(verbosity).note(with_option(note)));
    Ok(inputs.sources)
}

/// # Errors
/// [`UsageError`] if the model has an empty name, but not by `SCONCE_MODEL`.
pub(super) fn source(model: String, hub: &HubArgs, verbosity: &VerbosityArgs) -> Result<Source> {
    // A variable that is empty is one that is not set.
    let is_of_variable = std::env::var_os("SCONCE_MODEL").is_some_and(|model| model.is_empty());
    if model.is_empty() && !is_of_variable {
        bail!(UsageError("--model is empty; pass a directory or a model id, or leave it out".into()));
    }
    Ok(Source {
        model: if model.is_empty() { DEFAULT_MODEL.into() } else { model },
        revision: hub.revision.clone(),
        cache: None,
        dimensions: None,
        offline: hub.offline || environment::is_offline(),
        progress: console(verbosity).progress() && !environment::is_true("HF_HUB_DISABLE_PROGRESS_BARS"),
        silent: false,
    })
}

/// Whether a path is standard output. If standard output is redirected to a file, opening such a path would
/// truncate the file.
pub(super) fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}
