//! Checks of Parquet metadata that protect the process from the `parquet` crate.
//!
//! In version 60.1 the crate allocates a vector for as many children as a schema element declares: 2³¹ − 1 of
//! them take 16 GiB, and if there is no memory for them, the process aborts. It also recurses once per level
//! of the schema: 5,000 levels overflow the stack of a thread. Neither can be caught.

use std::fs::File;

use parquet::file::metadata::FooterTail;

use super::thrift::{I16, I64, LIST, STRUCT, ThriftDecoder};
use crate::error::one_line;
use crate::formats::MAX_METADATA_BYTES;
use crate::sys::regular_file::read_exact_at;

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

/// Checks the schema in the footer of a file of `size` bytes.
///
/// # Errors
/// The fault of the file, as a clause.
pub(super) fn check(file: &File, size: u64) -> Result<(), String> {
    let Some(tail_start) = size.checked_sub(TAIL_BYTES) else {
        return Err(format!("it has only {size} bytes"));
    };
    let read =
        |start: u64, bytes: &mut [u8]| read_exact_at(file, bytes, start).map_err(|error| one_line(&error));
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
    if length as u64 > MAX_METADATA_BYTES {
        return Err(format!("its footer has a length of {length} bytes"));
    }
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

/// The number of children of each schema element in a `FileMetaData` struct; `None` if the struct is
/// malformed.
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
