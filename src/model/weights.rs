//! Weights from mapped safetensors files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::{Error, Result, bail};
use candle_core::{Device, Tensor};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use super::names::{Names, Place};
use super::read_json_object;
use crate::disk;
use crate::nn::{Engine, Matrix, Parameters, Stored, Table, Watch, placeholder};

/// Numbers that are read at a time: few enough to be checked while a core's cache has them.
const CHUNK: usize = 1 << 14;
/// The least chunks that a thread takes for itself.
const CHUNKS: usize = 16;

/// A checkpoint of one safetensors file or of several shards, mapped; headers have been checked.
pub struct Checkpoint {
    /// The file, or the index of the shards.
    path: PathBuf,
    tensors: BTreeMap<String, Entry>,
}

/// Where a tensor lies, and as what.
#[derive(Debug, Clone)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    source: Arc<Mapped>,
    bytes: Range<usize>,
}

/// A safetensors file. What is needed once is read from the file, which costs less than mapping its pages; rows of
/// embedding tables are looked up in the map.
#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    file: File,
    map: Mmap,
    /// When the file was last written to.
    modified: Option<SystemTime>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// What became of the tensors of a checkpoint; every name is the checkpoint's own.
#[derive(Debug, Default)]
pub struct Report {
    /// Read, each with its shape and storage type.
    pub used: Vec<(String, Vec<usize>, String)>,
    /// In the checkpoint, but of no use to the encoder: task heads, poolers, buffers.
    pub unused: Vec<String>,
    /// Those of them that are the encoder's by their names: the config leaves out what they are for.
    pub left_out: Vec<String>,
    /// Read, but with this many numbers that are NaN or infinite.
    pub not_finite: Vec<(String, usize)>,
    /// What makes the checkpoint unusable.
    pub problems: Vec<Problem>,
}

/// A tensor that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Not in the file.
    Missing { name: String, expected: Vec<usize> },
    /// Another shape than the config asks for.
    Misshapen { name: String, found: Vec<usize>, expected: Vec<usize> },
    /// Not stored as floating-point numbers.
    Mistyped { name: String, found: String },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing { name, expected } => {
                write!(f, "tensor {name} of shape {expected:?} is missing")
            }
            Problem::Misshapen { name, found, expected } => {
                write!(f, "tensor {name} has shape {found:?}, but the config asks for {expected:?}")
            }
            Problem::Mistyped { name, found } => {
                write!(f, "tensor {name} is stored as {found}, but has to be F32, F16, BF16 or F64")
            }
        }
    }
}

impl Checkpoint {
    /// Maps a safetensors file, or the shards that an index (`….index.json`) names, and checks their headers.
    ///
    /// # Errors
    /// If a file cannot be read, is no safetensors file, is shorter or longer than its header says, or lacks a
    /// tensor that the index says it has.
    pub fn open(path: &Path) -> Result<Self> {
        if path.extension().is_none_or(|suffix| suffix != "json") {
            return Ok(Checkpoint { path: path.to_owned(), tensors: map(path)? });
        }
        let shown = path.display();
        let index = read_index(path)?;
        let shards: BTreeSet<&String> = index.values().collect();
        let mut tensors = BTreeMap::new();
        for shard in shards {
            let file = path.with_file_name(shard);
            if !disk::is_listed(&file) {
                bail!("{shown} names the shard {shard}, which is not there; fetch the model again");
            }
            tensors.extend(map(&file)?.into_iter().filter(|(name, _)| index.get(name) == Some(shard)));
        }
        if let Some((name, shard)) = index.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            bail!("{shown} says that tensor {name} is in {shard}, but it is not; fetch the model again");
        }
        Ok(Checkpoint { path: path.to_owned(), tensors })
    }

    /// Starts reading the tensors of a family, for the CPU in f32.
    ///
    /// # Errors
    /// If the file has no token embedding table under any of the family's names.
    pub fn reader(&self, ways: &'static [Names]) -> Result<Reader<'_>> {
        let Some((names, prefix)) = Names::choose(ways, |name| self.tensors.contains_key(name)) else {
            let name = ways[0].place("", "embeddings.token.weight").name;
            bail!(
                "{} has no tensor {name}, with or without a prefix: it is not a checkpoint of this family",
                self.path.display()
            )
        };
        Ok(self.reader_under(prefix, names))
    }

    /// Fails if a file has changed since it was opened: what was read of it may be a mixture.
    ///
    /// # Errors
    /// If one has; the sentence names it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files().iter().try_for_each(|file| file.check())
    }

    /// The files, each once.
    fn files(&self) -> Vec<Arc<Mapped>> {
        let mut files: Vec<Arc<Mapped>> = Vec::new();
        for entry in self.tensors.values() {
            if !files.iter().any(|file| Arc::ptr_eq(file, &entry.source)) {
                files.push(entry.source.clone());
            }
        }
        files
    }

    /// Starts reading tensors whose prefix is known.
    pub fn reader_under(&self, prefix: &'static str, names: &'static Names) -> Reader<'_> {
        let (engine, report, seen, counted) = Default::default();
        Reader { checkpoint: self, names, prefix, engine, report, seen, counted }
    }
}

