//! What turns texts into vectors of their own: an embedding model, or a sparse encoder.

use anyhow::{Result, bail};

use super::embedding::Embedder;
use super::model_task::{HeadMemory, ModelTask};
use super::options::VectorOptions;
use super::sparse::{SparseEncoder, Weights};
use super::text_model::TextModel;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::Loaded;
use crate::model::modules::Role;
use crate::neighbours::{Compared, Encoded, Representation, Similarity};
use crate::rows::ContentType;
use crate::sys::console::Console;
use crate::text::TokenizedText;

/// A model that turns texts into vectors.
pub enum TextEncoder {
    /// Dense vectors.
    Dense(Box<Embedder>),
    /// Sparse vectors over the vocabulary.
    Sparse(Box<SparseEncoder>),
}

/// What an expression gives for the model that a [`TextEncoder`] is.
macro_rules! either {
    ($encoder:expr, $model:ident => $value:expr) => {
        match $encoder {
            TextEncoder::Dense($model) => $value,
            TextEncoder::Sparse($model) => $value,
        }
    };
}

impl TextEncoder {
    /// Resolves the options against the model: a sparse encoder if it was loaded for sparse vectors.
    ///
    /// # Errors
    /// If an option contradicts the model: a usage error.
    pub fn new(loaded: Loaded, options: &VectorOptions, console: &Console) -> Result<Self> {
        Ok(match loaded.steps.pooling.is_sparse() {
            true => TextEncoder::Sparse(Box::new(SparseEncoder::new(loaded, options, console)?)),
            false => TextEncoder::Dense(Box::new(Embedder::new(loaded, options, console)?)),
        })
    }

    /// Dimensions of a vector.
    pub fn dimensions(&self) -> usize {
        either!(self, encoder => encoder.dimensions)
    }

    /// Whether a text, which has one vector, may have one for each of its tokens instead:
    /// [`TaskInput::per_token`].
    pub fn gives_tokens(&self) -> bool {
        matches!(self, TextEncoder::Dense(encoder) if encoder.pools_whole_texts())
    }

    /// What texts are represented by, to be compared: one vector per token only in a multi-vector model.
    pub fn representation(&self) -> Representation {
        match self {
            TextEncoder::Dense(encoder) if encoder.late_interaction.is_some() => Representation::PerToken,
            TextEncoder::Dense(_) => Representation::Dense,
            TextEncoder::Sparse(_) => Representation::Sparse,
        }
    }

    /// The prompt before each text.
    pub fn prompt(&self) -> &str {
        either!(self, encoder => encoder.prompt())
    }

    /// The maximum tokens of a text of a role.
    ///
    /// # Errors
    /// If the limit leaves no room for a text, or the prompt cannot be tokenized: a usage error.
    pub fn limit_of(&self, role: Role) -> Result<usize> {
        let (readings, model) = either!(self, encoder => (&encoder.readings, encoder.model()));
        let input = TaskInput { role: Some(role), ..TaskInput::default() };
        let reading = readings.of(&input, &model.tokenizer, model.on_long);
        let reading = reading.map_err(|error| UsageError(format!("the text {}", error.into_reason())))?;
        Ok(reading.tokenizer.max_length())
    }

    /// How texts are compared.
    pub fn similarity(&self) -> Similarity {
        either!(self, encoder => encoder.similarity)
    }

    /// Changes the similarity function that vectors are compared with. Returns whether the vectors have one
    /// to choose: the scores of a multi-vector model are sums over its tokens.
    pub fn set_similarity(&mut self, similarity: Similarity) -> bool {
        if self.representation() == Representation::PerToken {
            return false;
        }
        either!(self, encoder => encoder.similarity = similarity);
        true
    }

    /// Whether a text will have any vector: in a multi-vector model, not all of its tokens may be on the
    /// skiplist.
    pub(super) fn keeps_tokens(&self, text: &TokenizedText) -> bool {
        match self {
            TextEncoder::Dense(encoder) => encoder.keeps_tokens(text),
            TextEncoder::Sparse(_) => true,
        }
    }

    /// A text to compare others with.
    ///
    /// # Errors
    /// If no token of it has a vector.
    pub fn compared(&self, text: Encoded) -> Result<Compared> {
        if text.dense().is_some_and(<[f32]>::is_empty) {
            bail!("all tokens of the query are on the model's skiplist; pass another query");
        }
        Ok(Compared::new(self.similarity(), self.dimensions(), text))
    }
}

/// The output of a text: see the tasks of the two models.
pub enum EncodedVector {
    /// Of an embedding model.
    Dense(Vec<Vec<f32>>),
    /// Of a sparse encoder.
    Sparse(Weights),
}

impl Task for TextEncoder {
    type Output = EncodedVector;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        either!(self, task => task.tokenize(input))
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<EncodedVector>> {
        Ok(match self {
            TextEncoder::Dense(task) => {
                let outputs = task.encode(texts, batch_tokens, worker)?;
                outputs.into_iter().map(EncodedVector::Dense).collect()
            }
            TextEncoder::Sparse(task) => {
                let outputs = task.encode(texts, batch_tokens, worker)?;
                outputs.into_iter().map(EncodedVector::Sparse).collect()
            }
        })
    }

    fn finish(&self, text: &TokenizedText, output: EncodedVector, options: &RowOptions) -> Vec<TaskRow> {
        match (self, output) {
            (TextEncoder::Dense(task), EncodedVector::Dense(output)) => task.finish(text, output, options),
            (TextEncoder::Sparse(task), EncodedVector::Sparse(output)) => task.finish(text, output, options),
            _ => panic!("the output is of another model"),
        }
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        either!(self, task => task.check(options))
    }

    fn on_workers_start(&self) {
        either!(self, task => task.on_workers_start())
    }
}

impl ModelTask for TextEncoder {
    fn model(&self) -> &TextModel {
        either!(self, task => task.model())
    }

    fn content(&self) -> ContentType {
        either!(self, task => task.content())
    }

    fn vector_bytes(&self) -> usize {
        either!(self, task => task.vector_bytes())
    }

    fn head_memory(&self) -> HeadMemory {
        either!(self, task => task.head_memory())
    }
}
