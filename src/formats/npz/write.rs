//! Sparse vectors as a matrix `(N, V)` in CSR form, as `scipy.sparse.save_npz` writes it without compression:
//! a zip archive of the NumPy arrays `indices`, `indptr`, `format`, `shape` and `data`.

use std::io::{Read, Seek, SeekFrom, Write};

use anyhow::Result;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::formats::encoder::RowEncoder;
use crate::formats::npy::write as npy;
use crate::rows::{Content, ContentType, OutputSchema, Row, other_content};
use crate::store::{Access, Destination, ReadSeek};

/// Size in bytes of the number of elements before each row of the partial file.
const LENGTH_BYTES: usize = size_of::<u64>();
/// Size in bytes of an index, and of a value.
const ELEMENT_BYTES: usize = size_of::<i32>();

/// Encodes sparse rows. A row of the partial file is the number of its elements, their indices and their
/// values, so that the file can be truncated after any row; [`RowEncoder::finish`] copies the arrays out of
/// it one by one.
pub(crate) struct NpzEncoder {
    /// V: columns of the matrix.
    dimensions: usize,
}

impl NpzEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &OutputSchema) -> Result<Self> {
        match schema.content {
            ContentType::Sparse { dimensions } => Ok(NpzEncoder { dimensions }),
            _ => other_content(),
        }
    }
}

impl RowEncoder for NpzEncoder {
    fn access(&self) -> Access {
        Access::Convert
    }

    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        let Content::Sparse(vector) = &row.content else { return other_content() };
        bytes.extend((vector.indices.len() as u64).to_le_bytes());
        bytes.extend(vector.indices.iter().flat_map(|index| index.to_le_bytes()));
        bytes.extend(vector.values.iter().flat_map(|value| value.to_le_bytes()));
        Ok(())
    }

    fn finish(self: Box<Self>, destination: Destination, rows: u64) -> Result<()> {
        destination.convert(|partial, sink| write_archive(partial, sink, rows, self.dimensions as u64))
    }
}

/// Writes the archive of `rows` rows.
fn write_archive(
    partial: &mut dyn ReadSeek,
    sink: &mut (dyn Write + Send),
    rows: u64,
    dimensions: u64,
) -> Result<()> {
    let mut elements = 0;
    for_each_row(partial, rows, |partial, length| {
        elements += length;
        skip(partial, 2 * length)
    })?;
    let mut archive = ZipWriter::new_stream(sink);
    begin(&mut archive, "indices", &[elements], "<i4")?;
    for_each_row(partial, rows, |partial, length| {
        copy(partial, &mut archive, length)?;
        skip(partial, length)
    })?;
    begin(&mut archive, "indptr", &[rows + 1], "<i8")?;
    let mut end = 0;
    archive.write_all(&u64::to_le_bytes(end))?;
    for_each_row(partial, rows, |partial, length| {
        end += length;
        archive.write_all(&end.to_le_bytes())?;
        skip(partial, 2 * length)
    })?;
    begin(&mut archive, "format", &[], "|S3")?;
    archive.write_all(b"csr")?;
    begin(&mut archive, "shape", &[2], "<i8")?;
    archive.write_all(&[rows.to_le_bytes(), dimensions.to_le_bytes()].concat())?;
    begin(&mut archive, "data", &[elements], "<f4")?;
    for_each_row(partial, rows, |partial, length| {
        skip(partial, length)?;
        copy(partial, &mut archive, length)
    })?;
    archive.finish().map_err(io_error)?;
    Ok(())
}

/// Begins an array of this shape in the archive.
fn begin<W: Write + Seek>(archive: &mut ZipWriter<W>, name: &str, shape: &[u64], descr: &str) -> Result<()> {
    // Arrays of several GB need the zip64 format.
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    archive.start_file(format!("{name}.npy"), options).map_err(io_error)?;
    Ok(archive.write_all(&npy::header(shape, descr))?)
}

/// A failed write, whose kind tells whether the disk is full.
fn io_error(error: ZipError) -> std::io::Error {
    match error {
        ZipError::Io(error) => error,
        other => std::io::Error::other(other),
    }
}

/// Calls `visit` after the number of elements of each row, which it gets; it has to read the row to its end.
fn for_each_row(
    partial: &mut dyn ReadSeek,
    rows: u64,
    mut visit: impl FnMut(&mut dyn ReadSeek, u64) -> Result<()>,
) -> Result<()> {
    partial.seek(SeekFrom::Start(0))?;
    let mut length = [0; LENGTH_BYTES];
    for _ in 0..rows {
        partial.read_exact(&mut length)?;
        visit(partial, u64::from_le_bytes(length))?;
    }
    Ok(())
}

/// Copies `elements` indices or values.
fn copy(partial: &mut dyn ReadSeek, sink: &mut dyn Write, elements: u64) -> Result<()> {
    std::io::copy(&mut partial.take(elements * ELEMENT_BYTES as u64), sink)?;
    Ok(())
}

/// Skips `elements` indices or values.
fn skip(partial: &mut dyn ReadSeek, elements: u64) -> Result<()> {
    copy(partial, &mut std::io::sink(), elements)
}
