//! The weights of the modules after the encoder, each in a file of its own.

use std::path::Path;

use anyhow::{Result, bail};

use crate::checkpoint::names::TensorNames;
use crate::checkpoint::{Checkpoint, TensorReader, TensorReport};
use crate::model::layout::SPARSE_LINEAR;
use crate::model::modules::PostPoolingModule;
use crate::model::modules::post_pooling::{PROJECTION, Storage};
use crate::nn::cost::module_parameters;
use crate::nn::{Backend, HeadSpec, PostPooling, RandomWeights, TaskHead};

/// The names of the tensors in a module's own file.
static NAMES: TensorNames = TensorNames {
    prefixes: &[""],
    model_modules: &[&[
        ("module.linear", "linear"),
        ("module.residual", "residual"),
        ("module.activation", "activation_function"),
        ("module.norm", "norm"),
    ]],
    layer_prefix: "",
    layer_modules: &[],
    head_modules: &[],
};

/// The names of the tensors in the file of a linear layer: those of its parameters.
static LINEAR_NAMES: TensorNames = TensorNames {
    prefixes: &[""],
    model_modules: &[&[("module.linear", "")]],
    layer_prefix: "",
    layer_modules: &[],
    head_modules: &[&[("head.token_classifier", "")]],
};

/// Checks the sizes of modules whose weights are random, so that no file bounds them.
pub(super) fn check_sizes(modules: &[PostPoolingModule], max_bytes: usize) -> Result<()> {
    for module in modules {
        let parameters = module_parameters(&module.spec).total();
        if parameters.saturating_mul(size_of::<f32>()) > max_bytes {
            bail!("{} describes {parameters} parameters; check its sizes", module.config().display())
        }
    }
    Ok(())
}

/// Loads modules, each from its own file or, with a `seed`, with random weights. The tensors are added to
/// `report`.
pub(super) fn load_modules(
    modules: &[PostPoolingModule],
    seed: Option<u64>,
    report: &mut Option<TensorReport>,
) -> Result<Vec<PostPooling>> {
    let mut loaded = Vec::new();
    for (i, module) in modules.iter().enumerate() {
        let weights = if seed.is_some() { None } else { module.weights()? };
        loaded.push(match weights {
            Some(path) => load_file(&path, module, report.get_or_insert_default())?,
            // Random weights depend on the name. A module without weights asks for none.
            None => {
                let mut source = RandomWeights::new(seed.unwrap_or_default(), Backend::default());
                PostPooling::load(&mut source, &format!("heads.{i}"), &module.spec)?
            }
        });
    }
    Ok(loaded)
}

/// Loads a module from its file of weights.
fn load_file(path: &Path, module: &PostPoolingModule, report: &mut TensorReport) -> Result<PostPooling> {
    let names = if matches!(module.storage, Storage::Linear(_)) { &LINEAR_NAMES } else { &NAMES };
    let remedy = format!("the weights do not belong to {}", module.config().display());
    let (loaded, mut own) =
        read_file(path, names, &remedy, |reader| PostPooling::load(reader, "module", &module.spec))?;
    if module.storage == Storage::Encoder {
        // The report has the tensors of the encoder already.
        own.unused.clear();
        report.unused.retain(|name| name != PROJECTION);
    }
    let folder = module.folder.file_name().unwrap_or_default().to_string_lossy();
    let origin = match module.storage {
        Storage::Folder => Some(&*folder),
        Storage::Encoder => None,
        Storage::Linear(file) => Some(file),
    };
    report.add(own, origin);
    Ok(loaded)
}

/// Loads the layer of lexical weights from its own file: `weight` of `(1, H)` and `bias` of `(1)`. Its
/// tensors are added to `report`.
pub(super) fn load_lexical_layer(
    path: &Path,
    spec: &HeadSpec,
    hidden_size: usize,
    report: &mut TensorReport,
) -> Result<TaskHead> {
    let (head, own) = read_file(path, &LINEAR_NAMES, "use the files of one model", |reader| {
        TaskHead::load(reader, spec, hidden_size)
    })?;
    report.add(own, Some(SPARSE_LINEAR));
    Ok(head)
}

/// Reads a file of weights with `load`, and reports on its tensors. `remedy` is the end of the error about a
/// tensor that does not fit, as a clause.
fn read_file<T>(
    path: &Path,
    names: &'static TensorNames,
    remedy: &str,
    load: impl FnOnce(&mut TensorReader) -> Result<T>,
) -> Result<(T, TensorReport)> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader_with("", names);
    let loaded = load(&mut reader)?;
    let report = reader.into_report();
    checkpoint.check_unchanged()?;
    match report.problems.first() {
        Some(first) => bail!("{}: {first}; {remedy}", path.display()),
        None => Ok((loaded, report)),
    }
}
