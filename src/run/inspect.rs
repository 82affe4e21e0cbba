//! `sconce inspect`: what a model is.

use std::fmt::Write;

use anyhow::{Result, bail};

use super::{Console, ModelOptions, examine};
use crate::model::weights::Report;
use crate::nn::{Numbering, ScoreBias};
use crate::output::print;

/// Prints every resolved choice and the tensor report.
///
/// # Errors
/// If the model does not load, or a tensor is missing or has the wrong shape or type: those are listed first.
pub fn inspect(options: &ModelOptions, console: &Console) -> Result<()> {
    let loaded = examine(options, console)?;
    let spec = loaded.encoder.spec();
    let mut page = String::new();
    let mut line = |key: &str, value: String| writeln!(page, "{key:<16} {value}");
    line("config", loaded.config.path().display().to_string())?;
    line("model type", loaded.config.string("model_type")?.unwrap_or_default().to_owned())?;
    line("weights", loaded.weights)?;
    line("tokenizer", loaded.tokenizer_file.display().to_string())?;
    line("parameters", loaded.parameters.to_string())?;
    let sharing = spec.layer_sharing;
    line(
        "layers",
        match sharing.groups * sharing.inner == spec.layers {
            true => spec.layers.to_string(),
            false => format!("{} of {} groups of {}", spec.layers, sharing.groups, sharing.inner),
        },
    )?;
    line("hidden size", spec.hidden_size.to_string())?;
    line("heads", format!("{} of {}", spec.heads, spec.head_size()?))?;
    if let ScoreBias::Bucketed { buckets, .. } = spec.score_bias {
        line("score bias", format!("relative, {buckets} buckets"))?;
    }
    line("feed-forward", format!("{}, {:?}", spec.intermediate_size, spec.activation))?;
    line("norm", format!("after each sublayer (post-norm), LayerNorm, eps {:e}", spec.norm.eps))?;
    line("vocabulary", spec.vocab_size.to_string())?;
    let first = match spec.positions.numbering {
        Numbering::FromZero => 0,
        Numbering::AfterPadding(padding) => padding + 1,
    };
    line("embedding size", spec.embedding_size.to_string())?;
    line("positions", format!("{}, learned, the first is {first}", spec.positions.rows))?;
    line("segments", spec.token_types.map_or("none".into(), |types| types.to_string()))?;
    line("max length", format!("{} tokens", loaded.tokenizer.max_length()))?;
    line(
        "pooling",
        match &loaded.pipeline.pooling {
            Some((pooling, file)) => format!("{pooling} ({})", file.display()),
            None => {
                format!("{} (this family's custom: the model's files name none)", loaded.family.pool)
            }
        },
    )?;
    line("normalize", if loaded.pipeline.normalize { "yes" } else { "no" }.into())?;
    line("lowercase", if loaded.pipeline.lowercase { "yes, before the tokenizer" } else { "no" }.into())?;
    if let Some(report) = &loaded.report {
        write_report(&mut page, report)?;
    }
    print(page.as_bytes())?;
    match loaded.report.map_or(0, |report| report.problems.len()) {
        0 => Ok(()),
        n => bail!("the model cannot be run: {n} of its tensors are missing or wrong, as listed"),
    }
}

fn write_report(page: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(page, "\ntensors: {} used, {} unused", report.used.len(), report.unused.len())?;
    for problem in &report.problems {
        writeln!(page, "  problem  {problem}")?;
    }
    for (name, count) in &report.not_finite {
        writeln!(page, "  not finite  {name}: {count} numbers are NaN or infinite")?;
    }
    for name in &report.unused {
        writeln!(page, "  unused   {name}")?;
    }
    for (name, shape, dtype) in &report.used {
        writeln!(page, "  used     {name} {shape:?} {dtype}")?;
    }
    Ok(())
}
