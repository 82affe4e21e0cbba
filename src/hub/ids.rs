//! Ids of models: those in the cache, what a name without an organization stands for, and which ids are
//! similar.

use std::fs;
use std::path::Path;

use hf_hub::Repo;

/// The organizations whose models sentence-transformers knows by their names alone, as a sentence encoder and
/// as a cross-encoder.
const ORGANIZATIONS: [&str; 2] = ["sentence-transformers", "cross-encoder"];
/// Names of models without an organization, which sentence-transformers takes as they are.
const WITHOUT_ORGANIZATION: &[&str] = &[
    "albert-base-v1",
    "albert-base-v2",
    "albert-large-v1",
    "albert-large-v2",
    "albert-xlarge-v1",
    "albert-xlarge-v2",
    "albert-xxlarge-v1",
    "albert-xxlarge-v2",
    "bert-base-cased",
    "bert-base-cased-finetuned-mrpc",
    "bert-base-chinese",
    "bert-base-german-cased",
    "bert-base-german-dbmdz-cased",
    "bert-base-german-dbmdz-uncased",
    "bert-base-multilingual-cased",
    "bert-base-multilingual-uncased",
    "bert-base-uncased",
    "bert-large-cased",
    "bert-large-cased-whole-word-masking",
    "bert-large-cased-whole-word-masking-finetuned-squad",
    "bert-large-uncased",
    "bert-large-uncased-whole-word-masking",
    "bert-large-uncased-whole-word-masking-finetuned-squad",
    "camembert-base",
    "ctrl",
    "distilbert-base-cased",
    "distilbert-base-cased-distilled-squad",
    "distilbert-base-german-cased",
    "distilbert-base-multilingual-cased",
    "distilbert-base-uncased",
    "distilbert-base-uncased-distilled-squad",
    "distilbert-base-uncased-finetuned-sst-2-english",
    "distilgpt2",
    "distilroberta-base",
    "gpt2",
    "gpt2-large",
    "gpt2-medium",
    "gpt2-xl",
    "openai-gpt",
    "roberta-base",
    "roberta-base-openai-detector",
    "roberta-large",
    "roberta-large-mnli",
    "roberta-large-openai-detector",
    "t5-11b",
    "t5-3b",
    "t5-base",
    "t5-large",
    "t5-small",
    "transfo-xl-wt103",
    "xlm-clm-ende-1024",
    "xlm-clm-enfr-1024",
    "xlm-mlm-100-1280",
    "xlm-mlm-17-1280",
    "xlm-mlm-en-2048",
    "xlm-mlm-ende-1024",
    "xlm-mlm-enfr-1024",
    "xlm-mlm-enro-1024",
    "xlm-mlm-tlm-xnli15-1024",
    "xlm-mlm-xnli15-1024",
    "xlm-roberta-base",
    "xlm-roberta-large",
    "xlm-roberta-large-finetuned-conll02-dutch",
    "xlm-roberta-large-finetuned-conll02-spanish",
    "xlm-roberta-large-finetuned-conll03-english",
    "xlm-roberta-large-finetuned-conll03-german",
    "xlnet-base-cased",
    "xlnet-large-cased",
];
/// The beginning of a model's directory in the cache.
const FOLDER_PREFIX: &str = "models--";
/// Minimum similarity of ids of which one may be a slip of the other.
const MIN_SIMILARITY: f64 = 0.7;

/// The name of a model's directory in the cache.
pub(super) fn folder_name(model: &str) -> String {
    Repo::model(model.to_owned()).folder_name()
}

/// The id of the model that a directory of the cache is for.
pub(super) fn id_of_folder(name: &str) -> Option<String> {
    Some(name.strip_prefix(FOLDER_PREFIX)?.replace("--", "/"))
}

