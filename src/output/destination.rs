//! The place behind a writer: standard output, a device or pipe, or a file that appears whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};

use anyhow::{Result, anyhow, bail};

use super::digest::{Block, BlockHasher, Damage};
use super::fault::explain;
use super::place::{beside_output, in_its_way, remove, rename};
use super::{Beside, Claim, Durable, Target};

/// An open target. What is written to a file goes to [`super::Beside::rows`], which stays there until
/// [`Destination::commit`] makes it durable and gives it the final name.
pub struct Destination {
    target: Target,
    sink: BufWriter<Sink>,
    /// The file that it is to be, until it is.
    beside: Option<Beside>,
    /// Over all that was written to that file but its header.
    hasher: BlockHasher,
}

enum Sink {
    File(File),
    Stdout(io::Stdout),
    /// An unnamed file for a format that has to go back to its beginning where the target cannot.
    Spool(File, Box<Sink>),
}

/// What was written to a destination.
pub trait ReadSeek: Read + Seek {}

impl<T: Read + Seek> ReadSeek for T {}

/// Bytes that are gathered before they are written.
const BUFFER: usize = 1 << 16;

impl Destination {
    /// Opens a target for writing from front to back, after what is durable.
    pub fn sequential(claim: &Claim, durable: Option<Durable>) -> Result<Self> {
        Self::open(claim, durable, false)
    }

    /// Opens a target that can go back to its beginning, with [`Destination::convert`].
    pub fn seekable(claim: &Claim, durable: Option<Durable>) -> Result<Self> {
        Self::open(claim, durable, true)
    }

    /// Opens a target that begins with `header` bytes, zeros until [`Destination::rewrite_start`] writes them.
    pub fn with_header(claim: &Claim, durable: Option<Durable>, header: usize) -> Result<Self> {
        let is_new = durable.is_none();
        let mut destination = Self::open_after(claim, durable, true, header as u64)?;
        if is_new {
            destination.sink.write_all(&vec![0; header]).map_err(|error| destination.fault(error))?;
        }
        Ok(destination)
    }

    fn open(claim: &Claim, durable: Option<Durable>, seek: bool) -> Result<Self> {
        Self::open_after(claim, durable, seek, 0)
    }

    /// The first `header` bytes may change, so they are not compared with what was written.
    fn open_after(claim: &Claim, durable: Option<Durable>, seek: bool, header: u64) -> Result<Self> {
        let (target, beside) = (claim.target(), claim.beside().cloned());
        if let (None, Some(_)) = (&beside, &durable) {
            bail!("cannot resume {target}: it is no file that can be continued; leave --resume out");
        }
        let mut hasher = BlockHasher::new(header);
        let sink = match (target, &beside) {
            (_, Some(beside)) => Sink::File(partial(target, beside, durable, header, &mut hasher)?),
            (Target::Stdout, None) => Sink::Stdout(io::stdout()),
            // Devices and pipes are written to, never replaced.
            (Target::File(path), None) => {
                let file = OpenOptions::new().write(true).open(path);
                Sink::File(file.map_err(|error| explain(target, false, error))?)
            }
        };
        let sink = match seek && beside.is_none() {
            true => match tempfile::tempfile() {
                Ok(spool) => Sink::Spool(spool, Box::new(sink)),
                Err(error) => bail!(
                    "cannot make a temporary file in {} ({error}); set TMPDIR",
                    std::env::temp_dir().display()
                ),
            },
            false => sink,
        };
        let sink = BufWriter::with_capacity(BUFFER, sink);
        Ok(Destination { target: target.clone(), sink, beside, hasher })
    }

    /// Makes what was written durable, and returns how many bytes the partial file has. Where there is none, what was
    /// written goes on to its reader, and the answer is 0.
    pub fn checkpoint(&mut self) -> Result<u64> {
        let checkpoint = |sink: &mut BufWriter<Sink>| {
            sink.flush()?;
            match (sink.get_mut(), &self.beside) {
                (Sink::File(file), Some(_)) => {
                    file.sync_data()?;
                    file.stream_position()
                }
                _ => Ok(0),
            }
        };
        checkpoint(&mut self.sink).map_err(|error| self.fault(error))
    }

    /// The digests of all that was written to the partial file, where there is one; `rows` were written so far.
    pub fn blocks(&mut self, rows: u64) -> Vec<Block> {
        self.hasher.blocks(rows)
    }

    /// Writes over the first bytes of a seekable destination.
    pub fn rewrite_start(&mut self, bytes: &[u8]) -> Result<()> {
        let rewrite = |sink: &mut BufWriter<Sink>| {
            let file = rewound(sink)?;
            file.write_all(bytes)?;
            file.seek(SeekFrom::End(0)).map(|_| ())
        };
        rewrite(&mut self.sink).map_err(|error| self.fault(error))
    }

    /// Flushes, and gives a file its final name.
    pub fn commit(mut self) -> Result<()> {
        let (target, beside) = (&self.target, self.beside.take());
        let resumable = beside.is_some();
        let commit = |sink: &mut BufWriter<Sink>| {
            sink.flush()?;
            match (sink.get_mut(), beside) {
                (Sink::Spool(spool, sink), _) => {
                    spool.seek(SeekFrom::Start(0))?;
                    io::copy(spool, sink)?;
                    sink.flush()
                }
                (Sink::File(file), Some(beside)) => {
                    like_before(file, &beside)?;
                    file.sync_all()?;
                    rename(&beside.rows, &beside.output)
                }
                _ => Ok(()),
            }
        };
        commit(&mut self.sink).map_err(|error| explain(target, resumable, error))
    }

