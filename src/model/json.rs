//! JSON files of a model, with errors that name the file.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::sys::regular_file;

/// Reads a JSON file.
///
/// # Errors
/// If the file cannot be read, is larger than a configuration file can be, or is not JSON.
pub(super) fn read_json(path: &Path) -> Result<Value> {
    let bytes = match regular_file::read(path, regular_file::MAX_CONFIG_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => bail!("cannot read {} ({error})", path.display()),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(value),
        Err(error) => {
            bail!("{} is not valid JSON ({error}); fix the file or download it again", path.display())
        }
    }
}

/// Reads a JSON file that holds an object.
///
/// # Errors
/// As [`read_json`], or if the file holds another value.
pub(super) fn read_json_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path)? {
        Value::Object(fields) => Ok(fields),
        _ => bail!("{} does not hold a JSON object; fix the file", path.display()),
    }
}
