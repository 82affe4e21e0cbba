//! Masked language modelling: the tokens that a model expects in the place of the masks of a text. Tokenize,
//! encode, apply the head to the masks.

use std::sync::Arc;

use anyhow::{Result, bail};

use super::classification::ScoreOptions;
use super::model_task::{HeadMemory, ModelTask};
use super::text_model::TextModel;
use crate::engine::{RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::load::{Loaded, LoadedHead, Steps};
use crate::model::classification::ScoreFunction;
use crate::neighbours::descending;
use crate::nn::{MaskedLmHead, RaggedBatch, TaskHead, keep_memory};
use crate::rows::{Content, ContentType, TokenScore};
use crate::text::TokenizedText;

/// The ids of tokens with their scores, best first.
type BestTokens = Vec<(u32, f32)>;

/// A masked language model, whose rows have the best tokens for each mask of a text.
pub struct MaskFiller {
    model: Arc<TextModel>,
    head: Arc<MaskedLmHead>,
    function: ScoreFunction,
    /// The vocabulary id of the mask token.
    mask: u32,
    /// Tokens of the vocabulary that the head scores.
    vocab_size: usize,
    /// Maximum number of tokens per mask.
    top_k: usize,
}

impl MaskFiller {
    /// The default of the maximum number of tokens per mask.
    pub const TOP_K: usize = 5;

    /// A masked language model, whose rows have the best `top_k` tokens per mask, or the whole vocabulary
    /// for 0.
    pub fn new(loaded: Loaded, options: ScoreOptions, top_k: usize) -> Result<Self> {
        let Loaded {
            tokenizer,
            encoders,
            head: Some(LoadedHead { layers: TaskHead::MaskedLm(head), .. }),
            steps: Steps { dimensions, .. },
            ..
        } = loaded
        else {
            bail!("the model was loaded without its head; please report this as a bug")
        };
        let Some((mask, _)) = tokenizer.mask_token() else {
            bail!(
                "{} has no mask token; name it as \"mask_token\" in a tokenizer_config.json next to it, or choose another \
                 --tokenizer",
                loaded.origin.tokenizer.display()
            )
        };
        let model = TextModel { tokenizer, encoders, on_long: options.on_long };
        Ok(Self::of(model.into(), head.into(), mask, dimensions, options.raw, top_k))
    }

    fn of(
        model: Arc<TextModel>,
        head: Arc<MaskedLmHead>,
        mask: u32,
        vocab_size: usize,
        raw: bool,
        top_k: usize,
    ) -> Self {
        let function = if raw { ScoreFunction::LOGITS } else { ScoreFunction::Softmax };
        let top_k = if top_k == 0 { vocab_size } else { top_k.min(vocab_size) };
        MaskFiller { model, head, function, mask, vocab_size, top_k }
    }

    /// The same model, whose rows have the best `top_k` tokens per mask, or the whole vocabulary for 0.
    /// `raw`: scores are logits.
    pub fn with(&self, raw: bool, top_k: usize) -> Self {
        Self::of(self.model.clone(), self.head.clone(), self.mask, self.vocab_size, raw, top_k)
    }

    /// The mask token.
    pub fn mask(&self) -> String {
        self.model.tokenizer.token(self.mask).unwrap_or_default()
    }

    /// The function from logits to scores.
    pub fn function(&self) -> ScoreFunction {
        self.function
    }

    /// The best tokens for these logits, `(V)`; equal scores by ascending id.
    fn best(&self, logits: &[f32]) -> BestTokens {
        let scores = self.function.apply(logits);
        let by_score = |id: &usize| (descending(scores[*id]), *id);
        let mut ids: Vec<usize> = (0..scores.len()).collect();
        if self.top_k < ids.len() {
            ids.select_nth_unstable_by_key(self.top_k, by_score);
            ids.truncate(self.top_k);
        }
        ids.sort_unstable_by_key(by_score);
        ids.into_iter().map(|id| (id as u32, scores[id])).collect()
    }

    /// The number of masks of a text.
    fn count_masks(&self, text: &TokenizedText) -> usize {
        let ids = text.sequences.iter().flat_map(|sequence| &sequence.tokens.ids);
        ids.filter(|id| **id == self.mask).count()
    }
}

impl Task for MaskFiller {
    /// The best tokens of each mask: all logits of a long text would not fit into memory.
    type Output = Vec<BestTokens>;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let tokenized = self.model.tokenize(input.text, input.pair, input)?;
        if self.count_masks(&tokenized) == 0 {
            let (tokenizer, mask) = (&self.model.tokenizer, self.mask());
            return Err(TokenizeError::Failed(match tokenized.truncated_tokens() {
                0 => format!("has no mask; write {mask} in place of a word"),
                _ => format!("has no mask {mask} within the limit of {} tokens", tokenizer.max_length()),
            }));
        }
        Ok(tokenized)
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Vec<BestTokens>>> {
        let masks = |batch: &RaggedBatch| {
            let masks = (0..).zip(batch.ids()).filter(|(_, id)| **id == self.mask);
            Some(masks.map(|(token, _)| token).collect())
        };
        let mut best = self.model.forward(texts, batch_tokens, worker, masks, |_, hidden| {
            self.head.map_logits(hidden, |logits| self.best(logits))
        })?;
        Ok(texts.iter().map(|text| best.by_ref().take(self.count_masks(text)).collect()).collect())
    }

    fn finish(&self, text: &TokenizedText, masks: Vec<BestTokens>, _options: &RowOptions) -> Vec<TaskRow> {
        let token = |(id, score)| TokenScore { token: self.model.tokenizer.decode(id), id, score };
        let masks = masks.into_iter().map(|best| best.into_iter().map(token).collect());
        vec![TaskRow::of(text, Content::Masks(masks.collect()))]
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for MaskFiller {
    fn model(&self) -> &TextModel {
        &self.model
    }

    fn content(&self) -> ContentType {
        ContentType::Masks
    }

    fn vector_bytes(&self) -> usize {
        // The tokens of one mask; few texts have many.
        self.top_k * (size_of::<TokenScore>() + size_of::<u64>())
    }

    fn head_memory(&self) -> HeadMemory {
        HeadMemory { batch_bytes: self.head.logits_bytes(), ..HeadMemory::default() }
    }
}