    /// Puts in the target's place what `make` makes of all that was written to a seekable destination. An
    /// [`io::Error`] of `make` is one of writing.
    pub fn convert(
        mut self,
        make: impl FnOnce(&mut dyn ReadSeek, &mut (dyn Write + Send)) -> Result<()>,
    ) -> Result<()> {
        let target = &self.target;
        let resumable = self.beside.is_some();
        let written = |result: Result<()>| match result.map_err(anyhow::Error::downcast::<io::Error>) {
            Ok(()) => Ok(()),
            Err(Ok(error)) => Err(explain(target, resumable, error)),
            Err(Err(error)) => Err(error),
        };
        rewound(&mut self.sink).map_err(|error| explain(target, resumable, error))?;
        match (self.sink.get_mut(), &self.beside) {
            (Sink::File(rows), Some(beside)) => {
                let whole = &beside.whole;
                // Half of one may be left of a run that was killed.
                remove(whole)?;
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let convert = || {
                    let file = options.open(whole)?;
                    file.set_permissions(rows.metadata()?.permissions())?;
                    let mut sink = BufWriter::with_capacity(BUFFER, file);
                    make(&mut BufReader::with_capacity(BUFFER, &*rows), &mut sink)?;
                    sink.flush()?;
                    let file = sink.get_ref();
                    like_before(file, beside)?;
                    file.sync_all()?;
                    rename(whole, &beside.output)?;
                    Ok(fs::remove_file(&beside.rows)?)
                };
                // Half of one is of no use, and the disk may be full of it.
                written(convert()).inspect_err(|_| drop(fs::remove_file(whole)))
            }
            (Sink::Spool(rows, sink), _) => {
                let mut sink = BufWriter::with_capacity(BUFFER, sink);
                let convert = || {
                    make(&mut BufReader::with_capacity(BUFFER, &*rows), &mut sink)?;
                    Ok(sink.flush()?)
                };
                written(convert())
            }
            _ => unreachable!("opened as seekable"),
        }
    }

    /// What an error means while rows are written.
    pub fn fault(&self, error: io::Error) -> anyhow::Error {
        match self.sink.get_ref() {
            Sink::Spool(..) => anyhow!(
                "cannot write a temporary file in {} ({error}); free some space there or set TMPDIR",
                std::env::temp_dir().display()
            ),
            Sink::File(_) | Sink::Stdout(_) => explain(&self.target, self.beside.is_some(), error),
        }
    }
}

/// The partial file: a new one in place of what is there, or the one of an interrupted run, cut to what is durable of it,
/// which `hasher` is given.
fn partial(
    target: &Target,
    beside: &Beside,
    durable: Option<Durable>,
    header: u64,
    hasher: &mut BlockHasher,
) -> Result<File> {
    let fault = |error| explain(target, true, error);
    let rows = &beside.rows;
    in_its_way(rows, target)?;
    let Some(Durable { bytes, blocks, .. }) = durable else {
        // What is there may be another user's, or have other names: it is not written to.
        remove(rows)?;
        return beside_output(&beside.output).read(true).open(rows).map_err(fault);
    };
    let shown = rows.display();
    let mut file = match OpenOptions::new().read(true).write(true).open(rows) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("cannot resume {target}: {shown} is not there any more; pass --restart to start over")
        }
        Err(error) => return Err(fault(error)),
    };
    let there = file.metadata().map_err(fault)?;
    if is_foreign(&there, beside) {
        bail!(
            "cannot resume {target}: {shown} belongs to another user or has other names; pass --restart to start over"
        );
    }
    if there.len() < bytes {
        bail!(
            "cannot resume {target}: {shown} has {} bytes, but {bytes} were written; pass --restart to start over",
            there.len()
        );
    }
    file.seek(SeekFrom::Start(header)).map_err(fault)?;
    let damage = hasher.add_all(BufReader::with_capacity(BUFFER, &file), bytes, &blocks).map_err(fault)?;
    if let Some(Damage { rows, bytes }) = damage {
        let rows = match rows.is_empty() {
            true => String::new(),
            false => format!(" (rows {} to {})", rows.start + 1, rows.end),
        };
        bail!(
            "cannot resume {target}: {shown} is damaged: it does not hold what was written to its bytes {} to {}{rows}; pass \
             --restart to start over",
            bytes.start,
            bytes.end
        );
    }
    file.set_len(bytes).and_then(|()| file.seek(SeekFrom::Start(bytes))).map_err(fault)?;
    Ok(file)
}

/// Whether a file is not this user's alone: the lock was made by this process.
#[cfg(unix)]
fn is_foreign(file: &fs::Metadata, beside: &Beside) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = fs::symlink_metadata(&beside.lock).map(|lock| lock.uid());
    file.nlink() > 1 || own.is_ok_and(|own| own != file.uid())
}

/// Whether a file is not this user's alone: elsewhere this is not known.
#[cfg(not(unix))]
fn is_foreign(_: &fs::Metadata, _: &Beside) -> bool {
    false
}

/// Gives a file the permissions of the output that it will replace, if there is one.
fn like_before(file: &File, beside: &Beside) -> io::Result<()> {
    match fs::metadata(&beside.output) {
        Ok(there) => file.set_permissions(there.permissions()),
        Err(_) => Ok(()),
    }
}

/// The file of a seekable destination, at its beginning.
fn rewound(sink: &mut BufWriter<Sink>) -> io::Result<&mut File> {
    sink.flush()?;
    match sink.get_mut() {
        Sink::File(file) | Sink::Spool(file, _) => {
            file.seek(SeekFrom::Start(0))?;
            Ok(file)
        }
        Sink::Stdout(_) => Err(io::Error::other("not opened as seekable")),
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        if self.beside.is_some() {
            self.hasher.add(&bytes[..written]);
        }
        Ok(written)
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
