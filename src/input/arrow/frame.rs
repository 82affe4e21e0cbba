//! The description of a message.

use std::io;

use arrow::datatypes::Schema;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::{self, Message, root_as_message};

use crate::guard::guard;
use crate::input::said;

/// Why there is no next message.
pub enum Broken {
    /// The bytes cannot be had.
    Bytes(io::Error),
    /// They are not what they should be.
    Said(String),
    /// They take more memory than reading may; as a part of a sentence.
    Large(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Bytes(error)
    }
}

impl From<String> for Broken {
    fn from(why: String) -> Self {
        Broken::Said(why)
    }
}

impl From<&str> for Broken {
    fn from(why: &str) -> Self {
        Broken::Said(why.into())
    }
}

/// Reads the description of a message.
///
/// # Errors
/// What is wrong with it, as a part of a sentence.
pub fn message(header: &[u8]) -> Result<Message<'_>, String> {
    match guard(|| root_as_message(header)) {
        Some(Ok(message)) => Ok(message),
        Some(Err(error)) => Err(format!("the description of a message is damaged: {}", said(&error))),
        None => Err("the description of a message is damaged".into()),
    }
}

/// Reads a schema.
///
/// # Errors
/// What is wrong with it, as a part of a sentence.
pub fn schema(schema: ipc::Schema<'_>) -> Result<Schema, String> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err("its numbers have the byte order of another machine".into());
    }
    match guard(|| try_fb_to_schema(schema)) {
        Some(Ok(schema)) => Ok(schema),
        Some(Err(error)) => Err(said(&error)),
        None => Err("its schema is damaged".into()),
    }
}
