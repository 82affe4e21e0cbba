//! `sconce rerank`: queries and texts → scores.

use anyhow::{Result, bail};

use super::query_texts::{QueryTexts, of_text, report};
use super::records::{RecordOptions, ResolvedOptions, Setup, of_chunks, of_scores, run};
use crate::error::UsageError;
use crate::formats;
use crate::input::{Fields, InputPath, Source};
use crate::job::{ExitStatus, Queries, QueryColumns, sha256_of_texts};
use crate::load::load_reranker;
use crate::rows::columns::{QUERY, QUERY_ID};
use crate::rows::metadata::Key;
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::store::Target;
use crate::sys::regular_file::is_same_file;
use crate::task::{PromptChoice, QueryOptions, Reranker, ScoreOptions};

/// The options of `sconce rerank`.
pub struct RerankOptions {
    /// The model, the texts and the output. The second text of a pair is the query of its record.
    pub records: RecordOptions,
    /// The queries of all texts.
    pub queries: RerankQueries,
    /// The prompt of a cross-encoder. `None`: the model's default prompt.
    pub prompt: Option<PromptChoice>,
    /// How texts are scored.
    pub scores: ScoreOptions,
    /// Sort the rows of each query by their scores and write only this many of the best. `None`: in the order
    /// of the input.
    pub top_k: Option<usize>,
}

/// The queries of `sconce rerank`.
pub enum RerankQueries {
    /// Each record has its own.
    OfRecords,
    /// One for all texts.
    One(String),
    /// Each query of these files, for all texts. Rows tell their query.
    Files(Vec<Source>, Fields),
}

/// The columns of the query of a row.
const QUERY_COLUMNS: [&str; 2] = [QUERY, QUERY_ID];

/// Runs `sconce rerank`.
///
/// # Errors
/// If the input, the queries, the model or the output fails. [`crate::job::Interrupted`] if the user
/// interrupts the run.
pub fn rerank(options: &RerankOptions) -> Result<ExitStatus> {
    let RerankOptions { records, scores, top_k, .. } = options;
    let queries = read_queries(options)?;
    run(
        records,
        |console| load_reranker(&records.model, console),
        |loaded, console| {
            let of_texts = QueryOptions { texts: queries.texts.clone(), prompt: options.prompt.clone() };
            let task = Reranker::new(loaded, *scores, &of_texts, top_k.is_some(), console)
                .map_err(|error| of_text(error, |i, reason| format!("{} {reason}", queries.names[i])))?;
            let mut resolved = of_scores(&task, scores.raw);
            resolved.extend(of_chunks(scores.chunking));
            resolved.extend(of_queries(options, &queries));
            resolved.identity_only("--prompt", format_args!("{:?}", task.prompt()));
            resolved.metadata_only(Key::Scores, task.score_name());
            let query_columns = match &options.queries {
                RerankQueries::Files(..) => columns(&queries, records),
                RerankQueries::OfRecords | RerankQueries::One(_) => QueryColumns::default(),
            };
            let queries = match task.embedded_queries() {
                // A text is encoded once for all queries.
                Some((queries, limit)) => {
                    report(queries, *limit, console);
                    Queries::default()
                }
                None => Queries { texts: queries.texts, of_records: true },
            };
            Ok(Setup { task, resolved, top_k: *top_k, queries, query_columns })
        },
    )
}

/// The queries of all texts: none if each record has its own.
fn read_queries(options: &RerankOptions) -> Result<QueryTexts> {
    let (sources, fields) = match &options.queries {
        RerankQueries::OfRecords => {
            return Ok(QueryTexts { texts: Vec::new(), names: Vec::new(), ids: None });
        }
        RerankQueries::One(query) => {
            return Ok(QueryTexts { texts: vec![query.clone()], names: vec!["--query".into()], ids: None });
        }
        RerankQueries::Files(sources, fields) => (sources, fields),
    };
    let output = match &options.records.output {
        Target::File(path) => Some(path),
        _ => None,
    };
    for source in sources {
        if let (InputPath::File(path), Some(output)) = (&source.path, output)
            && is_same_file(path, output)
        {
            bail!(UsageError(format!(
                "--output {} is also the file of --queries; choose another path",
                output.display()
            )));
        }
    }
    let mut kept = options.records.input.keep().iter().map(|kept| kept.output.as_str());
    if let Some(name) = kept.find(|name| QUERY_COLUMNS.contains(name)) {
        bail!(UsageError(formats::already_a_column(name)));
    }
    let queries = QueryTexts::read(sources, fields, "--query-field")?;
    if queries.texts.is_empty() {
        let names: Vec<String> = sources.iter().map(|source| source.path.to_string()).collect();
        bail!("--queries {}: the file has no queries; write one per line", names.join(" "));
    }
    Ok(queries)
}

/// The queries, and how many rows of each are written.
fn of_queries(options: &RerankOptions, queries: &QueryTexts) -> ResolvedOptions {
    let mut resolved = ResolvedOptions::default();
    match &options.queries {
        RerankQueries::OfRecords => resolved.identity_only("--query", "not given"),
        RerankQueries::One(query) => resolved.text("--query", Key::Query, query),
        RerankQueries::Files(..) => {
            let ids = queries.ids.iter().flatten().map(ToString::to_string);
            let texts: Vec<String> = queries.texts.iter().cloned().chain(ids).collect();
            resolved.identity_only("--queries", format_args!("SHA-256 {}", sha256_of_texts(&texts)));
        }
    }
    match options.top_k {
        None => resolved.identity_only("--top-k", "not given"),
        Some(usize::MAX) => resolved.identity_only("--top-k", 0),
        Some(top_k) => resolved.identity_only("--top-k", top_k),
    }
    resolved
}

/// The index and, if queries have ids, the id of the query of each row.
fn columns(queries: &QueryTexts, records: &RecordOptions) -> QueryColumns {
    let [index, id] = QUERY_COLUMNS.map(str::to_owned);
    let mut columns = vec![KeptColumn::new(index, ColumnType::Integer)];
    if let Some(ids) = &queries.ids {
        let column_type = ColumnType::infer(ids.iter()).for_format(records.format);
        columns.push(KeptColumn::new(id, column_type));
    }
    let values = (0..queries.texts.len()).map(|query| {
        let id = queries.ids.iter().map(|ids| FieldValue::from(ids[query].clone()));
        [FieldValue::from(serde_json::Value::from(query))].into_iter().chain(id).collect()
    });
    QueryColumns { columns, values: values.collect() }
}
