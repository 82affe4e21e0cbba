//! The place behind a writer: standard output, a device or pipe, or a file that appears whole or not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use tempfile::TempPath;

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => write!(f, "standard output"),
            Target::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Whoever read the output has gone, which ends the work without being a fault.
#[derive(Debug)]
pub struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for ClosedPipe {}

/// An open target. Writing to a file goes to a file of its own beside it, `.NAME.….partial`;
/// [`Destination::commit`] makes that durable and gives it the final name, and a destination dropped before
/// removes it.
pub struct Destination {
    target: Target,
    sink: BufWriter<Sink>,
    /// The partial file's name and the final one, until they are one.
    partial: Option<(TempPath, PathBuf)>,
}

enum Sink {
    File(File),
    Stdout(io::Stdout),
    /// An unnamed file for a format that has to go back to its beginning where the target cannot.
    Spool(File, Box<Sink>),
}

impl Destination {
    /// Opens a target for writing from front to back.
    pub fn sequential(target: &Target) -> Result<Self> {
        Self::open(target, false)
    }

    /// Opens a target whose beginning will be written last, with [`Destination::rewrite_start`].
    pub fn seekable(target: &Target) -> Result<Self> {
        Self::open(target, true)
    }

    fn open(target: &Target, seek: bool) -> Result<Self> {
        let fault = |error| explain(target, error);
        let (sink, partial) = match target {
            Target::Stdout => (Sink::Stdout(io::stdout()), None),
            Target::File(path) if path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                return Err(anyhow!(
                    "cannot write {target}: that is the name of a folder; name a file in it"
                ));
            }
            Target::File(path) => match fs::metadata(path) {
                // Through a link the file that it points to is replaced, not the link.
                Ok(there) if there.is_file() => {
                    Self::partial(fs::canonicalize(path).map_err(fault)?).map_err(fault)?
                }
                // Devices and pipes are written to, never replaced.
                Ok(_) => (Sink::File(OpenOptions::new().write(true).open(path).map_err(fault)?), None),
                Err(_) => Self::partial(path.clone()).map_err(fault)?,
            },
        };
        let sink = match (seek, &partial) {
            (true, None) => match tempfile::tempfile() {
                Ok(spool) => Sink::Spool(spool, Box::new(sink)),
                Err(error) => {
                    let folder = std::env::temp_dir();
                    let folder = folder.display();
                    return Err(anyhow!("cannot make a temporary file in {folder} ({error}); set TMPDIR"));
                }
            },
            _ => sink,
        };
        Ok(Destination { target: target.clone(), sink: BufWriter::with_capacity(1 << 16, sink), partial })
    }

    /// A file of this run alone, beside `path` and with the permissions that `path` has or would get.
    fn partial(path: PathBuf) -> io::Result<(Sink, Option<(TempPath, PathBuf)>)> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix: String = format!(".{name}").chars().take(32).chain(['.']).collect();
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).map_or(0o666, |there| there.permissions().mode());
            builder.permissions(fs::Permissions::from_mode(mode));
        }
        let builder = builder.prefix(&prefix).suffix(".partial");
        let (file, partial) = builder.tempfile_in(folder(&path))?.into_parts();
        Ok((Sink::File(file), Some((partial, path))))
    }

    /// Writes over the first bytes of a seekable destination.
    pub fn rewrite_start(&mut self, bytes: &[u8]) -> Result<()> {
        let rewrite = |sink: &mut BufWriter<Sink>| {
            sink.flush()?;
            match sink.get_mut() {
                Sink::File(file) | Sink::Spool(file, _) => {
                    file.seek(SeekFrom::Start(0))?;
                    file.write_all(bytes)?;
                    file.seek(SeekFrom::End(0)).map(|_| ())
                }
                Sink::Stdout(_) => Err(io::Error::other("not opened as seekable")),
            }
        };
        rewrite(&mut self.sink).map_err(|error| explain(&self.target, error))
    }

    /// Flushes, and gives a file its final name.
    pub fn commit(mut self) -> Result<()> {
        self.finish().map_err(|error| explain(&self.target, error))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.sink.flush()?;
        if let Sink::Spool(spool, sink) = self.sink.get_mut() {
            spool.seek(SeekFrom::Start(0))?;
            io::copy(spool, sink)?;
            sink.flush()?;
        }
        if let Sink::File(file) = self.sink.get_ref()
            && let Some((partial, path)) = self.partial.take()
        {
            file.sync_all()?;
            partial.persist(path)?;
        }
        Ok(())
    }

    /// What a writer's error means for this destination.
    pub fn fault(&self, error: io::Error) -> anyhow::Error {
        explain(&self.target, error)
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::File(file) | Sink::Spool(file, _) => file.write(bytes),
            Sink::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::File(file) | Sink::Spool(file, _) => file.flush(),
            Sink::Stdout(stdout) => stdout.flush(),
        }
    }
}

/// Writes a page of text to standard output.
///
/// # Errors
/// If it cannot be written; [`ClosedPipe`] if its reader has gone.
pub fn print(page: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(page).and_then(|()| stdout.flush()).map_err(|error| explain(&Target::Stdout, error))
}

/// The folder of a file.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// One sentence on a failed write.
fn explain(target: &Target, error: io::Error) -> anyhow::Error {
    match (error.kind(), target) {
        (ErrorKind::BrokenPipe, _) => anyhow::Error::new(ClosedPipe),
        (ErrorKind::StorageFull, _) => {
            anyhow!(
                "cannot write {target}: the disk is full; free some space or write elsewhere with --output"
            )
        }
        (ErrorKind::NotFound, Target::File(path)) if !folder(path).is_dir() => {
            anyhow!(
                "cannot write {target}: the folder {} does not exist; create it first",
                folder(path).display()
            )
        }
        _ => anyhow!("cannot write {target}: {error}; choose another --output"),
    }
}
