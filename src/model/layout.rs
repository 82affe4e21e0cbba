//! Which files a model has, as transformers and sentence-transformers lay them out. Stated once: download, the cache check,
//! loading, resuming, and the check that no output overwrites a model file all ask this module.
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
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
/// The weights of the encoder, or of a module, as PyTorch saves them.
const TORCH_WEIGHTS: &str = "pytorch_model.bin";
/// The index of weights in several shards, as PyTorch saves them.
const TORCH_WEIGHTS_INDEX: &str = "pytorch_model.bin.index.json";
/// The indexes of weights in several shards.
pub const WEIGHTS_INDEXES: [&str; 2] = [WEIGHTS_INDEX, TORCH_WEIGHTS_INDEX];
/// The files that hold or list all weights of the encoder; the first one that exists is used.
pub const ALL_WEIGHTS: [&str; 4] = [WEIGHTS, WEIGHTS_INDEX, TORCH_WEIGHTS, TORCH_WEIGHTS_INDEX];
/// The files that hold the weights of a module; the first one that exists is used.
pub const MODULE_WEIGHTS: [&str; 2] = [WEIGHTS, TORCH_WEIGHTS];
/// The configuration of a LoRA adapter, as PEFT saves it.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The files that hold the weights of a LoRA adapter, as PEFT saves them; the first one that exists is used.
const ADAPTER_WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
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
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The configuration of sentence-transformers' Transformer module, by the class of the model that it was saved from; the first
/// file that is not an empty object is used.
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
const NO_TOKENIZER: &str = "has no tokenizer.json (nor vocab.txt, nor vocab.json with merges.txt)";

/// A complete tokenizer.
const TOKENIZER: &str = "tokenizer.json";
/// The merges of a byte-pair vocabulary.
const MERGES: &str = "merges.txt";
/// The sets of files that a tokenizer can be read from; the first complete set is used.
const TOKENIZERS: [&[&str]; 3] = [&[TOKENIZER], &["vocab.txt"], &["vocab.json", MERGES]];
/// Files that change how a vocabulary is read.
const TOKENIZER_SETTINGS: [&str; 3] = [TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"];
/// Tokenizers in SentencePiece form, which is not read.
const SENTENCE_PIECES: [&str; 4] =
    ["sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"];
/// The folders of the encoder, or of the static embeddings, if they are not on top, with a file of each: in models of the first releases
/// of sentence-transformers, that of CLIP, that of documents in models with a Router, and that of static embeddings.
const ENCODER_FOLDERS: [(&str, &str); 5] = [
    ("0_Transformer/", CONFIG),
    ("0_CLIPModel/", CONFIG),
    ("document_0_Transformer/", CONFIG),
    ("document_0_MLMTransformer/", CONFIG),
    ("0_StaticEmbedding/", TOKENIZER),
];
/// The class of a module of static embeddings, which needs no config.
const STATIC_EMBEDDING: &str = "StaticEmbedding";

/// The remedy for PyTorch checkpoints that are not read.
pub const CONVERT: &str = "if you trust it, convert the model once with transformers (AutoModel.from_pretrained(DIR).save_pretrained(OUT))";

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

/// The end of a sentence about a model whose weights are only in an unsupported form; `None` if none of its `files` holds
/// weights.
pub fn unsupported_weights<'a>(files: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    UNSUPPORTED_WEIGHTS.iter().find_map(|(end, remedy)| {
        let file = files.clone().find(|file| file.ends_with(end))?;
        Some(format!("has its weights only as {file}; {remedy}"))
    })
}

