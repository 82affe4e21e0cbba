//! The options for vectors and queries. An option that is not given is resolved from the model's files.

use crate::model::modules::Role;
use crate::rows::OutputDtype;
use crate::text::{Chunking, OnLong};

/// How vectors are computed and stored.
#[derive(Debug, Clone)]
pub struct VectorOptions {
    /// Whether to scale vectors to unit length (`--normalize`). `None`: as the model's modules do.
    pub normalize: Option<bool>,
    /// Truncate vectors to the first dimensions, this many (`--dimensions`).
    pub dimensions: Option<usize>,
    /// The prompt before each text. `None`: that of the role, or the model's default prompt.
    pub prompt: Option<PromptChoice>,
    /// What the texts are (`--role`). `None`: documents for a multi-vector model; otherwise nothing depends
    /// on it.
    pub role: Option<Role>,
    /// Vectors per cluster of hierarchical token pooling (`--token-pooling`). `None`: as the model's modules
    /// say.
    pub token_pooling: Option<f64>,
    /// The element type of stored vectors.
    pub dtype: OutputDtype,
    /// What to do with texts over the limit.
    pub on_long: OnLong,
    /// How to split texts into chunks, one row each. `None`: each text is a row.
    pub chunking: Option<Chunking>,
}

impl VectorOptions {
    /// The vectors of the model's own modules, in f32.
    pub const fn new(on_long: OnLong) -> Self {
        VectorOptions {
            normalize: None,
            dimensions: None,
            prompt: None,
            role: None,
            token_pooling: None,
            dtype: OutputDtype::F32,
            on_long,
            chunking: None,
        }
    }
}

/// A prompt as the user gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptChoice {
    /// Its text (`--prompt`).
    Text(String),
    /// Its name in the model's files (`--prompt-name`).
    Name(String),
}

/// The queries of a reranker.
#[derive(Debug, Clone, Default)]
pub struct QueryOptions {
    /// Their texts; none if each record has its own.
    pub texts: Vec<String>,
    /// The prompt of a cross-encoder: what is put before each query, or the instruction in its chat template.
    /// `None`: the model's default prompt.
    pub prompt: Option<PromptChoice>,
}
