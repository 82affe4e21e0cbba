//! CSV: the elements of a vector in the columns `e0`, `e1` and so on, and for int8 its `scale`.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use super::batch::{SCALE, is_shown};
use super::buffer::BlockBuffer;
use super::records::{RecordReader, Records, VisitRecord};
use super::source::{Opened, RowKind};
use crate::field::FieldValue;
use crate::neighbours::Block;
use crate::output::{ColumnType, KeptColumn, OutputDtype, OutputMetadata};

/// Size in bytes at which a unit of rows ends.
const UNIT_BYTES: u64 = 1 << 19;
/// Rows whose elements tell whether a file without scales holds signs.
const EXAMINED_ROWS: usize = 64;

/// An indexed file.
struct CsvFile {
    name: Arc<str>,
    path: PathBuf,
    dtype: OutputDtype,
    dimensions: usize,
    /// The columns of the elements.
    elements: Range<usize>,
    /// The column of the scales.
    scale: Option<usize>,
    columns: Vec<KeptColumn>,
    /// The position of each of [`CsvFile::columns`] in a record.
    positions: Vec<usize>,
    /// The rows of each unit.
    units: Vec<Range<usize>>,
    /// Offset of each unit, in bytes.
    offsets: Vec<u64>,
}

/// Reads the header and finds the rows; `None` if the header has no columns of elements.
pub(super) fn open(path: &Path, name: &Arc<str>) -> Result<Option<Opened>> {
    let unread = |error: &dyn std::fmt::Display| anyhow!("cannot read {name} ({error}); check the file");
    let file = File::open(path).map_err(|error| unread(&error))?;
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(file);
    let Ok(header) = reader.headers().cloned() else { return Ok(None) };
    let Some(first) = header.iter().position(|column| column == "e0") else { return Ok(None) };
    let width =
        header.iter().skip(first).enumerate().take_while(|(i, column)| **column == format!("e{i}")).count();
    let elements = first..first + width;
    let shown =
        header.iter().enumerate().filter(|(i, column)| !elements.contains(i) && is_shown(column, false));
    let (positions, columns) = shown
        .map(|(i, column)| (i, KeptColumn { name: column.into(), column_type: ColumnType::Text }))
        .unzip();
    let scale = header.iter().position(|column| column == SCALE);
    let Index { units, offsets, has_only_int8 } =
        index(&mut reader, &elements).map_err(|error| unread(&error))?;
    let dtype = match scale {
        Some(_) if has_only_int8 => OutputDtype::Int8,
        None if has_only_int8 => OutputDtype::Binary,
        _ => OutputDtype::F32,
    };
    let rows = units.last().map_or(0, |unit| unit.end);
    let dimensions = if dtype == OutputDtype::Binary { 8 * width } else { width };
    let (name, path) = (name.clone(), path.to_owned());
    let file = Arc::new(CsvFile {
        name,
        path,
        dtype,
        dimensions,
        elements,
        scale,
        columns,
        positions,
        units,
        offsets,
    });
    let (vectors, columns) = (Box::new(RecordReader(file.clone())), Box::new(RecordReader(file)));
    Ok(Some(Opened {
        rows,
        dimensions,
        kind: RowKind::Dense,
        token_numbers: None,
        dtype,
        metadata: OutputMetadata::new(),
        vectors,
        columns,
    }))
}

/// Where the rows of a file are.
struct Index {
    units: Vec<Range<usize>>,
    offsets: Vec<u64>,
    /// Whether the elements of the first rows are integers of 8 bits.
    has_only_int8: bool,
}

fn index(reader: &mut Reader<File>, elements: &Range<usize>) -> csv::Result<Index> {
    let mut found = Index { units: Vec::new(), offsets: Vec::new(), has_only_int8: true };
    let (mut record, mut row, mut first) = (ByteRecord::new(), 0, 0);
    let mut start = reader.position().byte();
    loop {
        let is_end = !reader.read_byte_record(&mut record)?;
        if !is_end {
            if row < EXAMINED_ROWS {
                let mut fields = record.iter().skip(elements.start).take(elements.len());
                found.has_only_int8 &= fields.all(|field| parse::<i8>(field).is_some());
            }
            row += 1;
        }
        let end = reader.position().byte();
        if row > first && (is_end || end - start >= UNIT_BYTES) {
            found.units.push(first..row);
            found.offsets.push(start);
            (start, first) = (end, row);
        }
        if is_end {
            found.has_only_int8 &= row > 0;
            return Ok(found);
        }
    }
}

/// A field as a number.
fn parse<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

impl Records for CsvFile {
    type Record = ByteRecord;

    fn units(&self) -> &[Range<usize>] {
        &self.units
    }

    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn for_each(&self, unit: usize, visit: &mut VisitRecord<ByteRecord>) -> Result<ControlFlow<()>> {
        let unread =
            |error: &dyn std::fmt::Display| anyhow!("cannot read {} ({error}); check the file", self.name);
        let mut file = File::open(&self.path).map_err(|error| unread(&error))?;
        file.seek(SeekFrom::Start(self.offsets[unit])).map_err(|error| unread(&error))?;
        let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        let mut record = ByteRecord::new();
        for row in self.units[unit].clone() {
            if !reader.read_byte_record(&mut record).map_err(|error| unread(&error))? {
                bail!("{} was changed while it was read; run the command again", self.name);
            }
            if visit(row, &record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn append(&self, row: usize, record: &ByteRecord, buffer: &mut BlockBuffer) -> Result<bool> {
        if self.elements.clone().all(|column| record.get(column).is_some_and(<[u8]>::is_empty)) {
            return Ok(false);
        }
        let invalid = |column: usize| {
            let found = record.get(column).map(String::from_utf8_lossy).unwrap_or_default();
            let element = column - self.elements.start.min(column);
            anyhow!(
                "{}: element {element} of row {row} is {found:?}, not a number; write the file again",
                self.name
            )
        };
        for column in self.elements.clone() {
            let field = record.get(column).unwrap_or_default();
            match self.dtype {
                OutputDtype::F32 => buffer.extend_f32(&[parse(field).ok_or_else(|| invalid(column))?]),
                _ => buffer.extend_int8(&[parse(field).ok_or_else(|| invalid(column))?]),
            }
        }
        if let (OutputDtype::Int8, Some(scale)) = (self.dtype, self.scale) {
            let scale = record.get(scale).and_then(parse);
            let scale = scale
                .ok_or_else(|| anyhow!("{}: row {row} has no scale; write the file again", self.name))?;
            buffer.scales.push(scale);
        }
        Ok(true)
    }

    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize) -> Block<'a> {
        buffer.block(self.dtype, first_row, rows, self.dimensions)
    }

    /// CSV has no types: a value that reads as an integer is one.
    fn values(&self, _row: usize, record: &ByteRecord, columns: &[usize]) -> Result<Vec<FieldValue>> {
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
