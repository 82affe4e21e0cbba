//! The tensors of an adapter: those of several tasks stacked in the checkpoint of the model, or a file as
//! PEFT saves it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use crate::checkpoint::low_rank::{
    Adapter, Axis, LowRank, MERGE, Magnitudes, NewRows, STACKED_A, STACKED_B, Update,
};
use crate::checkpoint::{Checkpoint, Replacements};
use crate::model::adapter::{ChosenAdapter, Location, in_model};
use crate::model::config::Config;
use crate::model::layout::{ADAPTER_CONFIG, adapter_weights};
use crate::model::peft_config::{PeftConfig, TOKEN_INDICES};

/// Reads the adapter of a model with these weights.
pub(super) fn read_adapter(adapter: &ChosenAdapter, weights: &Checkpoint) -> Result<(Adapter, Replacements)> {
    let (updates, replacements, file) = match adapter.location {
        Location::Stacked { index, count, rank, scale } => {
            let updates = read_stacked(weights, index, count, rank, scale as f32)?;
            (updates, Replacements::default(), weights.path().to_owned())
        }
        Location::Folder(ref folder) => {
            let (updates, replacements) = read_peft(folder)?;
            (updates, replacements, adapter_weights(folder))
        }
    };
    if updates.is_empty() && replacements.is_empty() {
        bail!("{} has no tensors of an adapter; download the model again", file.display())
    }
    // The checkpoint of stacked adapters also has those of the pooler.
    let is_whole_file = matches!(adapter.location, Location::Folder(_));
    Ok((Adapter::new(file, updates, is_whole_file), replacements))
}

/// Reads the adapter at `index` of `count` stacked ones in the tensors of a checkpoint.
fn read_stacked(
    weights: &Checkpoint,
    index: usize,
    count: usize,
    rank: usize,
    scale: f32,
) -> Result<BTreeMap<String, Update>> {
    let mut updates = BTreeMap::new();
    let has = |name: &str| weights.shape(name).is_some();
    if let Some(module) = weights
        .names()
        .filter_map(|name| name.strip_suffix(STACKED_B))
        .find(|module| !has(&format!("{module}{STACKED_A}")))
    {
        bail!("{}", half_a_pair(weights, &format!("{module}{STACKED_B}"), &format!("{module}{STACKED_A}")))
    }
    for module in weights.names().filter_map(|name| name.strip_suffix(STACKED_A)) {
        let [a, b] = [STACKED_A, STACKED_B].map(|end| format!("{module}{end}"));
        if !has(&b) {
            bail!("{}", half_a_pair(weights, &a, &b))
        }
        let shape = |name: &str| weights.shape(name).unwrap_or_default();
        let weight = weights.shape(&format!("{module}.weight")).unwrap_or_default();
        let &[rows, columns] = weight else {
            bail!("{} has no weight beside tensor {a}; download the file again", weights.path().display())
        };
        let part = |name: &str| weights.part(name, index, count);
        let update = if shape(&a) == [count, rank, columns] && shape(&b) == [count, rows, rank] {
            LowRank::new(part(&a)?, part(&b)?, rank, scale)
        } else if shape(&a) == [count, rows, rank] && shape(&b) == [count, rank, columns] {
            // Of an embedding table, W + A B.
            LowRank::new(part(&b)?, part(&a)?, rank, scale)
        } else {
            bail!(
                "{}: tensors {a} of shape {:?} and lora_B of shape {:?} are not {count} adapters of rank {rank}; fix the config",
                weights.path().display(),
                shape(&a),
                shape(&b)
            )
        };
        updates.insert(module.to_owned(), Update::LowRank(update));
    }
    Ok(updates)
}

/// The error for a matrix of an update without the other one.
fn half_a_pair(weights: &Checkpoint, found: &str, missing: &str) -> String {
    let shown = weights.path().display();
    format!(
        "{shown} has tensor {found}, but no {missing}: half of an update is missing; download the file again"
    )
}

/// The ends of the names of an update's matrices as PEFT saves them, and the axis that a magnitude is of.
const PAIRS: [(&str, &str, Axis); 2] = [
    (".lora_A.weight", ".lora_B.weight", Axis::Rows),
    (".lora_embedding_A", ".lora_embedding_B", Axis::Columns),
];
/// The ends that the name of an update's magnitudes may have.
const MAGNITUDES: [&str; 2] = [".lora_magnitude_vector.weight", ".lora_magnitude_vector"];
/// The end of the name of an update's bias.
const BIAS: &str = ".lora_B.bias";
/// The end of the name of the trained rows of a table.
const TOKEN_ROWS: &str = ".token_adapter.trainable_tokens_delta";

