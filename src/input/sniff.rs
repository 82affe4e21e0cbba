//! Recognises kinds of files by their first bytes, and says what to do with a file of another kind than its name or its
//! format promises.

use super::source::{Compression, Format, InputPath, Source};
use crate::named::Named;

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Compressed, and decompressed by the reader if the name says so.
    Compressed(Compression),
    /// Compressed in a way that is not read: the name of the compression, and a command that decompresses it.
    Unsupported(&'static str, &'static str),
    /// UTF-16 with a byte order mark.
    Utf16(ByteOrder),
    /// A format of its own.
    Format(Format),
    /// A pointer to a file that Git LFS has not fetched.
    LfsPointer,
    /// Text in another encoding than UTF-8 and UTF-16 with a byte order mark: what it is, and its name for `iconv`.
    Encoded(&'static str, &'static str),
    /// Anything else that is not text, with an article.
    Other(&'static str),
}

/// The order of the two bytes of UTF-16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
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
    (b"PAR1", Kind::Format(Format::Parquet)),
    (b"PARE", Kind::Format(Format::Parquet)),
    (b"ARROW1\0\0", Kind::Format(Format::Arrow)),
    (b"FEA1", Kind::Format(Format::Arrow)),
    (b"version https://git-lfs.github.com/spec/", Kind::LfsPointer),
    (b"\x89PNG\r\n\x1a\n", Kind::Other("a PNG image")),
    (b"\xff\xd8\xff", Kind::Other("a JPEG image")),
    (b"GIF87a", Kind::Other("a GIF image")),
    (b"GIF89a", Kind::Other("a GIF image")),
    (b"%PDF-", Kind::Other("a PDF document")),
    (b"PK\x03\x04", Kind::Other("a ZIP archive (Office documents and EPUB are ZIP archives)")),
    (b"7z\xbc\xaf\x27\x1c", Kind::Other("a 7z archive")),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Kind::Other("an Office document from before 2007")),
    (b"\x7fELF", Kind::Other("a program")),
    (b"SQLite format 3\0", Kind::Other("an SQLite database")),
    (b"\x93NUMPY", Kind::Other("a NumPy array")),
    (b"\x89HDF\r\n\x1a\n", Kind::Other("an HDF5 file")),
    (b"Obj\x01", Kind::Other("an Avro file")),
];

/// The kind of a file that starts with `start`; `None` if it may be text.
pub(super) fn kind(start: &[u8]) -> Option<Kind> {
    if let Some((_, kind)) = MAGIC_NUMBERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(*kind);
    }
    let first: [u8; 8] = *start.first_chunk()?;
    // Of four ASCII characters in UTF-16, one byte of each is zero.
    let are_zero = |parity: usize| (0..8).all(|i| (first[i] == 0) == (i % 2 == parity));
    match first {
        // A frame of zstd that decoders skip.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Kind::Compressed(Compression::Zstd)),
        // The marker of a message, and a length below 16 MiB.
        [0xff, 0xff, 0xff, 0xff, _, _, _, 0] => Some(Kind::Format(Format::Arrow)),
        // The length of a header below 16 MiB, and the header: a JSON object.
        [_, _, _, 0, 0, 0, 0, 0] if start.get(8) == Some(&b'{') => Some(Kind::Other("a safetensors file")),
        _ if are_zero(1) => Some(Kind::Encoded(UTF_16, "UTF-16LE")),
        _ if are_zero(0) => Some(Kind::Encoded(UTF_16, "UTF-16BE")),
        _ => None,
    }
}

const UTF_16: &str = "UTF-16 without a byte order mark";

impl Kind {
    /// What a file of this kind is, with the verb's complement: `is …`.
    fn description(self) -> String {
        match self {
            Kind::Compressed(compression) => format!("{}-compressed", compression.program()),
            Kind::Unsupported(name, _) => format!("{name}-compressed"),
            Kind::Utf16(_) => "UTF-16".into(),
            Kind::Format(Format::Parquet) => "a Parquet file".into(),
            Kind::Format(_) => "Arrow data".into(),
            Kind::LfsPointer => "a pointer of Git LFS to a file that has not been fetched".into(),
            Kind::Encoded(encoding, _) => encoding.into(),
            Kind::Other(what) => what.into(),
        }
    }
}

