//! The vectors of texts that are in memory.

use anyhow::{Result, bail};

use crate::engine::{Engine, RowOptions, TaskInput, TaskRow, TextError};
use crate::error::UsageError;
use crate::neighbours::Encoded;
use crate::nn::Pooling;
use crate::task::{ModelTask, TextEncoder};
use crate::text::Role;

/// The vectors of texts, in the order of the texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EmbeddedTexts {
    /// What represents each text, in f32.
    pub vectors: Vec<Encoded>,
    /// Encoded tokens of each text, including special tokens.
    pub tokens: Vec<usize>,
    /// Tokens of each text that truncation removed.
    pub truncated_tokens: Vec<usize>,
    /// Sequences that each text is encoded in: several for a long text with `--on-long mean`.
    pub sequences: Vec<usize>,
}

impl EmbeddedTexts {
    /// Embeds texts that are in memory. The vectors have the same bits as those of `sconce embed`, for which
    /// the order and the number of texts do not matter.
    ///
    /// # Errors
    /// [`TextError`] for the first text that cannot be tokenized, is too long (unless the encoder truncates
    /// or averages), or has a vector with NaN or infinite values. A usage error if the encoder has rows for
    /// chunks, or for tokens that belong to no multi-vector model.
    pub fn embed(engine: &Engine<TextEncoder>, texts: &[TaskInput]) -> Result<Self> {
        if let TextEncoder::Dense(encoder) = &**engine.task()
            && (encoder.pooling == Pooling::None
                || encoder.chunking.is_some() && texts.iter().any(|text| text.role != Some(Role::Query)))
        {
            bail!(UsageError(
                "one vector per text is needed, but --pooling none gives one per token, --chunk one per chunk; remove the option".into()
            ));
        }
        let (mut embedded, content_type) = (EmbeddedTexts::default(), engine.task().content());
        for (index, text) in engine.encode(texts, &RowOptions::default())?.into_iter().enumerate() {
            let Some(TaskRow { content, is_finite, .. }) = text.rows().first() else {
                bail!("a text has no row; please report this as a bug")
            };
            if !is_finite {
                bail!(TextError::not_finite(index, &content_type));
            }
            let Some(vector) = content.encoded(&content_type) else {
                bail!("the row of a text holds no vector in f32; please report this as a bug")
            };
            embedded.vectors.push(vector);
            embedded.tokens.push(text.tokens);
            embedded.truncated_tokens.push(text.truncated_tokens);
            embedded.sequences.push(text.sequences);
        }
        Ok(embedded)
    }
}
