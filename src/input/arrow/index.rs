//! The messages of a file by the index at its end. Every place and length in it is held against the file's size.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::vec;

use arrow::datatypes::Schema;
use arrow::ipc::{Block, root_as_footer};

use super::MARK;
use super::frame::{Broken, schema};
use crate::guard::guard;
use crate::input::said;

/// The messages of a file: dictionaries, then rows.
pub struct Index {
    file: File,
    size: u64,
    blocks: vec::IntoIter<Block>,
    /// The body of the last message.
    body: Range<u64>,
    behind: u64,
}

impl Index {
    /// Reads the index of a file of this size, and the schema in it.
    ///
    /// # Errors
    /// If it cannot be read, or is not what it should be.
    pub fn open(path: &Path, size: u64) -> Result<(Self, Schema), Broken> {
        let (file, blocks) = (File::open(path)?, Vec::new().into_iter());
        let mut index = Index { file, size, blocks, body: 0..0, behind: 0 };
        let before = size.checked_sub(10).ok_or("it ends early")?;
        let end = index.read(before, 10)?;
        let (length, mark) = end.split_first_chunk().ok_or("it ends early")?;
        if mark != &MARK[..6] {
            return Err("it does not end as such a file does, and may be cut".into());
        }
        let length = u64::from(u32::from_le_bytes(*length));
        let start = before.checked_sub(length);
        let start = start
            .ok_or_else(|| format!("it says that its index has {length} bytes, but it has {size} in all"))?;
        let bytes = index.read(start, length)?;
        let footer = match guard(|| root_as_footer(&bytes)) {
            Some(Ok(footer)) => footer,
            Some(Err(error)) => return Err(format!("its index is damaged: {}", said(&error)).into()),
            None => return Err("its index is damaged".into()),
        };
        let schema = schema(footer.schema().ok_or("its index has no schema")?)?;
        let blocks =
            footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten());
        index.blocks = blocks.copied().collect::<Vec<_>>().into_iter();
        Ok((index, schema))
    }

    /// Bytes of the messages so far.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// The description of the next message, and the bytes of its body; none at the end.
    ///
    /// # Errors
    /// If there is something else where it should be.
    pub fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>, Broken> {
        const DAMAGED: &str = "its index is damaged";
        let Some(block) = self.blocks.next() else { return Ok(None) };
        let start = u64::try_from(block.offset()).map_err(|_| DAMAGED)?;
        let header = u64::try_from(block.metaDataLength()).map_err(|_| DAMAGED)?;
        let body = u64::try_from(block.bodyLength()).map_err(|_| DAMAGED)?;
        let whole = header.checked_add(body).and_then(|length| length.checked_add(start));
        if whole.is_none_or(|end| end > self.size) {
            return Err(DAMAGED.into());
        }
        let framed = self.read(start, header)?;
        // Before version 0.15 there was no mark before the length.
        let skip = if framed.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let message = framed.get(skip..).ok_or(DAMAGED)?.to_vec();
        self.body = start + header..start + header + body;
        self.behind += header + body;
        Ok(Some((message, body)))
    }

    /// Reads a part of the body of the last message into all of `part`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_body(&mut self, start: u64, part: &mut [u8]) -> Result<(), Broken> {
        self.file.seek(SeekFrom::Start(self.body.start + start))?;
        Ok(self.file.read_exact(part)?)
    }

    /// Bytes that are known to be within the file.
    fn read(&mut self, start: u64, length: u64) -> io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![0; length as usize];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
