//! LoRA adapters (Hu et al. 2022), merged into the weights as they are read: `W + s B A`. Two layouts: adapters for several tasks
//! stacked in the tensors of the checkpoint (jina-embeddings-v3), and a folder for each adapter, as PEFT saves them. One of PEFT may also
//! have tensors that replace those of the model: trained biases and rows of tables, and modules that were trained as a whole, such as a head.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::config::Config;
use super::families::{Family, JINA_V5};
use super::layout::{ADAPTER_CONFIG, ADAPTER_FOLDER, adapter_weights};
use super::peft_config::{PeftConfig, TOKEN_INDICES};
use super::purpose::Purpose;
use crate::checkpoint::low_rank::{
    Adapter, Axis, LowRank, MERGE, Magnitudes, NewRows, PEFT_PREFIX, STACKED_A, STACKED_B, Update,
};
use crate::checkpoint::{Checkpoint, Replacements};
use crate::error::UsageError;
use crate::nn::HeadKind;
use crate::sys::regular_file::has_dir_entry;

/// The config field with the tasks of stacked adapters.
const STACKED_TASKS: &str = "lora_adaptations";

/// The adapters of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adapters {
    /// The folder of the model, if it has an adapter that applies to every text.
    own: Option<PathBuf>,
    /// The adapters that a user chooses from.
    pub tasks: Vec<AdapterTask>,
    /// Whether the model is not used without one of them.
    is_required: bool,
}

/// The adapter of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterTask {
    /// The name of the task.
    pub name: String,
    /// What the model's own code puts before each text of the task, if it does.
    pub instruction: Option<String>,
    location: Location,
}

/// Where an adapter is.
#[derive(Debug, Clone, PartialEq)]
enum Location {
    /// In the tensors of the checkpoint, at `index` of `count`.
    Stacked { index: usize, count: usize, rank: usize, scale: f64 },
    /// A folder as PEFT saves it.
    Folder(PathBuf),
}

/// The adapter of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenAdapter {
    /// Its task; `None` for the adapter of the model's own folder.
    pub task: Option<String>,
    location: Location,
}

impl Adapters {
    /// The adapters of the model in `folder` with this config.
    pub fn of(config: &Config, folder: &Path) -> Result<Self> {
        if let Some(names) = config.strings(STACKED_TASKS)? {
            return Ok(Adapters { own: None, tasks: stacked_tasks(config, &names)?, is_required: false });
        }
        let has_adapter = |folder: &PathBuf| has_dir_entry(&folder.join(ADAPTER_CONFIG));
        let mut tasks = Vec::new();
        for parent in [folder.to_owned(), folder.join(ADAPTER_FOLDER)] {
            let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
            let folders = entries.map(|entry| entry.path()).filter(has_adapter);
            tasks.extend(folders.filter_map(|folder| {
                let name = folder.file_name()?.to_str()?.to_owned();
                Some(AdapterTask { name, instruction: None, location: Location::Folder(folder) })
            }));
        }
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        let is_required = config.string("model_type")? == Some(JINA_V5);
        Ok(Adapters { own: Some(folder.to_owned()).filter(has_adapter), tasks, is_required })
    }

    /// Checks that a task is chosen if the model needs one.
    ///
    /// # Errors
    /// [`UsageError`] if none is.
    pub fn check_chosen(&self, chosen: Option<&ChosenAdapter>) -> Result<()> {
        if self.is_required && chosen.is_none() {
            bail!(UsageError(format!(
                "the model needs one of its adapters for tasks ({}); choose one with --task",
                self.names()
            )))
        }
        Ok(())
    }