/// The files of a model's tokenizer; `None` if it has no tokenizer.
///
/// # Errors
/// If the tokenizer is only there in an unsupported form: the end of a sentence about the model.
pub fn tokenizer_files(has: impl Fn(&str) -> bool) -> Result<Option<&'static [&'static str]>, String> {
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

/// The path of the weights of an adapter in its folder.
pub fn adapter_weights(folder: &Path) -> PathBuf {
    let mut files = ADAPTER_WEIGHTS.into_iter().map(|name| folder.join(name));
    files.find(|file| has_dir_entry(file)).unwrap_or_else(|| folder.join(ADAPTER_WEIGHTS[0]))
}

/// The path of the tokenizer in a folder.
pub fn tokenizer_in(folder: &Path) -> Result<PathBuf> {
    let shown = folder.display();
    match tokenizer_files(|name| has_dir_entry(&folder.join(name))) {
        Ok(Some(files)) => Ok(folder.join(files[0])),
        Ok(None) => bail!("{shown} {NO_TOKENIZER}; download the model again, or pass --tokenizer FILE"),
        Err(why) => bail!("{shown} {why}"),
    }
}

/// The files that a module of `modules.json` needs in its folder, by the name of its class: one of each list.
pub fn module_files(class: &str) -> &'static [&'static [&'static str]] {
    match class {
        "Pooling" | "SpladePooling" | "MultiVectorMask" | "HierarchicalTokenPooling" | "LogitScore" => {
            &[&[CONFIG]]
        }
        "Dense" | "LayerNorm" => &[&[CONFIG], &MODULE_WEIGHTS],
        "SparseStaticEmbedding" => &[&[CONFIG], &MODULE_WEIGHTS, &[TOKENIZER, "vocab.txt", "vocab.json"]],
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
        || SENTENCE_PIECES.contains(&name)
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

/// The files to download of a repository on the hub, which has these `names`: what Sconce reads, the weights last, so that a
/// model with weights is complete.
pub fn files_to_download<'a>(model: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
    let repository = Repository { names };
    let folder = repository.encoder_folder();
    let tokenizer = check_required(model, &repository)?;
    let is_setting = |name: &str| {
        let mut of_encoder = [CONFIG, TOKENIZER, CHAT_TEMPLATE]
            .into_iter()
            .chain(TRANSFORMER_CONFIGS)
            .chain(TOKENIZER_SETTINGS);
        [MODULES, MODEL_SETTINGS, ROUTER, ARTIFACT_METADATA, SPARSE_LINEAR, COLBERT_LINEAR].contains(&name)
            || name
                .strip_prefix(folder)
                .is_some_and(|name| tokenizer.contains(&name) || of_encoder.any(|file| file == name))
    };
    let weights = repository.weights();
    let is_weights = |name: &str| {
        let name = name.strip_prefix(folder);
        let is_shard = |name: &str| match weights {
            Some(WEIGHTS_INDEX) => is_shard(name),
            Some(TORCH_WEIGHTS_INDEX) => is_torch_shard(name),
            _ => false,
        };
        name.is_some_and(|name| Some(name) == weights || is_shard(name))
    };
    let is_module_file = |name: &str| {
        let is_replaced = || {
            [MODULE_WEIGHTS, ADAPTER_WEIGHTS].iter().any(|[safetensors, torch]| {
                name.strip_suffix(torch).is_some_and(|it| repository.has(&format!("{it}{safetensors}")))
            })
        };
        let is_setting =
            is_file_of_module(name, &[CONFIG, WEIGHTS, TORCH_WEIGHTS]) || is_query_tokenizer(name);
        !is_weights(name) && (is_setting || is_adapter_file(folder, name)) && !is_replaced()
    };
    let names = names.iter().map(String::as_str);
    let settings = names.clone().filter(|name| is_setting(name) || is_module_file(name));
    Ok(settings.chain(names.filter(|name| is_weights(name))).collect())
}

/// Checks that a repository has what every model needs, and returns the files of its tokenizer.
fn check_required(model: &str, repository: &Repository) -> Result<&'static [&'static str]> {
    let folder = repository.encoder_folder();
    let has = |name: &str| repository.has(&format!("{folder}{name}"));
    if repository.is_adapter() {
        return Ok(tokenizer_files(has).ok().flatten().unwrap_or_default());
    }
    // Static embeddings may lack a config. Then they have neither the settings of an encoder nor a Pooling module.
    let has_settings = TRANSFORMER_CONFIGS.iter().chain(&TOKENIZER_SETTINGS).any(|name| has(name));
    let has_pooling = repository.names.iter().any(|name| name.contains("Pooling/"));
    let is_static = repository.has(MODULES) && !has_settings && !has_pooling;
    if !has(CONFIG) && !is_static {
        bail!("model {model} has no config.json on the hub; choose another model")
    }
    if repository.weights().is_none() {
        let files = repository.names.iter().filter_map(|name| name.strip_prefix(folder));
        match unsupported_weights(files) {
            Some(found) => bail!("model {model} {found}"),
            None => bail!("model {model} has no model.safetensors on the hub; choose another model"),
        }
    }
    match tokenizer_files(has) {
        Ok(Some(files)) => Ok(files),
        Ok(None) => bail!("model {model} {NO_TOKENIZER} on the hub; choose another model"),
        Err(why) => bail!("model {model} {why}"),
    }
}

/// The optional files that a repository does not have. Without a note of their absence, a cache that lacks them may come from
/// a tool that downloaded only a part of the model.
pub fn absent_files(names: &[String]) -> Vec<String> {
    let repository = Repository { names };
    let folder = repository.encoder_folder();
    let in_folder = |name: &str| format!("{folder}{name}");
    let has_modules = repository.has(MODULES);
    let mut optional = vec![in_folder(TOKENIZER_CONFIG), MODULES.to_owned()];
    // Beside a tokenizer.json, the other settings hardly ever change anything.
    if !repository.has(&in_folder(TOKENIZER)) {
        optional.extend([TOKENIZER].into_iter().chain(TOKENIZER_SETTINGS).map(in_folder));
    }
    if repository.is_adapter() {
        optional.push(in_folder(WEIGHTS));
    }
    if has_modules {
        optional.push(MODEL_SETTINGS.to_owned());
    }
    if has_modules && !TRANSFORMER_CONFIGS.iter().any(|name| repository.has(&in_folder(name))) {
        optional.extend(TRANSFORMER_CONFIGS.map(in_folder));
    }
    optional.retain(|name| !repository.has(name));
    optional
}

/// The files of a snapshot in the cache.
pub struct Snapshot<'a> {
    /// Whether the snapshot has a file.
    pub has: &'a dyn Fn(&str) -> bool,
    /// Whether the cache notes that the repository does not have a file.
    pub is_absent: &'a dyn Fn(&str) -> bool,
    /// The folder of the encoder below the model's; empty or without a `/` at its end.
    pub encoder: &'a str,
    /// Whether the model has static embeddings, which need no config.
    pub is_static: bool,
    /// The files that the modules of `modules.json` need, one of each list; `None` for a model without that file.
    pub modules: Option<Vec<Vec<String>>>,
    /// The shards that the index of the weights names, relative to the encoder's folder; `None` without an index.
    pub shards: Option<Vec<String>>,
}

