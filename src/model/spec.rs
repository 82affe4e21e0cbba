//! From a config to the spec of its encoder, by a row of the family table.

use anyhow::{Result, bail};
use serde_json::Value;

use super::config::{Config, HEAD_COUNTS, LAYER_COUNTS, MAX_SIZE};
use super::families::{
    ConfigKeys, FAMILIES, Family, LocalRotary, PositionEncoding, TEXT_CONFIG, base_model_type,
};
use super::family_specific::ROTARY_FRACTION;
use super::unsupported;
use crate::nn::{
    Biases, EncoderSpec, Frequencies, LayerSharing, Mask, NormSpec, Numbering, PoolerSpec, Positions, QkNorm,
    Rotary, RotaryLayout, RotaryScaling, ScoreBias, TalkingHeads,
};

/// Buckets of MPNet's relative bias; `transformers` uses this number whatever the size of the table.
const RELATIVE_BUCKETS: usize = 32;

/// Minimum similarity (normalised Damerau-Levenshtein) of an unknown model type to a known one that is suggested for it.
const MIN_SIMILARITY: f64 = 0.75;

impl Family {
    /// The family of a config.
    pub fn of(config: &Config) -> Result<&'static Family> {
        let path = config.path().display();
        let Some(model_type) = config.string("model_type")? else {
            bail!("{path} has no field \"model_type\", which is required")
        };
        let base = base_model_type(config, model_type);
        for family in FAMILIES.iter().filter(|family| family.model_types.contains(&base)) {
            let matches = match family.discriminator {
                None => true,
                Some((key, [])) => config.has(key),
                Some((key, parts)) if config.get(key).is_some_and(Value::is_object) => {
                    let fields = config.object(key)?;
                    let strings =
                        fields.iter().flat_map(|fields| fields.fields().values()).filter_map(Value::as_str);
                    strings.into_iter().any(|value| parts.iter().any(|part| value.contains(part)))
                }
                Some((key, values)) => {
                    let config = family.config_defaults.complete(config)?;
                    config.string(key)?.is_some_and(|value| values.contains(&value))
                }
            };
            if matches {
                return Ok(family);
            }
        }
        let mut known: Vec<&str> = Vec::new();
        for model_type in FAMILIES.iter().flat_map(|family| family.model_types) {
            if !known.contains(model_type) {
                known.push(model_type);
            }
        }
        let all = known.join(", ");
        let start = format!("{path}: model type {model_type:?} is not supported");
        if let Some(kind) = unsupported::kind_of(model_type) {
            bail!("{start}: it is {kind}; supported encoders: {all}")
        }
        let similarity = |name: &str| strsim::normalized_damerau_levenshtein(name, model_type);
        let closest = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        match closest.filter(|name| similarity(name) >= MIN_SIMILARITY) {
            Some(name) => bail!("{start}; did you mean {name}? (supported encoders: {all})"),
            None => bail!("{start}; supported encoders: {all}"),
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
        let embedding_size = match keys.embedding_size {
            Some(key) if config.has(key) || !keys.embedding_size_or_hidden => config.width(key)?,
            _ => hidden_size,
        };
        let head_dim = match (keys.head_dim.filter(|key| config.has(key)), defaults.head_dim) {
            (Some(key), _) => config.width(key)?,
            (None, Some(head_dim)) => head_dim,
            (None, None) => config.head_dim(keys.hidden_size, hidden_size, keys.heads, heads)?,
        };
        let max_positions = match defaults.max_positions {
            Some(default) if !config.has(keys.max_positions) => default,
            _ => config.width(keys.max_positions)?,
        };
        let (bias, norm) = (self.bias(config)?, self.norm(config)?);
        let mut spec = EncoderSpec {
            vocab_size: config.width(keys.vocab_size)?,
            embedding_size,
            embedding_projection: defaults.always_projects || embedding_size != hidden_size,
            positions: self.positions(config)?,
            max_positions,
            token_types: self.token_types(config)?,
            task_types: self.task_types(config)?,
            embedding_scale: None,
            embedding_norm: defaults.embedding_norm,
            hidden_size,
            layers,
            layer_sharing: self.layer_sharing(config, layers)?,
            norm_placement: defaults.norm_placement,
            skip_first_norm: defaults.skip_first_norm,
            norm,
            heads,
            key_value_heads: self.key_value_heads(config, heads)?,
            qk_head_dim: head_dim,
            v_head_dim: head_dim,
            query_scalar: None,
            qk_norm: if defaults.qk_norm { QkNorm::PerHead } else { QkNorm::None },
            talking_heads: TalkingHeads::default(),
            score_bias: self.score_bias(config)?,
            mask: Mask { causal: false, sliding_window: None },
            convolution: None,
            bias,
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

    /// Which linear layers have a bias.
    fn bias(&self, config: &Config) -> Result<Biases> {
        let ConfigKeys { attention_bias, mlp_bias, .. } = self.keys;
        let default = self.defaults.bias;
        Ok(Biases {
            projection: default.projection,
            qkv: flag(config, attention_bias, default.qkv)?,
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
        let rotary = |layout, theta| rotary(config, &self.keys, layout, theta, None);
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
                let rotary = self::rotary(config, &self.keys, layout, theta, local)?;
                Ok(Positions::Rotary(Rotary { stored_table, ..rotary }))
            }
            PositionEncoding::Named(default) => match config.string(KEY)?.unwrap_or(default) {
                "absolute" => Ok(Positions::Learned(Numbering::FromZero)),
                "sinusoidal" => Ok(Positions::Sinusoidal),
                "rope" | "rotary" => {
                    refuse_fraction(config, "partial_rotary_factor")?;
                    Ok(Positions::Rotary(rotary(RotaryLayout::HalfSplit, 10_000.0)?))
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

    /// Fails if a config asks for what encoders of this family, or of this crate, do not compute.
    fn check_supported(&self, config: &Config) -> Result<()> {
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
    fn check_key_value_heads(&self, config: &Config, spec: &EncoderSpec) -> Result<()> {
        match self.keys.key_value_heads {
            Some(key) if !spec.heads.is_multiple_of(spec.key_value_heads) => {
                let expected = format!("a divisor of {:?}, which is {}", self.keys.heads, spec.heads);
                bail!("{}", config.invalid(key, spec.key_value_heads, &expected))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the family supports the mask, that positions leave room for a token, and that heads can be rotated.
    fn check_attention(&self, config: &Config, spec: &EncoderSpec) -> Result<()> {
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

/// Checks that LongRoPE has a factor for each pair of dimensions.
fn check_factors(config: &Config, frequencies: &Frequencies, pairs: usize) -> Result<()> {
    let RotaryScaling::LongRope { short_factors, long_factors, .. } = &frequencies.scaling else {
        return Ok(());
    };
    for (key, factors) in [("short_factor", short_factors), ("long_factor", long_factors)] {
        if factors.len() != pairs {
            let found = format!("a list of {}", factors.len());
            bail!(
                "{}",
                config.invalid(key, found, &format!("one factor for each of {pairs} pairs of dimensions"))
            )
        }
    }
    Ok(())
}

/// Fails if a config rotates only a part of each head.
fn refuse_fraction(config: &Config, key: &str) -> Result<()> {
    match config.number(key, 1.0)? {
        1.0 => Ok(()),
        fraction => {
            let expected = "1, since partial rotary embeddings are not supported for this model type";
            bail!("{}", config.invalid(key, fraction, expected))
        }
    }
}

/// A flag of the config that a family may not have.
fn flag(config: &Config, key: Option<&str>, default: bool) -> Result<bool> {
    match key {
        Some(key) => config.flag_or(key, default),
        None => Ok(default),
    }
}

/// Rotary embeddings; the thetas are defaults.
fn rotary(
    config: &Config,
    keys: &ConfigKeys,
    layout: RotaryLayout,
    theta: f64,
    local: Option<LocalRotary>,
) -> Result<Rotary> {
    // transformers prefers the older name where both are present.
    let parameters = match config.object("rope_scaling")?.filter(|scaling| !scaling.fields().is_empty()) {
        Some(parameters) => Some(parameters),
        None => config.object("rope_parameters")?,
    };
    const LOCAL: &str = "sliding_attention";
    let frequencies = |layer_type: &str, key: &str, theta: f64| -> Result<Frequencies> {
        // One set of parameters for each type of layer, or one for all.
        let parameters = match &parameters {
            Some(all) if all.has("full_attention") || all.has(LOCAL) => all.object(layer_type)?,
            _ if layer_type == LOCAL && !local.is_some_and(|local| local.shares_scaling) => None,
            all => all.clone(),
        };
        let (object, key) = match parameters.as_ref().filter(|parameters| parameters.has("rope_theta")) {
            Some(parameters) => (parameters, "rope_theta"),
            None => (config, key),
        };
        let theta = object.number(key, theta)?;
        if theta <= 1.0 {
            bail!("{}", object.invalid(key, theta, "more than 1"));
        }
        let scaling = match &parameters {
            Some(parameters) => Scaling { config, max_positions: keys.max_positions, parameters }.read()?,
            None => RotaryScaling::None,
        };
        Ok(Frequencies { theta, scaling })
    };
    Ok(Rotary {
        frequencies: frequencies("full_attention", keys.rope_theta, theta)?,
        local: (local.as_ref()).map(|local| frequencies(LOCAL, local.theta_key, local.theta)).transpose()?,
        layout,
        rotate_values: config.flag("rotary_value")?,
        stored_table: false,
        rotated_dims: None,
    })
}

/// The parameters of a scaling of rotary frequencies.
struct Scaling<'a> {
    /// The config, and its key for the number of positions.
    config: &'a Config,
    max_positions: &'static str,
    /// `rope_scaling` of the config, or an object in it for a type of layer.
    parameters: &'a Config,
}

impl Scaling<'_> {
    fn read(&self) -> Result<RotaryScaling> {
        let parameters = self.parameters;
        let key = if parameters.has("rope_type") { "rope_type" } else { "type" };
        let kind = parameters.string(key)?.unwrap_or("default");
        self.check_rotates_all(kind)?;
        let factor = || parameters.required_number("factor");
        Ok(match kind {
            "default" => RotaryScaling::None,
            "dynamic" => RotaryScaling::Dynamic {
                factor: factor()?,
                original_max_positions: self.config.required_number(self.max_positions)?,
            },
            "linear" => RotaryScaling::Linear { factor: factor()? },
            "ntk" if parameters.has("mixed_b") => {
                let expected = "no such field, since it is not supported";
                bail!("{}", parameters.invalid("mixed_b", "a number", expected))
            }
            "ntk" => RotaryScaling::Ntk { factor: factor()? },
            "llama3" => {
                let factor = factor()?;
                let low_freq_factor = parameters.required_number("low_freq_factor")?;
                let high_freq_factor = parameters.required_number("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    let expected = "more than \"low_freq_factor\"";
                    bail!("{}", parameters.invalid("high_freq_factor", high_freq_factor, expected))
                }
                let original_max_positions = self.original_max_positions()?;
                RotaryScaling::NtkByParts {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_positions,
                }
            }
            "yarn" => {
                let factor = self.factor_or_ratio(true)?;
                RotaryScaling::Yarn {
                    factor,
                    beta_fast: parameters.number("beta_fast", 32.0)?,
                    beta_slow: parameters.number("beta_slow", 1.0)?,
                    original_max_positions: self.original_max_positions()?,
                    attention_factor: self.yarn_attention_factor(factor)?,
                    truncate: parameters.flag_or("truncate", true)?,
                }
            }
            "longrope" => self.long_rope()?,
            other => {
                let expected = "default, linear, dynamic, ntk, llama3, yarn or longrope";
                bail!("{}", parameters.invalid(key, format!("{other:?}"), expected))
            }
        })
    }

    /// Fails if frequencies are scaled and only a part of each head is rotated. transformers rotates whole heads in the classes of the
    /// encoders that are supported, whatever the field says, and fails with scaled frequencies.
    fn check_rotates_all(&self, kind: &str) -> Result<()> {
        const KEY: &str = "partial_rotary_factor";
        for object in [self.config, self.parameters] {
            let fraction = object.number(KEY, 1.0)?;
            if fraction != 1.0 && kind != "default" {
                let expected =
                    "1, since frequencies are scaled, which is not supported for a part of each head";
                bail!("{}", object.invalid(KEY, fraction, expected));
            }
        }
        Ok(())
    }

    /// The length of the original context in tokens.
    fn original_max_positions(&self) -> Result<f64> {
        const KEY: &str = "original_max_position_embeddings";
        match [self.config, self.parameters].into_iter().find(|object| object.has(KEY)) {
            Some(object) => object.required_number(KEY),
            None => self.config.required_number(self.max_positions),
        }
    }

    /// The factor; where it is null, or absent and not `is_required`, the ratio of the context to the original one.
    fn factor_or_ratio(&self, is_required: bool) -> Result<f64> {
        const KEY: &str = "factor";
        if self.parameters.has(KEY) || is_required && !self.parameters.fields().contains_key(KEY) {
            return self.parameters.required_number(KEY);
        }
        Ok(self.config.required_number(self.max_positions)? / self.original_max_positions()?)
    }

    /// The factor of YaRN on sines and cosines, from `attention_factor`, else from `mscale` and `mscale_all_dim`, else from the factor.
    fn yarn_attention_factor(&self, factor: f64) -> Result<f64> {
        let parameters = self.parameters;
        if parameters.has("attention_factor") {
            return parameters.required_number("attention_factor");
        }
        let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let [over, under] = ["mscale", "mscale_all_dim"].map(|key| parameters.optional_number(key));
        // 0 counts as absent.
        Ok(match (over?.filter(|x| *x != 0.0), under?.filter(|x| *x != 0.0)) {
            (Some(over), Some(under)) => scale(over) / scale(under),
            _ => scale(1.0),
        })
    }

    /// LongRoPE: a factor for each pair.
    fn long_rope(&self) -> Result<RotaryScaling> {
        let (parameters, original_max_positions) = (self.parameters, self.original_max_positions()?);
        let factors = |key: &str| -> Result<Vec<f64>> {
            let value = parameters.get(key);
            let list = value.and_then(Value::as_array).and_then(|list| {
                list.iter().map(|x| x.as_f64().filter(|x| x.is_finite() && *x > 0.0)).collect()
            });
            match list {
                Some(list) => Ok(list),
                None => {
                    let expected = "a list of positive numbers, one for each pair of dimensions of a head";
                    bail!("{}", parameters.invalid(key, value.unwrap_or(&Value::Null), expected))
                }
            }
        };
        let attention_factor = if parameters.has("attention_factor") {
            parameters.required_number("attention_factor")?
        } else {
            let factor = self.factor_or_ratio(false)?;
            if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_max_positions.ln()).sqrt() }
        };
        Ok(RotaryScaling::LongRope {
            short_factors: factors("short_factor")?,
            long_factors: factors("long_factor")?,
            original_max_positions,
            attention_factor,
        })
    }
}
