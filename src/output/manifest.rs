//! What an interrupted run is continued by: one JSON value in a file of its own, replaced whole.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fault::explain;
pub use super::place::remove;
use super::place::{beside_output, rename, unsaved};
use super::{Digest, Target};

/// Makes a value durable under a name, in place of what was there. It is as private as `output`, where that is there.
///
/// # Errors
/// If it cannot be written.
pub fn save<T: Serialize>(path: &Path, output: &Path, value: &T) -> Result<()> {
    let new = unsaved(path);
    let mut value = serde_json::to_value(value)?;
    if let Value::Object(fields) = &mut value {
        let checksum = Digest::of(&serde_json::to_vec(fields)?);
        fields.insert(CHECKSUM.into(), checksum.to_string().into());
    }
    let bytes = serde_json::to_vec_pretty(&value)?;
    // One may be left of a run that was killed.
    remove(&new)?;
    let save = || {
        let mut file = beside_output(output).open(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        rename(&new, path)
    };
    save().map_err(|error| explain(&Target::File(path.to_owned()), true, error))
}

/// The value under a name; none where there is no such file.
///
/// # Errors
/// If the file cannot be read or holds something else.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let remedy = "pass --restart to start over";
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => bail!("cannot read {} of the interrupted run ({error}); {remedy}", path.display()),
    };
    match parse(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            bail!("{} does not say how to continue the interrupted run ({error}); {remedy}", path.display())
        }
    }
}

/// Refuses to take the place of a file that is not one of these, by a field that all of them have.
///
/// # Errors
/// If there is such a file.
pub fn check_replaceable(path: &Path, field: &str) -> Result<()> {
    let Ok(bytes) = fs::read(path) else { return Ok(()) };
    let fields = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes);
    if fields.is_ok_and(|fields| fields.contains_key(field)) {
        return Ok(());
    }
    bail!(
        "{} would be overwritten by the description of the output, but is not one; move it, or choose another --output",
        path.display()
    )
}

/// The field with the digest of all others, as they are without spaces.
const CHECKSUM: &str = "checksum";

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    if let Value::Object(fields) = &mut value
        && let Some(checksum) = fields.shift_remove(CHECKSUM)
        && checksum != Digest::of(&serde_json::to_vec(fields)?).to_string()
    {
        bail!("it is damaged");
    }
    Ok(serde_json::from_value(value)?)
}
