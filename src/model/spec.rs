//! From a config to the spec of its stack, by a row of the family table.

use std::ops::RangeInclusive;

use anyhow::{Result, bail};

use super::config::{Config, HEADS, WIDEST};
use super::families::{FAMILIES, Family, Keys, Places};
use crate::nn::{
    EncoderSpec, Frequencies, HeadMixing, LayerSharing, Mask, Numbering, Positions, Rotary, RotaryLayout,
    RotaryScaling, ScoreBias,
};

const LAYERS: RangeInclusive<usize> = 1..=1 << 12;

/// Buckets of MPNet's relative bias: `transformers` uses so many, however many rows its table has.
const BUCKETS: usize = 32;

/// How like a known model type another has to be to pass for a slip of the pen.
const SLIP: f64 = 0.75;

/// Model types of transformers that Sconce does not run, by what they are.
const OTHER_KINDS: &[(&str, &[&str])] = &[
    (
        "a decoder language model",
        &[
            "bloom",
            "codegen",
            "cohere",
            "cohere2",
            "ctrl",
            "dbrx",
            "deepseek_v2",
            "deepseek_v3",
            "falcon",
            "gemma",
            "gemma2",
            "gemma3",
            "gemma3_text",
            "glm",
            "glm4",
            "gpt2",
            "gpt_bigcode",
            "gpt_neo",
            "gpt_neox",
            "gpt_oss",
            "gptj",
            "granite",
            "jamba",
            "lfm2",
            "llama",
            "llama4",
            "mamba",
            "mamba2",
            "ministral",
            "mistral",
            "mistral3",
            "mixtral",
            "modernbert-decoder",
            "mpt",
            "nemotron",
            "olmo",
            "olmo2",
            "olmo3",
            "opt",
            "openai-gpt",
            "persimmon",
            "phi",
            "phi3",
            "phimoe",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_5",
            "qwen3_moe",
            "rwkv",
            "smollm3",
            "stablelm",
            "starcoder2",
            "transfo-xl",
            "xglm",
        ],
    ),
    (
        "an encoder-decoder",
        &[
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "byt5",
            "encoder-decoder",
            "fsmt",
            "led",
            "longt5",
            "m2m_100",
            "marian",
            "mbart",
            "mt5",
            "mvp",
            "nllb-moe",
            "pegasus",
            "pegasus_x",
            "plbart",
            "prophetnet",
            "switch_transformers",
            "t5",
            "t5gemma",
            "t5gemma2",
            "udop",
            "umt5",
        ],
    ),
    (
        "an encoder of another architecture",
        &[
            "bert-generation",
            "big_bird",
            "canine",
            "convbert",
            "deberta",
            "dpr",
            "ernie_m",
            "esm",
            "flaubert",
            "fnet",
            "funnel",
            "ibert",
            "layoutlm",
            "layoutlmv2",
            "layoutlmv3",
            "lilt",
            "longformer",
            "luke",
            "lxmert",
            "markuplm",
            "mega",
            "mluke",
            "mobilebert",
            "mra",
            "nezha",
            "nystromformer",
            "perceiver",
            "qdqbert",
            "realm",
            "reformer",
            "retribert",
            "splinter",
            "squeezebert",
            "tapas",
            "xlm",
            "xlnet",
            "xmod",
            "yoso",
        ],
    ),
    (
        "a model of images, or of images and texts",
        &[
            "align",
            "altclip",
            "beit",
            "blip",
            "blip-2",
            "chinese_clip",
            "clip",
            "clip_text_model",
            "clipseg",
            "colpali",
            "colqwen2",
            "deit",
            "dinov2",
            "flava",
            "idefics2",
            "idefics3",
            "llava",
            "llava_next",
            "metaclip_2",
            "mllama",
            "modernvbert",
            "paligemma",
            "qwen2_5_vl",
            "qwen2_vl",
            "qwen3_vl",
            "siglip",
            "siglip2",
            "smolvlm",
            "vision-encoder-decoder",
            "vision-text-dual-encoder",
            "vit",
            "xclip",
        ],
    ),
    (
        "a model of sound",
        &["clap", "hubert", "sew", "speecht5", "unispeech", "wav2vec2", "wav2vec2-bert", "wavlm", "whisper"],
    ),
];

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
        for family in FAMILIES.iter().filter(|family| family.model_types.contains(&model_type)) {
            let marked = match family.mark {
                None => true,
                Some((key, [])) => config.has(key),
                Some((key, values)) => config.string(key)?.is_some_and(|value| values.contains(&value)),
            };
            if marked {
                return Ok(family);
            }
        }
        let mut known: Vec<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        known.dedup();
        let all = known.join(", ");
        if let Some((kind, _)) = OTHER_KINDS.iter().find(|(_, types)| types.contains(&model_type)) {
            bail!(
                "{path}: model type {model_type:?} is not supported: it is {kind}; Sconce runs encoders: {all}"
            )
        }
        let likeness = |name: &str| strsim::normalized_damerau_levenshtein(name, model_type);
        let like = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        match like.filter(|name| likeness(name) >= SLIP) {
            Some(name) => {
                bail!("{path}: model type {model_type:?} is not supported; did you mean {name}? (all: {all})")
            }
            None => bail!("{path}: model type {model_type:?} is not supported; Sconce runs encoders: {all}"),
        }
    }

    /// The stack that a config of this family describes.
    ///
    /// # Errors
    /// If a field is missing, out of range, contradicts another or asks for what the stack cannot compute.
    pub fn spec(&self, config: &Config) -> Result<EncoderSpec> {
        let (keys, maths) = (&self.keys, &self.maths);
        refuse(config)?;
        let hidden_size = config.width(keys.hidden_size)?;
        let layers = config.size(keys.layers, LAYERS)?;
        let heads = config.size(keys.heads, HEADS)?;
        let embedding_size = match keys.embedding_size {
            Some(key) if config.has(key) || !keys.embedding_size_or_hidden => config.width(key)?,
            _ => hidden_size,
        };
        let head_size = match keys.head_size.filter(|key| config.has(key)) {
            Some(key) => config.width(key)?,
            None => config.share(keys.hidden_size, hidden_size, keys.heads, heads)?,
        };
        let max_positions = config.width(keys.max_positions)?;
        let flag = |key: Option<&str>, default| match key {
            Some(key) if config.has(key) => config.flag(key),
            _ => Ok(default),
        };
        let mut bias = maths.bias;
        bias.qkv = flag(keys.attention_bias, bias.qkv)?;
        bias.attention_output = flag(keys.attention_bias, bias.attention_output)?;
        bias.up = flag(keys.mlp_bias, bias.up)?;
        bias.down = flag(keys.mlp_bias, bias.down)?;
        let mut norm = maths.norm;
        norm.bias = flag(keys.norm_bias, norm.bias)?;
        if let Some(key) = keys.norm_eps {
            norm.eps = config.fraction(key, norm.eps)?;
        }
        let mut spec = EncoderSpec {
            vocab_size: config.width(keys.vocab_size)?,
            embedding_size,
            embedding_projection: maths.always_projects || embedding_size != hidden_size,
            positions: self.positions(config)?,
            max_positions,
            token_types: match keys.token_types {
                Some(key) => Some(config.size(key, 0..=WIDEST)?).filter(|types| *types > 0),
                None => None,
            },
            task_types: match keys.task_types {
                Some((flag, key)) if config.flag(flag)? => Some(config.width(key)?),
                _ => None,
            },
            embedding_norm: maths.embedding_norm,
            hidden_size,
            layers,
            layer_sharing: match keys.groups {
                Some((groups, inner)) => LayerSharing {
                    groups: config.size(groups, 1..=layers)?,
                    inner: config.size(inner, 1..=LAYERS.end() / config.size(groups, 1..=layers)?)?,
                },
                None => LayerSharing { groups: layers, inner: 1 },
            },
            norm_placement: maths.norm_placement,
            skip_first_norm: maths.skip_first_norm,
            norm,
            heads,
            key_value_heads: match keys.key_value_heads {
                Some(key) if config.has(key) => config.width(key)?,
                _ => heads,
            },
            qk_head_size: head_size,
            v_head_size: head_size,
            head_mixing: HeadMixing::default(),
            score_bias: match keys.relative_bias {
                Some(key) => ScoreBias::Bucketed {
                    rows: config.size(key, BUCKETS..=WIDEST)?,
                    buckets: BUCKETS,
                    max_distance: 128,
                },
                None => ScoreBias::None,
            },
            mask: Mask { causal: false, window: None },
            convolution: None,
            bias,
            gated: maths.gated,
            intermediate_size: config.width(keys.intermediate_size)?,
            activation: maths.activation,
        };
        if let Some(key) = keys.activation {
            spec.activation = config.activation(key)?.unwrap_or(maths.activation);
        }
        if let Some(key) = keys.key_value_heads
            && !heads.is_multiple_of(spec.key_value_heads)
        {
            let expected = format!("a divisor of {:?}, which is {heads}", keys.heads);
            bail!("{}", config.wrong(key, spec.key_value_heads, &expected));
        }
        if let Places::Rotary { local_theta: Some(_), .. } = maths.places {
            spec.mask.window = Some(windows(config, layers)?);
        }
        for read in self.own_fields {
            read(config, &mut spec)?;
        }
        self.check_positions(config, &spec)?;
        Ok(spec)
    }

    fn positions(&self, config: &Config) -> Result<Positions> {
        const KEY: &str = "position_embedding_type";
        let rotary = |layout, theta, local| rotary(config, &self.keys, layout, theta, local);
        let learned = |numbering| match config.string(KEY)? {
            None | Some("absolute") => Ok(Positions::Learned(numbering)),
            Some(kind) => bail!(
                "{}",
                config.wrong(KEY, format!("{kind:?}"), "\"absolute\": this family has no other kind")
            ),
        };
        match self.maths.places {
            Places::LearnedIf(flag) if !config.flag_or(flag, true)? => Ok(Positions::None),
            Places::Learned | Places::LearnedIf(_) => learned(Numbering::FromZero),
            Places::AfterFixed(padding) => learned(Numbering::AfterPadding(padding)),
            Places::AfterPadding(default) => {
                learned(Numbering::AfterPadding(config.id("pad_token_id")?.unwrap_or(default)))
            }
            Places::Rotary { layout, theta, local_theta, stored } => {
                if let Some(kind) =
                    config.string(KEY)?.filter(|kind| !["rope", "rotary", "absolute"].contains(kind))
                {
                    bail!(
                        "{}",
                        config.wrong(KEY, format!("{kind:?}"), "\"rope\": this family has no other kind")
                    );
                }
                Ok(Positions::Rotary(Rotary { stored, ..rotary(layout, theta, local_theta)? }))
            }
            Places::Named(default) => match config.string(KEY)?.unwrap_or(default) {
                "absolute" => Ok(Positions::Learned(Numbering::FromZero)),
                "sinusoidal" => Ok(Positions::Sinusoidal),
                "rope" | "rotary" => Ok(Positions::Rotary(rotary(RotaryLayout::Halves, 10_000.0, None)?)),
                "alibi" => Ok(Positions::Alibi),
                "none" => Ok(Positions::None),
                other => {
                    let known = "absolute, sinusoidal, rope, alibi or none: others are not supported";
                    bail!("{}", config.wrong(KEY, format!("{other:?}"), known))
                }
            },
        }
    }

    /// Positions that leave no room for a text, heads that cannot turn in pairs, a mask that the family has not.
    fn check_positions(&self, config: &Config, spec: &EncoderSpec) -> Result<()> {
        if !spec.mask.causal && config.flag("is_causal")? {
            bail!("{}", config.wrong("is_causal", true, "false: this family sees all tokens"));
        }
        match spec.positions {
            Positions::Learned(numbering) if spec.longest() == 0 => {
                let expected = format!("more than \"pad_token_id\" + 1, which is {}", numbering.first());
                bail!("{}", config.wrong(self.keys.max_positions, spec.max_positions, &expected))
            }
            Positions::Rotary(_) if !spec.qk_head_size.is_multiple_of(2) => bail!(
                "{}: heads of {} columns cannot turn in pairs, as rotary positions have it; change their size",
                config.path().display(),
                spec.qk_head_size
            ),
            _ => Ok(()),
        }
    }
}

