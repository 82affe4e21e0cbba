//! One sparse vector of vocabulary weights per text: SPLADE, from the logits of the masked-LM head, or
//! lexical weights. Tokenize, encode, apply the head, pool its logits.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use candle_core::Tensor;

use super::lexical::LexicalHead;
use super::model_task::{HeadMemory, ModelTask};
use super::options::VectorOptions;
use super::reading::{Reading, Readings};
use super::sequences::{all_tokens, tokenize};
use super::text_model::TextModel;
use super::tokens::resolve_prompt;
use crate::engine::{RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::{Loaded, StaticQueries, Steps};
use crate::model::modules::Role;
use crate::named::Named;
use crate::neighbours::{Similarity, SparseVector};
use crate::nn::{LEXICAL, MaskedLmHead, Pooling, RaggedBatch, SPLADE, SpladeSpec, TaskHead, keep_memory};
use crate::rows::{Content, ContentType, OutputDtype};
use crate::sys::console::Console;
use crate::text::{OnLong, Sequence, TokenizedText, Tokenizer};

/// A sparse encoder.
pub struct SparseEncoder {
    model: TextModel,
    head: SparseHead,
    /// What queries become without the encoder.
    static_queries: Option<StaticQueries>,
    /// What texts are, with their prompt and limit. Without a choice of the user, they are what the model
    /// takes them for, if queries are encoded in another way.
    pub(super) readings: Readings,
    /// Dimensions of a vector: the size of the vocabulary.
    pub dimensions: usize,
    /// The maximum elements of a vector, of which the largest are kept.
    max_active_dims: Option<usize>,
    /// The similarity function that the vectors are compared with.
    pub similarity: Similarity,
}

/// What turns hidden states into weights.
enum SparseHead {
    /// The masked-LM head, and how its logits become weights.
    Splade(Box<MaskedLmHead>, SpladeSpec),
    /// A weight for each token.
    Lexical(Box<LexicalHead>),
}

/// Elements of a sparse vector for the estimate of memory: more than texts of 512 tokens usually have.
const USUAL_ELEMENTS: usize = 512;

impl SparseEncoder {
    /// A sparse encoder: the module of the model, else `log(1 + relu(x))` and the maximum over tokens.
    ///
    /// # Errors
    /// If an option is for dense vectors: a usage error.
    pub fn new(loaded: Loaded, options: &VectorOptions, console: &Console) -> Result<Self> {
        check_options(options, &loaded.steps.pooling)?;
        let prompt = resolve_prompt(options.prompt.as_ref(), options.role, &loaded.modules.prompts, console)?;
        let role_lengths = loaded.role_lengths();
        let Loaded { mut tokenizer, encoders, head, static_queries, modules, steps, .. } = loaded;
        let Steps { pooling, dimensions, .. } = steps;
        // The settings of another model are for its own vectors. The default is that of
        // sentence-transformers' `SparseEncoder`.
        let is_own = pooling == Pooling::Splade && modules.splade.is_some();
        let similarity = modules.similarity.filter(|_| is_own).unwrap_or(Similarity::Dot);
        let max_active_dims = modules.max_active_dims.filter(|_| is_own);
        let is_default = modules.query_weights.as_ref().is_some_and(|weights| weights.is_default);
        let default = if is_default { Role::Query } else { Role::Document };
        let role = options.role.or(static_queries.as_ref().map(|_| default));
        let lengths = role_lengths;
        let mut readings =
            Readings::new(&mut tokenizer, options.role, prompt, modules.prompts, lengths, false)?;
        readings.role = role;
        let head = match (pooling, head.map(|head| head.layers)) {
            (Pooling::Lexical, head) => SparseHead::Lexical(Box::new(LexicalHead::new(head, &tokenizer)?)),
            (_, Some(TaskHead::MaskedLm(head))) => {
                SparseHead::Splade(Box::new(head), modules.splade.unwrap_or_default())
            }
            _ => bail!("the model was loaded without its head; please report this as a bug"),
        };
        console.detail(format!(
            "pooling {}, {dimensions} dimensions, at most {} tokens per text",
            head.describe(),
            tokenizer.max_length()
        ));
        let model = TextModel { tokenizer, encoders, on_long: options.on_long };
        let encoder =
            SparseEncoder { model, head, static_queries, readings, dimensions, max_active_dims, similarity };
        if encoder.queries(role).is_some() {
            console.detail("queries have fixed weights of their tokens; the encoder is not used");
        }
        Ok(encoder)
    }

    /// The pooling and how logits become weights, for messages and metadata.
    pub fn describe(&self) -> String {
        match self.max_active_dims {
            Some(elements) => format!("{}, the {elements} largest weights", self.head.describe()),
            None => self.head.describe(),
        }
    }

    /// The prompt before each text.
    pub fn prompt(&self) -> &str {
        &self.readings.prompt
    }

    /// What weights texts of a role in place of the encoder, if they are queries of a model that has it.
    fn queries(&self, role: Option<Role>) -> Option<&StaticQueries> {
        self.static_queries.as_ref().filter(|_| role == Some(Role::Query))
    }

    /// What the texts are, if anything depends on it.
    pub fn role(&self) -> Option<Role> {
        self.readings.role
    }

    /// The weights of texts of one role.
    fn weights(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Weights>> {
        if let Some(queries) = self.queries(texts[0].role) {
            return Ok(texts.iter().map(|text| queries.weights_of(text)).collect());
        }
        let weigh = |batch: &RaggedBatch, hidden: &Tensor| match &self.head {
            SparseHead::Splade(head, spec) => head.splade(hidden, batch.cu_seqlens(), *spec),
            SparseHead::Lexical(head) => head.weights(batch, hidden),
        };
        Ok(self.model.forward(texts, batch_tokens, worker, all_tokens, weigh)?.collect())
    }

    /// The vector of a text.
    fn vector_of(&self, mut weights: Weights) -> SparseVector {
        if let Some(elements) = self.max_active_dims {
            keep_largest(&mut weights, elements);
        }
        sparse_vector(weights, &self.model.tokenizer)
    }
}

impl SparseHead {
    fn describe(&self) -> String {
        match self {
            SparseHead::Splade(_, spec) => format!("{SPLADE}: {}", spec.describe()),
            SparseHead::Lexical(_) => LEXICAL.into(),
        }
    }

    fn memory(&self) -> HeadMemory {
        match self {
            SparseHead::Splade(head, _) => {
                let (token_bytes, batch_bytes) = head.splade_bytes();
                HeadMemory { token_bytes, batch_bytes }
            }
            SparseHead::Lexical(_) => HeadMemory::default(),
        }
    }
}

/// The weights of a text, by ascending id.
pub(super) type Weights = Vec<(u32, f32)>;

/// Keeps this many weights, those with the greatest magnitudes; of equal ones those with the smaller ids.
/// Weights stay by ascending id.
fn keep_largest(weights: &mut Vec<(u32, f32)>, elements: usize) {
    if weights.len() > elements {
        weights.sort_by(|(a, x), (b, y)| y.abs().total_cmp(&x.abs()).then(a.cmp(b)));
        weights.truncate(elements);
        weights.sort_unstable_by_key(|(id, _)| *id);
    }
}

/// The vector with these weights, by ascending id.
pub(super) fn sparse_vector(weights: Vec<(u32, f32)>, tokenizer: &Tokenizer) -> SparseVector {
    let (indices, values): (Vec<u32>, Vec<f32>) = weights.into_iter().unzip();
    let token = |&id: &u32| tokenizer.token(id).unwrap_or_else(|| format!("#{id}"));
    SparseVector { tokens: indices.iter().map(token).collect(), indices, values }
}

impl StaticQueries {
    /// The tokens of a text with their weights, each once, by ascending id; those of weight 0 are left out.
    fn weights_of(&self, text: &TokenizedText) -> Vec<(u32, f32)> {
        let ids = text.sequences.iter().flat_map(|sequence| &sequence.tokens.ids);
        let ids: BTreeSet<u32> = ids.copied().collect();
        let weights = ids.into_iter().map(|id| (id, self.weights.get(id as usize).copied().unwrap_or(0.0)));
        weights.filter(|(_, weight)| *weight != 0.0).collect()
    }
}

/// An estimate of the size of a sparse vector in bytes.
pub(super) fn sparse_vector_bytes(dimensions: usize) -> usize {
    let element = size_of::<u32>() + size_of::<f32>() + size_of::<String>() + size_of::<u64>();
    USUAL_ELEMENTS.min(dimensions) * element
}

/// Refuses options that have no meaning for sparse vectors.
fn check_options(options: &VectorOptions, pooling: &Pooling) -> Result<()> {
    let VectorOptions { normalize, dimensions, dtype, on_long, chunking, .. } = options;
    let given = [
        ("--normalize", normalize.is_some()),
        ("--dimensions", dimensions.is_some()),
        ("--output-dtype", *dtype != OutputDtype::F32),
        ("--on-long mean", *on_long == OnLong::Mean),
        ("--chunk", chunking.is_some()),
        ("--token-pooling", options.token_pooling.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => bail!(UsageError(format!(
            "{option} is for dense vectors, but --pooling {pooling} gives sparse weights in {}; remove it",
            OutputDtype::F32.name()
        ))),
        None => Ok(()),
    }
}

impl Task for SparseEncoder {
    type Output = Weights;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let reading = self.readings.of(input, &self.model.tokenizer, self.model.on_long)?;
        let Reading { role, prompt, prompt_tokens, tokenizer, on_long } = reading;
        let text = format!("{prompt}{}", input.text);
        let sequences = match self.queries(role) {
            // The weights of no tokens are all 0.
            Some(queries) => {
                let tokens = tokenize(&queries.tokenizer, on_long, &text, input.pair)?;
                vec![Sequence { tokens, chunks: Vec::new() }]
            }
            None => self.model.checked([tokenize(&tokenizer, on_long, &text, input.pair)?])?.sequences,
        };
        Ok(TokenizedText { role, prompt_tokens, ..TokenizedText::new(sequences) })
    }

    fn encode(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Weights>> {
        let runs = texts.chunk_by(|a, b| a.role == b.role);
        let weights = runs.map(|texts| self.weights(texts, batch_tokens, worker));
        Ok(weights.collect::<Result<Vec<_>>>()?.concat())
    }

    fn finish(&self, text: &TokenizedText, weights: Weights, _options: &RowOptions) -> Vec<TaskRow> {
        vec![TaskRow::of(text, Content::Sparse(Box::new(self.vector_of(weights))))]
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for SparseEncoder {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        ContentType::Sparse { dimensions: self.dimensions }
    }

    fn vector_bytes(&self) -> usize {
        sparse_vector_bytes(self.dimensions)
    }

    fn head_memory(&self) -> HeadMemory {
        self.head.memory()
    }
}
