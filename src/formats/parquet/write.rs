//! Parquet files: of rows, with one Parquet row group per row group of the stream, and of tables of results.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::uuid::annotate_uuids;
use crate::formats::arrow::write::{IpcStreamEncoder, RowGroups};
use crate::rows::columns::{EMBEDDING, EMBEDDINGS};
use crate::rows::metadata::Key;
use crate::rows::{ColumnBuilder, FieldValue, FileMetadata, KeptColumn, OutputSchema};

/// An encoder for a Parquet file.
pub(crate) fn file_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, Some(write_file))
}

/// Writes row groups as a Parquet file.
fn write_file(groups: &mut RowGroups, arrow_schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let parquet_schema = ArrowSchemaConverter::new().convert(&arrow_schema)?;
    let options = ArrowWriterOptions::new()
        .with_properties(properties(&arrow_schema))
        .with_parquet_schema(annotate_uuids(&arrow_schema, &parquet_schema)?);
    let mut file = ArrowWriter::try_new_with_options(sink, arrow_schema, options).map_err(into_io_error)?;
    for group in groups {
        file.write(&group?).and_then(|()| file.flush()).map_err(into_io_error)?;
    }
    file.finish().map_err(into_io_error)?;
    Ok(())
}

/// The writer properties. A vector column, which is the last one, is stored PLAIN, uncompressed and without
/// statistics: floats hardly compress, and a minimum over vector elements prunes nothing. An int8 element has
/// 255 values but takes four bytes in Parquet; dictionary encoding saves three of them.
fn properties(arrow_schema: &SchemaRef) -> WriterProperties {
    let metadata = arrow_schema.metadata().iter();
    let metadata: Vec<_> = metadata.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    let properties = WriterProperties::builder()
        .set_key_value_metadata((!metadata.is_empty()).then_some(metadata))
        .set_max_row_group_row_count(None)
        .set_compression(Compression::ZSTD(ZstdLevel::default()));
    let file = FileMetadata::of_arrow(arrow_schema);
    let chosen = file.get(Key::VectorColumn);
    let is_vector = |field: &&FieldRef| {
        let name = field.name().as_str();
        Some(name) == chosen || [EMBEDDING, EMBEDDINGS].contains(&name)
    };
    let Some(vectors) = arrow_schema.fields().last().filter(is_vector) else { return properties.build() };
    let mut path = vec![vectors.name().clone()];
    let mut element = vectors.data_type();
    while let DataType::List(item) | DataType::FixedSizeList(item, _) = element {
        path.extend(["list".into(), item.name().clone()]);
        element = item.data_type();
    }
    let vectors = ColumnPath::new(path);
    properties
        .set_column_compression(vectors.clone(), Compression::UNCOMPRESSED)
        .set_column_dictionary_enabled(vectors.clone(), [DataType::Int8, DataType::UInt8].contains(element))
        .set_column_statistics_enabled(vectors, EnabledStatistics::None)
        .build()
}

/// The encoder of a table of results, whose row groups are encoded in memory.
pub(crate) struct TableEncoder(ArrowWriter<Vec<u8>>);

impl TableEncoder {
    /// A file with these columns.
    pub(crate) fn new(columns: &[KeptColumn]) -> Result<Self> {
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        Ok(TableEncoder(ArrowWriter::try_new(Vec::new(), table_schema(columns), Some(properties.build()))?))
    }

    /// Encodes rows as a row group, and returns its bytes.
    pub(crate) fn encode(&mut self, columns: &[KeptColumn], rows: &[Vec<FieldValue>]) -> Result<Vec<u8>> {
        self.0.write(&table_batch(columns, rows)?)?;
        self.0.flush()?;
        Ok(mem::take(self.0.inner_mut()))
    }

    /// The bytes of the footer.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        Ok(self.0.into_inner()?)
    }
}

fn table_schema(columns: &[KeptColumn]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(KeptColumn::field).collect::<Vec<_>>()))
}

/// The rows as Arrow columns. A value that does not have the type of its column is null.
fn table_batch(columns: &[KeptColumn], rows: &[Vec<FieldValue>]) -> Result<RecordBatch> {
    let null = FieldValue::default();
    let arrays = columns.iter().enumerate().map(|(i, column)| {
        let mut builder = ColumnBuilder::new(&column.column_type);
        for row in rows {
            let value = if column.column_type.accepts(&row[i]) { &row[i] } else { &null };
            builder.push(value)?;
        }
        Ok(builder.finish()?)
    });
    Ok(RecordBatch::try_new(table_schema(columns), arrays.collect::<Result<_>>()?)?)
}

/// The [`io::Error`] of a failed write; any other error wrapped in one.
fn into_io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::{ParquetError, into_io_error};

    #[test]
    fn a_failed_write_keeps_its_kind() {
        let full = ParquetError::External(Box::new(Error::from(ErrorKind::StorageFull)));
        assert_eq!(into_io_error(full).kind(), ErrorKind::StorageFull);
        assert_eq!(into_io_error(ParquetError::General("odd".into())).kind(), ErrorKind::Other);
    }
}
