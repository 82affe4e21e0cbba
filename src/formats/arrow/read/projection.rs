//! Projection of message bodies: only the buffers of the columns that are needed are read.
//!
//! The buffers of these columns are read into a compact body, one after another. In the metadata of the
//! message, their offsets are replaced by those in the compact body, and all other buffers become empty. The
//! `arrow` crate skips their columns.

use std::collections::VecDeque;
use std::ops::Range;

use arrow_buffer::Buffer;
use arrow_ipc::{self as ipc, MetadataVersion, RecordBatch};
use arrow_schema::{DataType, FieldRef, UnionMode};

use crate::formats::error::{ReadError, check_memory};

/// Alignment of the ranges in a compact body, in bytes.
const ALIGNMENT: u64 = 64;
const MALFORMED: &str = "the metadata of a message is malformed";

/// The parts of a message's body that are read.
pub(super) struct BodyProjection {
    /// The parts, as disjoint ascending ranges of the body, in bytes.
    pub ranges: Vec<Range<u64>>,
    /// The offset in the metadata of the list of buffers, and its new contents.
    patch: (usize, Vec<u8>),
    /// The buffers that are read, as ranges of the compact body.
    buffers: Vec<Range<u64>>,
    is_compressed: bool,
}

impl BodyProjection {
    /// The parts of a body of `body_length` bytes that belong to the columns for whose index `is_read` is
    /// true.
    ///
    /// `metadata` is the metadata of the message, and `batch` the record batch decoded from it, with these
    /// columns.
    pub(super) fn new(
        metadata: &[u8],
        batch: &RecordBatch,
        columns: &[FieldRef],
        is_read: impl Fn(usize) -> bool,
        version: MetadataVersion,
        body_length: u64,
    ) -> Result<Self, ReadError> {
        let list = batch.buffers().ok_or(MALFORMED)?;
        let variadic = batch.variadicBufferCounts().into_iter().flatten().collect();
        let mut counter = BufferCounter { version, variadic };
        let mut is_buffer_read = Vec::with_capacity(list.len());
        for (index, column) in columns.iter().enumerate() {
            let count = counter.buffers(column.data_type()).ok_or(MALFORMED)?;
            let end = is_buffer_read.len().saturating_add(count).min(list.len());
            is_buffer_read.resize(end, is_read(index));
        }
        is_buffer_read.resize(list.len(), false);
        let mut buffers = Vec::new();
        for (buffer, _) in list.iter().zip(&is_buffer_read).filter(|(_, is_read)| **is_read) {
            let start = u64::try_from(buffer.offset()).map_err(|_| MALFORMED)?;
            let length = u64::try_from(buffer.length()).map_err(|_| MALFORMED)?;
            let end = start.checked_add(length).filter(|end| *end <= body_length).ok_or(MALFORMED)?;
            buffers.push(start..end);
        }
        let ranges = disjoint(buffers.clone());
        let buffers = compact(&buffers, &ranges);
        let patch_offset = list.bytes().as_ptr().addr() - metadata.as_ptr().addr();
        let patch = (patch_offset, buffer_list(&is_buffer_read, &buffers));
        Ok(BodyProjection { ranges, patch, buffers, is_compressed: batch.compression().is_some() })
    }

    /// Reads the compact body: `read` fills a part of it from this offset of the whole body on.
    ///
    /// # Errors
    /// If it, or its buffers when they are decompressed, would take more than `max_bytes` bytes together with
    /// `held` others.
    pub(super) fn read_body(
        &self,
        held: u64,
        max_bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), ReadError>,
    ) -> Result<Buffer, ReadError> {
        let bytes = self.ranges.iter().map(aligned_length).sum();
        check_memory(bytes, held, max_bytes)?;
        let mut body = vec![0; bytes as usize];
        let mut rest = &mut body[..];
        for range in &self.ranges {
            let part;
            (part, rest) = rest.split_at_mut(aligned_length(range) as usize);
            read(range.start, &mut part[..(range.end - range.start) as usize])?;
        }
        let body = Buffer::from(body);
        check_memory(self.decompressed_bytes(&body), held + body.len() as u64, max_bytes)?;
        Ok(body)
    }

    /// The metadata of a message with the compact body.
    pub(super) fn patch(&self, mut metadata: Vec<u8>) -> Vec<u8> {
        let (offset, bytes) = &self.patch;
        metadata[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        metadata
    }

    /// Bytes that the buffers of a compact body take once they are decompressed; 0 if they are not
    /// compressed.
    fn decompressed_bytes(&self, body: &Buffer) -> u64 {
        if !self.is_compressed {
            return 0;
        }
        let lengths = self.buffers.iter().filter(|buffer| !buffer.is_empty()).map(|buffer| {
            let length = body.get(buffer.start as usize..).and_then(<[u8]>::first_chunk);
            // A length of -1 marks a buffer that is not compressed.
            length.and_then(|length| u64::try_from(i64::from_le_bytes(*length)).ok()).unwrap_or(0)
        });
        lengths.fold(0, u64::saturating_add)
    }
}

