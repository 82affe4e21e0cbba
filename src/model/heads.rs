//! The task head of each kind that a family has.

use anyhow::{Result, bail};

use super::classification::{NEXT_SENTENCE_LABELS, labels, pooler};
use super::config::Config;
use super::families::Family;
use super::modules::LogitScore;
use super::unsupported::unsupported_head;
use crate::named::Named;
use crate::nn::{CausalLmSpec, EncoderSpec, GlobalTokens, HeadKind, HeadSpec};

/// Logits per token in extractive question answering: those of the start and the end of an answer.
const SPAN_LOGITS: usize = 2;

impl Family {
    /// The task head of this kind, as the config describes it.
    pub fn head(&self, kind: HeadKind, config: &Config, spec: &EncoderSpec) -> Result<HeadSpec> {
        let head = self.described_head(kind, config, spec)?;
        // The decoder of a masked language model may be the matrix of the token embeddings.
        if kind != HeadKind::MaskedLm {
            self.check_has_head(kind, config)?;
        }
        Ok(head)
    }

    /// The tokens to which a model of the family with a head of this kind gives global attention. An
    /// encoder without a head has none, as in `transformers`.
    pub fn global_tokens(&self, kind: HeadKind, config: &Config) -> Result<Option<GlobalTokens>> {
        Ok(match kind {
            HeadKind::SequenceClassification if self.global_attention => Some(GlobalTokens::First),
            HeadKind::QuestionAnswering if self.global_attention => {
                config.token_id("sep_token_id")?.map(GlobalTokens::Before)
            }
            _ => None,
        })
    }

    /// The causal-LM head for the logits of these tokens.
    pub fn causal_lm(&self, tokens: &LogitScore, config: &Config, spec: &EncoderSpec) -> Result<HeadSpec> {
        self.check_has_head(HeadKind::CausalLm, config)?;
        let logit_cap = match self.keys.logit_cap.filter(|key| config.has(key)) {
            Some(key) => Some(config.required_number(key)?),
            None => None,
        };
        let logit_divisor = self.keys.logit_divisor.map_or(Ok(1.0), |key| config.number(key, 1.0))?;
        let LogitScore { true_token, false_token, file } = tokens;
        let vocab_size = spec.vocab_size;
        let mut ids = [Some(*true_token), *false_token].into_iter().flatten();
        if let Some(id) = ids.find(|id| *id as usize >= vocab_size) {
            bail!(
                "{} names the token {id}, but the model has only {vocab_size}; use the files of one model",
                file.display()
            )
        }
        let is_tied = config.flag("tie_word_embeddings")?;
        Ok(HeadSpec::CausalLm(CausalLmSpec {
            true_token: *true_token,
            false_token: *false_token,
            is_tied,
            logit_divisor,
            logit_cap,
            vocab_size,
        }))
    }

    /// Checks that models of the family have a head of this kind with a layer of its own.
    fn check_has_head(&self, kind: HeadKind, config: &Config) -> Result<()> {
        if !self.names.iter().any(|names| names.has_head(kind.last_layer())) {
            bail!(
                "{}: models of type {} have no {} head; choose another model",
                config.path().display(),
                self.model_types.join(", "),
                kind.name()
            )
        }
        Ok(())
    }

    fn described_head(&self, kind: HeadKind, config: &Config, spec: &EncoderSpec) -> Result<HeadSpec> {
        Ok(match kind {
            HeadKind::SequenceClassification => {
                HeadSpec::SequenceClassification((self.classification)(config, spec, labels(config)?.len())?)
            }
            HeadKind::TokenClassification => {
                HeadSpec::TokenClassification((self.token_head)(config, spec, labels(config)?.len())?)
            }
            HeadKind::QuestionAnswering => {
                HeadSpec::QuestionAnswering((self.token_head)(config, spec, SPAN_LOGITS)?)
            }
            HeadKind::LexicalWeights => HeadSpec::LexicalWeights((self.token_head)(config, spec, 1)?),
            HeadKind::MaskedLm => HeadSpec::MaskedLm((self.masked_lm)(config, spec)?),
            // Its tokens are not in the config: `Family::causal_lm`.
            HeadKind::CausalLm => return Err(unsupported_head(config)),
            HeadKind::NextSentence => {
                HeadSpec::NextSentence(pooler(config, spec, NEXT_SENTENCE_LABELS.len())?)
            }
        })
    }
}
