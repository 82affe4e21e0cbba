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
use super::source::{Columns, Opened, Vectors, Visit, rows_by_unit};
use crate::field::FieldValue;
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
    let shown = header.iter().enumerate().filter(|(i, column)| !elements.contains(i) && is_shown(column));
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
    let (vectors, columns) = (Box::new(CsvVectors(file.clone())), Box::new(CsvColumns(file)));
    Ok(Some(Opened {
        rows,
        dimensions,
        per_token: false,
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

impl CsvFile {
    /// Calls `f` with the rows of a unit and their records. Break ends the reading.
    fn for_each_record(
        &self,
        unit: usize,
        mut f: impl FnMut(usize, &ByteRecord) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
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
            if f(row, &record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Appends the vector of a record to a buffer.
    fn append(&self, row: usize, record: &ByteRecord, buffer: &mut BlockBuffer) -> Result<()> {
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
        Ok(())
    }
}

struct CsvVectors(Arc<CsvFile>);

impl Vectors for CsvVectors {
    fn units(&self, _max_rows: usize) -> Vec<Range<usize>> {
        self.0.units.clone()
    }

    fn read(
        &self,
        rows: Range<usize>,
        max_rows: usize,
        buffer: &mut BlockBuffer,
        visit: &mut Visit,
    ) -> Result<ControlFlow<()>> {
        let file = &*self.0;
        let unit = file.units.partition_point(|unit| unit.end <= rows.start);
        buffer.clear();
        let (mut first, mut flow) = (rows.start, ControlFlow::Continue(()));
        let _ = file.for_each_record(unit, |row, record| {
            if row < rows.start {
                return Ok(ControlFlow::Continue(()));
            }
            file.append(row, record, buffer)?;
            let held = row + 1 - first;
            if held < max_rows && row + 1 < rows.end {
                return Ok(ControlFlow::Continue(()));
            }
            flow = visit(&buffer.block(file.dtype, first, held, file.dimensions))?;
            buffer.clear();
            first = row + 1;
            Ok(if first == rows.end { ControlFlow::Break(()) } else { flow })
        })?;
        Ok(flow)
    }
}

/// The columns beside the vectors. CSV has no types: a value that reads as an integer is one.
struct CsvColumns(Arc<CsvFile>);

impl Columns for CsvColumns {
    fn columns(&self) -> &[KeptColumn] {
        &self.0.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let file = &*self.0;
        let value = |field: &[u8]| -> FieldValue {
            match (field.is_empty(), parse::<i64>(field)) {
                (true, _) => Value::Null.into(),
                (_, Some(integer)) if integer.to_string().as_bytes() == field => Value::from(integer).into(),
                _ => Value::from(String::from_utf8_lossy(field)).into(),
            }
        };
        let mut found = Vec::with_capacity(rows.len());
        for (unit, wanted) in rows_by_unit(rows, &file.units) {
            let mut wanted = wanted.iter().peekable();
            let _ = file.for_each_record(unit, |row, record| {
                if wanted.next_if(|next| **next == row).is_some() {
                    let positions = columns.iter().map(|column| file.positions[*column]);
                    found.push(positions.map(|i| value(record.get(i).unwrap_or_default())).collect());
                }
                Ok(if wanted.peek().is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
        }
        Ok(found)
    }
}
