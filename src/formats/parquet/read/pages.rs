//! The bytes of a Parquet file as the `parquet` crate reads them: only ranges inside the file, and only pages
//! that fit into memory.
//!
//! The crate allocates the lengths that a page header declares before it reads or decompresses: a damaged one
//! would make it abort the process for want of memory, and a page of many texts may take more memory than a
//! run has.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::errors::{self, ParquetError};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::thrift::{I16, I64, STRUCT, ThriftDecoder};
use crate::formats::error::{ReadError, check_memory};
use crate::sys::regular_file::read_exact_at;

// Field ids of the Thrift structs in
// <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>.
/// `PageHeader.type`
const PAGE_TYPE: i64 = 1;
/// `PageHeader.uncompressed_page_size`
const UNCOMPRESSED_PAGE_SIZE: i64 = 2;
/// `PageHeader.compressed_page_size`
const COMPRESSED_PAGE_SIZE: i64 = 3;
/// `PageHeader.data_page_header` and `PageHeader.data_page_header_v2`
const DATA_PAGE_HEADERS: [i64; 2] = [5, 8];
/// `DataPageHeader.num_values` and `DataPageHeaderV2.num_values`
const NUM_VALUES: i64 = 1;
/// `PageType.DICTIONARY_PAGE`
const DICTIONARY_PAGE: i64 = 2;

/// More bytes than the header of a page takes, unless it has long statistics.
const PAGE_HEADER_BYTES: u64 = 1 << 10;
/// Memory of a value of a list beside its bytes in the page: its levels, and the value decoded.
const NESTED_VALUE_BYTES: u64 = 8;
/// Size in bytes of a page from which on it is checked that there is memory for it.
const LARGE_PAGE_BYTES: u64 = 16 << 20;

/// What the header of a page declares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PageHeader {
    is_dictionary: bool,
    compressed: u64,
    uncompressed: u64,
    /// The number of values of a data page.
    values: u64,
    /// The offset in the file where the header ends, if it was read to its end.
    end: Option<u64>,
}

impl PageHeader {
    /// The header at offset `start` of a file of `size` bytes; `None` if there is none.
    fn read(file: &File, size: u64, start: u64) -> Option<Self> {
        let mut bytes = vec![0; size.checked_sub(start)?.min(PAGE_HEADER_BYTES) as usize];
        read_exact_at(file, &mut bytes, start).ok()?;
        let (mut header, mut page_type) = (PageHeader::default(), None);
        let mut decoder = ThriftDecoder::new(&bytes);
        let size = |decoder: &mut ThriftDecoder| u64::try_from(decoder.read_integer()?).ok();
        let end = decoder.read_struct(|decoder, id, field_type| match (id, field_type) {
            (PAGE_TYPE, I16..=I64) => decoder.read_integer().map(|found| page_type = Some(found)),
            (UNCOMPRESSED_PAGE_SIZE, I16..=I64) => size(decoder).map(|found| header.uncompressed = found),
            (COMPRESSED_PAGE_SIZE, I16..=I64) => size(decoder).map(|found| header.compressed = found),
            (id, STRUCT) if DATA_PAGE_HEADERS.contains(&id) => {
                decoder.read_struct(|decoder, id, field_type| match (id, field_type) {
                    (NUM_VALUES, I16..=I64) => size(decoder).map(|found| header.values = found),
                    _ => decoder.skip(field_type),
                })
            }
            _ => decoder.skip(field_type),
        });
        header.end = end.map(|()| start + (bytes.len() - decoder.remaining()) as u64);
        header.is_dictionary = page_type? == DICTIONARY_PAGE;
        Some(header)
    }
}

/// The uncompressed size in bytes of the dictionary page at offset `start` of a file of `size` bytes; 0 if
/// the page there is of another type, and `None` if there is no page header.
pub(super) fn dictionary_bytes(file: &File, size: u64, start: u64) -> Option<u64> {
    let header = PageHeader::read(file, size, start)?;
    Some(if header.is_dictionary { header.uncompressed } else { 0 })
}

