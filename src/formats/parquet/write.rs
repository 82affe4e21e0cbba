//! A Parquet file with one Parquet row group per row group of the stream.

use std::io::{self, Write};

use anyhow::Result;
use arrow_schema::{DataType, FieldRef, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::formats::arrow::write::{IpcStreamEncoder, RowGroups};
use crate::rows::OutputSchema;
use crate::rows::columns::{EMBEDDING, EMBEDDINGS};

/// An encoder for a Parquet file.
pub(crate) fn file_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, Some(write_file))
}

/// Writes row groups as a Parquet file.
fn write_file(groups: &mut RowGroups, arrow_schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let properties = properties(&arrow_schema);
    let mut file = ArrowWriter::try_new(sink, arrow_schema, Some(properties)).map_err(into_io_error)?;
    for group in groups {
        file.write(&group?).and_then(|()| file.flush()).map_err(into_io_error)?;
    }
    file.finish().map_err(into_io_error)?;
    Ok(())
}

/// The writer properties. A vector column, which is the last one, is stored PLAIN, uncompressed and without statistics: floats hardly
/// compress, and a minimum over vector elements prunes nothing. An int8 element has 255 values but takes four bytes in
/// Parquet; dictionary encoding saves three of them.
fn properties(arrow_schema: &SchemaRef) -> WriterProperties {
    let metadata = arrow_schema.metadata().iter();
    let metadata: Vec<_> = metadata.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    let properties = WriterProperties::builder()
        .set_key_value_metadata((!metadata.is_empty()).then_some(metadata))
        .set_max_row_group_row_count(None)
        .set_compression(Compression::ZSTD(ZstdLevel::default()));
    let is_vector = |field: &&FieldRef| [EMBEDDING, EMBEDDINGS].contains(&field.name().as_str());
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
        .set_column_dictionary_enabled(vectors.clone(), *element == DataType::Int8)
        .set_column_statistics_enabled(vectors, EnabledStatistics::None)
        .build()
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
