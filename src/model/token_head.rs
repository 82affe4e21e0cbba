//! What `config.json` says about a task head with logits for each token.

use anyhow::Result;

use super::config::Config;
use super::unsupported::unsupported_head;
use crate::nn::{Activation, EncoderSpec, NormKind, NormSpec, TokenHeadSpec, TransformSpec};

/// Reads the head with this number of logits per token from the config of a family.
pub type ReadTokenHead = fn(&Config, &EncoderSpec, outputs: usize) -> Result<TokenHeadSpec>;

/// BERT's head: a linear layer.
pub(super) fn linear(_: &Config, _: &EncoderSpec, outputs: usize) -> Result<TokenHeadSpec> {
    Ok(TokenHeadSpec { transform: None, outputs })
}

/// The refusal of a head that the family does not have.
pub(super) fn unsupported(config: &Config, _: &EncoderSpec, _: usize) -> Result<TokenHeadSpec> {
    Err(unsupported_head(config))
}

/// ModernBERT's head: dense layer and norm as the config describes them, and a linear layer.
pub(super) fn prediction_head(config: &Config, spec: &EncoderSpec, outputs: usize) -> Result<TokenHeadSpec> {
    Ok(TokenHeadSpec { transform: Some(prediction_transform(config, spec)?), outputs })
}

/// The layers before the last one in every head of ModernBERT.
pub(super) fn prediction_transform(config: &Config, spec: &EncoderSpec) -> Result<TransformSpec> {
    Ok(TransformSpec {
        bias: config.flag("classifier_bias")?,
        activation: config.activation("classifier_activation")?.unwrap_or(Activation::Gelu),
        norm: Some(NormSpec { kind: NormKind::Layer, ..spec.norm }),
    })
}
