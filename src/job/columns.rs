//! The columns of ids and carried-through fields: their types are inferred from the first records, and later
//! values have to fit.

use std::mem;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::Value;

use super::source::RecordSource;
use crate::error::UsageError;
use crate::formats::{FileColumns, column_names};
use crate::input::Record;
use crate::rows::{ColumnType, ContentType, FieldValue, KeptColumn, OutputSchema, abbreviated};

/// Infers the types of the columns from the first records.
pub(super) fn infer(schema: &mut OutputSchema, source: &mut RecordSource) {
    let first: Vec<&Record> = source.peek().collect();
    let ids: Vec<_> = first.iter().filter_map(|record| record.id.as_ref()).collect();
    if !ids.is_empty() {
        let integers = ids.iter().all(|id| ColumnType::Integer.accepts_json(id));
        schema.ids = Some(if integers { ColumnType::Integer } else { ColumnType::Text });
    }
    // The columns after those of fields have their types.
    let fields = first.first().map_or(0, |record| record.kept.len());
    for (i, column) in schema.kept.iter_mut().take(fields).enumerate() {
        let kind = ColumnType::infer_from_fields(first.iter().filter_map(|record| record.kept.get(i)));
        column.column_type = kind.for_format(schema.format);
    }
    for (column, metadata) in schema.kept.iter_mut().zip(source.kept_metadata()) {
        if matches!(column.column_type, ColumnType::Arrow(_)) {
            column.metadata.clone_from(metadata);
        }
    }
}

/// Gives the inferred columns the types that they have in the file that rows are added to. What the file
/// cannot hold is refused now, as far as the first records show it, and not when all are encoded.
/// `skip_unreadable`: single values that do not fit their column become null.
pub(super) fn adopt(
    schema: &mut OutputSchema,
    source: &mut RecordSource,
    skip_unreadable: bool,
) -> Result<()> {
    let records = source.file();
    let Some(file) = records.as_ref().and_then(|records| records.columns.as_ref()) else { return Ok(()) };
    let (name, new) = (file.name(), source.peek_new());
    adopt_ids(schema, file, &new)?;
    if let Some(of_file) = &file.schema {
        for (i, column) in schema.kept.iter_mut().enumerate() {
            let Some(found) = of_file.kept.iter().find(|found| found.name == column.name) else { continue };
            let values = new.iter().filter_map(|record| Some((*record, record.kept.get(i)?)));
            adopt_type(column, found, file, values, skip_unreadable)?;
        }
        if let (ContentType::Vectors(vectors), ContentType::Vectors(found)) =
            (&mut schema.content, of_file.content)
        {
            if vectors.nullable && !found.nullable {
                bail!(UsageError(format!(
                    "--on-null null: {name} was written without it and cannot have rows without a vector; pass --on-null skip, or \
                     write all records to another file"
                )));
            }
            vectors.nullable = found.nullable;
        }
    }
    let names = column_names(schema);
    if names == file.names {
        return Ok(());
    }
    let missing = |names: &[String], of: &[String]| names.iter().find(|name| !of.contains(name)).cloned();
    let difference = match (missing(&names, &file.names), missing(&file.names, &names)) {
        (Some(column), _) => format!("has no column {column:?}"),
        (None, Some(column)) => format!("has the column {column:?}, but new rows do not"),
        (None, None) => "has its columns in another order".into(),
    };
    bail!(UsageError(format!(
        "--append: {name} {difference}; pass the same --keep as for the file, or write all records to another file"
    )))
}

