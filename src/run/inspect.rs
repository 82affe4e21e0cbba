//! `sconce inspect`: shows the configuration of a model and how its tensors are used.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use crate::model::modules::PoolingModule;
use crate::model::weights::TensorReport;
use crate::named::Named;
use crate::nn::{
    Biases, ConvolutionSpec, EncoderSpec, Frequencies, NormKind, NormPlacement, Positions, Rotary,
    RotaryScaling, ScoreBias, SlidingWindow, is_normalized,
};
use crate::output::print;
use crate::run::yes_or_no;
use crate::sys::console::{Console, thousands};
use crate::sys::terminal::escape_controls;
use crate::task::{Loaded, ModelOptions, examine};

/// Prints the model's configuration and the tensor report, as text or as a JSON object.
///
/// # Errors
/// If the model cannot be loaded, or a tensor is missing or has the wrong shape or type. In the latter case the report is
/// printed first.
pub fn inspect(options: &ModelOptions, json: bool, console: &Console) -> Result<()> {
    let loaded = examine(options, console)?;
    let report = if json { format!("{:#}\n", object(&loaded)?) } else { page(&loaded)? };
    print(report.as_bytes())?;
    match loaded.report.map_or(0, |report| report.problems.len()) {
        0 => Ok(()),
        1 => {
            bail!("the model cannot be run: 1 tensor is missing or does not match the config; see the report")
        }
        n => bail!(
            "the model cannot be run: {n} tensors are missing or do not match the config; see the report"
        ),
    }
}

/// The report as text.
fn page(loaded: &Loaded) -> Result<String> {
    let mut lines = vec![
        ("config", loaded.config.path().display().to_string()),
        ("model type", loaded.config.string("model_type")?.unwrap_or_default().to_owned()),
    ];
    lines.extend(loaded.purpose.as_ref().map(|purpose| ("task", purpose.to_string())));
    lines.extend([
        ("weights", loaded.weights.clone()),
        ("tokenizer", loaded.tokenizer_file.display().to_string()),
        ("parameters", thousands(loaded.parameters as u64)),
    ]);
    lines.extend(describe_encoder(loaded.encoders[0].spec()));
    let devices = loaded.encoders.iter().map(|encoder| {
        let backend = encoder.backend();
        format!("{} on {backend}", backend.dtype())
    });
    lines.push(("computes in", devices.collect::<Vec<_>>().join("; ")));
    lines.push(("max length", format!("{} tokens", loaded.tokenizer.max_length())));
    lines.extend(describe_modules(loaded));
    let mut page = String::new();
    for (key, value) in lines {
        writeln!(page, "{key:<16} {}", escape_controls(&value))?;
    }
    if let Some(report) = &loaded.report {
        write_tensors(&mut page, report)?;
    }
    Ok(page)
}

/// Pooling, post-pooling modules, prompts and lowercasing: key and value of each line.
fn describe_modules(loaded: &Loaded) -> Vec<(&'static str, String)> {
    let modules = &loaded.modules;
    let pooling = match &modules.pooling {
        Some(PoolingModule { pooling, include_prompt, file, .. }) => {
            let prompt = if *include_prompt { "" } else { ", excluding prompt tokens" };
            format!("{pooling}{prompt} ({})", file.display())
        }
        None => format!("{} (no pooling configured; the default for this model family)", loaded.family.pool),
    };
    let dimensions = match modules.truncate_dim.filter(|kept| *kept < loaded.dimensions) {
        Some(kept) => format!("{kept}, the first of {}", loaded.dimensions),
        None => loaded.dimensions.to_string(),
    };
    let mut lines = vec![("pooling", pooling)];
    for module in &modules.post_pooling {
        lines.push(("after pooling", format!("{} ({})", module.spec, module.folder.display())));
    }
    lines.push(("normalize", yes_or_no(is_normalized(&loaded.post_pooling))));
    lines.push(("dimensions", dimensions));
    for (name, text) in &modules.prompts.texts {
        let default = if modules.prompts.default.as_ref() == Some(name) { " (default)" } else { "" };
        lines.push(("prompt", format!("{name}{default}: {text:?}")));
    }
    let lowercase = if modules.lowercase { "yes, before the tokenizer".into() } else { yes_or_no(false) };
    lines.push(("lowercase", lowercase));
    lines
}

/// The report as a JSON object.
fn object(loaded: &Loaded) -> Result<Value> {
    let Loaded { config, modules, tokenizer, report, .. } = loaded;
    let encoder: Map<String, Value> = describe_encoder(loaded.encoders[0].spec())
        .into_iter()
        .map(|(key, text)| {
            let value = text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
            (key.replace([' ', '-'], "_"), value)
        })
        .collect();
    let pooling = modules.pooling.as_ref();
    let prompts: Map<String, Value> =
        modules.prompts.texts.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
    let dimensions = modules.truncate_dim.map_or(loaded.dimensions, |kept| kept.min(loaded.dimensions));
    Ok(json!({
        "config": config.path().display().to_string(),
        "model_type": config.string("model_type")?,
        "task": loaded.purpose.as_ref().map(ToString::to_string),
        "weights": loaded.weights,
        "tokenizer": loaded.tokenizer_file.display().to_string(),
        "parameters": loaded.parameters,
        "encoder": encoder,
        "computes_in": loaded.encoders.iter().map(|e| e.backend().dtype().to_string()).collect::<Vec<_>>(),
        "devices": loaded.encoders.iter().map(|e| e.backend().to_string()).collect::<Vec<_>>(),
        "max_length": tokenizer.max_length(),
        "truncation_side": tokenizer.truncation_side().name(),
        "lowercase": modules.lowercase,
        "pooling": loaded.pooling.to_string(),
        "pooling_file": pooling.map(|pooling| pooling.file.display().to_string()),
        "include_prompt": pooling.is_none_or(|pooling| pooling.include_prompt),
        "after_pooling": modules.post_pooling.iter().map(|module| module.spec.to_string()).collect::<Vec<_>>(),
        "normalize": is_normalized(&loaded.post_pooling),
        "dimensions": dimensions,
        "prompts": prompts,
        "default_prompt": modules.prompts.default,
        "tensors": report.as_ref().map(tensors),
    }))
}

