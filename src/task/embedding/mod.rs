//! Embedding: one vector per text, per chunk or per token. Tokenize, encode, pool, apply the post-pooling
//! modules, convert.

mod finishing;
mod late_interaction;
mod resolve;
mod texts;

use std::borrow::Cow;
use std::ops::Range;

use anyhow::Result;

use finishing::Finishing;
pub use late_interaction::LateInteraction;
pub use texts::EmbeddedTexts;

use super::chunks::{cannot_split, locate, span};
use super::model_task::ModelTask;
use super::sequences::{all_tokens, forward, tokenize, tokenizer_failed};
use super::tokens::check_tokens;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::model::modules::Role;
use crate::neighbours::Similarity;
use crate::nn::{Encoder, EncoderSpec, Pooling, PostPooling, RaggedBatch, apply_to_tokens, keep_memory};
use crate::rows::{Content, ContentType, OutputDtype, Span, VectorType};
use crate::task::options::VectorOptions;
use crate::task::reading::{Reading, Readings};
use crate::task::text_model::TextModel;
use crate::text::OnLong;
use crate::text::{self, Chunk, Chunking, Sequence, TokenizedChunk, TokenizedText, Tokenizer};

/// A model with every option resolved.
pub struct Embedder {
    /// Text → token ids → hidden states.
    pub model: TextModel,
    /// Hidden states → vectors.
    pub pooling: Pooling,
    /// The modules before pooling, in order.
    pub token_modules: Vec<PostPooling>,
    /// The post-pooling modules, in order, without a normalization at their end.
    pub post_pooling: Vec<PostPooling>,
    /// What becomes of a vector after them.
    finishing: Finishing,
    /// Dimensions of a vector of a row without options of its own.
    pub dimensions: usize,
    /// The element type of stored vectors.
    pub dtype: OutputDtype,
    /// What texts are, with their prompt and limit.
    pub readings: Readings,
    /// How texts are split into chunks, one row each. `None`: each text is a row.
    pub chunking: Option<Chunking>,
    /// The similarity function that the model's vectors are compared with.
    pub similarity: Similarity,
    /// The roles, the skiplist and the token pooling of a multi-vector model.
    pub late_interaction: Option<LateInteraction>,
    /// A token that is left out of the mean of static embeddings.
    pub unknown_token: Option<u32>,
}

impl Embedder {
    /// What the texts are, if anything depends on it.
    pub fn role(&self) -> Option<Role> {
        self.readings.role
    }

    /// The prompt before each text.
    pub fn prompt(&self) -> &str {
        &self.readings.prompt
    }

    /// The specification of the encoder.
    pub fn spec(&self) -> &EncoderSpec {
        self.model.spec()
    }

    /// Whether vectors have unit length.
    pub fn is_normalized(&self) -> bool {
        self.finishing.is_normalized(&RowOptions::default())
            && self.late_interaction.as_ref().is_none_or(LateInteraction::keeps_unit_length)
    }

    /// Tokenizes a text that is split into chunks.
    fn tokenize_chunks(
        &self,
        text: &str,
        reading: &Reading,
        chunking: Chunking,
    ) -> Result<Vec<Sequence>, TokenizeError> {
        let sequences = self.chunks(text, reading, chunking).map_err(cannot_split)?;
        let check = |sequence: &Sequence| check_tokens(&sequence.tokens, &reading.tokenizer, self.spec());
        sequences.iter().try_for_each(check)?;
        Ok(sequences)
    }

