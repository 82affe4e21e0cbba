//! Sequence classification: labels of a text or pair, or the score of a pair by a cross-encoder. Tokenize,
//! encode, apply the head.

use std::ops::Range;

use anyhow::{Result, bail};

use super::chunks::{cannot_split, locate, span};
use super::model_task::ModelTask;
use super::options::PromptChoice;
use super::pair_template::PairTemplate;
use super::sequences::check_length;
use super::text_model::TextModel;
use super::tokens::resolve_prompt;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::{Loaded, LoadedHead};
use crate::model::classification::{
    ScoreFunction, label_function, labels, next_sentence_labels, pair_function,
};
use crate::named::Named;
use crate::neighbours::descending;
use crate::nn::{ClassificationHead, HeadKind, RaggedBatch, TaskHead, keep_memory};
use crate::rows::{Content, ContentType, LabelScore};
use crate::sys::console::Console;
use crate::text::{self, Chunk, Chunking, OnLong, PairTruncation, Sequence, TokenizedText};

/// How texts are classified or scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreOptions {
    /// What to do with texts over the limit; [`OnLong::Mean`] is not supported.
    pub on_long: OnLong,
    /// Whether rows hold logits instead of scores.
    pub raw: bool,
    /// How a reranker splits texts into chunks, one row each. `None`: each text is a row.
    pub chunking: Option<Chunking>,
}

/// A model with a sequence-classification head.
pub struct Classifier {
    model: TextModel,
    head: ClassificationHead,
    /// `None`: one that is not supported, and rows hold logits.
    function: Option<ScoreFunction>,
    /// Whether rows without options of their own hold logits.
    raw: bool,
    rows: Rows,
}

/// What becomes of the scores of a text.
enum Rows {
    /// The best labels.
    Labels {
        labels: Vec<String>,
        /// Maximum number of labels.
        top_k: usize,
    },
    /// The score of a query and the text.
    Score {
        /// Put before each query, unless the template renders it.
        prompt: String,
        /// What makes one text of a query and a text.
        template: Option<Box<PairTemplate>>,
        chunking: Option<Chunking>,
        ranked: bool,
    },
}

impl Classifier {
    /// A classifier, whose rows have the best `top_k` labels, or all of them for 0.
    pub fn new(loaded: Loaded, options: ScoreOptions, top_k: usize) -> Result<Self> {
        let labels = match loaded.head_kind() {
            Some(HeadKind::NextSentence) => next_sentence_labels(&loaded.origin.config)?,
            _ => labels(&loaded.origin.config)?,
        };
        let function = label_function(&loaded.origin.config, labels.len());
        let top_k = if top_k == 0 { labels.len() } else { top_k };
        Self::build(loaded, options, function, Rows::Labels { labels, top_k })
    }

    /// A cross-encoder, whose rows have the score of a query and a text.
    pub fn cross_encoder(
        loaded: Loaded,
        options: ScoreOptions,
        prompt: Option<&PromptChoice>,
        ranked: bool,
        console: &Console,
    ) -> Result<Self> {
        let labels = loaded.steps.dimensions;
        if labels != 1 {
            bail!(
                "{} describes a text classifier with {labels} labels, not a cross-encoder with one score; use sconce classify",
                loaded.origin.config.path().display()
            );
        }
        let function = pair_function(&loaded.origin.config, loaded.modules.activation.as_deref());
        let prompt = resolve_prompt(prompt, None, &loaded.modules.prompts, console)?;
        let template = PairTemplate::of(&loaded, &prompt, console)?.map(Box::new);
        let truncation = loaded.tokenizer.pair_truncation();
        if template.is_some() && truncation != PairTruncation::default() {
            bail!(UsageError(format!(
                "--truncation {}: the model reads a query and a text as one text of its chat template, which is truncated as a whole; \
                 leave the option out",
                truncation.name()
            )));
        }
        let chunking = options.chunking;
        Self::build(loaded, options, function, Rows::Score { prompt, template, chunking, ranked })
    }

    fn build(
        loaded: Loaded,
        options: ScoreOptions,
        function: Result<ScoreFunction>,
        rows: Rows,
    ) -> Result<Self> {
        let function = if options.raw { function.ok() } else { Some(function?) };
        let Loaded {
            tokenizer,
            encoders,
            head: Some(LoadedHead { layers: TaskHead::SequenceClassification(head), .. }),
            ..
        } = loaded
        else {
            bail!("the model was loaded without its head; please report this as a bug")
        };
        let model = TextModel { tokenizer, encoders, on_long: options.on_long };
        Ok(Classifier { model, head, function, raw: options.raw, rows })
    }

    /// The prompt of a cross-encoder, which may be empty.
    pub fn prompt(&self) -> &str {
        match &self.rows {
            Rows::Labels { .. } => "",
            Rows::Score { prompt, .. } => prompt,
        }
    }

    /// Tokenizes a query and the document of `input` for a cross-encoder.
    fn tokenize_pair(
        &self,
        query: &str,
        prompt: &str,
        input: &TaskInput,
        template: Option<&PairTemplate>,
    ) -> Result<TokenizedText, TokenizeError> {
        let document = input.text;
        match template {
            Some(template) => {
                let (tokenizer, on_long) = self.model.reading(input);
                let tokens = template.encode(&tokenizer, prompt, query, document)?;
                check_length(&tokens, &tokenizer, on_long)?;
                self.model.checked([tokens])
            }
            None if prompt.is_empty() => self.model.tokenize(query, Some(document), input),
            None => self.model.tokenize(&format!("{prompt}{query}"), Some(document), input),
        }
    }

