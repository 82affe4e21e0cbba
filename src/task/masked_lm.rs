//! Masked language modelling: the tokens that a model expects in the place of the masks of a text. Tokenize, encode, apply the head to
//! the masks.

use anyhow::{Result, bail};

use super::classification::ScoreOptions;
use super::load::Loaded;
use super::model_task::ModelTask;
use super::options::OnLong;
use super::sequences::{forward, tokenize};
use super::tokens::check_tokens;
use crate::model::classification::ScoreFunction;
use crate::nn::{Encoder, MaskedLmHead, TaskHead, keep_memory};
use crate::output::{Content, ContentType, TokenScore};
use crate::pipeline::{Task, TaskRow, TokenizeError};
use crate::text::{Sequence, TokenizedText, Tokenizer};

/// A masked language model, whose rows have the best tokens for each mask of a text.
pub struct MaskFiller {
    tokenizer: Tokenizer,
    encoders: Vec<Encoder>,
    head: MaskedLmHead,
    function: ScoreFunction,
    on_long: OnLong,
    /// The vocabulary id of the mask token.
    mask: u32,
    /// Maximum number of tokens per mask.
    top_k: usize,
}

impl MaskFiller {
    /// A masked language model, whose rows have the best `top_k` tokens per mask, or the whole vocabulary for 0.
    ///
    /// # Errors
    /// If the model has no head, or its tokenizer has no mask token.
    pub fn new(loaded: Loaded, options: ScoreOptions, top_k: usize) -> Result<Self> {
        let Loaded { tokenizer, encoders, head: Some(TaskHead::MaskedLm(head)), dimensions, .. } = loaded
        else {
            bail!("the model was loaded without its head; please report this as a bug")
        };
        let Some((mask, _)) = tokenizer.mask_token() else {
            bail!(
                "{} has no mask token; name it as \"mask_token\" in a tokenizer_config.json next to it, or choose another \
                 --tokenizer",
                loaded.tokenizer_file.display()
            )
        };
        Ok(MaskFiller {
            tokenizer,
            encoders,
            head,
            function: if options.raw { ScoreFunction::LOGITS } else { ScoreFunction::Softmax },
            on_long: options.on_long,
            mask,
            top_k: if top_k == 0 { dimensions } else { top_k.min(dimensions) },
        })
    }

    /// The function from logits to scores.
    pub fn function(&self) -> ScoreFunction {
        self.function
    }

    /// The best tokens for these logits, `(V)`; equal scores by ascending id.
    fn best(&self, logits: &[f32]) -> Vec<TokenScore> {
        let scores = self.function.apply(logits);
        let by_score = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
        let mut ids: Vec<usize> = (0..scores.len()).collect();
        if self.top_k < ids.len() {
            ids.select_nth_unstable_by(self.top_k, by_score);
            ids.truncate(self.top_k);
        }
        ids.sort_unstable_by(by_score);
        let token = |id: usize| TokenScore {
            token: self.tokenizer.decode(id as u32),
            id: id as u32,
            score: scores[id],
        };
        ids.into_iter().map(token).collect()
    }

    /// The number of masks of a sequence.
    fn count_masks(&self, sequence: &Sequence) -> usize {
        sequence.tokens.ids.iter().filter(|id| **id == self.mask).count()
    }
}

impl Task for MaskFiller {
    fn tokenize(&self, text: &str, pair: Option<&str>) -> Result<TokenizedText, TokenizeError> {
        let tokens = tokenize(&self.tokenizer, self.on_long, text, pair)?;
        check_tokens(&tokens, &self.tokenizer, self.encoders[0].spec())?;
        let truncated_tokens = tokens.truncated_tokens;
        let sequence = Sequence { tokens, chunks: Vec::new() };
        if self.count_masks(&sequence) == 0 {
            let mask = self.tokenizer.token(self.mask).unwrap_or_default();
            return Err(TokenizeError::Failed(match truncated_tokens {
                0 => format!("has no mask; write {mask} in place of a word"),
                _ => format!("has no mask {mask} within the limit of {} tokens", self.tokenizer.max_length()),
            }));
        }
        Ok(TokenizedText { sequences: vec![sequence] })
    }

    fn run(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Vec<TaskRow>>> {
        let encoder = &self.encoders[worker % self.encoders.len()];
        let sequences: Vec<&Sequence> = texts.iter().flat_map(|text| &text.sequences).collect();
        let best = forward(encoder, &sequences, batch_tokens, |_, batch, hidden| {
            let masks = (0..).zip(batch.ids()).filter(|(_, id)| **id == self.mask).map(|(token, _)| token);
            self.head.map_logits(hidden, &masks.collect::<Vec<u32>>(), |logits| self.best(logits))
        })?;
        let mut best = best.into_iter().flatten();
        let rows = texts.iter().zip(sequences).map(|(text, sequence)| {
            let content = Content::Masks(best.by_ref().take(self.count_masks(sequence)).collect());
            vec![TaskRow { span: None, tokens: text.token_count(), is_finite: content.is_finite(), content }]
        });
        Ok(rows.collect())
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for MaskFiller {
    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn encoders(&self) -> &[Encoder] {
        &self.encoders
    }

    fn on_long(&self) -> OnLong {
        self.on_long
    }

    fn content(&self) -> ContentType {
        ContentType::Masks
    }

    fn vector_bytes(&self) -> usize {
        // The tokens of one mask; few texts have many.
        self.top_k * (size_of::<TokenScore>() + size_of::<u64>())
    }
}