/// The union of ranges, as disjoint ascending ranges.
fn disjoint(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut disjoint: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match disjoint.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => disjoint.push(range),
        }
    }
    disjoint
}

/// The length of a range in the compact body, with padding, in bytes.
fn aligned_length(range: &Range<u64>) -> u64 {
    (range.end - range.start).next_multiple_of(ALIGNMENT)
}

/// Buffers of a body as ranges of the compact body, which has the aligned `ranges` one after another. Each
/// buffer is inside of one of the ranges, or empty.
fn compact(buffers: &[Range<u64>], ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut starts = Vec::with_capacity(ranges.len());
    let mut next = 0;
    for range in ranges {
        starts.push(next);
        next += aligned_length(range);
    }
    let moved = buffers.iter().map(|buffer| {
        let index = ranges.partition_point(|range| range.end < buffer.end.max(buffer.start + 1));
        let start = match ranges.get(index) {
            Some(range) if !buffer.is_empty() => starts[index] + (buffer.start - range.start),
            _ => 0,
        };
        start..start + (buffer.end - buffer.start)
    });
    moved.collect()
}

/// The list of buffers in the metadata: `buffers` where a buffer is read, empty buffers elsewhere.
fn buffer_list(is_buffer_read: &[bool], buffers: &[Range<u64>]) -> Vec<u8> {
    let mut buffers = buffers.iter();
    let mut bytes = Vec::with_capacity(is_buffer_read.len() * size_of::<ipc::Buffer>());
    for is_read in is_buffer_read {
        let buffer = if *is_read { buffers.next() } else { None }.cloned().unwrap_or(0..0);
        bytes.extend(ipc::Buffer::new(buffer.start as i64, (buffer.end - buffer.start) as i64).0);
    }
    bytes
}

/// Counts the buffers of the columns of a record batch, in the order of the columns.
struct BufferCounter {
    version: MetadataVersion,
    /// The number of variadic buffers of each view column that has not been counted yet.
    variadic: VecDeque<i64>,
}

impl BufferCounter {
    /// The number of buffers of a column and of its children; `None` if the metadata does not give it.
    fn buffers(&mut self, data_type: &DataType) -> Option<usize> {
        let own = match data_type {
            DataType::Null | DataType::RunEndEncoded(..) => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
            DataType::ListView(_) | DataType::LargeListView(_) => 3,
            DataType::Utf8View | DataType::BinaryView => {
                2_usize.checked_add(usize::try_from(self.variadic.pop_front()?).ok()?)?
            }
            DataType::Union(_, mode) => {
                let validity = usize::from(self.version < MetadataVersion::V5);
                validity + if *mode == UnionMode::Dense { 2 } else { 1 }
            }
            _ => 2,
        };
        let mut children = children(data_type).into_iter();
        children.try_fold(own, |all, child| all.checked_add(self.buffers(child.data_type())?))
    }
}

/// The children of a column of this type, in the order of their nodes and buffers.
fn children(data_type: &DataType) -> Vec<&FieldRef> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => vec![item],
        DataType::Struct(fields) => fields.iter().collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field).collect(),
        DataType::RunEndEncoded(ends, values) => vec![ends, values],
        _ => Vec::new(),
    }
}

/// The number of field nodes of a column and its children.
pub(super) fn column_nodes(data_type: &DataType) -> usize {
    1 + children(data_type).into_iter().map(|child| column_nodes(child.data_type())).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use arrow_ipc::MetadataVersion;
    use arrow_schema::{DataType, Field};

    use super::{BufferCounter, compact, disjoint};

    #[test]
    fn overlapping_ranges_are_merged() {
        assert_eq!(disjoint(vec![8..16, 0..8, 4..6, 20..20, 30..31, 12..18]), [0..8, 8..18, 30..31]);
    }

    #[test]
    fn buffers_move_with_their_ranges() {
        let buffers = [10..20, 15..20, 100..103, 50..50];
        let ranges = disjoint(buffers.to_vec());
        assert_eq!(ranges, [10..20, 100..103]);
        assert_eq!(compact(&buffers, &ranges), [0..10, 5..10, 64..67, 0..0]);
    }

    #[test]
    fn views_have_variadic_buffers() {
        let mut counter = BufferCounter { version: MetadataVersion::V5, variadic: VecDeque::from([3, -1]) };
        assert_eq!(counter.buffers(&DataType::Utf8View), Some(5));
        let list = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
        assert_eq!(counter.buffers(&list), Some(5));
        assert_eq!(counter.buffers(&DataType::Utf8View), None);
        assert_eq!(counter.buffers(&DataType::Utf8View), None);
    }
}
