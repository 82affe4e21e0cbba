//! Which arguments of a command line name vector files or texts: a shell makes several of one glob, and a
//! directory holds those of a run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use super::choice::VectorField;
use super::file::VectorFile;
use crate::store::{LEDGER_SUFFIX, META_SUFFIX};

/// Extensions of vector files, by which they are told from texts.
const EXTENSIONS: [&str; 12] = [
    "npy",
    "npz",
    "safetensors",
    "parquet",
    "pq",
    "arrow",
    "arrows",
    "feather",
    "ipc",
    "jsonl",
    "ndjson",
    "csv",
];
/// What follows the name of a vector file in those of the files beside it that are not hidden.
const SIDECAR_SUFFIXES: [&str; 2] = [LEDGER_SUFFIX, META_SUFFIX];

/// What the first arguments of a command line name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchPaths {
    /// Vector files.
    Vectors(Vec<PathBuf>),
    /// Files and directories of texts, or a glob of them.
    Texts(Vec<PathBuf>),
}

/// What arguments name that can be searched, and the rest of the arguments, which are queries.
///
/// `first` names vectors if it is a vector file, or a directory of such files and what is beside them; so do
/// all arguments after it up to the first that is no vector file. The ledgers, metadata and JSON beside
/// vector files are left out. Otherwise, or with `are_texts`, it names texts; so do the arguments after it
/// that exist, or are globs that match files.
pub fn find_files(
    first: &Path,
    mut more: Vec<String>,
    are_texts: bool,
    is_glob: impl Fn(&str) -> bool,
) -> Result<(SearchPaths, Vec<String>)> {
    if are_texts || is_text(first) {
        let is_path = |text: &&String| Path::new(text).exists() || is_glob(text);
        let queries = more.split_off(more.iter().take_while(is_path).count());
        let paths = std::iter::once(first.to_owned()).chain(more.into_iter().map(PathBuf::from));
        return Ok((SearchPaths::Texts(paths.collect()), queries));
    }
    let queries = more.split_off(more.iter().take_while(|text| is_of_vectors(Path::new(text))).count());
    let mut files = Vec::new();
    for path in std::iter::once(first).chain(more.iter().map(Path::new)) {
        if path.is_dir() {
            files.extend(vectors_in(path)?);
        } else if path == first || is_vector_file(path) {
            files.push(path.to_owned());
        }
    }
    Ok((SearchPaths::Vectors(files), queries))
}

/// Whether a path is that of a vector file, or of one that is beside such files: a ledger, metadata, or the
/// summary of a run.
pub fn is_of_vectors(path: &Path) -> bool {
    is_vector_file(path) || is_sidecar(path) || path.is_file() && has_extension(path, "json")
}

/// Whether a path names texts: a directory with other files than those of vectors, a file that is not read
/// as vectors, or a glob. A path that does not exist is an error of whoever opens it.
fn is_text(path: &Path) -> bool {
    match path.metadata() {
        Ok(found) if found.is_dir() => !has_only_vectors(path),
        Ok(found) if found.is_file() => !has_vector_name(path) && !is_vectors(path),
        Ok(_) => false,
        Err(_) => path.to_string_lossy().contains(['*', '?', '[']),
    }
}

/// Whether a directory has vector files and no others, but for those beside them, hidden ones, those whose
/// names begin with an underscore (as Spark's), and JSON beside a file that can be read as vectors, such as
/// the summary of the run that wrote it.
fn has_only_vectors(directory: &Path) -> bool {
    let is_hidden =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['.', '_']));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let shown: Vec<PathBuf> = entries.filter(|path| !is_hidden(path)).collect();
    let (json, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        shown.iter().partition(|path| !is_sidecar(path) && path.is_file() && has_extension(path, "json"));
    let has_vectors = || others.iter().any(|path| is_vector_file(path) && is_vectors(path));
    !others.is_empty()
        && others.iter().all(|path| is_vector_file(path) || is_sidecar(path))
        && (json.is_empty() || has_vectors())
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Whether a file directly in a directory can be read as vectors, among the first ones that may.
pub fn has_vectors(directory: &Path) -> bool {
    const MAX_READ: usize = 8;
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| is_vector_file(path)).take(MAX_READ).any(|path| is_vectors(&path))
}

/// Whether a file can be read as vectors.
fn is_vectors(path: &Path) -> bool {
    VectorFile::open_any(path, VectorField::Auto).is_ok()
}

