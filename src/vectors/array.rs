//! Vectors whose elements are in the file as they are in memory: little-endian, row-major, in one or several
//! segments. The file is mapped; where it cannot be, its rows are read.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use half::slice::HalfBitsSliceExt;

use super::buffer::{BlockBuffer, unit_scales};
use super::source::{Blocks, Vectors, split};
use crate::formats::error::unread;
use crate::neighbours::{Block, Elements};
use crate::rows::OutputDtype;
use crate::sys::mapped_file::MappedFile;
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
    name: Arc<str>,
    file: Arc<File>,
    /// `None` if the address space is too small for the file.
    map: Option<MappedFile>,
    /// In the order of their rows, without gaps.
    segments: Vec<Segment>,
    dtype: OutputDtype,
    dimensions: usize,
}

impl ArrayVectors {
    /// The vectors of `file`, which was opened at the path `name` and has all of the segments.
    pub(super) fn new(
        name: Arc<str>,
        file: Arc<File>,
        segments: Vec<Segment>,
        dtype: OutputDtype,
        dimensions: usize,
    ) -> Self {
        let map = file.try_clone().and_then(|file| MappedFile::new(Path::new(&*name), file)).ok();
        ArrayVectors { name, file, map, segments, dtype, dimensions }
    }

    /// Offset of a row, and of its scale, in bytes.
    fn offsets(&self, segment: &Segment, row: usize) -> (u64, Option<u64>) {
        let row_bytes = self.dtype.width(self.dimensions) * self.dtype.element_bytes();
        let skipped = (row - segment.rows.start) as u64;
        let scale = |offset: u64| offset + skipped * size_of::<f32>() as u64;
        (segment.offset + skipped * row_bytes as u64, segment.scales.map(scale))
    }

    /// Rows of a segment in the map; `None` if the file is not mapped, or the elements are not aligned in it.
    fn mapped<'a>(
        &'a self,
        segment: &Segment,
        rows: &Range<usize>,
        scales: &'a mut Vec<f32>,
    ) -> Option<Block<'a>> {
        let width = self.dtype.width(self.dimensions);
        let (start, scales_start) = self.offsets(segment, rows.start);
        let bytes = |start: u64, size: usize| {
            let start = usize::try_from(start).ok()?;
            self.map.as_ref()?.as_ref().get(start..start.checked_add(size)?)
        };
        let stored = bytes(start, rows.len() * width * self.dtype.element_bytes())?;
        let elements = match self.dtype {
            OutputDtype::F32 => Elements::F32(bytemuck::try_cast_slice(stored).ok()?),
            OutputDtype::F16 => {
                let bits: &[u16] = bytemuck::try_cast_slice(stored).ok()?;
                Elements::F16(bits.reinterpret_cast())
            }
            OutputDtype::Binary => Elements::Binary(bytemuck::cast_slice(stored)),
            // Files with such elements are converted, and not read here.
            OutputDtype::Ubinary => return None,
            OutputDtype::Int8 => {
                let values = bytemuck::cast_slice(stored);
                let scales = match scales_start {
                    Some(start) => {
                        bytemuck::try_cast_slice(bytes(start, rows.len() * size_of::<f32>())?).ok()?
                    }
                    None => {
                        unit_scales(values, width, scales);
                        scales
                    }
                };
                Elements::Int8 { values, scales }
            }
        };
        Some(Block {
            first_row: rows.start,
            rows: rows.len(),
            lengths: &[],
            dimensions: self.dimensions,
            elements,
        })
    }

    /// Reads rows of a segment into `buffer`.
    fn fill(&self, segment: &Segment, rows: &Range<usize>, buffer: &mut BlockBuffer) -> std::io::Result<()> {
        let width = self.dtype.width(self.dimensions);
        let (start, scales_start) = self.offsets(segment, rows.start);
        read_exact_at(&self.file, buffer.bytes_mut(self.dtype, rows.len(), width), start)?;
        match scales_start {
            _ if self.dtype != OutputDtype::Int8 => {}
            None => buffer.set_unit_scales(width),
            Some(start) => {
                buffer.scales.resize(rows.len(), 0.0);
                read_exact_at(&self.file, bytemuck::cast_slice_mut(&mut buffer.scales), start)?;
            }
        }
        Ok(())
    }
}

impl Vectors for ArrayVectors {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        self.segments.iter().flat_map(|segment| split(segment.rows.clone(), max_rows)).collect()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let Blocks { max_rows, buffer, visit } = blocks;
        let first = self.segments.partition_point(|segment| segment.rows.end <= rows.start);
        for segment in self.segments[first..].iter().take_while(|segment| segment.rows.start < rows.end) {
            let inside = rows.start.max(segment.rows.start)..rows.end.min(segment.rows.end);
            for rows in split(inside, max_rows) {
                let flow = match self.mapped(segment, &rows, &mut buffer.scales) {
                    Some(block) => visit(&block)?,
                    None => {
                        self.fill(segment, &rows, buffer).map_err(|error| unread(&self.name, &error))?;
                        visit(&buffer.block(self.dtype, rows.start, rows.len(), self.dimensions))?
                    }
                };
                self.map.as_ref().map_or(Ok(()), MappedFile::check_unchanged)?;
                if flow.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of all rows, in f32, with int8 scaled.
    fn rows(vectors: &ArrayVectors, count: usize) -> Vec<f32> {
        let mut found = Vec::new();
        let (mut buffer, mut converted) = (BlockBuffer::default(), Vec::new());
        let mut visit = |block: &Block| {
            found.extend_from_slice(crate::neighbours::rows_f32(block, 0..block.rows, &mut converted));
            Ok(ControlFlow::Continue(()))
        };
        let blocks = Blocks { max_rows: 3, buffer: &mut buffer, visit: &mut visit };
        assert!(vectors.read(0..count, blocks).unwrap().is_continue());
        found
    }

    #[test]
    fn rows_of_a_map_are_those_that_are_read() {
        const ROWS: usize = 10;
        for dtype in [OutputDtype::F32, OutputDtype::F16, OutputDtype::Int8, OutputDtype::Binary] {
            // At an odd offset elements of several bytes are not aligned and have to be read.
            for (offset, scales) in [(64, None), (63, None), (64, Some(1024)), (64, Some(1023))] {
                let bytes: Vec<u8> = (0..2048u32).map(|i| (i * 37 % 56) as u8).collect();
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("vectors");
                std::fs::write(&path, bytes).unwrap();
                let file = Arc::new(File::open(&path).unwrap());
                let segment = |rows: Range<usize>, offset| Segment { rows, offset, scales };
                let segments = vec![segment(0..4, offset), segment(4..ROWS, offset + 512)];
                let name = path.to_str().unwrap().into();
                let mut vectors = ArrayVectors::new(name, file, segments, dtype, 16);
                assert!(vectors.map.is_some());
                let mapped = rows(&vectors, ROWS);
                vectors.map = None;
                assert_eq!(mapped.len(), ROWS * 16);
                assert_eq!(mapped, rows(&vectors, ROWS), "{dtype:?} at {offset}, scales at {scales:?}");
            }
        }
    }
}
