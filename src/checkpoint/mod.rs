//! Tensors by name, from safetensors files (`huggingface/safetensors`) and PyTorch checkpoints,
//! memory-mapped. Tensors that are needed once are read from the file, which costs less than page faults in
//! the map; rows of embedding tables are looked up in the map.
//!
//! * `file`: a file, and the index of several. `pytorch`, `pickle`: those of PyTorch. `wrappers`: names that
//!   a wrapper has changed.
//! * `entry`: a tensor in a file. `names`: from canonical names to those of a checkpoint.
//! * `reader`, `weight_source`: tensors by canonical name, for an encoder. `report`: how they are used.
//! * `low_rank`: the updates of an adapter. `packed_weights`: packed matrices in the user's cache.

mod entry;
mod file;
pub mod low_rank;
pub mod names;
mod packed_weights;
mod pickle;
mod pytorch;
mod reader;
mod report;
mod weight_source;
mod wrappers;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use rayon::prelude::*;

use crate::nn::{Backend, F32_SIGNIFICAND_BITS, SafetensorsDtype};
use crate::sys::mapped_file::MappedFile;
use crate::sys::regular_file;
use entry::{Entry, safetensors_dtype};
use file::{check_sum, map_file};
use names::TensorNames;
use wrappers::FIELD_PREFIX;

pub use file::read_index;
pub use packed_weights::PackedWeights;
pub use reader::TensorReader;
pub use report::{Problem, TensorReport};

/// A checkpoint: one file or several shards, mapped, with valid headers.
pub struct Checkpoint {
    /// The file, or the index of the shards.
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
    /// Byte ranges with their CRC-32.
    checksums: Vec<(Arc<MappedFile>, Range<usize>, u32)>,
}

/// Tensors of an adapter that replace those of the model, by its names.
#[derive(Debug, Default)]
pub struct Replacements {
    tensors: BTreeMap<String, Entry>,
}

impl Replacements {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }
}

impl Checkpoint {
    /// Maps a safetensors file or PyTorch checkpoint, or the shards that an index (`….index.json`) names, and
    /// checks their headers. The tensors have the names that they had before a wrapper of PyTorch or PEFT
    /// changed them.
    pub fn open(path: &Path) -> Result<Self> {
        let mut checkpoint = Self::open_as_saved(path)?;
        checkpoint.unwrap_names()?;
        Ok(checkpoint)
    }

    /// [`open`](Self::open) of an encoder, whose tensors may all have the prefix of a module around it.
    pub fn open_encoder(path: &Path, namings: &'static [TensorNames]) -> Result<Self> {
        let mut checkpoint = Self::open(path)?;
        while checkpoint.choose(namings).is_none() && checkpoint.all_start_with(FIELD_PREFIX) {
            checkpoint.rename(|name| name[FIELD_PREFIX.len()..].to_owned())?;
        }
        Ok(checkpoint)
    }

    /// The naming and the prefix that fit best.
    fn choose(&self, namings: &'static [TensorNames]) -> Option<(&'static TensorNames, &'static str)> {
        TensorNames::choose(namings, |name| self.find(name).is_some())
    }

    /// [`open`](Self::open) with the names in the file.
    fn open_as_saved(path: &Path) -> Result<Self> {
        if path.extension().is_none_or(|suffix| suffix != "json") {
            return map_file(path);
        }
        let shown = path.display();
        let index = read_index(path)?;
        let shards: BTreeSet<&String> = index.values().collect();
        let mut all = Checkpoint { path: path.to_owned(), tensors: BTreeMap::new(), checksums: Vec::new() };
        for shard in shards {
            let file = path.with_file_name(shard);
            if !regular_file::has_dir_entry(&file) {
                bail!("{shown} names the shard {shard}, which does not exist; download the model again");
            }
            let Checkpoint { tensors, checksums, .. } = map_file(&file)?;
            all.tensors.extend(tensors.into_iter().filter(|(name, _)| index.get(name) == Some(shard)));
            all.checksums.extend(checksums);
        }
        if let Some((name, shard)) = index.iter().find(|(name, _)| !all.tensors.contains_key(*name)) {
            bail!(
                "{shown} assigns tensor {name} to {shard}, which does not have it; download the model again"
            );
        }
        Ok(all)
    }

    /// Significant bits of the matrices' elements: the most of all that can be loaded.
    pub fn significand_bits(&self) -> u32 {
        let matrices = self.tensors.values().filter(|entry| entry.shape.len() > 1);
        let bits = matrices
            .filter_map(|entry| safetensors_dtype(entry.dtype))
            .map(SafetensorsDtype::significand_bits);
        bits.max().unwrap_or(F32_SIGNIFICAND_BITS)
    }

    /// The file, or the index of the shards.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor and the name that it is stored under: that of a weight with a parametrization
    /// (`torch.nn.utils.parametrize`) has an end of its own.
    fn find(&self, name: &str) -> Option<(&String, &Entry)> {
        self.tensors.get_key_value(name).or_else(|| {
            let module = name.strip_suffix(".weight")?;
            self.tensors.get_key_value(&format!("{module}.parametrizations.weight.original"))
        })
    }

