//! Weights from safetensors files (`huggingface/safetensors`) and PyTorch checkpoints, memory-mapped. Tensors that are needed once are read from the file, which
//! costs less than page faults in the map; rows of embedding tables are looked up in the map.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Error, Result, bail};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;
use thiserror::Error;

use super::layout::CONVERT;
use super::low_rank::{Adapter, PEFT_PREFIX, Update};
use super::names::{TensorNames, TensorRef};
use super::packed_weights::PackedWeights;
use super::pickle::PickleError;
use super::pytorch::{TorchFile, TorchTensor, read_tensors};
use crate::nn::{
    Backend, ChangeCheck, EmbeddingTable, F32_SIGNIFICAND_BITS, Matrix, SafetensorsDtype, WeightSource,
    placeholder,
};
use crate::sys::mapped_file::MappedFile;
use crate::sys::model_json::read_json_object;
use crate::sys::regular_file;

/// Values read at a time: few enough (64 KiB as f32) that the check for NaN finds them in the core's L2 cache.
const CHUNK: usize = 1 << 14;
/// What PEFT puts between a module that it has wrapped and the parameters of that.
const BASE_LAYER: &str = ".base_layer.";
/// What wrappers of PyTorch put into the names of the modules that they wrap, wherever these are: `torch.compile`, FSDP, and activation
/// checkpoints. No module has such a name itself.
const WRAPPERS: [&str; 3] = ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."];
/// What wrappers put before the names of all tensors: DDP, and a module that has the model in a field. A family may have the second one
/// in its own names.
const DDP_PREFIX: &str = "module.";
const FIELD_PREFIX: &str = "model.";
/// Minimum number of chunks for a task of a thread.
const MIN_CHUNKS: usize = 16;
/// Bytes whose checksum is computed at a time.
const CHECKED_BYTES: usize = 1 << 17;

/// A checkpoint: one file or several shards, mapped, with valid headers.
pub struct Checkpoint {
    /// The file, or the index of the shards.
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
    /// Byte ranges with their CRC-32.
    checksums: Vec<(Arc<MappedFile>, Range<usize>, u32)>,
}

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    /// The distance of consecutive elements along each axis, in elements; `None` for row-major order without gaps.
    strides: Option<Arc<[usize]>>,
    file: Arc<MappedFile>,
    /// Byte range in the file, from the first element to the last one.
    bytes: Range<usize>,
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

/// How the tensors of a checkpoint are used; names are those of the checkpoint.
#[derive(Debug, Default)]
pub struct TensorReport {
    /// Tensors that were loaded, with shape and dtype.
    pub used: Vec<(String, Vec<usize>, String)>,
    /// Tensors that the encoder does not use: task heads, poolers, buffers.
    pub unused: Vec<String>,
    /// Unused tensors that belong to the encoder by their names: the config does not mention the module that needs them.
    pub unexpected_tensors: Vec<String>,
    /// Loaded tensors with NaN or infinite values, and how many of those.
    pub not_finite: Vec<(String, usize)>,
    /// Modules whose weights an adapter has changed.
    pub merged: Vec<String>,
    /// Faults that make the checkpoint unusable.
    pub problems: Vec<Problem>,
}

