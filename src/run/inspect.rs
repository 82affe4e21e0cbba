//! `sconce inspect`: what a model is.

use std::fmt::Write;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::heads::normalized;
use super::{Console, Loaded, ModelOptions, examine};
use crate::model::pipeline::PoolingModule;
use crate::model::weights::Report;
use crate::nn::{
    Biases, ConvolutionSpec, Encoder, EncoderSpec, Frequencies, NormKind, NormPlacement, Positions, Rotary,
    RotaryScaling, ScoreBias,
};
use crate::output::print;
use crate::terminal::printable;

/// Prints every resolved choice and the tensor report, as a page or as JSON.
///
/// # Errors
/// If the model does not load, or a tensor is missing or has the wrong shape or type: those are listed first.
pub fn inspect(options: &ModelOptions, json: bool, console: &Console) -> Result<()> {
    let loaded = examine(options, console)?;
    match json {
        true => print(format!("{:#}\n", object(&loaded)?).as_bytes())?,
        false => print(page(&loaded)?.as_bytes())?,
    }
    match loaded.report.map_or(0, |report| report.problems.len()) {
        0 => Ok(()),
        n => bail!("the model cannot be run: {n} of its tensors are missing or wrong, as listed"),
    }
}

/// The page for people.
fn page(loaded: &Loaded) -> Result<String> {
    let spec = loaded.encoders[0].spec();
    let mut page = String::new();
    let mut line = |key: &str, value: String| writeln!(page, "{key:<16} {}", printable(&value));
    line("config", loaded.config.path().display().to_string())?;
    line("model type", loaded.config.string("model_type")?.unwrap_or_default().to_owned())?;
    if let Some(purpose) = &loaded.purpose {
        line("task", purpose.to_string())?;
    }
    line("weights", loaded.weights.clone())?;
    line("tokenizer", loaded.tokenizer_file.display().to_string())?;
    line("parameters", loaded.parameters.to_string())?;
    for (key, value) in describe(spec) {
        line(key, value)?;
    }
    line(
        "computes in",
        loaded
            .encoders
            .iter()
            .map(Encoder::engine)
            .map(|e| format!("{}, on {e}", e.dtype()))
            .collect::<Vec<_>>()
            .join("; "),
    )?;
    line("max length", format!("{} tokens", loaded.tokenizer.max_length()))?;
    line(
        "pooling",
        match &loaded.pipeline.pooling {
            Some(PoolingModule { pooling, include_prompt, file, .. }) => {
                let prompt = if *include_prompt { "" } else { ", without the tokens of the prompt" };
                format!("{pooling}{prompt} ({})", file.display())
            }
            None => {
                format!("{} (this family's custom: the model's files name none)", loaded.family.pool)
            }
        },
    )?;
    for head in &loaded.pipeline.heads {
        line("after pooling", format!("{} ({})", head.spec, head.folder.display()))?;
    }
    let normalized = normalized(&loaded.heads);
    line("normalize", if normalized { "yes" } else { "no" }.into())?;
    line(
        "dimensions",
        match loaded.pipeline.dimensions.filter(|kept| *kept < loaded.dimensions) {
            Some(kept) => format!("{kept}, the first of {}", loaded.dimensions),
            None => loaded.dimensions.to_string(),
        },
    )?;
    let prompts = &loaded.pipeline.prompts;
    for (name, text) in &prompts.texts {
        let default = if prompts.default.as_ref() == Some(name) { ", the default" } else { "" };
        line("prompt", format!("{name}: {text:?}{default}"))?;
    }
    line("lowercase", if loaded.pipeline.lowercase { "yes, before the tokenizer" } else { "no" }.into())?;
    if let Some(report) = &loaded.report {
        write_report(&mut page, report)?;
    }
    Ok(page)
}

/// The same for programs.
fn object(loaded: &Loaded) -> Result<Value> {
    let Loaded { config, pipeline, tokenizer, report, .. } = loaded;
    let encoder: Map<String, Value> = describe(loaded.encoders[0].spec())
        .into_iter()
        .map(|(key, text)| {
            let value = text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
            (key.replace([' ', '-'], "_"), value)
        })
        .collect();
    let pooling = pipeline.pooling.as_ref();
    let prompts: Map<String, Value> =
        pipeline.prompts.texts.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
    let dimensions = pipeline.dimensions.map_or(loaded.dimensions, |kept| kept.min(loaded.dimensions));
    Ok(json!({
        "config": config.path().display().to_string(),
        "model_type": config.string("model_type")?,
        "task": loaded.purpose.as_ref().map(ToString::to_string),
        "weights": loaded.weights,
        "tokenizer": loaded.tokenizer_file.display().to_string(),
        "parameters": loaded.parameters,
        "encoder": encoder,
        "computes_in": loaded.encoders.iter().map(|e| e.engine().dtype().to_string()).collect::<Vec<_>>(),
        "devices": loaded.encoders.iter().map(|e| e.engine().to_string()).collect::<Vec<_>>(),
        "max_length": tokenizer.max_length(),
        "truncation_side": if tokenizer.cuts_left() { "left" } else { "right" },
        "lowercase": pipeline.lowercase,
        "pooling": loaded.pooling.to_string(),
        "pooling_file": pooling.map(|pooling| pooling.file.display().to_string()),
        "include_prompt": pooling.is_none_or(|pooling| pooling.include_prompt),
        "after_pooling": pipeline.heads.iter().map(|head| head.spec.to_string()).collect::<Vec<_>>(),
        "normalize": normalized(&loaded.heads),
        "dimensions": dimensions,
        "prompts": prompts,
        "default_prompt": pipeline.prompts.default,
        "tensors": report.as_ref().map(tensors),
    }))
}

