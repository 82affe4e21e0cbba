//! Finds the inputs that `--input` names: files, directories and globs.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, anyhow, bail};
use glob::{MatchOptions, glob_with};
use ignore::WalkBuilder;
use ignore::overrides::{Override, OverrideBuilder};

use super::error::{cannot_open, list_names, one_line};
use super::source::{Format, InputPath, Source};
use crate::formats::Compression;
use crate::named::Named;
use crate::sys::console::counted;
use crate::sys::regular_file;

/// Files that describe data: of Hugging Face's datasets, Spark and Parquet.
const METADATA: &[&str] = &[
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
];
/// Maximum number of files that a note names.
const MAX_NAMED_FILES: usize = 3;

/// Which files of directories and globs are inputs. Files that `--input` names themselves always are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Globs of files to include; if there are none, all files are included.
    pub include: Vec<String>,
    /// Globs of files to exclude.
    pub exclude: Vec<String>,
    /// Whether files that `.gitignore` excludes are included.
    pub no_ignore: bool,
    /// [`Source::is_lenient`] of the files.
    pub is_lenient: bool,
}

impl Filter {
    /// The globs as overrides of a directory walk that starts at `directory`.
    fn overrides(&self, directory: &Path) -> Result<Override> {
        let mut overrides = OverrideBuilder::new(directory);
        let includes = self.include.iter().map(|glob| ("--include", glob, glob.clone()));
        let excludes = self.exclude.iter().map(|glob| ("--exclude", glob, format!("!{glob}")));
        for (option, given, glob) in includes.chain(excludes) {
            overrides.add(&glob).map_err(|error| {
                anyhow!("{option} {given} is not a glob ({}); check it", one_line(&error))
            })?;
        }
        overrides.build().map_err(|error| {
            anyhow!("--include and --exclude cannot be combined ({}); check the globs", one_line(&error))
        })
    }
}

/// What [`find`] finds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inputs {
    /// The inputs.
    pub sources: Vec<Source>,
    /// The files of each directory or glob that are not inputs, because other files are of another kind.
    left_out: Vec<(PathBuf, Vec<PathBuf>)>,
}

impl Inputs {
    /// Which files of directories and globs are not inputs, and which inputs are lines beside others with
    /// fields: one sentence each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let lines = self.sources.iter().find(|source| !source.format.is_data());
        let lines = lines.filter(|_| self.sources.iter().any(|source| source.format.is_data()));
        let lines = lines.map(|source| {
            format!(
                "{} is read as {}, without fields, beside inputs that have fields",
                source.path,
                source.format.name()
            )
        });
        let left_out = self.left_out.iter().map(|(path, files)| {
            let names: Vec<_> = files.iter().take(MAX_NAMED_FILES).map(|file| file_name(file)).collect();
            let names = list_names(&names, files.len() - names.len());
            format!(
                "{} of --input {} left out, because other files are data ({names}); pass --include to choose files",
                counted(files.len() as u64, "file"),
                path.display()
            )
        });
        left_out.chain(lines)
    }
}

/// The inputs that `paths` name:
///
/// - `-` is standard input;
/// - a file is an input;
/// - a directory is all files in it and below it, except for hidden files and those that `.gitignore`
///   excludes;
/// - any other path with `*`, `?` or `[` is a glob, and names the files and directories that match it.
///
/// The files of a directory or a glob are sorted by path, component by component, and filtered by `filter`.
/// If some of them are data, files of records with fields, those are the inputs, unless the filter includes
/// files by name. If `format` is `None`, the extension of each file gives its format. The extension always
/// gives the compression.
pub fn find(paths: &[PathBuf], format: Option<Format>, filter: &Filter) -> Result<Inputs> {
    let mut inputs = Inputs::default();
    for path in paths {
        if path == Path::new("-") {
            let format = format.unwrap_or(Format::Lines);
            let source = Source {
                path: InputPath::Stdin,
                format,
                compression: None,
                syntax: format.syntax(),
                is_lenient: false,
                fault: None,
            };
            source.check_format()?;
            inputs.sources.push(source);
            continue;
        }
        let (mut files, is_found) = expand(path, filter)?;
        if is_found && filter.include.is_empty() {
            let left_out = leave_out(&mut files, format);
            if files.is_empty() {
                bail!(
                    "--input {} has only files that are not texts ({}); pass --include to choose files",
                    path.display(),
                    file_name(&left_out[0])
                );
            }
            inputs.left_out.extend((!left_out.is_empty()).then(|| (path.clone(), left_out)));
        }
        for file in files {
            let mut source = source_of_file(file, format);
            source.is_lenient = is_found && filter.is_lenient;
            if let Err(error) = source.check_format() {
                source.fault.get_or_insert(error.to_string());
            }
            match &source.fault {
                Some(fault) if !source.is_lenient => bail!("{fault}"),
                _ => inputs.sources.push(source),
            }
        }
    }
    Ok(inputs)
}

