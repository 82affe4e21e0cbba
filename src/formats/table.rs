//! Tables of results: rows of named columns, written as text for people, jsonl, csv or parquet.

use std::borrow::{Borrow, Cow};

use anyhow::Result;

use super::csv::write::{append_record, append_values};
use super::jsonl::write::append_object;
use super::parquet::write::TableEncoder;
use crate::named::names;
use crate::rows::columns::{SCORE, WEIGHT};
use crate::rows::{FieldValue, KeptColumn, OutputFormat, to_text};
use crate::store::{Access, Destination, OutputLock};
use crate::sys::terminal::escape_controls;

/// Rows that are aligned together in the text format, and that are a row group at most in parquet.
const GROUP_ROWS: usize = 1 << 16;
/// Characters of a text cell; longer values end in an ellipsis.
pub const MAX_CELL_CHARS: usize = 100;

/// The format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFormat {
    /// Aligned columns, for people.
    Text,
    /// One JSON object per row.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
    /// A Parquet file.
    Parquet,
}

names!(TableFormat { Text => "text", Jsonl => "jsonl", Csv => "csv", Parquet => "parquet" });

/// Writes the rows of a table. A file is written atomically: if the writer is dropped before
/// [`TableWriter::finish`], nothing is left.
pub struct TableWriter<'a> {
    lock: &'a OutputLock,
    format: TableFormat,
    columns: Vec<KeptColumn>,
    /// `None` once the table is finished.
    destination: Option<Destination>,
    /// Rows that are not encoded yet.
    group: Vec<Vec<FieldValue>>,
    parquet: Option<TableEncoder>,
}

impl<'a> TableWriter<'a> {
    /// Opens a locked output for rows with these columns.
    pub fn open(lock: &'a OutputLock, format: TableFormat, mut columns: Vec<KeptColumn>) -> Result<Self> {
        let mut parquet = None;
        if format == TableFormat::Parquet {
            for column in &mut columns {
                column.column_type = column.column_type.clone().for_format(OutputFormat::Parquet);
            }
            parquet = Some(TableEncoder::new(&columns)?);
        }
        let destination = Destination::open(lock, None, Access::Sequential)?;
        let mut writer =
            TableWriter { lock, format, columns, destination: Some(destination), group: Vec::new(), parquet };
        if format == TableFormat::Csv {
            let mut header = Vec::new();
            append_record(&mut header, writer.columns.iter().map(|column| Cow::Borrowed(&*column.name)));
            writer.append(&header)?;
        }
        Ok(writer)
    }

    /// Writes a row: one value per column.
    ///
    /// # Errors
    /// If it cannot be written; [`ClosedPipe`](crate::store::ClosedPipe) if the output is a pipe whose reader
    /// closed it.
    pub fn write(&mut self, row: Vec<FieldValue>) -> Result<()> {
        self.group.push(row);
        if self.group.len() == GROUP_ROWS { self.encode_group() } else { Ok(()) }
    }

    /// Writes all rows of a table, which `rows` makes: twice for text, whose columns are as wide as their
    /// widest cell, so that no row has to be held.
    pub fn write_all<I: Iterator<Item = Vec<FieldValue>>>(&mut self, rows: impl Fn() -> I) -> Result<()> {
        if self.format != TableFormat::Text {
            return rows().try_for_each(|row| self.write(row));
        }
        let TableWriter { columns, destination, .. } = self;
        align(columns, rows, |line| destination.as_mut().map_or(Ok(()), |output| output.append(line)))
    }

    /// Writes the rows that are left and renames the output to its final name.
    pub fn finish(mut self) -> Result<()> {
        self.encode_group()?;
        if let Some(parquet) = self.parquet.take() {
            let bytes = parquet.finish()?;
            self.append(&bytes)?;
        }
        self.destination.take().map_or(Ok(()), Destination::commit)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.destination.as_mut().map_or(Ok(()), |destination| destination.append(bytes))
    }

