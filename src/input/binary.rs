//! Files that are no text, by their first bytes.

/// What files begin with, and what such a file is.
const KINDS: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive, as Office documents and EPUB are"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x1f\x8b", "gzip-compressed, but its name does not end in .gz"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed, but its name does not end in .zst"),
    (b"ARROW1\0\0", "an Arrow file, but its name does not end in .arrow"),
    (b"PAR1", "a Parquet file, but its name does not end in .parquet"),
    (b"\x93NUMPY", "a NumPy array"),
];

/// Why a file that begins with these bytes is no text, as the rest of a sentence that begins with its name; none if it may
/// be one.
pub fn reason(start: &[u8]) -> Option<String> {
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return Some("is UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8".into());
    }
    let (_, what) = KINDS.iter().find(|(magic, _)| start.starts_with(magic))?;
    Some(format!("is {what}, not text; leave it out with --exclude, or take its text out first"))
}

/// Why bytes that are not valid UTF-8 are no text.
pub fn reason_not_utf8(bytes: &[u8], first: usize, of_what: &str) -> String {
    reason(bytes).unwrap_or_else(|| match bytes.contains(&0) {
        true => "is binary data, not text; leave it out with --exclude".into(),
        false => format!(
            "is not valid UTF-8 (byte {} of the {of_what}); convert the file to UTF-8, for example with iconv",
            first + 1
        ),
    })
}
