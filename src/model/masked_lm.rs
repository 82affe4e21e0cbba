//! What `config.json` says about a masked-LM head.

use anyhow::{Result, bail};

use super::config::Config;
use super::token_head::prediction_transform;
use super::unsupported::unsupported_head;
use crate::nn::{Activation, EncoderSpec, MaskedLmSpec, NormKind, NormSpec, TransformSpec};

/// Reads the masked-LM head of a family from its config.
pub type ReadMaskedLm = fn(&Config, &EncoderSpec) -> Result<MaskedLmSpec>;

/// BERT's head: the activation of the feed-forward network.
pub(super) fn hidden_act(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    head(config, spec, spec.activation, spec.hidden_size, true)
}

/// RoBERTa's head: GELU.
pub(super) fn gelu(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    head(config, spec, Activation::Gelu, spec.hidden_size, true)
}

/// The head of ALBERT and RoFormer, as wide as their embeddings.
pub(super) fn embedding_width(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    head(config, spec, spec.activation, spec.embedding_size, true)
}

/// The head of ELECTRA's generator: GELU, as wide as its embeddings.
pub(super) fn electra(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    head(config, spec, Activation::Gelu, spec.embedding_size, true)
}

/// MobileBERT's head, as wide as its hidden states; the decoder has a matrix for what is wider than the
/// embeddings.
pub(super) fn further_inputs(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    let EncoderSpec { hidden_size, embedding_size, .. } = *spec;
    if embedding_size > hidden_size {
        let expected = format!("at most the hidden size {hidden_size}, since the model has a masked-LM head");
        bail!("{}", config.invalid("embedding_size", embedding_size, &expected));
    }
    let head = head(config, spec, spec.activation, embedding_size, true)?;
    Ok(MaskedLmSpec { width: hidden_size, further_inputs: hidden_size - embedding_size, ..head })
}

/// RemBERT's head, whose width is `output_embedding_size`, with a decoder of its own.
pub(super) fn rembert(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    let width = config.width("output_embedding_size")?;
    Ok(MaskedLmSpec { is_tied: false, ..head(config, spec, spec.activation, width, false)? })
}

/// The heads of DeBERTa v2: that of the first code in `transformers`, or with `legacy: false` that of
/// DeBERTa's own code, which its own checkpoints have.
pub(super) fn deberta(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    let (modules, width): (&[&str], usize) = match config.flag_or("legacy", true)? {
        true => (&["head.mlm", "head.enhanced_mlm"], spec.embedding_size),
        false => (&["head.enhanced_mlm", "head.mlm"], spec.hidden_size),
    };
    Ok(MaskedLmSpec { modules, ..head(config, spec, spec.activation, width, true)? })
}

/// ModernBERT's head: dense layer and norm as in its other heads.
pub(super) fn prediction_head(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    let transform = Some(prediction_transform(config, spec)?);
    let bias = config.flag_or("decoder_bias", true)?;
    Ok(MaskedLmSpec { transform, bias, ..head(config, spec, Activation::Gelu, spec.hidden_size, true)? })
}

/// EuroBERT's head: the decoder alone.
pub(super) fn eurobert(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    let bias = config.flag("mlp_bias")?;
    let head = head(config, spec, Activation::Identity, spec.hidden_size, false)?;
    Ok(MaskedLmSpec { transform: None, bias, ..head })
}

/// The head of LFM2's own code: the decoder alone, without a bias.
pub(super) fn lfm2(config: &Config, spec: &EncoderSpec) -> Result<MaskedLmSpec> {
    if spec.mask.causal {
        return unsupported(config, spec);
    }
    let head = head(config, spec, Activation::Identity, spec.hidden_size, true)?;
    Ok(MaskedLmSpec { transform: None, bias: false, ..head })
}

/// The refusal of the head of a decoder language model, which predicts the next token.
pub(super) fn unsupported(config: &Config, _: &EncoderSpec) -> Result<MaskedLmSpec> {
    Err(unsupported_head(config))
}

/// A head of this `width` with a dense layer, an activation and a LayerNorm. `is_tied` is the default of
/// `tie_word_embeddings`.
fn head(
    config: &Config,
    spec: &EncoderSpec,
    activation: Activation,
    width: usize,
    is_tied: bool,
) -> Result<MaskedLmSpec> {
    let is_tied = config.flag_or("tie_word_embeddings", is_tied)?;
    if is_tied && config.has("tie_word_embeddings") && width != spec.embedding_size {
        let expected = format!("false, because embeddings have {} columns", spec.embedding_size);
        bail!(
            "{}",
            config.invalid("tie_word_embeddings", is_tied, &format!("{expected} and the head {width}"))
        );
    }
    let norm = NormSpec { kind: NormKind::Layer, bias: true, ..spec.norm };
    Ok(MaskedLmSpec {
        modules: &["head.mlm"],
        transform: Some(TransformSpec { bias: true, activation, norm: Some(norm) }),
        width,
        further_inputs: 0,
        vocab_size: spec.vocab_size,
        is_tied,
        bias: true,
    })
}
