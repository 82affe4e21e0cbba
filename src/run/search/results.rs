//! The rows of the output: the neighbours of each query, or one mean per query.

use anyhow::{Result, bail};
use serde_json::Value;

use super::queries::QueryColumns;
use super::weights::{number, weighted_mean};
use super::{SearchOptions, Searched, places};
use crate::error::UsageError;
use crate::formats::{TableFormat, TableWriter};
use crate::neighbours::Neighbour;
use crate::rows::columns::{
    CHUNK, END, END_LINE, FILE, ID, INDEX, LINE, NEIGHBOURS, QUERY, QUERY_ID, QUERY_TEXT, RANK, SCORE, START,
    VALUE, WEIGHT,
};
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::store::OutputLock;
use crate::vectors::VectorFile;

/// Columns of a vector file that locate a row, in the order in which they are shown.
const LOCATION: [&str; 7] = [INDEX, ID, CHUNK, START, END, LINE, END_LINE];
/// Columns that locate a chunk of a text.
const PLACE: [&str; 3] = [FILE, LINE, END_LINE];
/// Columns that a search adds.
const OWN: [&str; 5] = [QUERY, QUERY_ID, RANK, SCORE, WEIGHT];
/// Neighbours whose columns are read together.
const GROUP_NEIGHBOURS: usize = 1 << 14;

/// The columns of the vector file that the output has, by their indices in the file.
pub(super) struct ShownColumns {
    /// The columns of [`LOCATION`] that the file has.
    location: Vec<usize>,
    kept: Vec<usize>,
    /// The column of `--value-field`.
    value: Option<usize>,
}

impl ShownColumns {
    /// Finds the columns in the file.
    ///
    /// # Errors
    /// If the file does not have one, or has several of a name, or one has the name of a column that the
    /// search adds: a usage error.
    pub(super) fn new(options: &SearchOptions, file: &VectorFile) -> Result<Self> {
        let columns = file.columns();
        let find = |name: &str| columns.iter().position(|column| column.name == name);
        // Where rows are no chunks, `line` is a kept column.
        let location = match options.searched {
            Searched::Texts(_) => &PLACE[..],
            Searched::Vectors(_) if find(END_LINE).is_some() => &LOCATION[..],
            Searched::Vectors(_) => &LOCATION[..5],
        };
        let is_kept = |name: &str| !location.contains(&name);
        let kept = match &options.keep {
            Some(names) => {
                let names = names.iter().filter(|name| is_kept(name));
                names.map(|name| file.column(name, "--keep")).collect::<Result<Vec<_>>>()?
            }
            None => {
                let names = columns.iter().map(|column| column.name.as_str()).filter(|name| is_kept(name));
                names.map(|name| file.column(name, "--keep")).collect::<Result<Vec<_>>>()?
            }
        };
        let is_own = |name: &str| OWN.contains(&name) || options.query_text && name == QUERY_TEXT;
        if let Some(column) = kept.iter().find(|column| is_own(&columns[**column].name)) {
            let name = &columns[*column].name;
            bail!(UsageError(format!(
                "{} has a column {name}, which is also one of the search; choose other columns with --keep",
                file.name()
            )));
        }
        let value =
            options.value_field.as_ref().map(|field| file.column(field, "--value-field")).transpose()?;
        let location = location.iter().filter_map(|name| find(name)).collect();
        Ok(ShownColumns { location, kept, value })
    }
}

/// Writes the neighbours of all queries, or with `--value-field` their means.
pub(super) fn write(
    options: &SearchOptions,
    file: &VectorFile,
    lock: &OutputLock,
    shown: &ShownColumns,
    query_columns: &QueryColumns,
    found: Vec<Vec<Neighbour>>,
) -> Result<()> {
    if let (Some(texts), TableFormat::Text, None) = (options.searched.texts(), options.format, shown.value) {
        return places::write(options, texts, file, lock, &found);
    }
    let mut rows = Rows { options, file, shown, query_columns, queries: found.len(), writer: None, lock };
    let mut group: Vec<(usize, Vec<Neighbour>)> = Vec::new();
    let mut held = 0;
    for (query, neighbours) in found.into_iter().enumerate() {
        held += neighbours.len();
        group.push((query, neighbours));
        if held >= GROUP_NEIGHBOURS {
            rows.write_group(&std::mem::take(&mut group))?;
            held = 0;
        }
    }
    rows.write_group(&group)?;
    rows.writer.map_or(Ok(()), TableWriter::finish)
}

/// Writes rows group by group.
struct Rows<'a> {
    options: &'a SearchOptions,
    file: &'a VectorFile,
    lock: &'a OutputLock,
    shown: &'a ShownColumns,
    query_columns: &'a QueryColumns,
    queries: usize,
    /// Opened with the first group, whose values tell the types of columns without one.
    writer: Option<TableWriter<'a>>,
}

/// A column of the output with its values in a group.
type Column = (KeptColumn, Vec<FieldValue>);

