//! The vectors of the queries: texts that a model embeds, or a file of vectors.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::compatibility::{QueryModel, check_dimensions, check_kinds, check_model, check_same_model};
use super::scan::Comparison;
use super::{Queries, SearchOptions};
use crate::engine::TaskInput;
use crate::error::UsageError;
use crate::job::{FileDigests, weights_digest};
use crate::model::modules::{Role, is_mean_max_sim};
use crate::named::Named;
use crate::neighbours::{Elements, Metric, rows_f32};
use crate::output::SparseVector;
use crate::run::query_texts::{QueryTexts, of_text, report};
use crate::run::{embed, records::metadata};
use crate::store::ReadFiles;
use crate::sys::console::counted;
use crate::task::{
    EmbeddedTexts, Loaded, ModelTask, TextEncoder, TextVector, engine, load_embedding_or_sparse,
};
use crate::vectors::{RowKind, TokenNumbers, VectorFile};

/// Rows of a file of query vectors that are read at a time.
const BLOCK_ROWS: usize = 1024;

/// The queries of a search.
pub(super) struct QueryVectors {
    /// The vector of each query.
    pub vectors: Vec<TextVector>,
    /// The ids of the queries, if they have any.
    pub ids: Option<Vec<Value>>,
    /// How they are compared with the rows of the file.
    pub comparison: Comparison,
    /// The files of the model that embedded them.
    pub read: ReadFiles,
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
    let loaded = load_embedding_or_sparse(&options.model, &options.console)?;
    let read = loaded.read_files();
    let own_metadata = metadata::of_model(&options.model, &loaded);
    let digests =
        file.metadata().contains_key("weights_sha256").then(|| FileDigests::start(loaded.files.clone()));
    let prompts = loaded.modules.prompts.clone();
    let (encoder, has_chosen_prompt) = encoder(options, loaded)?;
    let comparison = comparison(&encoder, options.metric)?;
    let mut own_metadata = own_metadata;
    own_metadata.extend(metadata::of_task(&encoder));
    own_metadata.extend(embed::metadata_of(&encoder));
    let weights_sha256 = digests.map(FileDigests::finish).transpose()?.as_ref().and_then(weights_digest);
    let model = QueryModel {
        metadata: own_metadata,
        weights_sha256,
        encoder: &encoder,
        prompts: &prompts,
        has_chosen_prompt,
        comparison,
    };
    check_model(file, &model, &options.console)?;
    let engine = engine(encoder)?;
    let texts: Vec<TaskInput> = texts.iter().map(|text| TaskInput::new(text)).collect();
    let unencoded =
        |i: usize, reason| format!("{} {reason}; shorten it, or pass --on-long truncate or mean", names[i]);
    let embedded = EmbeddedTexts::embed(&engine, &texts).map_err(|error| of_text(error, unencoded))?;
    report(&embedded, engine.task().model().tokenizer.max_length(), &options.console);
    Ok(QueryVectors { vectors: embedded.vectors, ids, comparison, read })
}

/// How the queries of a model are compared with the rows of the file.
fn comparison(encoder: &TextEncoder, metric: Option<Metric>) -> Result<Comparison> {
    let embedder = match encoder {
        TextEncoder::Dense(embedder) => embedder,
        TextEncoder::Sparse(encoder) => {
            return sparse_comparison(encoder.similarity_name(), metric);
        }
    };
    Ok(match (&embedder.late_interaction, metric) {
        (Some(late_interaction), None) => Comparison::MaxSim { mean: late_interaction.is_mean() },
        (_, Some(metric)) => Comparison::Metric(metric),
        (None, None) => Comparison::Metric(embedder.metric()?),
    })
}

/// How sparse vectors are compared that have this similarity function: by the dot product, which the user may choose.
///
/// # Errors
/// If it is another function, and the user did not choose: a usage error.
fn sparse_comparison(similarity: &str, metric: Option<Metric>) -> Result<Comparison> {
    if metric.is_none() && similarity != Metric::Dot.name() {
        bail!(UsageError(format!(
            "the similarity function of the sparse vectors is {similarity}, which search does not support; pass --metric dot"
        )))
    }
    Ok(Comparison::SparseDot)
}