/// Whether a snapshot has all files of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// A required file is missing.
    Incomplete,
    /// All required files exist. This optional file, which would change vectors, does not, and is not recorded as absent on the hub.
    Unknown(&'static str),
    /// All required files exist; each optional file exists or is recorded as absent.
    Complete,
}

impl Snapshot<'_> {
    /// The path of a file of the encoder.
    fn in_folder(&self, name: &str) -> String {
        Path::new(self.encoder).join(name).display().to_string()
    }

    /// Whether the encoder's folder has an adapter and no weights.
    fn is_adapter(&self) -> bool {
        let has = |name: &str| (self.has)(&self.in_folder(name));
        self.shards.is_none()
            && !MODULE_WEIGHTS.into_iter().any(has)
            && has(ADAPTER_CONFIG)
            && ADAPTER_WEIGHTS.into_iter().any(has)
    }

    /// The required files that are missing.
    pub fn missing(&self) -> Vec<String> {
        let in_folder = |name: &str| self.in_folder(name);
        let has = |name: &str| (self.has)(&in_folder(name));
        let is_known = |name: &str| has(name) || (self.is_absent)(&in_folder(name));
        let of_modules =
            self.modules.iter().flatten().filter(|files| !files.iter().any(|file| (self.has)(file)));
        let mut missing: Vec<String> = of_modules.filter_map(|files| files.first().cloned()).collect();
        // An adapter alone: its base model has the config and the weights, and the tokenizer if there is none here.
        if self.is_adapter() {
            return missing;
        }
        let has_tokenizer = has(TOKENIZER)
            || tokenizer_files(has).is_ok_and(|files| files.is_some())
                && is_known(TOKENIZER)
                && TOKENIZER_SETTINGS.into_iter().all(is_known);
        missing.extend((!has(CONFIG) && !self.is_static).then(|| in_folder(CONFIG)));
        missing.extend((!has_tokenizer).then(|| in_folder(TOKENIZER)));
        if !MODULE_WEIGHTS.into_iter().any(has) {
            match &self.shards {
                Some(shards) => {
                    missing.extend(
                        shards.iter().map(|shard| in_folder(shard)).filter(|shard| !(self.has)(shard)),
                    );
                }
                None => missing.push(in_folder(WEIGHTS)),
            }
        }
        missing.sort();
        missing.dedup();
        missing
    }

    /// Whether the snapshot has all files of the model.
    pub fn completeness(&self) -> Completeness {
        let in_folder = |name: &str| self.in_folder(name);
        let has = |name: &str| (self.has)(&in_folder(name));
        let is_absent = |name: &str| (self.is_absent)(&in_folder(name));
        let is_known = |name: &str| has(name) || is_absent(name);
        if !self.missing().is_empty() {
            return Completeness::Incomplete;
        }
        let is_adapter = self.is_adapter();
        if is_adapter && !is_absent(WEIGHTS) {
            return Completeness::Unknown(WEIGHTS);
        }
        let configs = TRANSFORMER_CONFIGS;
        let is_transformer_known = || configs.into_iter().any(has) || configs.into_iter().all(is_absent);
        if !is_known(TOKENIZER_CONFIG) {
            Completeness::Unknown(TOKENIZER_CONFIG)
        } else if self.modules.is_none() {
            Completeness::Complete
        } else if !is_transformer_known() {
            Completeness::Unknown(configs[0])
        } else if !(self.has)(MODEL_SETTINGS) && !(self.is_absent)(MODEL_SETTINGS) {
            Completeness::Unknown(MODEL_SETTINGS)
        } else {
            Completeness::Complete
        }
    }
}

