//! `sconce similarity`: the similarities of a few texts.

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;

use super::query_texts::report;
use crate::engine::TaskInput;
use crate::error::UsageError;
use crate::field::FieldValue;
use crate::model::modules::Similarity;
use crate::named::Named;
use crate::output::{ColumnType, KeptColumn, OutputLock, ReadFiles, TableFormat, TableWriter, Target, print};
use crate::sys::console::Console;
use crate::task::{
    EmbeddedTexts, ModelOptions, ModelTask, TextEncoder, TextVector, VectorOptions, engine,
    load_embedding_or_sparse,
};

/// The options of `sconce similarity`.
pub struct SimilarityOptions {
    /// The model.
    pub model: ModelOptions,
    /// How texts become vectors.
    pub vectors: VectorOptions,
    /// Two texts or more.
    pub texts: Vec<String>,
    /// The similarity function. `None`: the model's own.
    pub metric: Option<Similarity>,
    /// How the similarities are printed.
    pub style: Style,
    /// Standard error.
    pub console: Console,
}

/// How similarities are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A JSON object with the matrix of all similarities.
    Json,
    /// As text: one number for two texts, or the matrix. In other formats: a row per pair of texts.
    Table(TableFormat),
}

/// The JSON object of `--json`.
#[derive(Serialize)]
struct Object<'a> {
    /// The name of the similarity function.
    metric: &'a str,
    /// Encoded tokens of each text.
    tokens: &'a [usize],
    /// Whether each text was truncated.
    truncated: Vec<bool>,
    /// A row and a column per text.
    similarities: &'a [Vec<f32>],
}

/// Embeds the texts and prints their similarities.
///
/// # Errors
/// If the model cannot be loaded, a text has no vector, or standard output cannot be written.
pub fn similarity(options: &SimilarityOptions) -> Result<()> {
    let console = &options.console;
    let loaded = load_embedding_or_sparse(&options.model, console)?;
    let mut encoder = TextEncoder::new(loaded, &options.vectors, console)?;
    let own_name = encoder.similarity_name();
    if let Some(metric) = options.metric
        && !encoder.set_similarity(metric)
    {
        bail!(UsageError(format!(
            "--metric {}: a multi-vector model compares by {own_name}; leave the option out",
            metric.name()
        )))
    }
    let engine = engine(encoder)?;
    let encoder = engine.task();
    let texts: Vec<TaskInput> = options.texts.iter().map(|text| TaskInput::new(text)).collect();
    let embedded = EmbeddedTexts::embed(&engine, &texts)?;
    report(&embedded, encoder.model().tokenizer.max_length(), console);
    let metric = encoder.similarity_name();
    let vectors = &embedded.vectors;
    let row = |a: &TextVector| {
        let a = encoder.compared(a.clone())?;
        Ok(vectors.iter().map(|b| a.similarity(b)).collect())
    };
    let matrix: Vec<Vec<f32>> = vectors.iter().map(row).collect::<Result<_>>()?;
    match options.style {
        Style::Json => {
            let object = Object {
                metric,
                tokens: &embedded.tokens,
                truncated: embedded.truncated_tokens.iter().map(|removed| *removed > 0).collect(),
                similarities: &matrix,
            };
            print(format!("{}\n", serde_json::to_string(&object)?).as_bytes())
        }
        Style::Table(TableFormat::Text) if texts.len() == 2 => {
            print(format!("{:.6}\n", matrix[0][1]).as_bytes())
        }
        Style::Table(TableFormat::Text) => print_matrix(&options.texts, &matrix),
        Style::Table(format) => print_pairs(format, &matrix),
    }
}

/// Prints the matrix with a column per text, and each text at the end of its row.
fn print_matrix(texts: &[String], matrix: &[Vec<f32>]) -> Result<()> {
    let scores = (1..=texts.len()).map(|number| column(&number.to_string(), ColumnType::Float));
    let columns = [column("", ColumnType::Integer)].into_iter().chain(scores);
    let columns = columns.chain([column("text", ColumnType::Text)]).collect();
    let rows = texts.iter().zip(matrix).zip(1..).map(|((text, scores), number)| {
        let scores = scores.iter().map(|score| FieldValue::from(*score));
        let first = FieldValue::from(json!(number));
        [first].into_iter().chain(scores).chain([json!(text).into()]).collect()
    });
    print_table(TableFormat::Text, columns, rows)
}

/// Prints a row for each pair of texts.
fn print_pairs(format: TableFormat, matrix: &[Vec<f32>]) -> Result<()> {
    let columns = [("a", ColumnType::Integer), ("b", ColumnType::Integer), ("score", ColumnType::Float)];
    let columns = columns.map(|(name, column_type)| column(name, column_type)).into();
    let rows = matrix.iter().enumerate().flat_map(|(a, scores)| {
        let others = scores.iter().enumerate().skip(a + 1);
        others.map(move |(b, score)| vec![json!(a).into(), json!(b).into(), FieldValue::from(*score)])
    });
    print_table(format, columns, rows)
}

fn print_table(
    format: TableFormat,
    columns: Vec<KeptColumn>,
    mut rows: impl Iterator<Item = Vec<FieldValue>>,
) -> Result<()> {
    let lock = OutputLock::acquire(&Target::Stdout)?.check("--output", &ReadFiles::default())?;
    let mut table = TableWriter::open(&lock, format, columns)?;
    rows.try_for_each(|row| table.write(row))?;
    table.finish()
}

fn column(name: &str, column_type: ColumnType) -> KeptColumn {
    KeptColumn { name: name.into(), column_type }
}