/// The memory of the pages that are decoded at the same time: of each column the last page and its
/// dictionary; of a column of lists, all pages that the rows of a batch are in, since one row may take
/// several.
pub(super) struct PageMemory {
    /// Where the columns that are read have their bytes in the file, ascending: of each row group.
    chunks: Vec<Chunk>,
    max_bytes: u64,
    state: Mutex<State>,
}

/// The bytes of a column in a row group.
struct Chunk {
    range: Range<u64>,
    column: usize,
    /// Whether one row may take several pages.
    is_list: bool,
}

#[derive(Default)]
struct State {
    columns: HashMap<usize, ColumnPages>,
    /// Why the last page was refused.
    refused: Option<ReadError>,
}

/// The pages of a column.
#[derive(Default)]
struct ColumnPages {
    /// The header of the next page, if it was read.
    next: Option<PageHeader>,
    /// Memory in bytes of the dictionary, of the last data page, and of all data pages of this batch.
    dictionary: u64,
    last: u64,
    batch: u64,
}

impl PageMemory {
    /// The pages of these columns in some row groups, within `max_bytes` bytes. With `all_rows`, the rows of
    /// a batch are consecutive.
    pub(super) fn new(
        metadata: &ParquetMetaData,
        groups: Range<usize>,
        mask: &ProjectionMask,
        all_rows: bool,
        max_bytes: u64,
    ) -> Self {
        let schema = metadata.file_metadata().schema_descr();
        let mut chunks = Vec::new();
        for group in metadata.row_groups().get(groups).unwrap_or_default() {
            let columns = group.columns().iter().enumerate().filter(|(i, _)| mask.leaf_included(*i));
            chunks.extend(columns.map(|(column, chunk)| {
                let (start, length) = chunk.byte_range();
                let is_list = all_rows && schema.column(column).max_rep_level() > 0;
                Chunk { range: start..start.saturating_add(length), column, is_list }
            }));
        }
        chunks.sort_by_key(|chunk| chunk.range.start);
        PageMemory { chunks, max_bytes, state: Mutex::default() }
    }

    /// The column that has its bytes at an offset.
    fn chunk(&self, offset: u64) -> Option<&Chunk> {
        let next = self.chunks.partition_point(|chunk| chunk.range.start <= offset);
        self.chunks.get(next.checked_sub(1)?).filter(|chunk| offset < chunk.range.end)
    }

    /// Begins a batch: of each column, only the last page is still in memory.
    pub(super) fn begin_batch(&self) {
        let mut state = self.state();
        state.columns.values_mut().for_each(|pages| pages.batch = pages.last);
    }

    /// Why the last page was refused; `None` if it was not.
    pub(super) fn take_refused(&self) -> Option<ReadError> {
        self.state().refused.take()
    }

    /// Reads the header of a page, if there is one at this offset: its bytes may be the next to be read.
    fn read_header(&self, file: &File, size: u64, start: u64) {
        let Some(chunk) = self.chunk(start) else { return };
        let mut state = self.state();
        let pages = state.columns.entry(chunk.column).or_default();
        // After a look at the next header, the crate reads on from the end of the header.
        if pages.next.is_none_or(|next| next.end != Some(start)) {
            pages.next = PageHeader::read(file, size, start);
        }
    }

