//! What formats of columns are made from. Their files end in a table of contents, so a run that is killed would leave
//! nothing of use; rows are gathered as an Arrow stream instead, which can be cut and continued after any batch, and in
//! the end they are grouped anew, so that the result does not tell how often the run was interrupted.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::iter;

use anyhow::{Result, anyhow, bail};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};

use super::columns::{Columns, each_row, schema};
use super::destination::Destination;
use super::{About, Block, Claim, Durable, Layout, Row, Writer};

/// A batch of the stream is written once it has this many bytes,
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// or this many rows.
pub(super) const BATCH_ROWS: usize = 4096;
/// A group of rows in the result ends once it has this many bytes.
const GROUP_BYTES: usize = 16 << 20;

/// Groups of rows, one after another.
pub type Groups<'a> = dyn Iterator<Item = Result<RecordBatch>> + 'a;

/// Writes groups of rows in a format; an [`std::io::Error`] of it is one of `sink`.
pub type Make = fn(groups: &mut Groups, schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()>;

/// Gathers rows, and writes them in their format in the end.
pub struct SpoolWriter {
    destination: Destination,
    layout: Layout,
    make: Make,
    columns: Columns,
    encoder: Encoder,
}

impl SpoolWriter {
    /// Opens a target for rows of `layout`.
    pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>, make: Make) -> Result<Self> {
        let is_new = durable.is_none();
        let mut writer = SpoolWriter {
            destination: Destination::seekable(claim, durable)?,
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

impl Writer for SpoolWriter {
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
        let SpoolWriter { destination, layout, make, .. } = *self;
        destination.convert(|spool, sink| {
            let mut batches = StreamReader::try_new(spool, None).map_err(unreadable)?;
            if batches.schema().fields() != schema(&layout).fields() {
                bail!("what the interrupted run left has other columns; pass --restart to start over");
            }
            make(&mut groups(&mut batches, &layout), schema(&layout), sink)
        })
    }
}

/// The messages of an Arrow stream, each alone, so that a stream can be continued.
pub(super) struct Encoder {
    generator: IpcDataGenerator,
    options: IpcWriteOptions,
    dictionaries: DictionaryTracker,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Encoder {
            generator: IpcDataGenerator::default(),
            options: IpcWriteOptions::default(),
            dictionaries: DictionaryTracker::new(true),
        }
    }

    pub(super) fn schema(&mut self, schema: &SchemaRef) -> Result<Vec<u8>, ArrowError> {
        let Encoder { generator, options, dictionaries } = self;
        let message = generator.schema_to_bytes_with_dictionary_tracker(schema, dictionaries, options);
        let mut bytes = Vec::new();
        write_message(&mut bytes, message, options)?;
        Ok(bytes)
    }

    pub(super) fn batch(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let Encoder { generator, options, dictionaries } = self;
        // No column has a dictionary.
        let (_, message) = generator.encode(batch, dictionaries, options, &mut Default::default())?;
        let mut bytes = Vec::new();
        write_message(&mut bytes, message, options)?;
        Ok(bytes)
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
