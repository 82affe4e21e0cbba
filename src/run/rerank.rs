//! `sconce rerank`: queries and texts → scores.

use anyhow::{Result, bail};

use super::query_texts::{QueryTexts, of_text, report};
use super::records::{RecordOptions, Setup, of_scores, run};
use crate::error::UsageError;
use crate::field::FieldValue;
use crate::input::{Fields, InputPath, Source};
use crate::job::{ExitStatus, Queries, QueryColumns, RunIdentity, sha256_of_texts};
use crate::load::load_reranker;
use crate::output::column_names::{QUERY, QUERY_ID};
use crate::output::{self, ColumnType, KeptColumn, OutputMetadata};
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
    /// Sort the rows of each query by their scores and write only this many of the best. `None`: in the order of the input.
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
/// If the input, the queries, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
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
            let mut identity = of_scores(&task, scores.raw);
            identity.extend(identity_of(options, &queries));
            identity.insert("--prompt".into(), format!("{:?}", task.prompt()));
            let mut metadata = OutputMetadata::from([("scores".into(), task.score_name())]);
            if let RerankQueries::One(query) = &options.queries {
                metadata.insert("query".into(), query.clone());
            }
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
            Ok(Setup { task, identity, metadata, top_k: *top_k, queries, query_columns })
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
        bail!(UsageError(output::already_a_column(name)));
    }
    let queries = QueryTexts::read(sources, fields, "--query-field")?;
    if queries.texts.is_empty() {
        let names: Vec<String> = sources.iter().map(|source| source.path.to_string()).collect();
        bail!("--queries {}: the file has no queries; write one per line", names.join(" "));
    }
    Ok(queries)
}

/// What must be the same for a run to resume another.
fn identity_of(options: &RerankOptions, queries: &QueryTexts) -> RunIdentity {
    let ids = queries.ids.iter().flatten().map(ToString::to_string);
    let texts: Vec<String> = queries.texts.iter().cloned().chain(ids).collect();
    let of_texts = || format!("SHA-256 {}", sha256_of_texts(&texts));
    let (option, value) = match &options.queries {
        RerankQueries::OfRecords => ("--query", "not given".into()),
        RerankQueries::One(query) => ("--query", format!("{query:?}")),
        RerankQueries::Files(..) => ("--queries", of_texts()),
    };
    let top_k = match options.top_k {
        None => "not given".into(),
        Some(usize::MAX) => "0".into(),
        Some(top_k) => top_k.to_string(),
    };
    RunIdentity::from([(option.into(), value), ("--top-k".into(), top_k)])
}

/// The index and, if queries have ids, the id of the query of each row.
fn columns(queries: &QueryTexts, records: &RecordOptions) -> QueryColumns {
    let [index, id] = QUERY_COLUMNS.map(str::to_owned);
    let mut columns = vec![KeptColumn { name: index, column_type: ColumnType::Integer }];
    if let Some(ids) = &queries.ids {
        let column_type = ColumnType::infer(ids.iter()).for_format(records.format);
        columns.push(KeptColumn { name: id, column_type });
    }
    let values = (0..queries.texts.len()).map(|query| {
        let id = queries.ids.iter().map(|ids| FieldValue::from(ids[query].clone()));
        [FieldValue::from(serde_json::Value::from(query))].into_iter().chain(id).collect()
    });
    QueryColumns { columns, values: values.collect() }
}
