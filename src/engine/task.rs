//! The contract between the engine and a task.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::rows::{Content, ContentType, OutputDtype, Span};
use crate::text::{OnLong, Role, TokenizedText, TruncationSide};

/// Turns texts into rows, in three steps. Implementations are shared by all threads of an engine.
pub trait Task: Send + Sync + 'static {
    /// What the encoder and its head make of a text, in f32, before a caller's choices.
    type Output;

    /// Tokenizes a text.
    ///
    /// # Errors
    /// [`TokenizeError`] if the text cannot be encoded.
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError>;

    /// Encodes a batch and returns the output of each text, in order.
    ///
    /// `texts` have at most `batch_tokens` tokens in all, unless a single text has more: such a text should
    /// be encoded in several forward passes, at the boundaries of its sequences. `worker` is the index of the
    /// worker thread, with which a task with several devices chooses one. If all threads share the batch, it
    /// is 0. Parallel operations run on the worker's own thread, or on all threads if they share the batch.
    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Self::Output>>;

    /// The rows of a text from its output. `options` are ones that [`Task::check`] accepts.
    fn finish(&self, text: &TokenizedText, output: Self::Output, options: &RowOptions) -> Vec<TaskRow>;

    /// Refuses options that the task does not have; by default all of them.
    ///
    /// # Errors
    /// The first such option.
    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        options.only(&[])
    }

    /// Called once before the worker threads start. A run that is too short to start worker threads does not
    /// call it.
    fn on_workers_start(&self) {}
}

/// What a caller asks of a row. What is `None` is as the task was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RowOptions {
    /// Keep the first dimensions of a vector, this many.
    pub dimensions: Option<usize>,
    /// Whether vectors have unit length.
    pub normalize: Option<bool>,
    /// The element type of vectors.
    pub dtype: Option<OutputDtype>,
    /// Whether scores are logits.
    pub raw: Option<bool>,
}

impl RowOptions {
    /// Refuses options that are given, but not named in `supported`.
    ///
    /// # Errors
    /// The first such option.
    pub fn only(&self, supported: &[&str]) -> Result<(), RowOptionError> {
        let given = [
            ("dimensions", self.dimensions.is_some()),
            ("normalize", self.normalize.is_some()),
            ("dtype", self.dtype.is_some()),
            ("raw", self.raw.is_some()),
        ];
        let refused = given.into_iter().find(|(option, is_given)| *is_given && !supported.contains(option));
        match refused {
            Some((option, _)) => Err(RowOptionError {
                option,
                reason: "does not apply to this model's rows; leave it out".into(),
            }),
            None => Ok(()),
        }
    }
}

/// An option that a task does not have, or not with this value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOptionError {
    /// The field of [`RowOptions`].
    pub option: &'static str,
    /// The predicate of a sentence whose subject is the option.
    pub reason: String,
}

impl fmt::Display for RowOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.option, self.reason)
    }
}

impl std::error::Error for RowOptionError {}

/// A text, and what its caller asks of it. What is `None` is as the task was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TaskInput<'a> {
    /// The text.
    pub text: &'a str,
    /// The second text of a pair.
    pub pair: Option<&'a str>,
    /// The query or the question that the text is read for.
    pub query: Option<&'a str>,
    /// What the text is, for tasks that read queries and documents in different ways.
    pub role: Option<Role>,
    /// What is put before the text.
    pub prompt: Option<&'a str>,
    /// What becomes of the text if it is over the limit.
    pub on_long: Option<OnLong>,
    /// The end at which it is truncated then.
    pub truncation_side: Option<TruncationSide>,
    /// Whether a text that an embedding model pools has a vector for each of its tokens instead, before
    /// pooling.
    pub per_token: bool,
}

impl<'a> TaskInput<'a> {
    /// A text without choices of its own.
    pub fn new(text: &'a str) -> Self {
        TaskInput { text, ..TaskInput::default() }
    }
}

/// A row of the output, without the columns that come from the record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskRow {
    /// The position of the chunk in the text, if rows are chunks.
    pub span: Option<Span>,
    /// The index of the query that the row is of, if the text has a row for each query.
    pub query: Option<usize>,
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// What the row holds: a vector, a score or labels.
    pub content: Content,
    /// Whether all values are finite; those of a vector before and after the conversion to the output dtype.
    pub is_finite: bool,
}

impl TaskRow {
    /// The only row of a text.
    pub fn of(text: &TokenizedText, content: Content) -> Self {
        let (tokens, is_finite) = (text.own_token_count(), content.is_finite());
        TaskRow { span: None, query: None, tokens, is_finite, content }
    }

    /// The row of a chunk with this number of tokens.
    pub fn of_chunk(span: Span, tokens: usize, content: Content) -> Self {
        TaskRow { span: Some(span), query: None, tokens, is_finite: content.is_finite(), content }
    }
}

