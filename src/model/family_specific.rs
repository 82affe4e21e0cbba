//! Fields of `config.json` that only one family has, and the variations of BERT in `configs/`. The rows of
//! the family table name the functions that read them.

use anyhow::{Result, bail};
use serde_json::Value;

use super::config::{Config, EXPERT_COUNTS, HEAD_COUNTS, LAYER_COUNTS, MAX_SIZE};
use crate::nn::{
    Activation, BottleneckSpec, ConvolutionSpec, Disentangled, EmbeddingNorm, EncoderSpec, ExpertsSpec,
    MAX_FEED_FORWARDS, NormKind, NormPlacement, PooledToken, PoolerDense, PoolerSpec, Positions,
    ProjectedEmbeddings, QkNorm, RotaryScaling, ScoreBias, ShortConvolutionSpec, SlidingWindow, TalkingHeads,
};

/// ESM's norm of the embeddings, and its token dropout.
pub(super) fn esm(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    if config.flag("is_folding_model")? {
        let expected = "false, since ESMFold predicts structures; name the ESM-2 model that it is based on";
        bail!("{}", config.invalid("is_folding_model", true, expected));
    }
    if config.flag("emb_layer_norm_before")? {
        spec.embedding_norm = EmbeddingNorm::BeforeProjection;
    }
    if config.flag("token_dropout")? {
        let Some(mask_token) = config.token_id("mask_token_id")? else {
            let expected = "the id of the mask token, since \"token_dropout\" is true";
            bail!("{}", config.invalid("mask_token_id", "null", expected));
        };
        spec.token_dropout = Some(mask_token);
    }
    Ok(())
}

/// Refuses an I-BERT whose weights and activations are integers.
pub(super) fn unquantized(config: &Config, _: &mut EncoderSpec) -> Result<()> {
    if config.flag("quant_mode")? {
        let expected =
            "false, since integer arithmetic is not supported; use the model before it was quantized";
        bail!("{}", config.invalid("quant_mode", true, expected));
    }
    Ok(())
}

/// MobileBERT's bottlenecks, feed-forward networks, norms, embeddings and pooler.
pub(super) fn mobile(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const NORMS: &str = "normalization_type";
    const FEED_FORWARDS: &str = "num_feedforward_networks";
    match config.string(NORMS)?.unwrap_or_default() {
        "no_norm" => spec.norm.kind = NormKind::Affine,
        // These two norms have the default eps of PyTorch.
        "layer_norm" => spec.output_norm_eps = Some(1e-5),
        other => bail!("{}", config.invalid(NORMS, format!("{other:?}"), "no_norm or layer_norm")),
    }
    spec.projected = match config.flag("trigram_input")? {
        true => ProjectedEmbeddings::Trigram,
        false => ProjectedEmbeddings::Token,
    };
    spec.embedding_projection |= spec.projected == ProjectedEmbeddings::Trigram;
    spec.feed_forwards = config.size(FEED_FORWARDS, 1..=MAX_FEED_FORWARDS)?;
    if config.flag("use_bottleneck")? {
        const WIDTH: &str = "intra_bottleneck_size";
        let width = config.width(WIDTH)?;
        let own_attention = config.flag("key_query_shared_bottleneck")?;
        let shared_input = config.flag("use_bottleneck_attention")?;
        if !own_attention && !shared_input && width != spec.hidden_size {
            let expected =
                format!("the hidden size {}, since queries and keys have no bottleneck", spec.hidden_size);
            bail!("{}", config.invalid(WIDTH, width, &expected));
        }
        spec.bottleneck = Some(BottleneckSpec { width, own_attention, shared_input });
        spec.qk_head_dim = config.head_dim(WIDTH, width, "num_attention_heads", spec.heads)?;
        spec.v_head_dim = spec.qk_head_dim;
    }
    if !config.flag("classifier_activation")? {
        spec.pooler.dense = None;
    }
    Ok(())
}

