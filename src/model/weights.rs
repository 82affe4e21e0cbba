//! Weights from safetensors files (`huggingface/safetensors`) and PyTorch checkpoints, memory-mapped. Tensors that are needed once are read from the file, which
//! costs less than page faults in the map; rows of embedding tables are looked up in the map.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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

use super::layout::CONVERT;
use super::low_rank::{Adapter, LowRank, PEFT_PREFIX};
use super::names::{TensorNames, TensorRef};
use super::packed_weights::PackedWeights;
use super::pickle::PickleError;
use super::pytorch::{TorchTensor, read_tensors};
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
/// Minimum number of chunks for a task of a thread.
const MIN_CHUNKS: usize = 16;

/// A checkpoint: one file or several shards, mapped, with valid headers.
pub struct Checkpoint {
    /// The file, or the index of the shards.
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
}

/// A tensor in a file.
#[derive(Debug, Clone)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    file: Arc<MappedFile>,
    /// Byte range in the file.
    bytes: Range<usize>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Not in the checkpoint.
    Missing {
        /// The checkpoint's name.
        name: String,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Of another shape than the config describes.
    Misshapen {
        /// The checkpoint's name.
        name: String,
        /// The shape in the checkpoint.
        found: Vec<usize>,
        /// The shape that the config describes.
        expected: Vec<usize>,
    },
    /// Not of a floating-point dtype.
    Mistyped {
        /// The checkpoint's name.
        name: String,
        /// The dtype in the checkpoint.
        found: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { name, expected } => {
                write!(f, "tensor {name} of shape {expected:?} is missing")
            }
            Problem::Misshapen { name, found, expected } => {
                write!(f, "tensor {name} has shape {found:?}, but the config describes {expected:?}")
            }
            Problem::Mistyped { name, found } => {
                write!(f, "tensor {name} is of type {found}, expected F32, F16, BF16 or F64")
            }
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
    /// Maps a safetensors file or PyTorch checkpoint, or the shards that an index (`….index.json`) names, and checks their headers.
    ///
    /// # Errors
    /// If a file cannot be read, is of another format, is shorter or longer than its header describes, holds more than tensors, or lacks a
    /// tensor that the index assigns to it.
    pub fn open(path: &Path) -> Result<Self> {
        if path.extension().is_none_or(|suffix| suffix != "json") {
            return Ok(Self::unwrapped(path, map_file(path)?));
        }
        let shown = path.display();
        let index = read_index(path)?;
        let shards: BTreeSet<&String> = index.values().collect();
        let mut tensors = BTreeMap::new();
        for shard in shards {
            let file = path.with_file_name(shard);
            if !regular_file::has_dir_entry(&file) {
                bail!("{shown} names the shard {shard}, which does not exist; download the model again");
            }
            tensors.extend(map_file(&file)?.into_iter().filter(|(name, _)| index.get(name) == Some(shard)));
        }
        if let Some((name, shard)) = index.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            bail!(
                "{shown} assigns tensor {name} to {shard}, which does not have it; download the model again"
            );
        }
        Ok(Self::unwrapped(path, tensors))
    }

    /// A checkpoint of these tensors, whose names lose what PEFT adds to those of a model with adapters.
    fn unwrapped(path: &Path, mut tensors: BTreeMap<String, Entry>) -> Self {
        if tensors.keys().any(|name| name.contains(BASE_LAYER)) {
            let name =
                |name: String| name.strip_prefix(PEFT_PREFIX).unwrap_or(&name).replacen(BASE_LAYER, ".", 1);
            tensors = tensors.into_iter().map(|(wrapped, entry)| (name(wrapped), entry)).collect();
        }
        Checkpoint { path: path.to_owned(), tensors }
    }

    /// Checks that there are no adapters beside the weights, whose scale is not known here.
    ///
    /// # Errors
    /// If there are.
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
    ///
    /// # Errors
    /// If there is no such tensor of floats, or the file cannot be read.
    pub fn part(&self, name: &str, index: usize, parts: usize) -> Result<Vec<f32>> {
        let path = self.path.display().to_string();
        let Some(entry) = self.tensors.get(name) else { bail!("{path} has no tensor {name}") };
        let mut part = entry.clone();
        let length = entry.bytes.len() / parts;
        part.bytes = entry.bytes.start + index * length..entry.bytes.start + (index + 1) * length;
        if let Some(rows) = part.shape.first_mut() {
            *rows /= parts;
        }
        part.to_f32(name, path)
    }

    /// The elements of a tensor with one axis, by the checkpoint's name; `None` if it has no such tensor of floats.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn vector(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let entry = self.tensors.get(name).filter(|entry| entry.shape.len() == 1);
        let typed = entry.and_then(|entry| Some((entry, safetensors_dtype(entry.dtype)?)));
        let Some((entry, dtype)) = typed else { return Ok(None) };
        let mut values = vec![0.0; entry.shape[0]];
        entry.read(dtype, 0, &mut values)?;
        Ok(Some(values))
    }

    /// A reader of the encoder's tensors, by the family's names; for the CPU in f32 until [`TensorReader::set_backend`].
    ///
    /// # Errors
    /// If no naming of the family finds a token embedding table.
    pub fn reader(&self, namings: &'static [TensorNames]) -> Result<TensorReader<'_>> {
        let Some((names, prefix)) = TensorNames::choose(namings, |name| self.find(name).is_some()) else {
            let name = namings[0].resolve("", "embeddings.token.weight").name;
            bail!(
                "{} has no tensor {name}, with or without a prefix: it is not a checkpoint of this model type",
                self.path.display()
            )
        };
        Ok(TensorReader { namings, ..self.reader_with(prefix, names) })
    }

    /// Checks that no file has changed since it was opened; otherwise the tensors may mix two versions.
    ///
    /// # Errors
    /// If a file has changed; the message names it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files().iter().try_for_each(|file| file.check_unchanged())
    }

    /// The files, each once.
    pub fn files(&self) -> Vec<Arc<MappedFile>> {
        let mut files: Vec<Arc<MappedFile>> = Vec::new();
        for entry in self.tensors.values() {
            if !files.iter().any(|file| Arc::ptr_eq(file, &entry.file)) {
                files.push(entry.file.clone());
            }
        }
        files
    }

    /// A reader of tensors with a known prefix.
    pub fn reader_with(&self, prefix: &'static str, names: &'static TensorNames) -> TensorReader<'_> {
        let (backend, adapter, packed, report, seen, counted) = Default::default();
        let namings = std::slice::from_ref(names);
        TensorReader {
            checkpoint: self,
            namings,
            names,
            prefix,
            adapter,
            packed,
            backend,
            report,
            seen,
            counted,
        }
    }
}