    /// The chunks of a text: each in a sequence of its own, or with late chunking several in one sequence.
    fn chunks(&self, text: &str, reading: &Reading, chunking: Chunking) -> Result<Vec<Sequence>> {
        let Reading { prompt, tokenizer, .. } = reading;
        let pieces = text::split(tokenizer, prompt, text, chunking)?;
        let ranges: Vec<Range<usize>> = pieces.iter().map(|piece| piece.range.clone()).collect();
        let mut chunks = locate(text, ranges.iter().cloned()).into_iter();
        if !chunking.late {
            let sequences = pieces.into_iter().zip(chunks).map(|(TokenizedChunk { tokens, .. }, chunk)| {
                let chunks = vec![Chunk { tokens: 0..tokens.ids.len(), ..chunk }];
                Sequence { tokens, chunks }
            });
            return Ok(sequences.collect());
        }
        let late = text::late_sequences(tokenizer, prompt, text, &ranges)?;
        let sequences = late.into_iter().map(|late| {
            let spans = late.chunks.into_iter();
            let chunks = spans.zip(&mut chunks).map(|(tokens, chunk)| Chunk { tokens, ..chunk }).collect();
            Sequence { tokens: late.tokens, chunks }
        });
        Ok(sequences.collect())
    }

    /// Encodes and pools the sequences in batches of at most `batch_tokens` tokens.
    fn pooled(
        &self,
        sequences: &[&Sequence],
        prompt_tokens: usize,
        batch_tokens: usize,
        encoder: &Encoder,
    ) -> Result<Vec<candle_core::Tensor>> {
        if encoder.spec().is_static() {
            let known = sequences.iter().map(|sequence| {
                sequence.tokens.ids.iter().copied().filter(|id| Some(*id) != self.unknown_token)
            });
            return Ok(vec![encoder.mean_embeddings(known)?]);
        }
        if matches!(self.chunking, Some(Chunking { late: true, .. })) {
            return forward(encoder, sequences, batch_tokens, all_tokens, |part, batch, hidden| {
                let hidden = apply_to_tokens(&self.token_modules, hidden)?;
                let spans = pooled_spans(part, batch.cu_seqlens(), prompt_tokens);
                self.pooling.forward_spans(&hidden, &spans)
            });
        }
        let token = self.spec().pooler.token;
        let select = |batch: &RaggedBatch| self.pooling.pooled_tokens(batch, prompt_tokens, token);
        forward(encoder, sequences, batch_tokens, select, |_, batch, hidden| {
            let hidden = apply_to_tokens(&self.token_modules, hidden)?;
            self.pooling.forward(&hidden, batch, prompt_tokens, token)
        })
    }

    /// Whether a text has one vector, which is pooled from those of its tokens.
    pub fn pools_whole_texts(&self) -> bool {
        matches!(self.pooling, Pooling::Text(_)) && self.chunking.is_none() && !self.spec().is_static()
    }

