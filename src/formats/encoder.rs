//! The trait of an output format.

use anyhow::{Result, bail};
use arrow_array::RecordBatch;

use crate::rows::{FileMetadata, Row};
use crate::store::{Access, Destination, DurableRows, Target};

/// An output format: encodes rows as the bytes of the partial file, and makes the final output of them.
///
/// The bytes of the partial file must depend on the schema and the rows only, or [`RowEncoder::finish`] must
/// convert them so that the output does: a resumed run must write the same output.
pub(super) trait RowEncoder: Send {
    /// How the encoder accesses bytes that it has written.
    fn access(&self) -> Access {
        Access::Sequential
    }

    /// Size in bytes of an encoded row, for formats in which all rows have the same size.
    fn row_bytes(&self) -> Option<usize> {
        None
    }

    /// Appends the header of a new partial file to `bytes`.
    fn begin(&mut self, _bytes: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// Appends a row to `bytes`, or holds it back until a later call.
    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()>;

    /// Appends the rows of a batch with the columns of the schema to `bytes`, or holds them back, for formats
    /// of record batches.
    fn encode_batch(&mut self, _batch: &RecordBatch, _bytes: &mut Vec<u8>) -> Result<()> {
        bail!("rows of this format are not written in batches; please report this as a bug")
    }

    /// Appends the rows that [`RowEncoder::encode`] held back to `bytes`.
    fn flush(&mut self, _bytes: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// Appends the rows that [`RowEncoder::encode`] held back to `bytes` as a record batch, even if there are
    /// none.
    fn end_batch(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        self.flush(bytes)
    }

    /// Replaces the metadata of the schema, for formats that write it in [`RowEncoder::finish`].
    fn set_metadata(&mut self, _metadata: &FileMetadata) {}

    /// Completes an output of `rows` rows, all of which are written, and commits it.
    fn finish(self: Box<Self>, destination: Destination, _rows: u64) -> Result<()> {
        destination.commit()
    }
}

/// Checks that durable rows are a header and complete rows of the encoder's fixed size, if it has one.
pub(super) fn check_row_size(encoder: &dyn RowEncoder, target: &Target, durable: &DurableRows) -> Result<()> {
    let Some(row_bytes) = encoder.row_bytes() else { return Ok(()) };
    let header = if let Access::Header(bytes) = encoder.access() { bytes as u64 } else { 0 };
    let DurableRows { rows, bytes, .. } = durable;
    let expected = rows.checked_mul(row_bytes as u64).and_then(|rows| rows.checked_add(header));
    if expected != Some(*bytes) {
        let noun = if *rows == 1 { "row" } else { "rows" };
        bail!(
            "cannot resume {target}: {bytes} bytes are not {rows} {noun} of {row_bytes} bytes; pass --restart to start over"
        );
    }
    Ok(())
}
