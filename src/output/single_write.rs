//! Files that are written at once: from complete bytes to the final name.

use std::fs;
use std::io::Write;

use anyhow::Result;

use super::destination::copy_permissions;
use super::durable_fs::{create_sidecar, rename};
use super::schema::OutputMetadata;
use super::sidecars::SidecarPaths;
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

/// Writes a complete output. A regular file is written to a temporary file beside it, which is then renamed; a pipe or device is
/// written to directly.
///
/// # Errors
/// If it cannot be written; [`ClosedPipe`](super::ClosedPipe) if it is a pipe whose reader closed it.
pub fn write(target: &Target, bytes: &[u8]) -> Result<()> {
    let Target::File(path) = target else { return print(bytes) };
    let failed = |error| write_error(target, false, error);
    let Some(SidecarPaths { output, .. }) = SidecarPaths::of(target)? else {
        let file = fs::OpenOptions::new().write(true).open(path);
        return file.and_then(|mut file| file.write_all(bytes)).map_err(failed);
    };
    let temporary = tempfile::Builder::new()
        .prefix(".sconce-")
        .make_in(parent_dir(&output), |path| create_sidecar(&output).open(path))
        .map_err(failed)?;
    let mut file = temporary.as_file();
    file.write_all(bytes)
        .and_then(|()| copy_permissions(&output, file))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    // If this fails, the temporary file is removed on drop.
    rename(temporary.path(), &output).map_err(failed)
}