/// The tensor report as JSON.
fn tensors(report: &TensorReport) -> Value {
    let used =
        report.used.iter().map(|(name, shape, dtype)| json!({"name": name, "shape": shape, "dtype": dtype}));
    let not_finite = report.not_finite.iter().map(|(name, count)| json!({"name": name, "count": count}));
    json!({
        "used": used.collect::<Vec<_>>(),
        "unused": report.unused,
        "not_finite": not_finite.collect::<Vec<_>>(),
        "problems": report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The specification of the encoder: key and value of each line.
fn describe_encoder(spec: &EncoderSpec) -> Vec<(&'static str, String)> {
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
    let gated = if spec.gated { ", gated" } else { "" };
    let token_types = spec.token_types.map_or("none".into(), |types| types.to_string());
    lines.extend([
        ("mask", describe_mask(spec)),
        ("feed-forward", format!("{}, {}{gated}", spec.intermediate_size, spec.activation)),
        ("norm", describe_norm(spec)),
        ("biases", describe_biases(spec)),
        ("vocabulary", spec.vocab_size.to_string()),
        ("embedding size", spec.embedding_size.to_string()),
        ("positions", describe_positions(spec)),
        ("token types", token_types),
    ]);
    lines
}

fn describe_heads(spec: &EncoderSpec) -> String {
    let mut heads = format!("{} × {}", spec.heads, spec.qk_head_dim);
    if spec.key_value_heads < spec.heads {
        heads += &format!(", {} key/value heads", spec.key_value_heads);
    }
    if spec.v_head_dim != spec.qk_head_dim {
        heads += &format!(", value head size {}", spec.v_head_dim);
    }
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
        ScoreBias::Bucketed { buckets, .. } => Some(format!("relative positions in {buckets} buckets")),
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
            format!("{mask}; sliding window of {radius} tokens on each side in {local} layers")
        }
        None => mask.into(),
    }
}

fn describe_norm(spec: &EncoderSpec) -> String {
    let norm = match spec.norm.kind {
        NormKind::Layer if spec.norm.bias => "LayerNorm",
        NormKind::Layer => "LayerNorm without bias",
        NormKind::RootMeanSquare => "RMSNorm",
    };
    let placement = match spec.norm_placement {
        NormPlacement::Post => "post-norm",
        NormPlacement::Pre => "pre-norm",
        NormPlacement::PreAndFinal => "pre-norm with final norm",
    };
    format!("{norm}, {placement}, eps {:e}", spec.norm.eps)
}

fn describe_positions(spec: &EncoderSpec) -> String {
    let max_positions = spec.max_positions;
    match spec.positions {
        Positions::None => format!("{max_positions} (no position encoding)"),
        Positions::Learned(numbering) => match numbering.first() {
            0 => format!("{max_positions} (learned)"),
            first => format!("{max_positions} (learned, starting at index {first})"),
        },
        Positions::Sinusoidal => format!("{max_positions} (sinusoidal)"),
        Positions::Rotary(Rotary { frequencies, local, rotate_values, .. }) => {
            let describe = |Frequencies { theta, scaling }: Frequencies| match scaling {
                RotaryScaling::None => format!("theta {theta}"),
                scaling => format!("theta {theta}, {scaling:?}"),
            };
            let local = local.map(|local| format!("; in local layers {}", describe(local)));
            let values = if rotate_values { "; values are rotated, too" } else { "" };
            format!(
                "{max_positions} (rotary, {}{}{values})",
                describe(frequencies),
                local.unwrap_or_default()
            )
        }
        Positions::Alibi => format!("{max_positions} (ALiBi)"),
    }
}

/// Which linear layers have a bias.
fn describe_biases(spec: &EncoderSpec) -> String {
    let Biases { projection, qkv, attention_output, up, down } = spec.bias;
    let projection = projection || !spec.embedding_projection;
    let layers = [
        (projection, "embedding projection"),
        (qkv, "query, key, value"),
        (attention_output, "attention output"),
        (up, "FFN up"),
        (down, "FFN down"),
    ];
    let without: Vec<_> = layers.iter().filter(|(has, _)| !has).map(|(_, layer)| *layer).collect();
    if without.is_empty() { "all linear layers".into() } else { format!("all but {}", without.join(", ")) }
}

fn write_tensors(page: &mut String, report: &TensorReport) -> std::fmt::Result {
    writeln!(page, "\ntensors: {} used, {} unused", report.used.len(), report.unused.len())?;
    for problem in &report.problems {
        writeln!(page, "  problem  {}", escape_controls(&problem.to_string()))?;
    }
    for (name, count) in &report.not_finite {
        writeln!(page, "  not finite  {}: {count} values are NaN or infinite", escape_controls(name))?;
    }
    for name in &report.unused {
        writeln!(page, "  unused   {}", escape_controls(name))?;
    }
    for (name, shape, dtype) in &report.used {
        writeln!(page, "  used     {} {shape:?} {dtype}", escape_controls(name))?;
    }
    Ok(())
}
