//! Recognises files that are not text by their first bytes.

/// Magic numbers, and the kinds of files that start with them.
const MAGIC_NUMBERS: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (Office documents and EPUB are ZIP archives)"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document from before 2007"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x1f\x8b", "gzip-compressed, but its name does not end in .gz"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed, but its name does not end in .zst"),
    (b"ARROW1\0\0", "an Arrow file, but its name does not end in .arrow"),
    (b"PAR1", "a Parquet file, but its name does not end in .parquet"),
    (b"\x93NUMPY", "a NumPy array"),
];

/// Why a file that starts with `start` is not UTF-8 text, as the predicate of an error; `None` if it may be text.
pub(super) fn not_text(start: &[u8]) -> Option<String> {
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return Some("is UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8".into());
    }
    let (_, kind) = MAGIC_NUMBERS.iter().find(|(magic, _)| start.starts_with(magic))?;
    Some(format!("is {kind}, not text; skip it with --exclude, or extract its text first"))
}

/// Why a file that is not valid UTF-8 from byte `valid_up_to` on is not text, as the predicate of an error.
pub(super) fn not_text_file(bytes: &[u8], valid_up_to: usize) -> String {
    not_text(bytes).unwrap_or_else(|| {
        if bytes.contains(&0) {
            "is binary data, not text; skip it with --exclude".into()
        } else {
            not_utf8(valid_up_to, "file")
        }
    })
}

/// The predicate of an error about a line or a file that is not valid UTF-8 from byte `valid_up_to` on.
pub(super) fn not_utf8(valid_up_to: usize, unit: &str) -> String {
    let byte = valid_up_to + 1;
    format!(
        "is not valid UTF-8 (byte {byte} of the {unit}); convert the file to UTF-8, for example with iconv"
    )
}

#[cfg(test)]
mod tests {
    use super::{not_text, not_text_file};

    #[test]
    fn files_that_are_not_text_are_recognised() {
        assert_eq!(not_text("ünïcode".as_bytes()), None);
        assert!(
            not_text(b"%PDF-1.7 text")
                .is_some_and(|reason| reason.starts_with("is a PDF document, not text"))
        );
        assert!(not_text(b"\xff\xfea\0").is_some_and(|reason| reason.starts_with("is UTF-16; ")));
        assert!(not_text_file(b"a\0\xff", 2).starts_with("is binary data"));
        assert!(not_text_file(b"ab\xff", 2).starts_with("is not valid UTF-8 (byte 3 of the file)"));
    }
}
