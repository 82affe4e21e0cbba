//! What a file says about how its rows were made.

use std::collections::BTreeMap;
use std::collections::btree_map;

use arrow_schema::Schema;
use serde::{Deserialize, Serialize};

use super::columns::ID;
use super::dtype::OutputDtype;
use crate::named::{Named, names};

/// A key of the metadata that Sconce writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The release that wrote the file.
    Release,
    /// The model, as the user named it.
    Model,
    /// The commit of the model.
    Revision,
    /// The task of an adapter.
    Task,
    /// The origin of weights that are not the model's own.
    Weights,
    /// SHA-256 of the weights.
    WeightsSha256,
    /// Maximum number of tokens of a text.
    MaxLength,
    /// The type that the encoder computes in.
    Dtype,
    /// The type of stored elements of vectors.
    OutputDtype,
    /// The pooling.
    Pooling,
    /// Whether vectors have unit length.
    Normalized,
    /// The name of the column of vectors, if the user has chosen it.
    VectorColumn,
    /// The name of the column of ids, if the user has chosen it.
    IdColumn,
    /// Dimensions of a vector.
    Dimensions,
    /// The prompt before each text.
    Prompt,
    /// The similarity function of the model.
    Similarity,
    /// What the texts are: queries or documents.
    Role,
    /// The factor of token pooling.
    TokenPooling,
    /// Tokens of a chunk.
    ChunkTokens,
    /// Tokens that a chunk shares with the one before.
    ChunkOverlap,
    /// Whether chunks were pooled after the whole text was encoded.
    ChunkLate,
    /// The outputs of each text, if there are several.
    Outputs,
    /// What scores are.
    Scores,
    /// How tokens become entities.
    Aggregation,
    /// The question of all texts.
    Question,
    /// The query of all texts.
    Query,
    /// The shard of a run.
    Shard,
    /// The indices of the first record of a shard and of the one after its last.
    ShardRecords,
    /// The program that wrote a safetensors file.
    Format,
}

names!(Key {
    Release => "release",
    Model => "model",
    Revision => "revision",
    Task => "task",
    Weights => "weights",
    WeightsSha256 => "weights_sha256",
    MaxLength => "max_length",
    Dtype => "dtype",
    OutputDtype => "output_dtype",
    Pooling => "pooling",
    Normalized => "normalized",
    VectorColumn => "vector_column",
    IdColumn => "id_column",
    Dimensions => "dimensions",
    Prompt => "prompt",
    Similarity => "similarity",
    Role => "role",
    TokenPooling => "token_pooling",
    ChunkTokens => "chunk_tokens",
    ChunkOverlap => "chunk_overlap",
    ChunkLate => "chunk_late",
    Outputs => "outputs",
    Scores => "scores",
    Aggregation => "aggregation",
    Question => "question",
    Query => "query",
    Shard => "shard",
    ShardRecords => "shard_records",
    Format => "format",
});

impl Key {
    /// The keys that only a shard has.
    pub const OF_SHARD: [Key; 2] = [Key::Shard, Key::ShardRecords];
}

/// The prefix of the keys in the metadata of Arrow and Parquet files.
const ARROW_PREFIX: &str = "sconce.";

/// How the rows of a file were made, as key-value pairs: model, revision, pooling, prompt and so on. A file
/// of another release may have keys that are none of [`Key`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileMetadata(BTreeMap<String, String>);

impl FileMetadata {
    /// The metadata among the keys and values of an Arrow or Parquet file with this schema.
    pub fn of_arrow(schema: &Schema) -> Self {
        let pairs = schema.metadata().iter();
        pairs
            .filter_map(|(key, value)| Some((key.strip_prefix(ARROW_PREFIX)?.into(), value.clone())))
            .collect()
    }

    /// The keys and values for an Arrow or Parquet file.
    pub(super) fn to_arrow(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(key, value)| (format!("{ARROW_PREFIX}{key}"), value.clone()))
    }

    /// The value of a key.
    pub fn get(&self, key: Key) -> Option<&str> {
        self.0.get(key.name()).map(String::as_str)
    }

    /// Whether there is a value of a key.
    pub fn has(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: Key, value: impl Into<String>) {
        self.0.insert(key.name().into(), value.into());
    }

    /// Removes a key.
    pub fn remove(&mut self, key: Key) {
        self.0.remove(key.name());
    }

    /// The name of the column of ids.
    pub fn id_column(&self) -> &str {
        self.get(Key::IdColumn).unwrap_or(ID)
    }

    /// All keys, in their order, with their values.
    pub fn iter(&self) -> btree_map::Iter<'_, String, String> {
        self.0.iter()
    }

    /// Whether the file says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These keys and their values alone.
    #[must_use]
    pub fn only(&self, keys: &[Key]) -> Self {
        keys.iter().filter_map(|key| Some((key.name().to_owned(), self.get(*key)?.to_owned()))).collect()
    }

    /// The first key but `ignored` whose values differ, with both values.
    pub fn difference<'a>(
        &'a self,
        other: &'a Self,
        ignored: &[Key],
    ) -> Option<(&'a str, [Option<&'a String>; 2])> {
        let mut keys = self.0.keys().chain(other.0.keys());
        let key = keys.find(|key| {
            !ignored.iter().any(|ignored| ignored.name() == *key) && self.0.get(*key) != other.0.get(*key)
        })?;
        Some((key, [self.0.get(key), other.0.get(key)]))
    }

    /// The first of `keys` that both name with different values, and these values.
    pub fn conflict<'a>(
        &'a self,
        other: &'a Self,
        keys: impl IntoIterator<Item = Key>,
    ) -> Option<(Key, [&'a str; 2])> {
        let values = |key| Some((key, [self.get(key)?, other.get(key)?]));
        keys.into_iter().filter_map(values).find(|(_, [a, b])| a != b)
    }

    /// The type of stored elements of vectors, if it is named.
    pub fn output_dtype(&self) -> Option<OutputDtype> {
        OutputDtype::from_name(self.get(Key::OutputDtype)?)
    }

    /// Dimensions of a vector; 0 if they are not named.
    pub fn dimensions(&self) -> usize {
        self.get(Key::Dimensions).and_then(|number| number.parse().ok()).unwrap_or_default()
    }
}

impl FromIterator<(String, String)> for FileMetadata {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        FileMetadata(pairs.into_iter().collect())
    }
}

impl IntoIterator for FileMetadata {
    type Item = (String, String);
    type IntoIter = btree_map::IntoIter<String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