/// Maps one file and returns its tensors by name.
fn map_file(path: &Path) -> Result<BTreeMap<String, Entry>> {
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
            file: file.clone(),
            bytes: tensor.bytes,
        };
        return match read_tensors(bytes) {
            Ok(tensors) => Ok(tensors.into_iter().map(|(name, tensor)| (name, entry(tensor))).collect()),
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
        Entry { dtype: info.dtype, shape, file: file.clone(), bytes }
    };
    Ok(metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect())
}

/// The shard of each tensor: the `weight_map` of an index.
///
/// # Errors
/// If the file holds no such map, or a shard is not a plain file name.
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
    /// Fills `values` with the elements from element `first` on, and returns how many of them are NaN or infinite.
    fn read(&self, dtype: SafetensorsDtype, first: usize, values: &mut [f32]) -> Result<usize> {
        let start = self.bytes.start + first * dtype.size();
        match dtype {
            SafetensorsDtype::F32 => {
                self.file.read(start, bytemuck::cast_slice_mut(values))?;
                values.iter_mut().for_each(|x| *x = f32::from_le_bytes(x.to_ne_bytes()));
            }
            _ => {
                let mut bytes = vec![0; values.len() * dtype.size()];
                self.file.read(start, &mut bytes)?;
                dtype.decode(&bytes, values, |out, x| *out = x);
            }
        }
        // u32 lanes are summed faster than usize, and the count fits.
        let not_finite: u32 = values.iter().map(|x| u32::from(!x.is_finite())).sum();
        Ok(not_finite as usize)
    }
}

