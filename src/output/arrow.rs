//! Arrow IPC: a file with one record batch per row group, or a stream where the target cannot seek. A reader of a pipe
//! gets rows as they come, and has no use for a footer.

use std::io::{self, Write};

use anyhow::Result;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, SchemaRef};

use super::ipc_stream::{IpcStreamEncoder, RowGroups};
use crate::rows::OutputSchema;

/// An encoder for an Arrow IPC file.
pub(super) fn file_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, Some(write_file))
}

/// An encoder for an Arrow IPC stream.
pub(super) fn stream_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, None)
}

/// Writes row groups as an Arrow IPC file.
fn write_file(groups: &mut RowGroups, arrow_schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let mut file = FileWriter::try_new(sink, &arrow_schema).map_err(into_io_error)?;
    for group in groups {
        file.write(&group?).map_err(into_io_error)?;
    }
    Ok(file.finish().map_err(into_io_error)?)
}

/// The [`io::Error`] of a failed write; any other error wrapped in one.
fn into_io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}