/// Maps one safetensors file: where each of its tensors lies.
fn map(path: &Path) -> Result<BTreeMap<String, Entry>> {
    let shown = path.display();
    let file = match disk::open(path) {
        Ok(file) => file,
        Err(error) => bail!("cannot read {shown} ({error}); download the model again"),
    };
    let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
    // SAFETY: the map is only read, as bytes, of which every value is valid. Another process can change them, or truncate
    // the file, after which reading the map ends this process with SIGBUS but cannot make it read outside of the map.
    // `Mapped::check` notices both before and after each use of the map.
    let map = match unsafe { Mmap::map(&file) } {
        Ok(map) => map,
        Err(error) => bail!("cannot map {shown} into memory ({error}); fetch the model again"),
    };
    let (header, metadata) = match SafeTensors::read_metadata(&map) {
        Ok(parsed) => parsed,
        Err(_) if map.starts_with(b"version https://git-lfs") => {
            bail!(
                "{shown} is not a safetensors file but a pointer of git-lfs; run git lfs pull in its folder"
            )
        }
        Err(error) => bail!("{shown} {}; fetch the file again", describe(&error, map.len())),
    };
    let data = header + size_of::<u64>();
    let source = Mapped { path: path.to_owned(), file, map, modified };
    let source = Arc::new(source);
    let entry = |info: &TensorInfo| {
        let (start, end) = info.data_offsets;
        let (shape, bytes) = (info.shape.clone(), data + start..data + end);
        Entry { dtype: info.dtype, shape, source: source.clone(), bytes }
    };
    Ok(metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect())
}

/// The shard of each tensor, by the `weight_map` of an index.
///
/// # Errors
/// If the file does not hold such a map, or a shard is no plain file name.
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

impl Mapped {
    /// Whether the file is still the one that was opened. A file that was replaced under its name is.
    fn check(&self) -> Result<()> {
        let shown = self.path.display();
        match self.file.metadata() {
            Ok(now) if now.len() != self.map.len() as u64 || now.modified().ok() != self.modified => bail!(
                "{shown} was changed while it was in use; run the command again, and replace files of a model by \
                 renaming new ones"
            ),
            Ok(_) => Ok(()),
            Err(error) => bail!("cannot read {shown} any more ({error}); run the command again"),
        }
    }

    /// Reads the bytes from `start` on.
    #[cfg(unix)]
    fn read(&self, start: usize, into: &mut [u8]) -> Result<()> {
        match std::os::unix::fs::FileExt::read_exact_at(&self.file, into, start as u64) {
            Ok(()) => Ok(()),
            Err(error) => bail!("cannot read {} ({error}); fetch the model again", self.path.display()),
        }
    }

    /// Reads the bytes from `start` on.
    #[cfg(not(unix))]
    fn read(&self, start: usize, into: &mut [u8]) -> Result<()> {
        match self.map.get(start..start + into.len()) {
            Some(bytes) => Ok(into.copy_from_slice(bytes)),
            None => bail!("cannot read {}; fetch the model again", self.path.display()),
        }
    }
}

