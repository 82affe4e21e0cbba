//! The vectors of the queries: texts that a model embeds, or a file of vectors.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::compatibility::{QueryModel, check_dimensions, check_kinds, check_model, check_same_model};
use super::{Queries, SearchOptions};
use crate::engine::TaskInput;
use crate::error::UsageError;
use crate::job::{FileDigests, weights_digest};
use crate::load::{Loaded, load_embedding_or_sparse};
use crate::model::modules::Role;
use crate::named::Named;
use crate::neighbours::{Elements, Encoded, Metric, Representation, Similarity, SparseVector, rows_f32};
use crate::rows::metadata::Key;
use crate::run::query_texts::{QueryTexts, of_text, report};
use crate::run::{embed, records::resolved};
use crate::store::ReadFiles;
use crate::sys::console::counted;
use crate::task::{EmbeddedTexts, ModelTask, TextEncoder, engine};
use crate::vectors::{TokenNumbers, VectorFile};

/// Rows of a file of query vectors that are read at a time.
const BLOCK_ROWS: usize = 1024;

/// The queries of a search.
pub(super) struct QueryVectors {
    /// The vector of each query.
    pub vectors: Vec<Encoded>,
    /// The columns of the output that say which query a row is of, beside its index.
    pub columns: QueryColumns,
    /// How they are compared with the rows of the file.
    pub similarity: Similarity,
    /// The files of the model that embedded them.
    pub read: ReadFiles,
}

/// What rows say of their query, beside its index.
pub(super) struct QueryColumns {
    /// The id of each query, if they have any.
    pub ids: Option<Vec<Value>>,
    /// The text of each query, if rows have it.
    pub texts: Option<Vec<String>>,
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
    if texts.is_empty() {
        options.console.note(
            "no queries: pass one after the paths, or one per line on standard input; a word that is a path is searched",
        );
    }
    let loaded = load_embedding_or_sparse(&options.model, &options.console)?;
    let read = loaded.origin.read_files();
    let mut resolved = resolved::of_model(&options.model, &loaded);
    let digests =
        file.metadata().has(Key::WeightsSha256).then(|| FileDigests::start(loaded.origin.files.clone()));
    let prompts = loaded.modules.prompts.clone();
    let (encoder, has_chosen_prompt) = encoder(options, loaded)?;
    let own = encoder.similarity().name();
    let similarity = similarity(options.metric, encoder.representation(), Some(own), "the model")?;
    resolved.extend(resolved::of_task(&encoder));
    resolved.extend(embed::resolved(&encoder));
    let weights_sha256 = digests.map(FileDigests::finish).transpose()?.as_ref().and_then(weights_digest);
    let model = QueryModel {
        metadata: resolved.metadata(),
        weights_sha256,
        encoder: &encoder,
        prompts: &prompts,
        has_chosen_prompt,
        similarity,
    };
    check_model(file, &model, &options.console)?;
    let engine = engine(encoder)?;
    let inputs: Vec<TaskInput> = texts.iter().map(|text| TaskInput::new(text)).collect();
    let unencoded =
        |i: usize, reason| format!("{} {reason}; shorten it, or pass --on-long truncate or mean", names[i]);
    let embedded = EmbeddedTexts::embed(&engine, &inputs).map_err(|error| of_text(error, unencoded))?;
    report(&embedded, engine.task().model().tokenizer.max_length(), &options.console);
    let columns = QueryColumns { ids, texts: options.query_text.then_some(texts) };
    Ok(QueryVectors { vectors: embedded.vectors, columns, similarity, read })
}

/// How queries are compared: by the metric that the user chose, or else as their own files say.
///
/// # Errors
/// If that is a similarity function which nearest neighbours do not support: a usage error.
fn similarity(
    metric: Option<Metric>,
    representation: Representation,
    own: Option<&str>,
    whose: &str,
) -> Result<Similarity> {
    if let Some(metric) = metric {
        return Ok(metric.into());
    }
    let named = own.and_then(Similarity::from_name);
    let (found, remedy) = match representation {
        Representation::PerToken => {
            let mean = named.filter(|similarity| *similarity == Similarity::MeanMaxSim);
            return Ok(mean.unwrap_or(Similarity::MaxSim));
        }
        Representation::Dense => (named.filter(|similarity| similarity.metric().is_some()), "--metric"),
        Representation::Sparse => (named.filter(|similarity| *similarity == Similarity::Dot), "--metric dot"),
    };
    match (found, own) {
        (Some(similarity), _) => Ok(similarity),
        (None, None) if representation == Representation::Sparse => Ok(Similarity::Dot),
        (None, None) => Ok(Similarity::default()),
        (None, Some(own)) => bail!(UsageError(format!(
            "the similarity function of {whose} is {own}, which search does not support; pass {remedy}"
        ))),
    }
}

