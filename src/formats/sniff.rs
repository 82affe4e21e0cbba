//! Recognises a file by its first bytes, for every reader.

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Compressed in a way that readers of texts decompress.
    Compressed(Compression),
    /// Compressed in a way that is not read: the name of the compression, and a command that decompresses it.
    Unsupported(&'static str, &'static str),
    /// UTF-16 with a byte order mark.
    Utf16(ByteOrder),
    /// A Parquet file.
    Parquet,
    /// An Arrow file or stream.
    Arrow,
    /// A NumPy array.
    Npy,
    /// A ZIP archive, as of npz.
    Zip,
    /// A safetensors file.
    Safetensors,
    /// A pointer to a file that Git LFS has not fetched.
    LfsPointer,
    /// Text in another encoding than UTF-8 and UTF-16 with a byte order mark: what it is, and its name for
    /// `iconv`.
    Encoded(&'static str, &'static str),
    /// Anything else that is not text, with an article.
    Other(&'static str),
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// One or more gzip members.
    Gzip,
    /// One or more Zstandard frames.
    Zstd,
}

impl Compression {
    /// The program that makes it.
    pub fn program(self) -> &'static str {
        match self {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// The extension of a compressed file.
    pub fn suffix(self) -> &'static str {
        match self {
            Compression::Gzip => "gz",
            Compression::Zstd => "zst",
        }
    }
}

/// The order of the two bytes of UTF-16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// The low byte first.
    Little,
    /// The high byte first.
    Big,
}

/// Magic numbers, and the kinds of files that start with them. Longer ones are before their prefixes.
const MAGIC_NUMBERS: &[(&[u8], Kind)] = &[
    (b"\xff\xfe\0\0", Kind::Encoded("UTF-32", "UTF-32")),
    (b"\0\0\xfe\xff", Kind::Encoded("UTF-32", "UTF-32")),
    (b"\xff\xfe", Kind::Utf16(ByteOrder::Little)),
    (b"\xfe\xff", Kind::Utf16(ByteOrder::Big)),
    (b"\x1f\x8b", Kind::Compressed(Compression::Gzip)),
    (b"\x28\xb5\x2f\xfd", Kind::Compressed(Compression::Zstd)),
    (b"BZh", Kind::Unsupported("bzip2", "bzip2 -d")),
    (b"\xfd7zXZ\0", Kind::Unsupported("xz", "xz -d")),
    (b"\x04\x22\x4d\x18", Kind::Unsupported("lz4", "lz4 -d")),
    (b"\x1f\x9d", Kind::Unsupported("compress", "uncompress")),
    (b"\xff\x06\0\0sNaPpY", Kind::Unsupported("Snappy", "snzip -d")),
    (b"PAR1", Kind::Parquet),
    (b"PARE", Kind::Parquet),
    (b"ARROW1\0\0", Kind::Arrow),
    (b"FEA1", Kind::Arrow),
    (b"version https://git-lfs.github.com/spec/", Kind::LfsPointer),
    (b"\x89PNG\r\n\x1a\n", Kind::Other("a PNG image")),
    (b"\xff\xd8\xff", Kind::Other("a JPEG image")),
    (b"GIF87a", Kind::Other("a GIF image")),
    (b"GIF89a", Kind::Other("a GIF image")),
    (b"%PDF-", Kind::Other("a PDF document")),
    (b"PK\x03\x04", Kind::Zip),
    (b"7z\xbc\xaf\x27\x1c", Kind::Other("a 7z archive")),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Kind::Other("an Office document from before 2007")),
    (b"\x7fELF", Kind::Other("a program")),
    (b"SQLite format 3\0", Kind::Other("an SQLite database")),
    (b"\x93NUMPY", Kind::Npy),
    (b"\x89HDF\r\n\x1a\n", Kind::Other("an HDF5 file")),
    (b"Obj\x01", Kind::Other("an Avro file")),
];

/// The kind of a file that starts with `start`; `None` if it may be text.
pub fn sniff(start: &[u8]) -> Option<Kind> {
    if let Some((_, kind)) = MAGIC_NUMBERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(*kind);
    }
    let first: [u8; 8] = *start.first_chunk()?;
    // Of four ASCII characters in UTF-16, one byte of each is zero.
    let are_zero = |parity: usize| (0..8).all(|i| (first[i] == 0) == (i % 2 == parity));
    match first {
        // A frame of zstd that decoders skip.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Kind::Compressed(Compression::Zstd)),
        // The marker of a message, and a length, which is not negative.
        [0xff, 0xff, 0xff, 0xff, _, _, _, 0..=0x7f] => Some(Kind::Arrow),
        // The length of a header below 16 MiB, and the header: a JSON object.
        [_, _, _, 0, 0, 0, 0, 0] if start.get(8) == Some(&b'{') => Some(Kind::Safetensors),
        _ if are_zero(1) => Some(Kind::Encoded(UTF_16, "UTF-16LE")),
        _ if are_zero(0) => Some(Kind::Encoded(UTF_16, "UTF-16BE")),
        _ => None,
    }
}

const UTF_16: &str = "UTF-16 without a byte order mark";

impl Kind {
    /// What a file of this kind is: the complement of `is`.
    pub fn description(self) -> String {
        match self {
            Kind::Compressed(compression) => format!("{}-compressed", compression.program()),
            Kind::Unsupported(name, _) => format!("{name}-compressed"),
            Kind::Utf16(_) => "UTF-16".into(),
            Kind::Parquet => "a Parquet file".into(),
            Kind::Arrow => "Arrow data".into(),
            Kind::Npy => "a NumPy array".into(),
            Kind::Zip => "a ZIP archive (Office documents and EPUB are ZIP archives)".into(),
            Kind::Safetensors => "a safetensors file".into(),
            Kind::LfsPointer => "a pointer of Git LFS to a file that has not been fetched".into(),
            Kind::Encoded(encoding, _) => encoding.into(),
            Kind::Other(what) => what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteOrder, Compression, Kind, sniff};

    #[test]
    fn text_is_of_no_kind() {
        for text in
            ["ünïcode", "", "P", "PAR", "a\0b\0c", "BZ", "ARROW1", "7z", "version https://example.com"]
        {
            assert_eq!(sniff(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn files_are_known_by_their_first_bytes() {
        for (start, kind) in [
            (&b"\xff\xfea\0"[..], Kind::Utf16(ByteOrder::Little)),
            (b"\xff\xfe\0\0a\0\0\0", Kind::Encoded("UTF-32", "UTF-32")),
            (b"\x50\x2a\x4d\x18\x04\0\0\0", Kind::Compressed(Compression::Zstd)),
            (b"\xff\xff\xff\xff\xf0\0\0\0\x10", Kind::Arrow),
            (b"\xff\xff\xff\xff\xff\xff\xff\x7f", Kind::Arrow),
            (b"ARROW1\0\0", Kind::Arrow),
            (b"PAR1\x15", Kind::Parquet),
            (b"\x93NUMPY\x01", Kind::Npy),
            (b"PK\x03\x04", Kind::Zip),
            (b"\x40\0\0\0\0\0\0\0{", Kind::Safetensors),
        ] {
            assert_eq!(sniff(start), Some(kind), "{start:?}");
        }
    }
}
