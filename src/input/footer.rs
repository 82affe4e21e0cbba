//! What a Parquet file says of its columns, looked through before the library builds on it. The library makes room
//! for as many children as a column says it has, and goes down as deep as they stand in one another: for want of
//! room, or of stack, the process would end.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::said;

/// How deep columns, and whatever else a footer holds, may stand in one another.
const MOST_DEPTH: usize = 64;
/// The mark that a file ends in.
const MARK: &[u8; 4] = b"PAR1";
/// The fields of Thrift structs that are looked at: the list of columns, and the number of children of one.
const SCHEMA: i64 = 2;
const CHILDREN: i64 = 5;

/// Looks through the footer of a file of this size.
///
/// # Errors
/// What is wrong with it, as a part of a sentence.
pub fn check(mut file: &File, size: u64) -> Result<(), String> {
    let Some(before) = size.checked_sub(8) else { return Err(format!("it has only {size} bytes")) };
    let mut read = |start: u64, length: usize| {
        let mut bytes = vec![0; length];
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut bytes));
        read.map(|()| bytes).map_err(|error| said(&error))
    };
    let end = read(before, 8)?;
    if end[4..] == *b"PARE" {
        return Err("it is encrypted".into());
    }
    if end[4..] != *MARK {
        return Err("it does not end as such a file does".into());
    }
    let length = u32::from_le_bytes([end[0], end[1], end[2], end[3]]);
    let Some(start) = before.checked_sub(length.into()) else {
        return Err(format!("it says that its footer has {length} bytes, but it has {size} in all"));
    };
    let footer = read(start, length as usize)?;
    let children = Thrift { bytes: &footer }.children().ok_or("its footer is damaged")?;
    // Columns stand in the list before their children; the count says how many are still to come, level by level.
    let mut open: Vec<u64> = Vec::new();
    for count in &children {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let count = u64::try_from(*count).map_err(|_| "its list of columns is damaged")?;
        if count > children.len() as u64 {
            return Err("its list of columns is damaged".into());
        }
        if count > 0 {
            open.push(count);
        }
        if open.len() > MOST_DEPTH {
            return Err(format!("its columns stand in one another more than {MOST_DEPTH} deep"));
        }
    }
    Ok(())
}

/// The unpacked bytes of the page at `start`, if it is a dictionary; none if it is no page.
pub fn dictionary_bytes(mut file: &File, start: u64) -> Option<u64> {
    const KIND: i64 = 1;
    const UNPACKED: i64 = 2;
    const DICTIONARY: i64 = 2;
    // More than the two fields at the beginning of a page take.
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start)).ok()?;
    file.take(32).read_to_end(&mut bytes).ok()?;
    let (mut kind, mut unpacked) = (None, None);
    // What follows is cut, so that this may end in nothing.
    let _ = Thrift { bytes: &bytes }.fields(|thrift, id, of| match (id, of) {
        (KIND, I16..=I64) => thrift.integer().map(|found| kind = Some(found)),
        (UNPACKED, I16..=I64) => thrift.integer().map(|found| unpacked = Some(found)),
        _ => None,
    });
    match kind? {
        DICTIONARY => u64::try_from(unpacked?).ok(),
        _ => Some(0),
    }
}

/// Values in Thrift's compact encoding; none where the bytes are no such value.
struct Thrift<'a> {
    bytes: &'a [u8],
}

/// The types of values that are told apart here.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

impl Thrift<'_> {
    /// The number of children of each column of a file, of columns without any 0.
    fn children(mut self) -> Option<Vec<i64>> {
        let mut columns = Vec::new();
        self.fields(|thrift, id, kind| {
            if id != SCHEMA || kind != LIST {
                return thrift.skip(kind, MOST_DEPTH);
            }
            let (count, kind) = thrift.list()?;
            if kind != STRUCT {
                return None;
            }
            for _ in 0..count {
                let mut children = 0;
                thrift.fields(|thrift, id, kind| match (id, kind) {
                    (CHILDREN, I16..=I64) => {
                        children = thrift.integer()?;
                        Some(())
                    }
                    _ => thrift.skip(kind, MOST_DEPTH),
                })?;
                columns.push(children);
            }
            Some(())
        })?;
        Some(columns)
    }

    /// Walks over the fields of a struct by their ids and types; `field` has to take the value.
    fn fields(&mut self, mut field: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut id = 0_i64;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            id = match header >> 4 {
                0 => self.integer()?,
                step => id.checked_add(step.into())?,
            };
            field(self, id, header & 15)?;
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // A field's truth is its type.
            TRUE | FALSE => Some(()),
            BYTE => self.take(1),
            I16..=I64 => self.integer().map(drop),
            DOUBLE => self.take(8),
            BINARY => {
                let length = self.number()?;
                self.take(length)
            }
            LIST | SET => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.number()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => self.fields(|thrift, _, kind| thrift.skip(kind, depth)),
            UUID => self.take(16),
            _ => None,
        }
    }

    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            TRUE | FALSE => self.take(1),
            kind => self.skip(kind, depth),
        }
    }

    /// The length of a list and the type of its elements.
    fn list(&mut self) -> Option<(u64, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.number()?,
            count => count.into(),
        };
        Some((count, header & 15))
    }

    fn integer(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn take(&mut self, length: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(length).ok()?..)?;
        Some(())
    }
}
