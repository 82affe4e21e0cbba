//! Where a model's files are: a directory, the Hugging Face cache, or the hub.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{INDEX, NO_TOKENIZER, SENTENCE_PIECES, Source, hub, other_weights, tokenizer_files};
use crate::disk::is_listed;

/// The folder of a model.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The folder: what the user named, or a snapshot in the cache.
    pub folder: PathBuf,
    /// What may make the model other than its authors meant it.
    pub warning: Option<String>,
}

impl ModelFiles {
    /// Finds a model: a directory with `config.json` or `modules.json` first, then the cache, then the hub.
    ///
    /// # Errors
    /// If the model is nowhere, or the hub refuses or cannot be reached.
    pub fn locate(source: &Source) -> Result<Self> {
        let directory = Path::new(&source.model);
        if ["config.json", "modules.json"].iter().any(|name| is_listed(&directory.join(name))) {
            return Ok(ModelFiles { folder: directory.to_owned(), warning: None });
        }
        if directory.is_file() {
            bail!("--model {} is a file; pass the folder of a model", source.model);
        }
        let hub_id = is_hub_id(&source.model);
        match (hub_id, directory.is_dir()) {
            (true, _) => {
                let (folder, warning) = hub::snapshot(source).map_err(|error| match directory.is_dir() {
                    true => error.context(format!("{} is a directory without config.json", source.model)),
                    false => error,
                })?;
                Ok(ModelFiles { folder, warning })
            }
            (false, true) => bail!("{} has no config.json; pass the folder of a model", directory.display()),
            (false, false) => bail!(
                "there is no model {:?}: it is neither a directory nor an id like org/name on the hub",
                source.model
            ),
        }
    }

    /// The files of the encoder, which lie in a folder of their own in models of the first releases of
    /// sentence-transformers.
    pub fn inside(&self, folder: &Path) -> Self {
        let folder = if folder == Path::new("") { self.folder.clone() } else { self.folder.join(folder) };
        ModelFiles { folder, warning: None }
    }

    /// `config.json`.
    pub fn config(&self) -> PathBuf {
        self.folder.join("config.json")
    }

    /// The weights: one file, or the index of several.
    ///
    /// # Errors
    /// If there are none in safetensors form.
    pub fn weights(&self) -> Result<PathBuf> {
        let path = self.folder.join("model.safetensors");
        let has = |name: &str| is_listed(&self.folder.join(name));
        if is_listed(&path) {
            return Ok(path);
        }
        let folder = self.folder.display();
        if has(INDEX) {
            return Ok(self.folder.join(INDEX));
        }
        // Exports lie in the folder itself or in one below it, as onnx/model.onnx.
        let below = |folder: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut files = below(&self.folder);
        files.extend(["onnx", "openvino"].iter().flat_map(|inside| below(&self.folder.join(inside))));
        files.sort();
        let names: Vec<_> =
            files.iter().filter_map(|file| file.strip_prefix(&self.folder).ok()?.to_str()).collect();
        match other_weights(names.iter().copied()) {
            Some(found) => bail!("{folder} {found}"),
            None => bail!(
                "{folder} has no model.safetensors; download the model again, or pass --random-weights SEED"
            ),
        }
    }

    /// The tokenizer: the first of its files.
    ///
    /// # Errors
    /// If there is none, or none in a form that can be read.
    pub fn tokenizer(&self) -> Result<PathBuf> {
        let folder = self.folder.display();
        match tokenizer_files(|name| is_listed(&self.folder.join(name))) {
            Ok(Some(files)) => Ok(self.folder.join(files[0])),
            Ok(None) => bail!("{folder} {NO_TOKENIZER}; download the model again, or pass --tokenizer FILE"),
            Err(why) => bail!("{folder} {why}"),
        }
    }
}

/// Whether a model's folder usually has a file of this name.
pub fn is_model_file(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "README.md",
        "added_tokens.json",
        "config.json",
        "config_sentence_transformers.json",
        "merges.txt",
        "model.safetensors",
        "modules.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
        INDEX,
    ];
    let is_shard = name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors");
    let is_pickle = name.starts_with("pytorch_model") && name.ends_with(".bin");
    let is_limit = name.starts_with("sentence_") && name.ends_with("_config.json");
    NAMES.contains(&name) || SENTENCE_PIECES.contains(&name) || is_shard || is_pickle || is_limit
}

/// Whether a name can be an id on the hub: `name` or `org/name`.
fn is_hub_id(model: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let parts: Vec<&str> = model.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(part)
}
