//! Arrow IPC: messages, each alone, so that rows can be written as they come and a stream can be continued; and a file, one
//! record batch a group.

use std::io::{self, Write};

use anyhow::Result;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::{DictionaryTracker, FileWriter, IpcDataGenerator, IpcWriteOptions, write_message};

use super::columns::Groups;

/// The end of a stream: a message without a length.
pub const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Writes groups of rows as a file.
///
/// # Errors
/// Those of the groups; an [`io::Error`] if the sink fails.
pub fn write(groups: &mut Groups, schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let mut file = FileWriter::try_new(sink, &schema).map_err(fault)?;
    for group in groups {
        file.write(&group?).map_err(fault)?;
    }
    Ok(file.finish().map_err(fault)?)
}

fn fault(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// The messages of an Arrow stream.
pub struct Encoder {
    generator: IpcDataGenerator,
    options: IpcWriteOptions,
    dictionaries: DictionaryTracker,
}

impl Encoder {
    /// Messages of a new stream.
    pub fn new() -> Self {
        Encoder {
            generator: IpcDataGenerator::default(),
            options: IpcWriteOptions::default(),
            dictionaries: DictionaryTracker::new(true),
        }
    }

    /// The schema, which a stream begins with.
    pub fn schema(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        let Encoder { generator, options, dictionaries } = self;
        let message = generator.schema_to_bytes_with_dictionary_tracker(schema, dictionaries, options);
        let mut bytes = Vec::new();
        write_message(&mut bytes, message, options)?;
        Ok(bytes)
    }

    /// A batch of rows.
    pub fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let Encoder { generator, options, dictionaries } = self;
        // No column has a dictionary.
        let (_, message) = generator.encode(batch, dictionaries, options, &mut Default::default())?;
        let mut bytes = Vec::new();
        write_message(&mut bytes, message, options)?;
        Ok(bytes)
    }
}
