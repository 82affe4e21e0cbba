//! What a model's files say. This room reads and decides; it never multiplies.

pub mod config;
pub mod families;
pub mod files;
mod hub;
pub mod names;
mod own_fields;
pub mod pipeline;
pub mod spec;
pub mod weights;

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::disk;

/// Which model, and how far to go for it.
#[derive(Debug, Clone)]
pub struct Source {
    /// A directory with a `config.json`, or an id on the hub.
    pub model: String,
    /// Branch, tag or commit on the hub.
    pub revision: String,
    /// Whether the network is out of bounds.
    pub offline: bool,
    /// Whether to draw download progress on standard error.
    pub progress: bool,
}

/// The index of weights in several shards.
const INDEX: &str = "model.safetensors.index.json";

/// How weights in pickle form become usable.
const CONVERT: &str = "pickles can run code, so Sconce does not read them: convert the model once with \
    transformers (AutoModel.from_pretrained(DIR).save_pretrained(OUT))";

/// The same for the modules of a pipeline.
const CONVERT_PIPELINE: &str = "pickles can run code, so Sconce does not read them: convert the model once with \
    sentence-transformers (SentenceTransformer(DIR).save_pretrained(OUT))";

/// What is to say of a model without any tokenizer.
const NO_TOKENIZER: &str = "has no tokenizer.json (nor vocab.txt, nor vocab.json with merges.txt)";

/// The files that a tokenizer can be read from, the best first.
const TOKENIZERS: [&[&str]; 3] = [&["tokenizer.json"], &["vocab.txt"], &["vocab.json", "merges.txt"]];

const SENTENCE_PIECES: [&str; 4] =
    ["sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"];

/// The files of a model's tokenizer; none if it has no file of any.
///
/// # Errors
/// If it is only there in a form that is not read: what is to be said of the model.
fn tokenizer_files(has: impl Fn(&str) -> bool) -> Result<Option<&'static [&'static str]>, String> {
    if let Some(files) = TOKENIZERS.into_iter().find(|files| files.iter().all(|name| has(name))) {
        return Ok(Some(files));
    }
    match SENTENCE_PIECES.into_iter().find(|name| has(name)) {
        None => Ok(None),
        Some(name) => Err(format!(
            "has its tokenizer only as {name}, a SentencePiece model, which Sconce does not read; save a \
             tokenizer.json once with transformers (AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT))"
        )),
    }
}

/// Reads a file that has to hold a JSON object.
fn read_json_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path)? {
        Value::Object(fields) => Ok(fields),
        _ => bail!("{} does not hold a JSON object; fetch the file again", path.display()),
    }
}

/// Reads a file that has to hold JSON.
fn read_json(path: &Path) -> Result<Value> {
    let bytes = match disk::read(path, disk::MAX_CONFIG_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => bail!("cannot read {} ({error}); download the model again", path.display()),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(value),
        Err(error) => bail!("{} is not valid JSON ({error}); fetch the file again", path.display()),
    }
}