/// What no stack of Sconce computes.
fn refuse(config: &Config) -> Result<()> {
    for key in ["is_decoder", "add_cross_attention"] {
        if config.flag(key)? {
            bail!("{}", config.wrong(key, true, "false: Sconce runs encoders"));
        }
    }
    let switches = [
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
    for key in switches {
        if config.flag(key)? {
            bail!("{}", config.wrong(key, true, "false: it is not supported"));
        }
    }
    if config.has("rotary_emb_scale_base") {
        bail!("{}", config.wrong("rotary_emb_scale_base", "a number", "null: it is not supported"));
    }
    let key = "moe_every_n_layers";
    if config.has(key) && config.size(key, 0..=WIDEST)? > 0 {
        bail!("{}", config.wrong(key, config.width(key)?, "0: it is not supported"));
    }
    Ok(())
}

/// Rotary positions; the thetas are for a config that has none.
fn rotary(
    config: &Config,
    keys: &Keys,
    layout: RotaryLayout,
    theta: f64,
    local_theta: Option<f64>,
) -> Result<Rotary> {
    // The older name counts, where both are there.
    let parameters = match config.object("rope_scaling")? {
        Some(parameters) => Some(parameters),
        None => config.object("rope_parameters")?,
    };
    let frequencies = |kind: &str, key: &str, theta: f64| -> Result<Frequencies> {
        // Parameters by the kind of layer, or the same for all.
        let parameters = match &parameters {
            Some(all) if all.has("full_attention") || all.has("sliding_attention") => all.object(kind)?,
            all => all.clone(),
        };
        for config in [Some(config), parameters.as_ref()].into_iter().flatten() {
            for key in ["partial_rotary_factor", "rotary_emb_fraction"] {
                let fraction = config.number(key, 1.0)?;
                if fraction != 1.0 {
                    bail!("{}", config.wrong(key, fraction, "1: heads that turn in part are not supported"));
                }
            }
        }
        let (place, key) = match parameters.as_ref().filter(|parameters| parameters.has("rope_theta")) {
            Some(parameters) => (parameters, "rope_theta"),
            None => (config, key),
        };
        let theta = place.number(key, theta)?;
        if theta <= 1.0 {
            bail!("{}", place.wrong(key, theta, "more than 1"));
        }
        let scaling = parameters
            .map_or(Ok(RotaryScaling::None), |parameters| scaling(config, keys.max_positions, &parameters))?;
        Ok(Frequencies { theta, scaling })
    };
    Ok(Rotary {
        frequencies: frequencies("full_attention", keys.rope_theta, theta)?,
        local: match local_theta {
            Some(theta) => Some(frequencies("sliding_attention", "local_rope_theta", theta)?),
            None => None,
        },
        layout,
        values: config.flag("rotary_value")?,
        stored: false,
    })
}

/// How rotary parameters stretch a model to longer texts.
fn scaling(config: &Config, max_positions: &str, parameters: &Config) -> Result<RotaryScaling> {
    let key = if parameters.has("rope_type") { "rope_type" } else { "type" };
    let factor = || parameters.required("factor");
    let original = || {
        const KEY: &str = "original_max_position_embeddings";
        let place = [config, parameters].into_iter().find(|place| place.has(KEY));
        place.map_or_else(|| config.required(max_positions), |place| place.required(KEY))
    };
    Ok(match parameters.string(key)?.unwrap_or("default") {
        // Dynamic scaling sets in past the positions that the model was trained on, where Sconce does not go.
        "default" | "dynamic" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear { factor: factor()? },
        "ntk" if parameters.has("mixed_b") => {
            bail!("{}", parameters.wrong("mixed_b", "a number", "left out: it is not supported"))
        }
        "ntk" => RotaryScaling::Ntk { factor: factor()? },
        "llama3" => RotaryScaling::Llama3 {
            factor: factor()?,
            low: parameters.required("low_freq_factor")?,
            high: match parameters.required("high_freq_factor")? {
                high if high > parameters.required("low_freq_factor")? => high,
                high => {
                    bail!("{}", parameters.wrong("high_freq_factor", high, "more than \"low_freq_factor\""))
                }
            },
            original: original()?,
        },
        "yarn" => {
            for key in ["mscale", "mscale_all_dim"] {
                if parameters.has(key) {
                    bail!(
                        "{}",
                        parameters.wrong(key, parameters.required(key)?, "left out: it is not supported")
                    );
                }
            }
            RotaryScaling::Yarn {
                factor: factor()?,
                fast: parameters.number("beta_fast", 32.0)?,
                slow: parameters.number("beta_slow", 1.0)?,
                original: original()?,
                magnitude: match parameters.has("attention_factor") {
                    true => Some(parameters.required("attention_factor")?),
                    false => None,
                },
                whole: parameters.flag_or("truncate", true)?,
            }
        }
        other => {
            let known = "default, linear, dynamic, ntk, llama3 or yarn: others are not supported";
            bail!("{}", parameters.wrong(key, format!("{other:?}"), known))
        }
    })
}

/// How far layers with a window see, and which layers those are.
fn windows(config: &Config, layers: usize) -> Result<(usize, Vec<bool>)> {
    let reach = match config.has("local_attention") {
        true => config.width("local_attention")? / 2,
        false if config.has("sliding_window") => config.width("sliding_window")?,
        false => 64,
    };
    let Some(kinds) = config.strings("layer_types")? else {
        let every = match config.has("global_attn_every_n_layers") {
            true => config.size("global_attn_every_n_layers", LAYERS)?,
            false => 3,
        };
        return Ok((reach, (0..layers).map(|layer| !layer.is_multiple_of(every)).collect()));
    };
    if kinds.len() != layers {
        let found = format!("a list of {}", kinds.len());
        bail!("{}", config.wrong("layer_types", found, &format!("as long as there are layers, {layers}")));
    }
    let window = |kind: &&str| match *kind {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => {
            let known = "full_attention or sliding_attention in every place";
            bail!("{}", config.wrong("layer_types", format!("{other:?} in one"), known))
        }
    };
    Ok((reach, kinds.iter().map(window).collect::<Result<_>>()?))
}