    /// Counts the page of `length` bytes at offset `start`.
    fn admit(&self, start: u64, length: u64) -> errors::Result<()> {
        let Some(chunk) = self.chunk(start) else { return Ok(()) };
        let mut state = self.state();
        let pages = state.columns.entry(chunk.column).or_default();
        let unknown = PageHeader { compressed: length, uncompressed: length, ..PageHeader::default() };
        let header = pages.next.take().filter(|header| header.compressed == length).unwrap_or(unknown);
        // A compressed page is in memory twice while it is decompressed.
        let mut bytes = header.uncompressed.max(length);
        bytes += if length < header.uncompressed { length } else { 0 };
        if header.is_dictionary {
            pages.dictionary = bytes;
        } else if chunk.is_list {
            let values = header.values.saturating_mul(NESTED_VALUE_BYTES);
            pages.last = bytes.saturating_add(values);
            pages.batch = pages.batch.saturating_add(pages.last);
        } else {
            (pages.last, pages.batch) = (bytes, bytes);
        }
        let held = state.columns.values().map(|pages| pages.dictionary.saturating_add(pages.batch));
        let held = held.fold(0, u64::saturating_add);
        let checked = if held > self.max_bytes {
            Err(ReadError::TooLarge { bytes: held, max_bytes: self.max_bytes })
        } else if bytes > LARGE_PAGE_BYTES {
            check_memory(bytes, 0, u64::MAX)
        } else {
            Ok(())
        };
        checked.map_err(|error| {
            state.refused = Some(error);
            ParquetError::General("a page takes too much memory".into())
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file in which only ranges inside it can be read.
pub(super) struct BoundedFile {
    pub(super) file: Arc<File>,
    pub(super) size: u64,
    /// `None` while the footer is read.
    pub(super) pages: Option<Arc<PageMemory>>,
}

impl BoundedFile {
    /// The bytes from offset `start` to the end of the file.
    fn from(&self, start: u64) -> errors::Result<FileRange> {
        if start > self.size {
            return Err(ParquetError::EOF(format!(
                "offset {start} is past the end of the file at {}",
                self.size
            )));
        }
        Ok(FileRange { file: self.file.clone(), range: start..self.size })
    }
}

/// A range of a file, with a position of its own: several may be read at the same time.
pub(super) struct FileRange {
    file: Arc<File>,
    range: Range<u64>,
}

impl Read for FileRange {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = (bytes.len() as u64).min(self.range.end - self.range.start) as usize;
        read_exact_at(&self.file, &mut bytes[..length], self.range.start)?;
        self.range.start += length as u64;
        Ok(length)
    }
}

impl Length for BoundedFile {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for BoundedFile {
    type T = BufReader<FileRange>;

    fn get_read(&self, start: u64) -> errors::Result<Self::T> {
        if let Some(pages) = &self.pages {
            pages.read_header(&self.file, self.size, start);
        }
        Ok(BufReader::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> errors::Result<Bytes> {
        let mut from = self.from(start)?;
        if length as u64 > self.size - start {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} are past the end of the file at {}",
                self.size
            )));
        }
        if let Some(pages) = &self.pages {
            pages.admit(start, length as u64)?;
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::{PageHeader, dictionary_bytes};

    /// Writes bytes to a file after a byte that is no part of the header.
    fn file(bytes: &[u8]) -> (File, u64) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").and_then(|()| file.write_all(bytes)).unwrap();
        (file, 1 + bytes.len() as u64)
    }

    #[test]
    fn headers_of_data_pages_and_dictionaries() {
        // Type 0, 300 bytes, of which 20 are stored, and a data page header with 7 values and 3 more fields.
        let data = [0x15, 0, 0x15, 0xd8, 0x04, 0x15, 40, 0x2c, 0x15, 14, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0];
        let (file, size) = file(&[&data[..], b"rest"].concat());
        let expected = PageHeader {
            is_dictionary: false,
            compressed: 20,
            uncompressed: 300,
            values: 7,
            end: Some(1 + data.len() as u64),
        };
        assert_eq!(PageHeader::read(&file, size, 1), Some(expected));
        assert_eq!(dictionary_bytes(&file, size, 1), Some(0));
        assert_eq!(PageHeader::read(&file, size, size), None);
        assert_eq!(PageHeader::read(&file, size, size + 1), None);
    }

    #[test]
    fn a_dictionary_whose_header_does_not_end() {
        let (file, size) = file(&[0x15, 4, 0x15, 0xd8, 0x04, 0x15, 40, 0x2c]);
        assert_eq!(dictionary_bytes(&file, size, 1), Some(300));
        assert_eq!(PageHeader::read(&file, size, 1).unwrap().end, None);
    }
}
