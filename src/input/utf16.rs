//! Decodes UTF-16.

use std::io::{self, BufRead, Read};

use crate::formats::ByteOrder;

/// The bytes of UTF-8 of an input in UTF-16. Half of a surrogate pair becomes the three bytes that UTF-8
/// would have for it, and a last odd byte becomes 0xff: neither is valid UTF-8, so that a reader reports the
/// record.
pub(super) struct Utf16Reader<R> {
    input: R,
    order: ByteOrder,
    /// Decoded bytes, and the number of them that have been read.
    decoded: (Vec<u8>, usize),
    /// The first byte of a unit whose second one is still to come.
    byte: Option<u8>,
    /// The first half of a surrogate pair whose second one is still to come.
    half: Option<u16>,
}

impl<R: BufRead> Utf16Reader<R> {
    /// Decodes `input`.
    pub(super) fn new(input: R, order: ByteOrder) -> Self {
        Utf16Reader { input, order, decoded: (Vec::new(), 0), byte: None, half: None }
    }

    /// Decodes the bytes that `input` has in its buffer. Returns whether there are none: it has ended.
    fn decode(&mut self) -> io::Result<bool> {
        let available = self.input.fill_buf()?;
        let length = available.len();
        let (out, read) = &mut self.decoded;
        out.clear();
        *read = 0;
        for byte in available {
            let Some(first) = self.byte.take() else {
                self.byte = Some(*byte);
                continue;
            };
            let unit = match self.order {
                ByteOrder::Little => u16::from_le_bytes([first, *byte]),
                ByteOrder::Big => u16::from_be_bytes([first, *byte]),
            };
            push(out, &mut self.half, unit);
        }
        if length == 0 {
            self.half.take().into_iter().for_each(|half| push_half(out, half));
            out.extend(self.byte.take().map(|_| 0xff));
        }
        self.input.consume(length);
        Ok(length == 0)
    }
}

/// Appends the character that `unit` completes, after `half` if `unit` is not its second half. The first half
/// of a character becomes `half`.
fn push(out: &mut Vec<u8>, half: &mut Option<u16>, unit: u16) {
    let first = half.take();
    let pair = first.and_then(|first| char::decode_utf16([first, unit]).next()?.ok());
    match (pair.or(char::from_u32(unit.into())), unit) {
        (Some(character), _) => {
            first.filter(|_| pair.is_none()).into_iter().for_each(|half| push_half(out, half));
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        (None, 0xd800..=0xdbff) => {
            first.into_iter().for_each(|half| push_half(out, half));
            *half = Some(unit);
        }
        (None, unit) => first.into_iter().chain([unit]).for_each(|half| push_half(out, half)),
    }
}

/// Appends half of a surrogate pair as UTF-8 would encode it.
fn push_half(out: &mut Vec<u8>, half: u16) {
    out.extend([0xed, (half >> 6) as u8 & 0x3f | 0x80, half as u8 & 0x3f | 0x80]);
}

impl<R: BufRead> Read for Utf16Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoded.1 == self.decoded.0.len() {
            let is_end = self.decode()?;
            if is_end && self.decoded.0.is_empty() {
                return Ok(0);
            }
        }
        let (decoded, read) = &mut self.decoded;
        let count = (&decoded[*read..]).read(buffer)?;
        *read += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::Utf16Reader;
    use crate::formats::ByteOrder;

    #[test]
    fn characters_are_decoded_across_reads() {
        let text = "a lamp, ünï 火 🔥\n";
        for (order, bytes) in [ByteOrder::Little, ByteOrder::Big].map(|order| {
            let bytes = text.encode_utf16().flat_map(|unit| match order {
                ByteOrder::Little => unit.to_le_bytes(),
                ByteOrder::Big => unit.to_be_bytes(),
            });
            (order, bytes.collect::<Vec<u8>>())
        }) {
            for capacity in [1, 2, 3, 5, 4096] {
                let mut decoded = String::new();
                let input = BufReader::with_capacity(capacity, &bytes[..]);
                Utf16Reader::new(input, order).read_to_string(&mut decoded).unwrap();
                assert_eq!(decoded, text, "{order:?} {capacity}");
            }
        }
    }

    #[test]
    fn halves_of_characters_are_not_utf8() {
        let decoded = |units: &[u16], odd: &[u8]| {
            let bytes: Vec<u8> =
                units.iter().flat_map(|unit| unit.to_be_bytes()).chain(odd.to_vec()).collect();
            let mut decoded = Vec::new();
            Utf16Reader::new(&bytes[..], ByteOrder::Big).read_to_end(&mut decoded).unwrap();
            decoded
        };
        assert_eq!(decoded(&[0xd83d, 0x61], b""), b"\xed\xa0\xbda");
        assert_eq!(decoded(&[0x61, 0xdd25], b""), b"a\xed\xb4\xa5");
        assert_eq!(decoded(&[0xd83d, 0xd83d, 0xdd25], b""), b"\xed\xa0\xbd\xf0\x9f\x94\xa5");
        assert_eq!(decoded(&[0x61, 0xd83d], b"z"), b"a\xed\xa0\xbd\xff");
        assert_eq!(decoded(&[], b"\xff"), b"\xff");
    }
}
