//! Rows in columns, gathered as an Arrow stream. Whoever reads from a pipe has the stream as it comes. Files of columns end in
//! a table of contents, so a run that is killed would leave nothing of use; they are made from the stream, which can be cut
//! and continued after any batch, and in the end the rows are grouped anew, so that the result does not tell how often the
//! run was interrupted.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::iter;

use anyhow::{Result, anyhow, bail};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;

use super::arrow::{END, Encoder};
use super::columns::{Columns, Groups, each_row, schema};
use super::destination::Destination;
use super::{About, Block, Claim, Durable, Layout, Row, Writer};

/// A batch of the stream is written once it has this many bytes,
const BATCH_BYTES: usize = 4 << 20;
/// or this many rows.
const BATCH_ROWS: usize = 4096;
/// A group of rows in the result ends once it has this many bytes.
const GROUP_BYTES: usize = 16 << 20;

/// Writes groups of rows in a format; an [`std::io::Error`] of it is one of `sink`.
pub type Make = fn(groups: &mut Groups, schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()>;

/// Writes rows as an Arrow stream.
pub struct RowsWriter {
    destination: Destination,
    layout: Layout,
    /// What is made of the stream in the end; none if it is the output itself.
    make: Option<Make>,
    columns: Columns,
    encoder: Encoder,
}

impl RowsWriter {
    /// Opens a target for rows of `layout`.
    pub fn open(
        claim: &Claim,
        layout: &Layout,
        durable: Option<Durable>,
        make: Option<Make>,
    ) -> Result<Self> {
        let is_new = durable.is_none();
        let destination = match make {
            Some(_) => Destination::seekable(claim, durable)?,
            None => Destination::sequential(claim, durable)?,
        };
        let mut writer = RowsWriter {
            destination,
            layout: layout.clone(),
            make,
            columns: Columns::new(layout),
            encoder: Encoder::new(),
        };
        if is_new {
            let message = writer.encoder.schema(&schema(layout))?;
            writer.append(&message)?;
        }
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

impl Writer for RowsWriter {
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

    fn describe(&mut self, about: &About) {
        self.layout.about.clone_from(about);
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.flush()?;
        let Some(make) = self.make else {
            self.append(&END)?;
            return self.destination.commit();
        };
        let RowsWriter { destination, layout, .. } = *self;
        destination.convert(|spool, sink| {
            let mut batches = StreamReader::try_new(spool, None).map_err(unreadable)?;
            if batches.schema().fields() != schema(&layout).fields() {
                bail!("what the interrupted run left has other columns; pass --restart to start over");
            }
            make(&mut groups(&mut batches, &layout), schema(&layout), sink)
        })
    }
}

/// The rows of a stream in groups whose ends follow from the rows alone.
fn groups<'a>(
    batches: &'a mut StreamReader<impl Read>,
    layout: &'a Layout,
) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
    let mut columns = Columns::new(layout);
    let mut full = VecDeque::new();
    iter::from_fn(move || {
        loop {
            if let Some(group) = full.pop_front() {
                return Some(Ok(group));
            }
            let gathered = match batches.next() {
                None if columns.rows() == 0 => return None,
                None => columns.take().map(|group| full.push_back(group)).map_err(unreadable),
                Some(Err(error)) => Err(unreadable(error)),
                Some(Ok(batch)) => each_row(&batch, layout, |row| {
                    columns.push(row)?;
                    if columns.bytes() >= GROUP_BYTES {
                        full.push_back(columns.take()?);
                    }
                    Ok(())
                }),
            };
            if let Err(error) = gathered {
                return Some(Err(error));
            }
        }
    })
}

/// One sentence on a stream that does not hold what was written.
fn unreadable(error: ArrowError) -> anyhow::Error {
    anyhow!("the rows so far cannot be read back ({error}); pass --restart to start over")
}