/// Longformer's sliding window, which has the same width in all layers.
pub(super) fn attention_window(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "attention_window";
    let of_layers = config.get(KEY).and_then(Value::as_array);
    let width = match of_layers {
        None => config.width(KEY)?,
        Some(widths) => {
            let first = widths.first().and_then(Value::as_u64).filter(|width| *width <= MAX_SIZE as u64);
            let is_equal = widths.len() == spec.layers && widths.iter().all(|width| width.as_u64() == first);
            let expected = format!("one width for all of the {} layers", spec.layers);
            let found = || serde_json::to_string(widths).unwrap_or_default();
            match first.filter(|width| *width > 0 && is_equal) {
                Some(width) => width as usize,
                None => bail!("{}", config.invalid(KEY, found(), &expected)),
            }
        }
    };
    if !width.is_multiple_of(2) {
        bail!("{}", config.invalid(KEY, width, "an even number"));
    }
    spec.mask.sliding_window = Some(SlidingWindow { radius: width / 2, layers: vec![true; spec.layers] });
    Ok(())
}

/// BigBird's attention, which is full for texts that have no more tokens than a few blocks.
pub(super) fn block_sparse(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "attention_type";
    match config.string(KEY)?.unwrap_or_default() {
        "original_full" => {}
        "block_sparse" => {
            let (block, random) =
                (config.width("block_size")?, config.size("num_random_blocks", 0..=MAX_SIZE)?);
            // The first and last block, three around a token and the random ones, which are counted twice.
            spec.sequence_limit = Some((5 + 2 * random).saturating_mul(block));
        }
        other => bail!("{}", config.invalid(KEY, format!("{other:?}"), "block_sparse or original_full")),
    }
    if config.flag("rescale_embeddings")? {
        bail!("{}", config.invalid("rescale_embeddings", true, "false, since it is not supported"));
    }
    let bias = config.flag("use_bias")?;
    (spec.bias.query_value, spec.bias.key) = (bias, bias);
    Ok(())
}

/// Disentangled attention of the first DeBERTa: without buckets, and with talking heads if the config says
/// so.
pub(super) fn first_disentangled_attention(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    if let Some(disentangled) = unbucketed_attention(config, spec)? {
        spec.score_bias = ScoreBias::Disentangled(Disentangled { key_bias: false, ..disentangled });
    }
    if config.flag("talking_head")? {
        let heads = Some(spec.heads);
        spec.talking_heads = TalkingHeads { pre_softmax: heads, post_softmax: heads };
    }
    Ok(())
}

/// Disentangled attention of DeBERTa v2 and v3.
pub(super) fn disentangled_attention(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let Some(disentangled) = unbucketed_attention(config, spec)? else { return Ok(()) };
    let max_positions = disentangled.relative_positions;
    let buckets = positive(config, "position_buckets")?;
    // Distances above half the buckets share buckets on a logarithmic scale, which ends at `max_positions`.
    let is_valid = |buckets: usize| {
        let exact = buckets / 2;
        exact > 0 && (spec.max_positions <= exact + 1 || max_positions > exact + 1)
    };
    if let Some(buckets) = buckets.filter(|buckets| !is_valid(*buckets)) {
        let expected = format!("at least 2, and less than twice the {max_positions} relative positions");
        bail!("{}", config.invalid("position_buckets", buckets, &expected));
    }
    let norms = config.string("norm_rel_ebd")?.unwrap_or("none").to_lowercase();
    spec.score_bias = ScoreBias::Disentangled(Disentangled {
        relative_positions: buckets.unwrap_or(max_positions),
        max_distance: buckets.map(|_| max_positions),
        shared_projections: config.flag("share_att_key")?,
        norm: norms.split('|').any(|norm| norm.trim() == "layer_norm"),
        ..disentangled
    });
    Ok(())
}