/// What became of the tensors, for programs.
fn tensors(report: &Report) -> Value {
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

/// What the stack computes, choice by choice.
fn describe(spec: &EncoderSpec) -> Vec<(&'static str, String)> {
    let sharing = spec.layer_sharing;
    let layers = match sharing.groups * sharing.inner == spec.layers {
        true => spec.layers.to_string(),
        false => format!("{} of {} groups of {}", spec.layers, sharing.groups, sharing.inner),
    };
    let mut heads = format!("{} of {}", spec.heads, spec.qk_head_size);
    if spec.key_value_heads < spec.heads {
        heads += &format!(", {} of keys and values", spec.key_value_heads);
    }
    if spec.v_head_size != spec.qk_head_size {
        heads += &format!(", values of {}", spec.v_head_size);
    }
    for (mixed, place) in [(spec.head_mixing.before, "before"), (spec.head_mixing.after, "after")] {
        heads += &mixed.map(|mixed| format!(", mixed to {mixed} {place} the softmax")).unwrap_or_default();
    }
    let mut lines = vec![("layers", layers), ("hidden size", spec.hidden_size.to_string()), ("heads", heads)];
    match &spec.score_bias {
        ScoreBias::None => {}
        ScoreBias::Bucketed { buckets, .. } => {
            lines.push(("score bias", format!("relative, {buckets} buckets")))
        }
        ScoreBias::Disentangled(distances) => {
            let kinds = [(distances.content_to_position, "c2p"), (distances.position_to_content, "p2c")];
            let kinds: Vec<_> = kinds.iter().filter(|(wanted, _)| *wanted).map(|(_, kind)| *kind).collect();
            lines
                .push(("score bias", format!("disentangled, {}, span {}", kinds.join(" + "), distances.span)))
        }
    }
    let mut mask = String::from(if spec.mask.causal { "causal" } else { "none but the ends of the text" });
    if let Some((reach, layers)) = &spec.mask.window {
        let near = layers.iter().filter(|near| **near).count();
        mask += &format!("; {near} layers see {reach} tokens on either side");
    }
    if let Some(ConvolutionSpec { width, activation }) = spec.convolution {
        lines.push(("convolution", format!("{width} tokens wide, {activation}, beside the first layer")));
    }
    let gated = if spec.gated { ", gated" } else { "" };
    let norm = match spec.norm.kind {
        NormKind::Layer if spec.norm.bias => "LayerNorm",
        NormKind::Layer => "LayerNorm without bias",
        NormKind::RootMeanSquare => "RMSNorm",
    };
    let placement = match spec.norm_placement {
        NormPlacement::After => "after each sublayer (post-norm)",
        NormPlacement::Before => "before each sublayer (pre-norm)",
        NormPlacement::BeforeAndFinal => "before each sublayer (pre-norm) and at the end",
    };
    let most = spec.max_positions;
    let positions = match spec.positions {
        Positions::None => format!("{most}, not told apart"),
        Positions::Learned(numbering) => format!("{most}, learned, the first is {}", numbering.first()),
        Positions::Sinusoidal => format!("{most}, sinusoidal"),
        Positions::Rotary(Rotary { frequencies, local, values, .. }) => {
            let describe = |Frequencies { theta, scaling }: Frequencies| match scaling {
                RotaryScaling::None => format!("theta {theta}"),
                scaling => format!("theta {theta}, {scaling:?}"),
            };
            let local = local.map(|local| format!("; with a window {}", describe(local)));
            let values = if values { "; values turn, too" } else { "" };
            format!("{most}, rotary, {}{}{values}", describe(frequencies), local.unwrap_or_default())
        }
        Positions::Alibi => format!("{most}, ALiBi"),
    };
    lines.extend([
        ("mask", mask),
        ("feed-forward", format!("{}, {}{gated}", spec.intermediate_size, spec.activation)),
        ("norm", format!("{placement}, {norm}, eps {:e}", spec.norm.eps)),
        ("without a bias", without_bias(spec)),
        ("vocabulary", spec.vocab_size.to_string()),
        ("embedding size", spec.embedding_size.to_string()),
        ("positions", positions),
        ("segments", spec.token_types.map_or("none".into(), |types| types.to_string())),
    ]);
    lines
}

/// The linear layers that have no bias.
fn without_bias(spec: &EncoderSpec) -> String {
    let Biases { projection, qkv, attention_output, up, down } = spec.bias;
    let projection = projection || !spec.embedding_projection;
    let parts = [
        (projection, "projection of the embeddings"),
        (qkv, "queries, keys, values"),
        (attention_output, "output of attention"),
        (up, "into the feed-forward network"),
        (down, "out of it"),
    ];
    let parts: Vec<_> = parts.iter().filter(|(has, _)| !has).map(|(_, part)| *part).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

fn write_report(page: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(page, "\ntensors: {} used, {} unused", report.used.len(), report.unused.len())?;
    for problem in &report.problems {
        writeln!(page, "  problem  {}", printable(&problem.to_string()))?;
    }
    for (name, count) in &report.not_finite {
        writeln!(page, "  not finite  {}: {count} numbers are NaN or infinite", printable(name))?;
    }
    for name in &report.unused {
        writeln!(page, "  unused   {}", printable(name))?;
    }
    for (name, shape, dtype) in &report.used {
        writeln!(page, "  used     {} {shape:?} {dtype}", printable(name))?;
    }
    Ok(())
}