impl Entry {
    /// Reads the numbers from number `first` on, and says how many of them are NaN or infinite.
    fn read(&self, format: Stored, first: usize, numbers: &mut [f32]) -> Result<usize> {
        let start = self.bytes.start + first * format.size();
        match format {
            Stored::F32 => {
                self.source.read(start, bytemuck::cast_slice_mut(numbers))?;
                numbers.iter_mut().for_each(|x| *x = f32::from_le_bytes(x.to_ne_bytes()));
            }
            _ => {
                let mut bytes = vec![0; numbers.len() * format.size()];
                self.source.read(start, &mut bytes)?;
                format.decode(&bytes, numbers, |out, x| *out = x);
            }
        }
        // Such a count fits into 32 bits, which are added up faster.
        let not_finite: u32 = numbers.iter().map(|x| u32::from(!x.is_finite())).sum();
        Ok(not_finite as usize)
    }
}

/// Reads the tensors of a checkpoint by canonical name and keeps the report.
pub struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    names: &'static Names,
    prefix: &'static str,
    engine: Engine,
    report: Report,
    seen: BTreeSet<String>,
    /// The tensors, or their parts by their first byte, whose NaN and infinite values are counted: each engine reads them.
    counted: BTreeSet<(String, usize)>,
}

impl Reader<'_> {
    /// Reads what comes next for another engine.
    pub fn turn_to(&mut self, engine: Engine) {
        self.engine = engine;
    }

    /// What became of the checkpoint's tensors, those that nobody asked for included.
    pub fn finish(mut self) -> Report {
        let names = self.checkpoint.tensors.keys();
        self.report.unused = names.filter(|name| !self.seen.contains(*name)).cloned().collect();
        let left_out = self.report.unused.iter().filter(|name| self.names.knows(self.prefix, name));
        self.report.left_out = left_out.cloned().collect();
        self.report
    }

    /// What the checkpoint calls a tensor, if it lacks it.
    pub fn lacks(&self, canonical: &str) -> Option<String> {
        let name = self.names.place(self.prefix, canonical).name;
        (!self.checkpoint.tensors.contains_key(&name)).then_some(name)
    }

    /// The entry for a canonical name if it can be used as a tensor of `shape`; else a note in the report.
    fn entry(&mut self, canonical: &str, shape: &[usize]) -> Option<(String, Entry, Stored)> {
        let Place { mut name, part: (index, parts) } = self.names.place(self.prefix, canonical);
        // As the first BERT checkpoints call them, which are from TensorFlow.
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
        let problem = match self.checkpoint.tensors.get(&name) {
            None => Problem::Missing { name, expected },
            Some(entry) => {
                let first = self.seen.insert(name.clone());
                match stored(entry.dtype) {
                    _ if entry.shape != expected => {
                        Problem::Misshapen { name, found: entry.shape.clone(), expected }
                    }
                    None => Problem::Mistyped { name, found: format!("{:?}", entry.dtype) },
                    Some(format) => {
                        if first {
                            self.report.used.push((name.clone(), expected, format!("{:?}", entry.dtype)));
                        }
                        let mut entry = entry.clone();
                        let length = entry.bytes.len() / parts;
                        entry.bytes.start += index * length;
                        entry.bytes.end = entry.bytes.start + length;
                        return Some((name, entry, format));
                    }
                }
            }
        };
        // A tensor of several parts is asked for once a part.
        if !self.report.problems.contains(&problem) {
            self.report.problems.push(problem);
        }
        None
    }

    fn note_not_finite(&mut self, name: String, start: usize, count: usize) {
        if count == 0 || !self.counted.insert((name.clone(), start)) {
            return;
        }
        // A tensor of several parts is read once a part.
        match self.report.not_finite.iter_mut().find(|(noted, _)| *noted == name) {
            Some((_, noted)) => *noted += count,
            None => self.report.not_finite.push((name, count)),
        }
    }
}

