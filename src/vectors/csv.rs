//! CSV: the elements of a vector in the columns `e0`, `e1` and so on, or in one column, as a JSON list; and
//! for int8 its `scale`.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::batch::is_shown;
use super::buffer::BlockBuffer;
use super::choice::{Candidate, Held, VectorField};
use super::error::wrong_width;
use super::records::Records;
use super::source::Opened;
use super::width::checked_width;
use crate::formats::VisitRow;
use crate::formats::csv::{CsvFile, CsvStart, Row};
use crate::formats::error::unread;
use crate::neighbours::{Block, Representation};
use crate::rows::columns::{EMBEDDING, SCALE, element};
use crate::rows::{ColumnType, FieldValue, KeptColumn, OutputDtype};

/// Vectors whose elements tell whether a file without scales holds signs.
const EXAMINED_VECTORS: usize = 64;

/// An indexed file.
struct CsvVectors {
    name: Arc<str>,
    file: CsvFile,
    dtype: OutputDtype,
    dimensions: usize,
    layout: Layout,
    /// The column of the scales.
    scale: Option<usize>,
    columns: Vec<KeptColumn>,
    /// The position of each of [`CsvVectors::columns`] in a record.
    positions: Vec<usize>,
}

/// The columns of the vectors.
#[derive(Clone)]
enum Layout {
    /// An element in each of these columns.
    Elements(Range<usize>),
    /// A list of numbers in this column.
    List(usize),
}

impl Layout {
    /// The columns of a file; `None` if it has no vectors.
    fn find(name: &str, field: VectorField, start: &CsvStart) -> Result<Option<Self>> {
        let header = &start.header;
        if !matches!(field, VectorField::Named(_))
            && let Some(first) = header.iter().position(|column| *column == element(0))
        {
            let is_element = |(i, column): &(usize, &String)| **column == element(*i);
            let width = header.iter().skip(first).enumerate().take_while(is_element).count();
            return Ok(Some(Layout::Elements(first..first + width)));
        }
        let first = start.first();
        let list = |row: &Row, i: usize| row.get(i).and_then(parse_list::<f32>);
        let own = header.iter().position(|column| column == EMBEDDING).and_then(|i| list(first, i));
        // The vector of the first row may be null: a column that is empty there holds what a later row has.
        let is_empty = |i: &usize| first.get(*i).is_some_and(|field| field.trim_ascii().is_empty());
        let empty: Vec<usize> = (0..header.len()).filter(is_empty).collect();
        let is_known = own.is_some() || empty.is_empty() || matches!(field, VectorField::Named(_));
        let found = if is_known {
            None
        } else {
            start.find_row(|row| empty.iter().any(|i| list(row, *i).is_some())).ok().flatten()
        };
        let candidate = |(i, name): (usize, &String)| {
            let list = list(first, i).or_else(|| list(found.as_ref()?, i).filter(|_| empty.contains(&i)));
            let (held, type_name) = match list {
                Some(list) => (Held::Vectors, format!("list of {}", list.len())),
                None => (Held::Other, "text".into()),
            };
            Candidate { name: name.clone(), type_name, held }
        };
        let candidates: Vec<Candidate> = header.iter().enumerate().map(candidate).collect();
        let has_vectors = candidates.iter().any(|candidate| candidate.held == Held::Vectors);
        if !has_vectors && !matches!(field, VectorField::Named(_)) {
            return Ok(None);
        }
        Ok(Some(Layout::List(field.find(name, "column", &[EMBEDDING], &candidates)?)))
    }

    fn has(&self, column: usize) -> bool {
        match self {
            Layout::Elements(columns) => columns.contains(&column),
            Layout::List(list) => *list == column,
        }
    }

    /// Whether a row has a vector. Null is an empty field in all of its columns.
    fn has_vector(&self, row: &Row) -> bool {
        match self {
            Layout::Elements(columns) => {
                !columns.clone().all(|column| row.get(column).is_some_and(<[u8]>::is_empty))
            }
            Layout::List(column) => !row.get(*column).unwrap_or_default().trim_ascii().is_empty(),
        }
    }

    /// The width of the vector of a row, or 0 if it is malformed, and whether all elements are integers of 8
    /// bits.
    fn examine(&self, row: &Row) -> (usize, bool) {
        match self {
            Layout::Elements(columns) => {
                let mut fields = row.iter().skip(columns.start).take(columns.len());
                (columns.len(), fields.all(|field| parse::<i8>(field).is_some()))
            }
            Layout::List(column) => {
                let field = row.get(*column).unwrap_or_default();
                let integers = parse_list::<i8>(field).map(|list| list.len());
                let width = integers.or_else(|| parse_list::<f32>(field).map(|list| list.len()));
                (width.unwrap_or(0), integers.is_some())
            }
        }
    }
}