/// The encoder of the queries, in the role of queries unless the user chose another role or prompt; and
/// whether the user did.
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
    let vectors = match queries.representation() {
        Representation::Sparse => read_sparse(&queries)?,
        Representation::Dense => read_dense(&queries, Encoded::Dense)?,
        Representation::PerToken => read_dense(&queries, Encoded::PerToken)?,
    };
    check_complete(&queries, vectors.len())?;
    let rows: Vec<usize> = (0..queries.rows()).collect();
    let ids = match queries.id_column() {
        Some(id) => {
            Some(queries.values(&rows, &[id])?.iter().map(|row| row[0].json().into_owned()).collect())
        }
        None => None,
    };
    let own = file.metadata().get(Key::Similarity);
    let similarity = similarity(options.metric, file.representation(), own, file.name())?;
    let columns = QueryColumns { ids, texts: None };
    Ok(QueryVectors { vectors, columns, similarity, read: ReadFiles::default() })
}

/// Checks that each row has a vector.
fn check_complete(file: &VectorFile, vectors: usize) -> Result<()> {
    match file.rows() - vectors {
        0 => Ok(()),
        missing => {
            let (have, them) = if missing == 1 { ("has", "it") } else { ("have", "them") };
            let rows = counted(missing as u64, "row");
            bail!("{rows} of {} {have} no vector (null); remove {them}", file.name())
        }
    }
}

/// Reads dense vectors, those of the tokens of a row concatenated.
fn read_dense(file: &VectorFile, encoded: fn(Vec<f32>) -> Encoded) -> Result<Vec<Encoded>> {
    let mut vectors = Vec::with_capacity(file.rows());
    let mut buffer = Vec::new();
    file.for_each_block(0, BLOCK_ROWS, |block| {
        let mut rows = rows_f32(block, 0..block.rows, &mut buffer).chunks_exact(block.dimensions);
        let one_each = vec![1; if block.lengths.is_empty() { block.rows } else { 0 }];
        for count in block.lengths.iter().chain(&one_each) {
            vectors.push(encoded(rows.by_ref().take(*count).flatten().copied().collect()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(vectors)
}

/// Reads sparse vectors, with the tokens of their elements if the file has them.
fn read_sparse(file: &VectorFile) -> Result<Vec<Encoded>> {
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
            vectors.push(Encoded::Sparse(SparseVector {
                indices: row.into(),
                values: weights.into(),
                tokens,
            }));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::{Metric, Representation, Similarity, similarity};

    #[test]
    fn queries_are_compared_as_the_user_or_the_model_says() {
        use Representation::{Dense, PerToken, Sparse};
        for (metric, representation, own, expected) in [
            (None, Dense, None, Ok(Similarity::Cosine)),
            (None, Dense, Some("euclidean"), Ok(Similarity::Euclidean)),
            (Some(Metric::Dot), Dense, Some("manhattan"), Ok(Similarity::Dot)),
            (
                None,
                Dense,
                Some("manhattan"),
                Err("the model is manhattan, which search does not support; pass --metric"),
            ),
            (None, Dense, Some("other"), Err("the model is other")),
            (None, Sparse, None, Ok(Similarity::Dot)),
            (
                None,
                Sparse,
                Some("cosine"),
                Err("the model is cosine, which search does not support; pass --metric dot"),
            ),
            (Some(Metric::Dot), Sparse, Some("cosine"), Ok(Similarity::Dot)),
            (None, PerToken, None, Ok(Similarity::MaxSim)),
            (None, PerToken, Some("meanmaxsim"), Ok(Similarity::MeanMaxSim)),
        ] {
            match (similarity(metric, representation, own, "the model"), expected) {
                (Ok(found), expected) => assert_eq!(Ok(found), expected, "{representation:?} {own:?}"),
                (Err(error), Err(sentence)) => assert!(error.to_string().contains(sentence), "{error}"),
                (Err(error), Ok(_)) => panic!("{error}"),
            }
        }
    }
}
