//! A NumPy array of `(N, D)`, little-endian `f32`, in C order (NEP 1).

use std::io::Write;

use anyhow::{Result, bail};

use super::destination::Destination;
use super::{Row, Shape, Target, Writer};

/// Bytes that the header takes: room for any number of rows, and a multiple of 64 as the format asks.
const HEADER: usize = 128;

/// Writes the array's rows as they come, and the header, which has their number, in the end.
pub struct NpyWriter {
    destination: Destination,
    dimensions: usize,
    rows: usize,
}

impl NpyWriter {
    /// Opens a target for rows of `shape`.
    ///
    /// # Errors
    /// If the shape has a vector a token: texts of unlike length make no array.
    pub fn open(target: &Target, shape: Shape) -> Result<Self> {
        if shape.per_token {
            bail!("npy has one vector a row; write --pooling none as jsonl (--output-format jsonl)");
        }
        let mut destination = Destination::seekable(target)?;
        destination.write_all(&[0; HEADER]).map_err(|error| destination.fault(error))?;
        Ok(NpyWriter { destination, dimensions: shape.dimensions, rows: 0 })
    }

    fn header(&self) -> Vec<u8> {
        let (rows, columns) = (self.rows, self.dimensions);
        let shape = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
        let mut header = b"\x93NUMPY\x01\x00".to_vec();
        header.extend_from_slice(&(HEADER as u16 - 10).to_le_bytes());
        header.extend_from_slice(shape.as_bytes());
        header.resize(HEADER - 1, b' ');
        header.push(b'\n');
        header
    }
}

impl Writer for NpyWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        let bytes: Vec<u8> = row.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.rows += 1;
        self.destination.write_all(&bytes).map_err(|error| self.destination.fault(error))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let header = self.header();
        self.destination.rewrite_start(&header)?;
        self.destination.commit()
    }
}