impl Entry {
    /// All elements in f32; those of i8 are not scaled.
    fn to_f32(&self, name: &str, path: String) -> Result<Vec<f32>> {
        let count = self.shape.iter().product();
        if self.dtype == Dtype::I8 {
            let mut bytes = vec![0u8; count];
            self.file.read(self.bytes.start, &mut bytes)?;
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
        let mut bytes = vec![0u8; self.bytes.len()];
        self.file.read(self.bytes.start, &mut bytes)?;
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
    packed: Option<PackedWeights>,
    backend: Backend,
    report: TensorReport,
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
    pub fn set_adapter(&mut self, adapter: Option<Adapter>) {
        self.adapter = adapter;
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
    ///
    /// # Errors
    /// If the adapter changes a module that has not been read.
    pub fn finish_adapter(&mut self) -> Result<()> {
        let Some(adapter) = self.adapter.take() else { return Ok(()) };
        for name in adapter.tensors() {
            if let Some(entry) = self.checkpoint.tensors.get(&name).filter(|_| self.seen.insert(name.clone()))
            {
                self.report.used.push((name, entry.shape.clone(), format!("{:?}", entry.dtype)));
            }
        }
        self.report.merged = adapter.into_merged(self.namings)?;
        Ok(())
    }

    /// What the adapter adds to a tensor, and from which row of the update on.
    fn update(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<(LowRank, usize)>> {
        match (&mut self.adapter, shape) {
            (Some(adapter), &[rows, columns]) => adapter.update(self.namings, canonical, [rows, columns]),
            _ => Ok(None),
        }
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
        self.checkpoint.find(&name).is_none().then_some(name)
    }

    /// The entry of a canonical name if it is usable as a tensor of `shape`; otherwise `None`, and the report has the problem.
    fn entry(&mut self, canonical: &str, shape: &[usize]) -> Option<(String, Entry, SafetensorsDtype)> {
        let TensorRef { mut name, part: (index, parts) } = self.names.resolve(self.prefix, canonical);
        // The first BERT checkpoints, converted from TensorFlow, have the older names.
        for (now, then) in [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")] {
            let older = name.strip_suffix(now).map(|norm| format!("{norm}{then}"));
            let has = |name: &String| self.checkpoint.tensors.contains_key(name);
            if let Some(older) = older.filter(|older| !has(&name) && has(older)) {
                name = older;
            }
        }
        let mut expected = shape.to_vec();
        if let Some(rows) = expected.first_mut() {
            *rows *= parts;
        }
        let problem = match self.checkpoint.find(&name) {
            None => Problem::Missing { name, expected },
            Some((stored, entry)) => {
                name.clone_from(stored);
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
                        let mut entry = entry.clone();
                        let length = entry.bytes.len() / parts;
                        entry.bytes.start += index * length;
                        entry.bytes.end = entry.bytes.start + length;
                        return Some((name, entry, dtype));
                    }
                }
            }
        };
        // A fused tensor is read once for each of its parts.
        if !self.report.problems.contains(&problem) {
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
        let entry = self.checkpoint.tensors.get(&name)?.clone();
        if self.seen.insert(name.clone()) {
            self.report.used.push((name.clone(), entry.shape.clone(), format!("{:?}", entry.dtype)));
        }
        Some((name, entry))
    }

    /// A table whose rows are shared by tokens, have a weight for each token or are of i8, as model2vec stores it, with a row for
    /// each token; `None` for another table.
    ///
    /// # Errors
    /// If the tensors contradict each other, or cannot be read.
    fn folded_table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<Option<EmbeddingTable>> {
        let (mapping, weights) =
            (self.beside_table("embeddings.token_rows"), self.beside_table("embeddings.token_weights"));
        let name = self.resolve(canonical);
        let Some(table) = self.checkpoint.tensors.get(&name).cloned() else { return Ok(None) };
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
        let update = self.update(canonical, shape)?;
        let mut values = vec![0f32; shape.iter().product()];
        let read = |(i, values): (usize, &mut [f32])| -> Result<usize> {
            let count = entry.read(dtype, i * CHUNK, values)?;
            if let Some((update, row)) = &update {
                update.add(*row, i * CHUNK, values);
            }
            Ok(count)
        };
        let chunks = values.par_chunks_mut(CHUNK).with_min_len(MIN_CHUNKS).enumerate();
        let count = chunks.map(read).sum::<Result<_>>()?;
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
        let update = self.update(canonical, &[rows, columns])?;
        // A merged adapter gives other values than the file's.
        let packing = format!("{name} {} {rows}x{columns} {}", entry.bytes.start, Matrix::packing(compute));
        if update.is_none()
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
                update.add(*row, first, values);
            }
            Ok::<(), Error>(())
        })?;
        let count = count.into_inner();
        if let (None, Some(packed), Some(elements)) = (&update, &mut self.packed, matrix.packed_elements()) {
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
        let elements = rows * width;
        let checked = format!("{name} {} {rows}x{width} table", entry.bytes.start);
        if let Some((_, _, not_finite)) = self.packed.as_ref().and_then(|packed| packed.find(&checked)) {
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
        if let Some(packed) = &mut self.packed {
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
