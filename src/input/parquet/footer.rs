//! Checks of Parquet metadata that protect the process from the `parquet` crate.
//!
//! In version 60.1 the crate allocates a vector for as many children as a schema element declares: 2³¹ − 1 of them take
//! 16 GiB, and if there is no memory for them, the process aborts. It also recurses once per level of the schema: 5,000
//! levels overflow the stack of a thread. Neither can be caught.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use parquet::file::metadata::FooterTail;

use super::thrift::{I16, I64, LIST, STRUCT, ThriftDecoder};
use crate::input::error::one_line;

/// Maximum nesting depth of the schema.
const MAX_DEPTH: usize = 64;
/// The length of the footer's tail: the length of the metadata, and the magic number.
const TAIL_BYTES: u64 = 8;

// Field ids of the Thrift structs in
// <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>.
/// `FileMetaData.schema`
const SCHEMA: i64 = 2;
/// `SchemaElement.num_children`
const NUM_CHILDREN: i64 = 5;
/// `PageHeader.type`
const PAGE_TYPE: i64 = 1;
/// `PageHeader.uncompressed_page_size`
const UNCOMPRESSED_PAGE_SIZE: i64 = 2;
/// `PageType.DICTIONARY_PAGE`
const DICTIONARY_PAGE: i64 = 2;
/// More bytes than the first two fields of a page header take.
const PAGE_HEADER_BYTES: u64 = 32;

/// Checks the schema in the footer of a file of `size` bytes.
///
/// # Errors
/// The fault of the file, as a clause.
pub(super) fn check(mut file: &File, size: u64) -> Result<(), String> {
    let Some(tail_start) = size.checked_sub(TAIL_BYTES) else {
        return Err(format!("it has only {size} bytes"));
    };
    let mut read = |start: u64, bytes: &mut [u8]| {
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(bytes));
        read.map_err(|error| one_line(&error))
    };
    let mut tail = [0; TAIL_BYTES as usize];
    read(tail_start, &mut tail)?;
    let tail = FooterTail::try_new(&tail).map_err(|_| "it does not end with the magic number of Parquet")?;
    if tail.is_encrypted_footer() {
        return Err("it is encrypted".into());
    }
    let length = tail.metadata_length();
    let Some(start) = tail_start.checked_sub(length as u64) else {
        return Err(format!("its footer has a length of {length} bytes, but the file has {size}"));
    };
    let mut metadata = vec![0; length];
    read(start, &mut metadata)?;
    let children = schema_children(&metadata).ok_or("its footer is malformed")?;
    check_schema(&children)
}

/// Checks the tree of a schema. `children` has the number of children of each element, in depth-first order.
fn check_schema(children: &[i64]) -> Result<(), String> {
    const MALFORMED: &str = "its schema is malformed";
    // For each open element, from the root on, the number of children that are still to come.
    let mut open: Vec<u64> = Vec::new();
    for count in children {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let count = u64::try_from(*count).map_err(|_| MALFORMED)?;
        if count > children.len() as u64 {
            return Err(MALFORMED.into());
        }
        if count > 0 {
            open.push(count);
        }
        if open.len() > MAX_DEPTH {
            return Err(format!("its schema is nested more than {MAX_DEPTH} levels deep"));
        }
    }
    Ok(())
}

/// The number of children of each schema element in a `FileMetaData` struct; `None` if the struct is malformed.
fn schema_children(metadata: &[u8]) -> Option<Vec<i64>> {
    let mut all = Vec::new();
    ThriftDecoder::new(metadata).read_struct(|decoder, id, field_type| {
        if (id, field_type) != (SCHEMA, LIST) {
            return decoder.skip(field_type);
        }
        let (count, element_type) = decoder.read_list_header()?;
        if element_type != STRUCT {
            return None;
        }
        for _ in 0..count {
            let mut children = 0;
            decoder.read_struct(|decoder, id, field_type| match (id, field_type) {
                (NUM_CHILDREN, I16..=I64) => {
                    children = decoder.read_integer()?;
                    Some(())
                }
                _ => decoder.skip(field_type),
            })?;
            all.push(children);
        }
        Some(())
    })?;
    Some(all)
}

/// The uncompressed size in bytes of the dictionary page at offset `start`; 0 if the page there is of another type, and
/// `None` if there is no page header.
pub(super) fn dictionary_bytes(mut file: &File, start: u64) -> Option<u64> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start)).ok()?;
    file.take(PAGE_HEADER_BYTES).read_to_end(&mut bytes).ok()?;
    let (mut page_type, mut size) = (None, None);
    // The header may be longer than the bytes read, and so may end early.
    let _ = ThriftDecoder::new(&bytes).read_struct(|decoder, id, field_type| match (id, field_type) {
        (PAGE_TYPE, I16..=I64) => decoder.read_integer().map(|found| page_type = Some(found)),
        (UNCOMPRESSED_PAGE_SIZE, I16..=I64) => decoder.read_integer().map(|found| size = Some(found)),
        _ => None,
    });
    match page_type? {
        DICTIONARY_PAGE => u64::try_from(size?).ok(),
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::check_schema;

    #[test]
    fn schemas_are_trees_of_limited_depth() {
        assert_eq!(check_schema(&[2, 0, 1, 0]), Ok(()));
        assert_eq!(check_schema(&[]), Ok(()));
        assert!(check_schema(&[5, 0, 0, 0]).is_err(), "more children than elements");
        assert!(check_schema(&[-1, 0]).is_err());
        assert_eq!(check_schema(&[[1; 64].as_slice(), &[0]].concat()), Ok(()));
        let error = check_schema(&[[1; 65].as_slice(), &[0]].concat()).unwrap_err();
        assert_eq!(error, "its schema is nested more than 64 levels deep");
    }
}
