//! Whether a snapshot in the cache has all files of a model.

use std::path::{Path, PathBuf};

use crate::checkpoint::read_index;
use crate::model::layout::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, MODEL_SETTINGS, MODULE_WEIGHTS, MODULES, TOKENIZER,
    TOKENIZER_CONFIG, TOKENIZER_SETTINGS, TRANSFORMER_CONFIGS, WEIGHTS, WEIGHTS_INDEXES, tokenizer_files,
};
use crate::model::modules::{Module, may_lack_size, read_modules};

/// The files of a snapshot in the cache.
pub(super) struct Snapshot<'a> {
    /// Whether the snapshot has a file.
    pub has: &'a dyn Fn(&str) -> bool,
    /// Whether the cache notes that the repository does not have a file.
    pub is_absent: &'a dyn Fn(&str) -> bool,
    /// The folder of the encoder below the model's; empty or without a `/` at its end.
    pub encoder: &'a str,
    /// Whether the model has static embeddings, which need no config.
    pub is_static: bool,
    /// The files that the modules of `modules.json` need, one of each list; `None` for a model without that
    /// file.
    pub modules: Option<Vec<Vec<String>>>,
    /// The shards that the index of the weights names, relative to the encoder's folder; `None` without an
    /// index.
    pub shards: Option<Vec<String>>,
}

/// Whether a snapshot has all files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completeness {
    /// These required files are missing; none are named if it is unknown which ones there are.
    Incomplete(Vec<String>),
    /// All required files exist. This optional file, which would change vectors, does not, and is not
    /// recorded as absent on the hub.
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
    fn missing(&self) -> Vec<String> {
        let in_folder = |name: &str| self.in_folder(name);
        let has = |name: &str| (self.has)(&in_folder(name));
        let is_known = |name: &str| has(name) || (self.is_absent)(&in_folder(name));
        let of_modules =
            self.modules.iter().flatten().filter(|files| !files.iter().any(|file| (self.has)(file)));
        let mut missing: Vec<String> = of_modules.filter_map(|files| files.first().cloned()).collect();
        // An adapter alone: its base model has the config and the weights, and the tokenizer if there is none
        // here.
        if self.is_adapter() {
            return missing;
        }
        let has_tokenizer = has(TOKENIZER)
            || tokenizer_files(has).is_some()
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
    pub(super) fn completeness(&self) -> Completeness {
        let in_folder = |name: &str| self.in_folder(name);
        let has = |name: &str| (self.has)(&in_folder(name));
        let is_absent = |name: &str| (self.is_absent)(&in_folder(name));
        let is_known = |name: &str| has(name) || is_absent(name);
        let missing = self.missing();
        if !missing.is_empty() {
            return Completeness::Incomplete(missing);
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

/// Whether a snapshot has all files of a model.
pub(super) fn completeness(
    snapshot: &Path,
    dimensions: Option<usize>,
    is_absent: &dyn Fn(&str) -> bool,
) -> Completeness {
    const UNKNOWN: Completeness = Completeness::Incomplete(Vec::new());
    let modules = match read_modules(&snapshot.join(MODULES), dimensions) {
        Ok(modules) => modules,
        Err(_) if is_absent(MODULES) => Vec::new(),
        Err(_) => return UNKNOWN,
    };
    if dimensions.is_some_and(|n| may_lack_size(&modules, snapshot, n, is_absent)) {
        return UNKNOWN;
    }
    let encoder = modules.iter().find(|module| module.is_encoder());
    let is_static = encoder.is_some_and(Module::is_static);
    let encoder = encoder.map_or("", |module| &module.path);
    let encoder_folder = snapshot.join(encoder);
    let index = WEIGHTS_INDEXES.into_iter().map(|name| encoder_folder.join(name)).find(|path| path.exists());
    // What is wrong with an index is said when the model is loaded.
    let shards =
        |path: PathBuf| read_index(&path).map(|index| index.into_values().collect()).unwrap_or_default();
    Snapshot {
        has: &|name| snapshot.join(name).exists(),
        is_absent,
        encoder,
        is_static,
        modules: (!modules.is_empty()).then(|| modules.iter().flat_map(Module::files).collect()),
        shards: index.map(shards),
    }
    .completeness()
}

/// The required files that a model's directory lacks.
pub(super) fn missing_files(folder: &Path) -> Vec<String> {
    match completeness(folder, None, &|_| true) {
        Completeness::Incomplete(missing) => missing,
        Completeness::Unknown(_) | Completeness::Complete => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let incomplete = |missing: &str| Completeness::Incomplete(vec![missing.into()]);
        assert_eq!(completeness(&required[1..], &[], false), incomplete(CONFIG));
        assert_eq!(completeness(&required, &[], false), Completeness::Unknown(TOKENIZER_CONFIG));
        assert_eq!(completeness(&required, &[TOKENIZER_CONFIG], false), Completeness::Complete);
        assert_eq!(completeness(&required, &[TOKENIZER_CONFIG], true), incomplete("1_Pooling/config.json"));
        let files = [&required[..], &["1_Pooling/config.json", TOKENIZER_CONFIG]].concat();
        assert_eq!(completeness(&files, &[], true), Completeness::Unknown(TRANSFORMER_CONFIGS[0]));
        let files = [&files[..], &[TRANSFORMER_CONFIGS[2]]].concat();
        assert_eq!(completeness(&files, &[], true), Completeness::Unknown(MODEL_SETTINGS));
        assert_eq!(completeness(&files, &[MODEL_SETTINGS], true), Completeness::Complete);
    }
}