/// Disentangled attention with an embedding for each relative position, and projections with biases; `None`
/// without relative positions.
fn unbucketed_attention(config: &Config, spec: &EncoderSpec) -> Result<Option<Disentangled>> {
    let terms = attention_terms(config)?;
    if !config.flag("relative_attention")? {
        if !terms.is_empty() {
            let found = format!("{:?} without \"relative_attention\"", terms.join("|"));
            let expected = "no such field, or \"relative_attention\" true";
            bail!("{}", config.invalid("pos_att_type", found, expected));
        }
        return Ok(None);
    }
    let has = |name: &str| terms.iter().any(|term| term == name);
    Ok(Some(Disentangled {
        relative_positions: positive(config, "max_relative_positions")?.unwrap_or(spec.max_positions),
        max_distance: None,
        c2p: has("c2p"),
        p2c: has("p2c"),
        shared_projections: false,
        key_bias: true,
        norm: false,
    }))
}

/// A width, or `None` for a negative number, usually −1, which means that the setting is off.
fn positive(config: &Config, key: &str) -> Result<Option<usize>> {
    match config.optional_number(key)? {
        Some(n) if n >= 1.0 => config.width(key).map(Some),
        _ => Ok(None),
    }
}

/// The terms of `pos_att_type`: `c2p`, `p2c` or both.
fn attention_terms(config: &Config) -> Result<Vec<String>> {
    const KEY: &str = "pos_att_type";
    let mut terms: Vec<String> = match config.string(KEY) {
        // Older configs have one string: "p2c|c2p".
        Ok(terms) => terms.unwrap_or_default().to_lowercase().split('|').map(String::from).collect(),
        Err(_) => config.strings(KEY)?.unwrap_or_default().iter().map(ToString::to_string).collect(),
    };
    terms.iter_mut().for_each(|term| *term = term.trim().to_owned());
    terms.retain(|term| !term.is_empty());
    if let Some(other) = terms.iter().find(|term| !["c2p", "p2c"].contains(&term.as_str())) {
        bail!("{}", config.invalid(KEY, format!("{other:?}"), "c2p, p2c or both"));
    }
    Ok(terms)
}

/// The convolution of the larger DeBERTa-v2 models.
pub(super) fn convolution(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "conv_kernel_size";
    let kernel_size = if config.has(KEY) { config.size(KEY, 0..=255)? } else { 0 };
    if kernel_size == 0 {
        return Ok(());
    }
    if kernel_size.is_multiple_of(2) {
        bail!("{}", config.invalid(KEY, kernel_size, "an odd number"));
    }
    if config.has("conv_groups") && config.width("conv_groups")? > 1 {
        let expected = "1, since grouped convolutions are not supported";
        bail!("{}", config.invalid("conv_groups", config.width("conv_groups")?, expected));
    }
    let activation = config.activation("conv_act")?.unwrap_or(Activation::Tanh);
    spec.convolution = Some(ConvolutionSpec { kernel_size, activation });
    Ok(())
}

/// ModernBERT's sliding-window attention.
pub(super) fn local_attention(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    // transformers sets the window by the second field after it has read the first one.
    let radius = if config.has(WINDOW) {
        config.width(WINDOW)?
    } else if config.has("local_attention") {
        config.width("local_attention")? / 2
    } else {
        64
    };
    let layers = match layer_types(config, spec.layers, SLIDING)? {
        Some(layers) => layers,
        None => {
            let every = if config.has("global_attn_every_n_layers") {
                config.size("global_attn_every_n_layers", LAYER_COUNTS)?
            } else {
                3
            };
            (0..spec.layers).map(|layer| !layer.is_multiple_of(every)).collect()
        }
    };
    spec.mask.sliding_window = Some(SlidingWindow { radius, layers });
    Ok(())
}

/// The field with the size of the sliding window.
const WINDOW: &str = "sliding_window";
/// Decoder language models have this window unless their config has another one, or null for none.
const DEFAULT_WINDOW: usize = 4096;

/// The type of layers with a sliding window in `layer_types`.
const SLIDING: &str = "sliding_attention";

