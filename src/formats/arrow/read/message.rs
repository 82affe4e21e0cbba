//! Encapsulated messages of Arrow IPC, and their metadata: see the
//! [specification](https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format).

use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::{self as ipc, root_as_message};
use arrow_schema::Schema;

use crate::error::one_line;

/// The magic number that an IPC file starts with. Its first six bytes are also the last bytes of the file.
pub(super) const MAGIC: &[u8; 8] = b"ARROW1\0\0";

/// A message whose body has not been read yet.
pub(super) struct Message {
    /// The metadata: a flatbuffer, see [`decode`].
    pub metadata: Vec<u8>,
    /// The length of the body, in bytes.
    pub body_length: u64,
}

/// Decodes the metadata of a message.
///
/// # Errors
/// If it is malformed: the reason is a clause.
pub(super) fn decode(metadata: &[u8]) -> Result<ipc::Message<'_>, String> {
    root_as_message(metadata)
        .map_err(|error| format!("the metadata of a message is malformed: {}", one_line(&error)))
}

/// Decodes a schema.
///
/// # Errors
/// If it is malformed, or its byte order is not that of this machine, which `try_fb_to_schema` does not
/// check: the reason is a clause.
pub(super) fn schema(schema: ipc::Schema<'_>) -> Result<Schema, String> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err("its byte order is not that of this machine".into());
    }
    try_fb_to_schema(schema).map_err(|error| one_line(&error))
}
