//! Which arguments of a command line name vector files: a shell makes several of one glob, and a directory
//! holds those of a run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

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

/// The vector files that arguments name, and the rest of the arguments, which are texts: `first`, all
/// arguments after it up to the first that is no vector file, and the files of directories among these. The
/// ledgers and the metadata beside vector files are left out.
pub fn find_files(first: &Path, mut more: Vec<String>) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let is_file = |text: &String| is_vector_file(Path::new(text)) || is_sidecar(Path::new(text));
    let texts = more.split_off(more.iter().take_while(|text| is_file(text)).count());
    let mut files = Vec::new();
    for path in std::iter::once(first).chain(more.iter().map(Path::new)) {
        if path.is_dir() {
            files.extend(files_of(path)?);
        } else if path == first || !is_sidecar(path) {
            files.push(path.to_owned());
        }
    }
    Ok((files, texts))
}

/// The vector files of a directory, in the order of their names.
fn files_of(directory: &Path) -> Result<Vec<PathBuf>> {
    let name = directory.display();
    let cannot = |error| anyhow!("cannot read {name} ({error}); check the path");
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(cannot)?;
    let found = entries.iter().map(fs::DirEntry::path).filter(|path| is_vector_file(path));
    let mut found: Vec<PathBuf> = found.collect();
    if found.is_empty() {
        bail!("{name} is a directory without vector files; pass one with {}", EXTENSIONS.join(", "));
    }
    found.sort();
    Ok(found)
}

/// Whether a path is that of a vector file, by its name.
fn is_vector_file(path: &Path) -> bool {
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

    use super::find_files;

    #[test]
    fn a_glob_gives_files_and_what_is_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = ["a.npy", "a.npy.meta.json", "b.parquet", "b.parquet.ledger.jsonl", "c.jsonl"];
        names.iter().for_each(|name| fs::write(path(name), "").unwrap());
        let text = |name: &str| path(name).display().to_string();
        let files = ["a.npy", "b.parquet", "c.jsonl"].map(path);
        let found = |first: &Path, more: &[String]| find_files(first, more.to_vec()).unwrap();
        let expected =
            |texts: &[&str]| (files.to_vec(), texts.iter().map(|x| (*x).into()).collect::<Vec<_>>());
        let arguments: Vec<String> =
            names[1..].iter().map(|name| text(name)).chain(["lamp".into()]).collect();
        assert_eq!(found(&files[0], &arguments), expected(&["lamp"]));
        assert_eq!(found(folder.path(), &["lamp".into()]), expected(&["lamp"]));
        // Files after a text are texts; the first argument is a file, whatever its name.
        let (found, texts) = found(&PathBuf::from("x"), &["lamp".into(), text("a.npy")]);
        assert_eq!((found, texts.len()), (vec![PathBuf::from("x")], 2));
    }
}
