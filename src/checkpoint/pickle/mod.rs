//! Reads the pickle of a PyTorch state dict. Nothing is executed: a pickle may hold dicts, tensors and plain
//! values, and every other function or class that it names is an error. Opcodes as in Python's `pickletools`,
//! protocols 2 to 5.

mod machine;
mod state_dict;

use std::collections::BTreeMap;

use safetensors::Dtype;

use machine::{Id, Unpickler, Value, malformed};

/// Why a pickle is not read. Each reason is the predicate of a sentence whose subject is the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PickleError {
    /// It is damaged.
    Corrupt(String),
    /// It is, or may be, intact, but holds more than tensors, or tensors of a form that is not read.
    Unsupported(String),
}

use PickleError::{Corrupt, Unsupported};

type Result<T> = std::result::Result<T, PickleError>;

/// A tensor of a state dict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PickledTensor<'a> {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The distance of consecutive elements along each axis, in elements; `None` for row-major order without
    /// gaps.
    pub strides: Option<Vec<usize>>,
    /// The name of its storage.
    pub storage: &'a str,
    /// Offset of the first element in the storage, in elements.
    pub offset: usize,
    /// Number of elements of the storage from `offset` to the last one of the tensor.
    pub span: usize,
}

/// A state dict.
pub(super) struct StateDict<'a> {
    /// The tensors by name. Other plain values are left out.
    pub tensors: BTreeMap<&'a str, PickledTensor<'a>>,
    /// The storages by name: the size of an element, and the number of elements.
    pub storages: BTreeMap<&'a str, (usize, usize)>,
    /// The bytes after the pickle.
    pub rest: &'a [u8],
}

/// Reads the pickle of a state dict, which may use `max_values` values.
pub(super) fn read_state_dict(pickle: &[u8], max_values: usize) -> Result<StateDict<'_>> {
    let mut unpickler = Unpickler::new(pickle, max_values);
    let root = unpickler.run()?;
    let Value::Dict(entries) = unpickler.value(root) else {
        return Err(Unsupported("holds no state dict, a dict from names to tensors".into()));
    };
    let tensor = |&(key, value): &(Id, Id)| match (unpickler.value(key), unpickler.value(value)) {
        (Value::Text(name), Value::Tensor(tensor)) => Some((*name, (**tensor).clone())),
        _ => None,
    };
    let tensors = entries.iter().filter_map(tensor).collect();
    Ok(StateDict { tensors, storages: unpickler.storages, rest: unpickler.rest })
}

/// What PyTorch wrote before a state dict up to release 1.5.
pub(super) struct LegacyHeader<'a> {
    /// Whether numbers are little-endian.
    pub is_little_endian: bool,
    /// The bytes after it.
    pub rest: &'a [u8],
}

/// The number that a file of PyTorch before 1.6 begins with, as a pickle has it.
const LEGACY_MAGIC: &[u8] = &[0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The version of that format.
const LEGACY_VERSION: i64 = 1001;
/// Values of a pickle beside the state dict.
const MAX_HEADER_VALUES: usize = 1 << 10;

/// Whether a file begins as those of PyTorch before 1.6 do.
pub(super) fn is_legacy(file: &[u8]) -> bool {
    file.first() == Some(&0x80) && file.get(2..2 + LEGACY_MAGIC.len()) == Some(LEGACY_MAGIC)
}

/// Reads the three pickles before a state dict: the number, the version, and the machine.
pub(super) fn read_legacy_header(file: &[u8]) -> Result<LegacyHeader<'_>> {
    let mut rest = file;
    let mut next = || -> Result<(Unpickler<'_>, Id)> {
        let mut unpickler = Unpickler::new(rest, MAX_HEADER_VALUES);
        let root = unpickler.run()?;
        rest = unpickler.rest;
        Ok((unpickler, root))
    };
    next()?;
    let (unpickler, version) = next()?;
    if !matches!(unpickler.value(version), Value::Int(LEGACY_VERSION)) {
        return Err(Unsupported(format!(
            "has a version of the format of PyTorch before 1.6 other than {LEGACY_VERSION}, which is not read"
        )));
    }
    let (unpickler, machine) = next()?;
    let Value::Dict(entries) = unpickler.value(machine) else {
        return Err(malformed("describes no machine"));
    };
    let is_little_endian = entries.iter().any(|(key, value)| {
        matches!(unpickler.value(*key), Value::Text("little_endian"))
            && matches!(unpickler.value(*value), Value::Bool(true))
    });
    Ok(LegacyHeader { is_little_endian, rest })
}

/// Reads a pickled list of at most `max_values` texts, and returns the bytes after it, too.
pub(super) fn read_texts(pickle: &[u8], max_values: usize) -> Result<(Vec<&str>, &[u8])> {
    let mut unpickler = Unpickler::new(pickle, max_values);
    let root = unpickler.run()?;
    let Value::Sequence(items) = unpickler.value(root) else {
        return Err(malformed("has no list of storages"));
    };
    let text = |item: &Id| match unpickler.value(*item) {
        Value::Text(text) => Ok(*text),
        _ => Err(malformed("names a storage by something else than a text")),
    };
    Ok((items.iter().map(text).collect::<Result<_>>()?, unpickler.rest))
}