/// Why an input whose name says that it is compressed is not, as the predicate of an error; `None` if it is, or has no
/// bytes.
pub(super) fn not_compressed(source: &Source, start: &[u8]) -> Option<String> {
    let found = kind(start);
    if start.is_empty() || found == Some(Kind::Compressed(source.compression)) {
        return None;
    }
    let promised = format!("{}-compressed", source.compression.program());
    let suffix = source.path.extension();
    Some(match found {
        Some(Kind::Compressed(other)) => format!(
            "is {}-compressed, not {promised}; rename it so that its name ends in .{} in place of .{suffix}",
            other.program(),
            other.suffix()
        ),
        Some(Kind::Unsupported(name, command)) => {
            format!("is {name}-compressed, not {promised}; decompress it with {command}")
        }
        Some(kind) => format!("is {}, not {promised}; remove .{suffix} from its name", kind.description()),
        None => format!("is not {promised}; remove .{suffix} from its name"),
    })
}

/// Why a file of this kind cannot be read in the format of `source`, as the predicate of an error; `None` if it can.
/// `start` is what it starts with, decompressed.
pub(super) fn mismatch(source: &Source, start: &[u8]) -> Option<String> {
    let (format, compression) = (source.format, source.compression);
    let Some(kind) = kind(start) else {
        return (format.is_binary() && is_plain_text(start)).then(|| {
            let format = Kind::Format(format).description();
            format!("is text, not {format}; pass --input-format with the format that it has")
        });
    };
    let is_stdin = source.path == InputPath::Stdin;
    let is = kind.description();
    Some(match kind {
        Kind::Format(other) if other == format => return None,
        Kind::Utf16(_) if !format.is_binary() => return None,
        Kind::Compressed(inner) if compression != Compression::None => {
            let program = inner.program();
            format!("is {is} inside another compression; decompress it once with {program} -d")
        }
        Kind::Compressed(inner) if is_stdin => {
            format!("is {is}; pass it through {} -dc", inner.program())
        }
        Kind::Compressed(inner) if format == Format::Parquet => {
            format!("is {is}, not a Parquet file; decompress it with {} -d", inner.program())
        }
        Kind::Compressed(inner) => format!(
            "is {is}, but its name does not end in .{suffix}; rename it to {}.{suffix}",
            source.path.file_name(),
            suffix = inner.suffix(),
        ),
        Kind::Unsupported(_, command) => format!("is {is}; decompress it with {command}"),
        Kind::Format(Format::Parquet) if is_stdin || compression != Compression::None => {
            format!("is {is}, not {}; save it to an uncompressed file and pass that", noun(format))
        }
        Kind::Format(other) if is_stdin => {
            format!("is {is}, not {}; pass --input-format {}", noun(format), other.name())
        }
        Kind::Format(other) => format!(
            "is {is}, not {}; pass --input-format {other}, or rename it so that its name ends in .{other}",
            noun(format),
            other = other.name()
        ),
        Kind::LfsPointer => format!("is {is}; fetch it with git lfs pull"),
        Kind::Encoded(_, name) => {
            format!("is {is}; convert it to UTF-8, for example with iconv -f {name} -t UTF-8")
        }
        Kind::Utf16(_) | Kind::Other(_) if format.is_binary() => {
            format!("is {is}, not {}; pass another file", noun(format))
        }
        Kind::Utf16(_) | Kind::Other(_) => {
            format!("is {is}, not text; skip it with --exclude, or extract its text first")
        }
    })
}

/// What an input of this format is.
fn noun(format: Format) -> String {
    match format {
        Format::Lines | Format::Files => "text".into(),
        Format::Jsonl => "JSON lines".into(),
        Format::Csv | Format::Tsv => format!("a {} file", format.name()),
        Format::Parquet | Format::Arrow => Kind::Format(format).description(),
    }
}

/// Whether the first bytes are printable ASCII, and so neither a length nor a magic number.
fn is_plain_text(start: &[u8]) -> bool {
    let first = &start[..start.len().min(16)];
    first.len() >= 4 && first.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
}

/// Why a file that is not valid UTF-8 from byte `valid_up_to` on is not text, as the predicate of an error.
pub(super) fn not_text_file(bytes: &[u8], valid_up_to: usize) -> String {
    if bytes.contains(&0) {
        "is binary data, not text; skip it with --exclude".into()
    } else {
        not_utf8(bytes, valid_up_to, "file")
    }
}

