//! CSV: the elements of a vector in the columns `e0`, `e1` and so on, and for int8 its `scale`; or a vector
//! in one column, as a JSON list.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
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

/// Rows whose elements tell whether a file without scales holds signs.
const EXAMINED_ROWS: usize = 64;

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
    /// The columns of a file with this header and first row; `None` if it has no vectors.
    fn find(name: &str, field: VectorField, header: &[String], first: &Row) -> Result<Option<Self>> {
        if !matches!(field, VectorField::Named(_))
            && let Some(first) = header.iter().position(|column| *column == element(0))
        {
            let is_element = |(i, column): &(usize, &String)| **column == element(*i);
            let width = header.iter().skip(first).enumerate().take_while(is_element).count();
            return Ok(Some(Layout::Elements(first..first + width)));
        }
        let candidate = |(i, name): (usize, &String)| {
            let list = first.get(i).and_then(|field| parse_list(field).ok());
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
}

/// Reads the header and finds the rows; `None` if no column is that of vectors.
pub(super) fn open(path: &Path, name: &Arc<str>, field: VectorField) -> Result<Option<Opened>> {
    let Some(start) = CsvStart::read(path).map_err(|error| unread(name, error))? else { return Ok(None) };
    let header = start.header.clone();
    let Some(layout) = Layout::find(name, field, &header, start.first())? else { return Ok(None) };
    let shown = header.iter().enumerate().filter(|(i, column)| !layout.has(*i) && is_shown(column, false));
    let (positions, columns) =
        shown.map(|(i, column)| (i, KeptColumn::new(column, ColumnType::Text))).unzip();
    let scale = header.iter().position(|column| column == SCALE);
    // Whether the elements of the first rows are integers of 8 bits, and the length of the first list.
    let (mut has_only_int8, mut list_width) = (true, 0);
    let rows = start.index(name, |row, record| match &layout {
        Layout::Elements(columns) if row < EXAMINED_ROWS => {
            let mut fields = record.iter().skip(columns.start).take(columns.len());
            has_only_int8 &= fields.all(|field| parse::<i8>(field).is_some());
        }
        Layout::List(column) if list_width == 0 => {
            let list = record.get(*column).and_then(|field| parse_list(field).ok());
            list_width = list.map_or(0, |list| list.len());
        }
        _ => {}
    });
    let file = rows.map_err(|error| unread(name, error))?;
    let rows = file.units().last().map_or(0, |unit| unit.end);
    let (dtype, width) = match &layout {
        Layout::Elements(columns) if has_only_int8 && rows > 0 => {
            (if scale.is_some() { OutputDtype::Int8 } else { OutputDtype::Binary }, columns.len())
        }
        Layout::Elements(columns) => (OutputDtype::F32, columns.len()),
        Layout::List(_) => (OutputDtype::F32, list_width),
    };
    let width = checked_width(name, width as u64)?;
    let dimensions = if dtype == OutputDtype::Binary { 8 * width } else { width };
    let name = name.clone();
    let file = Arc::new(CsvVectors { name, file, dtype, dimensions, layout, scale, columns, positions });
    let (vectors, columns) = (Box::new(file.clone()), Box::new(file));
    Ok(Some(Opened::new(rows, Representation::Dense, (dtype, dimensions), vectors, columns)))
}

/// A field as a number.
fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// A field that is a JSON list of numbers.
fn parse_list(field: &[u8]) -> serde_json::Result<Vec<f32>> {
    serde_json::from_slice(field)
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
        let elements = match &self.layout {
            Layout::Elements(columns) => columns.clone(),
            Layout::List(column) => {
                let field = record.get(*column).unwrap_or_default();
                if field.trim_ascii().is_empty() {
                    return Ok(false);
                }
                let list = parse_list(field).map_err(|error| {
                    anyhow!("{name}: the vector of row {row} is not a list of numbers ({error}); remove the row, or correct it")
                })?;
                if list.len() != self.dimensions {
                    return Err(wrong_width(name, row, list.len(), self.dimensions));
                }
                buffer.extend_f32(&list);
                return Ok(true);
            }
        };
        if elements.clone().all(|column| record.get(column).is_some_and(<[u8]>::is_empty)) {
            return Ok(false);
        }
        let invalid = |column: usize| {
            let found = record.get(column).map(String::from_utf8_lossy).unwrap_or_default();
            let element = column - elements.start;
            anyhow!(
                "{name}: element {element} of row {row} is {found:?}, not a number; remove the row, or correct it"
            )
        };
        for column in elements.clone() {
            let field = record.get(column).unwrap_or_default();
            match self.dtype {
                OutputDtype::F32 => buffer.extend_f32(&[parse(field).ok_or_else(|| invalid(column))?]),
                _ => buffer.extend_int8(&[parse(field).ok_or_else(|| invalid(column))?]),
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
