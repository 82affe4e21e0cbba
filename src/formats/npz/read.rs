//! Finds the arrays of an archive without compression, which are read where they are in the file.

use std::fmt::Display;
use std::fs::File;
use std::io::BufReader;

use anyhow::{Error, Result, bail};
use zip::{CompressionMethod, ZipArchive};

use crate::formats::{StoredArray, error, npy};

/// The maximum number of arrays whose headers are read.
const MAX_ARRAYS: usize = 4096;

/// An archive whose directory has been read.
pub struct NpzArchive<'a> {
    name: &'a str,
    file: &'a File,
    archive: ZipArchive<BufReader<File>>,
    /// The names of the arrays.
    pub names: Vec<String>,
}

impl<'a> NpzArchive<'a> {
    /// Reads the directory of a file, which is `name` in messages.
    pub fn open(name: &'a str, file: &'a File) -> Result<Self> {
        let reader = file.try_clone().map_err(|error| malformed(name, error))?;
        let archive = ZipArchive::new(BufReader::new(reader)).map_err(|error| malformed(name, error))?;
        let names = archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned()));
        let names: Vec<String> = names.collect();
        if names.len() > MAX_ARRAYS {
            return Err(malformed(name, format_args!("it has {} arrays", names.len())));
        }
        Ok(NpzArchive { name, file, archive, names })
    }

    /// Reads the header of an array.
    pub fn array(&mut self, array: &str) -> Result<StoredArray> {
        let name = self.name;
        let index = self.archive.index_for_name(&format!("{array}.npy"));
        let index = index.ok_or_else(|| malformed(name, format_args!("it has no array {array}")))?;
        let entry = self.archive.by_index_raw(index).map_err(|error| malformed(name, error))?;
        if entry.compression() != CompressionMethod::Stored {
            bail!(
                "{name} is compressed; write it with scipy.sparse.save_npz(…, compressed=False), or numpy.savez"
            );
        }
        let start = entry.data_start().ok_or_else(|| malformed(name, "it has an array without data"))?;
        npy::read_array(self.file, array, start).map_err(|reason| malformed(name, reason))
    }
}

/// The error for an archive that is malformed; `reason` is a clause.
pub fn malformed(name: &str, reason: impl Display) -> Error {
    error::malformed(name, "npz", reason)
}
