//! An Arrow IPC file: one record batch a group. What goes to a pipe is a stream: see [`super::stream`].

use std::io::{self, Write};

use anyhow::Result;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;

use super::spool::Groups;

/// Writes groups of rows.
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
