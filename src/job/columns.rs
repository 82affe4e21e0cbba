//! The columns of ids and carried-through fields: their types are inferred from the first records, and later
//! values have to fit.

use std::sync::Arc;

use serde_json::Value;

use super::source::RecordSource;
use crate::input::Record;
use crate::rows::{ColumnType, FieldValue, OutputSchema};

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
        "has {} in field {:?}, which holds {} in the first records; remove it from --keep, or write jsonl or csv",
        abbreviated(&value.json()),
        column.name,
        column.column_type
    );
    *value = FieldValue::default();
    misfits.for_each(|(_, value)| *value = FieldValue::default());
    Some(reason)
}

/// The first 60 characters of a value.
fn abbreviated(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}