/// Gives the ids the type that they have in a file.
fn adopt_ids(schema: &mut OutputSchema, file: &FileColumns, new: &[&Record]) -> Result<()> {
    let (name, column) = (file.name(), schema.metadata.id_column());
    let ids = match &file.schema {
        Some(of_file) => of_file.ids.clone(),
        None => file.names.iter().any(|name| name == column).then_some(ColumnType::Text),
    };
    for Record { location, id, .. } in new {
        let Some(id) = id else { continue };
        match &ids {
            None => bail!(
                "{location} has the id {}, but {name} has no column {column:?}, because its first records have no ids; write all \
                 records to another file",
                abbreviated(id)
            ),
            Some(ids) if !ids.accepts_json(id) => bail!(
                "{location} has the id {}, which is {}, but the column {column:?} of {name} holds {ids}; give all records such ids, \
                 or write all records to another file",
                abbreviated(id),
                ColumnType::infer([id].into_iter())
            ),
            Some(_) => {}
        }
    }
    schema.ids = ids;
    Ok(())
}

/// Gives a column the type that it has in a file. `values` are those of new records.
fn adopt_type<'a>(
    column: &mut KeptColumn,
    found: &KeptColumn,
    file: &FileColumns,
    values: impl Iterator<Item = (&'a Record, &'a FieldValue)> + Clone,
    skip_unreadable: bool,
) -> Result<()> {
    // The type of a column without values is text until there is one.
    let completed = found.completed(column);
    let is_completed = completed != *found && file.fits(&completed)?;
    let inferred = mem::replace(column, if is_completed { completed } else { found.clone() });
    if matches!(inferred.column_type, ColumnType::Arrow(_)) {
        // Values of Arrow columns are converted exactly.
        column.column_type = ColumnType::Arrow(column.column_type.data_type());
    }
    let fits = |value: &FieldValue| column.column_type.accepts(value);
    let Some((Record { location, .. }, value)) = values.clone().find(|(_, value)| !fits(value)) else {
        return Ok(());
    };
    let some_fit = values.clone().any(|(_, value)| !value.is_null() && fits(value));
    if some_fit && skip_unreadable {
        return Ok(());
    }
    bail!(
        "{location} has {} in field {:?}, where new records have {}, but the column of {} holds {}; {}write all records to another file",
        abbreviated(&value.json()),
        column.name,
        ColumnType::infer_from_fields(values.map(|(_, value)| value)),
        file.name(),
        column.column_type,
        if some_fit { "pass --on-error skip to write null, or " } else { "remove it from --keep and " }
    )
}

/// Replaces values that do not fit their columns by null. Returns the reason for the first of them, as the
/// predicate of a sentence whose subject is the record.
pub(super) fn null_misfits(
    schema: &OutputSchema,
    id: &mut Option<Value>,
    kept: &mut Arc<Vec<FieldValue>>,
) -> Option<String> {
    let OutputSchema { format, ids, kept: columns, .. } = schema;
    if id.is_some() && ids.is_none() && format.has_fixed_columns() {
        *id = None;
        return Some("has an id, but the first records have none; choose the field with --id-field".into());
    }
    let misfit = |id: &mut Value| {
        format.has_typed_columns() && ids.as_ref().is_some_and(|kind| !kind.accepts_json(id))
    };
    if let Some(other) = id.take_if(misfit) {
        return Some(format!(
            "has the id {}, but the ids of the first records are {}; write jsonl or csv, or give all records ids of that type",
            abbreviated(&other),
            ids.as_ref().unwrap_or(&ColumnType::Text)
        ));
    }
    if !format.has_typed_columns()
        || columns.iter().zip(kept.iter()).all(|(column, value)| column.column_type.accepts(value))
    {
        return None;
    }
    let values = Arc::make_mut(kept);
    let mut misfits = columns.iter().zip(values).filter(|(column, value)| !column.column_type.accepts(value));
    let (column, value) = misfits.next()?;
    let reason = format!(
        "has {} in field {:?}, which is {}, but its column holds {}; remove it from --keep, or write jsonl or csv",
        abbreviated(&value.json()),
        column.name,
        ColumnType::infer_from_fields([&*value].into_iter()),
        column.column_type
    );
    *value = FieldValue::default();
    misfits.for_each(|(_, value)| *value = FieldValue::default());
    Some(reason)
}
