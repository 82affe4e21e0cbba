//! The identity of an `embed` run: a run resumes another only if their identities are equal.

use super::{EmbedOptions, Input};
use crate::named::Named;
use crate::pipeline::{RunIdentity, sha256_of_texts};
use crate::run::yes_or_no;
use crate::task::{Embedder, Loaded};
use crate::text::Chunking;

/// The identity of a run, without the digests of the model's files.
pub(super) fn of_run(options: &EmbedOptions, loaded: &Loaded) -> RunIdentity {
    let mut identity = of_input(&options.input);
    identity.extend([
        // Builds of one release can compute different bits.
        (
            "the release of Sconce".into(),
            concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("SCONCE_BUILD"), ")").into(),
        ),
        ("--output-format".into(), options.format.name().into()),
        ("--skip-empty".into(), yes_or_no(options.selection.skip_empty)),
    ]);
    if options.model.random_weights.is_some() {
        identity.insert("--random-weights".into(), loaded.weights.clone());
    }
    identity
}

/// The identity of the input. The records themselves are compared by the digest of the cursor.
fn of_input(input: &Input) -> RunIdentity {
    let (sources, fields) = match input {
        Input::Texts(texts) => {
            let digest = format!("SHA-256 {}", sha256_of_texts(texts));
            return RunIdentity::from([("the texts".into(), digest)]);
        }
        Input::Files(sources, fields) => (sources, fields),
    };
    let formats = sources.iter().map(|source| source.format.name()).collect::<Vec<_>>();
    let formats = match formats.split_first() {
        Some((first, rest)) if rest.iter().all(|format| format == first) => first.to_string(),
        _ => formats.join(" "),
    };
    let given = |name: &Option<String>| name.clone().unwrap_or_else(|| "not given".into());
    RunIdentity::from([
        ("--input-format".into(), formats),
        ("--text-field".into(), fields.text.clone()),
        ("--pair-field".into(), given(&fields.pair)),
        ("--id-field".into(), given(&fields.id)),
        ("--keep".into(), fields.keep.join(" ")),
    ])
}

/// The resolved options that affect vectors.
pub(super) fn of_vectors(embedder: &Embedder) -> RunIdentity {
    let backend = embedder.encoders[0].backend();
    let side = embedder.tokenizer.truncation_side().name();
    let mut identity = RunIdentity::from([
        ("--pooling".into(), embedder.pooling.to_string()),
        ("--normalize".into(), yes_or_no(embedder.is_normalized())),
        ("--dimensions".into(), embedder.dimensions.to_string()),
        ("--prompt".into(), format!("{:?}", embedder.prompt)),
        ("--max-length".into(), embedder.tokenizer.max_length().to_string()),
        ("--truncation-side".into(), side.into()),
        ("--on-long".into(), embedder.on_long.name().into()),
        ("--dtype".into(), backend.dtype().into()),
        ("--output-dtype".into(), embedder.dtype.name().into()),
        // Devices and instruction sets round differently.
        ("the device".into(), backend.to_string()),
    ]);
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        identity.extend([
            ("--chunk".into(), tokens.to_string()),
            ("--chunk-overlap".into(), overlap.to_string()),
            ("--chunk-late".into(), yes_or_no(late)),
        ]);
    }
    identity
}