/// The ids that a name may stand for, the first one that exists being meant: of a name without an
/// organization the one in the cache, else that of the organizations, then the name itself.
pub(super) fn meanings(name: &str, cache: &Path) -> Vec<String> {
    if name.contains('/') || WITHOUT_ORGANIZATION.contains(&name.to_lowercase().as_str()) {
        return vec![name.to_owned()];
    }
    let mut ids: Vec<String> =
        ORGANIZATIONS.iter().map(|organization| format!("{organization}/{name}")).collect();
    ids.push(name.to_owned());
    let own = ids.last().into_iter();
    match own.chain(&ids).find(|id| is_cached(&cache.join(folder_name(id)))) {
        Some(cached) => vec![cached.clone()],
        None => ids,
    }
}

/// Whether the cache has a version of a model, by its directory.
fn is_cached(folder: &Path) -> bool {
    folder.join("snapshots").is_dir()
}

/// The ids of the models in the cache, those most similar to `model` first, and whether the first one is so
/// similar that `model` may be a slip of it.
pub(super) fn similar(model: &str, cache: &Path) -> (Vec<String>, bool) {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let cached = entries.filter(|entry| is_cached(&entry.path()));
    let ids = cached.filter_map(|entry| id_of_folder(entry.file_name().to_str()?));
    let mut ids: Vec<(f64, String)> = ids.map(|id| (similarity(model, &id), id)).collect();
    ids.sort_by(|(a, a_id), (b, b_id)| b.total_cmp(a).then_with(|| a_id.cmp(b_id)));
    let is_slip = ids.first().is_some_and(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    (ids.into_iter().map(|(_, id)| id).collect(), is_slip)
}

/// How similar two ids are, from 0 to 1; where one lacks the organization, how similar the names are.
fn similarity(a: &str, b: &str) -> f64 {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let name = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    match a.contains('/') && b.contains('/') {
        true => strsim::normalized_damerau_levenshtein(&a, &b),
        false => strsim::normalized_damerau_levenshtein(&name(&a), &name(&b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_an_organization_stands_for_the_one_in_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let add =
            |id: &str| fs::create_dir_all(cache.path().join(folder_name(id)).join("snapshots")).unwrap();
        let of = |name: &str| meanings(name, cache.path());
        assert_eq!(of("org/name"), ["org/name"]);
        assert_eq!(of("BERT-base-uncased"), ["BERT-base-uncased"]);
        assert_eq!(of("name"), ["sentence-transformers/name", "cross-encoder/name", "name"]);
        add("cross-encoder/name");
        assert_eq!(of("name"), ["cross-encoder/name"]);
        add("sentence-transformers/name");
        assert_eq!(of("name"), ["sentence-transformers/name"]);
        add("name");
        assert_eq!(of("name"), ["name"]);
    }

    #[test]
    fn the_most_similar_id_is_first() {
        let cache = tempfile::tempdir().unwrap();
        for id in ["BAAI/bge-small-en-v1.5", "sentence-transformers/all-MiniLM-L6-v2", "gpt2"] {
            fs::create_dir_all(cache.path().join(folder_name(id)).join("snapshots")).unwrap();
        }
        // A download that never began, and the directory of a data set.
        fs::create_dir_all(cache.path().join("models--a--b/blobs")).unwrap();
        fs::create_dir_all(cache.path().join("datasets--a--b/snapshots")).unwrap();
        let of = |model: &str| {
            let (ids, is_slip) = similar(model, cache.path());
            assert_eq!(ids.len(), 3, "{model}");
            (ids[0].clone(), is_slip)
        };
        let minilm = "sentence-transformers/all-MiniLM-L6-v2".to_owned();
        for slip in [
            "sentence-transformer/all-minilm-l6-v2",
            "all-MiniLM-L6v2",
            "sentence-transformers/all-MiniLM-L12-v2",
        ] {
            assert_eq!(of(slip), (minilm.clone(), true), "{slip}");
        }
        assert_eq!(of("BAAI/bge-smal-en-v1.5"), ("BAAI/bge-small-en-v1.5".to_owned(), true));
        assert!(!of("intfloat/e5-small-v2").1);
    }
}
