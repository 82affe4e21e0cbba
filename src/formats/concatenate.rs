//! Joins jsonl or csv files byte by byte.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::csv::CsvRows;
use super::lines::read_line;
use super::row_file::RowFile;
use crate::error::one_line;
use crate::rows::OutputFormat;
use crate::store::{Access, Destination, OutputLock};
use crate::sys::regular_file;

/// Size in bytes of the buffer for copying.
const BUFFER_BYTES: usize = 1 << 18;

/// A file whose rows are joined with those of others.
pub struct JoinedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whether each of its rows is joined; `None` for all of them.
    pub kept: Option<Vec<bool>>,
}

/// Those of the files, of a format with columns, that have rows: the others may have other columns. The first
/// one if none has any.
pub(super) fn with_rows(format: OutputFormat, files: &[JoinedFile]) -> Result<Vec<&JoinedFile>> {
    let mut found = Vec::new();
    for file in files {
        let has_rows = match format {
            OutputFormat::Parquet | OutputFormat::Arrow => RowFile::open(&file.path, format)?.has_rows()?,
            _ => {
                let bytes = file.path.metadata().map_err(|error| unread(&file.path, &error))?.len();
                header(&file.path, format)?.len() as u64 != bytes
            }
        };
        found.extend(has_rows.then_some(file));
    }
    Ok(if found.is_empty() { files.iter().take(1).collect() } else { found })
}

/// Writes the rows of jsonl or csv files one after another. The header of csv files is written once.
pub fn concatenate(lock: &OutputLock, format: OutputFormat, files: &[JoinedFile]) -> Result<()> {
    let files = with_rows(format, files)?;
    let headers = files.iter().map(|file| header(&file.path, format)).collect::<Result<Vec<_>>>()?;
    let Some(first) = headers.first() else { return Ok(()) };
    for (file, header) in files.iter().zip(&headers) {
        if header != first {
            bail!(
                "{} has other columns than {}; merge files of the same columns",
                file.path.display(),
                files[0].path.display()
            );
        }
    }
    let mut destination = Destination::open(lock, None, Access::Sequential)?;
    destination.append(first)?;
    for (JoinedFile { path, kept }, header) in files.into_iter().zip(&headers) {
        let all = header.len() as u64..u64::MAX;
        let ranges = match kept {
            None => vec![all],
            Some(kept) => kept_ranges(path, format, all.start, kept)?,
        };
        append_rows(&mut destination, path, &ranges)?;
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

/// Where the rows are that `kept` has `true` for, in bytes. The first row is at `start`.
fn kept_ranges(path: &Path, format: OutputFormat, start: u64, kept: &[bool]) -> Result<Vec<Range<u64>>> {
    let unread = |error| unread(path, &error);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let (mut end, mut kept) = (start, kept.iter());
    let mut add_row = |row_end: u64| {
        let row = end..row_end;
        end = row_end;
        match (kept.next(), ranges.last_mut()) {
            (Some(true), Some(last)) if last.end == row.start => last.end = row.end,
            (Some(true), _) => ranges.push(row),
            _ => {}
        }
    };
    if format == OutputFormat::Csv {
        let mut rows = CsvRows::open(path).map_err(unread)?;
        rows.header().map_err(unread)?;
        while let Some(row) = rows.read().map_err(unread)? {
            add_row(row.bytes_read());
        }
    } else {
        let (mut file, mut line, mut end) = (BufReader::new(open(path)?), Vec::new(), start);
        while read_line(&mut file, &mut line).map_err(unread)? {
            end += line.len() as u64;
            add_row(end);
        }
    }
    Ok(ranges)
}

/// Appends ranges of the bytes of a file.
fn append_rows(destination: &mut Destination, path: &Path, ranges: &[Range<u64>]) -> Result<()> {
    let (mut file, mut buffer, mut last) = (open(path)?, vec![0; BUFFER_BYTES], b'\n');
    for range in ranges {
        file.seek(SeekFrom::Start(range.start)).map_err(|error| unread(path, &error))?;
        let mut rows = (&file).take(range.end - range.start);
        loop {
            let read = rows.read(&mut buffer).map_err(|error| unread(path, &error))?;
            if read == 0 {
                break;
            }
            last = buffer[read - 1];
            destination.append(&buffer[..read])?;
        }
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
