//! The metadata of an output: the model, and the resolved options of every task.

use std::ops::Range;

use crate::hub::ModelDir;
use crate::job::{SHARD_KEYS, Shard};
use crate::load::{Loaded, ModelOptions};
use crate::output::OutputMetadata;
use crate::task::ModelTask;

/// The name of the model, the commit of a snapshot in the cache, and the origin of weights that are not the model's own.
pub(in crate::run) fn of_model(options: &ModelOptions, loaded: &Loaded) -> OutputMetadata {
    let mut metadata = OutputMetadata::new();
    let mut insert = |key: &str, value: String| drop(metadata.insert(key.into(), value));
    let snapshot = loaded.origin.config.path().parent().and_then(ModelDir::snapshot_of);
    let given = &options.source.model;
    // What a name without an organization stands for.
    let full = snapshot.as_ref().map(|(id, _)| id).filter(|id| id.rsplit('/').next() == Some(given));
    match &options.config {
        Some(config) => insert("model", config.display().to_string()),
        None => insert("model", full.unwrap_or(given).clone()),
    }
    if let Some((_, commit)) = snapshot {
        insert("revision", commit);
    }
    if let Some(task) = loaded.origin.adapter.as_ref().and_then(|adapter| adapter.task.clone()) {
        insert("task", task);
    }
    if options.random_weights.is_some() {
        insert("weights", loaded.origin.weights.clone());
    }
    metadata
}

/// The shard of a run, and its records: the indices of the first one and of the one after the last.
pub(super) fn of_shard(shard: Shard, range: &Range<u64>) -> OutputMetadata {
    let values = [shard.to_string(), format!("{}..{}", range.start, range.end)];
    SHARD_KEYS.map(String::from).into_iter().zip(values).collect()
}

/// The release, and the resolved options of every task.
pub(in crate::run) fn of_task(task: &impl ModelTask) -> OutputMetadata {
    OutputMetadata::from([
        ("release".into(), format!("sconce {}", env!("CARGO_PKG_VERSION"))),
        ("max_length".into(), task.model().tokenizer.max_length().to_string()),
        ("dtype".into(), task.model().encoders[0].backend().dtype().into()),
    ])
}
