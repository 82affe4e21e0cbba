//! The resolved options of a run: what its identity compares, and what the metadata of its output says.

use std::fmt::Display;

use crate::hub::ModelDir;
use crate::job::{DEVICE, RunIdentity};
use crate::load::{Loaded, ModelOptions};
use crate::named::Named;
use crate::rows::FileMetadata;
use crate::rows::metadata::Key;
use crate::run::yes_or_no;
use crate::task::ModelTask;
use crate::text::Chunking;

/// The resolved options that rows depend on.
#[derive(Debug, Default)]
pub(in crate::run) struct ResolvedOptions(Vec<Resolved>);

/// An option, or something else that rows depend on.
#[derive(Debug)]
struct Resolved {
    /// Its name in the identity, which is that of the option; `None` if no run is compared by it.
    option: Option<&'static str>,
    /// Its key in the metadata; `None` if it is not there.
    key: Option<Key>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    /// As it is.
    Name(String),
    /// Any text, which the identity has in quotes.
    Text(String),
    /// `yes` or `no` in the identity, `true` or `false` in the metadata.
    Flag(bool),
}

impl ResolvedOptions {
    fn add(&mut self, option: Option<&'static str>, key: Option<Key>, value: Value) {
        self.0.push(Resolved { option, key, value });
    }

    /// Adds an option with a value that is a name or a number.
    pub(in crate::run) fn name(&mut self, option: &'static str, key: Key, value: impl Display) {
        self.add(Some(option), Some(key), Value::Name(value.to_string()));
    }

    /// Adds an option with a text of the user or the model.
    pub(in crate::run) fn text(&mut self, option: &'static str, key: Key, text: &str) {
        self.add(Some(option), Some(key), Value::Text(text.into()));
    }

    /// Adds a flag.
    pub(in crate::run) fn flag(&mut self, option: &'static str, key: Key, value: bool) {
        self.add(Some(option), Some(key), Value::Flag(value));
    }

    /// Adds an option that runs are compared by, but that is not in the metadata.
    pub(in crate::run) fn identity_only(&mut self, option: &'static str, value: impl Display) {
        self.add(Some(option), None, Value::Name(value.to_string()));
    }

    /// Adds a value of the metadata that no run is compared by.
    pub(in crate::run) fn metadata_only(&mut self, key: Key, value: impl Display) {
        self.add(None, Some(key), Value::Name(value.to_string()));
    }

    /// Adds other options.
    pub(in crate::run) fn extend(&mut self, others: ResolvedOptions) {
        self.0.extend(others.0);
    }

    /// What a run that resumes this one must share, by the names of the options.
    pub(in crate::run) fn identity(&self) -> RunIdentity {
        let entry = |resolved: &Resolved| {
            let value = match &resolved.value {
                Value::Name(name) => name.clone(),
                Value::Text(text) => format!("{text:?}"),
                Value::Flag(flag) => yes_or_no(*flag),
            };
            Some((resolved.option?.to_owned(), value))
        };
        self.0.iter().filter_map(entry).collect()
    }

    /// The metadata of the output.
    pub(in crate::run) fn metadata(&self) -> FileMetadata {
        let mut metadata = FileMetadata::default();
        for Resolved { key, value, .. } in &self.0 {
            let Some(key) = key else { continue };
            metadata.insert(
                *key,
                match value {
                    Value::Name(text) | Value::Text(text) => text.clone(),
                    Value::Flag(flag) => flag.to_string(),
                },
            );
        }
        metadata
    }
}

/// The name of the model, the commit of a snapshot in the cache, and the choices that make the weights,
/// beside the files.
pub(in crate::run) fn of_model(options: &ModelOptions, loaded: &Loaded) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    let snapshot = loaded.origin.config.path().parent().and_then(ModelDir::snapshot_of);
    let given = &options.source.model;
    // What a name without an organization stands for.
    let full = snapshot.as_ref().map(|(id, _)| id).filter(|id| id.rsplit('/').next() == Some(given));
    match &options.config {
        Some(config) => resolved.metadata_only(Key::Model, config.display()),
        None => resolved.metadata_only(Key::Model, full.unwrap_or(given)),
    }
    if let Some((_, commit)) = &snapshot {
        resolved.metadata_only(Key::Revision, commit);
    }
    if let Some(task) = loaded.origin.adapter.as_ref().and_then(|adapter| adapter.task.as_ref()) {
        resolved.name("--task", Key::Task, task);
    }
    if options.random_weights.is_some() {
        resolved.name("--random-weights", Key::Weights, &loaded.origin.weights);
    }
    resolved
}

/// The release, and the resolved options of every task.
pub(in crate::run) fn of_task(task: &impl ModelTask) -> ResolvedOptions {
    let (model, mut resolved) = (task.model(), ResolvedOptions::default());
    let backend = model.encoders[0].backend();
    resolved.metadata_only(Key::Release, format_args!("sconce {}", env!("CARGO_PKG_VERSION")));
    resolved.name("--max-length", Key::MaxLength, model.tokenizer.max_length());
    resolved.identity_only("--truncation-side", model.tokenizer.truncation_side().name());
    resolved.identity_only("--on-long", model.on_long.name());
    resolved.name("--dtype", Key::Dtype, backend.dtype());
    resolved.identity_only(DEVICE, backend);
    resolved
}

/// How texts are split into chunks, if they are.
pub(in crate::run) fn of_chunks(chunking: Option<Chunking>) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    if let Some(Chunking { tokens, overlap, late }) = chunking {
        resolved.name("--chunk", Key::ChunkTokens, tokens);
        resolved.name("--chunk-overlap", Key::ChunkOverlap, overlap);
        resolved.flag("--chunk-late", Key::ChunkLate, late);
    }
    resolved
}

/// The options of commands that write scores.
pub(in crate::run) fn of_scores(task: &impl ModelTask, raw: bool) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    resolved.identity_only("--raw", yes_or_no(raw));
    resolved.identity_only("--truncation", task.model().tokenizer.pair_truncation().name());
    resolved
}