/// For each layer, whether `layer_types` has the type `other` for it, and not full attention; `None` without
/// the field.
fn layer_types(config: &Config, layers: usize, other: &str) -> Result<Option<Vec<bool>>> {
    const KEY: &str = "layer_types";
    let Some(types) = config.strings(KEY)? else { return Ok(None) };
    if types.len() != layers {
        let found = format!("a list of {}", types.len());
        let expected = format!("one entry for each of the {layers} layers");
        bail!("{}", config.invalid(KEY, found, &expected));
    }
    let is_other = |layer_type: &&str| match *layer_type {
        "full_attention" => Ok(false),
        layer_type if layer_type == other => Ok(true),
        layer_type => {
            let found = format!("a list with {layer_type:?}");
            let expected = format!("full_attention or {other} in each entry");
            bail!("{}", config.invalid(KEY, found, &expected))
        }
    };
    types.iter().map(is_other).collect::<Result<_>>().map(Some)
}

/// The mask of decoder language models: causal, unless the config makes them encoders.
pub(super) fn causal(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let is_bidirectional = config.flag("use_bidirectional_attention")?;
    spec.mask.causal = config.flag_or("is_causal", !is_bidirectional)?;
    if spec.mask.causal && is_bidirectional {
        let expected = "false, since \"use_bidirectional_attention\" is true";
        bail!("{}", config.invalid("is_causal", true, expected));
    }
    Ok(())
}

/// The sliding window of Mistral, in all layers.
pub(super) fn window_of_all_layers(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let window = decoder_window(config)?;
    set_window(config, spec, window, vec![true; spec.layers])
}

/// The sliding window of Qwen, in the layers of `layer_types`, or in those from `max_window_layers` on.
pub(super) fn window_of_upper_layers(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let window = if config.flag("use_sliding_window")? { decoder_window(config)? } else { None };
    let layers = match layer_types(config, spec.layers, SLIDING)? {
        Some(layers) => layers,
        None if window.is_none() => vec![false; spec.layers],
        None => {
            const KEY: &str = "max_window_layers";
            let first = if config.has(KEY) { config.size(KEY, 0..=*LAYER_COUNTS.end())? } else { 28 };
            (0..spec.layers).map(|layer| layer >= first).collect()
        }
    };
    if window.is_none() && layers.contains(&true) {
        let expected =
            "full_attention only, since \"use_sliding_window\" or \"sliding_window\" disables the window";
        bail!("{}", config.invalid("layer_types", "a list with \"sliding_attention\"", expected));
    }
    set_window(config, spec, window, layers)
}

/// The sliding window of the layers that `layer_types` names, by default of all.
pub(super) fn window_of_layer_types(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let window = decoder_window(config)?;
    let layers = match layer_types(config, spec.layers, SLIDING)? {
        Some(layers) => layers,
        None => vec![window.is_some(); spec.layers],
    };
    set_layer_windows(config, spec, window, layers)
}

/// Ministral 3: no window unless the config has one, and its rotary embeddings. From the original context on,
/// queries grow with their position; sequences beyond it are not supported.
pub(super) fn ministral3(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const ORIGINAL: usize = 16_384;
    if config.has(WINDOW) {
        window_of_all_layers(config, spec)?;
    }
    let Some(parameters) = config.object("rope_parameters")?.or(config.object("rope_scaling")?) else {
        // The default of transformers.
        if let Positions::Rotary(rotary) = &mut spec.positions {
            rotary.frequencies.theta = 1_000_000.0;
            rotary.frequencies.scaling = RotaryScaling::Yarn {
                factor: 16.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_max_positions: ORIGINAL as f64,
                attention_factor: 1.0,
                truncate: true,
            };
        }
        spec.sequence_limit = Some(ORIGINAL);
        return Ok(());
    };
    if parameters.optional_number("llama_4_scaling_beta")?.is_some_and(|beta| beta != 0.0) {
        spec.sequence_limit = Some(parameters.width("original_max_position_embeddings")?);
    }
    Ok(())
}

/// Granite: the factors on embeddings, scores and the outputs of sublayers.
pub(super) fn granite(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let scale = config.number("attention_multiplier", 1.0)?;
    if scale <= 0.0 {
        bail!("{}", config.invalid("attention_multiplier", scale, "more than 0"));
    }
    spec.query_scalar = Some(scale.powi(-2));
    spec.embedding_scale = Some(config.number("embedding_multiplier", 1.0)?);
    spec.residual_scale = Some(config.number("residual_multiplier", 1.0)?);
    Ok(())
}

