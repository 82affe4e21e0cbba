//! Joins Parquet or Arrow files row by row.

use anyhow::{Result, anyhow, bail};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Field;

use super::concatenate::{JoinedFile, with_rows};
use super::row_file::RowFile;
use super::writer::Writer;
use crate::rows::field::convert::exact;
use crate::rows::field::{to_json, type_noun};
use crate::rows::{FileMetadata, OutputFormat, OutputSchema, abbreviated, arrow_schema};
use crate::store::OutputLock;

/// Joins the rows of Parquet or Arrow files. The row groups depend on the rows only, so they are those of a
/// single run. Columns have the types of the first file, which have to hold the values of the others.
pub fn join_tables(
    lock: &OutputLock,
    format: OutputFormat,
    inputs: &[JoinedFile],
    metadata: &FileMetadata,
) -> Result<()> {
    let inputs = with_rows(format, inputs)?;
    let name = |i: usize| inputs[i].path.display();
    let schemas = inputs.iter().map(|input| Ok(RowFile::open(&input.path, format)?.schema().clone()));
    let schemas = schemas.collect::<Result<Vec<_>>>()?;
    let mut schema = OutputSchema { metadata: metadata.clone(), ..schemas[0].clone() };
    for (i, other) in schemas.iter().enumerate() {
        if let Some(difference) = difference(other, &schemas[0]) {
            bail!(
                "{} has other columns than {} ({difference}); merge files of the same columns",
                name(i),
                name(0)
            );
        }
        for (column, other) in schema.kept.iter_mut().zip(&other.kept) {
            *column = column.completed(other);
        }
    }
    let arrow_schema = arrow_schema(&schema);
    let mut writer = Writer::open(lock, &schema, None)?;
    for (i, JoinedFile { path, kept }) in inputs.iter().enumerate() {
        let mut rows = 0;
        RowFile::open(path, format)?.for_each_batch(kept.as_deref(), |batch| {
            let columns = batch.columns().iter().zip(arrow_schema.fields()).map(|(column, field)| {
                exact(column, field.data_type()).ok_or_else(|| {
                    let has_type =
                        |schema: &OutputSchema| schema.kept.iter().any(|kept| kept.field() == **field);
                    let other = schemas.iter().position(has_type).unwrap_or(0);
                    let misfit = misfit(column, field, rows);
                    anyhow!("{} {misfit}, as in {}; write it again with that type", name(i), name(other))
                })
            });
            let columns = columns.collect::<Result<Vec<_>>>()?;
            rows += batch.num_rows();
            writer.write_batch(&RecordBatch::try_new(arrow_schema.clone(), columns)?)
        })?;
    }
    writer.finish()
}

/// The first value of a column that does not fit a field, after `rows` rows, as a predicate.
fn misfit(column: &ArrayRef, field: &Field, rows: usize) -> String {
    let is_misfit = |row: &usize| exact(&column.slice(*row, 1), field.data_type()).is_none();
    let row = (0..column.len()).find(is_misfit).unwrap_or(0);
    format!(
        "row {} has {} in column {:?} of {}, which is not exact as {}",
        rows + row + 1,
        abbreviated(&to_json(column, row).unwrap_or_default()),
        field.name(),
        type_noun(column.data_type()),
        type_noun(field.data_type())
    )
}

/// What the columns of a file differ in from those of the `first` one. The types of kept columns may differ.
fn difference(schema: &OutputSchema, first: &OutputSchema) -> Option<String> {
    if schema.ids != first.ids {
        return Some("the ids are of another type".into());
    }
    let names =
        |schema: &OutputSchema| schema.kept.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    let (names, of_first) = (names(schema), names(first));
    if let Some(missing) = of_first.iter().find(|name| !names.contains(name)) {
        return Some(format!("it has no {missing:?}"));
    }
    if let Some(other) = names.iter().find(|name| !of_first.contains(name)) {
        return Some(format!("it has {other:?}"));
    }
    let kept = first.kept.clone();
    let comparable = OutputSchema { kept, metadata: first.metadata.clone(), ..schema.clone() };
    (names != of_first || comparable != *first).then(|| "the vectors or the order of columns".into())
}