    /// The names of all tasks, separated by commas.
    pub fn names(&self) -> String {
        self.tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The task of an adapter, and what the model's own code puts before its texts.
    pub fn instruction(&self, chosen: Option<&ChosenAdapter>) -> Option<(&str, &str)> {
        let name = chosen?.task.as_ref()?;
        let task = self.tasks.iter().find(|task| task.name == *name)?;
        Some((&task.name, task.instruction.as_ref()?))
    }

    /// The adapter of a task; without one that of the model's own folder, if it has one.
    ///
    /// # Errors
    /// [`UsageError`] if the model has no such task.
    pub fn choose(&self, task: Option<&str>) -> Result<Option<ChosenAdapter>> {
        let Some(name) = task else {
            let location = self.own.clone().map(Location::Folder);
            return Ok(location.map(|location| ChosenAdapter { task: None, location }));
        };
        match self.tasks.iter().find(|task| task.name == name) {
            Some(AdapterTask { name, location, .. }) => {
                Ok(Some(ChosenAdapter { task: Some(name.clone()), location: location.clone() }))
            }
            None if self.tasks.is_empty() => bail!(UsageError(format!(
                "--task {name}: the model has no adapters for tasks; leave the option out, or choose another model"
            ))),
            None => bail!(UsageError(format!(
                "--task {name}: the model has no adapter of this name (tasks: {}); choose one of these",
                self.names()
            ))),
        }
    }
}

/// The tasks of stacked adapters, with the defaults of Jina's own code.
fn stacked_tasks(config: &Config, names: &[&str]) -> Result<Vec<AdapterTask>> {
    let rank = if config.has("lora_rank") { config.width("lora_rank")? } else { 4 };
    let scale = config.number("lora_alpha", 1.0)? / rank as f64;
    let instructions = config.object("task_instructions")?;
    let task = |(index, name): (usize, &&str)| -> Result<AdapterTask> {
        let instruction = match &instructions {
            Some(instructions) => instructions.string(name)?.map(str::to_owned),
            None => None,
        };
        let location = Location::Stacked { index, count: names.len(), rank, scale };
        Ok(AdapterTask { name: (*name).to_owned(), instruction, location })
    };
    names.iter().enumerate().map(task).collect()
}

/// The purpose of a model whose own folder has an adapter that was trained with a task head. The number of labels is the head's then,
/// whatever the `config` of the base model says.
pub fn trained_purpose(config: &mut Config, family: &Family, folder: &Path) -> Result<Option<Purpose>> {
    let path = folder.join(ADAPTER_CONFIG);
    if !has_dir_entry(&path) {
        return Ok(None);
    }
    let of_adapter = Config::read(&path)?;
    let purpose = of_adapter.string("task_type")?.and_then(Purpose::of_adapter);
    let head = match purpose.as_ref().and_then(Purpose::head) {
        Some(HeadKind::SequenceClassification) => "head.classifier",
        Some(HeadKind::TokenClassification) => "head.token_classifier",
        _ => return Ok(purpose),
    };
    let weights = Checkpoint::open(&adapter_weights(folder))?;
    let matrices = family.names.iter().filter(|names| names.has_head(head));
    let matrices: Vec<String> =
        matrices.map(|names| names.resolve("", &format!("{head}.weight")).name).collect();
    let is_head = |name: &&str| matrices.contains(&in_model(name));
    let rows = weights.names().find(is_head).and_then(|name| weights.shape(name)?.first().copied());
    if let Some(rows) = rows {
        config.set("num_labels", rows.into());
    }
    Ok(purpose)
}

/// A tensor's name in the model, by its name in the file of an adapter.
fn in_model(name: &str) -> String {
    name.strip_prefix(PEFT_PREFIX).unwrap_or(name).replacen(SAVED_MODULE, ".", 1)
}

impl ChosenAdapter {
    /// The files of the adapter, beside those of the model.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.location {
            Location::Stacked { .. } => Vec::new(),
            Location::Folder(folder) => vec![folder.join(ADAPTER_CONFIG), adapter_weights(folder)],
        }
    }

    /// Reads the adapter of a model with these weights.
    pub fn read(&self, weights: &Checkpoint) -> Result<(Adapter, Replacements)> {
        let (updates, replacements, file) = match self.location {
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
        let is_whole_file = matches!(self.location, Location::Folder(_));
        Ok((Adapter::new(file, updates, is_whole_file), replacements))
    }
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
/// What PEFT has put before the parameters of modules that were trained as a whole.
const SAVED_MODULE: &str = ".modules_to_save.";

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

/// The vector beside the update at `path` that a `field` needs, with a value for each output; its name has one of these ends.
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
