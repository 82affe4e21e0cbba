//! `sconce embed`: texts → vectors, or sparse weights.

use anyhow::Result;

use super::append::Appended;
use super::records::{Setup, TaskOptions, run, true_or_false};
use super::yes_or_no;
use crate::job::{ExitStatus, RunIdentity};
use crate::load::load_embedding_or_sparse;
use crate::named::Named;
use crate::nn::OutputKind;
use crate::output::OutputMetadata;
use crate::sys::console::Console;
use crate::task::{Embedder, LateInteraction, OutputsEncoder, SparseEncoder, TextEncoder, VectorOptions};
use crate::text::Chunking;

/// The options of `sconce embed`.
pub type EmbedOptions = TaskOptions<VectorOptions>;

/// Runs `sconce embed`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn embed(mut options: EmbedOptions) -> Result<ExitStatus> {
    if options.records.append.is_none() {
        return embed_records(&options);
    }
    let file = Appended::open(&options.records)?;
    let Some(file) = file else { return embed_records(&options) };
    file.redirect(&mut options.records);
    let status = embed_records(&options)?;
    file.finish(&options.records)?;
    Ok(status)
}

/// Embeds the records into the output.
fn embed_records(options: &EmbedOptions) -> Result<ExitStatus> {
    let TaskOptions { records, task: vectors } = options;
    let load = |console: &Console| load_embedding_or_sparse(&records.model, console);
    let outputs = &records.model.outputs;
    if !outputs.is_empty() {
        return run(records, load, |loaded, console| {
            let task = OutputsEncoder::new(loaded, outputs, vectors, console)?;
            let (identity, metadata) = of_outputs(&task, outputs);
            Ok(Setup::in_order(task, identity, metadata))
        });
    }
    run(records, load, |loaded, console| {
        let task = TextEncoder::new(loaded, vectors, console)?;
        let (identity, metadata) = match &task {
            TextEncoder::Dense(task) => (identity(task), metadata(task)),
            TextEncoder::Sparse(task) => of_sparse(task),
        };
        Ok(Setup::in_order(task, identity, metadata))
    })
}

/// The resolved options that affect several outputs, as identity and as metadata.
fn of_outputs(encoder: &OutputsEncoder, outputs: &[OutputKind]) -> (RunIdentity, OutputMetadata) {
    let names = outputs.iter().map(|output| output.name()).collect::<Vec<_>>().join(",");
    let (mut identity, mut metadata) = (identity(encoder.embedder()), metadata(encoder.embedder()));
    identity.insert("--outputs".into(), names.clone());
    metadata.insert("outputs".into(), names);
    (identity, metadata)
}

/// The resolved options that affect sparse weights, as identity and as metadata.
fn of_sparse(encoder: &SparseEncoder) -> (RunIdentity, OutputMetadata) {
    let pooling = encoder.describe();
    let mut identity = RunIdentity::from([
        ("--pooling".into(), pooling.clone()),
        ("--prompt".into(), format!("{:?}", encoder.prompt())),
    ]);
    identity.extend(encoder.role().map(|role| ("--role".into(), role.name().into())));
    let metadata = OutputMetadata::from([
        ("pooling".into(), pooling),
        ("dimensions".into(), encoder.dimensions.to_string()),
        ("prompt".into(), encoder.prompt().to_owned()),
        ("similarity".into(), encoder.similarity.name().into()),
    ]);
    let role = encoder.role().map(|role| ("role".into(), role.name().into()));
    (identity, metadata.into_iter().chain(role).collect())
}

/// The resolved options that affect vectors, for the metadata of the output.
pub(super) fn metadata_of(encoder: &TextEncoder) -> OutputMetadata {
    match encoder {
        TextEncoder::Dense(encoder) => metadata(encoder),
        TextEncoder::Sparse(encoder) => of_sparse(encoder).1,
    }
}

/// The resolved options that affect vectors.
fn identity(embedder: &Embedder) -> RunIdentity {
    let mut identity = RunIdentity::from([
        ("--pooling".into(), embedder.pooling.to_string()),
        ("--normalize".into(), yes_or_no(embedder.is_normalized())),
        ("--dimensions".into(), embedder.dimensions.to_string()),
        ("--prompt".into(), format!("{:?}", embedder.prompt())),
        ("--output-dtype".into(), embedder.dtype.name().into()),
    ]);
    identity.extend(roles(embedder).map(|(key, value)| (format!("--{}", key.replace('_', "-")), value)));
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        identity.extend([
            ("--chunk".into(), tokens.to_string()),
            ("--chunk-overlap".into(), overlap.to_string()),
            ("--chunk-late".into(), yes_or_no(late)),
        ]);
    }
    identity
}

/// The role of the texts, if anything depends on it, and the factor of token pooling, if there is any.
fn roles(embedder: &Embedder) -> impl Iterator<Item = (String, String)> {
    let role = embedder.role().map(|role| ("role".into(), role.name().into()));
    let late_interaction = embedder.late_interaction.as_ref();
    let factor = late_interaction.map(LateInteraction::pooling_factor).filter(|factor| *factor > 1.0);
    role.into_iter().chain(factor.map(|factor| ("token_pooling".into(), factor.to_string())))
}

/// The resolved options that affect vectors, for the metadata of the output.
fn metadata(embedder: &Embedder) -> OutputMetadata {
    let mut metadata = OutputMetadata::from([
        ("pooling".into(), embedder.pooling.to_string()),
        ("normalized".into(), true_or_false(embedder.is_normalized())),
        ("dimensions".into(), embedder.dimensions.to_string()),
        ("prompt".into(), embedder.prompt().to_owned()),
        ("output_dtype".into(), embedder.dtype.name().into()),
        ("similarity".into(), embedder.similarity.name().into()),
    ]);
    metadata.extend(roles(embedder));
    if let Some(Chunking { tokens, overlap, late }) = embedder.chunking {
        metadata.extend([
            ("chunk_tokens".into(), tokens.to_string()),
            ("chunk_overlap".into(), overlap.to_string()),
            ("chunk_late".into(), true_or_false(late)),
        ]);
    }
    metadata
}