/// LFM2: its short convolutions, and the width of its feed-forward network. In its own code, whose classes
/// are named so, attention and convolutions see both sides.
pub(super) fn lfm2(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let classes = config.strings("architectures")?.unwrap_or_default();
    if classes.iter().any(|class| class.starts_with("Lfm2Bidirectional")) {
        spec.mask.causal = false;
    }
    let layers = convolution_layers(config, spec.layers)?;
    let (kernel_size, bias) = (config.width("conv_L_cache")?, config.flag("conv_bias")?);
    if !spec.mask.causal && kernel_size.is_multiple_of(2) {
        bail!(
            "{}",
            config.invalid("conv_L_cache", kernel_size, "an odd number, as convolutions see both sides")
        );
    }
    spec.short_convolution = Some(ShortConvolutionSpec { kernel_size, bias, layers });
    if config.has("block_ff_dim") {
        spec.intermediate_size = config.width("block_ff_dim")?;
    }
    if config.flag("block_auto_adjust_ff_dim")? {
        let multiple = config.width("block_multiple_of")?;
        spec.intermediate_size = 2 * spec.intermediate_size / 3;
        if let Some(factor) = config.optional_number("block_ffn_dim_multiplier")? {
            spec.intermediate_size = (factor * spec.intermediate_size as f64) as usize;
            spec.intermediate_size = spec.intermediate_size.next_multiple_of(multiple);
        }
    }
    Ok(())
}

/// For each layer of LFM2, whether it has a short convolution: by `layer_types`, or by the layers with
/// attention.
fn convolution_layers(config: &Config, layers: usize) -> Result<Vec<bool>> {
    const ATTENTION: &str = "full_attn_idxs";
    if let Some(layers) = layer_types(config, layers, "conv")? {
        return Ok(layers);
    }
    let Some(indices) = config.get(ATTENTION).filter(|indices| !indices.is_null()) else {
        return Ok(vec![false; layers]);
    };
    let mut is_convolution = vec![true; layers];
    for index in indices.as_array().into_iter().flatten() {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let Some(layer) = index.and_then(|index| is_convolution.get_mut(index)) else {
            bail!("{}", config.invalid(ATTENTION, indices, &format!("numbers below {layers}")));
        };
        *layer = false;
    }
    Ok(is_convolution)
}

/// The factor on the embeddings of Gemma.
pub(super) fn scaled_embeddings(_config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    spec.embedding_scale = Some((spec.hidden_size as f64).sqrt());
    Ok(())
}

/// The activation of Gemma, which its first configs call `gelu`.
pub(super) fn gelu_is_tanh(_config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    if spec.activation == Activation::Gelu {
        spec.activation = Activation::GeluTanh;
    }
    Ok(())
}

/// Gemma 2: the sliding window of every second layer, and the factor and the bound of scores.
pub(super) fn gemma2(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const CAP: &str = "attn_logit_softcapping";
    spec.query_scalar = Some(config.number("query_pre_attn_scalar", 256.0)?);
    spec.score_cap = config.optional_number(CAP)?;
    if let Some(cap) = spec.score_cap.filter(|cap| *cap <= 0.0) {
        bail!("{}", config.invalid(CAP, cap, "more than 0, or null"));
    }
    let layers = match layer_types(config, spec.layers, SLIDING)? {
        Some(layers) => layers,
        None => (0..spec.layers).map(|layer| layer.is_multiple_of(2)).collect(),
    };
    set_layer_windows(config, spec, decoder_window(config)?, layers)
}

