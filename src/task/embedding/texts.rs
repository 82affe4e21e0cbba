//! Embedding texts that are in memory, without the pipeline: no records, no output, no resuming.

use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Error, Result, bail};
use rayon::prelude::*;

use super::Embedder;
use crate::error::UsageError;
use crate::nn::Pooling;
use crate::pipeline::{MemoryBudget, NO_TOKENS, Stats, TokenizeError};
use crate::sys::console::Console;
use crate::sys::threads::single_thread_pool;
use crate::task::batch_size::workload;
use crate::task::model_task::ModelTask;
use crate::text::{TokenizedText, balanced_batches, consecutive_batches};

/// The vectors of texts, in the order of the texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EmbeddedTexts<V = Vec<f32>> {
    /// One vector per text, or those of its tokens in a multi-vector model, concatenated: after the post-pooling modules, before the
    /// conversion to the output dtype.
    pub vectors: Vec<V>,
    /// Encoded tokens of each text, including special tokens.
    pub tokens: Vec<usize>,
    /// Tokens of each text that truncation removed.
    pub truncated_tokens: Vec<usize>,
    /// Sequences that each text is encoded in: several for a long text with `--on-long mean`.
    pub sequences: Vec<usize>,
}

impl<V> EmbeddedTexts<V> {
    /// The same texts with `convert` applied to their vectors.
    pub(in crate::task) fn map<W>(self, convert: impl FnMut(V) -> W) -> EmbeddedTexts<W> {
        let EmbeddedTexts { vectors, tokens, truncated_tokens, sequences } = self;
        let vectors = vectors.into_iter().map(convert).collect();
        EmbeddedTexts { vectors, tokens, truncated_tokens, sequences }
    }

    /// Prints the warnings of `sconce embed` about texts that are longer than `limit` tokens.
    pub fn report(&self, limit: usize, console: &Console) {
        let sequences = || self.sequences.iter().filter(|count| **count > 1);
        let stats = Stats {
            texts: self.vectors.len() as u64,
            truncated: self.truncated_tokens.iter().filter(|removed| **removed > 0).count() as u64,
            truncated_tokens: self.truncated_tokens.iter().sum::<usize>() as u64,
            multi_sequence: sequences().count() as u64,
            sequences: sequences().sum::<usize>() as u64,
            ..Stats::default()
        };
        stats.report(console, limit, None);
    }

    /// Appends the vectors of other texts.
    pub fn append(&mut self, mut other: Self) {
        self.vectors.append(&mut other.vectors);
        self.tokens.append(&mut other.tokens);
        self.truncated_tokens.append(&mut other.truncated_tokens);
        self.sequences.append(&mut other.sequences);
    }
}

/// A text that has no vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// The index of the text, from 0.
    pub index: usize,
    /// The predicate of a sentence whose subject is the text.
    pub reason: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text {} {}", self.index + 1, self.reason)
    }
}

impl std::error::Error for TextError {}

impl Embedder {
    /// Embeds texts that are in memory. The vectors have the same bits as those of `sconce embed`, for which the order and the number
    /// of texts do not matter.
    ///
    /// All CPU threads share a batch if there are fewer batches than threads; otherwise each thread encodes batches of its own.
    ///
    /// # Errors
    /// [`TextError`] for the first text that cannot be tokenized, is too long (unless the embedder truncates or averages), or has a vector
    /// with NaN or infinite values. A usage error if the embedder has one vector per token or per chunk.
    pub fn embed(&self, texts: &[&str]) -> Result<EmbeddedTexts> {
        if self.late_interaction.is_some() {
            bail!(UsageError(
                "one vector per text is needed, but a multi-vector model gives one per token; choose an embedding model".into()
            ));
        }
        self.embed_to_compare(texts)
    }

    /// Embeds texts as [`Embedder::embed`] does, for [`Embedder::compared`]: with a multi-vector model, the vector of a text has the vectors
    /// of its tokens, concatenated.
    ///
    /// # Errors
    /// As [`Embedder::embed`], but for multi-vector models.
    pub fn embed_to_compare(&self, texts: &[&str]) -> Result<EmbeddedTexts> {
        if self.pooling == Pooling::None || self.chunking.is_some() {
            bail!(UsageError(
                "one vector per text is needed, but --pooling none gives one per token, --chunk one per chunk; remove the option".into()
            ));
        }
        let is_finite = |vector: &Vec<f32>| vector.iter().all(|x| x.is_finite());
        embed_texts(self, texts, is_finite, |batch, batch_tokens, worker| {
            self.vectors(batch, batch_tokens, worker)
        })
    }
}