/// Removes and returns the files of a directory or a glob that are not inputs: without a `format`, all that
/// are not data, if there are data; those that describe the others in any case.
fn leave_out(files: &mut Vec<PathBuf>, format: Option<Format>) -> Vec<PathBuf> {
    let is_data = |file: &PathBuf| !is_metadata(file) && format_of(file).0.is_some_and(Format::is_data);
    let has_data = format.map_or(files.iter().any(is_data), Format::is_data);
    files
        .extract_if(.., |file| match format {
            None if has_data => !is_data(file),
            Some(Format::Files) => false,
            _ => is_metadata(file) || has_data && is_document(file),
        })
        .collect()
}

/// Whether a file beside data or texts describes them or the job that wrote them, by its name.
fn is_metadata(file: &Path) -> bool {
    METADATA.contains(&file_name(file).as_str()) || extension(file) == "crc"
}

/// Whether a file is one that repositories have beside their data.
fn is_document(file: &Path) -> bool {
    let name = file_name(file).to_lowercase();
    let stem = name.split('.').next().unwrap_or_default();
    ["readme", "license", "licence", "notice", "citation", "changelog"].contains(&stem)
        && extension(file) != "jsonl"
}

/// The name of a file, without its directory.
fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The format, if it is supported, and the compression that the extensions of a file give.
fn format_of(file: &Path) -> (Option<Format>, Option<Compression>) {
    let (uncompressed, compression) = match extension(file).as_str() {
        "gz" | "gzip" => (file.with_extension(""), Some(Compression::Gzip)),
        "zst" | "zstd" => (file.with_extension(""), Some(Compression::Zstd)),
        _ => (file.to_owned(), None),
    };
    (Format::from_extension(&extension(&uncompressed)), compression)
}

/// The input of a file, with the compression, and without a `format` also the format, that its extensions
/// give.
pub(super) fn source_of_file(path: PathBuf, format: Option<Format>) -> Source {
    let (of_extension, compression) = format_of(&path);
    let format = format.or(of_extension);
    let fault = format.is_none().then(|| {
        format!(
            "--input {}: .json files are not supported; write one object per line, pass --input-format, or leave it out \
             with --exclude",
            path.display()
        )
    });
    let (path, format) = (InputPath::File(path), format.unwrap_or(Format::Lines));
    Source { path, format, compression, syntax: format.syntax(), is_lenient: false, fault }
}

/// The last extension of a path, in lower case; empty if there is none.
fn extension(path: &Path) -> String {
    path.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// The files that a path names, and whether they were found in a directory or by a glob.
fn expand(path: &Path, filter: &Filter) -> Result<(Vec<PathBuf>, bool)> {
    if path.is_dir() {
        let mut files = Vec::new();
        walk(path, filter, &mut files)?;
        if files.is_empty() {
            let shown = path.display();
            if filter.include.is_empty() && filter.exclude.is_empty() {
                let or = if filter.no_ignore { "" } else { ", or --no-ignore if .gitignore excludes them" };
                bail!("--input {shown} is a directory without files; pass one that has text files{or}");
            }
            bail!("--input {shown}: --include and --exclude leave no files; check the globs");
        }
        files.sort();
        return Ok((files, true));
    }
    match as_glob(path) {
        Some(pattern) => Ok((matches(pattern, "--input ", filter)?, true)),
        None => Ok((vec![path.to_owned()], false)),
    }
}

/// The files that paths name, where globs are as in [`find`] and any other path is itself.
pub fn expand_globs(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let files = paths.iter().map(|path| match as_glob(path) {
        Some(pattern) => matches(pattern, "", &Filter::default()),
        None => Ok(vec![path.clone()]),
    });
    Ok(files.collect::<Result<Vec<_>>>()?.concat())
}

/// The path as a glob, if it is one.
fn as_glob(path: &Path) -> Option<&str> {
    // `symlink_metadata` does not follow links, so a broken link is not taken for a glob.
    path.to_str().filter(|pattern| pattern.contains(['*', '?', '[']) && path.symlink_metadata().is_err())
}

/// The files that match a glob, and the files of the directories that match it. `option`: what messages have
/// before the glob.
fn matches(pattern: &str, option: &str, filter: &Filter) -> Result<Vec<PathBuf>> {
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    // In the `glob` crate, a final `**` matches directories only.
    let with_files = if pattern.ends_with("**") { format!("{pattern}/*") } else { pattern.to_owned() };
    let found = glob_with(&with_files, options)
        .map_err(|error| anyhow!("{option}{pattern} is neither a file nor a glob ({error}); check it"))?;
    let overrides = filter.overrides(Path::new("."))?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| cannot_open(error.path(), error.error()))?;
        if path.is_dir() {
            walk(&path, filter, &mut files)?;
        } else if !overrides.matched(&path, false).is_ignore() {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{option}{pattern} matches no file; check the glob and the current directory");
    }
    files.sort();
    // The `glob` crate follows links, so it may find a file by several paths.
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(fs::canonicalize(file).unwrap_or_else(|_| file.clone())));
    Ok(files)
}

