//! The answer of `/info`.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::serve::schema::render::json;

/// What `/info` says about the server and its default model: all fields of text-embeddings-inference, and
/// what its vectors are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info<'a> {
    /// The model's id on the hub, or its directory.
    pub model_id: &'a str,
    /// Its commit on the hub.
    pub model_sha: Option<&'a str>,
    /// The type of its computation, such as `float32`.
    pub model_dtype: &'a str,
    /// The name that requests use.
    pub served_model_name: &'a str,
    /// What it does.
    pub model_type: InfoModelType<'a>,
    /// Requests that may wait or run.
    pub max_concurrent_requests: usize,
    /// Maximum tokens of a text.
    pub max_input_length: usize,
    /// Maximum tokens of a batch.
    pub max_batch_tokens: usize,
    /// Maximum texts of a batch.
    pub max_batch_requests: Option<usize>,
    /// Maximum texts of a request.
    pub max_client_batch_size: usize,
    /// Whether texts over the limit are truncated if the request does not say.
    pub auto_truncate: bool,
    /// Threads that tokenize.
    pub tokenization_workers: usize,
    /// The server's version.
    pub version: &'a str,
    /// The server's commit.
    pub sha: Option<&'a str>,
    /// The container image.
    pub docker_label: Option<&'a str>,
    /// Dimensions of its vectors, if it embeds.
    pub dimensions: Option<usize>,
    /// The function that compares its vectors, if it embeds.
    pub similarity: Option<&'a str>,
    /// The end at which texts over the limit are truncated, unless the request says another.
    pub truncation_side: &'a str,
}

/// What a model does, as `/info` says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InfoModelType<'a> {
    /// It embeds.
    Embedding {
        /// Its pooling, such as `cls`.
        pooling: &'a str,
    },
    /// It classifies. The names of its classes, in their order.
    #[serde(serialize_with = "labels")]
    Classifier(&'a [String]),
    /// It scores pairs. The names of its classes.
    #[serde(serialize_with = "labels")]
    Reranker(&'a [String]),
    /// It labels tokens, which no model of text-embeddings-inference does. The names of its labels, in their
    /// order.
    #[serde(serialize_with = "labels")]
    Tagger(&'a [String]),
    /// It fills masks.
    MaskFiller {},
    /// It answers questions.
    Answerer {},
}

/// The objects `id2label` and `label2id`.
fn labels<S: Serializer>(labels: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("id2label", &Ids(labels))?;
    map.serialize_entry("label2id", &Names(labels))?;
    map.end()
}

struct Ids<'a>(&'a [String]);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().enumerate())
    }
}

struct Names<'a>(&'a [String]);

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().enumerate().map(|(id, label)| (label, id)))
    }
}

impl Info<'_> {
    /// The answer, as JSON.
    pub fn body(&self) -> Vec<u8> {
        json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_of_text_embeddings_inference_are_there() {
        let labels = ["no".to_owned(), "yes".to_owned()];
        let info = |model_type| Info {
            model_id: "BAAI/bge-small-en-v1.5",
            model_sha: Some("5c38ec7"),
            model_dtype: "float32",
            served_model_name: "bge",
            model_type,
            max_concurrent_requests: 512,
            max_input_length: 512,
            max_batch_tokens: 16384,
            max_batch_requests: None,
            max_client_batch_size: 2048,
            auto_truncate: true,
            tokenization_workers: 2,
            version: "0.1.0",
            sha: None,
            docker_label: None,
            dimensions: Some(384),
            similarity: Some("cosine"),
            truncation_side: "right",
        };
        for (model_type, expected) in [
            (InfoModelType::Embedding { pooling: "cls" }, r#"{"embedding":{"pooling":"cls"}}"#),
            (
                InfoModelType::Classifier(&labels),
                r#"{"classifier":{"id2label":{"0":"no","1":"yes"},"label2id":{"no":0,"yes":1}}}"#,
            ),
            (
                InfoModelType::Reranker(&labels[..1]),
                r#"{"reranker":{"id2label":{"0":"no"},"label2id":{"no":0}}}"#,
            ),
        ] {
            let expected = format!(
                r#"{{"model_id":"BAAI/bge-small-en-v1.5","model_sha":"5c38ec7","model_dtype":"float32","served_model_name":"bge","model_type":{expected},"max_concurrent_requests":512,"max_input_length":512,"max_batch_tokens":16384,"max_batch_requests":null,"max_client_batch_size":2048,"auto_truncate":true,"tokenization_workers":2,"version":"0.1.0","sha":null,"docker_label":null,"dimensions":384,"similarity":"cosine","truncation_side":"right"}}"#
            );
            assert_eq!(String::from_utf8(info(model_type).body()).unwrap(), expected);
        }
    }
}
