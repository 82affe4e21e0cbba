//! Which inputs there are: what `--input` names, how texts stand in each, and how it is packed.

use std::collections::{HashSet, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use glob::{MatchOptions, glob_with};

/// How texts stand in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One a line.
    Lines,
    /// In a field of an object, one a line.
    Jsonl,
    /// In a column of comma-separated values.
    Csv,
    /// In a column of tab-separated values.
    Tsv,
    /// In a column of a Parquet file.
    Parquet,
    /// In a column of an Arrow IPC file or stream.
    Arrow,
    /// The file is one text.
    Files,
}

impl Format {
    /// Whether a file says at its beginning what fields its records have.
    pub(super) fn has_header(self) -> bool {
        matches!(self, Format::Csv | Format::Tsv | Format::Parquet | Format::Arrow)
    }

    /// Whether a record has fields with names.
    pub fn has_fields(self) -> bool {
        !matches!(self, Format::Lines | Format::Files)
    }

    /// The name that `--input-format` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Lines => "lines",
            Format::Jsonl => "jsonl",
            Format::Csv => "csv",
            Format::Tsv => "tsv",
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
            Format::Files => "files",
        }
    }

    /// What the suffix of an unpacked file's name says; none for a `.json`, which would be one value over many lines.
    fn by_suffix(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "json" => return None,
            "jsonl" | "ndjson" => Format::Jsonl,
            "csv" => Format::Csv,
            "tsv" => Format::Tsv,
            "parquet" | "pq" => Format::Parquet,
            "arrow" | "arrows" | "feather" | "ipc" => Format::Arrow,
            _ => Format::Lines,
        })
    }
}

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// One or more gzip members.
    Gzip,
    /// One or more Zstandard frames.
    Zstd,
}

/// Something to read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Stdin => write!(f, "standard input"),
        }
    }
}

/// One input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it is.
    pub place: Place,
    /// How texts stand in it.
    pub format: Format,
    /// How it is packed.
    pub compression: Compression,
}

impl Source {
    /// Tries the input, as far as that can be done without reading from it.
    ///
    /// # Errors
    /// If it is no file that can be read in this format.
    pub(super) fn check(&self) -> Result<()> {
        self.check_format()?;
        let Place::File(path) = &self.place else { return Ok(()) };
        let shown = path.display();
        let there = fs::metadata(path).map_err(|error| unopened(path, &error))?;
        if there.is_dir() {
            bail!("--input {shown} is a directory; name the text files in it");
        }
        match self.format {
            Format::Parquet if !there.is_file() => {
                bail!(
                    "--input {shown} is no regular file, and parquet is read from its end; copy it to a file"
                )
            }
            // One among many: that it cannot be read is no reason to leave out the others.
            Format::Files => Ok(()),
            // Opening a pipe would wait for whoever writes to it.
            _ if !there.is_file() => Ok(()),
            _ => File::open(path).map(drop).map_err(|error| unopened(path, &error)),
        }
    }

    /// Refuses what a format cannot be read from.
    fn check_format(&self) -> Result<()> {
        match (self.format, self.compression, &self.place) {
            (Format::Parquet, _, Place::Stdin) => {
                bail!(
                    "standard input cannot be parquet, which is read from its end; save it as a file and name that"
                )
            }
            (Format::Parquet, Compression::Gzip | Compression::Zstd, place) => {
                bail!(
                    "--input {place} is parquet that is packed once more; unpack it, since its columns are packed"
                )
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the input as it lies there; none where that is not known.
    pub(super) fn size(&self) -> Option<u64> {
        let Place::File(path) = &self.place else { return None };
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|file| file.len())
    }
}

/// One sentence on a name that does not open.
pub(super) fn unopened(path: impl AsRef<Path>, error: &io::Error) -> anyhow::Error {
    anyhow!("cannot read --input {} ({error}); check the name", path.as_ref().display())
}

/// What `--input` names: `-` for standard input; files as they are; directories for all files in them and below,
/// hidden ones left out; and a pattern with `*`, `?` or `[` that is no file for what it matches. What a directory or
/// a pattern stands for is in the order of its paths, component by component. Without a `format` each file's suffix
/// says it; the suffix says how a file is packed, too.
///
/// # Errors
/// If a directory or a pattern stands for no file, a directory cannot be read, or a file has a suffix or packing that
/// its format cannot have.
pub fn sources(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            let format = format.unwrap_or(Format::Lines);
            sources.push(Source { place: Place::Stdin, format, compression: Compression::None });
            continue;
        }
        for file in expand(path)? {
            sources.push(source(file, format)?);
        }
    }
    sources.iter().try_for_each(Source::check_format)?;
    Ok(sources)
}