/// The encoder of the queries, in the role of queries unless the user chose another role or prompt; and whether the user did.
fn encoder(options: &SearchOptions, loaded: Loaded) -> Result<(TextEncoder, bool)> {
    let mut vectors = options.query_vectors.clone();
    let has_chosen_prompt = vectors.prompt.is_some() || vectors.role.is_some();
    let has_query_prompt = loaded.modules.prompts.get(Role::Query.name()).is_some();
    let has_query_modules = loaded.modules.multi_vector.is_some()
        || loaded.static_queries.is_some()
        || loaded.modules.role_lengths.iter().any(Option::is_some);
    if !has_chosen_prompt && (has_query_prompt || has_query_modules) {
        vectors.role = Some(Role::Query);
    }
    Ok((TextEncoder::new(loaded, &vectors, &options.console)?, has_chosen_prompt))
}

/// Reads query vectors from a file.
fn read(options: &SearchOptions, file: &VectorFile, path: &Path) -> Result<QueryVectors> {
    let queries = VectorFile::open_any(path, options.other_vector_field())?;
    check_kinds(file, &queries)?;
    check_dimensions(file, queries.dimensions(), &format!("those of {}", queries.name()))?;
    check_same_model(file, &queries)?;
    let vectors = if queries.kind().is_sparse() { read_sparse(&queries)? } else { read_dense(&queries)? };
    check_complete(&queries, vectors.len())?;
    let id = queries.columns().iter().position(|column| column.name == "id");
    let rows: Vec<usize> = (0..queries.rows()).collect();
    let ids = match id {
        Some(id) => {
            Some(queries.values(&rows, &[id])?.iter().map(|row| row[0].json().into_owned()).collect())
        }
        None => None,
    };
    let comparison = match options.metric {
        metric if file.kind().is_sparse() => sparse_comparison(
            file.metadata().get("similarity").map_or(Metric::Dot.name(), String::as_str),
            metric,
        )?,
        Some(metric) => Comparison::Metric(metric),
        None if file.kind() == RowKind::PerToken => Comparison::MaxSim {
            mean: file.metadata().get("similarity").is_some_and(|name| is_mean_max_sim(name)),
        },
        None => Comparison::Metric(file.metric()?),
    };
    Ok(QueryVectors { vectors, ids, comparison, read: ReadFiles::default() })
}

/// Checks that each row has a vector.
fn check_complete(file: &VectorFile, vectors: usize) -> Result<()> {
    match file.rows() - vectors {
        0 => Ok(()),
        missing => {
            bail!("{} of {} have no vector (null); remove them", counted(missing as u64, "row"), file.name())
        }
    }
}

/// Reads dense vectors, those of the tokens of a row concatenated.
fn read_dense(file: &VectorFile) -> Result<Vec<TextVector>> {
    let mut vectors = Vec::with_capacity(file.rows());
    let mut buffer = Vec::new();
    file.for_each_block(0, BLOCK_ROWS, |block| {
        let mut rows = rows_f32(block, 0..block.rows, &mut buffer).chunks_exact(block.dimensions);
        let one_each = vec![1; if block.lengths.is_empty() { block.rows } else { 0 }];
        for count in block.lengths.iter().chain(&one_each) {
            vectors.push(TextVector::Dense(rows.by_ref().take(*count).flatten().copied().collect()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(vectors)
}

/// Reads sparse vectors, with the tokens of their elements if the file has them.
fn read_sparse(file: &VectorFile) -> Result<Vec<TextVector>> {
    let mut vectors = Vec::with_capacity(file.rows());
    file.for_each_block(0, BLOCK_ROWS, |block| {
        let Elements::Sparse { mut indices, mut values } = block.elements else {
            bail!("rows are not sparse")
        };
        let names = file.token_numbers().map(TokenNumbers::tokens).unwrap_or_default();
        for length in block.lengths {
            let (row, weights) = (&indices[..*length], &values[..*length]);
            (indices, values) = (&indices[*length..], &values[*length..]);
            let tokens = row.iter().filter_map(|index| names.get(*index as usize).cloned()).collect();
            vectors.push(TextVector::Sparse(SparseVector {
                indices: row.into(),
                values: weights.into(),
                tokens,
            }));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(vectors)
}
