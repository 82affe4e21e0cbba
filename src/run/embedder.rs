//! From texts to vectors: tokenize, plan, encode, pool, finish.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Result, bail};
use rayon::prelude::*;

use crate::input::Record;
use crate::nn::{Encoder, Head, Pooling, RaggedBatch};
use crate::text::{TokenIds, Tokenizer, plan};

/// A model with every choice made.
pub struct Embedder {
    /// Text → token ids.
    pub tokenizer: Tokenizer,
    /// Token ids → hidden states.
    pub encoder: Encoder,
    /// Hidden states → vectors.
    pub pooling: Pooling,
    /// What is done to the vectors then, in this order.
    pub heads: Vec<Head>,
    /// Numbers in a vector after the last head.
    pub dimensions: usize,
    /// What stands before each text.
    pub prompt: String,
    /// Tokens at the beginning of each text that are not pooled: those of the prompt, where the model says so.
    pub left_out: usize,
    /// Tokens of all texts of a batch together.
    pub batch_tokens: usize,
}

impl Embedder {
    /// Tokenizes records, in their order.
    ///
    /// # Errors
    /// If a text yields a token that the model has no embedding for.
    pub fn tokenize(&self, records: &[Record]) -> Result<Vec<TokenIds>> {
        let vocab_size = self.encoder.spec().vocab_size;
        records
            .par_iter()
            .map(|record| {
                let text = match self.prompt.as_str() {
                    "" => Cow::Borrowed(&record.text),
                    prompt => Cow::Owned(format!("{prompt}{}", record.text)),
                };
                let tokens = match self.tokenizer.encode(&text, record.pair.as_deref()) {
                    Ok(tokens) => tokens,
                    Err(error) => bail!("{}: the tokenizer fails on this text ({error})", record.place),
                };
                if let Some(id) = tokens.ids.iter().find(|id| **id as usize >= vocab_size) {
                    bail!(
                        "{}: token {:?} has id {id}, but the model has embeddings for {vocab_size} only; the tokenizer \
                         is not the model's own",
                        record.place,
                        self.tokenizer.token(*id).unwrap_or_default()
                    );
                }
                let segments = self.encoder.spec().token_types.unwrap_or(usize::MAX);
                if let Some(id) = tokens.type_ids.iter().find(|id| **id as usize >= segments) {
                    bail!(
                        "{}: the tokenizer puts a token into segment {id}, but the model has {segments}; the \
                         tokenizer is not the model's own",
                        record.place
                    );
                }
                if tokens.ids.is_empty() {
                    bail!("{}: the text has no tokens, and the tokenizer adds no special ones", record.place);
                }
                Ok(tokens)
            })
            .collect()
    }

    /// The vectors of texts, in their order: `D` numbers a text, or `D` a token without pooling. `done` hears
    /// from any thread, in any order, which texts have been computed.
    pub fn embed(&self, texts: &[TokenIds], done: impl Fn(Range<usize>) + Sync) -> Result<Vec<Vec<f32>>> {
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let batches = plan(&lengths, self.batch_tokens);
        let embed = |range: Range<usize>| {
            let vectors = self.embed_batch(&texts[range.clone()])?;
            done(range);
            Ok(vectors)
        };
        let vectors: Vec<Vec<Vec<f32>>> = batches.into_par_iter().map(embed).collect::<Result<_>>()?;
        Ok(vectors.into_iter().flatten().collect())
    }

    fn embed_batch(&self, texts: &[TokenIds]) -> Result<Vec<Vec<f32>>> {
        let batch = RaggedBatch::new(texts.iter().map(|text| (&text.ids[..], &text.type_ids[..])))?;
        let hidden = self.encoder.forward(&batch)?;
        let pooled = self.pooling.forward(&hidden, &batch, self.left_out)?;
        let vectors = self.heads.iter().try_fold(pooled, |vectors, head| head.forward(vectors))?;
        let vectors = vectors.to_vec2::<f32>()?;
        if self.pooling != Pooling::None {
            return Ok(vectors);
        }
        let mut tokens = vectors.into_iter();
        Ok(batch.lengths().map(|length| tokens.by_ref().take(length).flatten().collect()).collect())
    }
}