/// Adds the files of a directory and of those below it, except for hidden files and those that ignore files
/// exclude.
///
/// Links to files are inputs if their target is below `directory`. Links to directories are not followed: a
/// target below `directory` is found by its own path.
fn walk(directory: &Path, filter: &Filter, files: &mut Vec<PathBuf>) -> Result<()> {
    let root = fs::canonicalize(directory).map_err(|error| cannot_open(directory, &error))?;
    let mut walk = WalkBuilder::new(directory);
    let ignores = !filter.no_ignore;
    let fault = Arc::new(OnceLock::new());
    if ignores {
        root.ancestors().try_for_each(check_ignore_files)?;
        let fault = fault.clone();
        walk.filter_entry(move |entry| {
            let is_directory = entry.file_type().is_some_and(|kind| kind.is_dir());
            let checked = if is_directory { check_ignore_files(entry.path()) } else { Ok(()) };
            checked.map_err(|error| fault.set(error.to_string())).is_ok()
        });
    }
    walk.git_ignore(ignores).git_exclude(ignores).ignore(ignores).parents(ignores).git_global(false);
    walk.require_git(false).follow_links(false).overrides(filter.overrides(directory)?);
    for entry in walk.build() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => match path_of(&error).filter(|path| filter.is_lenient && *path != directory) {
                // A directory that cannot be read is an input, too: opening it gives the error that names it.
                Some(path) => {
                    files.push(path.to_owned());
                    continue;
                }
                None => bail!(
                    "cannot read --input {} ({}); check the path",
                    directory.display(),
                    one_line(&error)
                ),
            },
        };
        let is_link = entry.path_is_symlink();
        if entry.depth() == 0 || !is_link && !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.into_path();
        match fs::metadata(&path) {
            Ok(target) if is_link && !target.is_file() => {}
            Ok(_) if is_link && !fs::canonicalize(&path).is_ok_and(|target| target.starts_with(&root)) => {}
            // A broken link is an input, too: opening it gives the error that names it.
            _ => files.push(path),
        }
    }
    fault.get().map_or(Ok(()), |fault| bail!("{fault}"))
}

/// The path that an error of a walk names.
fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } => path_of(err),
        _ => None,
    }
}

/// Refuses ignore files that are no regular files or too large, before the walk reads all of them.
fn check_ignore_files(directory: &Path) -> Result<()> {
    for name in [".gitignore", ".ignore", ".git/info/exclude"] {
        let path = directory.join(name);
        let is_bounded = |file: &fs::Metadata| {
            file.is_dir() || file.is_file() && file.len() <= regular_file::MAX_CONFIG_BYTES
        };
        if fs::metadata(&path).is_ok_and(|file| !is_bounded(&file)) {
            bail!(
                "{} is not a regular file of at most {} MiB, as a list of ignored files is; remove it, or pass --no-ignore",
                path.display(),
                regular_file::MAX_CONFIG_BYTES >> 20
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::source_of_file;
    use crate::formats::Compression;
    use crate::input::source::Format;

    #[test]
    fn extensions_give_format_and_compression() {
        let of = |name: &str| {
            let source = source_of_file(name.into(), None);
            (source.format, source.compression, source.fault.is_some())
        };
        assert_eq!(of("a.JSONL.GZ"), (Format::Jsonl, Some(Compression::Gzip), false));
        assert_eq!(of("a.csv.zst"), (Format::Csv, Some(Compression::Zstd), false));
        assert_eq!(of("a.ipc"), (Format::Arrow, None, false));
        assert_eq!(of("notes"), (Format::Lines, None, false));
        assert!(of("a.json").2 && of("a.json.gz").2);
        assert!(source_of_file("a.json".into(), Some(Format::Files)).fault.is_none());
    }
}