/// Gemma 3: its mask, and the factor on its scores. `attn_logit_softcapping` has no effect, as in
/// `transformers`.
pub(super) fn gemma3(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    spec.query_scalar = Some(config.number("query_pre_attn_scalar", 256.0)?);
    let layers = match layer_types(config, spec.layers, SLIDING)? {
        Some(layers) => layers,
        None => {
            const KEY: &str = "sliding_window_pattern";
            let every = if config.has(KEY) { config.size(KEY, LAYER_COUNTS)? } else { 6 };
            (1..=spec.layers).map(|layer| !layer.is_multiple_of(every)).collect()
        }
    };
    let mut window = decoder_window(config)?;
    if config.flag("use_bidirectional_attention")? {
        // Of both sides together.
        window = window.map(|window| window / 2 + 1);
    }
    set_layer_windows(config, spec, window, layers)
}

/// [`set_window`], which fails if layers have a window whose size the config does not have.
fn set_layer_windows(
    config: &Config,
    spec: &mut EncoderSpec,
    window: Option<usize>,
    layers: Vec<bool>,
) -> Result<()> {
    if window.is_none() && layers.contains(&true) {
        bail!("{}", config.invalid(WINDOW, "null", "a number, since layers have a sliding window"))
    }
    set_window(config, spec, window, layers)
}

/// The size of the sliding window of decoder language models.
fn decoder_window(config: &Config) -> Result<Option<usize>> {
    match config.fields().get(WINDOW) {
        None => Ok(Some(DEFAULT_WINDOW)),
        Some(Value::Null) => Ok(None),
        Some(_) => config.width(WINDOW).map(Some),
    }
}

/// Sets the sliding window of some `layers`. `window` counts the token itself; `transformers` counts it out
/// where `is_causal` is false.
fn set_window(
    config: &Config,
    spec: &mut EncoderSpec,
    window: Option<usize>,
    layers: Vec<bool>,
) -> Result<()> {
    let itself = usize::from(config.flag_or("is_causal", true)?);
    spec.mask.sliding_window = window
        .filter(|_| layers.contains(&true))
        .map(|window| SlidingWindow { radius: window - itself, layers });
    Ok(())
}

/// The text tower of CLIP: its mask, the token that stands for the text, and the projection, which a tower
/// saved on its own may lack.
pub(super) fn clip(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    /// The id of the end of a text in the vocabulary of OpenAI's models, the default of `transformers`.
    const END: u32 = 49_407;
    /// The id in the configs of first releases, which is not that of the token: the highest id of a text is.
    const WRONG_END: u32 = 2;
    spec.mask.causal = true;
    let token = match config.token_id("eos_token_id")?.unwrap_or(END) {
        WRONG_END => PooledToken::HighestId,
        end => PooledToken::FirstOf(end),
    };
    let classes = config.strings("architectures")?.unwrap_or_default();
    let is_projected = config.string("model_type")? == Some("clip")
        || classes.iter().any(|class| class.ends_with("WithProjection"));
    let dense = PoolerDense {
        outputs: config.width("projection_dim")?,
        bias: false,
        activation: Activation::Identity,
    };
    spec.pooler = PoolerSpec { token, dense: is_projected.then_some(dense) };
    Ok(())
}

/// The text tower of SigLIP: its padding, and its pooler.
pub(super) fn siglip(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const OUTPUTS: &str = "projection_size";
    let outputs = if config.has(OUTPUTS) { config.width(OUTPUTS)? } else { spec.hidden_size };
    let dense = PoolerDense { outputs, bias: true, activation: Activation::Identity };
    spec.pooler = PoolerSpec { token: PooledToken::Last, dense: Some(dense) };
    spec.padding = Some(config.token_id("pad_token_id")?.unwrap_or(1));
    Ok(())
}

/// The biases of Nomic's own code.
pub(super) fn nomic_biases(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let attention = config.flag("qkv_proj_bias")?;
    let bias = &mut spec.bias;
    (bias.query_value, bias.key, bias.attention_output) = (attention, attention, attention);
    spec.bias.up = config.flag("mlp_fc1_bias")?;
    spec.bias.down = config.flag("mlp_fc2_bias")?;
    Ok(())
}