    /// Encodes the rows that are not encoded yet.
    fn encode_group(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.group);
        let mut bytes = Vec::new();
        match self.format {
            TableFormat::Text if !rows.is_empty() => align(
                &self.columns,
                || rows.iter(),
                |line| {
                    bytes.extend_from_slice(line);
                    Ok(())
                },
            )?,
            TableFormat::Text => {}
            TableFormat::Jsonl => {
                let append = |row: &Vec<FieldValue>| append_object(&mut bytes, &self.columns, row);
                rows.iter().try_for_each(append)?;
            }
            TableFormat::Csv => rows.iter().for_each(|row| append_values(&mut bytes, row)),
            TableFormat::Parquet => {
                if let Some(parquet) = &mut self.parquet {
                    bytes = parquet.encode(&self.columns, &rows)?;
                }
            }
        }
        self.append(&bytes)
    }
}

impl Drop for TableWriter<'_> {
    fn drop(&mut self) {
        // An unfinished table cannot be resumed.
        if self.destination.take().is_some() {
            let _ = self.lock.discard();
        }
    }
}

/// Writes a header and the rows, line by line, in aligned columns: numbers to the right, other values to the
/// left. `rows` makes the rows twice: their cells are measured before the first line is written.
fn align<I: Iterator<Item: Borrow<Vec<FieldValue>>>>(
    columns: &[KeptColumn],
    rows: impl Fn() -> I,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let header: Vec<String> =
        columns.iter().map(|column| escape_controls(&column.name).into_owned()).collect();
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    let mut is_number = vec![true; columns.len()];
    for row in rows() {
        let cells = columns.iter().zip(row.borrow()).zip(&mut widths).zip(&mut is_number);
        for (((column, value), width), is_number) in cells {
            *width = cell(&column.name, value).chars().count().max(*width);
            *is_number &= value.is_null() || value.json().is_number();
        }
    }
    let mut write_line = |cells: &mut dyn Iterator<Item = String>| {
        let padded = cells.zip(&widths).zip(&is_number).map(|((cell, width), is_number)| {
            if *is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = padded.collect::<Vec<_>>().join("  ");
        write(format!("{}\n", line.trim_end()).as_bytes())
    };
    write_line(&mut header.into_iter())?;
    rows().try_for_each(|row| {
        write_line(&mut columns.iter().zip(row.borrow()).map(|(column, value)| cell(&column.name, value)))
    })
}

/// A value of a column for people: floats with four digits after the point, other values as text on one line,
/// cut if they are long.
pub fn cell(column: &str, value: &FieldValue) -> String {
    let json = value.json();
    if let Some(number) = json.as_f64().filter(|_| json.is_f64()) {
        // Beside other scores and weights, one that rounds to 0 is none. Other numbers may all be small.
        let is_small = number != 0.0 && number.abs() < 5e-5 && ![SCORE, WEIGHT].contains(&column);
        return if is_small { format!("{number:.3e}") } else { format!("{number:.4}") };
    }
    let text = on_one_line(&to_text(&json).unwrap_or_default());
    match text.char_indices().nth(MAX_CELL_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The words of a text on one line.
pub fn on_one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    escape_controls(&words).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldValue, KeptColumn, align, cell};
    use crate::rows::ColumnType;

    #[test]
    fn numbers_are_aligned_to_the_right_and_texts_to_the_left() {
        let column = |name: &str| KeptColumn::new(name, ColumnType::Text);
        let columns = ["score", "index", "text"].map(column);
        let row = |score: f32, index: u64, text: &str| {
            vec![FieldValue::from(score), json!(index).into(), json!(text).into()]
        };
        let mut bytes = Vec::new();
        let rows = [row(0.5, 7, "a\n\u{1b}b"), row(-1.25, 1234, "c")];
        let append = |line: &[u8]| {
            bytes.extend_from_slice(line);
            Ok(())
        };
        align(&columns, || rows.iter(), append).unwrap();
        let expected = "  score  index  text\n 0.5000      7  a \\u{1b}b\n-1.2500   1234  c\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn floats_have_four_digits() {
        for (column, value, expected) in [
            ("score", 0.00012, "0.0001"),
            ("weight", 3e-9, "0.0000"),
            ("share", 5.731e-4, "0.0006"),
            ("share", 3.2e-9, "3.200e-9"),
            ("share", 0.0, "0.0000"),
        ] {
            assert_eq!(cell(column, &json!(value).into()), expected);
        }
    }
}
