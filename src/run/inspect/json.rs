//! The report as JSON.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::cost::Cost;
use super::describe::describe_encoder;
use super::files::ModelFile;
use super::multi_vector;
use crate::checkpoint::TensorReport;
use crate::load::{Examined, ExaminedHead};
use crate::model::modules::PostPoolingModule;
use crate::named::Named;
use crate::nn::cost::{Growth, idle_parameters};
use crate::text::Tokenizer;

/// The report as a JSON object.
pub(super) fn object(examined: &Examined, cost: &Cost, files: &[ModelFile]) -> Result<Value> {
    let Examined { config, modules, report, max_length, .. } = examined;
    let encoder: Map<String, Value> = describe_encoder(&examined.spec)
        .into_iter()
        .map(|(key, text)| {
            let value = text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number));
            (key.replace([' ', '-'], "_"), value)
        })
        .collect();
    let pooling = modules.pooling.as_ref();
    let specs = |modules: &[PostPoolingModule]| -> Vec<String> {
        modules.iter().map(|module| module.spec.to_string()).collect()
    };
    let (before_pooling, after_pooling) = modules.post_pooling.split_at(modules.before_pooling);
    let prompts: Map<String, Value> =
        modules.prompts.texts.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
    let dimensions = modules.truncate_dim.map_or(examined.dimensions, |kept| kept.min(examined.dimensions));
    let backends = &examined.backends;
    let tokenizer = examined.tokenizer.as_ref();
    let mut object = json!({
        "config": config.path().display().to_string(),
        "model_type": config.string("model_type")?,
        "defaults_of_transformers": config.defaults().collect::<BTreeMap<_, _>>(),
        "task": examined.purpose.as_ref().map(ToString::to_string),
        "weights": examined.weights,
        "tokenizer": examined.tokenizer_file.as_ref().map(|file| file.display().to_string()),
        "tokenizer_algorithm": tokenizer.map(Tokenizer::algorithm),
        "tokenizer_vocabulary": tokenizer.map(Tokenizer::vocab_size),
        "special_tokens": tokenizer.map(|tokenizer| tokenizer.num_special_tokens(false)),
        "adapters": examined.adapters.tasks.iter().map(|task| &task.name).collect::<Vec<_>>(),
        "adapter": examined.adapter.as_ref().and_then(|adapter| adapter.task.as_ref()),
        "parameters": examined.count.parameters,
        "active_parameters": examined.count.parameters.saturating_sub(idle_parameters(&examined.spec)),
        "encoder": encoder,
        "computes_in": backends.iter().map(|backend| backend.dtype()).collect::<Vec<_>>(),
        "devices": backends.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "max_length": max_length.tokens,
        "max_length_source": {
            "key": max_length.key,
            "file": max_length.file.as_ref().map(|file| file.display().to_string()),
        },
        "truncation_side": examined.truncation_side.name(),
        "lowercase": modules.lowercase,
        "head": examined.head.as_ref().map(head),
        "pooling": examined.pooling.to_string(),
        "pooling_file": pooling.map(|pooling| pooling.file.display().to_string()),
        "include_prompt": pooling.is_none_or(|pooling| pooling.include_prompt),
        "before_pooling": specs(before_pooling),
        "after_pooling": specs(after_pooling),
        "dense_sizes": modules.dense_sizes,
        "multi_vector": modules.multi_vector.as_ref().map(multi_vector::object),
        "query_weights": modules.query_weights.as_ref().map(|weights| {
            json!({"folder": weights.folder.display().to_string(), "is_default": weights.is_default})
        }),
        "normalize": examined.is_normalized(),
        "dimensions": dimensions,
        "prompts": prompts,
        "default_prompt": modules.prompts.default,
        "tensors": report.as_ref().map(tensors),
        "problems": examined.problems.iter().map(|problem| format!("{problem:#}")).collect::<Vec<_>>(),
        "files": files.iter().map(file).collect::<Vec<_>>(),
    });
    if let Some(fields) = object.as_object_mut() {
        fields.extend(costs(examined, cost));
    }
    Ok(object)
}

/// Parameters by component, multiply-adds and memory.
fn costs(examined: &Examined, cost: &Cost) -> Map<String, Value> {
    let symbols: Map<String, Value> = (cost.symbols().into_iter())
        .map(|symbol| (symbol.letter.to_string(), json!({"size": symbol.size, "meaning": symbol.meaning})))
        .collect();
    let components = cost.components.iter().map(|part| {
        json!({
            "name": part.component.name(),
            "formula": part.each.to_string(),
            "each": part.each.value(),
            "copies": part.copies,
            "parameters": part.total(),
        })
    });
    let parts = cost.work.iter().map(|part| {
        json!({
            "name": part.name,
            "formula": part.each.to_string(),
            "each": part.each.value(),
            "runs": part.runs,
            "multiply_adds": part.total(),
        })
    });
    let memory = cost.memory.iter().map(|memory| {
        json!({
            "dtype": memory.dtype,
            "weights": memory.weights,
            "batch_tokens": memory.batch_tokens,
            "batch": memory.batch,
        })
    });
    let costs = json!({
        "symbols": symbols,
        "components": components.collect::<Vec<_>>(),
        "multiply_adds": {
            "tokens": cost.tokens,
            "linear": cost.multiply_adds(Growth::Linear),
            "quadratic": cost.multiply_adds(Growth::Quadratic),
            "quadratic_in_windows": cost.windowed_attention,
            "per_text": cost.multiply_adds(Growth::PerText),
            "total": cost.total(),
            "once": cost.multiply_adds(Growth::Once),
            "attention_overtakes": cost.attention_overtakes,
            "parts": parts.collect::<Vec<_>>(),
        },
        "memory": memory.collect::<Vec<_>>(),
        "embedding_table_bytes": examined.count.table_bytes,
    });
    match costs {
        Value::Object(costs) => costs,
        _ => Map::new(),
    }
}

/// The task head, with what it costs beside the encoder.
fn head(head: &ExaminedHead) -> Value {
    json!({
        "kind": head.kind.name(),
        "labels": head.labels,
        "outputs": head.outputs,
        "scores": head.scores,
        "command": head.command,
        "parameters": head.parameters,
        "multiply_adds": {
            "formula": head.work.to_string(),
            "each": head.work.value(),
            "per": if head.is_per_token { "token" } else { "text" },
        },
    })
}

fn file(file: &ModelFile) -> Value {
    json!({
        "path": file.path.display().to_string(),
        "bytes": file.bytes,
        "sha256": file.digest.map(|digest| digest.to_string()),
    })
}

/// The tensor report as JSON.
fn tensors(report: &TensorReport) -> Value {
    let used =
        report.used.iter().map(|(name, shape, dtype)| json!({"name": name, "shape": shape, "dtype": dtype}));
    let not_finite = report.not_finite.iter().map(|(name, count)| json!({"name": name, "count": count}));
    json!({
        "used": used.collect::<Vec<_>>(),
        "unused": report.unused,
        "merged": report.merged,
        "not_finite": not_finite.collect::<Vec<_>>(),
        "problems": report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