/// The vector files of a directory, in the order of their names.
fn vectors_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let name = directory.display();
    let cannot = |error| anyhow!("cannot read {name} ({error}); check the path");
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(cannot)?;
    let found = entries.iter().map(fs::DirEntry::path).filter(|path| is_vector_file(path));
    let mut found: Vec<PathBuf> = found.collect();
    found.sort();
    Ok(found)
}

/// Whether a path has the extension of a vector file, which may be compressed: that is refused with a remedy.
fn has_vector_name(path: &Path) -> bool {
    let extension = |path: &Path| path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let uncompressed = match extension(path).as_str() {
        "gz" | "gzip" | "zst" | "zstd" => extension(&path.with_extension("")),
        other => other.into(),
    };
    EXTENSIONS.contains(&&*uncompressed)
}

/// Whether a path is that of a vector file, by its name.
pub fn is_vector_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    EXTENSIONS.contains(&&*extension) && !name.starts_with('.') && path.is_file() && !is_sidecar(path)
}

/// Whether a path is that of a file beside a vector file.
fn is_sidecar(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = SIDECAR_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    let beside = beside.map(|name| path.with_file_name(OsString::from(name)));
    path.is_file() && beside.is_some_and(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{SearchPaths, find_files};

    #[test]
    fn a_glob_gives_files_and_what_is_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = [
            "a.npy",
            "a.npy.meta.json",
            "b.parquet",
            "b.parquet.ledger.jsonl",
            "c.jsonl",
            ".a.npy.done.json",
        ];
        names.iter().for_each(|name| fs::write(path(name), "").unwrap());
        let text = |name: &str| path(name).display().to_string();
        let files = ["a.npy", "b.parquet", "c.jsonl"].map(path);
        let found =
            |first: &Path, more: &[String]| find_files(first, more.to_vec(), false, |_| false).unwrap();
        let expected = |texts: &[&str]| {
            (SearchPaths::Vectors(files.to_vec()), texts.iter().map(|x| (*x).into()).collect::<Vec<_>>())
        };
        let arguments: Vec<String> =
            names[1..5].iter().map(|name| text(name)).chain(["lamp".into()]).collect();
        assert_eq!(found(&files[0], &arguments), expected(&["lamp"]));
        assert_eq!(found(folder.path(), &["lamp".into()]), expected(&["lamp"]));
        // Files after a text are texts; the first argument is a file, whatever its name.
        let (found, texts) = found(&PathBuf::from("x"), &["lamp".into(), text("a.npy")]);
        assert_eq!((found, texts.len()), (SearchPaths::Vectors(vec![PathBuf::from("x")]), 2));
    }

    #[test]
    fn what_is_no_vectors_is_texts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        ["vectors", "mixed", "nested/sub", "empty"]
            .iter()
            .for_each(|name| fs::create_dir_all(path(name)).unwrap());
        for name in [
            "vectors/a.npy",
            "vectors/_SUCCESS",
            "mixed/a.npy",
            "mixed/readme.md",
            "nested/a.npy",
            "notes.txt",
            "a.csv",
            "b.jsonl.gz",
            "c.txt.gz",
        ] {
            fs::write(path(name), "the lamp").unwrap();
        }
        fs::write(path("vectors.txt"), "index,e0,e1\n0,0.5,1\n").unwrap();
        let is_text = |name: &str, are_texts| {
            let (searched, queries) =
                find_files(&path(name), vec!["lamp".into()], are_texts, |_| false).unwrap();
            assert_eq!(queries, ["lamp"]);
            matches!(searched, SearchPaths::Texts(_))
        };
        for (name, expected) in [
            ("vectors", false),
            ("mixed", true),
            ("nested", true),
            ("empty", true),
            ("notes.txt", true),
            ("*.txt", true),
            ("a.csv", false),
            ("b.jsonl.gz", false),
            ("c.txt.gz", true),
            ("vectors.txt", false),
            ("missing", false),
        ] {
            assert_eq!(is_text(name, false), expected, "{name}");
            assert!(is_text(name, true), "{name}");
        }
        let more = ["mixed", "a.csv"].map(|name| path(name).display().to_string());
        let arguments = [&more[..], &["*.md".into(), "lamp?".into()]].concat();
        let is_glob = |text: &str| text == "*.md";
        let (searched, queries) = find_files(&path("notes.txt"), arguments, false, is_glob).unwrap();
        let mut expected = ["notes.txt", "mixed", "a.csv"].map(path).to_vec();
        expected.push("*.md".into());
        assert_eq!((searched, queries), (SearchPaths::Texts(expected), vec!["lamp?".to_owned()]));
    }
}