/// The reason of [`TokenizeError::NoTokens`].
pub const NO_TOKENS: &str = "has no tokens: it is empty, and the model's tokenizer adds no special tokens";

/// Why a text has no row. Each reason is the predicate of a sentence whose subject is the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizeError {
    /// The text has more tokens than the limit, and `--on-long` is not `truncate` or `mean`.
    TooLong {
        /// Tokens of the whole text.
        tokens: usize,
        /// The reason.
        reason: String,
    },
    /// The tokenizer failed, or returned a token without an embedding.
    Failed(String),
    /// The text is empty and the tokenizer adds no special tokens.
    NoTokens,
}

impl TokenizeError {
    /// The reason, as the predicate of a sentence whose subject is the text.
    pub fn into_reason(self) -> String {
        match self {
            TokenizeError::TooLong { reason, .. } | TokenizeError::Failed(reason) => reason,
            TokenizeError::NoTokens => NO_TOKENS.into(),
        }
    }
}

/// A text that has no rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// The index of the text, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub fault: TextFault,
    /// The predicate of a sentence whose subject is the text.
    pub reason: String,
}

/// The kind of a [`TextError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFault {
    /// It cannot be tokenized, or has no tokens.
    Invalid,
    /// It has more tokens than the limit, this many.
    TooLong {
        /// Tokens of the whole text.
        tokens: usize,
        /// The number of texts after it that have more tokens than the limit, too, where they are counted.
        others: usize,
    },
    /// What it becomes has NaN or infinite values.
    NotFinite,
}

impl TextError {
    /// A text that cannot be tokenized.
    pub(super) fn new(index: usize, error: TokenizeError) -> Self {
        let fault = match error {
            TokenizeError::TooLong { tokens, .. } => TextFault::TooLong { tokens, others: 0 },
            TokenizeError::Failed(_) | TokenizeError::NoTokens => TextFault::Invalid,
        };
        TextError { index, fault, reason: error.into_reason() }
    }

    /// The same text, of which another one that is too long, with those after it, is counted.
    pub(super) fn with(mut self, other: &TextError) -> Self {
        if let (TextFault::TooLong { others, .. }, TextFault::TooLong { others: more, .. }) =
            (&mut self.fault, other.fault)
        {
            *others += 1 + more;
        }
        self
    }

    /// A text whose row holds `content` that is not finite.
    pub fn not_finite(index: usize, content: &ContentType) -> Self {
        let reason = format!("{}; check the model", content.not_finite());
        TextError { index, fault: TextFault::NotFinite, reason }
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text {} {}", self.index + 1, self.reason)
    }
}

impl std::error::Error for TextError {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::text::{PairTruncation, Sequence, Tokenizer, TokenizerOptions};

    // The example of "Add a task" in CONTRIBUTING.md, line by line.

    /// The number of tokens of each text, as its score.
    struct TokenCounter {
        tokenizer: Tokenizer,
    }

    impl Task for TokenCounter {
        type Output = usize;

        fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
            let tokens = self.tokenizer.encode(input.text, input.pair);
            let tokens = tokens.map_err(|error| TokenizeError::Failed(error.to_string()))?;
            Ok(TokenizedText::new(vec![Sequence { tokens, chunks: vec![] }]))
        }

        fn encode(&self, texts: &[TokenizedText], _tokens: usize, _worker: usize) -> Result<Vec<usize>> {
            Ok(texts.iter().map(TokenizedText::token_count).collect())
        }

        fn finish(&self, text: &TokenizedText, tokens: usize, _options: &RowOptions) -> Vec<TaskRow> {
            vec![TaskRow::of(text, Content::Score { score: tokens as f32, rank: None })]
        }
    }

    #[test]
    fn the_example_task_has_a_row_for_each_text() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert-tiny/tokenizer.json");
        let options = TokenizerOptions {
            max_length: 16,
            truncation_side: TruncationSide::Right,
            pair_truncation: PairTruncation::LongestFirst,
            lowercase: false,
        };
        let task = TokenCounter { tokenizer: Tokenizer::read(&path, &options).unwrap() };
        let texts = [("a", None), ("a lamp", Some("a light"))];
        let texts =
            texts.map(|(text, pair)| task.tokenize(&TaskInput { pair, ..TaskInput::new(text) }).unwrap());
        let outputs = task.encode(&texts, 256, 0).unwrap();
        let rows = |(text, output)| task.finish(text, output, &RowOptions::default());
        let counts: Vec<Vec<usize>> = (texts.iter().zip(outputs).map(rows))
            .map(|rows| rows.iter().map(|row| row.tokens).collect())
            .collect();
        assert_eq!(counts, texts.map(|text| vec![text.token_count()]));
    }
}
