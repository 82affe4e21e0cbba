//! CSV and TSV: a header row, then one record per row.

use std::str;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::error::{missing_column, several_columns};
use super::limit::ReadLimit;
use super::mismatch;
use super::reader::InputReader;
use super::record::{
    Entry, Fields, KeptField, KeptName, Location, Position, Record, TextFields, built_in_field,
};
use crate::formats::csv::{Advance, FieldSyntax, Malformation, Row};
use crate::sys::console::counted;

/// Bytes of a header for each column that it may have: the reader holds the position of each.
const BYTES_PER_COLUMN: u64 = 4;

const NOT_UTF8: &str = "is not valid UTF-8; convert the file to UTF-8, for example with iconv";
/// How a quoted field is written, and what to do if quotes are plain text.
const QUOTE_TWICE: &str =
    "write a quote inside a quoted field twice, or pass --quote none if quotes are plain text";

/// The records of an input.
pub(super) struct CsvRecords {
    name: Arc<str>,
    input: InputReader,
    syntax: FieldSyntax,
    /// The last row that was read.
    row: Row,
    limit: ReadLimit,
    /// The number of columns in the header.
    columns: usize,
    text: TextFields,
    /// The columns of the text.
    text_columns: Vec<usize>,
    /// The column of the second text, and the option that names it.
    pair: Option<(usize, &'static str)>,
    id: Option<usize>,
    keep: Vec<KeptField<usize>>,
}

impl CsvRecords {
    /// Reads the header.
    pub(super) fn open(
        input: InputReader,
        syntax: FieldSyntax,
        fields: &Fields,
        limit: ReadLimit,
    ) -> Result<Self> {
        let max_columns = (limit.line_bytes() / BYTES_PER_COLUMN) as usize;
        let mut rows = CsvRecords {
            name: input.name.clone(),
            input,
            syntax,
            row: Row::new(syntax, limit.line_bytes(), max_columns),
            limit,
            columns: 0,
            text: fields.text.clone(),
            text_columns: Vec::new(),
            pair: None,
            id: None,
            keep: Vec::new(),
        };
        let advance = rows.advance()?;
        let unreadable = rows.row.iter().find(|name| str::from_utf8(name).is_err());
        match (advance, unreadable) {
            (Advance::Row(line), Some(name)) => bail!("{} line {line} {}", rows.name, rows.not_utf8(name)),
            (Advance::Row(line), None) if rows.row.len() > max_columns => bail!(
                "{} line {line} has more than {max_columns} fields, the maximum that fits into memory; check the \
                 delimiter, or remove columns",
                rows.name
            ),
            (Advance::Malformed(line, malformation), _) => {
                bail!("{} line {line} {}", rows.name, rows.reason(malformation));
            }
            (Advance::Row(_) | Advance::End, _) => {}
        }
        rows.find_columns(fields).map_err(|error| match rows.other_delimiter() {
            Some(delimiter) => anyhow!("{error}, or pass --delimiter '{delimiter}'"),
            None => error,
        })?;
        rows.check_names()?;
        rows.row.store_fields(rows.columns);
        Ok(rows)
    }

    /// Finds the columns of the fields in the header, which is the last row that was read.
    fn find_columns(&mut self, fields: &Fields) -> Result<()> {
        let names = || self.row.iter().filter_map(|name| str::from_utf8(name).ok());
        let find = |name: &str| names().position(|column| column == name);
        let require = |name: &str, option: &str| {
            find(name).ok_or_else(|| missing_column(&self.name, name, names(), option))
        };
        let text = fields.text.names.iter().map(|name| require(name, "--text-field"));
        let text = text.collect::<Result<_>>()?;
        let option = fields.options.pair;
        let pair = fields.pair.as_ref().map(|name| require(name, option)).transpose()?;
        let pair = pair.map(|column| (column, option));
        let id = match fields.id_option() {
            Some(option) => Some(require(fields.id_name(), option)?),
            None => find(fields.id_name()),
        };
        let keep = fields.keep.iter().map(|KeptName { field, .. }| match find(field) {
            None if Fields::is_built_in(field) => Ok(KeptField::BuiltIn(field.clone())),
            _ => require(field, "--keep").map(KeptField::Column),
        });
        let keep = keep.collect::<Result<_>>()?;
        (self.text_columns, self.pair, self.id, self.keep) = (text, pair, id, keep);
        self.columns = self.row.len();
        Ok(())
    }

    /// What delimits the names of a header that is one field, if that is another delimiter.
    fn other_delimiter(&self) -> Option<std::ascii::EscapeDefault> {
        let [name] = self.row.iter().collect::<Vec<_>>()[..] else { return None };
        b";\t|,".iter().find(|byte| name.contains(byte)).map(|byte| byte.escape_ascii())
    }