/// The experts of Nomic's own code: in the second of every so many layers.
pub(super) fn nomic_experts(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const EVERY: &str = "moe_every_n_layers";
    nomic_positions(config, spec)?;
    let every = if config.has(EVERY) { config.size(EVERY, 0..=*LAYER_COUNTS.end())? } else { 0 };
    let layers: Vec<bool> = (0..spec.layers).map(|layer| every > 0 && layer % every == 1).collect();
    if !layers.contains(&true) {
        return Ok(());
    }
    for (key, only) in [("num_shared_experts", 0), ("ffn_div", 1)] {
        if config.has(key) && config.size(key, 0..=MAX_SIZE)? != only {
            let expected = format!("{only}, since other mixtures of experts are not supported");
            bail!("{}", config.invalid(key, config.size(key, 0..=MAX_SIZE)?, &expected));
        }
    }
    if config.flag("expert_choice_router")? {
        let expected = "false, since experts that choose their tokens are not supported";
        bail!("{}", config.invalid("expert_choice_router", true, expected));
    }
    let count = config.size("num_experts", EXPERT_COUNTS)?;
    spec.experts = Some(ExpertsSpec {
        count,
        per_token: config.size("moe_top_k", 1..=count)?,
        normalize: config.flag("moe_normalize_expert_weights")?,
        layers,
    });
    Ok(())
}

/// The fields of Nomic's own code with a gate.
pub(super) fn nomic(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "activation_function";
    spec.activation = match config.string(KEY)? {
        None | Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        Some("glu") => Activation::Sigmoid,
        Some(other) => bail!("{}", config.invalid(KEY, format!("{other:?}"), "gelu, swiglu, geglu or glu")),
    };
    nomic_positions(config, spec)
}

/// The field of Nomic's own code with the part of each head that is rotated.
pub(super) const ROTARY_FRACTION: &str = "rotary_emb_fraction";

/// The rotation of Nomic's own code: of a part of each head, and with dynamic scaling past the positions of
/// the pretraining.
fn nomic_positions(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const FACTOR: &str = "rotary_scaling_factor";
    let Positions::Rotary(rotary) = &mut spec.positions else { return Ok(()) };
    if config.has(FACTOR) {
        rotary.frequencies.scaling = RotaryScaling::Dynamic {
            factor: config.required_number(FACTOR)?,
            original_max_positions: config.required_number("max_trained_positions")?,
        };
    }
    let fraction = config.number(ROTARY_FRACTION, 1.0)?;
    let rotated = spec.qk_head_dim as f64 * fraction;
    if rotated.fract() != 0.0 || rotated % 2.0 != 0.0 || fraction > 1.0 {
        let expected = format!("a fraction of the head size {} that is even", spec.qk_head_dim);
        bail!("{}", config.invalid(ROTARY_FRACTION, fraction, &expected));
    }
    rotary.rotated_dims = Some(rotated as usize).filter(|rotated| *rotated < spec.qk_head_dim);
    Ok(())
}

/// The norm of Alibaba's own code.
pub(super) fn layer_norm_type(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    norm_type(config, "layer_norm_type", spec)
}

/// The gate of JinaBERT v2, whose activation is in `feed_forward_type` and not in `hidden_act`.
pub(super) fn gate_type(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    spec.activation = match config.string("feed_forward_type")? {
        Some("reglu") => Activation::Relu,
        _ => Activation::Gelu,
    };
    Ok(())
}

/// Norms of queries and keys over all heads.
pub(super) fn norm_of_all_heads(_config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    spec.qk_norm = QkNorm::AllHeads;
    Ok(())
}

/// LayerNorm or RMSNorm.
fn norm_type(config: &Config, key: &str, spec: &mut EncoderSpec) -> Result<()> {
    match config.string(key)? {
        None | Some("layer_norm") => {}
        Some("rms_norm") => {
            spec.norm.kind = NormKind::RootMeanSquare;
            spec.norm.bias = false;
        }
        Some(other) => bail!("{}", config.invalid(key, format!("{other:?}"), "layer_norm or rms_norm")),
    }
    Ok(())
}

