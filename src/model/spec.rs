//! From a config to the spec of its encoder, by a row of the family table.
//!
//! `supported`: refusals of what is not computed. `rotary`: rotary embeddings and the scaling of their
//! frequencies.

mod rotary;
mod supported;

use anyhow::{Error, Result, anyhow, bail};
use serde_json::Value;

use super::config::{Config, HEAD_COUNTS, LAYER_COUNTS, MAX_SIZE};
use super::families::{ConfigKeys, FAMILIES, Family, PositionEncoding, TEXT_CONFIG, base_model_type};
use super::unsupported;
use crate::nn::{
    Biases, EncoderSpec, LayerSharing, Mask, NormSpec, Numbering, PoolerSpec, Positions, ProjectedEmbeddings,
    QkNorm, Rotary, RotaryLayout, ScoreBias, TalkingHeads,
};
use rotary::{refuse_fraction, rotary};

/// Buckets of MPNet's relative bias; `transformers` uses this number whatever the size of the table.
const RELATIVE_BUCKETS: usize = 32;

/// Minimum similarity (normalised Damerau-Levenshtein) of an unknown model type to a known one that is
/// suggested for it.
const MIN_SIMILARITY: f64 = 0.75;

impl Family {
    /// The family of a config.
    pub fn of(config: &Config) -> Result<&'static Family> {
        let Some(model_type) = config.string("model_type")? else {
            bail!("{} has no field \"model_type\", which is required", config.path().display())
        };
        let base = base_model_type(config, model_type);
        for family in FAMILIES.iter().filter(|family| family.model_types.contains(&base)) {
            if family.discriminates(config)? {
                return Ok(family);
            }
        }
        Err(unknown_type(config, model_type))
    }

    /// Whether a config of one of the family's model types has what tells it from other families of the type.
    fn discriminates(&self, config: &Config) -> Result<bool> {
        match self.discriminator {
            None => Ok(true),
            Some((key, [])) => Ok(config.has(key)),
            Some((key, parts)) if config.get(key).is_some_and(Value::is_object) => {
                let fields = config.object(key)?;
                let values = fields.iter().flat_map(|fields| fields.fields().values());
                let mut strings = values.filter_map(Value::as_str);
                Ok(strings.any(|value| parts.iter().any(|part| value.contains(part))))
            }
            Some((key, values)) => {
                let config = self.config_defaults.complete(config)?;
                Ok(config.string(key)?.is_some_and(|value| values.contains(&value)))
            }
        }
    }

    /// The config of the encoder: the whole file, or an object in it, with the defaults of its class.
    pub fn encoder_config(&self, config: &Config) -> Result<Config> {
        // Fields of the file that are about the encoder, too.
        const OUTER: [&str; 4] = ["model_type", "architectures", "projection_dim", "quantization_config"];
        let model_type = config.string("model_type")?.unwrap_or_default();
        let Some(object) = self.text_config.filter(|object| object.model_types.contains(&model_type)) else {
            return self.config_defaults.complete(config);
        };
        let key = object.keys.iter().copied().find(|key| config.has(key)).unwrap_or(TEXT_CONFIG);
        self.config_defaults.complete(&config.part(key, &OUTER)?)
    }

    /// The encoder that a config of this family describes. Fields that the config lacks have their defaults.
    pub fn spec(&self, config: &Config) -> Result<EncoderSpec> {
        let config = &self.encoder_config(config)?;
        self.check_supported(config)?;
        let (keys, defaults) = (&self.keys, &self.defaults);
        let hidden_size = config.width(keys.hidden_size)?;
        let layers = config.size(keys.layers, LAYER_COUNTS)?;
        let heads = config.size(keys.heads, HEAD_COUNTS)?;
        let embedding_size = self.embedding_size(config, hidden_size)?;
        let head_dim = self.head_dim(config, hidden_size, heads)?;
        let max_positions = self.max_positions(config)?;
        let (bias, norm) = (self.bias(config)?, self.norm(config)?);
        let mut spec = EncoderSpec {
            vocab_size: config.width(keys.vocab_size)?,
            embedding_size,
            embedding_projection: defaults.always_projects || embedding_size != hidden_size,
            projected: ProjectedEmbeddings::Sum,
            positions: self.positions(config)?,
            max_positions,
            sequence_limit: None,
            token_types: self.token_types(config)?,
            task_types: self.task_types(config)?,
            embedding_scale: None,
            token_dropout: None,
            embedding_norm: defaults.embedding_norm,
            hidden_size,
            layers,
            layer_sharing: self.layer_sharing(config, layers)?,
            norm_placement: defaults.norm_placement,
            skip_first_norm: defaults.skip_first_norm,
            norm,
            output_norm_eps: None,
            bottleneck: None,
            heads,
            key_value_heads: self.key_value_heads(config, heads)?,
            qk_head_dim: head_dim,
            v_head_dim: head_dim,
            query_scalar: None,
            score_cap: None,
            residual_scale: None,
            qk_norm: if defaults.qk_norm { QkNorm::PerHead } else { QkNorm::None },
            talking_heads: TalkingHeads::default(),
            score_bias: self.score_bias(config)?,
            mask: Mask { causal: false, sliding_window: None },
            global_tokens: None,
            convolution: None,
            short_convolution: None,
            bias,
            feed_forwards: 1,
            gated: defaults.gated,
            intermediate_size: config.width(keys.intermediate_size)?,
            activation: defaults.activation,
            experts: None,
            pooler: PoolerSpec::of_bert(hidden_size),
            padding: None,
        };
        if let Some(key) = keys.activation {
            spec.activation = config.activation(key)?.unwrap_or(defaults.activation);
        }
        self.check_key_value_heads(config, &spec)?;
        for read in self.family_specific {
            read(config, &mut spec)?;
        }
        self.check_attention(config, &spec)?;
        Ok(spec)
    }

    /// Dimensions of an embedding before its projection.
    fn embedding_size(&self, config: &Config, hidden_size: usize) -> Result<usize> {
        match self.keys.embedding_size {
            Some(key) if config.has(key) || !self.keys.embedding_size_or_hidden => config.width(key),
            _ => Ok(hidden_size),
        }
    }

    /// Dimensions of a head.
    fn head_dim(&self, config: &Config, hidden_size: usize, heads: usize) -> Result<usize> {
        let keys = &self.keys;
        match (keys.head_dim.filter(|key| config.has(key)), self.defaults.head_dim) {
            (Some(key), _) => config.width(key),
            (None, Some(head_dim)) => Ok(head_dim),
            (None, None) => config.head_dim(keys.hidden_size, hidden_size, keys.heads, heads),
        }
    }

    /// The number of positions.
    fn max_positions(&self, config: &Config) -> Result<usize> {
        match self.defaults.max_positions {
            Some(default) if !config.has(self.keys.max_positions) => Ok(default),
            _ => config.width(self.keys.max_positions),
        }
    }

    /// Which linear layers have a bias.
    fn bias(&self, config: &Config) -> Result<Biases> {
        let ConfigKeys { attention_bias, mlp_bias, .. } = self.keys;
        let default = self.defaults.bias;
        Ok(Biases {
            projection: default.projection,
            query_value: flag(config, attention_bias, default.query_value)?,
            key: flag(config, attention_bias, default.key)?,
            attention_output: flag(config, attention_bias, default.attention_output)?,
            up: flag(config, mlp_bias, default.up)?,
            down: flag(config, mlp_bias, default.down)?,
        })
    }

    /// The norms of all layers.
    fn norm(&self, config: &Config) -> Result<NormSpec> {
        let NormSpec { kind, bias, unit_offset, eps } = self.defaults.norm;
        Ok(NormSpec {
            kind,
            unit_offset,
            bias: flag(config, self.keys.norm_bias, bias)?,
            eps: match self.keys.norm_eps {
                Some(key) => config.fraction(key, eps)?,
                None => eps,
            },
        })
    }

    /// Rows of the token type table.
    fn token_types(&self, config: &Config) -> Result<Option<usize>> {
        let Some(key) = self.keys.token_types else { return Ok(None) };
        Ok(Some(config.size(key, 0..=MAX_SIZE)?).filter(|types| *types > 0))
    }

    /// Rows of the task type table.
    fn task_types(&self, config: &Config) -> Result<Option<usize>> {
        match self.keys.task_types {
            Some((flag, key)) if config.flag(flag)? => config.width(key).map(Some),
            _ => Ok(None),
        }
    }

    /// Which layers share weights.
    fn layer_sharing(&self, config: &Config, layers: usize) -> Result<LayerSharing> {
        let Some((groups, inner)) = self.keys.groups else {
            return Ok(LayerSharing { groups: layers, inner: 1 });
        };
        let groups = config.size(groups, 1..=layers)?;
        Ok(LayerSharing { groups, inner: config.size(inner, 1..=LAYER_COUNTS.end() / groups)? })
    }

    /// Key and value heads.
    fn key_value_heads(&self, config: &Config, heads: usize) -> Result<usize> {
        match self.keys.key_value_heads {
            Some(key) if config.has(key) => config.width(key),
            // Null means as many as query heads.
            Some(key) if config.fields().contains_key(key) => Ok(heads),
            _ => Ok(self.defaults.key_value_heads.unwrap_or(heads)),
        }
    }

    /// Bias on attention scores.
    fn score_bias(&self, config: &Config) -> Result<ScoreBias> {
        let Some(key) = self.keys.relative_bias else { return Ok(ScoreBias::None) };
        Ok(ScoreBias::Bucketed {
            rows: config.size(key, RELATIVE_BUCKETS..=MAX_SIZE)?,
            buckets: RELATIVE_BUCKETS,
            max_distance: 128,
            per_layer: false,
        })
    }

    /// Position encoding.
    fn positions(&self, config: &Config) -> Result<Positions> {
        const KEY: &str = "position_embedding_type";
        let learned = |numbering| match config.string(KEY)? {
            None | Some("absolute") => Ok(Positions::Learned(numbering)),
            Some(kind) => {
                let expected = "\"absolute\", the only one of this model type";
                bail!("{}", config.invalid(KEY, format!("{kind:?}"), expected))
            }
        };
        match self.defaults.positions {
            PositionEncoding::None => Ok(Positions::None),
            PositionEncoding::LearnedIf(flag) if !config.flag_or(flag, true)? => Ok(Positions::None),
            PositionEncoding::Learned | PositionEncoding::LearnedIf(_) => learned(Numbering::FromZero),
            PositionEncoding::AfterFixed(padding) => learned(Numbering::AfterPadding(padding)),
            PositionEncoding::AfterPadding(default) => {
                learned(Numbering::AfterPadding(config.token_id("pad_token_id")?.unwrap_or(default)))
            }
            PositionEncoding::Rotary { layout, theta, local, stored_table } => {
                if let Some(kind) =
                    config.string(KEY)?.filter(|kind| !["rope", "rotary", "absolute"].contains(kind))
                {
                    let expected = "\"rope\", the only one of this model type";
                    bail!("{}", config.invalid(KEY, format!("{kind:?}"), expected));
                }
                let rotary = rotary(config, &self.keys, layout, theta, local)?;
                Ok(Positions::Rotary(Rotary { stored_table, ..rotary }))
            }
            PositionEncoding::Named(default) => match config.string(KEY)?.unwrap_or(default) {
                "absolute" => Ok(Positions::Learned(Numbering::FromZero)),
                "sinusoidal" => Ok(Positions::Sinusoidal),
                "rope" | "rotary" => {
                    refuse_fraction(config, "partial_rotary_factor")?;
                    let rotary = rotary(config, &self.keys, RotaryLayout::HalfSplit, 10_000.0, None)?;
                    Ok(Positions::Rotary(rotary))
                }
                "alibi" => Ok(Positions::Alibi),
                "none" => Ok(Positions::None),
                other => {
                    let expected = "absolute, sinusoidal, rope, alibi or none";
                    bail!("{}", config.invalid(KEY, format!("{other:?}"), expected))
                }
            },
        }
    }
}

/// The error about a config of a type that no family has.
fn unknown_type(config: &Config, model_type: &str) -> Error {
    let mut known: Vec<&str> = Vec::new();
    for model_type in FAMILIES.iter().flat_map(|family| family.model_types) {
        if !known.contains(model_type) {
            known.push(model_type);
        }
    }
    let all = known.join(", ");
    let start = format!("{}: model type {model_type:?} is not supported", config.path().display());
    if let Some(kind) = unsupported::kind_of(model_type) {
        return anyhow!("{start}: it is {kind}; supported encoders: {all}");
    }
    let similarity = |name: &str| strsim::normalized_damerau_levenshtein(name, model_type);
    let closest = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match closest.filter(|name| similarity(name) >= MIN_SIMILARITY) {
        Some(name) => anyhow!("{start}; did you mean {name}? (supported encoders: {all})"),
        None => anyhow!("{start}; supported encoders: {all}"),
    }
}

/// A flag of the config that a family may not have.
fn flag(config: &Config, key: Option<&str>, default: bool) -> Result<bool> {
    match key {
        Some(key) => config.flag_or(key, default),
        None => Ok(default),
    }
}
