//! UUIDs in a Parquet schema. The `parquet` crate knows them only with a feature that refuses other columns.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use parquet::basic::LogicalType;
use parquet::schema::types::Type;

use crate::rows::field::{EXTENSION_NAME, UUID};

/// The Arrow schema of a file, in which the columns that the Parquet schema `root` annotates as UUIDs, and
/// such fields of structs, have the extension type of UUIDs.
pub(super) fn with_uuids(schema: &Schema, root: &Type) -> Schema {
    Schema::new_with_metadata(mark(schema.fields(), root), schema.metadata().clone())
}

fn mark(fields: &Fields, group: &Type) -> Fields {
    fields.iter().zip(group.get_fields()).map(|(field, parquet)| mark_field(field, parquet)).collect()
}

fn mark_field(field: &FieldRef, parquet: &Type) -> FieldRef {
    match field.data_type() {
        DataType::Struct(fields) if parquet.is_group() => {
            let marked = DataType::Struct(mark(fields, parquet));
            Arc::new(Field::clone(field).with_data_type(marked))
        }
        _ if parquet.get_basic_info().logical_type_ref() == Some(&LogicalType::Uuid) => {
            let mut field = Field::clone(field);
            field.metadata_mut().insert(EXTENSION_NAME.to_owned(), UUID.to_owned());
            Arc::new(field)
        }
        _ => field.clone(),
    }
}
