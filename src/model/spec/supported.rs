//! What a config may ask for: refusals of what encoders of a family, or of this crate, do not compute.

use anyhow::{Result, bail};

use super::rotary::{check_factors, refuse_fraction};
use crate::model::config::{Config, MAX_SIZE};
use crate::model::families::Family;
use crate::model::family_specific::ROTARY_FRACTION;
use crate::nn::{EncoderSpec, Positions};

impl Family {
    /// Fails if a config asks for what encoders of this family, or of this crate, do not compute.
    pub(super) fn check_supported(&self, config: &Config) -> Result<()> {
        const UNSUPPORTED: [&str; 10] = [
            "logn_attention_scale",
            "logn_attention_clip1",
            "prenorm",
            "causal",
            "parallel_block",
            "rotary_emb_interleaved",
            "qkv_proj_bias",
            "mlp_fc1_bias",
            "mlp_fc2_bias",
            "use_rms_norm",
        ];
        for key in ["is_decoder", "add_cross_attention"] {
            if config.flag(key)? {
                bail!("{}", config.invalid(key, true, "false, since only encoders are supported"));
            }
        }
        for key in UNSUPPORTED.into_iter().filter(|key| !self.own_fields.contains(key)) {
            if config.flag(key)? {
                bail!("{}", config.invalid(key, true, "false, since it is not supported"));
            }
        }
        if config.has("rotary_emb_scale_base") {
            let expected = "null, since xPos is not supported";
            bail!("{}", config.invalid("rotary_emb_scale_base", "a number", expected));
        }
        if !self.own_fields.contains(&ROTARY_FRACTION) {
            refuse_fraction(config, ROTARY_FRACTION)?;
        }
        if let Some(quantization) = config.object("quantization_config")? {
            let method = quantization.string("quant_method")?.unwrap_or("unknown");
            let expected = "no such field, since quantized weights are not supported; choose the model that this was made from";
            bail!(
                "{}",
                config.invalid("quantization_config", format!("an object with method {method:?}"), expected)
            );
        }
        let key = "moe_every_n_layers";
        let is_own = self.own_fields.contains(&key);
        if !is_own && config.has(key) && config.size(key, 0..=MAX_SIZE)? > 0 {
            let expected = "0, since mixtures of experts are not supported for this model type or activation";
            bail!("{}", config.invalid(key, config.width(key)?, expected));
        }
        Ok(())
    }

    /// Checks that query heads can share key and value heads evenly.
    pub(super) fn check_key_value_heads(&self, config: &Config, spec: &EncoderSpec) -> Result<()> {
        match self.keys.key_value_heads {
            Some(key) if !spec.heads.is_multiple_of(spec.key_value_heads) => {
                let expected = format!("a divisor of {:?}, which is {}", self.keys.heads, spec.heads);
                bail!("{}", config.invalid(key, spec.key_value_heads, &expected))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the family supports the mask, that positions leave room for a token, and that heads can be
    /// rotated.
    pub(super) fn check_attention(&self, config: &Config, spec: &EncoderSpec) -> Result<()> {
        if !spec.mask.causal && config.flag("is_causal")? {
            bail!("{}", config.invalid("is_causal", true, "false, since this model type is bidirectional"));
        }
        match &spec.positions {
            Positions::Learned(numbering) if spec.max_length() == 0 => {
                let expected = format!("more than \"pad_token_id\" + 1, which is {}", numbering.first());
                bail!("{}", config.invalid(self.keys.max_positions, spec.max_positions, &expected))
            }
            Positions::Rotary(_) if !spec.qk_head_dim.is_multiple_of(2) => bail!(
                "{}: rotary embeddings need an even head size, found {}",
                config.path().display(),
                spec.qk_head_dim
            ),
            Positions::Rotary(rotary) => {
                let all = [Some(&rotary.frequencies), rotary.local.as_ref()];
                let pairs = rotary.rotated_dims.unwrap_or(spec.qk_head_dim) / 2;
                all.into_iter()
                    .flatten()
                    .try_for_each(|frequencies| check_factors(config, frequencies, pairs))
            }
            _ => Ok(()),
        }
    }
}
