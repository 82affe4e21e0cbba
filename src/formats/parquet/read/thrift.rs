//! A decoder of Thrift's compact protocol, for the fields of Parquet metadata that are checked before the
//! `parquet` crate decodes it: see the
//! [specification](https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).

/// Maximum nesting depth of a value that is skipped.
const MAX_DEPTH: usize = 64;

/// The type of a field or an element.
pub(super) type ThriftType = u8;

const TRUE: ThriftType = 1;
const FALSE: ThriftType = 2;
const BYTE: ThriftType = 3;
/// A 16-bit integer.
pub(super) const I16: ThriftType = 4;
/// A 64-bit integer.
pub(super) const I64: ThriftType = 6;
const DOUBLE: ThriftType = 7;
const BINARY: ThriftType = 8;
/// A list.
pub(super) const LIST: ThriftType = 9;
const SET: ThriftType = 10;
const MAP: ThriftType = 11;
/// A struct.
pub(super) const STRUCT: ThriftType = 12;
const UUID: ThriftType = 13;

/// Decodes values one after another. All methods return `None` if the bytes are malformed or end early.
pub(super) struct ThriftDecoder<'a> {
    /// The bytes that are still to be decoded.
    bytes: &'a [u8],
}

impl<'a> ThriftDecoder<'a> {
    /// A decoder of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        ThriftDecoder { bytes }
    }

    /// The number of bytes that are still to be decoded.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Calls `on_field` with the id and the type of each field of a struct; `on_field` has to decode or skip
    /// the value.
    pub(super) fn read_struct(
        &mut self,
        mut on_field: impl FnMut(&mut Self, i64, ThriftType) -> Option<()>,
    ) -> Option<()> {
        let mut id = 0_i64;
        loop {
            let header = self.read_byte()?;
            if header == 0 {
                return Some(());
            }
            id = match header >> 4 {
                0 => self.read_integer()?,
                delta => id.checked_add(delta.into())?,
            };
            on_field(self, id, header & 15)?;
        }
    }

    /// Skips the value of a field of this type.
    pub(super) fn skip(&mut self, field_type: ThriftType) -> Option<()> {
        self.skip_nested(field_type, MAX_DEPTH)
    }

    fn skip_nested(&mut self, field_type: ThriftType, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match field_type {
            // The type of a boolean field is its value.
            TRUE | FALSE => Some(()),
            BYTE => self.skip_bytes(1),
            I16..=I64 => self.read_integer().map(drop),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let length = self.read_varint()?;
                self.skip_bytes(length)
            }
            LIST | SET => {
                let (count, element_type) = self.read_list_header()?;
                (0..count).try_for_each(|_| self.skip_element(element_type, depth))
            }
            MAP => {
                let count = self.read_varint()?;
                if count == 0 {
                    return Some(());
                }
                let types = self.read_byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(types >> 4, depth)?;
                    self.skip_element(types & 15, depth)
                })
            }
            STRUCT => self.read_struct(|decoder, _, field_type| decoder.skip_nested(field_type, depth)),
            UUID => self.skip_bytes(16),
            _ => None,
        }
    }

    /// Skips an element of a list, set or map: unlike a field, a boolean element takes a byte.
    fn skip_element(&mut self, element_type: ThriftType, depth: usize) -> Option<()> {
        match element_type {
            TRUE | FALSE => self.skip_bytes(1),
            other => self.skip_nested(other, depth),
        }
    }

    /// The number of elements of a list or set, and their type.
    pub(super) fn read_list_header(&mut self) -> Option<(u64, ThriftType)> {
        let header = self.read_byte()?;
        let count = match header >> 4 {
            15 => self.read_varint()?,
            count => count.into(),
        };
        Some((count, header & 15))
    }

    /// A zigzag-encoded integer of up to 64 bits.
    pub(super) fn read_integer(&mut self) -> Option<i64> {
        let number = self.read_varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn read_byte(&mut self) -> Option<u8> {
        self.bytes.split_off_first().copied()
    }

    fn skip_bytes(&mut self, length: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(length).ok()?..)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{LIST, STRUCT, ThriftDecoder};

    #[test]
    fn integers_are_zigzag_varints() {
        let integer = |bytes: &[u8]| ThriftDecoder::new(bytes).read_integer();
        assert_eq!(integer(&[0x00]), Some(0));
        assert_eq!(integer(&[0x01]), Some(-1));
        assert_eq!(integer(&[0xfe, 0xff, 0xff, 0xff, 0x0f]), Some(i32::MAX.into()));
        assert_eq!(integer(&[0xff; 9]), None);
        assert_eq!(integer(&[0xff; 11]), None);
    }

    #[test]
    fn values_are_skipped_whole() {
        // A struct with a list of two booleans and a string of three bytes, then a byte that is not part of
        // it.
        let mut decoder = ThriftDecoder::new(&[0x19, 0x21, 1, 2, 0x18, 3, b'a', b'b', b'c', 0, 7]);
        assert_eq!(decoder.skip(STRUCT), Some(()));
        assert_eq!(decoder.read_byte(), Some(7));
        // Lists of one list each, deeper than the limit, and a length that is not there.
        assert_eq!(ThriftDecoder::new(&[0x19; 100]).skip(LIST), None);
        assert_eq!(ThriftDecoder::new(&[0x18, 200, 1, b'a']).skip(STRUCT), None);
    }
}
