//! `sconce embed`: texts → vectors, or sparse weights.

use anyhow::Result;

use super::append::{self, Appended};
use super::records::{RecordOptions, Report, ResolvedOptions, Setup, TaskOptions, of_chunks, write_rows};
use crate::job::{ExitStatus, StartMode};
use crate::load::load_embedding_or_sparse;
use crate::named::Named;
use crate::rows::metadata::Key;
use crate::sys::console::Console;
use crate::task::precision::warn_of_int8;
use crate::task::{Embedder, LateInteraction, OutputsEncoder, SparseEncoder, TextEncoder, VectorOptions};

/// The options of `sconce embed`.
pub type EmbedOptions = TaskOptions<VectorOptions>;

/// Runs `sconce embed`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn embed(mut options: EmbedOptions) -> Result<ExitStatus> {
    if options.records.dry_run {
        append::estimate(&mut options.records)?;
        // What a run finds and leaves beside its output is not looked at.
        let RecordOptions { start, cache, stats, .. } = &mut options.records;
        (*start, *cache, *stats) = (StartMode::Fresh, None, None);
        return embed_records(&options)?();
    }
    let append = options.records.append.as_ref();
    let file = append.map(|append| Appended::open(&options.records, append)).transpose()?.flatten();
    let Some(file) = file else { return embed_records(&options)?() };
    file.redirect(&mut options.records)?;
    let report = embed_records(&options)?;
    file.finish(&options.records)?;
    report()
}

/// Embeds the records into the output, without a report.
fn embed_records(options: &EmbedOptions) -> Result<Report<'_>> {
    let TaskOptions { records, task: vectors } = options;
    let load = |console: &Console| load_embedding_or_sparse(&records.model, console);
    let outputs = &records.model.outputs;
    if !outputs.is_empty() {
        return write_rows(records, load, |loaded, console| {
            let task = OutputsEncoder::new(loaded, outputs, vectors, console)?;
            let mut resolved = of_dense(task.embedder());
            let names = outputs.iter().map(|output| output.name()).collect::<Vec<_>>();
            resolved.name("--outputs", Key::Outputs, names.join(","));
            Ok(Setup::in_order(task, resolved))
        });
    }
    write_rows(records, load, |loaded, console| {
        warn_of_int8(&records.model, &loaded, console);
        let task = TextEncoder::new(loaded, vectors, console)?;
        let resolved = resolved(&task);
        Ok(Setup::in_order(task, resolved))
    })
}

/// The resolved options that affect what an encoder makes of texts.
pub(super) fn resolved(encoder: &TextEncoder) -> ResolvedOptions {
    match encoder {
        TextEncoder::Dense(encoder) => of_dense(encoder),
        TextEncoder::Sparse(encoder) => of_sparse(encoder),
    }
}

/// The resolved options that affect sparse weights.
fn of_sparse(encoder: &SparseEncoder) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    resolved.name("--pooling", Key::Pooling, encoder.describe());
    resolved.text("--prompt", Key::Prompt, encoder.prompt());
    resolved.metadata_only(Key::Dimensions, encoder.dimensions);
    resolved.metadata_only(Key::Similarity, encoder.similarity.name());
    if let Some(role) = encoder.role() {
        resolved.name("--role", Key::Role, role.name());
    }
    resolved
}

/// The resolved options that affect vectors.
fn of_dense(embedder: &Embedder) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    resolved.name("--pooling", Key::Pooling, &embedder.pooling);
    resolved.flag("--normalize", Key::Normalized, embedder.is_normalized());
    resolved.name("--dimensions", Key::Dimensions, embedder.dimensions);
    resolved.text("--prompt", Key::Prompt, embedder.prompt());
    resolved.name("--output-dtype", Key::OutputDtype, embedder.dtype.name());
    resolved.metadata_only(Key::Similarity, embedder.similarity.name());
    if let Some(role) = embedder.role() {
        resolved.name("--role", Key::Role, role.name());
    }
    let factor = embedder.late_interaction.as_ref().map(LateInteraction::pooling_factor);
    if let Some(factor) = factor.filter(|factor| *factor > 1.0) {
        resolved.name("--token-pooling", Key::TokenPooling, factor);
    }
    resolved.extend(of_chunks(embedder.chunking));
    resolved
}