    /// A vector for each token of texts, as `--pooling none` gives.
    fn token_vectors(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Vec<f32>>> {
        let vectors = self.model.forward(texts, batch_tokens, worker, all_tokens, |batch, hidden| {
            let hidden = apply_to_tokens(&self.token_modules, hidden)?;
            let token = self.spec().pooler.token;
            Ok(Pooling::None.forward(&hidden, batch, 0, token)?.to_vec2::<f32>()?)
        })?;
        Ok(vectors.collect())
    }

    /// The vectors of texts of one role, the first `prompt_tokens` tokens of which are not pooled: one per
    /// text, per chunk or per token, in order, after the post-pooling modules. Those of a multi-vector model
    /// are finished, and concatenated per text or chunk.
    fn vectors(
        &self,
        texts: &[TokenizedText],
        role: Option<Role>,
        prompt_tokens: usize,
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Vec<f32>>> {
        let encoder = self.model.encoder(worker);
        let sequences: Vec<&Sequence> = texts.iter().flat_map(|text| &text.sequences).collect();
        let pooled = self.pooled(&sequences, prompt_tokens, batch_tokens, encoder)?;
        // With chunks, every pooled vector is a row. Otherwise the vectors of a text's sequences are
        // averaged.
        let counts: Vec<usize> = texts
            .iter()
            .flat_map(|text| match text.chunks().count() {
                0 => vec![text.sequences.len()],
                chunks => vec![1; chunks],
            })
            .collect();
        let weights = sequences.iter().map(|sequence| {
            let pooled_tokens = sequence.tokens.ids.len().saturating_sub(prompt_tokens);
            pooled_tokens.max(1)
        });
        let vectors = self.pooling.average_sequences(&pooled, &counts, &weights.collect::<Vec<_>>())?;
        let vectors =
            self.post_pooling.iter().try_fold(vectors, |vectors, module| module.forward(vectors))?;
        match &self.late_interaction {
            None => Ok(vectors.to_vec2::<f32>()?),
            Some(late_interaction) => {
                let role = role.unwrap_or(late_interaction.role());
                let vectors = vectors.flatten_all()?.to_vec1()?;
                let vectors = self.finishing.apply(vectors, &RowOptions::default());
                Ok(self.select(late_interaction, role, &sequences, &vectors))
            }
        }
    }

    /// The vectors of the tokens of each sequence, of a text or a chunk, that a multi-vector model keeps.
    fn select(
        &self,
        late_interaction: &LateInteraction,
        role: Role,
        sequences: &[&Sequence],
        vectors: &[f32],
    ) -> Vec<Vec<f32>> {
        let mut vectors = vectors.chunks_exact(self.dimensions);
        let select = |sequence: &&Sequence| {
            let ids = sequence.tokens.ids.iter().copied();
            late_interaction.select(role, ids.zip(vectors.by_ref()), self.dimensions)
        };
        sequences.iter().map(select).collect()
    }

    /// Whether a text will have any vector: in a multi-vector model, not all of its tokens may be left out.
    pub(in crate::task) fn keeps_tokens(&self, text: &TokenizedText) -> bool {
        self.late_interaction.as_ref().is_none_or(|late_interaction| {
            let role = text.role.unwrap_or(late_interaction.role());
            text.sequences.iter().any(|sequence| late_interaction.keeps_any(role, &sequence.tokens.ids))
        })
    }

    /// The vectors of a row after all steps, concatenated, in f32.
    pub(in crate::task) fn finished(&self, vectors: Vec<f32>, options: &RowOptions) -> Vec<f32> {
        match self.late_interaction {
            Some(_) => vectors,
            None => self.finishing.apply(vectors, options),
        }
    }

    /// The row of a text or chunk, of these vectors.
    fn row(&self, span: Option<Span>, tokens: usize, vectors: Vec<f32>, options: &RowOptions) -> TaskRow {
        let values = self.finished(vectors, options);
        let is_finite = values.iter().all(|x| x.is_finite());
        let dtype = options.dtype.unwrap_or(self.dtype);
        let content = Content::Vector(dtype.quantize(values, self.finishing.dimensions(options)));
        // A finite f32 can overflow a narrower type.
        TaskRow { span, query: None, tokens, is_finite: is_finite && content.is_finite(), content }
    }
}

impl Task for Embedder {
    /// The vectors of each row, or of each token with [`Pooling::None`].
    type Output = Vec<Vec<f32>>;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let reading = self.readings.of(input, &self.model.tokenizer, self.model.on_long)?;
        let Reading { role, prompt, prompt_tokens, ref tokenizer, on_long } = reading;
        // The queries that chunks are compared with are whole texts.
        let sequences = match self.chunking.filter(|_| input.role != Some(Role::Query)) {
            Some(chunking) => self.tokenize_chunks(input.text, &reading, chunking)?,
            None => {
                let prompted = match prompt {
                    "" => Cow::Borrowed(input.text),
                    prompt => Cow::Owned(format!("{prompt}{}", input.text)),
                };
                let mut tokens = tokenize(tokenizer, on_long, &prompted, input.pair)?;
                if let Some(late_interaction) = &self.late_interaction {
                    late_interaction.expand(role.unwrap_or(late_interaction.role()), &mut tokens);
                }
                let sequences = match on_long {
                    OnLong::Mean if tokens.truncated_tokens > 0 && input.pair.is_none() => {
                        check_prompt_has_room(tokenizer, prompt)?;
                        tokenizer.encode_in_sequences(prompt, input.text).map_err(tokenizer_failed)?
                    }
                    _ => vec![tokens],
                };
                self.model.checked(sequences)?.sequences
            }
        };
        let per_token = input.per_token && self.pools_whole_texts();
        Ok(TokenizedText { role, prompt_tokens, per_token, ..TokenizedText::new(sequences) })
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        let mut outputs = Vec::with_capacity(texts.len());
        let reading = |text: &TokenizedText| (text.role, text.prompt_tokens, text.per_token);
        for texts in texts.chunk_by(|a, b| reading(a) == reading(b)) {
            let (role, prompt_tokens, per_token) = reading(&texts[0]);
            let vectors = if per_token {
                self.token_vectors(texts, batch_tokens, worker)?
            } else {
                self.vectors(texts, role, prompt_tokens, batch_tokens, worker)?
            };
            let mut vectors = vectors.into_iter();
            outputs.extend(texts.iter().map(|text| {
                let count = match self.pooling {
                    Pooling::None => text.own_token_count(),
                    _ if per_token => text.own_token_count(),
                    _ => text.row_count(),
                };
                vectors.by_ref().take(count).collect()
            }));
        }
        Ok(outputs)
    }

    fn finish(&self, text: &TokenizedText, vectors: Vec<Vec<f32>>, options: &RowOptions) -> Vec<TaskRow> {
        match self.pooling {
            _ if text.per_token => {
                let width = vectors.first().map_or(1, Vec::len);
                let values = self.dtype.quantize(vectors.concat(), width);
                vec![TaskRow::of(text, Content::Vector(values))]
            }
            Pooling::None => vec![self.row(None, text.own_token_count(), vectors.concat(), options)],
            _ if text.chunks().next().is_some() => {
                let row = |(chunk, vector): (&Chunk, Vec<f32>)| {
                    self.row(Some(span(chunk)), chunk.tokens.len(), vector, options)
                };
                text.chunks().zip(vectors).map(row).collect()
            }
            Pooling::Text(_) | Pooling::MultiVector | Pooling::Splade | Pooling::Lexical => {
                let row = |vector| self.row(None, text.own_token_count(), vector, options);
                vectors.into_iter().map(row).collect()
            }
        }
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        match self.late_interaction {
            Some(_) => options.only(&["dtype"])?,
            None => {
                options.only(&["dimensions", "normalize", "dtype"])?;
                self.finishing.check(options.dimensions)?;
            }
        }
        let dimensions = options.dimensions.unwrap_or(self.dimensions);
        let check = options.dtype.unwrap_or(self.dtype).check(dimensions, "dimensions");
        check.map_err(|reason| RowOptionError { option: "dtype", reason })
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for Embedder {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        ContentType::Vectors(VectorType {
            dtype: self.dtype,
            dimensions: self.dimensions,
            per_token: self.pooling.is_per_token(),
            normalized: self.is_normalized(),
            nullable: false,
        })
    }

    fn vector_bytes(&self) -> usize {
        size_of::<f32>() * self.dimensions
    }
}

/// Refuses a prompt that leaves no room for a text in its sequences.
fn check_prompt_has_room(tokenizer: &Tokenizer, prompt: &str) -> Result<(), TokenizeError> {
    let tokens = tokenizer.num_prompt_and_special_tokens(prompt).map_err(tokenizer_failed)?;
    if tokens >= tokenizer.max_length() {
        let limit = tokenizer.max_length();
        let reason =
            format!("has no room beside its prompt within the limit of {limit} tokens; shorten the prompt");
        return Err(TokenizeError::Failed(reason));
    }
    Ok(())
}

/// The pooled tokens of each chunk in a batch. `prompt_tokens` of each sequence are excluded; a chunk with no
/// other tokens keeps its last one.
fn pooled_spans(sequences: &[&Sequence], cu_seqlens: &[usize], prompt_tokens: usize) -> Vec<Range<usize>> {
    let sequences = sequences.iter().zip(cu_seqlens);
    let spans = sequences.flat_map(|(sequence, offset)| {
        sequence.chunks.iter().map(move |Chunk { tokens: Range { start, end }, .. }| {
            let start = (*start).max(prompt_tokens).min(end - 1);
            offset + start..offset + end
        })
    });
    spans.collect()
}
