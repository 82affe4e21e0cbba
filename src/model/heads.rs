//! The task head of each kind that a family has.

use anyhow::{Result, bail};

use super::classification::{NEXT_SENTENCE_LABELS, labels, pooler};
use super::config::Config;
use super::families::Family;
use crate::nn::{EncoderSpec, HeadKind, HeadSpec};

/// Logits per token in extractive question answering: those of the start and the end of an answer.
const SPAN_LOGITS: usize = 2;

impl Family {
    /// The task head of this kind, as the config describes it.
    ///
    /// # Errors
    /// If the config is malformed.
    pub fn head(&self, kind: HeadKind, config: &Config, spec: &EncoderSpec) -> Result<HeadSpec> {
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
            HeadKind::MaskedLm => HeadSpec::MaskedLm((self.masked_lm)(config, spec)?),
            HeadKind::NextSentence if !self.names.iter().any(|names| names.has_head(kind.last_layer())) => {
                bail!(
                    "{}: models of type {} have no next-sentence head; choose another model",
                    config.path().display(),
                    self.model_types.join(", ")
                )
            }
            HeadKind::NextSentence => {
                HeadSpec::NextSentence(pooler(config, spec, NEXT_SENTENCE_LABELS.len())?)
            }
        })
    }
}
