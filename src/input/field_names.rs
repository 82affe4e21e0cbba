//! The names of all fields of an input, for `--keep '*'`.

use std::collections::HashSet;
use std::io::BufRead;

use anyhow::Result;

use super::limit::ReadLimit;
use super::lines::Lines;
use super::partitions::Partitions;
use super::reader::InputReader;
use super::record::{Entry, Fields, KeptName};
use super::source::{Format, InputPath, Source};
use crate::formats::arrow::ArrowReader;
use crate::formats::csv::{Advance, FieldSyntax, Row};
use crate::formats::jsonl::{find_fields, parseable};
use crate::formats::parquet::open;
use crate::sys::regular_file;

/// What names all fields that are not read as something else.
pub const ALL_FIELDS: &str = "*";
/// Maximum columns of a header, and fields of all records of jsonl files.
const MAX_COLUMNS: usize = 1 << 16;

/// The names in [`Fields::keep`], where [`ALL_FIELDS`] stands for all columns of the first input that has
/// fields and can be read, or for the fields of all records of jsonl inputs, and for the keys of the
/// directories of all inputs: those that are neither a text, the id nor named themselves. An input that
/// cannot be read gives its error when it is opened.
pub fn expand_kept(sources: &[Source], fields: &Fields) -> Vec<KeptName> {
    let is_all = |kept: &KeptName| kept.field == ALL_FIELDS && kept.output == ALL_FIELDS;
    if !fields.keep.iter().any(is_all) {
        return fields.keep.clone();
    }
    let with_fields = sources.iter().filter(|source| source.format.has_fields());
    let mut names = Vec::new();
    for source in with_fields {
        if names.is_empty() || source.format == Format::Jsonl {
            names.extend(field_names(source).unwrap_or_default());
        }
    }
    names.extend(Partitions::of(sources).common().map(str::to_owned));
    let is_read = |name: &str| {
        fields.text.names.iter().chain(&fields.pair).any(|text| text == name) || fields.id_name() == name
    };
    let is_named = |name: &str| fields.keep.iter().any(|kept| kept.field == name) || is_read(name);
    let mut seen = HashSet::new();
    names.retain(|name| !is_named(name) && seen.insert(name.clone()));
    let all: Vec<KeptName> = names.into_iter().map(KeptName::from).collect();
    let expanded =
        fields.keep.iter().flat_map(|kept| if is_all(kept) { all.clone() } else { vec![kept.clone()] });
    expanded.collect()
}

/// The names of the fields of an input, in their order.
fn field_names(source: &Source) -> Result<Vec<String>> {
    let limit = ReadLimit::default();
    let schema_names = |schema: &arrow_schema::Schema| {
        schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
    };
    Ok(match (source.format, &source.path) {
        (Format::Parquet, InputPath::File(path)) => {
            let file = open(&path.display().to_string(), regular_file::open(path)?, "write it again")?;
            schema_names(&file.schema_with_uuids())
        }
        (Format::Arrow, _) => {
            let input = InputReader::open(source)?.checked()?;
            let file = source.uncompressed_file();
            schema_names(ArrowReader::open(input.reader, file, limit.batch_bytes())?.schema())
        }
        (Format::Csv | Format::Tsv, _) => {
            header(&mut *InputReader::open(source)?.checked()?.reader, source.syntax, limit)?
        }
        _ => names_of_lines(Lines::new(InputReader::open(source)?.checked()?, Vec::new(), limit))?,
    })
}

/// The names in the header of a csv or tsv file.
fn header(reader: &mut dyn BufRead, syntax: FieldSyntax, limit: ReadLimit) -> Result<Vec<String>> {
    let mut row = Row::new(syntax, limit.line_bytes(), MAX_COLUMNS);
    Ok(match row.advance(reader)? {
        Advance::Row(_) => row.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        Advance::Malformed(..) | Advance::End => Vec::new(),
    })
}

/// The names of the fields of all objects, in the order in which they first occur.
fn names_of_lines(mut lines: Lines) -> Result<Vec<String>> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    while let Some(entry) = lines.read()?
        && names.len() < MAX_COLUMNS
    {
        let Entry::Record(line) = entry else { continue };
        let mut on_name = |name: &str| {
            if !seen.contains(name) {
                seen.insert(name.to_owned());
                names.push(name.to_owned());
            }
        };
        // A line that is not an object gives its error when it is read as a record.
        let _ = find_fields(&parseable(&line.text), &mut on_name, &[]);
    }
    Ok(names)
}
