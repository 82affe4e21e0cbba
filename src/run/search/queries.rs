//! The vectors of the queries: texts that a model embeds, or a file of vectors.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::Value;

use super::compatibility::{QueryModel, check_dimensions, check_kind, check_model, check_same_model};
use super::scan::Comparison;
use super::{Queries, SearchOptions};
use crate::error::UsageError;
use crate::model::modules::{Role, is_mean_max_sim};
use crate::named::Named;
use crate::neighbours::{Metric, rows_f32};
use crate::pipeline::{FileDigests, weights_digest};
use crate::run::query_texts::QueryTexts;
use crate::run::{embed, records::metadata};
use crate::task::{Embedder, Loaded, TextError, load};
use crate::vectors::VectorFile;

/// Rows of a file of query vectors that are read at a time.
const BLOCK_ROWS: usize = 1024;

/// The queries of a search.
pub(super) struct QueryVectors {
    /// One vector per query, or the vectors of its tokens, concatenated.
    pub vectors: Vec<Vec<f32>>,
    /// The ids of the queries, if they have any.
    pub ids: Option<Vec<Value>>,
    /// How they are compared with the rows of the file.
    pub comparison: Comparison,
}

/// Embeds or reads the queries, and checks that they can be compared with the vectors of the file.
pub(super) fn embed(options: &SearchOptions, file: &VectorFile) -> Result<QueryVectors> {
    let QueryTexts { texts, names, ids } = match &options.queries {
        Queries::Vectors(path) => return read(options, file, path),
        Queries::Texts(texts) => {
            let names = (1..=texts.len()).map(|i| format!("query {i}")).collect();
            QueryTexts { texts: texts.clone(), names, ids: None }
        }
        Queries::Files(sources, fields) => QueryTexts::read(sources, fields, "--text-field")?,
    };
    let loaded = load(&options.model, &options.console)?;
    let own_metadata = metadata::of_model(&options.model, &loaded);
    let digests =
        file.metadata().contains_key("weights_sha256").then(|| FileDigests::start(loaded.files.clone()));
    let prompts = loaded.modules.prompts.clone();
    let (embedder, has_chosen_prompt) = embedder(options, loaded)?;
    let comparison = match (&embedder.late_interaction, options.metric) {
        (Some(late_interaction), None) => Comparison::MaxSim { mean: late_interaction.is_mean() },
        (_, Some(metric)) => Comparison::Metric(metric),
        (None, None) => Comparison::Metric(embedder.metric()?),
    };
    let mut own_metadata = own_metadata;
    own_metadata.extend(metadata::of_task(&embedder));
    own_metadata.extend(embed::metadata(&embedder));
    let weights_sha256 = digests.map(FileDigests::finish).transpose()?.as_ref().and_then(weights_digest);
    let model = QueryModel {
        metadata: own_metadata,
        weights_sha256,
        embedder: &embedder,
        prompts: &prompts,
        has_chosen_prompt,
        comparison,
    };
    check_model(file, &model, &options.console)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embedded =
        embedder.embed_to_compare(&texts).map_err(|error| match error.downcast::<TextError>() {
            Ok(TextError { index, reason }) => {
                anyhow!("{} {reason}; shorten it, or pass --on-long truncate or mean", names[index])
            }
            Err(error) => error,
        })?;
    embedded.report(embedder.model.tokenizer.max_length(), &options.console);
    Ok(QueryVectors { vectors: embedded.vectors, ids, comparison })
}

/// The embedder of the queries, in the role of queries unless the user chose another role or prompt; and whether the user did.
fn embedder(options: &SearchOptions, loaded: Loaded) -> Result<(Embedder, bool)> {
    let mut vectors = options.query_vectors.clone();
    let has_chosen_prompt = vectors.prompt.is_some() || vectors.role.is_some();
    let has_query_prompt = loaded.modules.prompts.get(Role::Query.name()).is_some();
    if !has_chosen_prompt && (has_query_prompt || loaded.modules.multi_vector.is_some()) {
        vectors.role = Some(Role::Query);
    }
    Ok((Embedder::new(loaded, &vectors, &options.console)?, has_chosen_prompt))
}

/// Reads query vectors from a file.
fn read(options: &SearchOptions, file: &VectorFile, path: &Path) -> Result<QueryVectors> {
    let queries = VectorFile::open_any(path)?;
    check_kind(file, queries.is_per_token(), queries.name())?;
    check_dimensions(file, queries.dimensions(), &format!("those of {}", queries.name()))?;
    check_same_model(file, &queries)?;
    let mut vectors = Vec::with_capacity(queries.rows());
    let mut buffer = Vec::new();
    queries.for_each_block(0, BLOCK_ROWS, |block| {
        let rows = rows_f32(block, 0..block.rows, &mut buffer);
        if block.token_counts.is_empty() {
            vectors.extend(rows.chunks_exact(block.dimensions).map(<[f32]>::to_vec));
            return Ok(ControlFlow::Continue(()));
        }
        let mut rows = rows.chunks_exact(block.dimensions);
        let tokens = block.token_counts.iter();
        vectors
            .extend(tokens.map(|count| rows.by_ref().take(*count).flatten().copied().collect::<Vec<f32>>()));
        Ok(ControlFlow::Continue(()))
    })?;
    let id = queries.columns().iter().position(|column| column.name == "id");
    let rows: Vec<usize> = (0..queries.rows()).collect();
    let ids = match id {
        Some(id) => {
            Some(queries.values(&rows, &[id])?.iter().map(|row| row[0].json().into_owned()).collect())
        }
        None => None,
    };
    let comparison = match options.metric {
        Some(metric) => Comparison::Metric(metric),
        None if file.is_per_token() => Comparison::MaxSim {
            mean: file.metadata().get("similarity").is_some_and(|name| is_mean_max_sim(name)),
        },
        None => Comparison::Metric(metric_of(file)?),
    };
    Ok(QueryVectors { vectors, ids, comparison })
}

/// The metric that the metadata of a file names; cosine if it names none.
fn metric_of(file: &VectorFile) -> Result<Metric> {
    let Some(name) = file.metadata().get("similarity") else { return Ok(Metric::default()) };
    let metric = Metric::ALL.iter().find(|metric| metric.name() == name);
    metric.copied().ok_or_else(|| {
        UsageError(format!(
            "the similarity function of {} is {name}, which search does not support; pass --metric",
            file.name()
        ))
        .into()
    })
}
