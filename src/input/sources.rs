//! Which inputs there are: what `--input` names, how texts stand in each, and how it is packed.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use glob::{MatchOptions, glob_with};
use ignore::WalkBuilder;
use ignore::overrides::{Override, OverrideBuilder};

use super::said;

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
    /// Whether an input that cannot be read is one record among others that can: it was found in a folder or by a pattern,
    /// and what cannot be read is to be left out.
    pub is_lenient: bool,
    /// Why it cannot be read, if that is known from its name.
    pub fault: Option<String>,
}

/// What is taken of folders and patterns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Patterns of names that are taken; without any, all are.
    pub include: Vec<String>,
    /// Patterns of names that are left out.
    pub exclude: Vec<String>,
    /// Whether what `.gitignore` names is taken, too.
    pub no_ignore: bool,
    /// Whether files in them that cannot be read are records among others.
    pub is_lenient: bool,
}

impl Filter {
    fn globs(&self, folder: &Path) -> Result<Override> {
        let mut globs = OverrideBuilder::new(folder);
        let includes = self.include.iter().map(|glob| ("--include", glob, glob.clone()));
        let excludes = self.exclude.iter().map(|glob| ("--exclude", glob, format!("!{glob}")));
        for (option, typed, glob) in includes.chain(excludes) {
            let added = globs.add(&glob);
            added.map_err(|error| {
                anyhow!("{option} {typed} is no pattern of names ({}); check it", said(&error))
            })?;
        }
        globs
            .build()
            .map_err(|error| anyhow!("--include and --exclude are too much together ({})", said(&error)))
    }
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

/// What `--input` names: `-` for standard input; files as they are; directories for all files in them and below, but for
/// hidden ones and those that `.gitignore` names; and a pattern with `*`, `?` or `[` that is no file for what it matches. What a directory or
/// a pattern stands for is in the order of its paths, component by component. Without a `format` each file's suffix
/// says it; the suffix says how a file is packed, too.
///
/// # Errors
/// If a directory or a pattern stands for no file, a directory cannot be read, or a file has a suffix or packing that
/// its format cannot have.
pub fn sources(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Source>> {
    filtered_sources(paths, format, &Filter::default())
}

/// The same; `filter` says what of folders and patterns is taken.
///
/// # Errors
/// Those of [`sources`], but for files that are records among others.
pub fn filtered_sources(paths: &[PathBuf], format: Option<Format>, filter: &Filter) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            let (format, compression) = (format.unwrap_or(Format::Lines), Compression::None);
            let (place, is_lenient, fault) = (Place::Stdin, false, None);
            let source = Source { place, format, compression, is_lenient, fault };
            source.check_format()?;
            sources.push(source);
            continue;
        }
        let (files, is_found) = expand(path, filter)?;
        for file in files {
            let mut source = source(file, format);
            source.is_lenient = is_found && filter.is_lenient;
            if let Err(error) = source.check_format() {
                source.fault.get_or_insert(error.to_string());
            }
            match &source.fault {
                Some(fault) if !source.is_lenient => bail!("{fault}"),
                _ => sources.push(source),
            }
        }
    }
    Ok(sources)
}

/// A file with what its name says about it.
fn source(path: PathBuf, format: Option<Format>) -> Source {
    let (inner, compression) = match suffix(&path).as_str() {
        "gz" | "gzip" => (path.with_extension(""), Compression::Gzip),
        "zst" | "zstd" => (path.with_extension(""), Compression::Zstd),
        _ => (path.clone(), Compression::None),
    };
    let format = format.or_else(|| Format::by_suffix(&suffix(&inner)));
    let fault = format.is_none().then(|| {
        format!(
            "--input {}: .json files are not supported; write one object a line, or say with --input-format how \
             texts stand in it",
            path.display()
        )
    });
    let (place, format) = (Place::File(path), format.unwrap_or(Format::Lines));
    Source { place, format, compression, is_lenient: false, fault }
}

fn suffix(path: &Path) -> String {
    path.extension().map(|suffix| suffix.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// The files that a name stands for, and whether they were found in a folder or by a pattern.
fn expand(path: &Path, filter: &Filter) -> Result<(Vec<PathBuf>, bool)> {
    if path.is_dir() {
        let mut files = Vec::new();
        walk(path, filter, &mut files)?;
        if files.is_empty() {
            let shown = path.display();
            bail!(match filter.include.is_empty() && filter.exclude.is_empty() {
                true => format!("--input {shown} is a directory without files; name one that has texts"),
                false => format!(
                    "--input {shown} has no files that --include and --exclude leave; check the patterns"
                ),
            });
        }
        files.sort();
        return Ok((files, true));
    }
    // A broken link is a file of that name.
    match path.to_str() {
        Some(pattern) if pattern.contains(['*', '?', '[']) && path.symlink_metadata().is_err() => {
            Ok((matches(pattern, filter)?, true))
        }
        _ => Ok((vec![path.to_owned()], false)),
    }
}

/// The files that a pattern matches, and those in the directories that it matches.
fn matches(pattern: &str, filter: &Filter) -> Result<Vec<PathBuf>> {
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    // By itself, ** stands for folders alone.
    let files_too = if pattern.ends_with("**") { format!("{pattern}/*") } else { pattern.to_owned() };
    let found = glob_with(&files_too, options).map_err(|error| {
        anyhow!("--input {pattern} is no file, and no pattern of names ({error}); check it")
    })?;
    let globs = filter.globs(Path::new("."))?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| unopened(error.path(), error.error()))?;
        match path.is_dir() {
            true => walk(&path, filter, &mut files)?,
            false if globs.matched(&path, false).is_ignore() => {}
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

/// Adds the files of a directory and of those below it, as ripgrep takes them: no hidden ones, and none that `.gitignore`
/// names. Links are not followed out of the directory, nor to directories inside of it, which are there by their own names.
fn walk(folder: &Path, filter: &Filter, files: &mut Vec<PathBuf>) -> Result<()> {
    let root = fs::canonicalize(folder).map_err(|error| unopened(folder, &error))?;
    let mut walk = WalkBuilder::new(folder);
    let honours = !filter.no_ignore;
    walk.git_ignore(honours).git_exclude(honours).ignore(honours).parents(honours).git_global(false);
    walk.require_git(false).follow_links(false).overrides(filter.globs(folder)?);
    for entry in walk.build() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                bail!("cannot read --input {} ({}); check the name", folder.display(), said(&error))
            }
        };
        let is_link = entry.path_is_symlink();
        if entry.depth() == 0 || !is_link && !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.into_path();
        match fs::metadata(&path) {
            Ok(there) if is_link && !there.is_file() => {}
            Ok(_) if is_link && !fs::canonicalize(&path).is_ok_and(|real| real.starts_with(&root)) => {}
            // What cannot be had is named when it is to be read.
            _ => files.push(path),
        }
    }
    Ok(())
}
