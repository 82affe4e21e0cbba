//! Joins jsonl or csv files byte by byte.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::csv::CsvRows;
use crate::error::one_line;
use crate::rows::OutputFormat;
use crate::store::{Access, Destination, OutputLock};
use crate::sys::regular_file;

/// Size in bytes of the buffer for copying.
const BUFFER_BYTES: usize = 1 << 18;

/// Writes the rows of jsonl or csv files one after another. The header of csv files is written once.
pub fn concatenate(lock: &OutputLock, format: OutputFormat, paths: &[PathBuf]) -> Result<()> {
    let headers = paths.iter().map(|path| header(path, format)).collect::<Result<Vec<_>>>()?;
    let Some(first) = headers.first() else { return Ok(()) };
    for (path, header) in paths.iter().zip(&headers) {
        if header != first {
            bail!(
                "{} has other columns than {}; merge files of the same columns",
                path.display(),
                paths[0].display()
            );
        }
    }
    let mut destination = Destination::open(lock, None, Access::Sequential)?;
    destination.append(first)?;
    for (path, header) in paths.iter().zip(&headers) {
        append_rows(&mut destination, path, header.len() as u64)?;
    }
    destination.commit()
}

/// The bytes of a csv file up to its first row; none of a jsonl file.
fn header(path: &Path, format: OutputFormat) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if format == OutputFormat::Csv {
        let mut rows = CsvRows::open(path).map_err(|error| unread(path, &error))?;
        let (_, end) = rows.header().map_err(|error| unread(path, &error))?;
        let header = open(path)?.take(end).read_to_end(&mut bytes);
        header.map_err(|error| unread(path, &error))?;
    }
    Ok(bytes)
}

/// Appends the bytes of a file from `start` on.
fn append_rows(destination: &mut Destination, path: &Path, start: u64) -> Result<()> {
    let mut file = open(path)?;
    file.seek(SeekFrom::Start(start)).map_err(|error| unread(path, &error))?;
    let (mut buffer, mut last) = (vec![0; BUFFER_BYTES], b'\n');
    loop {
        let read = file.read(&mut buffer).map_err(|error| unread(path, &error))?;
        if read == 0 {
            break;
        }
        last = buffer[read - 1];
        destination.append(&buffer[..read])?;
    }
    if last != b'\n' {
        bail!("{} ends in the middle of a row; write or copy it again", path.display());
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    regular_file::open(path).map_err(|error| unread(path, &error))
}

/// The error for a file that cannot be read.
fn unread(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot read {} ({}); check the path", path.display(), one_line(error))
}
