//! An Arrow IPC stream for whoever reads rows as they come, from a pipe: record batches without an index at the end.

use std::io::Write;

use anyhow::Result;

use super::columns::{Columns, schema};
use super::destination::Destination;
use super::spool::{BATCH_BYTES, BATCH_ROWS, Encoder};
use super::{Block, Claim, Durable, Layout, Row, Writer};

/// The end of a stream: a message without a length.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Writes rows as an Arrow IPC stream.
pub struct StreamWriter {
    destination: Destination,
    columns: Columns,
    encoder: Encoder,
}

impl StreamWriter {
    /// Opens a target for rows of `layout`.
    pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>) -> Result<Self> {
        let destination = Destination::sequential(claim, durable)?;
        let mut writer = StreamWriter { destination, columns: Columns::new(layout), encoder: Encoder::new() };
        let message = writer.encoder.schema(&schema(layout))?;
        writer.append(&message)?;
        Ok(writer)
    }

    /// Writes the rows that are gathered.
    fn flush(&mut self) -> Result<()> {
        if self.columns.rows() > 0 {
            let message = self.encoder.batch(&self.columns.take()?)?;
            self.append(&message)?;
        }
        Ok(())
    }

    fn append(&mut self, message: &[u8]) -> Result<()> {
        self.destination.write_all(message).map_err(|error| self.destination.fault(error))
    }
}

impl Writer for StreamWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        self.columns.push(row)?;
        if self.columns.rows() >= BATCH_ROWS || self.columns.bytes() >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<u64> {
        self.flush()?;
        self.destination.checkpoint()
    }

    fn blocks(&mut self, rows: u64) -> Vec<Block> {
        self.destination.blocks(rows)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.flush()?;
        self.append(&END)?;
        self.destination.commit()
    }
}