/// T5's scores, which are not scaled, its buckets and its activation, where "gated-gelu" is the approximation
/// by tanh as in `transformers`.
pub(super) fn t5(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const BUCKETS: &str = "relative_attention_num_buckets";
    const DISTANCE: &str = "relative_attention_max_distance";
    let optional = |key: &str, default| if config.has(key) { config.width(key) } else { Ok(default) };
    let (buckets, max_distance) = (optional(BUCKETS, 32)?, optional(DISTANCE, 128)?);
    if buckets < 4 || !buckets.is_multiple_of(2) {
        bail!("{}", config.invalid(BUCKETS, buckets, "an even number from 4 on"));
    }
    // Half of the buckets are for each direction, and half of those for a distance each.
    if max_distance <= buckets / 4 {
        bail!("{}", config.invalid(DISTANCE, max_distance, &format!("more than {}", buckets / 4)));
    }
    spec.score_bias = ScoreBias::Bucketed { rows: buckets, buckets, max_distance, per_layer: false };
    spec.query_scalar = Some(1.0);
    const PROJECTION: &str = "feed_forward_proj";
    let projection = config.string(PROJECTION)?.unwrap_or(if spec.gated { "gated-gelu" } else { "relu" });
    let name = match projection.strip_prefix("gated-") {
        Some("gelu") => "gelu_new",
        Some(name) => name,
        None => projection,
    };
    match Activation::from_name(name) {
        Some(activation) if spec.gated == projection.starts_with("gated-") => spec.activation = activation,
        _ => {
            let expected = "relu, gated-gelu or another activation of transformers";
            bail!("{}", config.invalid(PROJECTION, format!("{projection:?}"), expected))
        }
    }
    Ok(())
}

/// The biases of UMT5: a table in each layer.
pub(super) fn bias_per_layer(_config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    if let ScoreBias::Bucketed { per_layer, .. } = &mut spec.score_bias {
        *per_layer = true;
    }
    Ok(())
}

/// Variations of BERT from the literature that no published family has; `configs/README.md` lists their
/// fields.
pub(super) fn variations(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    match config.string("feed_forward_type")? {
        None | Some("original" | "geglu" | "reglu") => {}
        Some(other) => {
            let expected = "original, geglu or reglu";
            bail!("{}", config.invalid("feed_forward_type", format!("{other:?}"), expected))
        }
    }
    norm_type(config, "norm_type", spec)?;
    spec.norm.bias = config.flag_or("norm_bias", spec.norm.bias)?;
    match config.string("norm_placement")? {
        None | Some("post") => {}
        Some("pre") => spec.norm_placement = NormPlacement::Pre,
        Some("pre+final") => spec.norm_placement = NormPlacement::PreAndFinal,
        Some(other) => {
            bail!("{}", config.invalid("norm_placement", format!("{other:?}"), "post, pre or pre+final"))
        }
    }
    if !config.flag_or("embedding_norm", true)? {
        spec.embedding_norm = EmbeddingNorm::None;
    }
    spec.mask.causal = config.flag("is_causal")?;
    if let Some(fields) = config.object("talking_heads")? {
        spec.talking_heads = talking_heads(config, &fields)?;
    }
    let value_heads = spec.value_heads();
    spec.v_head_dim = if config.has("attention_value_size") {
        config.width("attention_value_size")?
    } else {
        let heads_key = if value_heads == spec.heads { "num_attention_heads" } else { "talking_heads" };
        config.head_dim("hidden_size", spec.hidden_size, heads_key, value_heads)?
    };
    Ok(())
}

/// Talking heads: the numbers of heads after the projections before and after the softmax.
fn talking_heads(config: &Config, fields: &Config) -> Result<TalkingHeads> {
    let heads = |key: &str| if fields.has(key) { fields.size(key, HEAD_COUNTS).map(Some) } else { Ok(None) };
    let talking_heads =
        TalkingHeads { pre_softmax: heads("before_softmax")?, post_softmax: heads("after_softmax")? };
    if talking_heads == TalkingHeads::default() {
        let expected = "an object with a number of heads as \"before_softmax\", \"after_softmax\" or both";
        bail!("{}", config.invalid("talking_heads", "without a number", expected));
    }
    Ok(talking_heads)
}
