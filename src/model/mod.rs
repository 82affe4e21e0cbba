//! What a model's files say. This room reads and decides; it never multiplies.

pub mod config;
pub mod families;
pub mod files;
mod hub;
pub mod names;
mod own_fields;
pub mod pipeline;
pub mod purpose;
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

/// What sentence-transformers calls the configuration of the Transformer module; the first that says anything counts.
const SENTENCE_CONFIGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The index of weights in several shards.
const INDEX: &str = "model.safetensors.index.json";

/// How weights in pickle form become usable.
const CONVERT: &str = "pickles can run code, so Sconce does not read them: convert the model once with \
    transformers (AutoModel.from_pretrained(DIR).save_pretrained(OUT))";

/// Weights in forms that are not read, and what helps: another download does not.
const OTHER_WEIGHTS: &[(&str, &str)] = &[
    ("pytorch_model.bin", CONVERT),
    ("pytorch_model.bin.index.json", CONVERT),
    (
        "tf_model.h5",
        "Sconce reads safetensors: convert the model once with transformers 4 and TensorFlow \
         (AutoModel.from_pretrained(DIR, from_tf=True).save_pretrained(OUT))",
    ),
    (
        "flax_model.msgpack",
        "Sconce reads safetensors: convert the model once with transformers 4 and Flax \
         (AutoModel.from_pretrained(DIR, from_flax=True).save_pretrained(OUT))",
    ),
    (
        "adapter_model.safetensors",
        "that is an adapter (PEFT): merge it into its base model once \
         (AutoPeftModel.from_pretrained(DIR).merge_and_unload().save_pretrained(OUT))",
    ),
    (".onnx", "Sconce reads safetensors: choose the model that this was exported from"),
    (".gguf", "Sconce reads safetensors: choose the model that this was converted from"),
    ("openvino_model.xml", "Sconce reads safetensors: choose the model that this was exported from"),
    ("rust_model.ot", "Sconce reads safetensors: choose the model that this was converted from"),
];

/// What is to be said of a model whose weights are there only in a form that is not read; none if none of its `files` is
/// such.
fn other_weights<'a>(files: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    OTHER_WEIGHTS.iter().find_map(|(end, remedy)| {
        let file = files.clone().find(|file| file.ends_with(end))?;
        Some(format!("has its weights only as {file}; {remedy}"))
    })
}

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
        _ => bail!("{} does not hold a JSON object; fix the file", path.display()),
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
        Err(error) => bail!("{} is not valid JSON ({error}); download the file again", path.display()),
    }
}
