//! The bytes of an output: standard output, a pipe or device, or a partial file that is renamed when it is
//! complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};

use anyhow::{Result, anyhow, bail};

use super::durable_rows::{BlockHasher, DigestMismatch, DurableRows, HashedBlock};
use super::lock::OutputLock;
use super::own_file::{self, PRIVATE};
use super::replace::{commit, copy_permissions, create_sidecar, refuse_non_file, remove};
use super::sidecars::SidecarPaths;
use super::target::Target;
use super::write_error::write_error;
use crate::sys::stdout;

/// Capacity in bytes of the buffers for reading and writing.
const BUFFER_BYTES: usize = 1 << 16;

/// How an encoder uses the bytes that it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It only appends.
    Sequential,
    /// It appends after a header of this many bytes, which [`Destination::commit_with_header`] writes.
    Header(usize),
    /// It converts all of them in [`Destination::convert`].
    Convert,
}

/// The open target of an output. A regular file is written to [`SidecarPaths::partial`] and renamed by one of
/// the methods that take `self`; if those are not called, the partial file stays.
pub struct Destination {
    target: Target,
    sink: BufWriter<Sink>,
    /// The paths of a regular file; `None` for standard output, a pipe or a device.
    sidecars: Option<SidecarPaths>,
    /// Digests of the partial file, without its header.
    hasher: BlockHasher,
}

enum Sink {
    /// The partial file, or an open pipe or device.
    File(File),
    Stdout(Box<dyn Write + Send>),
    /// An unnamed temporary file in front of a target that cannot seek, for access other than sequential.
    Spool(File, Box<Sink>),
}

/// The bytes that were written, for [`Destination::convert`].
pub trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}

impl Destination {
    /// Opens a locked target: from the beginning, or after the durable rows of an interrupted run.
    pub fn open(lock: &OutputLock, durable: Option<DurableRows>, access: Access) -> Result<Self> {
        let (target, sidecars) = (lock.target(), lock.sidecars().cloned());
        if sidecars.is_none() && durable.is_some() {
            bail!("cannot resume {target}: it is not a regular file; leave --resume out");
        }
        let header = if let Access::Header(bytes) = access { bytes } else { 0 };
        let is_new = durable.is_none();
        let mut hasher = BlockHasher::new(header as u64);
        let sink = match (target, &sidecars) {
            (_, Some(sidecars)) => Sink::File(match durable {
                None => create_partial(target, sidecars)?,
                Some(durable) => resume_partial(target, sidecars, &durable, header as u64, &mut hasher)?,
            }),
            (Target::Stdout, None) => Sink::Stdout(stdout::for_rows()),
            // A pipe or device is written to, not replaced.
            (Target::File(path), None) => {
                let file = OpenOptions::new().write(true).open(path);
                Sink::File(file.map_err(|error| write_error(target, false, error))?)
            }
        };
        let needs_spool = access != Access::Sequential && sidecars.is_none();
        let sink = if needs_spool { Sink::Spool(spool_file()?, Box::new(sink)) } else { sink };
        let sink = BufWriter::with_capacity(BUFFER_BYTES, sink);
        let mut destination = Destination { target: target.clone(), sink, sidecars, hasher };
        if is_new {
            // A placeholder. The header is not hashed, since it is written last.
            let written = destination.sink.write_all(&vec![0; header]);
            written.map_err(|error| destination.error(error))?;
        }
        Ok(destination)
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink.write_all(bytes).map_err(|error| self.error(error))?;
        if self.sidecars.is_some() {
            self.hasher.add(bytes);
        }
        Ok(())
    }

    /// Syncs the partial file and returns its length in bytes. Any other target is flushed, and the result
    /// is 0.
    pub fn checkpoint(&mut self) -> Result<u64> {
        let checkpoint = |sink: &mut BufWriter<Sink>| {
            sink.flush()?;
            match (sink.get_mut(), &self.sidecars) {
                (Sink::File(file), Some(_)) => {
                    file.sync_data()?;
                    file.stream_position()
                }
                _ => Ok(0),
            }
        };
        checkpoint(&mut self.sink).map_err(|error| self.error(error))
    }

    /// Digests of the partial file, which holds `rows` rows; none for any other target.
    pub fn blocks(&mut self, rows: u64) -> Vec<HashedBlock> {
        self.hasher.blocks(rows)
    }

    /// Writes the header over its placeholder and commits. The access must be [`Access::Header`].
    pub fn commit_with_header(mut self, header: &[u8]) -> Result<()> {
        let rewrite = |sink: &mut BufWriter<Sink>| {
            let file = rewind(sink)?;
            file.write_all(header)?;
            file.seek(SeekFrom::End(0)).map(|_| ())
        };
        rewrite(&mut self.sink).map_err(|error| self.error(error))?;
        self.commit()
    }

    /// Flushes all bytes; syncs a partial file and renames it to its final name.
    pub fn commit(mut self) -> Result<()> {
        let (target, sidecars) = (&self.target, self.sidecars.take());
        let resumable = sidecars.is_some();
        let finish = |sink: &mut BufWriter<Sink>| {
            sink.flush()?;
            match (sink.get_mut(), sidecars) {
                (Sink::Spool(spool, sink), _) => {
                    spool.seek(SeekFrom::Start(0))?;
                    io::copy(spool, sink)?;
                    sink.flush()
                }
                (Sink::File(file), Some(sidecars)) => {
                    copy_permissions(&sidecars.output, file)?;
                    commit(file, &sidecars.partial, &sidecars.output)
                }
                _ => Ok(()),
            }
        };
        finish(&mut self.sink).map_err(|error| write_error(target, resumable, error))
    }

