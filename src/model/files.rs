//! Where a model's files are: a directory, the Hugging Face cache, or the hub.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{CONVERT, INDEX, NO_TOKENIZER, SENTENCE_PIECES, Source, hub, tokenizer_files};
use crate::disk::is_listed;

/// The folder of a model.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// The folder: what the user named, or a snapshot in the cache.
    pub folder: PathBuf,
}

impl ModelFiles {
    /// Finds a model: a directory with `config.json` first, then the cache, then the hub.
    ///
    /// # Errors
    /// If the model is nowhere, or the hub refuses or cannot be reached.
    pub fn locate(source: &Source) -> Result<Self> {
        let directory = Path::new(&source.model);
        if is_listed(&directory.join("config.json")) {
            return Ok(ModelFiles { folder: directory.to_owned() });
        }
        if directory.is_file() {
            bail!("--model {} is a file; pass the folder of a model", source.model);
        }
        let hub_id = is_hub_id(&source.model);
        match (hub_id, directory.is_dir()) {
            (true, _) => {
                let folder = hub::snapshot(source).map_err(|error| match directory.is_dir() {
                    true => error.context(format!("{} is a directory without config.json", source.model)),
                    false => error,
                })?;
                Ok(ModelFiles { folder })
            }
            (false, true) => bail!("{} has no config.json; pass the folder of a model", directory.display()),
            (false, false) => bail!(
                "there is no model {:?}: it is neither a directory nor an id like org/name on the hub",
                source.model
            ),
        }
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
        if has("pytorch_model.bin") {
            bail!("{folder} has its weights only as pytorch_model.bin; {}", CONVERT)
        }
        bail!("{folder} has no model.safetensors; fetch the model again, or pass --random-weights SEED")
    }

    /// The tokenizer: the first of its files.
    ///
    /// # Errors
    /// If there is none, or none in a form that can be read.
    pub fn tokenizer(&self) -> Result<PathBuf> {
        let folder = self.folder.display();
        match tokenizer_files(|name| is_listed(&self.folder.join(name))) {
            Ok(Some(files)) => Ok(self.folder.join(files[0])),
            Ok(None) => bail!("{folder} {NO_TOKENIZER}; fetch the model again, or pass --tokenizer FILE"),
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