    /// Tokenizes a query with each chunk of the document of `input`.
    fn tokenize_chunks(
        &self,
        query: &str,
        prompt: &str,
        input: &TaskInput,
        template: Option<&PairTemplate>,
        chunking: Chunking,
    ) -> Result<TokenizedText, TokenizeError> {
        let tokenizer = self.model.reading(input).0;
        let chunks = text::split(&tokenizer, "", input.text, chunking).map_err(cannot_split)?;
        let ranges: Vec<Range<usize>> = chunks.into_iter().map(|chunk| chunk.range).collect();
        let mut sequences = Vec::with_capacity(ranges.len());
        for (chunk, range) in locate(input.text, ranges.iter().cloned()).into_iter().zip(ranges) {
            let document = TaskInput { text: &input.text[range], ..*input };
            let pair = self.tokenize_pair(query, prompt, &document, template)?;
            sequences.extend(pair.sequences.into_iter().map(|Sequence { tokens, .. }| {
                let chunks = vec![Chunk { tokens: 0..tokens.ids.len(), ..chunk.clone() }];
                Sequence { tokens, chunks }
            }));
        }
        Ok(TokenizedText::new(sequences))
    }

    /// The names of the logits, in their order; those of a cross-encoder have none.
    pub fn labels(&self) -> Vec<String> {
        match &self.rows {
            Rows::Labels { labels, .. } => labels.clone(),
            Rows::Score { .. } => vec!["LABEL_0".into()],
        }
    }

    /// The function from logits to scores.
    pub fn function(&self) -> ScoreFunction {
        self.score_function(self.raw)
    }

    fn score_function(&self, raw: bool) -> ScoreFunction {
        self.function.filter(|_| !raw).unwrap_or(ScoreFunction::LOGITS)
    }

    /// The content of the row of a text with these logits.
    fn content_of(&self, logits: &[f32], options: &RowOptions) -> Content {
        let scores = self.score_function(options.raw.unwrap_or(self.raw)).apply(logits);
        match &self.rows {
            Rows::Score { .. } => Content::Score { score: scores[0], rank: None },
            Rows::Labels { labels, top_k } => {
                let mut order: Vec<usize> = (0..labels.len()).collect();
                // Stable: equal scores stay in the order of the labels.
                order.sort_by_key(|&label| descending(scores[label]));
                let best = order.into_iter().take(*top_k);
                let best = best.map(|i| LabelScore { label: labels[i].clone(), score: scores[i] });
                Content::Labels(best.collect())
            }
        }
    }
}

impl Task for Classifier {
    /// The logits, one per label, or of a cross-encoder one per chunk.
    type Output = Vec<f32>;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        match (&self.rows, input.query) {
            (Rows::Labels { .. }, _) => self.model.tokenize(input.text, input.pair, input),
            (Rows::Score { prompt, template, chunking, .. }, Some(query)) => {
                let (prompt, template) = (input.prompt.unwrap_or(prompt), template.as_deref());
                match *chunking {
                    Some(chunking) => self.tokenize_chunks(query, prompt, input, template, chunking),
                    None => self.tokenize_pair(query, prompt, input, template),
                }
            }
            (Rows::Score { .. }, None) => {
                Err(TokenizeError::Failed("has no query; add one, or pass --query".into()))
            }
        }
    }

    fn encode(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Vec<f32>>> {
        let select = |batch: &RaggedBatch| self.head.pooled_tokens(batch);
        let mut logits = self.model.forward(texts, batch_tokens, worker, select, |batch, hidden| {
            Ok(self.head.forward(hidden, batch)?.to_vec2::<f32>()?)
        })?;
        Ok(texts.iter().map(|text| logits.by_ref().take(text.sequences.len()).flatten().collect()).collect())
    }

    fn finish(&self, text: &TokenizedText, logits: Vec<f32>, options: &RowOptions) -> Vec<TaskRow> {
        if text.chunks().next().is_none() {
            return vec![TaskRow::of(text, self.content_of(&logits, options))];
        }
        let row = |(chunk, logit): (&Chunk, f32)| {
            TaskRow::of_chunk(span(chunk), chunk.tokens.len(), self.content_of(&[logit], options))
        };
        text.chunks().zip(logits).map(row).collect()
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        options.only(&["raw"])?;
        match (options.raw, self.function) {
            (Some(false), None) => Err(RowOptionError {
                option: "raw",
                reason: "is false, but the model's activation function is not supported; pass true".into(),
            }),
            _ => Ok(()),
        }
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for Classifier {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        match self.rows {
            Rows::Labels { .. } => ContentType::Labels,
            Rows::Score { ranked, .. } => ContentType::Scores { ranked },
        }
    }

    fn vector_bytes(&self) -> usize {
        match &self.rows {
            Rows::Score { .. } => size_of::<f32>(),
            Rows::Labels { labels, top_k } => {
                let longest = labels.iter().map(String::len).max().unwrap_or(0);
                (*top_k).min(labels.len()) * (size_of::<LabelScore>() + longest)
            }
        }
    }
}