/// A file with what its name says about it.
fn source(path: PathBuf, format: Option<Format>) -> Result<Source> {
    let (inner, compression) = match suffix(&path).as_str() {
        "gz" | "gzip" => (path.with_extension(""), Compression::Gzip),
        "zst" | "zstd" => (path.with_extension(""), Compression::Zstd),
        _ => (path.clone(), Compression::None),
    };
    let Some(format) = format.or_else(|| Format::by_suffix(&suffix(&inner))) else {
        bail!(
            "--input {}: .json files are not supported; write one object a line, or say with --input-format how \
             texts stand in it",
            path.display()
        );
    };
    Ok(Source { place: Place::File(path), format, compression })
}

fn suffix(path: &Path) -> String {
    path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// The files that a name stands for.
fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_dir() {
        let mut files = Vec::new();
        walk(path, &mut files)?;
        if files.is_empty() {
            bail!("--input {} is a directory without files; name one that has texts", path.display());
        }
        files.sort();
        return Ok(files);
    }
    // A broken link is a file of that name.
    match path.to_str() {
        Some(pattern) if pattern.contains(['*', '?', '[']) && path.symlink_metadata().is_err() => {
            matches(pattern)
        }
        _ => Ok(vec![path.to_owned()]),
    }
}

/// The files that a pattern matches, and those in the directories that it matches.
fn matches(pattern: &str) -> Result<Vec<PathBuf>> {
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    // By itself, ** stands for folders alone.
    let files_too = if pattern.ends_with("**") { format!("{pattern}/*") } else { pattern.to_owned() };
    let found = glob_with(&files_too, options).map_err(|error| {
        anyhow!("--input {pattern} is no file, and no pattern of names ({error}); check it")
    })?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| unopened(error.path(), error.error()))?;
        match path.is_dir() {
            true => walk(&path, &mut files)?,
            false => files.push(path),
        }
    }
    if files.is_empty() {
        bail!(
            "--input {pattern} matches no file; check the pattern, and the folder that it is looked for in"
        );
    }
    files.sort();
    // Links may lead to one file by many ways, or in circles.
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(fs::canonicalize(file).unwrap_or_else(|_| file.clone())));
    Ok(files)
}

/// Adds the files of a directory and of those below it. Each directory is read once, by its own name if it has one
/// inside: links may lead to it by many ways, or in circles.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut seen = HashSet::new();
    let (mut folders, mut links) = (vec![folder.to_owned()], VecDeque::new());
    while let Some(folder) = folders.pop().or_else(|| links.pop_front()) {
        let fault = |error| unopened(&folder, &error);
        if !seen.insert(fs::canonicalize(&folder).map_err(fault)?) {
            continue;
        }
        let mut entries =
            fs::read_dir(&folder).map_err(fault)?.collect::<io::Result<Vec<_>>>().map_err(fault)?;
        entries.retain(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        entries.sort_by_key(fs::DirEntry::file_name);
        for path in entries.iter().map(fs::DirEntry::path) {
            match fs::metadata(&path) {
                Ok(there) if there.is_dir() && path.is_symlink() => links.push_back(path),
                Ok(there) if there.is_dir() => folders.push(path),
                Ok(there) if !there.is_file() => {}
                // What cannot be had is named when it is to be read.
                _ => files.push(path),
            }
        }
    }
    Ok(())
}
