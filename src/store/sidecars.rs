//! The paths of the files beside an output file.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::manifest::temporary_path;
use super::replace::remove;
use super::target::{Target, parent_dir};
use super::write_error::write_error;

/// What the name of a ledger has after that of the output.
pub const LEDGER_SUFFIX: &str = ".ledger.jsonl";
/// What the name of the metadata of an npy file has after that of the file.
pub const META_SUFFIX: &str = ".meta.json";

/// The paths of an output file and of the files beside it. Each field gives the path for the output
/// `dir/vectors.npy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarPaths {
    /// `dir/vectors.npy`: the output.
    pub output: PathBuf,
    /// `dir/.vectors.npy.partial.lock`: locked by the process that writes the output and its sidecars.
    pub lock: PathBuf,
    /// `dir/.vectors.npy.partial`: the rows written so far.
    pub partial: PathBuf,
    /// `dir/.vectors.npy.partial.whole`: the final file while it is converted from the partial file.
    pub converted: PathBuf,
    /// `dir/.vectors.npy.partial.json`: the manifest of an unfinished run.
    pub manifest: PathBuf,
    /// `dir/.vectors.npy.partial.ledger`: the ledger of an unfinished run.
    pub ledger: PathBuf,
    /// `dir/vectors.npy.ledger.jsonl`: the ledger of a finished run.
    pub final_ledger: PathBuf,
    /// `dir/vectors.npy.meta.json`: the metadata of the output, for npy, which has no room for it.
    pub meta: PathBuf,
    /// `dir/.vectors.npy.done.json`: the manifest of a finished run.
    pub done: PathBuf,
    /// `dir/.vectors.npy.append`: the rows that `--append` adds, until they are in the output.
    pub added: PathBuf,
}

impl SidecarPaths {
    /// The paths for a target; `None` for standard output, and for an existing pipe or device.
    pub fn of(target: &Target) -> Result<Option<Self>> {
        let Target::File(path) = target else { return Ok(None) };
        let Some(path) = regular_file(path).map_err(|error| write_error(target, false, error))? else {
            return Ok(None);
        };
        let name = path.file_name().unwrap_or_default().to_owned();
        let sidecar = |prefix: &str, suffix: &str| {
            let mut sidecar = OsString::from(prefix);
            sidecar.push(&name);
            sidecar.push(suffix);
            path.with_file_name(sidecar)
        };
        Ok(Some(SidecarPaths {
            lock: sidecar(".", ".partial.lock"),
            partial: sidecar(".", ".partial"),
            converted: sidecar(".", ".partial.whole"),
            manifest: sidecar(".", ".partial.json"),
            ledger: sidecar(".", ".partial.ledger"),
            final_ledger: sidecar("", LEDGER_SUFFIX),
            meta: sidecar("", META_SUFFIX),
            done: sidecar(".", ".done.json"),
            added: sidecar(".", ".append"),
            output: path,
        }))
    }

    /// Whether the run of a complete manifest was killed after it had renamed the output to its final name:
    /// the partial file is gone, and the output has the given length (if any) and was renamed after the
    /// manifest was written.
    pub fn output_is_final(&self, length: Option<u64>) -> bool {
        let (Ok(output), Ok(manifest)) = (fs::metadata(&self.output), fs::metadata(&self.manifest)) else {
            return false;
        };
        let has_length = length.is_none_or(|length| output.len() == length);
        output.is_file() && !self.partial.exists() && has_length && was_renamed_after(&output, &manifest)
    }

    /// Removes the files of an unfinished run. The manifest is the first: it must not outlive the rows that
    /// it describes.
    pub(super) fn remove_unfinished(&self) -> Result<()> {
        let SidecarPaths { partial, converted, manifest, ledger, .. } = self;
        [manifest, &temporary_path(manifest), ledger, converted, partial]
            .into_iter()
            .try_for_each(|path| remove(path))
    }

    /// Removes the files beside the output, except for its lock.
    pub fn remove(&self) -> Result<()> {
        self.remove_unfinished()?;
        [&self.done, &self.final_ledger, &self.meta].into_iter().try_for_each(|path| remove(path))
    }
}

/// Whether `renamed` was renamed (its ctime) after `written` was written (its mtime).
#[cfg(unix)]
fn was_renamed_after(renamed: &fs::Metadata, written: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (renamed.ctime(), renamed.ctime_nsec()) >= (written.mtime(), written.mtime_nsec())
}

/// Always true: the time of a rename is not available there.
#[cfg(not(unix))]
fn was_renamed_after(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// The path of the regular file that a write to `path` creates or replaces: the target of a symbolic link,
/// not the link. `None` for an existing pipe or device.
pub fn regular_file(path: &Path) -> io::Result<Option<PathBuf>> {
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(ErrorKind::IsADirectory.into());
    }
    let found = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => return Ok(None),
        Ok(_) => fs::canonicalize(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => follow_links(path),
        Err(error) => return Err(error),
    };
    // A path such as `new/..` has no name.
    if found.file_name().is_none() { Err(ErrorKind::IsADirectory.into()) } else { Ok(Some(found)) }
}

/// The path at which a file would be created, through symbolic links whose target does not exist yet.
fn follow_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    while let Ok(next) = fs::read_link(&path) {
        path = parent_dir(&path).join(next);
    }
    path
}
