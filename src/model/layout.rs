//! Which files a model has, as transformers and sentence-transformers lay them out. Stated once: download,
//! the cache check, loading, resuming, and the check that no output overwrites a model file all ask this
//! module.
//!
//! Names are relative to the model's directory, with `/` between folders, as in a repository on the hub.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::sys::regular_file::has_dir_entry;

/// The configuration of the encoder.
pub const CONFIG: &str = "config.json";
/// The weights of the encoder, or of a module.
pub const WEIGHTS: &str = "model.safetensors";
/// The index of weights in several shards.
pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
/// The weights of the encoder, or of a module, as PyTorch saves them.
pub const TORCH_WEIGHTS: &str = "pytorch_model.bin";
/// The index of weights in several shards, as PyTorch saves them.
pub const TORCH_WEIGHTS_INDEX: &str = "pytorch_model.bin.index.json";
/// The indexes of weights in several shards.
pub const WEIGHTS_INDEXES: [&str; 2] = [WEIGHTS_INDEX, TORCH_WEIGHTS_INDEX];
/// The files that hold or list all weights of the encoder; the first one that exists is used.
pub const ALL_WEIGHTS: [&str; 4] = [WEIGHTS, WEIGHTS_INDEX, TORCH_WEIGHTS, TORCH_WEIGHTS_INDEX];
/// The files that hold the weights of a module; the first one that exists is used.
pub const MODULE_WEIGHTS: [&str; 2] = [WEIGHTS, TORCH_WEIGHTS];
/// The configuration of a LoRA adapter, as PEFT saves it.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The files that hold the weights of a LoRA adapter, as PEFT saves them; the first one that exists is used.
pub const ADAPTER_WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// The folder that the folders of adapters may be in.
pub const ADAPTER_FOLDER: &str = "adapters";
/// The list of modules of a sentence-transformers model.
pub const MODULES: &str = "modules.json";
/// The prompts, the truncation and the type of a sentence-transformers model.
pub const MODEL_SETTINGS: &str = "config_sentence_transformers.json";
/// The routes of a Router module.
pub const ROUTER: &str = "router_config.json";
/// The settings of an original ColBERT checkpoint.
pub const ARTIFACT_METADATA: &str = "artifact.metadata";
/// The layer of lexical weights, which FlagEmbedding saves beside the encoder of a model like BGE-M3.
pub const SPARSE_LINEAR: &str = "sparse_linear.pt";
/// The projection of token vectors, which FlagEmbedding saves beside the encoder of a model like BGE-M3.
pub const COLBERT_LINEAR: &str = "colbert_linear.pt";
/// The settings of the tokenizer, such as its limit and its truncation side.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The chat template of the tokenizer.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The configuration of sentence-transformers' Transformer module, by the class of the model that it was
/// saved from; the first file that is not an empty object is used.
pub const TRANSFORMER_CONFIGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The end of a sentence about a model without any tokenizer.
pub const NO_TOKENIZER: &str = "has no tokenizer.json (nor vocab.txt, nor vocab.json with \
     merges.txt, nor a SentencePiece model such as spiece.model)";

/// A complete tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// The merges of a byte-pair vocabulary.
const MERGES: &str = "merges.txt";
/// The sets of files that a tokenizer can be read from; the first complete set is used.
pub const TOKENIZERS: [&[&str]; 7] = [
    &[TOKENIZER],
    &["vocab.txt"],
    &["vocab.json", MERGES],
    // SentencePiece models. transformers takes `tokenizer.model` first, else the file of the class.
    &["tokenizer.model"],
    &["sentencepiece.bpe.model"],
    &["spiece.model"],
    &["spm.model"],
];
/// The file of each set that has the vocabulary.
const VOCABULARIES: [&str; TOKENIZERS.len()] = {
    let mut names = [TOKENIZER; TOKENIZERS.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = TOKENIZERS[i][0];
        i += 1;
    }
    names
};
/// Files that change how a vocabulary is read.
pub const TOKENIZER_SETTINGS: [&str; 3] = [TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"];
/// The class of a module of static embeddings, which needs no config.
const STATIC_EMBEDDING: &str = "StaticEmbedding";

/// The remedy for the weights of an adapter without `adapter_config.json`.
const LONE_ADAPTER: &str = "that is an adapter (PEFT): merge it into its base model once \
     (AutoPeftModel.from_pretrained(DIR).merge_and_unload().save_pretrained(OUT))";

/// Weights in forms that are not read, by the end of the file's name, each with the remedy.
const UNSUPPORTED_WEIGHTS: &[(&str, &str)] = &[
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
    (ADAPTER_WEIGHTS[0], LONE_ADAPTER),
    (ADAPTER_WEIGHTS[1], LONE_ADAPTER),
    (".onnx", "Sconce reads safetensors: choose the model that this was exported from"),
    (".gguf", "Sconce reads safetensors: choose the model that this was converted from"),
    ("openvino_model.xml", "Sconce reads safetensors: choose the model that this was exported from"),
    ("rust_model.ot", "Sconce reads safetensors: choose the model that this was converted from"),
];

/// The end of a sentence about a model whose weights are only in an unsupported form; `None` if none of its
/// `files` holds weights.
pub fn unsupported_weights<'a>(files: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    UNSUPPORTED_WEIGHTS.iter().find_map(|(end, remedy)| {
        let file = files.clone().find(|file| file.ends_with(end))?;
        Some(format!("has its weights only as {file}; {remedy}"))
    })
}

