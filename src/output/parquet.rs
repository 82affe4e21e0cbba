//! A Parquet file: one row group a group.

use std::io::{self, Write};

use anyhow::Result;
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::columns::Groups;

/// Writes groups of rows.
///
/// # Errors
/// Those of the groups; an [`io::Error`] if the sink fails.
pub fn write(groups: &mut Groups, schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let mut file = ArrowWriter::try_new(sink, schema.clone(), Some(properties(&schema))).map_err(fault)?;
    for group in groups {
        file.write(&group?).and_then(|()| file.flush()).map_err(fault)?;
    }
    file.finish().map_err(fault)?;
    Ok(())
}

/// Numbers of vectors hardly repeat and hardly shrink, and nobody asks for the least of them: they stand as they are. The
/// 255 values of a byte are another matter: Parquet gives each four bytes, and a dictionary takes three of them away.
fn properties(schema: &SchemaRef) -> WriterProperties {
    let vectors = schema.fields().last().expect("the vectors are the last column");
    let mut path = vec![vectors.name().clone()];
    let mut kind = vectors.data_type();
    while let DataType::List(item) | DataType::FixedSizeList(item, _) = kind {
        path.extend(["list".into(), item.name().clone()]);
        kind = item.data_type();
    }
    let vectors = ColumnPath::new(path);
    let about: Vec<_> =
        schema.metadata().iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    WriterProperties::builder()
        .set_key_value_metadata((!about.is_empty()).then_some(about))
        .set_max_row_group_row_count(None)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_column_compression(vectors.clone(), Compression::UNCOMPRESSED)
        .set_column_dictionary_enabled(vectors.clone(), *kind == DataType::Int8)
        .set_column_statistics_enabled(vectors, EnabledStatistics::None)
        .build()
}

fn fault(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        other => io::Error::other(other),
    }
}
