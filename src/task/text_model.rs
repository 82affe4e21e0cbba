//! The model of a task: text → tokens → hidden states.

use std::borrow::{Borrow, Cow};

use anyhow::Result;
use candle_core::Tensor;

use super::sequences::{forward, tokenize};
use super::tokens::check_tokens;
use crate::engine::{TaskInput, TokenizeError};
use crate::nn::{Encoder, EncoderSpec, RaggedBatch};
use crate::text::OnLong;
use crate::text::{Sequence, TokenIds, TokenizedText, Tokenizer};

/// A tokenizer with an encoder.
pub struct TextModel {
    /// Text → token ids.
    pub tokenizer: Tokenizer,
    /// Token ids → hidden states: the same encoder on each device.
    pub encoders: Vec<Encoder>,
    /// What to do with texts over the limit.
    pub on_long: OnLong,
}

impl TextModel {
    /// The specification of the encoder.
    pub fn spec(&self) -> &EncoderSpec {
        self.encoders[0].spec()
    }

    /// The encoder of a worker thread.
    pub fn encoder(&self, worker: usize) -> &Encoder {
        &self.encoders[worker % self.encoders.len()]
    }

    /// The tokenizer of a text with these choices, and what becomes of it over the limit.
    pub(super) fn reading<'a>(&'a self, input: &TaskInput) -> (Cow<'a, Tokenizer>, OnLong) {
        (self.tokenizer.with_truncation_side(input.truncation_side), input.on_long.unwrap_or(self.on_long))
    }

    /// Tokenizes a text or a pair as one sequence, as `input` chooses.
    pub(super) fn tokenize(
        &self,
        text: &str,
        pair: Option<&str>,
        input: &TaskInput,
    ) -> Result<TokenizedText, TokenizeError> {
        let (tokenizer, on_long) = self.reading(input);
        self.checked([tokenize(&tokenizer, on_long, text, pair)?])
    }

    /// A text of these sequences.
    pub(super) fn checked(
        &self,
        sequences: impl IntoIterator<Item = TokenIds>,
    ) -> Result<TokenizedText, TokenizeError> {
        let sequence = |tokens| {
            check_tokens(&tokens, &self.tokenizer, self.spec())?;
            Ok(Sequence { tokens, chunks: Vec::new() })
        };
        Ok(TokenizedText::new(sequences.into_iter().map(sequence).collect::<Result<_, _>>()?))
    }

    /// Encodes the sequences of texts as [`forward`] does, with the encoder of a worker thread. `reduce`
    /// returns any number of values for a batch and its hidden states of `(T, H)`, or those of the tokens
    /// that `select` returns; those of all batches are concatenated.
    pub(super) fn forward<T>(
        &self,
        texts: &[impl Borrow<TokenizedText>],
        batch_tokens: usize,
        worker: usize,
        select: impl Fn(&RaggedBatch) -> Option<Vec<u32>>,
        reduce: impl Fn(&RaggedBatch, &Tensor) -> Result<Vec<T>>,
    ) -> Result<impl Iterator<Item = T>> {
        let sequences: Vec<&Sequence> = texts.iter().flat_map(|text| &text.borrow().sequences).collect();
        let encoder = self.encoder(worker);
        let reduced =
            forward(encoder, &sequences, batch_tokens, select, |_, batch, hidden| reduce(batch, hidden))?;
        Ok(reduced.into_iter().flatten())
    }
}