/// Reads the header and finds the rows; `None` if no column is that of vectors.
pub(super) fn open(path: &Path, name: &Arc<str>, field: VectorField) -> Result<Option<Opened>> {
    let Some(start) = CsvStart::read(path).map_err(|error| unread(name, error))? else { return Ok(None) };
    let header = start.header.clone();
    let Some(layout) = Layout::find(name, field, &start)? else { return Ok(None) };
    let shown = header.iter().enumerate().filter(|(i, column)| !layout.has(*i) && is_shown(column, false));
    let (positions, columns) =
        shown.map(|(i, column)| (i, KeptColumn::new(column, ColumnType::Text))).unzip();
    let scale = header.iter().position(|column| column == SCALE);
    // The first vectors tell the width, and whether the elements are integers of 8 bits.
    let (mut examined, mut has_only_int8) = (0, true);
    let mut width = match &layout {
        Layout::Elements(columns) => columns.len(),
        Layout::List(_) => 0,
    };
    let rows = start.index(name, |_, record| {
        if examined < EXAMINED_VECTORS && layout.has_vector(record) {
            examined += 1;
            let (found, is_int8) = layout.examine(record);
            has_only_int8 &= is_int8;
            width = if width == 0 { found } else { width };
        }
    });
    let file = rows.map_err(|error| unread(name, error))?;
    let rows = file.units().last().map_or(0, |unit| unit.end);
    let dtype = match (has_only_int8 && examined > 0, scale) {
        (false, _) => OutputDtype::F32,
        (true, None) => OutputDtype::Binary,
        (true, Some(_)) => OutputDtype::Int8,
    };
    let width = checked_width(name, width as u64)?;
    let dimensions = if dtype == OutputDtype::Binary { 8 * width } else { width };
    let name = name.clone();
    let file = Arc::new(CsvVectors { name, file, dtype, dimensions, layout, scale, columns, positions });
    let (vectors, columns) = (Box::new(file.clone()), Box::new(file));
    let opened = Opened::new(rows, Representation::Dense, (dtype, dimensions), vectors, columns);
    Ok(Some(Opened { has_types: false, ..opened }))
}

/// A field as a number.
fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// A field that is a JSON list of numbers.
fn parse_list<T: DeserializeOwned>(field: &[u8]) -> Option<Vec<T>> {
    serde_json::from_slice(field).ok()
}

impl Records for CsvVectors {
    type Record = Row;

    fn units(&self) -> &[Range<usize>] {
        self.file.units()
    }

    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn for_each(&self, unit: usize, visit: &mut VisitRow<Row>) -> Result<ControlFlow<()>> {
        self.file.for_each_row(unit, visit)
    }

    fn append(&self, row: usize, record: &Row, buffer: &mut BlockBuffer) -> Result<bool> {
        let name = &self.name;
        if !self.layout.has_vector(record) {
            return Ok(false);
        }
        match &self.layout {
            Layout::Elements(columns) => {
                for column in columns.clone() {
                    let field = record.get(column).unwrap_or_default();
                    let pushed = match self.dtype {
                        OutputDtype::F32 => parse(field).map(|element| buffer.extend_f32(&[element])),
                        _ => parse(field).map(|element| buffer.extend_int8(&[element])),
                    };
                    pushed.ok_or_else(|| {
                        let (element, found) = (column - columns.start, String::from_utf8_lossy(field));
                        anyhow!(
                            "{name}: element {element} of row {row} is {found:?}, not a number; remove the row, or correct it"
                        )
                    })?;
                }
            }
            Layout::List(column) => {
                let field = record.get(*column).unwrap_or_default();
                let malformed = |error: serde_json::Error| {
                    anyhow!(
                        "{name}: the vector of row {row} is not a list of numbers ({error}); remove the row, or correct it"
                    )
                };
                let found = if self.dtype == OutputDtype::F32 {
                    let list: Vec<f32> = serde_json::from_slice(field).map_err(malformed)?;
                    buffer.extend_f32(&list);
                    list.len()
                } else {
                    let list: Vec<i8> = serde_json::from_slice(field).map_err(malformed)?;
                    buffer.extend_int8(&list);
                    list.len()
                };
                let expected = self.dtype.width(self.dimensions);
                if found != expected {
                    return Err(wrong_width(name, row, found, expected));
                }
            }
        }
        if let (OutputDtype::Int8, Some(scale)) = (self.dtype, self.scale) {
            let scale = record.get(scale).and_then(parse);
            let scale = scale
                .ok_or_else(|| anyhow!("{name}: row {row} has no scale; remove the row, or correct it"))?;
            buffer.scales.push(scale);
        }
        Ok(true)
    }

    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize) -> Block<'a> {
        buffer.block(self.dtype, first_row, rows, self.dimensions)
    }

    /// CSV has no types: a value that reads as an integer is one.
    fn values(&self, _row: usize, record: &Row, columns: &[usize]) -> Result<Vec<FieldValue>> {
        let value = |field: &[u8]| -> FieldValue {
            match (field.is_empty(), parse::<i64>(field)) {
                (true, _) => Value::Null.into(),
                (_, Some(integer)) if integer.to_string().as_bytes() == field => Value::from(integer).into(),
                _ => Value::from(String::from_utf8_lossy(field)).into(),
            }
        };
        let positions = columns.iter().map(|column| self.positions[*column]);
        Ok(positions.map(|i| value(record.get(i).unwrap_or_default())).collect())
    }
}
