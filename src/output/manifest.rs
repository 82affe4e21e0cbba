//! What an interrupted run is continued by: one JSON value in a file of its own, replaced whole.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Target;
use super::fault::explain;
pub use super::place::remove;
use super::place::{beside_output, rename, unsaved};

/// Makes a value durable under a name, in place of what was there. It is as private as `output`, where that is there.
///
/// # Errors
/// If it cannot be written.
pub fn save<T: Serialize>(path: &Path, output: &Path, value: &T) -> Result<()> {
    let new = unsaved(path);
    let bytes = serde_json::to_vec_pretty(value)?;
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
    let remedy = "run without --resume to start over";
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => bail!("cannot read {} of the interrupted run ({error}); {remedy}", path.display()),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            bail!("{} does not say how to continue the interrupted run ({error}); {remedy}", path.display())
        }
    }
}
