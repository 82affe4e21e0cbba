//! Which parts of a message's body are read: the buffers of the columns that are asked for, and no others, however large
//! those are.

use std::collections::VecDeque;
use std::ops::Range;

use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, FieldRef, UnionMode};
use arrow::ipc::{self, MetadataVersion, RecordBatch};

use super::frame::Broken;
use crate::input::ReadLimit;

/// Where buffers begin in memory: at multiples of this many bytes, as in files.
pub const ALIGNMENT: u64 = 64;
const DAMAGED: &str = "the description of a message is damaged";

/// The parts of a body that are read, and where each buffer is in them.
pub struct Parts {
    /// Disjoint ranges of the body, ascending.
    pub ranges: Vec<Range<u64>>,
    /// The bytes of the list of buffers in the description, and the list for a body of these parts alone.
    patch: (usize, Vec<u8>),
    /// Buffers of the parts.
    buffers: Vec<Range<u64>>,
    is_compressed: bool,
}

impl Parts {
    /// The parts of a body of `length` bytes with the columns that `is_read` names by their number.
    ///
    /// # Errors
    /// What is wrong with the description.
    pub fn new(
        header: &[u8],
        batch: &RecordBatch,
        columns: &[FieldRef],
        is_read: impl Fn(usize) -> bool,
        version: MetadataVersion,
        length: u64,
    ) -> Result<Self, Broken> {
        let list = batch.buffers().ok_or(DAMAGED)?;
        let variadic = batch.variadicBufferCounts().into_iter().flatten().collect();
        let mut walk = Walk { version, variadic };
        let mut wanted = Vec::with_capacity(list.len());
        for (number, column) in columns.iter().enumerate() {
            let count = walk.buffers(column.data_type()).ok_or(DAMAGED)?;
            let end = wanted.len().saturating_add(count).min(list.len());
            wanted.resize(end, is_read(number));
        }
        wanted.resize(list.len(), false);
        let mut buffers = Vec::new();
        for (buffer, _) in list.iter().zip(&wanted).filter(|(_, wanted)| **wanted) {
            let (start, size) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
            let (start, size) = (start.map_err(|_| DAMAGED)?, size.map_err(|_| DAMAGED)?);
            let end = start.checked_add(size).filter(|end| *end <= length).ok_or(DAMAGED)?;
            buffers.push(start..end);
        }
        let ranges = disjoint(buffers.clone());
        // Each range in memory follows the one before it.
        let mut starts = Vec::with_capacity(ranges.len());
        let mut next = 0;
        for range in &ranges {
            starts.push(next);
            next += (range.end - range.start).next_multiple_of(ALIGNMENT);
        }
        let mut moved = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            let at = ranges.partition_point(|range| range.end < buffer.end.max(buffer.start + 1));
            let start = match ranges.get(at) {
                Some(range) if !buffer.is_empty() => starts[at] + (buffer.start - range.start),
                _ => 0,
            };
            moved.push(start..start + (buffer.end - buffer.start));
        }
        let mut new = moved.iter();
        let mut bytes = Vec::with_capacity(list.bytes().len());
        for wanted in &wanted {
            let buffer = if *wanted { new.next() } else { None }.cloned().unwrap_or(0..0);
            let buffer = ipc::Buffer::new(buffer.start as i64, (buffer.end - buffer.start) as i64);
            bytes.extend(buffer.0);
        }
        let at = list.bytes().as_ptr().addr() - header.as_ptr().addr();
        Ok(Parts { ranges, patch: (at, bytes), buffers: moved, is_compressed: batch.compression().is_some() })
    }

    /// Bytes of memory that the parts take as they are.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| (range.end - range.start).next_multiple_of(ALIGNMENT)).sum()
    }

    /// The description for a body of these parts alone.
    pub fn describe(&self, mut header: Vec<u8>) -> Vec<u8> {
        let (at, bytes) = &self.patch;
        header[*at..*at + bytes.len()].copy_from_slice(bytes);
        header
    }

    /// Bytes of memory that the buffers take once they are unpacked, beside the parts.
    pub fn unpacked_bytes(&self, body: &Buffer) -> u64 {
        if !self.is_compressed {
            return 0;
        }
        let unpacked = self.buffers.iter().filter(|buffer| !buffer.is_empty()).map(|buffer| {
            let length = body.get(buffer.start as usize..).and_then(<[u8]>::first_chunk);
            // Below zero stands for a buffer that is not packed.
            length.and_then(|length| u64::try_from(i64::from_le_bytes(*length)).ok()).unwrap_or(0)
        });
        unpacked.fold(0, u64::saturating_add)
    }
}

/// Refuses what takes more memory than reading may, or than there is: the library makes room for what a message says, and
/// for want of room the process would end.
///
/// # Errors
/// If it does.
pub fn check(bytes: u64, held: u64, limit: ReadLimit) -> Result<(), Broken> {
    let all = bytes.saturating_add(held);
    let fits = usize::try_from(bytes).is_ok_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    match all <= limit.batch_bytes() {
        true if fits => Ok(()),
        true => Err(Broken::Large(ReadLimit::no_memory(all))),
        false => Err(Broken::Large(limit.too_large(all))),
    }
}

/// The union of some ranges as disjoint ones, ascending.
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

/// A walk over the columns of a batch in their order.
struct Walk {
    version: MetadataVersion,
    /// Buffers of each column of views, beside the two that it always has.
    variadic: VecDeque<i64>,
}

impl Walk {
    /// How many buffers a column has, those inside of it included; none if the description does not say.
    fn buffers(&mut self, kind: &DataType) -> Option<usize> {
        let own = match kind {
            DataType::Null | DataType::RunEndEncoded(..) => 0,
            DataType::Struct(_) | DataType::FixedSizeList(..) => 1,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
            DataType::ListView(_) | DataType::LargeListView(_) => 3,
            DataType::Utf8View | DataType::BinaryView => {
                2_usize.checked_add(usize::try_from(self.variadic.pop_front()?).ok()?)?
            }
            DataType::Union(_, mode) => {
                let nulls = usize::from(self.version < MetadataVersion::V5);
                nulls + if *mode == UnionMode::Dense { 2 } else { 1 }
            }
            _ => 2,
        };
        let mut all = own;
        let mut add = |kind: &DataType| {
            all = all.checked_add(self.buffers(kind)?)?;
            Some(())
        };
        match kind {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _)
            | DataType::Map(item, _) => add(item.data_type())?,
            DataType::Struct(fields) => fields.iter().try_for_each(|field| add(field.data_type()))?,
            DataType::Union(fields, _) => fields.iter().try_for_each(|(_, field)| add(field.data_type()))?,
            DataType::RunEndEncoded(ends, values) => {
                add(ends.data_type())?;
                add(values.data_type())?;
            }
            _ => {}
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::disjoint;

    #[test]
    fn ranges_that_overlap_are_one() {
        assert_eq!(disjoint(vec![8..16, 0..8, 4..6, 20..20, 30..31, 12..18]), [0..8, 8..18, 30..31]);
    }
}
