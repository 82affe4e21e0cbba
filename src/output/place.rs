//! Where output goes, and the names of what stands beside it while it is unfinished.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::fault::explain;
use super::stdout::check_stdout;
use super::target::{Target, folder};

/// Names beside an output that is a file; for `dir/vectors.npy` those that are given here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// `dir/vectors.npy`: the output itself.
    pub output: PathBuf,
    /// `dir/.vectors.npy.partial.lock`: locked by the run that writes the output and all of this.
    pub lock: PathBuf,
    /// `dir/.vectors.npy.partial`: the rows so far.
    pub rows: PathBuf,
    /// `dir/.vectors.npy.partial.whole`: the final form, for formats that are made of the rows in the end.
    pub whole: PathBuf,
    /// `dir/.vectors.npy.partial.json`: what an interrupted run is continued by.
    pub manifest: PathBuf,
    /// `dir/.vectors.npy.partial.ledger`: the ledger so far.
    pub ledger: PathBuf,
    /// `dir/vectors.npy.ledger.jsonl`: the ledger of a finished run.
    pub final_ledger: PathBuf,
    /// `dir/vectors.npy.meta.json`: what the output says of itself, for a format that has no room for that.
    pub meta: PathBuf,
    /// `dir/.vectors.npy.done.json`: what the finished run was.
    pub done: PathBuf,
}

/// The file of a target; none where it is no regular file.
fn place(target: &Target) -> Result<Option<Beside>> {
    let Target::File(path) = target else { return Ok(None) };
    let folder = || anyhow!("cannot write {target}: that is the name of a folder; name a file in it");
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(folder());
    }
    let path = match fs::metadata(path) {
        Ok(there) if there.is_dir() => return Err(folder()),
        Ok(there) if !there.is_file() => return Ok(None),
        // Through a link the file that it points to is replaced, not the link.
        Ok(_) => fs::canonicalize(path).map_err(|error| explain(target, false, error))?,
        Err(error) if error.kind() == ErrorKind::NotFound => follow(path),
        Err(error) => return Err(explain(target, false, error)),
    };
    let name = path.file_name().ok_or_else(folder)?.to_owned();
    let named = |parts: [&str; 2]| {
        let mut whole = OsString::from(parts[0]);
        whole.push(&name);
        whole.push(parts[1]);
        path.with_file_name(whole)
    };
    Ok(Some(Beside {
        lock: named([".", ".partial.lock"]),
        rows: named([".", ".partial"]),
        whole: named([".", ".partial.whole"]),
        manifest: named([".", ".partial.json"]),
        ledger: named([".", ".partial.ledger"]),
        final_ledger: named(["", ".ledger.jsonl"]),
        meta: named(["", ".meta.json"]),
        done: named([".", ".done.json"]),
        output: path,
    }))
}

impl Beside {
    /// Whether the output is in its place that a run had completed before it was killed: its rows are gone, and what is
    /// there has this length, where it is known, and is no older than the manifest.
    pub fn is_in_place(&self, length: Option<u64>) -> bool {
        let (Ok(output), Ok(manifest)) = (fs::metadata(&self.output), fs::metadata(&self.manifest)) else {
            return false;
        };
        let has_length = length.is_none_or(|length| output.len() == length);
        output.is_file() && !self.rows.exists() && has_length && is_newer(&output, &manifest)
    }
}

/// Whether a file got its name after another one was written.
#[cfg(unix)]
fn is_newer(named: &fs::Metadata, written: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (named.ctime(), named.ctime_nsec()) >= (written.mtime(), written.mtime_nsec())
}

/// Whether a file got its name after another one was written: elsewhere this is not known.
#[cfg(not(unix))]
fn is_newer(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Where a file will be that is not there yet, though links may be that lead to it.
fn follow(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    while let Ok(next) = fs::read_link(&path) {
        path = folder(&path).join(next);
    }
    path
}

/// An output that nobody else writes for as long as the value lives, nor what stands beside it.
pub struct Claim {
    target: Target,
    beside: Option<Beside>,
    /// Held, not read.
    _lock: Option<File>,
}

impl Claim {
    /// Claims an output. Streams can be shared; a file cannot.
    ///
    /// # Errors
    /// If another run has it, the target is a folder or in one that cannot be written to, or standard output is closed.
    pub fn take(target: &Target) -> Result<Self> {
        if *target == Target::Stdout {
            check_stdout()?;
        }
        let beside = place(target)?;
        let lock = beside.as_ref().map(|beside| lock(&beside.lock, target)).transpose()?;
        Ok(Claim { target: target.clone(), beside, _lock: lock })
    }

    /// What is claimed.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What stands beside the output; none where it is no regular file: standard output, a device or a pipe, where
    /// nothing can be resumed.
    pub fn beside(&self) -> Option<&Beside> {
        self.beside.as_ref()
    }

    /// Removes what an unfinished run has left. Its writer has to be gone.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn discard(&self) -> Result<()> {
        let Some(Beside { rows, whole, manifest, ledger, .. }) = self.beside() else { return Ok(()) };
        // The manifest goes first: without the rows it would promise what is not there.
        for path in [manifest, &unsaved(manifest), ledger, whole, rows] {
            remove(path)?;
        }
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Still locked: whoever waits for it notices that it is gone.
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(&beside.lock);
        }
    }
}

/// Makes a file and locks it.
fn lock(path: &Path, target: &Target) -> Result<File> {
    let fault = |error| explain(target, false, error);
    let taken =
        || anyhow!("{target} is being written by another sconce; wait for it or choose another --output");
    for _ in 0..10 {
        in_its_way(path, target)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken()),
            // There are filesystems without locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(fault(error)),
        }
        // Whoever had the lock until now has removed the file.
        if is_at(&file, path).map_err(fault)? {
            return Ok(file);
        }
    }
    Err(taken())
}

/// Refuses to open what is no file: a pipe would wait to be opened, and a link may lead anywhere.
pub fn in_its_way(path: &Path, target: &Target) -> Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        bail!("cannot write {target}: {} is in its way; remove that", path.display());
    }
    Ok(())
}

/// Whether a path still leads to an open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let file = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a path still leads to an open file: elsewhere an open file keeps its name.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Options for a new file that is no more open than the output, and open to its owner: what stands beside the output
/// tells about it.
pub fn beside_output(output: &Path) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        let mode = fs::metadata(output).map_or(0o666, |there| there.permissions().mode() & 0o777 | 0o600);
        options.mode(mode);
    }
    #[cfg(not(unix))]
    let _ = output;
    options
}

/// Where a manifest is written before it takes the place of the one before it.
pub fn unsaved(manifest: &Path) -> PathBuf {
    let mut path = manifest.as_os_str().to_owned();
    path.push(".new");
    path.into()
}

/// Removes a file if it is there, for good.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| sync_folder(path)),
    };
    removed.map_err(|error| anyhow!("cannot remove {} ({error}); remove it by hand", path.display()))
}

/// Gives a file that is whole and durable its final name, and makes that durable, too.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(to)
}

/// Makes durable what the folder of a file holds, where that can be asked for.
#[cfg_attr(not(unix), expect(unused_variables, reason = "folders cannot be opened there"))]
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Ok(folder) = File::open(folder(path)) {
        match folder.sync_all() {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
            result => result?,
        }
    }
    Ok(())
}