/// A tensor that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Not in the checkpoint.
    #[error("tensor {name} of shape {expected:?} is missing")]
    Missing {
        /// The checkpoint's name.
        name: String,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Of another shape than the config describes.
    #[error("tensor {name} has shape {found:?}, but the config describes {expected:?}")]
    Misshapen {
        /// The checkpoint's name.
        name: String,
        /// The shape in the checkpoint.
        found: Vec<usize>,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Not of a floating-point dtype.
    #[error("tensor {name} is of type {found}, expected F32, F16, BF16 or F64")]
    Mistyped {
        /// The checkpoint's name.
        name: String,
        /// The dtype in the checkpoint.
        found: String,
    },
}

impl Problem {
    /// The checkpoint's name of the tensor.
    fn name(&self) -> &str {
        match self {
            Problem::Missing { name, .. }
            | Problem::Misshapen { name, .. }
            | Problem::Mistyped { name, .. } => name,
        }
    }
}

impl TensorReport {
    /// Adds the report on another file, named by the `origin` of its tensors unless it is the same.
    pub fn add(&mut self, other: TensorReport, origin: Option<&str>) {
        let qualified = |name: String| match origin {
            Some(origin) => format!("{origin}: {name}"),
            None => name,
        };
        self.used.extend(other.used.into_iter().map(|(name, shape, dtype)| (qualified(name), shape, dtype)));
        self.unused.extend(other.unused.into_iter().map(qualified));
        self.not_finite.extend(other.not_finite.into_iter().map(|(name, count)| (qualified(name), count)));
    }
}

impl Checkpoint {
    /// Maps a safetensors file or PyTorch checkpoint, or the shards that an index (`….index.json`) names, and checks their headers. The
    /// tensors have the names that they had before a wrapper of PyTorch or PEFT changed them.
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

    /// Removes from the names what wrappers have added.
    fn unwrap_names(&mut self) -> Result<()> {
        let has = |part: &str| self.tensors.keys().any(|name| name.contains(part));
        if WRAPPERS.into_iter().any(has) {
            self.rename(|name| WRAPPERS.iter().fold(name.to_owned(), |name, part| name.replace(part, "")))?;
        }
        while self.all_start_with(DDP_PREFIX) {
            self.rename(|name| name[DDP_PREFIX.len()..].to_owned())?;
        }
        if self.tensors.keys().any(|name| name.contains(BASE_LAYER)) {
            self.rename(|name| name.strip_prefix(PEFT_PREFIX).unwrap_or(name).replacen(BASE_LAYER, ".", 1))?;
        }
        Ok(())
    }

    /// Whether there are tensors, and the names of all of them have this prefix.
    fn all_start_with(&self, prefix: &str) -> bool {
        !self.tensors.is_empty() && self.tensors.keys().all(|name| name.starts_with(prefix))
    }

    /// Gives each tensor another name.
    fn rename(&mut self, renamed: impl Fn(&str) -> String) -> Result<()> {
        let mut tensors = BTreeMap::new();
        for (name, entry) in std::mem::take(&mut self.tensors) {
            let renamed = renamed(&name);
            if tensors.insert(renamed.clone(), entry).is_some() {
                bail!(
                    "{}: tensor {name} and another one are both {renamed} without the names of wrappers such as torch.compile; save the \
                     model without them",
                    self.path.display()
                )
            }
        }
        self.tensors = tensors;
        Ok(())
    }

    /// Checks that there are no adapters beside the weights, whose scale is not known here.
    pub fn check_has_no_adapter(&self) -> Result<()> {
        match self.names().find(|name| name.contains(".lora_A.")) {
            None => Ok(()),
            Some(name) => bail!(
                "{} has the tensor {name} of an adapter beside its weights, but no adapter_config.json says how to merge it; merge it \
                 once with peft (merge_and_unload), or save the adapter with save_pretrained",
                self.path.display()
            ),
        }
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

    /// A tensor and the name that it is stored under: that of a weight with a parametrization (`torch.nn.utils.parametrize`) has an end
    /// of its own.
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

    /// The elements of the part `index` of `parts` equal ones of a tensor's first axis, by the checkpoint's name.
    pub fn part(&self, name: &str, index: usize, parts: usize) -> Result<Vec<f32>> {
        let path = self.path.display().to_string();
        let Some(entry) = self.tensors.get(name) else { bail!("{path} has no tensor {name}") };
        entry.part(index, parts).to_f32(name, path)
    }

    /// The elements of a tensor with one axis, by the checkpoint's name; `None` if it has no such tensor of floats.
    pub fn vector(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let entry = self.tensors.get(name).filter(|entry| entry.shape.len() == 1);
        let typed = entry.and_then(|entry| Some((entry, safetensors_dtype(entry.dtype)?)));
        let Some((entry, dtype)) = typed else { return Ok(None) };
        let mut values = vec![0.0; entry.shape[0]];
        entry.read(dtype, 0, &mut values)?;
        Ok(Some(values))
    }

    /// A reader of the encoder's tensors, by the family's names; for the CPU in f32 until [`TensorReader::set_backend`].
    pub fn reader(&self, namings: &'static [TensorNames]) -> Result<TensorReader<'_>> {
        match self.choose(namings) {
            Some((names, prefix)) => Ok(TensorReader { namings, ..self.reader_with(prefix, names) }),
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

    /// Checks that no file has changed since it was opened, as otherwise the tensors may mix two versions, and that its bytes are those of
    /// the checksums that it has.
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
        let (backend, adapter, replaced, packed, report, problems, seen, counted) = Default::default();
        let namings = std::slice::from_ref(names);
        TensorReader {
            checkpoint: self,
            namings,
            names,
            prefix,
            adapter,
            replaced,
            packed,
            backend,
            report,
            problems,
            seen,
            counted,
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

/// Checks that a range of a file has this CRC-32.
fn check_sum(file: &MappedFile, bytes: Range<usize>, expected: u32) -> Result<()> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHECKED_BYTES.min(bytes.len())];
    for start in bytes.clone().step_by(CHECKED_BYTES) {
        let part = &mut buffer[..CHECKED_BYTES.min(bytes.end - start)];
        file.read(start, part)?;
        hasher.update(part);
    }
    if hasher.finalize() != expected {
        bail!(
            "{} is corrupt: the {} bytes at offset {} do not have the checksum of its zip archive; download the file again",
            file.path().display(),
            bytes.len(),
            bytes.start
        )
    }
    Ok(())
}

/// Maps one file.
fn map_file(path: &Path) -> Result<Checkpoint> {
    let shown = path.display();
    let file = match regular_file::open(path) {
        Ok(file) => file,
        Err(error) => bail!("cannot read {shown} ({error})"),
    };
    let file = match MappedFile::new(path, file) {
        Ok(file) => Arc::new(file),
        Err(error) => bail!("cannot map {shown} into memory ({error})"),
    };
    let bytes = file.as_ref().as_ref();
    let is_pickled = path.extension().is_some_and(|suffix| suffix == "bin" || suffix == "pt");
    if bytes.starts_with(b"version https://git-lfs") {
        let kind = if is_pickled { "PyTorch checkpoint" } else { "safetensors file" };
        bail!("{shown} is a Git LFS pointer, not a {kind}; run git lfs pull in its directory")
    }
    if is_pickled {
        let entry = |tensor: TorchTensor| Entry {
            dtype: tensor.dtype,
            shape: tensor.shape,
            strides: tensor.strides.map(Arc::from),
            file: file.clone(),
            bytes: tensor.bytes,
        };
        return match read_tensors(bytes) {
            Ok(TorchFile { tensors, checksums }) => Ok(Checkpoint {
                path: path.to_owned(),
                tensors: tensors.into_iter().map(|(name, tensor)| (name, entry(tensor))).collect(),
                checksums: checksums.into_iter().map(|(bytes, crc32)| (file.clone(), bytes, crc32)).collect(),
            }),
            Err(PickleError::Corrupt(reason)) => bail!("{shown} {reason}; download the file again"),
            Err(PickleError::Unsupported(reason)) => bail!("{shown} {reason}; {CONVERT}"),
        };
    }
    let (header, metadata) = match SafeTensors::read_metadata(bytes) {
        Ok(parsed) => parsed,
        Err(error) => bail!("{shown} {}; download the file again", describe(&error, bytes.len())),
    };
    let data = header + size_of::<u64>();
    let entry = |info: &TensorInfo| {
        let (start, end) = info.data_offsets;
        let (shape, bytes) = (info.shape.clone(), data + start..data + end);
        Entry { dtype: info.dtype, shape, strides: None, file: file.clone(), bytes }
    };
    let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
    Ok(Checkpoint { path: path.to_owned(), tensors, checksums: Vec::new() })
}

/// The shard of each tensor: the `weight_map` of an index.
pub fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let fields = read_json_object(path)?;
    let shard = |(name, shard): (&String, &Value)| {
        let shard = shard.as_str().filter(|shard| !shard.is_empty() && !shard.contains(['/', '\\']))?;
        Some((name.clone(), shard.to_owned()))
    };
    let map = fields.get("weight_map").and_then(Value::as_object);
    match map.and_then(|map| map.iter().map(shard).collect()) {
        Some(index) => Ok(index),
        None => bail!("{} has no \"weight_map\" from tensors to files; fix the file", path.display()),
    }
}

impl Entry {
    /// The part `index` of `parts` equal ones of the first axis.
    fn part(&self, index: usize, parts: usize) -> Entry {
        let mut part = self.clone();
        let Some(rows) = part.shape.first_mut() else { return part };
        *rows /= parts;
        match &self.strides {
            None => {
                let length = self.bytes.len() / parts;
                part.bytes = self.bytes.start + index * length..self.bytes.start + (index + 1) * length;
            }
            Some(strides) => part.bytes.start += index * *rows * strides[0] * (self.dtype.bitsize() / 8),
        }
        part
    }

    /// Fills `into` with the bytes of the elements from element `first` on, in row-major order.
    fn read_bytes(&self, first: usize, into: &mut [u8]) -> Result<()> {
        let size = self.dtype.bitsize() / 8;
        let Some(strides) = &self.strides else {
            return self.file.read(self.bytes.start + first * size, into);
        };
        let bytes: &[u8] = self.file.as_ref().as_ref();
        // The indices of an element, the last axis first.
        let mut indices: Vec<usize> = Vec::with_capacity(strides.len());
        let mut rest = first;
        for length in self.shape.iter().rev() {
            indices.push(rest % length);
            rest /= length;
        }
        let mut offset: usize = indices.iter().zip(strides.iter().rev()).map(|(i, stride)| i * stride).sum();
        for element in into.chunks_exact_mut(size) {
            let start = self.bytes.start + offset * size;
            element.copy_from_slice(&bytes[start..start + size]);
            for ((i, length), stride) in
                indices.iter_mut().zip(self.shape.iter().rev()).zip(strides.iter().rev())
            {
                *i += 1;
                offset += stride;
                if *i < *length {
                    break;
                }
                offset -= *i * stride;
                *i = 0;
            }
        }
        Ok(())
    }

    /// Fills `values` with the elements from element `first` on, and returns how many of them are NaN or infinite.
    fn read(&self, dtype: SafetensorsDtype, first: usize, values: &mut [f32]) -> Result<usize> {
        match dtype {
            SafetensorsDtype::F32 => {
                self.read_bytes(first, bytemuck::cast_slice_mut(values))?;
                values.iter_mut().for_each(|x| *x = f32::from_le_bytes(x.to_ne_bytes()));
            }
            _ => {
                let mut bytes = vec![0; values.len() * dtype.size()];
                self.read_bytes(first, &mut bytes)?;
                dtype.decode(&bytes, values, |out, x| *out = x);
            }
        }
        // u32 lanes are summed faster than usize, and the count fits.
        let not_finite: u32 = values.iter().map(|x| u32::from(!x.is_finite())).sum();
        Ok(not_finite as usize)
    }

    /// All elements in f32; those of i8 are not scaled.
    fn to_f32(&self, name: &str, path: String) -> Result<Vec<f32>> {
        let count = self.shape.iter().product();
        if self.dtype == Dtype::I8 {
            let mut bytes = vec![0u8; count];
            self.read_bytes(0, &mut bytes)?;
            return Ok(bytes.into_iter().map(|byte| f32::from(byte as i8)).collect());
        }
        let Some(dtype) = safetensors_dtype(self.dtype) else {
            bail!("{path}: tensor {name} is of type {:?}, expected I8, F32, F16, BF16 or F64", self.dtype)
        };
        let mut values = vec![0f32; count];
        self.read(dtype, 0, &mut values)?;
        Ok(values)
    }

    /// All elements as indices below `end`.
    fn to_indices(&self, name: &str, path: String, end: usize) -> Result<Vec<usize>> {
        let mut bytes = vec![0u8; self.shape.iter().product::<usize>() * (self.dtype.bitsize() / 8)];
        self.read_bytes(0, &mut bytes)?;
        let indices: Vec<i64> = match self.dtype {
            Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
            Dtype::U32 => bytes.as_chunks().0.iter().map(|b| i64::from(u32::from_le_bytes(*b))).collect(),
            other => bail!("{path}: tensor {name} is of type {other:?}, expected I64, I32 or U32"),
        };
        let valid = |index: i64| usize::try_from(index).ok().filter(|index| *index < end);
        match indices.iter().copied().map(valid).collect() {
            Some(indices) => Ok(indices),
            None => bail!(
                "{path}: tensor {name} names a row that the table of {end} rows does not have; download the file again"
            ),
        }
    }
}

/// Reads the tensors of a checkpoint by canonical name, and reports how they are used.
pub struct TensorReader<'a> {
    checkpoint: &'a Checkpoint,
    /// The namings of the family.
    namings: &'static [TensorNames],
    /// That of the checkpoint.
    names: &'static TensorNames,
    prefix: &'static str,
    adapter: Option<Adapter>,
    /// The tensors of the adapter that replace those of the checkpoint, or that it does not have, by its names.
    replaced: BTreeMap<String, Entry>,
    packed: Option<PackedWeights>,
    backend: Backend,
    report: TensorReport,
    /// The tensors with a problem in the report.
    problems: BTreeSet<String>,
    seen: BTreeSet<String>,
    /// Tensors, or parts of them by their first byte, whose NaN and infinite values have been counted. Several devices read
    /// the same tensor.
    counted: BTreeSet<(String, usize)>,
}

impl TensorReader<'_> {
    /// Places the tensors that are read from now on on another device.
    pub fn set_backend(&mut self, backend: Backend) {
        self.backend = backend;
    }

    /// Merges an adapter into the tensors that are read from now on.
    pub fn set_adapter(&mut self, adapter: Option<(Adapter, Replacements)>) -> Result<()> {
        let Some((adapter, replacements)) = adapter else { return Ok(()) };
        for (name, entry) in replacements.tensors {
            // The adapter may have been trained with another class, and so have another prefix.
            let prefixes = self.namings.iter().flat_map(|names| names.prefixes);
            let rests = prefixes.filter_map(|prefix| name.strip_prefix(prefix));
            let mut own = rests.map(|rest| format!("{}{rest}", self.prefix));
            let is_head = self.namings.iter().any(|names| names.is_head_tensor(&name));
            match own.find(|own| self.checkpoint.find(own).is_some()).or(is_head.then_some(name.clone())) {
                Some(own) => drop(self.replaced.insert(own, entry)),
                None => bail!("{}", adapter.unknown(&name)),
            }
        }
        self.adapter = Some(adapter);
        Ok(())
    }

    /// A tensor by the checkpoint's name, and the name that it is stored under.
    fn find<'a>(&'a self, name: &'a String) -> Option<(&'a String, &'a Entry)> {
        self.replaced.get_key_value(name).or_else(|| self.checkpoint.find(name))
    }

    /// Takes the matrices that are read from now on from a file of packed weights, and adds to it those that it does not have.
    pub fn set_packed_weights(&mut self, packed: Option<PackedWeights>) {
        self.packed = packed;
    }

    /// The file of packed weights, to be finished.
    pub fn take_packed_weights(&mut self) -> Option<PackedWeights> {
        self.packed.take()
    }

    /// Ends the merging of the adapter, and adds the changed modules to the report.
    pub fn finish_adapter(&mut self) -> Result<()> {
        let Some(adapter) = self.adapter.take() else { return Ok(()) };
        for name in adapter.tensors() {
            if let Some(entry) = self.checkpoint.tensors.get(&name).filter(|_| self.seen.insert(name.clone()))
            {
                self.report.used.push((name, entry.shape.clone(), format!("{:?}", entry.dtype)));
            }
        }
        self.report.merged = adapter.into_merged(self.namings)?;
        let replaced = self.replaced.keys().filter(|name| self.seen.contains(*name));
        self.report.merged.extend(replaced.cloned());
        Ok(())
    }

    /// What the adapter does to a tensor, and from which row of the update on.
    fn update(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<(Update, usize)>> {
        match (&mut self.adapter, shape) {
            (Some(adapter), &[rows, columns]) => adapter.update(self.namings, canonical, [rows, columns]),
            _ => Ok(None),
        }
    }

    /// What the adapter adds to a bias.
    fn bias(&mut self, canonical: &str, shape: &[usize]) -> Option<Vec<f32>> {
        match (&mut self.adapter, shape) {
            (Some(adapter), &[values]) => adapter.bias(self.namings, canonical, values),
            _ => None,
        }
    }

    /// [`update`](Self::update) of a tensor whose elements are those of `entry`: the norms of the merged rows are known then.
    fn update_of(
        &mut self,
        canonical: &str,
        shape: &[usize],
        (entry, dtype): (&Entry, SafetensorsDtype),
    ) -> Result<Option<(Update, usize)>> {
        let Some((mut update, first_row)) = self.update(canonical, shape)? else { return Ok(None) };
        update.set_norms(first_row, shape, |first, values| entry.read(dtype, first, values).map(drop))?;
        Ok(Some((update, first_row)))
    }

    /// The report, which lists the tensors that were never read as unused.
    pub fn into_report(mut self) -> TensorReport {
        let names = self.checkpoint.tensors.keys();
        self.report.unused = names.filter(|name| !self.seen.contains(*name)).cloned().collect();
        let is_unexpected = |name: &&String| self.names.is_encoder_tensor(self.prefix, name);
        self.report.unexpected_tensors = self.report.unused.iter().filter(is_unexpected).cloned().collect();
        self.report
    }

    /// The checkpoint's name for a tensor.
    pub fn resolve(&self, canonical: &str) -> String {
        self.names.resolve(self.prefix, canonical).name
    }

    /// The checkpoint's name for a tensor that it does not have; `None` if it has it.
    pub fn missing(&self, canonical: &str) -> Option<String> {
        let name = self.resolve(canonical);
        self.find(&name).is_none().then_some(name)
    }

    /// The entry of a canonical name if it is usable as a tensor of `shape`; otherwise `None`, and the report has the problem.
    fn entry(&mut self, canonical: &str, shape: &[usize]) -> Option<(String, Entry, SafetensorsDtype)> {
        let TensorRef { mut name, part: (index, parts) } = self.names.resolve(self.prefix, canonical);
        // The first BERT checkpoints, converted from TensorFlow, have the older names.
        for (now, then) in [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")] {
            let older = name.strip_suffix(now).map(|norm| format!("{norm}{then}"));
            let has = |name: &String| self.find(name).is_some();
            if let Some(older) = older.filter(|older| !has(&name) && has(older)) {
                name = older;
            }
        }
        let mut expected = shape.to_vec();
        if let Some(rows) = expected.first_mut() {
            *rows *= parts;
        }
        let found = self.find(&name).map(|(stored, entry)| (stored.clone(), entry.clone()));
        let problem = match found {
            None => Problem::Missing { name, expected },
            Some((stored, entry)) => {
                name = stored;
                let is_first_use = self.seen.insert(name.clone());
                match safetensors_dtype(entry.dtype) {
                    _ if entry.shape != expected => {
                        Problem::Misshapen { name, found: entry.shape.clone(), expected }
                    }
                    None => Problem::Mistyped { name, found: format!("{:?}", entry.dtype) },
                    Some(dtype) => {
                        if is_first_use {
                            self.report.used.push((name.clone(), expected, format!("{:?}", entry.dtype)));
                        }
                        return Some((name, entry.part(index, parts), dtype));
                    }
                }
            }
        };
        // A fused tensor is read once for each of its parts.
        if self.problems.insert(problem.name().to_owned()) {
            self.report.problems.push(problem);
        }
        None
    }

    /// The entry of a tensor that belongs to the table of token embeddings, by its canonical module.
    fn beside_table(&mut self, module: &str) -> Option<(String, Entry)> {
        if !self.names.has_module(module) {
            return None;
        }
        let name = self.resolve(&format!("{module}.weight"));
        let entry = self.find(&name)?.1.clone();
        if self.seen.insert(name.clone()) {
            self.report.used.push((name.clone(), entry.shape.clone(), format!("{:?}", entry.dtype)));
        }
        Some((name, entry))
    }

    /// A table whose rows are shared by tokens, have a weight for each token or are of i8, as model2vec stores it, with a row for
    /// each token; `None` for another table.
    fn folded_table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<Option<EmbeddingTable>> {
        let (mapping, weights) =
            (self.beside_table("embeddings.token_rows"), self.beside_table("embeddings.token_weights"));
        let name = self.resolve(canonical);
        let Some(table) = self.find(&name).map(|(_, entry)| entry.clone()) else { return Ok(None) };
        if mapping.is_none() && weights.is_none() && table.dtype != Dtype::I8 {
            return Ok(None);
        }
        let path = self.checkpoint.path.display();
        let &[stored, stored_width] = &table.shape[..] else { return Ok(None) };
        let is_fitting =
            |entry: &Option<(String, Entry)>| entry.as_ref().is_none_or(|(_, entry)| entry.shape == [rows]);
        if stored_width != width
            || !is_fitting(&mapping)
            || !is_fitting(&weights)
            || mapping.is_none() && stored != rows
        {
            bail!(
                "{path}: tensors {name}, mapping and weights are not of the same number of tokens; download the file again"
            )
        }
        let values = table.to_f32(&name, path.to_string())?;
        let token_weights = match &weights {
            Some((name, entry)) => Some(entry.to_f32(name, path.to_string())?),
            None => None,
        };
        let token_rows = match &mapping {
            Some((name, entry)) => Some(entry.to_indices(name, path.to_string(), stored)?),
            None => None,
        };
        let mut folded = vec![0f32; rows * width];
        folded.par_chunks_mut(width).enumerate().for_each(|(token, out)| {
            let row = token_rows.as_ref().map_or(token, |rows| rows[token]);
            let weight = token_weights.as_ref().map_or(1.0, |weights| weights[token]);
            for (out, x) in out.iter_mut().zip(&values[row * width..][..width]) {
                *out = weight * x;
            }
        });
        let not_finite = folded.par_iter().filter(|x| !x.is_finite()).count();
        if self.seen.insert(name.clone()) {
            self.report.used.push((name.clone(), table.shape.clone(), format!("{:?}", table.dtype)));
        }
        self.note_not_finite(name, table.bytes.start, not_finite);
        let folded = Tensor::from_vec(folded, (rows, width), &Device::Cpu)?;
        Ok(Some(EmbeddingTable::resident(folded)?))
    }

    fn note_not_finite(&mut self, name: String, start: usize, count: usize) {
        if count == 0 || !self.counted.insert((name.clone(), start)) {
            return;
        }
        // A fused tensor is read once for each of its parts.
        match self.report.not_finite.iter_mut().find(|(noted, _)| *noted == name) {
            Some((_, noted)) => *noted += count,
            None => self.report.not_finite.push((name, count)),
        }
    }
}

impl WeightSource for TensorReader<'_> {
    fn tensor(&mut self, canonical: &str, shape: &[usize]) -> Result<Tensor> {
        let Some((name, entry, dtype)) = self.entry(canonical, shape) else { return placeholder(shape) };
        let update = self.update_of(canonical, shape, (&entry, dtype))?;
        let mut values = vec![0f32; shape.iter().product()];
        let read = |(i, values): (usize, &mut [f32])| -> Result<usize> {
            let count = entry.read(dtype, i * CHUNK, values)?;
            if let Some((update, row)) = &update {
                update.apply(*row, i * CHUNK, values);
            }
            Ok(count)
        };
        let chunks = values.par_chunks_mut(CHUNK).with_min_len(MIN_CHUNKS).enumerate();
        let count = chunks.map(read).sum::<Result<_>>()?;
        if let Some(bias) = self.bias(canonical, shape) {
            values.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(self.backend.transfer(Tensor::from_vec(values, shape, &Device::Cpu)?)?)
    }

    fn matrix(&mut self, canonical: &str, rows: usize, columns: usize) -> Result<Matrix> {
        let Backend::Cpu(compute) = self.backend else {
            return Ok(Matrix::new(self.tensor(canonical, &[rows, columns])?, &self.backend)?);
        };
        let Some((name, entry, dtype)) = self.entry(canonical, &[rows, columns]) else {
            return Ok(Matrix::new(placeholder(&[rows, columns])?, &self.backend)?);
        };
        let update = self.update_of(canonical, &[rows, columns], (&entry, dtype))?;
        // An adapter gives other values than the file's.
        let is_changed = update.is_some() || self.replaced.contains_key(&name);
        let packing = format!("{name} {} {rows}x{columns} {}", entry.bytes.start, Matrix::packing(compute));
        if !is_changed
            && let Some((file, range, not_finite)) =
                self.packed.as_ref().and_then(|packed| packed.find(&packing))
            && let Some(matrix) =
                Matrix::from_packed([rows, columns], compute, dtype.significand_bits(), file, range)
        {
            self.note_not_finite(name, entry.bytes.start, not_finite);
            return Ok(matrix);
        }
        let count = AtomicUsize::new(0);
        let bits = if update.is_some() { F32_SIGNIFICAND_BITS } else { dtype.significand_bits() };
        let matrix = Matrix::pack_with(rows, columns, compute, bits, |first, values| {
            count.fetch_add(entry.read(dtype, first, values)?, Ordering::Relaxed);
            if let Some((update, row)) = &update {
                update.apply(*row, first, values);
            }
            Ok::<(), Error>(())
        })?;
        let count = count.into_inner();
        if let (false, Some(packed), Some(elements)) =
            (is_changed, &mut self.packed, matrix.packed_elements())
        {
            packed.add(packing, bytemuck::cast_slice(elements), count);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(matrix)
    }

    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn has(&self, canonical: &str) -> bool {
        self.missing(canonical).is_none()
    }

    fn change_check(&self) -> Option<ChangeCheck> {
        let mut files = self.checkpoint.files();
        files.extend(distinct_files(self.replaced.values()));
        files.extend(self.packed.as_ref().and_then(PackedWeights::file).cloned());
        Some(Arc::new(move || files.iter().try_for_each(|file| file.check_unchanged())))
    }

    fn optional(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        match self.missing(canonical) {
            None => self.tensor(canonical, shape).map(Some),
            Some(_) => Ok(None),
        }
    }

    fn table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<EmbeddingTable> {
        let is_changed = self.update(canonical, &[rows, width])?.is_some();
        if is_changed || !matches!(self.backend, Backend::Cpu(_)) {
            return Ok(EmbeddingTable::resident(self.tensor(canonical, &[rows, width])?)?);
        }
        if let Some(table) = self.folded_table(canonical, rows, width)? {
            return Ok(table);
        }
        let Some((name, entry, dtype)) = self.entry(canonical, &[rows, width]) else {
            return Ok(EmbeddingTable::resident(placeholder(&[rows, width])?)?);
        };
        if entry.strides.is_some() {
            return Ok(EmbeddingTable::resident(self.tensor(canonical, &[rows, width])?)?);
        }
        let elements = rows * width;
        let checked = format!("{name} {} {rows}x{width} table", entry.bytes.start);
        let is_replaced = self.replaced.contains_key(&name);
        let packed = self.packed.as_ref().filter(|_| !is_replaced);
        if let Some((_, _, not_finite)) = packed.and_then(|packed| packed.find(&checked)) {
            self.note_not_finite(name, entry.bytes.start, not_finite);
            return Ok(EmbeddingTable::mapped(entry.file, entry.bytes, dtype, rows, width)?);
        }
        let count = (0..elements.div_ceil(CHUNK))
            .into_par_iter()
            .with_min_len(MIN_CHUNKS)
            .map_init(Vec::new, |buffer, i| {
                buffer.resize(CHUNK.min(elements - i * CHUNK), 0.0);
                entry.read(dtype, i * CHUNK, buffer)
            })
            .sum::<Result<_>>()?;
        if let Some(packed) = self.packed.as_mut().filter(|_| !is_replaced) {
            packed.add(checked, &[], count);
        }
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(EmbeddingTable::mapped(entry.file, entry.bytes, dtype, rows, width)?)
    }
}

/// The dtype of a tensor if it is a supported floating-point type.
fn safetensors_dtype(dtype: Dtype) -> Option<SafetensorsDtype> {
    match dtype {
        Dtype::F64 => Some(SafetensorsDtype::F64),
        Dtype::F32 => Some(SafetensorsDtype::F32),
        Dtype::F16 => Some(SafetensorsDtype::F16),
        Dtype::BF16 => Some(SafetensorsDtype::BF16),
        _ => None,
    }
}

/// Why a file is no valid safetensors file: the end of a sentence that begins with its name.
fn describe(error: &SafeTensorError, length: usize) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => {
            format!("is not a safetensors file: {length} bytes are too few for a header")
        }
        E::HeaderTooLarge => "is not a safetensors file: its header would be over 100 MB long".into(),
        E::InvalidHeaderLength => {
            format!("is truncated: its header is longer than the {length} bytes of the file")
        }
        E::InvalidHeader(_) | E::InvalidHeaderDeserialization(_) | E::JsonError(_) => {
            "is corrupt: its header is not valid JSON".into()
        }
        E::MetadataIncompleteBuffer => {
            format!("is truncated or corrupt: its header describes more or less data than its {length} bytes")
        }
        E::InvalidOffset(name) => {
            format!("is corrupt: tensor {name} does not begin where the one before ends")
        }
        E::TensorInvalidInfo | E::ValidationOverflow | E::MisalignedSlice => {
            "is corrupt: the shape of a tensor does not fit its size in bytes".into()
        }
        _ => "is corrupt: its header is invalid".into(),
    }
}