impl Rows<'_> {
    fn write_group(&mut self, group: &[(usize, Vec<Neighbour>)]) -> Result<()> {
        let columns = match self.shown.value {
            Some(column) => self.means(group, column)?,
            None => self.neighbours(group)?,
        };
        if self.writer.is_none() {
            let schema = columns.iter().map(|(column, values)| match column.column_type {
                ColumnType::Text => {
                    let column_type = ColumnType::infer_from_fields(values.iter());
                    KeptColumn::new(&column.name, column_type)
                }
                _ => column.clone(),
            });
            self.writer = Some(TableWriter::open(self.lock, self.options.format, schema.collect())?);
        }
        let rows = columns.first().map_or(0, |(_, values)| values.len());
        let mut values: Vec<_> = columns.into_iter().map(|(_, values)| values.into_iter()).collect();
        for _ in 0..rows {
            let row = values.iter_mut().map(|column| column.next().unwrap_or_default()).collect();
            if let Some(writer) = &mut self.writer {
                writer.write(row)?;
            }
        }
        Ok(())
    }

    /// The rows of neighbours.
    fn neighbours(&self, group: &[(usize, Vec<Neighbour>)]) -> Result<Vec<Column>> {
        let all = || group.iter().flat_map(|(_, neighbours)| neighbours);
        let mut columns =
            self.query_columns(group.iter().flat_map(|(query, found)| found.iter().map(|_| *query)));
        let ranks = group.iter().flat_map(|(_, neighbours)| 0..neighbours.len());
        columns.push(integers(RANK, ranks));
        let scores = float(SCORE, all().map(|neighbour| neighbour.score.into()));
        let weights = self.options.weights.map(|weights| {
            let of_query = |(_, neighbours): &(usize, Vec<Neighbour>)| {
                let scores: Vec<f32> = neighbours.iter().map(|neighbour| neighbour.score).collect();
                weights.of_scores(&scores)
            };
            measures(WEIGHT, group.iter().flat_map(of_query).map(Some))
        });
        let (location, kept) = self.file_columns(all().map(|neighbour| neighbour.index))?;
        let measures = [scores].into_iter().chain(weights);
        if self.options.format == TableFormat::Text {
            // What matters most to people comes first.
            columns.extend(measures.chain(location).chain(kept));
        } else {
            columns.extend(location.into_iter().chain(measures).chain(kept));
        }
        Ok(columns)
    }

    /// One row per query: the weighted mean of a column.
    fn means(&self, group: &[(usize, Vec<Neighbour>)], column: usize) -> Result<Vec<Column>> {
        let field = &self.file.columns()[column].name;
        let rows =
            distinct(group.iter().flat_map(|(_, found)| found.iter().map(|neighbour| neighbour.index)));
        let values = self.file.values(&rows, &[column])?;
        let weights = self.options.weights.unwrap_or(super::NeighbourWeights::Uniform);
        let mut means = Vec::with_capacity(group.len());
        for (_, neighbours) in group {
            let of = |neighbour: &Neighbour| {
                let at = rows.partition_point(|row| *row < neighbour.index);
                number(field, neighbour.index, &values[at][0])
            };
            let values = neighbours.iter().map(of).collect::<Result<Vec<_>>>()?;
            let scores: Vec<f32> = neighbours.iter().map(|neighbour| neighbour.score).collect();
            means.push(weighted_mean(&weights.of_scores(&scores), &values));
        }
        let mut columns = self.query_columns(group.iter().map(|(query, _)| *query));
        columns.push(integers(NEIGHBOURS, group.iter().map(|(_, neighbours)| neighbours.len())));
        columns.push(measures(VALUE, means.into_iter()));
        Ok(columns)
    }

    /// The columns that name the query. Text for people has none if there is one query.
    fn query_columns(&self, queries: impl Iterator<Item = usize> + Clone) -> Vec<Column> {
        if self.options.format == TableFormat::Text && self.queries == 1 {
            return Vec::new();
        }
        let mut columns = vec![integers(QUERY, queries.clone())];
        let QueryColumns { ids, texts } = self.query_columns;
        if let Some(ids) = ids {
            let ids = queries.clone().map(|query| ids[query].clone().into()).collect();
            columns.push((KeptColumn::new(QUERY_ID, ColumnType::Text), ids));
        }
        if let Some(texts) = texts {
            let texts = queries.map(|query| Value::from(texts[query].as_str()).into()).collect();
            columns.push((KeptColumn::new(QUERY_TEXT, ColumnType::Text), texts));
        }
        columns
    }

    /// The columns of the file in these rows: those that locate the row, and the kept ones.
    fn file_columns(&self, rows: impl Iterator<Item = usize> + Clone) -> Result<(Vec<Column>, Vec<Column>)> {
        let ShownColumns { location, kept, .. } = self.shown;
        let indices = [&location[..], &kept[..]].concat();
        let wanted = distinct(rows.clone());
        let values = self.file.values(&wanted, &indices)?;
        let column = |at: usize| {
            let of_row = |row: usize| values[wanted.partition_point(|other| *other < row)][at].clone();
            (self.file.columns()[indices[at]].clone(), rows.clone().map(of_row).collect())
        };
        let mut location: Vec<Column> = (0..location.len()).map(column).collect();
        let is_text = self.options.searched.texts().is_some();
        if !is_text && location.first().is_none_or(|(column, _)| column.name != LOCATION[0]) {
            location.insert(0, integers(LOCATION[0], rows.clone()));
        }
        Ok((location, (self.shown.location.len()..indices.len()).map(column).collect()))
    }
}

/// Rows in ascending order, each once.
fn distinct(rows: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut rows: Vec<usize> = rows.collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn integers(name: &str, values: impl Iterator<Item = usize>) -> Column {
    let column = KeptColumn::new(name, ColumnType::Integer);
    (column, values.map(|value| Value::from(value).into()).collect())
}

/// A column of f64.
fn measures(name: &str, values: impl Iterator<Item = Option<f64>>) -> Column {
    let column = KeptColumn::new(name, ColumnType::Float);
    (column, values.map(|value| Value::from(value).into()).collect())
}

/// A column of f32.
fn float(name: &str, values: impl Iterator<Item = FieldValue>) -> Column {
    let values: Vec<FieldValue> = values.collect();
    // f32, also where a query has no neighbours.
    let column_type = ColumnType::infer_from_fields([FieldValue::from(0.0f32)].iter());
    (KeptColumn::new(name, column_type), values)
}
