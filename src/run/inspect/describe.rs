//! An encoder in words: key and value of each line, the same on the page and in JSON.

use crate::nn::{
    Biases, BottleneckSpec, ConvolutionSpec, EncoderSpec, ExpertsSpec, Frequencies, NormKind, NormPlacement,
    Positions, ProjectedEmbeddings, QkNorm, Rotary, RotaryScaling, ScoreBias, SlidingWindow,
};

/// The specification of the encoder: key and value of each line.
pub(super) fn describe_encoder(spec: &EncoderSpec) -> Vec<(&'static str, String)> {
    if spec.is_static() {
        return vec![
            ("layers", "none (static embeddings)".into()),
            ("vocabulary", spec.vocab_size.to_string()),
            ("embedding size", describe_embedding_size(spec)),
        ];
    }
    let sharing = spec.layer_sharing;
    let layers = if sharing.groups * sharing.inner == spec.layers {
        spec.layers.to_string()
    } else {
        format!("{} in {} groups of {} shared layers", spec.layers, sharing.groups, sharing.inner)
    };
    let mut lines = vec![
        ("layers", layers),
        ("hidden size", spec.hidden_size.to_string()),
        ("heads", describe_heads(spec)),
    ];
    lines.extend(describe_score_bias(&spec.score_bias).map(|bias| ("score bias", bias)));
    if let Some(ConvolutionSpec { kernel_size, activation }) = spec.convolution {
        lines.push((
            "convolution",
            format!("kernel size {kernel_size}, {activation}, parallel to the first layer"),
        ));
    }
    lines.extend(
        spec.short_convolution
            .as_ref()
            .map(|convolution| {
                let (size, count) = (convolution.kernel_size, spec.convolution_layers());
                ("short convolutions", format!("kernel size {size}, in {count} of {} layers", spec.layers))
            })
            .filter(|_| spec.convolution_layers() > 0),
    );
    lines.extend(spec.bottleneck.as_ref().map(|bottleneck| ("bottleneck", describe_bottleneck(bottleneck))));
    let several = match spec.feed_forwards {
        1 => String::new(),
        count => format!(", {count} in each layer"),
    };
    let gated = if spec.gated { ", gated" } else { "" };
    let token_types = spec.token_types.map_or("none".into(), |types| types.to_string());
    lines.extend(spec.experts.as_ref().map(|experts| ("experts", describe_experts(experts))));
    lines.extend([
        ("mask", describe_mask(spec)),
        ("feed-forward", format!("{}, {}{gated}{several}", spec.intermediate_size, spec.activation)),
        ("norm", describe_norm(spec)),
        ("biases", describe_biases(spec)),
        ("vocabulary", spec.vocab_size.to_string()),
        ("embedding size", describe_embedding_size(spec)),
        ("positions", describe_positions(spec)),
        ("token types", token_types),
    ]);
    lines
}

fn describe_experts(experts: &ExpertsSpec) -> String {
    let ExpertsSpec { count, per_token, normalize, layers } = experts;
    let with_experts = layers.iter().filter(|has_experts| **has_experts).count();
    let weights = if *normalize { ", weights with a sum of 1" } else { "" };
    format!("{count}, {per_token} per token{weights}, in {with_experts} of {} layers", layers.len())
}

fn describe_bottleneck(bottleneck: &BottleneckSpec) -> String {
    let inputs = match (bottleneck.shared_input, bottleneck.own_attention) {
        (true, _) => "queries, keys and values from it",
        (false, true) => "queries and keys from one of their own, values from the hidden states",
        (false, false) => "queries, keys and values from the hidden states",
    };
    format!("{}, {inputs}", bottleneck.width)
}

fn describe_embedding_size(spec: &EncoderSpec) -> String {
    let scale = spec.embedding_scale.map(|scale| format!(", multiplied by {scale:.4}"));
    let trigrams = if spec.projected == ProjectedEmbeddings::Trigram { ", of trigrams" } else { "" };
    format!("{}{trigrams}{}", spec.embedding_size, scale.unwrap_or_default())
}

fn describe_heads(spec: &EncoderSpec) -> String {
    let mut heads = format!("{} × {}", spec.heads, spec.qk_head_dim);
    if spec.key_value_heads < spec.heads {
        heads += &format!(", {} key/value heads", spec.key_value_heads);
    }
    if spec.v_head_dim != spec.qk_head_dim {
        heads += &format!(", value head size {}", spec.v_head_dim);
    }
    if let Some(scalar) = spec.query_scalar {
        heads += &format!(", scores divided by √{}", figure(scalar));
    }
    if let Some(cap) = spec.score_cap {
        heads += &format!(", bounded by {cap}");
    }
    heads += match spec.qk_norm {
        QkNorm::None => "",
        QkNorm::PerHead => ", norms of queries and keys",
        QkNorm::AllHeads => ", norms of queries and keys over all heads",
    };
    let projections = [(spec.talking_heads.pre_softmax, "pre"), (spec.talking_heads.post_softmax, "post")];
    for (projected, stage) in projections {
        let describe = |projected| format!(", {stage}-softmax projection to {projected} heads");
        heads += &projected.map(describe).unwrap_or_default();
    }
    heads
}

