//! The place behind a writer: standard output, a device or pipe, or a file that appears whole or not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

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

/// An open target. Writing to a file goes to `NAME.partial` beside it; [`Destination::commit`] makes that
/// durable and gives it the final name, and a destination dropped before removes it.
pub struct Destination {
    target: Target,
    sink: BufWriter<Sink>,
    /// The partial file and its final name, until they are one.
    partial: Option<(PathBuf, PathBuf)>,
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
            (true, None) => Sink::Spool(tempfile::tempfile().map_err(fault)?, Box::new(sink)),
            _ => sink,
        };
        Ok(Destination { target: target.clone(), sink: BufWriter::with_capacity(1 << 16, sink), partial })
    }

    fn partial(path: PathBuf) -> io::Result<(Sink, Option<(PathBuf, PathBuf)>)> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        Ok((Sink::File(File::create(&partial)?), Some((partial, path))))
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
            && let Some((partial, path)) = &self.partial
        {
            file.sync_all()?;
            fs::rename(partial, path)?;
            self.partial = None;
        }
        Ok(())
    }

    /// What a writer's error means for this destination.
    pub fn fault(&self, error: io::Error) -> anyhow::Error {
        explain(&self.target, error)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.partial {
            let _ = fs::remove_file(partial);
        }
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

/// One sentence on a failed write.
fn explain(target: &Target, error: io::Error) -> anyhow::Error {
    let folder = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
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
