//! Joins Parquet or Arrow files row by row.

use anyhow::{Result, anyhow};
use arrow_array::{Array, RecordBatch, new_null_array};
use arrow_schema::SchemaRef;

use super::concatenate::{JoinedFile, with_rows};
use super::row_file::RowFile;
use super::writer::Writer;
use crate::rows::{ColumnType, FileMetadata, OutputFormat, OutputSchema, arrow_schema};
use crate::store::OutputLock;

/// Joins the rows of Parquet or Arrow files. The row groups depend on the rows only, so they are those of a
/// single run.
pub fn join_tables(
    lock: &OutputLock,
    format: OutputFormat,
    inputs: &[JoinedFile],
    metadata: &FileMetadata,
) -> Result<()> {
    let inputs = with_rows(format, inputs)?;
    let schemas = inputs.iter().map(|input| Ok(RowFile::open(&input.path, format)?.schema().clone()));
    let schemas = schemas.collect::<Result<Vec<_>>>()?;
    let schema = OutputSchema { metadata: metadata.clone(), ..common_schema(&schemas) };
    let differs = |i: usize, from: usize| {
        anyhow!(
            "{} has other columns than {} ({}); merge files of the same columns and types",
            inputs[i].path.display(),
            inputs[from].path.display(),
            first_difference(&schemas[i], &schemas[from])
        )
    };
    let comparable = |other: &OutputSchema| {
        let mut other = OutputSchema { metadata: FileMetadata::default(), ..other.clone() };
        for (column, common) in other.kept.iter_mut().zip(&schema.kept) {
            if column.name == common.name && column.column_type == ColumnType::Text {
                column.column_type = common.column_type.clone();
            }
            // Files of earlier releases have none.
            column.metadata.clear();
        }
        other
    };
    if let Some(i) = (1..inputs.len()).find(|i| comparable(&schemas[*i]) != comparable(&schemas[0])) {
        return Err(differs(i, 0));
    }
    let arrow_schema = arrow_schema(&schema);
    let mut writer = Writer::open(lock, &schema, None)?;
    for (i, JoinedFile { path, kept }) in inputs.iter().copied().enumerate() {
        RowFile::open(path, format)?.for_each_batch(kept.as_deref(), |batch| {
            match retyped(batch, &arrow_schema)? {
                Some(batch) => writer.write_batch(&batch),
                None => Err(differs(
                    i,
                    schemas.iter().position(|other| *other.kept != *schemas[i].kept).unwrap_or(0),
                )),
            }
        })?;
    }
    writer.finish()
}

/// The schema of the first file, where a column that is text there has the type that it has in another file:
/// a column without values is text.
fn common_schema(schemas: &[OutputSchema]) -> OutputSchema {
    let mut common = schemas[0].clone();
    for column in common.kept.iter_mut().filter(|column| column.column_type == ColumnType::Text) {
        let others = schemas.iter().flat_map(|schema| &schema.kept).filter(|other| other.name == column.name);
        if let Some(typed) = others.into_iter().find(|other| other.column_type != ColumnType::Text) {
            *column = typed.clone();
        }
    }
    common
}

/// A batch with the columns of a schema; `None` if a column of another type has values.
fn retyped(batch: &RecordBatch, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let is_null = || column.null_count() == column.len();
        match field.data_type() {
            data_type if data_type == column.data_type() => Some(column.clone()),
            data_type => is_null().then(|| new_null_array(data_type, column.len())),
        }
    });
    let columns: Option<Vec<_>> = columns.collect();
    Ok(columns.map(|columns| RecordBatch::try_new(schema.clone(), columns)).transpose()?)
}

/// What the columns of a file differ in from those of the `first` one.
fn first_difference(schema: &OutputSchema, first: &OutputSchema) -> String {
    if schema.ids != first.ids {
        return "the ids are of another type".into();
    }
    let find = |schema: &OutputSchema, name: &str| {
        schema.kept.iter().find(|column| column.name == name).map(|column| column.column_type.clone())
    };
    let names = first.kept.iter().chain(&schema.kept).map(|column| column.name.as_str());
    let differs = |name: &&str| find(schema, name) != find(first, name);
    match names.into_iter().find(differs) {
        None => "the vectors or the order of columns".into(),
        Some(name) if find(schema, name).is_none() => format!("it has no {name:?}"),
        Some(name) if find(first, name).is_none() => format!("it has {name:?}"),
        Some(name) => format!("{name:?} is of another type, which the first records give it"),
    }
}