/// The predicate of an error about a line or a file that is not valid UTF-8 from byte `valid_up_to` on.
pub(super) fn not_utf8(bytes: &[u8], valid_up_to: usize, unit: &str) -> String {
    let byte = valid_up_to + 1;
    match bytes.get(valid_up_to..) {
        Some([0xed, 0xa0..=0xff, ..]) => format!(
            "has half of a UTF-16 surrogate pair (byte {byte} of the {unit}); write the whole character, or remove the half"
        ),
        _ => format!(
            "is not valid UTF-8 (byte {byte} of the {unit}); convert the file to UTF-8, for example with iconv"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{ByteOrder, Kind, kind, mismatch, not_compressed, not_text_file};
    use crate::input::find::source_of_file;
    use crate::input::source::{Compression, Format};

    #[test]
    fn text_is_of_no_kind() {
        for text in
            ["ünïcode", "", "P", "PAR", "a\0b\0c", "BZ", "ARROW1", "7z", "version https://example.com"]
        {
            assert_eq!(kind(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(kind(b"\xff\xfea\0"), Some(Kind::Utf16(ByteOrder::Little)));
        assert_eq!(kind(b"\xff\xfe\0\0a\0\0\0"), Some(Kind::Encoded("UTF-32", "UTF-32")));
        assert_eq!(kind(b"\x50\x2a\x4d\x18\x04\0\0\0"), Some(Kind::Compressed(Compression::Zstd)));
        assert_eq!(kind(b"\xff\xff\xff\xff\xf0\0\0\0\x10"), Some(Kind::Format(Format::Arrow)));
        assert!(not_text_file(b"a\0\xff", 2).starts_with("is binary data"));
        assert!(not_text_file(b"ab\xff", 2).starts_with("is not valid UTF-8 (byte 3 of the file)"));
        assert!(
            not_text_file(b"ab\xed\xa0\x80", 2).starts_with("has half of a UTF-16 surrogate pair (byte 3")
        );
    }

    /// What a file of each kind is called, and the remedy, by the name of the file.
    #[test]
    fn names_that_do_not_fit_are_named_with_a_remedy() {
        const GZIP: &[u8] = b"\x1f\x8b\x08\0";
        let cases: &[(&str, &[u8], &str)] = &[
            ("a.csv", GZIP, "is gzip-compressed, but its name does not end in .gz; rename it to a.csv.gz"),
            ("a.csv", b"BZh91AY", "is bzip2-compressed; decompress it with bzip2 -d"),
            ("a.txt", b"\xfd7zXZ\0", "is xz-compressed; decompress it with xz -d"),
            ("a.parquet", GZIP, "is gzip-compressed, not a Parquet file; decompress it with gzip -d"),
            (
                "a.arrow",
                GZIP,
                "is gzip-compressed, but its name does not end in .gz; rename it to a.arrow.gz",
            ),
            (
                "a.csv",
                b"PAR1",
                "is a Parquet file, not a csv file; pass --input-format parquet, or rename it so that its name ends in .parquet",
            ),
            (
                "a.csv.gz",
                b"PAR1",
                "is a Parquet file, not a csv file; save it to an uncompressed file and pass that",
            ),
            (
                "a.jsonl",
                b"ARROW1\0\0",
                "is Arrow data, not JSON lines; pass --input-format arrow, or rename it so that its name ends in .arrow",
            ),
            (
                "a.parquet",
                b"text\na\n",
                "is text, not a Parquet file; pass --input-format with the format that it has",
            ),
            ("a.arrow", b"\xff\xfea\0", "is UTF-16, not Arrow data; pass another file"),
            (
                "a.txt",
                b"%PDF-1.7",
                "is a PDF document, not text; skip it with --exclude, or extract its text first",
            ),
            (
                "a.txt",
                b"a\0b\0c\0d\0",
                "is UTF-16 without a byte order mark; convert it to UTF-8, for example with iconv -f UTF-16LE -t UTF-8",
            ),
            (
                "a.csv.gz",
                GZIP,
                "is gzip-compressed inside another compression; decompress it once with gzip -d",
            ),
            (
                "a.parquet",
                b"version https://git-lfs.github.com/spec/v1\n",
                "is a pointer of Git LFS to a file that has not been fetched; fetch it with git lfs pull",
            ),
        ];
        for (name, start, expected) in cases {
            let found = mismatch(&source_of_file((*name).into(), None), start);
            assert_eq!(found.as_deref(), Some(*expected), "{name}");
        }
        let cases: &[(&str, &[u8], Option<&str>)] = &[
            ("a.txt.gz", GZIP, None),
            ("a.txt.gz", b"", None),
            ("a.txt.gz", b"text", Some("is not gzip-compressed; remove .gz from its name")),
            ("a.txt.zstd", b"text", Some("is not zstd-compressed; remove .zstd from its name")),
            (
                "a.txt.zst",
                GZIP,
                Some(
                    "is gzip-compressed, not zstd-compressed; rename it so that its name ends in .gz in place of .zst",
                ),
            ),
            (
                "a.csv.gz",
                b"BZh9",
                Some("is bzip2-compressed, not gzip-compressed; decompress it with bzip2 -d"),
            ),
            ("a.txt.gz", b"%PDF-1", Some("is a PDF document, not gzip-compressed; remove .gz from its name")),
        ];
        for (name, start, expected) in cases {
            let found = not_compressed(&source_of_file((*name).into(), None), start);
            assert_eq!(found.as_deref(), *expected, "{name}");
        }
    }
}
