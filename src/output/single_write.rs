//! Files that are written at once: from complete bytes to the final name.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;

use super::destination::copy_permissions;
use super::durable_fs::{create_sidecar, rename};
use super::read_files::ReadFiles;
use super::schema::OutputMetadata;
use super::sidecars::regular_file;
use super::stdout::print;
use super::target::{Target, parent_dir};
use super::write_error::write_error;

/// An f32 array in C order.
pub struct Array<'a> {
    /// The name of the tensor in safetensors.
    pub name: &'a str,
    /// The size of each axis, up to four.
    pub shape: &'a [usize],
    /// All values.
    pub values: &'a [f32],
}

impl Array<'_> {
    /// The bytes of an npy file.
    pub fn npy(&self) -> Vec<u8> {
        super::npy::file(self.shape, self.values)
    }

    /// The bytes of a safetensors file with this metadata.
    pub fn safetensors(&self, metadata: &OutputMetadata) -> Vec<u8> {
        super::safetensors::file(self.name, self.shape, self.values, metadata)
    }
}

/// Writes a complete output, given by `--output`. A regular file is written to a temporary file beside it, which is then renamed; a pipe
/// or device is written to directly.
///
/// # Errors
/// If it is one of the files that the run reads, or cannot be written; [`ClosedPipe`](super::ClosedPipe) if it is a pipe whose reader closed
/// it.
pub fn write(target: &Target, bytes: &[u8], read: &ReadFiles) -> Result<()> {
    match target {
        Target::Stdout => print(bytes),
        Target::File(path) => {
            read.refuse("--output", path)?;
            write_file(path, bytes).map_err(|error| write_error(target, false, error))
        }
    }
}

/// [`write()`] for a path: a regular file has all of its old bytes or all of the new ones at each moment.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(output) = regular_file(path)? else {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    };
    let temporary = tempfile::Builder::new()
        .prefix(".sconce-")
        .make_in(parent_dir(&output), |path| create_sidecar(path, &output))?;
    let mut file = temporary.as_file();
    file.write_all(bytes)?;
    copy_permissions(&output, file)?;
    file.sync_all()?;
    // If this fails, the temporary file is removed on drop.
    rename(temporary.path(), &output)
}
