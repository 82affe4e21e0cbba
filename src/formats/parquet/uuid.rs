//! UUIDs in a Parquet schema. The `parquet` crate knows them only with a feature that refuses other columns.

use std::sync::Arc;

use anyhow::Result;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use parquet::basic::{LogicalType, Type as PhysicalType};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

use crate::rows::field::{EXTENSION_NAME, UUID, is_uuid};

/// The Arrow schema of a file, in which the columns that the Parquet schema `root` annotates as UUIDs, and
/// such fields of structs, have the extension type of UUIDs.
pub(super) fn with_uuids(schema: &Schema, root: &Type) -> Schema {
    Schema::new_with_metadata(mark(schema.fields(), root), schema.metadata().clone())
}

/// The Parquet schema of a file with these Arrow columns, in which UUIDs are annotated as such. `parquet` is
/// the schema without.
pub(super) fn annotate_uuids(schema: &Schema, parquet: &SchemaDescriptor) -> Result<SchemaDescriptor> {
    let columns = schema.fields().iter().zip(parquet.root_schema().get_fields());
    let annotated = columns.map(|(field, column)| -> Result<TypePtr> {
        if !is_uuid(field) {
            return Ok(column.clone());
        }
        let uuid = Type::primitive_type_builder(column.name(), PhysicalType::FIXED_LEN_BYTE_ARRAY)
            .with_length(16)
            .with_repetition(column.get_basic_info().repetition())
            .with_logical_type(Some(LogicalType::Uuid));
        Ok(Arc::new(uuid.build()?))
    });
    let root =
        Type::group_type_builder(parquet.root_schema().name()).with_fields(annotated.collect::<Result<_>>()?);
    Ok(SchemaDescriptor::new(Arc::new(root.build()?)))
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