    /// Checks that the columns that are read have names of their own.
    fn check_names(&self) -> Result<()> {
        let keep = self.keep.iter().filter_map(|kept| match kept {
            KeptField::Column(column) => Some((*column, "--keep")),
            KeptField::BuiltIn(_) => None,
        });
        let id = self.id.map(|column| (column, "--id-field"));
        let text = self.text_columns.iter().map(|column| (*column, "--text-field"));
        for (column, option) in text.chain(self.pair).chain(id).chain(keep) {
            let name = &self.row[column];
            let columns = self.row.iter().filter(|other| *other == name).count();
            if columns > 1 {
                return Err(several_columns(
                    &self.name,
                    "header",
                    columns,
                    &String::from_utf8_lossy(name),
                    option,
                ));
            }
        }
        Ok(())
    }

    /// Bytes of the rows read so far, after decompression.
    pub(super) fn bytes_read(&self) -> u64 {
        self.row.bytes_read()
    }

    /// Reads the next row; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        let advance = self.advance()?;
        let (Advance::Row(line) | Advance::Malformed(line, _)) = advance else { return Ok(None) };
        let location = Location { source: self.name.clone(), position: Position::Line(line) };
        let record = match advance {
            Advance::Malformed(_, malformation) => Err(self.reason(malformation)),
            _ if self.row.len() != self.columns => Err(self.wrong_length()),
            _ => self.record(location.clone()),
        };
        Ok(Some(record.map_or_else(|reason| Entry::unreadable(location, reason), Entry::Record)))
    }

    /// The record of the last row, or why it cannot be read.
    fn record(&self, location: Location) -> Result<Record, String> {
        let field = |column: usize| {
            let text = str::from_utf8(&self.row[column]).map(str::to_owned);
            text.map_err(|_| self.not_utf8(&self.row[column]).to_owned())
        };
        let text = self.text.join(|i| field(self.text_columns[i]).map(Some))?.unwrap_or_default();
        let kept = self.keep.iter().map(|kept| match kept {
            KeptField::Column(column) => field(*column).map(|value| Value::String(value).into()),
            KeptField::BuiltIn(name) => Ok(built_in_field(name, &location, &text).unwrap_or_default()),
        });
        let kept = kept.collect::<Result<_, _>>()?;
        let id = self.id.map(field).transpose()?.map(Value::String);
        let pair = self.pair.map(|(column, _)| field(column)).transpose()?;
        Ok(Record { location, id, text, pair, is_null: false, kept })
    }

    /// Reads the next row into `row`.
    fn advance(&mut self) -> Result<Advance> {
        let after = self.row.next_line() - 1;
        let advance = self.row.advance(&mut *self.input.reader);
        advance.map_err(|error| self.input.read_error(&format!("after line {after}"), &error))
    }

    /// Why a field that is not valid UTF-8 cannot be read, as the predicate of an error.
    fn not_utf8(&self, field: &[u8]) -> &'static str {
        if mismatch::is_cut(field, self.input.is_utf16) { mismatch::CUT } else { NOT_UTF8 }
    }

    /// Why a row cannot be read, as the predicate of an error.
    fn reason(&self, malformation: Malformation) -> String {
        match malformation {
            Malformation::OpenQuote => format!("has a quoted field that does not end; {QUOTE_TWICE}"),
            Malformation::TextAfterQuote => {
                format!("has a quoted field with text after its closing quote; {QUOTE_TWICE}")
            }
            Malformation::QuoteAfterBackslash => format!(
                "has a quote after a backslash in a quoted field, which ends the field there; {QUOTE_TWICE}"
            ),
            Malformation::TooLong { is_quoted: true } => self.limit.too_long(QUOTE_TWICE),
            Malformation::TooLong { is_quoted: false } => {
                self.limit.too_long("split the text into several rows")
            }
        }
    }

    /// The reason of a row with too few or too many fields.
    fn wrong_length(&self) -> String {
        let (fields, columns) = (counted(self.row.len() as u64, "field"), self.columns);
        let lines = match self.row.lines() {
            1 => String::new(),
            lines => format!(" in {lines} lines"),
        };
        let has_quotes = || self.row.iter().any(|field| field.starts_with(b"\""));
        let remedy = match self.syntax.quote {
            Some(_) => "fix the row, or quote fields that contain the delimiter",
            None if has_quotes() => "fix the row, or pass --quote '\"' if some fields are quoted",
            None => "fix the row",
        };
        format!("has {fields}{lines}, but the header has {columns}; {remedy}")
    }
}