/// Reads an adapter from a folder as PEFT saves it.
fn read_peft(folder: &Path) -> Result<(BTreeMap<String, Update>, Replacements)> {
    let config = PeftConfig::new(Config::read(&folder.join(ADAPTER_CONFIG))?)?;
    let weights = Checkpoint::open(&adapter_weights(folder))?;
    let shown = weights.path().display();
    let has = |name: &str| weights.shape(name).is_some();
    let has_pair = |path: &str| PAIRS.iter().any(|(a, ..)| has(&format!("{path}{a}")));
    let mut updates = BTreeMap::new();
    let mut replaced = BTreeMap::new();
    let mut add = |path: &str, update: Update| match updates.insert(in_model(path), update) {
        None => Ok(()),
        Some(_) => bail!(
            "{shown} has an update and trained rows of {path}, which are not supported together; {MERGE}"
        ),
    };
    for name in weights.names() {
        let by_end = |ends: (&'static str, &'static str)| Some((name.strip_suffix(ends.0)?, ends.1));
        if let Some((path, end)) = PAIRS.iter().find_map(|(a, b, _)| by_end((b, a))) {
            let a = format!("{path}{end}");
            if !has(&a) {
                bail!("{}", half_a_pair(&weights, name, &a))
            }
            continue;
        }
        // Tensors beside a pair, with the field that they need.
        let magnitudes = MAGNITUDES.iter().find_map(|end| name.strip_suffix(end));
        let magnitudes = magnitudes.map(|path| (path, config.has_magnitudes, "of DoRA", "use_dora"));
        let bias =
            name.strip_suffix(BIAS).map(|path| (path, config.has_bias, "the bias of an update", "lora_bias"));
        if let Some((path, is_expected, what, field)) = magnitudes.or(bias) {
            if !is_expected || !has_pair(path) {
                bail!(
                    "{shown}: tensor {name} is {what}, but {field:?} is not true or the update is missing; {MERGE}"
                )
            }
            continue;
        }
        if let Some(path) = name.strip_suffix(TOKEN_ROWS) {
            add(path, Update::Rows(token_rows(&weights, name, &config.token_indices(&in_model(path))?)?))?;
            continue;
        }
        let Some((path, end_of_b, axis)) =
            PAIRS.iter().find_map(|(a, b, axis)| Some((name.strip_suffix(a)?, *b, *axis)))
        else {
            replaced.insert(name.to_owned(), in_model(name));
            continue;
        };
        let b = format!("{path}{end_of_b}");
        if !has(&b) {
            bail!("{}", half_a_pair(&weights, name, &b))
        }
        let module = in_model(path);
        if let Some(field) = config.leaves_out(&module) {
            bail!(
                "{shown}: tensor {name} is of a module that {field:?} of {ADAPTER_CONFIG} leaves out; use the files of one adapter"
            )
        }
        let shape = |name: &str| weights.shape(name).unwrap_or_default();
        let (&[rank, inputs], &[outputs, rank_of_b]) = (shape(name), shape(&b)) else {
            bail!("{shown}: tensors {name} and {b} are not a pair of matrices; download the file again")
        };
        if rank != rank_of_b || rank * inputs * outputs == 0 {
            bail!(
                "{shown}: tensors {name} and {b} are empty or not of the same rank; download the file again"
            )
        }
        let (a, b) = (weights.part(name, 0, 1)?, weights.part(&b, 0, 1)?);
        let (a, b) = match axis {
            Axis::Rows => (a, b),
            // (B A)ᵀ = Aᵀ Bᵀ
            Axis::Columns => (transposed(&b, outputs, rank), transposed(&a, rank, inputs)),
        };
        let vector = |ends: &[&str], field| vector_of(&weights, path, ends, field, outputs);
        let magnitudes = match config.has_magnitudes {
            true => Some(Magnitudes { axis, values: vector(&MAGNITUDES, "use_dora")? }),
            false => None,
        };
        let bias = config.has_bias.then(|| vector(&[BIAS], "lora_bias")).transpose()?;
        let update = LowRank::new(a, b, rank, config.factor(&module, rank)?);
        add(path, Update::LowRank(update.with_magnitudes(magnitudes).with_bias(bias)))?;
    }
    if config.has_token_indices() && !weights.names().any(|name| name.ends_with(TOKEN_ROWS)) {
        bail!("{shown} has no trained rows, which {TOKEN_INDICES:?} needs; download the file again")
    }
    weights.check_unchanged()?;
    let replacements = weights.into_replacements(&replaced);
    Ok((updates, replacements))
}

/// The rows of a table that have these `indices`, from a tensor.
fn token_rows(weights: &Checkpoint, name: &str, indices: &[usize]) -> Result<NewRows> {
    match weights.shape(name) {
        Some(&[rows, width]) if rows == indices.len() && rows * width > 0 => {
            Ok(NewRows::new(indices, &weights.part(name, 0, 1)?, width))
        }
        shape => bail!(
            "{}: tensor {name} is of shape {:?}, but {TOKEN_INDICES:?} names {} rows; use the files of one adapter",
            weights.path().display(),
            shape.unwrap_or_default(),
            indices.len()
        ),
    }
}

/// The vector beside the update at `path` that a `field` needs, with a value for each output; its name has
/// one of these ends.
fn vector_of(
    weights: &Checkpoint,
    path: &str,
    ends: &[&str],
    field: &str,
    outputs: usize,
) -> Result<Vec<f32>> {
    let shown = weights.path().display();
    let name = ends.iter().map(|end| format!("{path}{end}")).find(|name| weights.shape(name).is_some());
    let Some(name) = name else {
        let last = ends.last().copied().unwrap_or_default();
        bail!("{shown} has no tensor {path}{last}, which {field:?} needs; download the file again")
    };
    match weights.vector(&name)?.filter(|values| values.len() == outputs) {
        Some(values) => Ok(values),
        None => bail!("{shown}: tensor {name} is not a vector of {outputs} numbers; download the file again"),
    }
}

/// The transpose of a row-major matrix of `(rows, columns)`.
fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}