/// The files of a model's tokenizer; `None` if it has no tokenizer.
pub fn tokenizer_files(has: impl Fn(&str) -> bool) -> Option<&'static [&'static str]> {
    TOKENIZERS.into_iter().find(|files| files.iter().all(|name| has(name)))
}

/// The path of the weights of an adapter in its folder.
pub fn adapter_weights(folder: &Path) -> PathBuf {
    let mut files = ADAPTER_WEIGHTS.into_iter().map(|name| folder.join(name));
    files.find(|file| has_dir_entry(file)).unwrap_or_else(|| folder.join(ADAPTER_WEIGHTS[0]))
}

/// The path of the tokenizer in a folder.
pub fn tokenizer_in(folder: &Path) -> Result<PathBuf> {
    let shown = folder.display();
    match tokenizer_files(|name| has_dir_entry(&folder.join(name))) {
        Some(files) => Ok(folder.join(files[0])),
        None => bail!("{shown} {NO_TOKENIZER}; download the model again, or pass --tokenizer FILE"),
    }
}

/// The files that a module of `modules.json` needs in its folder, by the name of its class: one of each list.
pub fn module_files(class: &str) -> &'static [&'static [&'static str]] {
    match class {
        "Pooling" | "SpladePooling" | "MultiVectorMask" | "HierarchicalTokenPooling" | "LogitScore" => {
            &[&[CONFIG]]
        }
        "Dense" | "LayerNorm" => &[&[CONFIG], &MODULE_WEIGHTS],
        "SparseStaticEmbedding" => &[&[CONFIG], &MODULE_WEIGHTS, &VOCABULARIES],
        "Router" => &[&[ROUTER]],
        STATIC_EMBEDDING => &[&[TOKENIZER], &MODULE_WEIGHTS],
        _ => &[],
    }
}

/// Whether an output of this name could overwrite a file of a model.
pub fn is_model_file(name: &str) -> bool {
    let is_torch = name.starts_with("pytorch_model") && name.ends_with(".bin");
    let is_transformer_config = name.starts_with("sentence_") && name.ends_with("_config.json");
    let settings = [
        MODULES,
        MODEL_SETTINGS,
        ROUTER,
        ARTIFACT_METADATA,
        SPARSE_LINEAR,
        COLBERT_LINEAR,
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS[0],
        ADAPTER_WEIGHTS[1],
        CHAT_TEMPLATE,
    ];
    ["README.md", CONFIG, WEIGHTS, WEIGHTS_INDEX, TORCH_WEIGHTS_INDEX].contains(&name)
        || settings.contains(&name)
        || TOKENIZERS.iter().any(|files| files.contains(&name))
        || TOKENIZER_SETTINGS.contains(&name)
        || is_shard(name) && name.contains("-of-")
        || is_torch
        || is_transformer_config
}

/// The existing optional files beside `file` (a config or a tokenizer) that change how the model is read.
pub fn optional_files_beside(file: &Path) -> impl Iterator<Item = PathBuf> {
    let names = [MODULES, MODEL_SETTINGS, ROUTER, ARTIFACT_METADATA, MERGES, CHAT_TEMPLATE]
        .into_iter()
        .chain(TRANSFORMER_CONFIGS)
        .chain(TOKENIZER_SETTINGS);
    names.map(|name| file.with_file_name(name)).filter(|file| file.is_file())
}

/// Whether a name is that of one of several files of weights: `model-00001-of-00003.safetensors`.
pub fn is_shard(name: &str) -> bool {
    name.starts_with("model-") && name.ends_with(".safetensors") && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_with_names_of_model_files_are_recognized() {
        for name in
            [WEIGHTS, "merges.txt", "spiece.model", "model-1-of-2.safetensors", "sentence_x_config.json"]
        {
            assert!(is_model_file(name), "{name}");
        }
        for name in ["out.safetensors", "model-vectors.safetensors", "config.jsonl", "vectors.json"] {
            assert!(!is_model_file(name), "{name}");
        }
    }
}
