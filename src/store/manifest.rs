//! JSON files beside an output that are replaced atomically: the manifest of a run, and the metadata of an
//! npy file. A checksum field detects changed files.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::digest::Digest;
use super::own_file;
use super::replace::{commit, create_sidecar, remove};
use super::target::Target;
use super::write_error::write_error;
use crate::error::one_line;
use crate::sys::regular_file;

/// Name of the field with the SHA-256 of all other fields, serialised without whitespace.
const CHECKSUM: &str = "checksum";
/// Maximum size of a file, which may have a number for each record.
const MAX_BYTES: u64 = 1 << 30;

/// Writes a value to `path` durably and atomically, with the permissions of `output` if that exists. An
/// object gets a checksum.
pub fn save<T: Serialize>(path: &Path, output: &Path, value: &T) -> Result<()> {
    let temporary = temporary_path(path);
    let mut value = serde_json::to_value(value)?;
    if let Value::Object(fields) = &mut value {
        let checksum = Digest::of(serde_json::to_vec(fields)?);
        fields.insert(CHECKSUM.into(), checksum.to_string().into());
    }
    let bytes = serde_json::to_vec_pretty(&value)?;
    // A killed run may have left one. Its name is fixed, rather than random as in tempfile, so that no others
    // accumulate.
    remove(&temporary)?;
    let save = || {
        let mut file = create_sidecar(&temporary, output)?;
        file.write_all(&bytes)?;
        commit(&file, &temporary, path)
    };
    save().map_err(|error| write_error(&Target::File(path.to_owned()), true, error))
}

/// Reads a value that [`save`] wrote; `None` if the file does not exist.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    load_with(path, own_file::read)
}

/// [`load`] for a file beside an input, which may be of another user.
pub fn load_beside_input<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    load_with(path, regular_file::read)
}

fn load_with<T: DeserializeOwned>(
    path: &Path,
    read: fn(&Path, u64) -> io::Result<Vec<u8>>,
) -> Result<Option<T>> {
    let remedy = "pass --restart to start over";
    let bytes = match read(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => bail!("cannot read the manifest {} ({error}); {remedy}", path.display()),
    };
    match parse(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(error) => bail!("cannot resume: the manifest {} is invalid ({error}); {remedy}", path.display()),
    }
}

/// Reads the metadata beside an npy file, which [`save`] wrote, or other software without a checksum; `None`
/// if the file does not exist.
pub fn load_metadata(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !regular_file::has_dir_entry(path) {
        return Ok(None);
    }
    let bytes = regular_file::read(path, MAX_BYTES).map_err(anyhow::Error::from);
    bytes.and_then(|bytes| parse(&bytes)).map(Some).map_err(|error| {
        anyhow!("cannot read {} ({}); restore it, or remove it", path.display(), one_line(&error))
    })
}

/// Refuses to replace an existing file unless it is a JSON object with the field `field`, as every earlier
/// version of the file is.
pub fn check_replaceable(path: &Path, field: &str) -> Result<()> {
    if !regular_file::has_dir_entry(path) {
        return Ok(());
    }
    let bytes = if path.is_symlink() { None } else { regular_file::read(path, MAX_BYTES).ok() };
    let fields = bytes.and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(&bytes).ok());
    if fields.is_some_and(|fields| fields.contains_key(field)) {
        return Ok(());
    }
    bail!(
        "{} would be overwritten by the metadata of the output, but is another file; move it, or choose another --output",
        path.display()
    )
}

/// Where [`save`] writes a file before it renames it to `path`: a hidden file beside it.
pub(super) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let is_hidden = name.as_encoded_bytes().starts_with(b".");
    let mut temporary = OsString::from(if is_hidden { "" } else { "." });
    temporary.push(name);
    temporary.push(".new");
    path.with_file_name(temporary)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    if let Value::Object(fields) = &mut value
        && let Some(checksum) = fields.shift_remove(CHECKSUM)
        && checksum != Digest::of(serde_json::to_vec(fields)?).to_string()
    {
        bail!("its checksum does not match");
    }
    Ok(serde_json::from_value(value)?)
}
