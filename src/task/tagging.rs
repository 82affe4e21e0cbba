//! Token classification: the entities of a text. Tokenize, encode, apply the head to each token, join tokens.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::entities::{Aggregation, Labelled, entities, merge};
use super::model_task::{HeadMemory, ModelTask};
use super::sequences::{TokenLogits, all_finite, check_length, token_logits, tokenizer_failed};
use super::text_model::TextModel;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::{Loaded, LoadedHead};
use crate::model::classification::{ScoreFunction, labels};
use crate::nn::{TaskHead, TokenHead, keep_memory};
use crate::rows::{Content, ContentType, Entity, SpanKind};
use crate::text::OnLong;
use crate::text::{Characters, TokenSpan, TokenizedText, Windows};

/// How texts are tagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagOptions {
    /// How tokens are joined to entities.
    pub aggregation: Aggregation,
    /// Whether scores are logits, in place of probabilities.
    pub raw: bool,
    /// What to do with texts over the limit; [`OnLong::Mean`] is not supported.
    pub on_long: OnLong,
    /// Tag texts over the limit in windows that share so many tokens with the next one.
    pub stride: Option<usize>,
}

/// A model with a token-classification head.
pub struct Tagger {
    model: Arc<TextModel>,
    head: Arc<TokenHead>,
    labels: Arc<[String]>,
    options: TagOptions,
}

impl Tagger {
    /// A tagger.
    ///
    /// # Errors
    /// If the model has no head, or its config is malformed; if windows would not advance: a usage error.
    pub fn new(loaded: Loaded, options: TagOptions) -> Result<Self> {
        let labels = labels(&loaded.origin.config)?;
        let Loaded {
            tokenizer,
            encoders,
            head: Some(LoadedHead { layers: TaskHead::TokenClassification(head), .. }),
            ..
        } = loaded
        else {
            bail!("the model was loaded without its head; please report this as a bug")
        };
        let model = TextModel { tokenizer, encoders, on_long: options.on_long };
        let tagger = Tagger { model: model.into(), head: head.into(), labels: labels.into(), options };
        let room = tagger.window_room();
        if let Some(stride) = options.stride.filter(|stride| *stride >= room) {
            bail!(UsageError(format!(
                "--stride {stride}: windows have {room} tokens beside special tokens; pass a smaller --stride, or a larger \
                 --max-length"
            )));
        }
        Ok(tagger)
    }

    /// The same model with these options, whose stride is less than [`Tagger::window_room`].
    pub fn with(&self, options: TagOptions) -> Self {
        Tagger { model: self.model.clone(), head: self.head.clone(), labels: self.labels.clone(), options }
    }

    /// How texts are tagged.
    pub fn options(&self) -> &TagOptions {
        &self.options
    }

    /// The names of the logits of a token, in their order.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Tokens of a text that a window has room for, beside special tokens.
    pub fn window_room(&self) -> usize {
        self.model.tokenizer.max_length() - self.model.tokenizer.num_special_tokens(false)
    }

    /// What scores are: the function of the logits of a token.
    fn function(raw: bool) -> ScoreFunction {
        if raw { ScoreFunction::LOGITS } else { ScoreFunction::Softmax }
    }
}

/// The content of the row of a text, from the entities of its windows.
fn content(text: &TokenizedText, windows: Vec<Vec<Labelled>>) -> Content {
    let Some(alignment) = text.alignment() else {
        return Content::Entities(Vec::new());
    };
    let text = Characters::new(&alignment.text);
    let entity = |Labelled { label, score, characters }: Labelled| Entity {
        label,
        score,
        start: characters.start as u64,
        end: characters.end as u64,
        text: text.slice(&characters).to_owned(),
    };
    Content::Entities(merge(windows).into_iter().map(entity).collect())
}

impl Task for Tagger {
    type Output = TokenLogits;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let windows = match self.options.stride {
            Some(stride) => Windows::Overlapping { stride },
            None => Windows::Truncate,
        };
        let (tokenizer, on_long) = self.model.reading(input);
        let windows = tokenizer.encode_aligned(None, input.text, windows).map_err(tokenizer_failed)?;
        windows.iter().try_for_each(|tokens| check_length(tokens, &tokenizer, on_long))?;
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
        let function = Self::function(options.raw.unwrap_or(self.options.raw));
        let windows = text.sequences.iter().zip(&logits).map(|(window, logits)| {
            let spans = window.tokens.alignment.as_ref().map_or(&[][..], |alignment| &alignment.spans);
            entities(spans, logits, &self.labels, function, self.options.aggregation)
        });
        let content = content(text, windows.collect());
        vec![TaskRow { is_finite: all_finite(&logits), ..TaskRow::of(text, content) }]
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        options.only(&["raw"])
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for Tagger {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        ContentType::Spans(SpanKind::Entities)
    }

    fn vector_bytes(&self) -> usize {
        // Few tokens are entities, but all may be.
        let entity = size_of::<Entity>() + size_of::<Option<TokenSpan>>();
        entity + self.labels.iter().map(String::len).max().unwrap_or(0)
    }

    fn head_memory(&self) -> HeadMemory {
        HeadMemory { token_bytes: 2 * size_of::<f32>() * self.labels.len(), ..HeadMemory::default() }
    }
}