/// Tokenizes texts, runs the batches of `task` with `run`, which gets a batch, the tokens per batch and the worker, and checks that what
/// they become is finite.
///
/// # Errors
/// [`TextError`] for the first text that cannot be tokenized or is not finite; if `run` fails.
pub fn embed_texts<V: Send>(
    task: &impl ModelTask,
    texts: &[&str],
    is_finite: impl Fn(&V) -> bool,
    run: impl Fn(&[&TokenizedText], usize, usize) -> Result<Vec<V>> + Sync,
) -> Result<EmbeddedTexts<V>> {
    let tokenized: Vec<_> = texts.par_iter().map(|text| task.tokenize(text, None)).collect();
    let tokenized = tokenized
        .into_iter()
        .enumerate()
        .map(|(index, text)| text.map_err(|error| Error::new(TextError { index, reason: reason(error) })));
    let tokenized: Vec<TokenizedText> = tokenized.collect::<Result<_>>()?;
    let vectors = encode_texts(task, &tokenized, run)?;
    if let Some(index) = vectors.iter().position(|vector| !is_finite(vector)) {
        let reason = "has a vector with NaN or infinite values; check the model".into();
        bail!(TextError { index, reason });
    }
    Ok(EmbeddedTexts {
        vectors,
        tokens: tokenized.iter().map(TokenizedText::token_count).collect(),
        truncated_tokens: tokenized.iter().map(TokenizedText::truncated_tokens).collect(),
        sequences: tokenized.iter().map(|text| text.sequences.len()).collect(),
    })
}

/// What each text becomes.
fn encode_texts<V: Send>(
    task: &impl ModelTask,
    texts: &[TokenizedText],
    run: impl Fn(&[&TokenizedText], usize, usize) -> Result<Vec<V>> + Sync,
) -> Result<Vec<V>> {
    let budget = MemoryBudget::new(&workload(task, None), None)?;
    let batches = plan(texts, &budget);
    let run = |batch: &[usize], worker| -> Result<Vec<V>> {
        let batch: Vec<&TokenizedText> = batch.iter().map(|&text| &texts[text]).collect();
        run(&batch, budget.batch_tokens, worker)
    };
    let encoded: Vec<Result<Vec<V>>> = if batches.len() < budget.threads && budget.can_share_batches {
        rayon::scope(|_| batches.iter().map(|batch| run(batch, 0)).collect())
    } else {
        task.on_workers_start();
        run_on_workers(&batches, budget.threads, &run)?
    };
    let mut vectors: Vec<Option<V>> = texts.iter().map(|_| None).collect();
    for (batch, encoded) in batches.iter().zip(encoded) {
        for (&text, vector) in batch.iter().zip(encoded?) {
            vectors[text] = Some(vector);
        }
    }
    Ok(vectors.into_iter().flatten().collect())
}

/// Groups texts into batches as the pipeline does, wave by wave. Returns the indices of the texts in each batch.
fn plan(texts: &[TokenizedText], budget: &MemoryBudget) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = texts.iter().map(TokenizedText::token_count).collect();
    let waves = consecutive_batches(&lengths, budget.wave_tokens).into_iter();
    let batches = waves.flat_map(|wave| {
        let first = wave.start;
        let batches = balanced_batches(&lengths[wave], budget.batch_tokens, budget.threads);
        batches.into_iter().map(move |batch| batch.into_iter().map(|text| first + text).collect())
    });
    batches.collect()
}

/// Runs batches on `threads` workers, each with a pool of one thread. Returns the result of each batch.
fn run_on_workers<T: Send>(
    batches: &[Vec<usize>],
    threads: usize,
    run: &(impl Fn(&[usize], usize) -> Result<T> + Sync),
) -> Result<Vec<Result<T>>> {
    let pools = (0..threads.min(batches.len())).map(|worker| single_thread_pool(format!("encode-{worker}")));
    let pools = pools.collect::<Result<Vec<_>>>()?;
    let next = AtomicUsize::new(0);
    let take_next = |worker: usize| {
        let batch = next.fetch_add(1, Ordering::Relaxed);
        batches.get(batch).map(|texts| (batch, run(texts, worker)))
    };
    let results = pools.par_iter().enumerate().flat_map_iter(|(worker, pool)| {
        pool.install(|| iter::from_fn(|| take_next(worker)).collect::<Vec<_>>())
    });
    let mut results: Vec<(usize, Result<T>)> = results.collect();
    results.sort_unstable_by_key(|(batch, _)| *batch);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Why a text cannot be tokenized, as the predicate of a sentence.
fn reason(error: TokenizeError) -> String {
    match error {
        TokenizeError::TooLong { reason, .. } | TokenizeError::Failed(reason) => reason,
        TokenizeError::NoTokens => NO_TOKENS.into(),
    }
}