/// The list of files of a repository on the hub.
struct Repository<'a> {
    names: &'a [String],
}

impl Repository<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// The file that holds or lists the weights of the encoder.
    fn weights(&self) -> Option<&'static str> {
        let folder = self.encoder_folder();
        ALL_WEIGHTS.into_iter().find(|name| self.has(&format!("{folder}{name}")))
    }

    /// Whether it has an adapter and not the weights of its base model.
    fn is_adapter(&self) -> bool {
        let folder = self.encoder_folder();
        let has = |name: &str| self.has(&format!("{folder}{name}"));
        self.weights().is_none() && has(ADAPTER_CONFIG) && ADAPTER_WEIGHTS.into_iter().any(has)
    }

    /// The folder of the encoder's files, with a `/` at its end; empty where they are on top.
    fn encoder_folder(&self) -> &'static str {
        let folder = ENCODER_FOLDERS.into_iter().find(|(folder, file)| self.has(&format!("{folder}{file}")));
        folder.filter(|_| self.has(MODULES)).map_or("", |(folder, _)| folder)
    }
}

/// Whether a file is in the folder of a module and has one of these names: `1_Pooling/config.json`,
/// `2_Dense/model.safetensors`, `document_1_SpladePooling/config.json`.
fn is_file_of_module(name: &str, files: &[&str]) -> bool {
    let Some((folder, file)) = name.split_once('/') else { return false };
    let of_route = ["query_", "document_"].iter().find_map(|route| folder.strip_prefix(route));
    of_route.unwrap_or(folder).starts_with(|c: char| c.is_ascii_digit()) && files.contains(&file)
}

/// Whether a file is of an adapter: `adapter_config.json` beside the encoder, in a folder of a task, or in one below `adapters`.
fn is_adapter_file(encoder_folder: &str, name: &str) -> bool {
    let Some(name) = name.strip_prefix(encoder_folder) else { return false };
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let folder =
        folder.strip_prefix(ADAPTER_FOLDER).and_then(|rest| rest.strip_prefix('/')).unwrap_or(folder);
    (file == ADAPTER_CONFIG || ADAPTER_WEIGHTS.contains(&file))
        && !folder.contains('/')
        && !folder.starts_with("checkpoint-")
}

/// Whether a file is of the tokenizer of queries: `query_0_SparseStaticEmbedding/tokenizer.json`.
fn is_query_tokenizer(name: &str) -> bool {
    let mut vocabularies = TOKENIZERS.into_iter().flatten().copied().chain(TOKENIZER_SETTINGS);
    name.starts_with("query_") && vocabularies.any(|file| is_file_of_module(name, &[file]))
}

