//! The fields of a config that one family alone has, or that are for variations of BERT: what the rows of the family
//! table name to read them.

use anyhow::{Result, bail};

use super::config::{Config, HEADS};
use crate::nn::{
    Activation, ConvolutionSpec, Disentangled, EmbeddingNorm, EncoderSpec, HeadMixing, NormKind,
    NormPlacement, ScoreBias,
};

/// DeBERTa's attention over distances.
pub fn disentangled_attention(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    let kinds: Vec<String> = match config.string("pos_att_type") {
        // Older configs have one string.
        Ok(kinds) => kinds.unwrap_or_default().to_lowercase().split('|').map(String::from).collect(),
        Err(_) => {
            config.strings("pos_att_type")?.unwrap_or_default().iter().map(|kind| kind.to_string()).collect()
        }
    };
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.trim()).filter(|kind| !kind.is_empty()).collect();
    if let Some(other) = kinds.iter().find(|kind| !["c2p", "p2c"].contains(*kind)) {
        bail!(
            "{}",
            config.wrong("pos_att_type", format!("{other:?}"), "c2p, p2c or both: others are not supported")
        );
    }
    if !config.flag("relative_attention")? {
        if !kinds.is_empty() {
            let found = format!("{:?} without \"relative_attention\"", kinds.join("|"));
            bail!("{}", config.wrong("pos_att_type", found, "left out, or \"relative_attention\" true"));
        }
        return Ok(());
    }
    // −1 stands for none.
    let positive = |key: &str| match config.number_or_none(key)? {
        Some(n) if n >= 1.0 => Ok::<_, anyhow::Error>(Some(config.width(key)?)),
        _ => Ok(None),
    };
    let distances = positive("max_relative_positions")?.unwrap_or(spec.max_positions);
    let buckets = positive("position_buckets")?;
    // Past half the buckets distances are counted by their logarithm, up to that of the farthest.
    let fits = |buckets: usize| {
        let near = buckets / 2;
        near > 0 && (spec.max_positions <= near + 1 || distances > near + 1)
    };
    if let Some(buckets) = buckets.filter(|buckets| !fits(*buckets)) {
        let expected = format!("at least 2, and less than twice the {distances} relative positions");
        bail!("{}", config.wrong("position_buckets", buckets, &expected));
    }
    let norms = config.string("norm_rel_ebd")?.unwrap_or("none").to_lowercase();
    spec.score_bias = ScoreBias::Disentangled(Disentangled {
        span: buckets.unwrap_or(distances),
        max_distance: buckets.map(|_| distances),
        content_to_position: kinds.contains(&"c2p"),
        position_to_content: kinds.contains(&"p2c"),
        shared: config.flag("share_att_key")?,
        norm: norms.split('|').any(|norm| norm.trim() == "layer_norm"),
    });
    Ok(())
}

/// The convolution of the larger DeBERTa-v2 models.
pub fn convolution(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "conv_kernel_size";
    let width = if config.has(KEY) { config.size(KEY, 0..=255)? } else { 0 };
    if width == 0 {
        return Ok(());
    }
    if width.is_multiple_of(2) {
        bail!("{}", config.wrong(KEY, width, "an odd number"));
    }
    if config.has("conv_groups") && config.width("conv_groups")? > 1 {
        bail!("{}", config.wrong("conv_groups", config.width("conv_groups")?, "1: it is not supported"));
    }
    let activation = config.activation("conv_act")?.unwrap_or(Activation::Tanh);
    spec.convolution = Some(ConvolutionSpec { width, activation });
    Ok(())
}

/// The fields of Nomic's own code.
pub fn nomic(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    const KEY: &str = "activation_function";
    spec.activation = match config.string(KEY)? {
        None | Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        Some("glu") => Activation::Sigmoid,
        Some(other) => {
            let known = "swiglu, geglu or glu: others are not supported";
            bail!("{}", config.wrong(KEY, format!("{other:?}"), known))
        }
    };
    // Its scaling sets in past the positions that the model was trained on, where Sconce does not go.
    if config.has("rotary_scaling_factor") && config.has("max_trained_positions") {
        spec.max_positions = config.width("max_trained_positions")?.min(spec.max_positions);
    }
    Ok(())
}

/// The norm of Alibaba's own code.
pub fn layer_norm_type(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    norm_type(config, "layer_norm_type", spec)
}

/// The gate of JinaBERT v2, whose activation `hidden_act` does not set.
pub fn gate_type(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    spec.activation = match config.string("feed_forward_type")? {
        Some("reglu") => Activation::Relu,
        _ => Activation::Gelu,
    };
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
        Some(other) => bail!("{}", config.wrong(key, format!("{other:?}"), "layer_norm or rms_norm")),
    }
    Ok(())
}

/// The variations of the literature that no family of the hub names: `configs/README.md` lists their fields.
pub fn variations(config: &Config, spec: &mut EncoderSpec) -> Result<()> {
    match config.string("feed_forward_type")? {
        None | Some("original" | "geglu" | "reglu") => {}
        Some(other) => {
            let known = "original, geglu or reglu";
            bail!("{}", config.wrong("feed_forward_type", format!("{other:?}"), known))
        }
    }
    norm_type(config, "norm_type", spec)?;
    spec.norm.bias = config.flag_or("norm_bias", spec.norm.bias)?;
    match config.string("norm_placement")? {
        None | Some("post") => {}
        Some("pre") => spec.norm_placement = NormPlacement::Before,
        Some("pre+final") => spec.norm_placement = NormPlacement::BeforeAndFinal,
        Some(other) => {
            bail!("{}", config.wrong("norm_placement", format!("{other:?}"), "post, pre or pre+final"))
        }
    }
    if !config.flag_or("embedding_norm", true)? {
        spec.embedding_norm = EmbeddingNorm::None;
    }
    spec.mask.causal = config.flag("is_causal")?;

    if let Some(mixing) = config.object("talking_heads")? {
        let heads = |key: &str| match mixing.has(key) {
            true => mixing.size(key, HEADS).map(Some),
            false => Ok(None),
        };
        spec.head_mixing = HeadMixing { before: heads("before_softmax")?, after: heads("after_softmax")? };
        if spec.head_mixing == HeadMixing::default() {
            let expected = "an object with \"before_softmax\", \"after_softmax\" or both: numbers of heads";
            bail!("{}", config.wrong("talking_heads", "without a number", expected));
        }
    }
    let values = spec.value_heads();
    spec.v_head_size = match config.has("attention_value_size") {
        true => config.width("attention_value_size")?,
        false => {
            let heads = if values == spec.heads { "num_attention_heads" } else { "talking_heads" };
            config.share("hidden_size", spec.hidden_size, heads, values)?
        }
    };
    Ok(())
}
