//! An array of `(N, D)`: a header of a fixed size, then the numbers of every row, little-endian.

use std::io::Write;

use anyhow::{Result, bail};

use super::destination::Destination;
use super::{About, Block, Claim, Dtype, Durable, Layout, Row, Writer};

/// The header of a format.
pub struct Header {
    /// Bytes that it takes, whatever the number of rows.
    pub size: usize,
    /// Its bytes, `size` of them, for an array of `(rows, width)`.
    pub text: fn(rows: u64, width: usize, dtype: Dtype, about: &About) -> Vec<u8>,
}

/// Writes the array's rows as they come, and the header, which has their number, in the end.
pub struct ArrayWriter {
    destination: Destination,
    header: &'static Header,
    dtype: Dtype,
    width: usize,
    rows: u64,
    about: About,
    bytes: Vec<u8>,
}

impl ArrayWriter {
    /// Opens a target for rows of `layout`.
    ///
    /// # Errors
    /// If the place cannot be written to, or what is durable is no whole number of rows.
    pub fn open(
        claim: &Claim,
        layout: &Layout,
        durable: Option<Durable>,
        header: &'static Header,
    ) -> Result<Self> {
        let (dtype, width) = (layout.dtype, layout.width());
        let row = (width * dtype.size()) as u64;
        let rows = durable_rows(claim, durable.as_ref(), header.size as u64, row)?;
        let destination = Destination::with_header(claim, durable, header.size)?;
        let (about, bytes) = (layout.about.clone(), Vec::new());
        Ok(ArrayWriter { destination, header, dtype, width, rows, about, bytes })
    }
}

/// How many rows of `row` bytes each are durable behind a header of `header` bytes.
///
/// # Errors
/// If what is durable is not the whole number of rows that it says.
pub(super) fn durable_rows(claim: &Claim, durable: Option<&Durable>, header: u64, row: u64) -> Result<u64> {
    let Some(Durable { rows, bytes, .. }) = durable else { return Ok(0) };
    if rows.checked_mul(row).and_then(|rows| rows.checked_add(header)) != Some(*bytes) {
        bail!(
            "cannot resume {}: {bytes} bytes are not {rows} {} of {row} bytes; pass --restart to start over",
            claim.target(),
            if *rows == 1 { "row" } else { "rows" }
        );
    }
    Ok(*rows)
}

impl Writer for ArrayWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        self.bytes.clear();
        row.vector.numbers.write_to(&mut self.bytes);
        self.rows += 1;
        self.destination.write_all(&self.bytes).map_err(|error| self.destination.fault(error))
    }

    fn checkpoint(&mut self) -> Result<u64> {
        self.destination.checkpoint()
    }

    fn blocks(&mut self, rows: u64) -> Vec<Block> {
        self.destination.blocks(rows)
    }

    fn describe(&mut self, about: &About) {
        self.about.clone_from(about);
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let header = (self.header.text)(self.rows, self.width, self.dtype, &self.about);
        self.destination.rewrite_start(&header)?;
        self.destination.commit()
    }
}
