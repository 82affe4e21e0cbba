//! Which files of a repository on the hub to download.

use anyhow::{Result, bail};

use crate::model::layout::{
    ADAPTER_CONFIG, ADAPTER_FOLDER, ADAPTER_WEIGHTS, ALL_WEIGHTS, ARTIFACT_METADATA, CHAT_TEMPLATE,
    COLBERT_LINEAR, CONFIG, MODEL_SETTINGS, MODULE_WEIGHTS, MODULES, NO_TOKENIZER, ROUTER, SPARSE_LINEAR,
    TOKENIZER, TOKENIZER_CONFIG, TOKENIZER_SETTINGS, TOKENIZERS, TORCH_WEIGHTS, TORCH_WEIGHTS_INDEX,
    TRANSFORMER_CONFIGS, WEIGHTS, WEIGHTS_INDEX, is_shard, tokenizer_files, unsupported_weights,
};

/// The folders of the encoder, or of the static embeddings, if they are not on top, with a file of each: in
/// models of the first releases of sentence-transformers, that of CLIP, that of documents in models with a
/// Router, and that of static embeddings.
const ENCODER_FOLDERS: [(&str, &str); 5] = [
    ("0_Transformer/", CONFIG),
    ("0_CLIPModel/", CONFIG),
    ("document_0_Transformer/", CONFIG),
    ("document_0_MLMTransformer/", CONFIG),
    ("0_StaticEmbedding/", TOKENIZER),
];

/// The files to download of a repository on the hub, which has these `names`: what Sconce reads, the weights
/// last, so that a model with weights is complete.
pub(super) fn files_to_download<'a>(model: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
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
        return Ok(tokenizer_files(has).unwrap_or_default());
    }
    // Static embeddings may lack a config. Then they have neither the settings of an encoder nor a Pooling
    // module.
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
        Some(files) => Ok(files),
        None => bail!("model {model} {NO_TOKENIZER} on the hub; choose another model"),
    }
}

/// The optional files that a repository does not have. Without a note of their absence, a cache that lacks
/// them may come from a tool that downloaded only a part of the model.
pub(super) fn absent_files(names: &[String]) -> Vec<String> {
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

/// Whether a file is of an adapter: `adapter_config.json` beside the encoder, in a folder of a task, or in
/// one below `adapters`.
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

/// Whether a name is that of one of several PyTorch checkpoints: `pytorch_model-00001-of-00003.bin`.
fn is_torch_shard(name: &str) -> bool {
    name.starts_with("pytorch_model-") && name.ends_with(".bin") && !name.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::completeness::{Completeness, Snapshot};

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
        let incomplete = Completeness::Incomplete(names(&[CONFIG, WEIGHTS, TOKENIZER]));
        assert_eq!(completeness(&files[..1], &[WEIGHTS, TOKENIZER_CONFIG]), incomplete);
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
}