impl Parameters for Reader<'_> {
    fn tensor(&mut self, canonical: &str, shape: &[usize]) -> Result<Tensor> {
        let Some((name, entry, format)) = self.entry(canonical, shape) else { return placeholder(shape) };
        let mut values = vec![0f32; shape.iter().product()];
        let count = (values.par_chunks_mut(CHUNK).with_min_len(CHUNKS).enumerate())
            .map(|(i, numbers)| entry.read(format, i * CHUNK, numbers))
            .sum::<Result<_>>()?;
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(self.engine.place(Tensor::from_vec(values, shape, &Device::Cpu)?)?)
    }

    fn matrix(&mut self, canonical: &str, rows: usize, columns: usize) -> Result<Matrix> {
        let Engine::Cpu(compute) = self.engine else {
            return Ok(Matrix::new(self.tensor(canonical, &[rows, columns])?, &self.engine)?);
        };
        let Some((name, entry, format)) = self.entry(canonical, &[rows, columns]) else {
            return Ok(Matrix::new(placeholder(&[rows, columns])?, &self.engine)?);
        };
        let count = AtomicUsize::new(0);
        let matrix = Matrix::read(rows, columns, compute, |first, numbers| {
            count.fetch_add(entry.read(format, first, numbers)?, Ordering::Relaxed);
            Ok::<(), Error>(())
        })?;
        self.note_not_finite(name, entry.bytes.start, count.into_inner());
        Ok(matrix)
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn watch(&self) -> Option<Watch> {
        let files = self.checkpoint.files();
        Some(Arc::new(move || files.iter().try_for_each(|file| file.check())))
    }

    fn optional(&mut self, canonical: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        match self.lacks(canonical) {
            None => self.tensor(canonical, shape).map(Some),
            Some(_) => Ok(None),
        }
    }

    fn table(&mut self, canonical: &str, rows: usize, width: usize) -> Result<Table> {
        if !matches!(self.engine, Engine::Cpu(_)) {
            return Ok(Table::resident(self.tensor(canonical, &[rows, width])?)?);
        }
        let Some((name, entry, format)) = self.entry(canonical, &[rows, width]) else {
            return Ok(Table::resident(placeholder(&[rows, width])?)?);
        };
        let numbers = rows * width;
        let count = (0..numbers.div_ceil(CHUNK))
            .into_par_iter()
            .with_min_len(CHUNKS)
            .map_init(Vec::new, |buffer, i| {
                buffer.resize(CHUNK.min(numbers - i * CHUNK), 0.0);
                entry.read(format, i * CHUNK, buffer)
            })
            .sum::<Result<_>>()?;
        self.note_not_finite(name, entry.bytes.start, count);
        Ok(Table::stored(entry.source, entry.bytes, format, rows, width)?)
    }
}

fn stored(dtype: Dtype) -> Option<Stored> {
    match dtype {
        Dtype::F64 => Some(Stored::F64),
        Dtype::F32 => Some(Stored::F32),
        Dtype::F16 => Some(Stored::F16),
        Dtype::BF16 => Some(Stored::BF16),
        _ => None,
    }
}

/// What is wrong with a file that does not parse, as the end of a sentence that begins with its name.
fn describe(error: &SafeTensorError, length: usize) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => {
            format!("is not a safetensors file: {length} bytes are too few for a header")
        }
        E::HeaderTooLarge => "is not a safetensors file: its header would be over 100 MB long".into(),
        E::InvalidHeaderLength => {
            format!("is cut short: its header says it is longer than the {length} bytes there are")
        }
        E::InvalidHeader(_) | E::InvalidHeaderDeserialization(_) | E::JsonError(_) => {
            "is corrupt: its header is not valid JSON".into()
        }
        E::MetadataIncompleteBuffer => {
            format!("is cut short or corrupt: its header describes more or less data than its {length} bytes")
        }
        E::InvalidOffset(name) => format!("is corrupt: tensor {name} does not lie where the one before ends"),
        E::TensorInvalidInfo | E::ValidationOverflow | E::MisalignedSlice => {
            "is corrupt: the shape of a tensor does not fit its size in bytes".into()
        }
        _ => "is corrupt: its header cannot be understood".into(),
    }
}
