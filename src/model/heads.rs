//! The task head of each kind that a family has.

use anyhow::{Result, bail};

use super::classification::{NEXT_SENTENCE_LABELS, labels, pooler};
use super::config::Config;
use super::families::Family;
use crate::named::Named;
use crate::nn::{EncoderSpec, HeadKind, HeadSpec};

/// Logits per token in extractive question answering: those of the start and the end of an answer.
const SPAN_LOGITS: usize = 2;

impl Family {
    /// The task head of this kind, as the config describes it.
    ///
    /// # Errors
    /// If the config is malformed, or models of the family have no such head.
    pub fn head(&self, kind: HeadKind, config: &Config, spec: &EncoderSpec) -> Result<HeadSpec> {
        let head = self.described_head(kind, config, spec)?;
        // The decoder of a masked language model may be the matrix of the token embeddings.
        let has_own_layer = self.names.iter().any(|names| names.has_head(kind.last_layer()));
        if kind != HeadKind::MaskedLm && !has_own_layer {
            bail!(
                "{}: models of type {} have no {} head; choose another model",
                config.path().display(),
                self.model_types.join(", "),
                kind.name()
            )
        }
        Ok(head)
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
            HeadKind::NextSentence => {
                HeadSpec::NextSentence(pooler(config, spec, NEXT_SENTENCE_LABELS.len())?)
            }
        })
    }
}