fn describe_score_bias(bias: &ScoreBias) -> Option<String> {
    match bias {
        ScoreBias::None => None,
        ScoreBias::Bucketed { buckets, per_layer, .. } => {
            let own = if *per_layer { ", with other biases in each layer" } else { "" };
            Some(format!("relative positions in {buckets} buckets{own}"))
        }
        ScoreBias::Disentangled(relative) => {
            let kinds = [(relative.c2p, "c2p"), (relative.p2c, "p2c")];
            let kinds: Vec<_> = kinds.iter().filter(|(is_used, _)| *is_used).map(|(_, kind)| *kind).collect();
            Some(format!(
                "disentangled, {}, {} relative positions",
                kinds.join(" + "),
                2 * relative.relative_positions
            ))
        }
    }
}

fn describe_mask(spec: &EncoderSpec) -> String {
    let mask = if spec.mask.causal { "causal" } else { "padding" };
    match &spec.mask.sliding_window {
        Some(SlidingWindow { radius, layers }) => {
            let local = layers.iter().filter(|is_local| **is_local).count();
            let side = if spec.mask.causal { "before each token" } else { "on each side" };
            format!("{mask}; sliding window of {radius} tokens {side} in {local} layers")
        }
        None => mask.into(),
    }
}

fn describe_norm(spec: &EncoderSpec) -> String {
    let norm = match spec.norm.kind {
        NormKind::Layer if spec.norm.bias => "LayerNorm",
        NormKind::Layer => "LayerNorm without bias",
        NormKind::RootMeanSquare => "RMSNorm",
        NormKind::Affine => "scale and bias without statistics (NoNorm)",
    };
    let placement = match spec.norm_placement {
        NormPlacement::Post => "post-norm",
        NormPlacement::NestedPost => "post-norm, with a norm of attention inside its residual connection",
        NormPlacement::Pre => "pre-norm",
        NormPlacement::PreAndFinal => "pre-norm with final norm",
        NormPlacement::SandwichAndFinal => "norms before and after each sublayer, with final norm",
    };
    let offset = if spec.norm.unit_offset { " with weights 1 + w" } else { "" };
    format!("{norm}{offset}, {placement}, eps {:e}", spec.norm.eps)
}

fn describe_positions(spec: &EncoderSpec) -> String {
    let max_positions = spec.max_positions;
    match &spec.positions {
        Positions::None => format!("{max_positions} (no position encoding)"),
        Positions::Learned(numbering) => match numbering.first() {
            0 => format!("{max_positions} (learned)"),
            first => format!("{max_positions} (learned, starting at index {first})"),
        },
        Positions::Sinusoidal => format!("{max_positions} (sinusoidal)"),
        Positions::Rotary(Rotary { frequencies, local, rotate_values, rotated_dims, .. }) => {
            let describe = |Frequencies { theta, scaling }: &Frequencies| {
                format!("theta {theta}{}", describe_scaling(scaling))
            };
            let local = local.as_ref().map(|local| format!("; in local layers {}", describe(local)));
            let part = rotated_dims.map(|dims| format!("; {dims} dimensions of each head are rotated"));
            let values = if *rotate_values { "; values are rotated, too" } else { "" };
            format!(
                "{max_positions} (rotary, {}{}{values}{})",
                describe(frequencies),
                local.unwrap_or_default(),
                part.unwrap_or_default()
            )
        }
        Positions::Alibi => format!("{max_positions} (ALiBi)"),
    }
}

/// How rotary frequencies are scaled, in the words of `rope_scaling`, after a comma.
fn describe_scaling(scaling: &RotaryScaling) -> String {
    match scaling {
        RotaryScaling::None => String::new(),
        RotaryScaling::Linear { factor } => format!(", linear with factor {factor}"),
        RotaryScaling::Ntk { factor } => format!(", NTK with factor {factor}"),
        RotaryScaling::Dynamic { factor, original_max_positions } => {
            format!(", dynamic NTK with factor {factor} past {original_max_positions} tokens")
        }
        RotaryScaling::LongRope { original_max_positions, attention_factor, .. } => {
            format!(", LongRoPE past {original_max_positions} tokens, attention factor {attention_factor:.4}")
        }
        RotaryScaling::NtkByParts { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            format!(
                ", NTK by parts with factor {factor} from {original_max_positions} tokens, low frequency factor {low_freq_factor}, \
                 high frequency factor {high_freq_factor}"
            )
        }
        RotaryScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_positions,
            attention_factor,
            truncate,
        } => {
            let whole = if *truncate { "" } else { ", truncate false" };
            format!(
                ", YaRN with factor {factor} from {original_max_positions} tokens, beta fast {beta_fast}, beta slow {beta_slow}, \
                 attention factor {}{whole}",
                figure(*attention_factor)
            )
        }
    }
}

/// A number without the rounding error of its last digits.
fn figure(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// Which linear layers have a bias.
fn describe_biases(spec: &EncoderSpec) -> String {
    let Biases { projection, query_value, key, attention_output, up, down } = spec.bias;
    let projection = projection || !spec.embedding_projection;
    let layers = [
        (projection, "embedding projection"),
        (query_value || key, "query, key, value"),
        (key || !query_value, "key"),
        (attention_output, "attention output"),
        (up, "FFN up"),
        (down, "FFN down"),
    ];
    let without: Vec<_> = layers.iter().filter(|(has, _)| !has).map(|(_, layer)| *layer).collect();
    let has_any =
        Biases { projection: spec.bias.projection && spec.embedding_projection, ..spec.bias } != Biases::NONE;
    match without[..] {
        [] => "all linear layers".into(),
        _ if has_any => format!("all but {}", without.join(", ")),
        _ => "none".into(),
    }
}
