//! What `sconce embed` runs: an embedding model, or a sparse encoder.

use anyhow::Result;

use super::embedding::Embedder;
use super::load::Loaded;
use super::model_task::{HeadMemory, ModelTask};
use super::options::VectorOptions;
use super::sparse::SparseEncoder;
use super::text_model::TextModel;
use crate::nn::Pooling;
use crate::output::ContentType;
use crate::pipeline::{Task, TaskRow, TokenizeError};
use crate::sys::console::Console;
use crate::text::TokenizedText;

/// A model that turns texts into vectors.
pub enum TextEncoder {
    /// Dense vectors.
    Dense(Box<Embedder>),
    /// Sparse vectors over the vocabulary.
    Sparse(Box<SparseEncoder>),
}

impl TextEncoder {
    /// Resolves the options against the model: a sparse encoder if it was loaded for [`Pooling::Splade`].
    ///
    /// # Errors
    /// If an option contradicts the model: a usage error.
    pub fn new(loaded: Loaded, options: &VectorOptions, console: &Console) -> Result<Self> {
        Ok(match loaded.pooling {
            Pooling::Splade => TextEncoder::Sparse(Box::new(SparseEncoder::new(loaded, options, console)?)),
            _ => TextEncoder::Dense(Box::new(Embedder::new(loaded, options, console)?)),
        })
    }
}

impl Task for TextEncoder {
    fn tokenize(&self, text: &str, pair: Option<&str>) -> Result<TokenizedText, TokenizeError> {
        match self {
            TextEncoder::Dense(task) => task.tokenize(text, pair),
            TextEncoder::Sparse(task) => task.tokenize(text, pair),
        }
    }

    fn run(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Vec<TaskRow>>> {
        match self {
            TextEncoder::Dense(task) => task.run(texts, batch_tokens, worker),
            TextEncoder::Sparse(task) => task.run(texts, batch_tokens, worker),
        }
    }

    fn on_workers_start(&self) {
        match self {
            TextEncoder::Dense(task) => task.on_workers_start(),
            TextEncoder::Sparse(task) => task.on_workers_start(),
        }
    }
}

impl ModelTask for TextEncoder {
    fn model(&self) -> &TextModel {
        match self {
            TextEncoder::Dense(task) => task.model(),
            TextEncoder::Sparse(task) => task.model(),
        }
    }

    fn content(&self) -> ContentType {
        match self {
            TextEncoder::Dense(task) => task.content(),
            TextEncoder::Sparse(task) => task.content(),
        }
    }

    fn vector_bytes(&self) -> usize {
        match self {
            TextEncoder::Dense(task) => task.vector_bytes(),
            TextEncoder::Sparse(task) => task.vector_bytes(),
        }
    }

    fn head_memory(&self) -> HeadMemory {
        match self {
            TextEncoder::Dense(task) => task.head_memory(),
            TextEncoder::Sparse(task) => task.head_memory(),
        }
    }
}
