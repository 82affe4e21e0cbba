//! The directory of a model: what the user named, or a snapshot in the Hugging Face cache.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::completeness::missing_files;
use super::file_names::is_component;
use super::ids::id_of_folder;
use super::snapshot::snapshot;
use super::{NoSuchModel, Source};
use crate::model::config::Config;
use crate::model::layout::{self, ADAPTER_CONFIG, ALL_WEIGHTS, CONFIG, MODULES};
use crate::sys::regular_file::has_dir_entry;

/// The directory of a model.
#[derive(Debug, Clone)]
pub struct ModelDir {
    /// Its path.
    pub folder: PathBuf,
    /// The directory of the base model with the config and the weights, if this one has an adapter and no
    /// weights.
    pub base: Option<PathBuf>,
    /// A warning that the files may differ from those that the authors published.
    pub warning: Option<String>,
}

impl ModelDir {
    /// Finds a model: first a directory with `config.json`, `modules.json` or `adapter_config.json`, then the
    /// cache, then the hub. It is asked for the files `wanted` beside those that every model may have, unless
    /// the cache has them or notes their absence.
    pub fn locate(source: &Source, wanted: &[&'static str]) -> Result<Self> {
        let directory = Path::new(&source.model);
        if [CONFIG, MODULES, ADAPTER_CONFIG].iter().any(|name| has_dir_entry(&directory.join(name))) {
            return Ok(ModelDir { folder: directory.to_owned(), base: None, warning: None });
        }
        if directory.is_file() {
            bail!("--model {} is a file; pass the directory of a model", source.model);
        }
        match (is_hub_id(&source.model), directory.is_dir()) {
            (true, is_dir) => {
                let (folder, warning) = snapshot(source, wanted).map_err(|error| {
                    if is_dir {
                        error.context(format!("./{} has no config.json", source.model))
                    } else {
                        error
                    }
                })?;
                Ok(ModelDir { folder, base: None, warning })
            }
            (false, true) => {
                bail!("{} has no config.json; pass the directory of a model", directory.display())
            }
            (false, false) => {
                let model = &source.model;
                bail!(NoSuchModel(format!(
                    "no model {model:?}: it is neither a directory nor a hub id such as org/name"
                )))
            }
        }
    }

    /// The required files that the directory lacks.
    pub fn missing_files(&self) -> Vec<String> {
        missing_files(&self.folder)
    }

    /// The id and the commit of a model, if a directory is a snapshot in a cache.
    pub fn snapshot_of(folder: &Path) -> Option<(String, String)> {
        let snapshots =
            folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
        let id = id_of_folder(snapshots.parent()?.file_name()?.to_str()?)?;
        Some((id, folder.file_name()?.to_str()?.to_owned()))
    }

    /// The directory of the encoder's files, `folder` below this one; empty where they are in this one.
    pub fn subdirectory(&self, folder: &Path) -> Self {
        let folder = if folder == Path::new("") { self.folder.clone() } else { self.folder.join(folder) };
        ModelDir { folder, base: None, warning: None }
    }

    /// This directory with that of the base model, if it has an adapter and no weights: the path or hub id in
    /// `adapter_config.json`. A relative path is one from the working directory, as in `transformers`, or
    /// from this directory.
    pub fn with_base(mut self, source: &Source) -> Result<Self> {
        if !self.has(ADAPTER_CONFIG) || ALL_WEIGHTS.iter().any(|name| self.has(name)) {
            return Ok(self);
        }
        let config = Config::read(&self.folder.join(ADAPTER_CONFIG))?;
        let shown = config.path().display();
        let Some(name) = config.string("base_model_name_or_path")?.filter(|name| !name.is_empty()) else {
            bail!(
                "{shown} names no base model, and there are no weights beside it; write the path or the hub id of the base model \
                 as \"base_model_name_or_path\""
            )
        };
        let beside = self.folder.join(name);
        let is_beside = !Path::new(name).is_dir() && beside.is_dir();
        let base = Source {
            model: if is_beside { beside.display().to_string() } else { name.to_owned() },
            revision: config.string("revision")?.unwrap_or("main").to_owned(),
            dimensions: None,
            ..source.clone()
        };
        let of_adapter = || format!("{shown} is of an adapter for the model {name}, which is needed, too");
        let base = Self::locate(&base, &[]).with_context(of_adapter)?;
        if !base.has(CONFIG) {
            bail!(
                "{}: {} has no config.json; choose a base model that is no adapter itself",
                of_adapter(),
                base.folder.display()
            )
        }
        self.warning = self.warning.or(base.warning);
        self.base = Some(base.folder);
        Ok(self)
    }

    /// The directory of the config and the weights.
    fn weights_folder(&self) -> &Path {
        self.base.as_ref().unwrap_or(&self.folder)
    }

    /// The path of `config.json`.
    pub fn config(&self) -> PathBuf {
        self.weights_folder().join(CONFIG)
    }

    /// The path of the weights: one file, or the index of several shards.
    pub fn weights(&self) -> Result<PathBuf> {
        let folder = self.weights_folder();
        if let Some(path) = ALL_WEIGHTS.iter().map(|name| folder.join(name)).find(|path| has_dir_entry(path))
        {
            return Ok(path);
        }
        // Exports are in the directory itself or in one below it, as onnx/model.onnx.
        let entries = |folder: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut files = entries(folder);
        files.extend(["onnx", "openvino"].iter().flat_map(|name| entries(&folder.join(name))));
        files.sort();
        let names: Vec<_> =
            files.iter().filter_map(|file| file.strip_prefix(folder).ok()?.to_str()).collect();
        let folder = folder.display();
        match layout::unsupported_weights(names.iter().copied()) {
            Some(found) => bail!("{folder} {found}"),
            None => bail!(
                "{folder} has no model.safetensors and no pytorch_model.bin; download the model again, or pass --random-weights SEED"
            ),
        }
    }

    /// The directory of the tokenizer: that of the base model if an adapter has none of its own.
    pub fn tokenizer_folder(&self) -> &Path {
        match &self.base {
            Some(base) if layout::tokenizer_files(|name| self.has(name)).is_none() => base,
            _ => &self.folder,
        }
    }

    /// The path of the tokenizer: `tokenizer.json`, or the vocabulary that replaces it.
    pub fn tokenizer(&self) -> Result<PathBuf> {
        layout::tokenizer_in(self.tokenizer_folder())
    }

    fn has(&self, name: &str) -> bool {
        has_dir_entry(&self.folder.join(name))
    }
}

/// Whether a string has the form of a hub id: `name` or `org/name`.
fn is_hub_id(model: &str) -> bool {
    let is_valid = |part: &str| is_component(part) && !part.starts_with('.');
    let parts: Vec<&str> = model.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(is_valid)
}
