//! What an output says of itself: which model its vectors are from, and how they were made.

use crate::output::About;
use crate::run::heads::normalized;
use crate::run::{Chunking, Embedder, Loaded, ModelOptions};

/// What is known of the model: its name, the commit of a snapshot in the cache, and where the weights are from if they are
/// not its own.
pub fn of_model(options: &ModelOptions, loaded: &Loaded) -> About {
    let mut about = About::new();
    let mut say = |key: &str, value: String| drop(about.insert(key.into(), value));
    match &options.config {
        Some(config) => say("model", config.display().to_string()),
        None => say("model", options.source.model.clone()),
    }
    let snapshot = loaded.config.path().parent();
    let is_snapshot = |folder: &&std::path::Path| {
        folder.parent().and_then(|above| above.file_name()).is_some_and(|above| above == "snapshots")
    };
    if let Some(commit) = snapshot.filter(is_snapshot).and_then(|folder| folder.file_name()) {
        say("revision", commit.to_string_lossy().into_owned());
    }
    if options.random_weights.is_some() {
        say("weights", loaded.weights.clone());
    }
    about
}

/// What is known of the vectors.
pub fn of_vectors(embedder: &Embedder) -> About {
    let yes_or_no = |yes: bool| if yes { "true" } else { "false" };
    let mut about = About::from([
        ("release".into(), format!("sconce {}", env!("CARGO_PKG_VERSION"))),
        ("pooling".into(), embedder.pooling.to_string()),
        ("normalized".into(), yes_or_no(normalized(&embedder.heads)).into()),
        ("dimensions".into(), embedder.dimensions.to_string()),
        ("prompt".into(), embedder.prompt.clone()),
        ("max_length".into(), embedder.tokenizer.max_length().to_string()),
        ("dtype".into(), embedder.encoders[0].engine().dtype().into()),
        ("output_dtype".into(), embedder.dtype.name().into()),
    ]);
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        about.extend([
            ("chunk_tokens".into(), tokens.to_string()),
            ("chunk_overlap".into(), overlap.to_string()),
            ("chunk_late".into(), yes_or_no(late).into()),
        ]);
    }
    about
}