/// Whether a name is that of one of several files of weights: `model-00001-of-00003.safetensors`.
fn is_shard(name: &str) -> bool {
    name.starts_with("model-") && name.ends_with(".safetensors") && !name.contains('/')
}

/// Whether a name is that of one of several PyTorch checkpoints: `pytorch_model-00001-of-00003.bin`.
fn is_torch_shard(name: &str) -> bool {
    name.starts_with("pytorch_model-") && name.ends_with(".bin") && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shards_are_downloaded_only_without_a_single_file() {
        let shards = ["model-1-of-2.safetensors", "model-2-of-2.safetensors", WEIGHTS_INDEX];
        let sharded = names(&[&["README.md", CONFIG, TOKENIZER, "vocab.txt"][..], &shards].concat());
        let expected = [&[CONFIG, TOKENIZER][..], &shards].concat();
        assert_eq!(files_to_download("model", &sharded).unwrap(), expected);
        let both = [sharded, names(&[WEIGHTS])].concat();
        assert_eq!(files_to_download("model", &both).unwrap(), [CONFIG, TOKENIZER, WEIGHTS]);
    }

    #[test]
    fn the_linear_layers_beside_an_encoder_are_downloaded() {
        let unified =
            names(&["colbert_linear.pt", CONFIG, "other.pt", "sparse_linear.pt", TOKENIZER, WEIGHTS]);
        let expected = ["colbert_linear.pt", CONFIG, "sparse_linear.pt", TOKENIZER, WEIGHTS];
        assert_eq!(files_to_download("model", &unified).unwrap(), expected);
    }

    #[test]
    fn the_chat_template_and_the_tokens_of_a_reranker_are_downloaded() {
        let reranker = names(&[
            "1_LogitScore/config.json",
            CHAT_TEMPLATE,
            CONFIG,
            MODULES,
            TOKENIZER,
            "additional_chat_templates/tool_use.jinja",
            WEIGHTS,
        ]);
        let found = files_to_download("model", &reranker).unwrap();
        assert_eq!(found, ["1_LogitScore/config.json", CHAT_TEMPLATE, CONFIG, MODULES, TOKENIZER, WEIGHTS]);
    }

    #[test]
    fn pytorch_checkpoints_are_downloaded_only_without_safetensors() {
        let modules = ["2_Dense/config.json", "2_Dense/pytorch_model.bin"];
        let torch = names(&[&[MODULES, CONFIG, TOKENIZER, TORCH_WEIGHTS][..], &modules].concat());
        let found = files_to_download("model", &torch).unwrap();
        assert_eq!(found, [&[MODULES, CONFIG, TOKENIZER][..], &modules, &[TORCH_WEIGHTS]].concat());
        let both = [torch, names(&[WEIGHTS, "2_Dense/model.safetensors"])].concat();
        let found = files_to_download("model", &both).unwrap();
        assert!(!found.iter().any(|name| name.ends_with(".bin")), "{found:?}");
        let shards =
            ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", TORCH_WEIGHTS_INDEX];
        let sharded = names(&[&[CONFIG, TOKENIZER][..], &shards].concat());
        assert_eq!(files_to_download("model", &sharded).unwrap(), sharded);
    }

    #[test]
    fn modules_are_downloaded_before_the_weights_of_the_encoder() {
        let files =
            ["0_Transformer/config.json", "0_Transformer/model.safetensors", "0_Transformer/tokenizer.json"];
        let modules =
            ["1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/config.json", "onnx/config.json"];
        let repository = names(&[&[MODULES, CONFIG][..], &files, &modules].concat());
        let found = files_to_download("model", &repository).unwrap();
        assert_eq!(found.last(), Some(&"0_Transformer/model.safetensors"));
        assert!(modules[..3].iter().all(|file| found.contains(file)) && !found.contains(&modules[3]));
        assert!(!found.contains(&CONFIG), "the config on top is not the encoder's");
    }

    #[test]
    fn adapters_are_downloaded_before_the_weights_of_the_encoder() {
        let adapters = [
            "adapters/retrieval/adapter_config.json",
            "adapters/retrieval/adapter_model.safetensors",
            "clustering/adapter_config.json",
            "clustering/adapter_model.safetensors",
        ];
        let others =
            ["checkpoint-5/adapter_model.safetensors", "a/b/adapter_config.json", "adapters/x/optimizer.pt"];
        let repository = names(&[&[CONFIG, TOKENIZER][..], &adapters, &others, &[WEIGHTS]].concat());
        let found = files_to_download("model", &repository).unwrap();
        assert_eq!(found, [&[CONFIG, TOKENIZER][..], &adapters, &[WEIGHTS]].concat());
    }

    #[test]
    fn an_adapter_alone_is_downloaded_without_config_and_weights() {
        let adapter = ["1_Pooling/config.json", ADAPTER_CONFIG, MODULES, ADAPTER_WEIGHTS[0]];
        let repository = names(&[&adapter[..], &["README.md", "optimizer.pt"]].concat());
        assert_eq!(files_to_download("model", &repository).unwrap(), adapter);
        assert!(absent_files(&repository).contains(&WEIGHTS.to_owned()));
        let without_weights = names(&[ADAPTER_CONFIG, MODULES]);
        assert!(files_to_download("model", &without_weights).is_err());
        let completeness = |files: &[&str], absent: &[&str]| {
            Snapshot {
                has: &|name| files.contains(&name),
                is_absent: &|name| absent.contains(&name),
                encoder: "",
                is_static: false,
                modules: None,
                shards: None,
            }
            .completeness()
        };
        let files = [ADAPTER_CONFIG, ADAPTER_WEIGHTS[0]];
        assert_eq!(completeness(&files, &[WEIGHTS, TOKENIZER_CONFIG]), Completeness::Complete);
        assert_eq!(completeness(&files, &[TOKENIZER_CONFIG]), Completeness::Unknown(WEIGHTS));
        assert_eq!(completeness(&files[..1], &[WEIGHTS, TOKENIZER_CONFIG]), Completeness::Incomplete);
    }

    #[test]
    fn the_files_of_both_routes_are_downloaded() {
        let query = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        let query: Vec<String> =
            query.iter().map(|name| format!("query_0_SparseStaticEmbedding/{name}")).collect();
        let encoder = ["config.json", "tokenizer.json", "model.safetensors"];
        for folder in ["", "document_0_Transformer/"] {
            let encoder: Vec<String> = encoder.iter().map(|name| format!("{folder}{name}")).collect();
            let shared = names(&[MODULES, ROUTER, "document_1_SpladePooling/config.json"]);
            let repository = [shared, query.clone(), encoder].concat();
            assert_eq!(files_to_download("model", &repository).unwrap(), repository);
        }
    }

    #[test]
    fn a_snapshot_is_complete_if_optional_files_exist_or_are_noted_as_absent() {
        let completeness = |files: &[&str], absent: &[&str], modules: bool| {
            Snapshot {
                has: &|name| files.contains(&name),
                is_absent: &|name| absent.contains(&name),
                encoder: "",
                is_static: false,
                modules: modules.then(|| vec![vec!["1_Pooling/config.json".into()]]),
                shards: None,
            }
            .completeness()
        };
        let required = [CONFIG, WEIGHTS, TOKENIZER];
        assert_eq!(completeness(&required[1..], &[], false), Completeness::Incomplete);
        assert_eq!(completeness(&required, &[], false), Completeness::Unknown(TOKENIZER_CONFIG));
        assert_eq!(completeness(&required, &[TOKENIZER_CONFIG], false), Completeness::Complete);
        assert_eq!(completeness(&required, &[TOKENIZER_CONFIG], true), Completeness::Incomplete);
        let files = [&required[..], &["1_Pooling/config.json", TOKENIZER_CONFIG]].concat();
        assert_eq!(completeness(&files, &[], true), Completeness::Unknown(TRANSFORMER_CONFIGS[0]));
        let files = [&files[..], &[TRANSFORMER_CONFIGS[2]]].concat();
        assert_eq!(completeness(&files, &[], true), Completeness::Unknown(MODEL_SETTINGS));
        assert_eq!(completeness(&files, &[MODEL_SETTINGS], true), Completeness::Complete);
    }

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