    /// Calls `convert` with a reader of all bytes written and a writer of the final output, and commits that.
    /// The access must be [`Access::Convert`].
    ///
    /// # Errors
    /// Those of `convert`, where an [`io::Error`] is a failed write; and if the final output cannot be
    /// written.
    pub fn convert(
        mut self,
        convert: impl FnOnce(&mut dyn ReadSeek, &mut (dyn Write + Send)) -> Result<()>,
    ) -> Result<()> {
        let (target, resumable) = (&self.target, self.sidecars.is_some());
        rewind(&mut self.sink).map_err(|error| write_error(target, resumable, error))?;
        let converted = match (self.sink.get_mut(), &self.sidecars) {
            (Sink::File(partial), Some(sidecars)) => {
                // A partly converted file is of no use, and the disk may be full.
                convert_file(partial, sidecars, convert)
                    .inspect_err(|_| drop(fs::remove_file(&sidecars.converted)))
            }
            (Sink::Spool(spool, sink), _) => {
                let mut sink = BufWriter::with_capacity(BUFFER_BYTES, sink);
                convert(&mut BufReader::with_capacity(BUFFER_BYTES, &*spool), &mut sink)
                    .and_then(|()| Ok(sink.flush()?))
            }
            _ => unreachable!("opened with Access::Convert"),
        };
        converted.map_err(|error| match error.downcast::<io::Error>() {
            Ok(error) => write_error(target, resumable, error),
            Err(error) => error,
        })
    }

    /// The message for a failed write of rows.
    fn error(&self, error: io::Error) -> anyhow::Error {
        match self.sink.get_ref() {
            Sink::Spool(..) => anyhow!(
                "cannot write a temporary file in {} ({error}); free some space there or set TMPDIR",
                std::env::temp_dir().display()
            ),
            Sink::File(_) | Sink::Stdout(_) => write_error(&self.target, self.sidecars.is_some(), error),
        }
    }
}

/// Creates the partial file, in place of an earlier one. That is not opened: it may belong to another user or
/// have hard links.
fn create_partial(target: &Target, sidecars: &SidecarPaths) -> Result<File> {
    refuse_non_file(&sidecars.partial, target)?;
    remove(&sidecars.partial)?;
    let file = create_sidecar(&sidecars.partial, &sidecars.output);
    file.map_err(|error| write_error(target, true, error))
}

/// Opens the partial file of an interrupted run, verifies its durable rows, adds them to `hasher` and
/// truncates the file after them.
fn resume_partial(
    target: &Target,
    sidecars: &SidecarPaths,
    durable: &DurableRows,
    header: u64,
    hasher: &mut BlockHasher,
) -> Result<File> {
    let DurableRows { bytes, blocks, .. } = durable;
    let partial = &sidecars.partial;
    let refuse = |reason: String| {
        anyhow!("cannot resume {target}: {} {reason}; pass --restart to start over", partial.display())
    };
    let failed = |error| write_error(target, true, error);
    let mut file = match own_file::open_to_write(partial) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(refuse("no longer exists".into())),
        Err(error) => return Err(refuse(format!("cannot be opened ({error})"))),
    };
    let length = file.metadata().map_err(failed)?.len();
    if length < *bytes {
        return Err(refuse(format!("has {length} bytes, but {bytes} were written")));
    }
    file.seek(SeekFrom::Start(header)).map_err(failed)?;
    let reader = BufReader::with_capacity(BUFFER_BYTES, &file);
    if let Some(mismatch) = hasher.add_verified(reader, *bytes, blocks).map_err(failed)? {
        let DigestMismatch { rows, bytes } = mismatch;
        let rows = if rows.is_empty() {
            String::new()
        } else {
            format!(" (rows {} to {})", rows.start + 1, rows.end)
        };
        let reason =
            format!("is damaged: bytes {} to {}{rows} are not what was written", bytes.start, bytes.end);
        return Err(refuse(reason));
    }
    file.set_len(*bytes).and_then(|()| file.seek(SeekFrom::Start(*bytes))).map_err(failed)?;
    Ok(file)
}

/// Converts a partial file to the final output, renames that and removes the partial file.
fn convert_file(
    partial: &File,
    sidecars: &SidecarPaths,
    convert: impl FnOnce(&mut dyn ReadSeek, &mut (dyn Write + Send)) -> Result<()>,
) -> Result<()> {
    let converted = &sidecars.converted;
    // A killed run may have left one.
    remove(converted)?;
    let file = own_file::create_new(converted, PRIVATE)?;
    file.set_permissions(partial.metadata()?.permissions())?;
    let mut sink = BufWriter::with_capacity(BUFFER_BYTES, file);
    convert(&mut BufReader::with_capacity(BUFFER_BYTES, partial), &mut sink)?;
    sink.flush()?;
    let file = sink.get_ref();
    copy_permissions(&sidecars.output, file)?;
    commit(file, converted, &sidecars.output)?;
    Ok(fs::remove_file(&sidecars.partial)?)
}

/// An unnamed temporary file.
fn spool_file() -> Result<File> {
    tempfile::tempfile().map_err(|error| {
        anyhow!("cannot create a temporary file in {} ({error}); set TMPDIR", std::env::temp_dir().display())
    })
}

/// Flushes a file that can seek and returns it, at its beginning.
fn rewind(sink: &mut BufWriter<Sink>) -> io::Result<&mut File> {
    sink.flush()?;
    match sink.get_mut() {
        Sink::File(file) | Sink::Spool(file, _) => {
            file.seek(SeekFrom::Start(0))?;
            Ok(file)
        }
        Sink::Stdout(_) => Err(io::Error::other("standard output cannot seek")),
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
