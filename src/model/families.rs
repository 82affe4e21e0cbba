//! The table of model families: what a checkpoint of each calls things.

use std::ops::RangeInclusive;

use anyhow::{Result, bail};

use super::config::Config;
use super::names::Names;
use crate::nn::{Activation, EncoderSpec, Pooling};

/// One row of the table.
pub struct Family {
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// What the config calls the sizes.
    keys: Keys,
    /// What the checkpoint calls the tensors.
    pub names: Names,
    /// How to pool where no pipeline file says it.
    pub pooling: Pooling,
}

/// Names of config fields.
struct Keys {
    vocab_size: &'static str,
    max_positions: &'static str,
    token_types: &'static str,
    hidden_size: &'static str,
    layers: &'static str,
    heads: &'static str,
    intermediate_size: &'static str,
    activation: &'static str,
    norm_eps: &'static str,
}

/// Every family that Sconce runs.
pub static FAMILIES: &[Family] = &[Family {
    model_types: &["bert"],
    keys: Keys {
        vocab_size: "vocab_size",
        max_positions: "max_position_embeddings",
        token_types: "type_vocab_size",
        hidden_size: "hidden_size",
        layers: "num_hidden_layers",
        heads: "num_attention_heads",
        intermediate_size: "intermediate_size",
        activation: "hidden_act",
        norm_eps: "layer_norm_eps",
    },
    names: Names {
        prefixes: &["", "bert."],
        modules: &[
            ("embeddings.token", "embeddings.word_embeddings"),
            ("embeddings.position", "embeddings.position_embeddings"),
            ("embeddings.token_type", "embeddings.token_type_embeddings"),
            ("embeddings.norm", "embeddings.LayerNorm"),
            ("layers.{}.attention.query", "encoder.layer.{}.attention.self.query"),
            ("layers.{}.attention.key", "encoder.layer.{}.attention.self.key"),
            ("layers.{}.attention.value", "encoder.layer.{}.attention.self.value"),
            ("layers.{}.attention.output", "encoder.layer.{}.attention.output.dense"),
            ("layers.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm"),
            ("layers.{}.feed_forward.up", "encoder.layer.{}.intermediate.dense"),
            ("layers.{}.feed_forward.down", "encoder.layer.{}.output.dense"),
            ("layers.{}.feed_forward_norm", "encoder.layer.{}.output.LayerNorm"),
        ],
    },
    // What sentence-transformers does with a plain BERT.
    pooling: Pooling::Mean,
}];

/// The largest width, vocabulary or position count that is taken for a size and not for a slip of the pen.
const WIDTH: RangeInclusive<usize> = 1..=1 << 24;
const LAYERS: RangeInclusive<usize> = 1..=1 << 12;

impl Family {
    /// The family of a config.
    ///
    /// # Errors
    /// If `model_type` is missing or in no row of the table.
    pub fn of(config: &Config) -> Result<&'static Family> {
        let path = config.path().display();
        let Some(model_type) = config.string("model_type")? else {
            bail!("{path} has no field \"model_type\"; it is required")
        };
        let family = FAMILIES.iter().find(|family| family.model_types.contains(&model_type));
        family.ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
            anyhow::anyhow!(
                "{path}: model type {model_type:?} is not supported; supported is {}",
                known.join(", ")
            )
        })
    }

    /// The stack that a config of this family describes.
    ///
    /// # Errors
    /// If a field is missing, out of range or asks for what the stack cannot compute.
    pub fn spec(&self, config: &Config) -> Result<EncoderSpec> {
        let keys = &self.keys;
        for key in ["is_decoder", "add_cross_attention"] {
            if config.flag(key)? {
                bail!("{}", config.wrong(key, true, "false: Sconce runs encoders"));
            }
        }
        if let Some(kind) = config.string("position_embedding_type")?
            && kind != "absolute"
        {
            let key = "position_embedding_type";
            bail!(
                "{}",
                config.wrong(key, format!("{kind:?}"), "\"absolute\": other kinds are not supported")
            );
        }
        let spec = EncoderSpec {
            vocab_size: config.size(keys.vocab_size, WIDTH)?,
            max_positions: config.size(keys.max_positions, WIDTH)?,
            token_types: config.size(keys.token_types, WIDTH)?,
            hidden_size: config.size(keys.hidden_size, WIDTH)?,
            layers: config.size(keys.layers, LAYERS)?,
            heads: config.size(keys.heads, WIDTH)?,
            intermediate_size: config.size(keys.intermediate_size, WIDTH)?,
            activation: activation(config, keys.activation)?,
            norm_eps: config.fraction(keys.norm_eps, 1e-12)?,
        };
        if !spec.hidden_size.is_multiple_of(spec.heads) {
            let expected = format!("a multiple of {:?}, which is {}", keys.heads, spec.heads);
            bail!("{}", config.wrong(keys.hidden_size, spec.hidden_size, &expected));
        }
        Ok(spec)
    }
}

/// The activation that a config field names; BERT's GELU where it names none.
fn activation(config: &Config, key: &str) -> Result<Activation> {
    Ok(match config.string(key)? {
        None | Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some("silu" | "swish") => Activation::Silu,
        Some("tanh") => Activation::Tanh,
        Some("linear") => Activation::Identity,
        Some(other) => {
            let known = "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, swish, tanh or linear";
            bail!("{}", config.wrong(key, format!("{other:?}"), known))
        }
    })
}
