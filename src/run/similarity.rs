//! `sconce similarity`: the similarities of a few texts.

use std::io::{self, BufWriter, Write};

use anyhow::{Result, bail};
use rayon::prelude::*;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::print_table;
use super::query_texts::report;
use crate::engine::TaskInput;
use crate::error::UsageError;
use crate::formats::TableFormat;
use crate::load::{ModelOptions, load_embedding_or_sparse};
use crate::named::Named;
use crate::neighbours::{Compared, Encoded, Similarity};
use crate::rows::columns::{PAIR, SCORE};
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::store::{print, print_with};
use crate::sys::console::Console;
use crate::task::{EmbeddedTexts, ModelTask, TextEncoder, VectorOptions, engine};

/// Texts that a thread compares with a text at a time.
const MIN_COLUMNS: usize = 64;

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

/// The JSON object of `--json`, whose rows are computed as they are written.
#[derive(Serialize)]
struct Object<'a> {
    /// The name of the similarity function.
    metric: &'a str,
    /// Encoded tokens of each text.
    tokens: &'a [usize],
    /// Whether each text was truncated.
    truncated: Vec<bool>,
    /// A row and a column per text.
    similarities: &'a Matrix<'a>,
}

/// The similarities of all texts with all others, computed row by row.
struct Matrix<'a> {
    /// The texts of the rows.
    compared: Vec<Compared>,
    /// Those of the columns.
    vectors: &'a [Encoded],
}

impl Matrix<'_> {
    /// The similarities of text `a` with the texts from `first` on.
    fn row(&self, a: usize, first: usize) -> Vec<f32> {
        let columns = self.vectors[first..].par_iter().with_min_len(MIN_COLUMNS);
        // All are represented by the same.
        columns.map(|b| self.compared[a].score(b).unwrap_or(f32::NAN)).collect()
    }
}

impl Serialize for Matrix<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.compared.len()).map(|a| self.row(a, 0)))
    }
}

/// Embeds the texts and prints their similarities.
pub fn similarity(options: &SimilarityOptions) -> Result<()> {
    let console = &options.console;
    let loaded = load_embedding_or_sparse(&options.model, console)?;
    let mut encoder = TextEncoder::new(loaded, &options.vectors, console)?;
    let own_name = encoder.similarity().name();
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
    let metric = encoder.similarity().name();
    let vectors = &embedded.vectors;
    let compared = vectors.iter().map(|vector| encoder.compared(vector.clone())).collect::<Result<_>>()?;
    let matrix = Matrix { compared, vectors };
    match options.style {
        Style::Json => {
            let object = Object {
                metric,
                tokens: &embedded.tokens,
                truncated: embedded.truncated_tokens.iter().map(|removed| *removed > 0).collect(),
                similarities: &matrix,
            };
            print_with(|| {
                let mut stdout = BufWriter::new(io::stdout().lock());
                serde_json::to_writer(&mut stdout, &object)?;
                stdout.write_all(b"\n")?;
                stdout.flush()
            })
        }
        Style::Table(TableFormat::Text) if texts.len() == 2 => {
            print(format!("{:.6}\n", matrix.row(0, 1)[0]).as_bytes())
        }
        Style::Table(TableFormat::Text) => print_matrix(&options.texts, &matrix),
        Style::Table(format) => print_pairs(format, &matrix),
    }
}

/// Prints the matrix with a column per text, and each text at the end of its row.
fn print_matrix(texts: &[String], matrix: &Matrix) -> Result<()> {
    let scores = (1..=texts.len()).map(|number| KeptColumn::new(number.to_string(), ColumnType::Float));
    let columns = [KeptColumn::new("", ColumnType::Integer)].into_iter().chain(scores);
    let columns = columns.chain([KeptColumn::new("text", ColumnType::Text)]).collect();
    let row = |(a, text): (usize, &String)| {
        let scores = matrix.row(a, 0).into_iter().map(FieldValue::from);
        let first = FieldValue::from(json!(a + 1));
        [first].into_iter().chain(scores).chain([json!(text).into()]).collect()
    };
    print_table(TableFormat::Text, columns, || texts.iter().enumerate().map(row))
}

/// Prints a row for each pair of texts.
fn print_pairs(format: TableFormat, matrix: &Matrix) -> Result<()> {
    let [a, b] = PAIR.map(|name| KeptColumn::new(name, ColumnType::Integer));
    let columns = vec![a, b, KeptColumn::new(SCORE, ColumnType::Float)];
    let pairs_of = |a: usize| {
        let others = matrix.row(a, a + 1).into_iter().zip(a + 1..);
        others.map(move |(score, b)| vec![json!(a).into(), json!(b).into(), FieldValue::from(score)])
    };
    print_table(format, columns, || (0..matrix.vectors.len()).flat_map(pairs_of))
}