    /// The shape of a tensor, by the checkpoint's name; `None` if it has no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.find(name).map(|(_, entry)| &entry.shape[..])
    }

    /// The elements of the part `index` of `parts` equal ones of a tensor's first axis, by the checkpoint's
    /// name.
    pub fn part(&self, name: &str, index: usize, parts: usize) -> Result<Vec<f32>> {
        let path = self.path.display().to_string();
        let Some(entry) = self.tensors.get(name) else { bail!("{path} has no tensor {name}") };
        entry.part(index, parts).to_f32(name, path)
    }

    /// The elements of a tensor with one axis, by the checkpoint's name; `None` if it has no such tensor of
    /// floats.
    pub fn vector(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let entry = self.tensors.get(name).filter(|entry| entry.shape.len() == 1);
        let typed = entry.and_then(|entry| Some((entry, safetensors_dtype(entry.dtype)?)));
        let Some((entry, dtype)) = typed else { return Ok(None) };
        let mut values = vec![0.0; entry.shape[0]];
        entry.read(dtype, 0, &mut values)?;
        Ok(Some(values))
    }

    /// A reader of the tensors of an encoder with this number of attention heads, by the family's names; for
    /// the CPU in f32 until [`TensorReader::set_backend`].
    pub fn reader(&self, namings: &'static [TensorNames], heads: usize) -> Result<TensorReader<'_>> {
        match self.choose(namings) {
            Some((names, prefix)) => Ok(TensorReader { namings, heads, ..self.reader_with(prefix, names) }),
            None => bail!("{}", self.no_table(namings)),
        }
    }

    /// The error for a checkpoint without a token embedding table under one of these names.
    fn no_table(&self, namings: &[TensorNames]) -> String {
        const TABLE: &str = "embeddings.token.weight";
        let shown = self.path.display();
        let wrapped = namings.iter().map(|names| names.resolve("", TABLE).name).find_map(|table| {
            let prefix =
                |name: &str| Some(name.strip_suffix(&table)?.to_owned()).filter(|x| x.ends_with('.'));
            Some((self.names().find_map(prefix)?, table))
        });
        let Some((prefix, table)) = wrapped else {
            let table = namings[0].resolve("", TABLE).name;
            return format!("{shown} has no tensor {table}: it is not a checkpoint of this model type");
        };
        let others = self.names().filter(|name| !name.starts_with(&prefix));
        let others = match others.count() {
            0 => String::new(),
            1 => " (and one without it)".into(),
            count => format!(" (and {count} without it)"),
        };
        format!(
            "{shown} has tensor {table} only as {prefix}{table}{others}, and the prefix {prefix} is none of this model type; save the \
             model without the module around it"
        )
    }

    /// The tensors whose names are keys of `renamed`, under the names that they have there.
    pub fn into_replacements(mut self, renamed: &BTreeMap<String, String>) -> Replacements {
        let entry = |(name, renamed): (&String, &String)| Some((renamed.clone(), self.tensors.remove(name)?));
        Replacements { tensors: renamed.iter().filter_map(entry).collect() }
    }

    /// Checks that no file has changed since it was opened, as otherwise the tensors may mix two versions,
    /// and that its bytes are those of the checksums that it has.
    ///
    /// # Errors
    /// If a file has changed or is damaged; the message names it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.check_files_unchanged()?;
        self.checksums.par_iter().try_for_each(|(file, bytes, crc32)| check_sum(file, bytes.clone(), *crc32))
    }

    /// [`check_unchanged`](Self::check_unchanged) of files whose checksums have been compared before.
    ///
    /// # Errors
    /// If a file has changed; the message names it.
    pub fn check_files_unchanged(&self) -> Result<()> {
        self.files().iter().try_for_each(|file| file.check_unchanged())
    }

    /// The files, each once.
    pub fn files(&self) -> Vec<Arc<MappedFile>> {
        distinct_files(self.tensors.values())
    }

    /// A reader of tensors with a known prefix.
    pub fn reader_with(&self, prefix: &'static str, names: &'static TensorNames) -> TensorReader<'_> {
        TensorReader {
            checkpoint: self,
            namings: std::slice::from_ref(names),
            names,
            prefix,
            heads: 1,
            adapter: None,
            replaced: BTreeMap::new(),
            packed: None,
            backend: Backend::default(),
            report: TensorReport::default(),
            problems: BTreeSet::new(),
            seen: BTreeSet::new(),
            counted: BTreeSet::new(),
        }
    }
}

/// The files of tensors, each once.
fn distinct_files<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Arc<MappedFile>> {
    let mut files: Vec<Arc<MappedFile>> = Vec::new();
    for entry in entries {
        if !files.iter().rev().any(|file| Arc::ptr_eq(file, &entry.file)) {
            files.push(entry.file.clone());
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    /// Values of fewer bits take fewer bits of packed weights, so they must not be counted as fewer than they
    /// have.
    #[test]
    fn matrices_have_the_bits_of_the_widest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let zeros = [0; 32];
        for (tensors, expected) in [
            (&[("a", Dtype::BF16, &[2, 2][..]), ("bias", Dtype::F32, &[4])][..], 8),
            (&[("a", Dtype::BF16, &[2, 2]), ("b", Dtype::F16, &[2, 2])], 11),
            (&[("a", Dtype::F32, &[2, 2]), ("b", Dtype::F16, &[2, 2]), ("ids", Dtype::I64, &[2, 2])], 24),
            (&[("a", Dtype::F64, &[2, 2])], 24),
            (&[("bias", Dtype::F16, &[4])], 24),
        ] {
            let view = |(name, dtype, shape): &(&'static str, Dtype, &[usize])| {
                let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
                (*name, TensorView::new(*dtype, shape.to_vec(), &zeros[..bytes]).unwrap())
            };
            let file = safetensors::serialize(tensors.iter().map(view), None).unwrap();
            std::fs::write(&path, file).unwrap();
            assert_eq!(Checkpoint::open(&path).unwrap().significand_bits(), expected, "{tensors:?}");
        }
    }
}
