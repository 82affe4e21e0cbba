//! The directory of a model: what the user named, or a snapshot in the Hugging Face cache.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::layout::{self, ALL_WEIGHTS, CONFIG, MODULES};
use super::{Source, hub};
use crate::sys::regular_file::has_dir_entry;

/// The directory of a model.
#[derive(Debug, Clone)]
pub struct ModelDir {
    /// Its path.
    pub folder: PathBuf,
    /// A warning that the files may differ from those that the authors published.
    pub warning: Option<String>,
}

impl ModelDir {
    /// Finds a model: first a directory with `config.json` or `modules.json`, then the cache, then the hub. It is asked for the
    /// files `wanted` beside those that every model may have, unless the cache has them or notes their absence.
    ///
    /// # Errors
    /// If the model is in none of them, or the hub refuses or cannot be reached.
    pub fn locate(source: &Source, wanted: &[&'static str]) -> Result<Self> {
        let directory = Path::new(&source.model);
        if [CONFIG, MODULES].iter().any(|name| has_dir_entry(&directory.join(name))) {
            return Ok(ModelDir { folder: directory.to_owned(), warning: None });
        }
        if directory.is_file() {
            bail!("--model {} is a file; pass the directory of a model", source.model);
        }
        match (is_hub_id(&source.model), directory.is_dir()) {
            (true, is_dir) => {
                let (folder, warning) = hub::snapshot(source, wanted).map_err(|error| {
                    if is_dir {
                        error.context(format!("./{} has no config.json", source.model))
                    } else {
                        error
                    }
                })?;
                Ok(ModelDir { folder, warning })
            }
            (false, true) => {
                bail!("{} has no config.json; pass the directory of a model", directory.display())
            }
            (false, false) => {
                bail!("no model {:?}: it is neither a directory nor a hub id such as org/name", source.model)
            }
        }
    }

    /// The directory of the encoder's files, `folder` below this one; empty where they are in this one.
    pub fn subdirectory(&self, folder: &Path) -> Self {
        let folder = if folder == Path::new("") { self.folder.clone() } else { self.folder.join(folder) };
        ModelDir { folder, warning: None }
    }

    /// The path of `config.json`.
    pub fn config(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }

    /// The path of the weights: one file, or the index of several shards.
    ///
    /// # Errors
    /// If there are none in a form that is read.
    pub fn weights(&self) -> Result<PathBuf> {
        for name in ALL_WEIGHTS {
            if self.has(name) {
                return Ok(self.folder.join(name));
            }
        }
        // Exports are in the directory itself or in one below it, as onnx/model.onnx.
        let entries = |folder: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut files = entries(&self.folder);
        files.extend(["onnx", "openvino"].iter().flat_map(|name| entries(&self.folder.join(name))));
        files.sort();
        let names: Vec<_> =
            files.iter().filter_map(|file| file.strip_prefix(&self.folder).ok()?.to_str()).collect();
        let folder = self.folder.display();
        match layout::unsupported_weights(names.iter().copied()) {
            Some(found) => bail!("{folder} {found}"),
            None => bail!(
                "{folder} has no model.safetensors and no pytorch_model.bin; download the model again, or pass --random-weights SEED"
            ),
        }
    }

    /// The path of the tokenizer: `tokenizer.json`, or the vocabulary that replaces it.
    ///
    /// # Errors
    /// If there is none, or only in an unsupported form.
    pub fn tokenizer(&self) -> Result<PathBuf> {
        layout::tokenizer_in(&self.folder)
    }

    fn has(&self, name: &str) -> bool {
        has_dir_entry(&self.folder.join(name))
    }
}

/// Whether a string has the form of a hub id: `name` or `org/name`.
fn is_hub_id(model: &str) -> bool {
    let is_valid = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let parts: Vec<&str> = model.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(is_valid)
}
