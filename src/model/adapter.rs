//! LoRA adapters (Hu et al. 2022), merged into the weights as they are read: `W + s B A`. Two layouts:
//! adapters for several tasks stacked in the tensors of the checkpoint (jina-embeddings-v3), and a folder for
//! each adapter, as PEFT saves them. One of PEFT may also have tensors that replace those of the model:
//! trained biases and rows of tables, and modules that were trained as a whole, such as a head.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::config::Config;
use super::families::{Family, JINA_V5};
use super::layout::{ADAPTER_CONFIG, ADAPTER_FOLDER, adapter_weights};
use super::purpose::Purpose;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::low_rank::PEFT_PREFIX;
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
    /// Where it is.
    pub location: Location,
}

/// Where an adapter is.
#[derive(Debug, Clone, PartialEq)]
pub enum Location {
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
    /// Where it is.
    pub location: Location,
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

/// The purpose of a model whose own folder has an adapter that was trained with a task head. The number of
/// labels is the head's then, whatever the `config` of the base model says.
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

/// What PEFT has put before the parameters of modules that were trained as a whole.
const SAVED_MODULE: &str = ".modules_to_save.";

/// A tensor's name in the model, by its name in the file of an adapter.
pub fn in_model(name: &str) -> String {
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
}
