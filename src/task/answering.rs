//! Extractive question answering: the parts of a text that answer a question. Tokenize in windows, encode,
//! apply the head to each token, choose spans.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::answers::{Candidates, candidates, merge};
use super::model_task::ModelTask;
use super::sequences::{TokenLogits, all_finite, token_logits, tokenizer_failed};
use super::text_model::TextModel;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::load::{Loaded, LoadedHead};
use crate::nn::{TaskHead, TokenHead, keep_memory};
use crate::rows::{Answer, Content, ContentType, SpanKind};
use crate::text::OnLong;
use crate::text::{Characters, NoRoom, TokenSpan, TokenizedText, Windows};

/// How questions are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerOptions {
    /// The question of texts that have none of their own.
    pub question: Option<String>,
    /// Maximum number of answers.
    pub top_k: usize,
    /// Whether scores are sums of logits, in place of products of probabilities.
    pub raw: bool,
    /// Maximum tokens of an answer, before it is extended to whole words.
    pub max_answer_length: usize,
    /// Tokens that a window of a text over the limit shares with the next one. `None`: half of the limit, at
    /// most 128.
    pub stride: Option<usize>,
}

impl Default for AnswerOptions {
    fn default() -> Self {
        AnswerOptions { question: None, top_k: 1, raw: false, max_answer_length: 15, stride: None }
    }
}

/// The default stride for long windows, as in the pipeline of `transformers`.
const MAX_DEFAULT_STRIDE: usize = 128;

/// Bytes of an answer's text per token, for the memory budget.
const BYTES_PER_TOKEN: usize = 8;

/// A model with a question-answering head.
pub struct Answerer {
    model: Arc<TextModel>,
    head: Arc<TokenHead>,
    options: AnswerOptions,
    stride: usize,
}

impl Answerer {
    /// A model that answers questions.
    pub fn new(loaded: Loaded, options: AnswerOptions) -> Result<Self> {
        let Loaded {
            tokenizer,
            encoders,
            head: Some(LoadedHead { layers: TaskHead::QuestionAnswering(head), .. }),
            ..
        } = loaded
        else {
            bail!("the model was loaded without its head; please report this as a bug")
        };
        let model = TextModel { tokenizer, encoders, on_long: OnLong::Truncate };
        Ok(Self::of(model.into(), head.into(), options))
    }

    fn of(model: Arc<TextModel>, head: Arc<TokenHead>, options: AnswerOptions) -> Self {
        let default = || (model.tokenizer.max_length() / 2).min(MAX_DEFAULT_STRIDE);
        let stride = options.stride.unwrap_or_else(default);
        Answerer { model, head, options, stride }
    }

    /// The same model with these options.
    pub fn with(&self, options: AnswerOptions) -> Self {
        Self::of(self.model.clone(), self.head.clone(), options)
    }

    /// How questions are answered.
    pub fn options(&self) -> &AnswerOptions {
        &self.options
    }

    /// Tokens that windows of a long text share.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The content of the row of a text, from the candidates of its windows.
    fn content(&self, text: &TokenizedText, windows: Vec<Candidates>, raw: bool) -> Content {
        let Some(alignment) = text.alignment() else {
            return Content::Answers { answers: Vec::new(), no_answer: 0.0 };
        };
        let characters_of = Characters::new(&alignment.text);
        let (answers, no_answer) = merge(&characters_of, windows, self.options.top_k, raw);
        let answers = answers.into_iter().map(|(characters, score)| Answer {
            text: characters_of.slice(&characters).to_owned(),
            start: characters.start as u64,
            end: characters.end as u64,
            score: score as f32,
        });
        Content::Answers { answers: answers.collect(), no_answer: no_answer as f32 }
    }
}

impl Task for Answerer {
    type Output = TokenLogits;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let Some(question) = input.query.or(self.options.question.as_deref()) else {
            return Err(TokenizeError::Failed("has no question; add one, or pass --question".into()));
        };
        let windows = Windows::Overlapping { stride: self.stride };
        let windows = self.model.tokenizer.encode_aligned(Some(question), input.text, windows);
        let windows = windows.map_err(|error| match error.downcast_ref::<NoRoom>() {
            Some(NoRoom { room: 0, max_length, .. }) => TokenizeError::Failed(format!(
                "has a question that leaves no room for it in a window of {max_length} tokens; shorten the question, or pass a larger \
                 --max-length"
            )),
            Some(no_room) => TokenizeError::Failed(format!(
                "{no_room} beside its question; shorten the question, or pass a smaller --stride or a larger --max-length"
            )),
            None => tokenizer_failed(error),
        })?;
        self.model.checked(windows)
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<TokenLogits>> {
        token_logits(self.model.encoder(worker), &self.head, texts, batch_tokens)
    }

    fn finish(&self, text: &TokenizedText, logits: TokenLogits, options: &RowOptions) -> Vec<TaskRow> {
        let AnswerOptions { top_k, max_answer_length, .. } = self.options;
        let raw = options.raw.unwrap_or(self.options.raw);
        // Several spans may have the same words, so more are chosen, as many as in the pipeline.
        let count = 2 * top_k + 10;
        let windows = text.sequences.iter().zip(&logits);
        let windows =
            windows.map(|(window, logits)| candidates(&window.tokens, logits, count, max_answer_length, raw));
        let content = self.content(text, windows.collect(), raw);
        vec![TaskRow { is_finite: all_finite(&logits), ..TaskRow::of(text, content) }]
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        options.only(&["raw"])
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for Answerer {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        ContentType::Spans(SpanKind::Answers)
    }

    fn vector_bytes(&self) -> usize {
        let max_length = self.model.tokenizer.max_length();
        let answer_length = self.options.max_answer_length.min(max_length);
        let answers = self.options.top_k.min(max_length.saturating_mul(answer_length));
        let spans = max_length * size_of::<Option<TokenSpan>>();
        spans + answers * (size_of::<Answer>() + answer_length * BYTES_PER_TOKEN)
    }
}
