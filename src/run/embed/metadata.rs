//! The metadata of an output: the model, and the resolved options that affect vectors.

use std::path::Path;

use crate::named::Named;
use crate::output::OutputMetadata;
use crate::task::{Embedder, Loaded, ModelOptions};
use crate::text::Chunking;

/// The name of the model, the commit of a snapshot in the cache, and the origin of weights that are not the model's own.
pub(in crate::run) fn of_model(options: &ModelOptions, loaded: &Loaded) -> OutputMetadata {
    let mut metadata = OutputMetadata::new();
    let mut insert = |key: &str, value: String| drop(metadata.insert(key.into(), value));
    match &options.config {
        Some(config) => insert("model", config.display().to_string()),
        None => insert("model", options.source.model.clone()),
    }
    let folder = loaded.config.path().parent();
    let is_snapshot = |folder: &&Path| {
        folder.parent().and_then(Path::file_name).is_some_and(|parent| parent == "snapshots")
    };
    if let Some(commit) = folder.filter(is_snapshot).and_then(Path::file_name) {
        insert("revision", commit.to_string_lossy().into_owned());
    }
    if options.random_weights.is_some() {
        insert("weights", loaded.weights.clone());
    }
    metadata
}

/// The resolved options that affect vectors.
pub(in crate::run) fn of_vectors(embedder: &Embedder) -> OutputMetadata {
    let boolean = |value: bool| if value { "true" } else { "false" };
    let mut metadata = OutputMetadata::from([
        ("release".into(), format!("sconce {}", env!("CARGO_PKG_VERSION"))),
        ("pooling".into(), embedder.pooling.to_string()),
        ("normalized".into(), boolean(embedder.is_normalized()).into()),
        ("dimensions".into(), embedder.dimensions.to_string()),
        ("prompt".into(), embedder.prompt.clone()),
        ("max_length".into(), embedder.tokenizer.max_length().to_string()),
        ("dtype".into(), embedder.encoders[0].backend().dtype().into()),
        ("output_dtype".into(), embedder.dtype.name().into()),
        ("similarity".into(), embedder.similarity.name().into()),
    ]);
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        metadata.extend([
            ("chunk_tokens".into(), tokens.to_string()),
            ("chunk_overlap".into(), overlap.to_string()),
            ("chunk_late".into(), boolean(late).into()),
        ]);
    }
    metadata
}
