//! Vectors whose elements are in the file as they are in memory: little-endian, row-major, in one or several segments.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::{Result, anyhow};

use super::buffer::BlockBuffer;
use super::source::{Vectors, Visit, split};
use crate::output::OutputDtype;
use crate::sys::regular_file::read_exact_at;

/// Consecutive rows whose elements are consecutive in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// The rows.
    pub rows: Range<usize>,
    /// Offset of their elements, in bytes.
    pub offset: u64,
    /// Offset of their scales in f32, if the file has any.
    pub scales: Option<u64>,
}

/// The vectors of a file with segments.
pub(super) struct ArrayVectors {
    pub name: Arc<str>,
    pub file: Arc<File>,
    /// In the order of their rows, without gaps.
    pub segments: Vec<Segment>,
    pub dtype: OutputDtype,
    pub dimensions: usize,
}

impl ArrayVectors {
    /// Reads rows of a segment.
    fn fill(&self, segment: &Segment, rows: &Range<usize>, buffer: &mut BlockBuffer) -> std::io::Result<()> {
        let width = self.dtype.width(self.dimensions);
        let row_bytes = (width * self.dtype.element_bytes()) as u64;
        let skipped = (rows.start - segment.rows.start) as u64;
        let bytes = buffer.bytes_mut(self.dtype, rows.len(), width);
        read_exact_at(&self.file, bytes, segment.offset + skipped * row_bytes)?;
        match segment.scales {
            _ if self.dtype != OutputDtype::Int8 => {}
            None => buffer.set_unit_scales(width),
            Some(scales) => {
                buffer.scales.resize(rows.len(), 0.0);
                let bytes = bytemuck::cast_slice_mut(&mut buffer.scales);
                read_exact_at(&self.file, bytes, scales + skipped * size_of::<f32>() as u64)?;
            }
        }
        Ok(())
    }
}

impl Vectors for ArrayVectors {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        self.segments.iter().flat_map(|segment| split(segment.rows.clone(), max_rows)).collect()
    }

    fn read(
        &self,
        rows: Range<usize>,
        max_rows: usize,
        buffer: &mut BlockBuffer,
        visit: &mut Visit,
    ) -> Result<ControlFlow<()>> {
        let first = self.segments.partition_point(|segment| segment.rows.end <= rows.start);
        for segment in self.segments[first..].iter().take_while(|segment| segment.rows.start < rows.end) {
            let inside = rows.start.max(segment.rows.start)..rows.end.min(segment.rows.end);
            for rows in split(inside, max_rows) {
                self.fill(segment, &rows, buffer).map_err(|error| {
                    let (name, row) = (&self.name, rows.start);
                    anyhow!("cannot read {name} from row {row} on ({error}); write or copy the file again")
                })?;
                let block = buffer.block(self.dtype, rows.start, rows.len(), self.dimensions);
                if visit(&block)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
