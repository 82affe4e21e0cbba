//! What to do with a file of another kind than its name or its format promises.

use super::source::{Format, InputPath, Source};
use crate::formats::{Compression, Kind, sniff};
use crate::named::Named;

/// Why an input whose name says that it is compressed is not, as the predicate of an error; `None` if it is,
/// or has no bytes.
pub(super) fn not_compressed(source: &Source, compression: Compression, start: &[u8]) -> Option<String> {
    let found = sniff(start);
    if start.is_empty() || found == Some(Kind::Compressed(compression)) {
        return None;
    }
    let promised = format!("{}-compressed", compression.program());
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

/// Why a file of this kind cannot be read in the format of `source`, as the predicate of an error; `None` if
/// it can. `start` is what it starts with, decompressed.
pub(super) fn mismatch(source: &Source, start: &[u8]) -> Option<String> {
    let (format, compression) = (source.format, source.compression);
    let Some(kind) = sniff(start) else {
        return (format.is_binary() && is_plain_text(start)).then(|| {
            format!("is text, not {}; pass --input-format with the format that it has", noun(format))
        });
    };
    let is_stdin = source.path == InputPath::Stdin;
    let is = kind.description();
    Some(match kind {
        _ if format_of(kind) == Some(format) => return None,
        Kind::Utf16(_) if !format.is_binary() => return None,
        Kind::Compressed(inner) if compression.is_some() => {
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
        Kind::Parquet if is_stdin || compression.is_some() => {
            format!("is {is}, not {}; save it to an uncompressed file and pass that", noun(format))
        }
        Kind::Arrow if is_stdin => format!("is {is}, not {}; pass --input-format arrow", noun(format)),
        Kind::Parquet | Kind::Arrow => {
            let other = format_of(kind).map_or("", Named::name);
            format!(
                "is {is}, not {}; pass --input-format {other}, or rename it so that its name ends in .{other}",
                noun(format)
            )
        }
        Kind::LfsPointer => format!("is {is}; fetch it with git lfs pull"),
        Kind::Encoded(_, name) => {
            format!("is {is}; convert it to UTF-8, for example with iconv -f {name} -t UTF-8")
        }
        _ if format.is_binary() => {
            format!("is {is}, not {}; pass another file", noun(format))
        }
        Kind::Utf16(_) | Kind::Npy | Kind::Zip | Kind::Safetensors | Kind::Other(_) => {
            format!("is {is}, not text; skip it with --exclude, or extract its text first")
        }
    })
}

/// What an input of this format is.
fn noun(format: Format) -> String {
    match format {
        Format::Lines | Format::Files => "text".into(),
        Format::Jsonl => "JSON lines".into(),
        Format::Fasta => "a FASTA file".into(),
        Format::Csv | Format::Tsv => format!("a {} file", format.name()),
        Format::Parquet => Kind::Parquet.description(),
        Format::Arrow => Kind::Arrow.description(),
    }
}

/// The format of inputs of a kind, if it is one.
fn format_of(kind: Kind) -> Option<Format> {
    match kind {
        Kind::Parquet => Some(Format::Parquet),
        Kind::Arrow => Some(Format::Arrow),
        _ => None,
    }
}

/// Whether the first bytes are printable ASCII, and so neither a length nor a magic number.
fn is_plain_text(start: &[u8]) -> bool {
    let first = &start[..start.len().min(16)];
    first.len() >= 4 && first.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'))
}

/// Why a file that is not valid UTF-8 from byte `valid_up_to` on is not text, as the predicate of an error.
pub(super) fn not_text_file(bytes: &[u8], valid_up_to: usize, is_utf16: bool) -> String {
    if bytes.contains(&0) {
        "is binary data, not text; skip it with --exclude".into()
    } else {
        not_utf8(bytes, valid_up_to, "file", is_utf16)
    }
}

/// The predicate of an error about a text that [`is_cut`].
pub(super) const CUT: &str =
    "ends with half of a UTF-16 code unit: the file was not copied as a whole; write or copy it again";

/// Whether text ends with the byte that [`Utf16Reader`](super::utf16::Utf16Reader) makes of an odd last one.
pub(super) fn is_cut(bytes: &[u8], is_utf16: bool) -> bool {
    is_utf16 && bytes.ends_with(b"\xff")
}

/// The predicate of an error about a line or a file that is not valid UTF-8 from byte `valid_up_to` on.
/// `is_utf16`: whether it was decoded from UTF-16.
pub(super) fn not_utf8(bytes: &[u8], valid_up_to: usize, unit: &str, is_utf16: bool) -> String {
    let byte = valid_up_to + 1;
    match bytes.get(valid_up_to..) {
        Some(rest) if rest.len() == 1 && is_cut(rest, is_utf16) => CUT.into(),
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
    use super::{mismatch, not_compressed, not_text_file};
    use crate::input::find::source_of_file;

    #[test]
    fn bytes_that_are_not_text_are_named() {
        assert!(not_text_file(b"a\0\xff", 2, false).starts_with("is binary data"));
        assert!(not_text_file(b"ab\xff", 2, false).starts_with("is not valid UTF-8 (byte 3 of the file)"));
        assert!(
            not_text_file(b"ab\xed\xa0\x80", 2, false)
                .starts_with("has half of a UTF-16 surrogate pair (byte 3")
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
            let source = source_of_file((*name).into(), None);
            let found = not_compressed(&source, source.compression.unwrap(), start);
            assert_eq!(found.as_deref(), *expected, "{name}");
        }
    }
}
