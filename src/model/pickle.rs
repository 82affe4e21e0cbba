//! Reads the pickle of a PyTorch state dict. Nothing is executed: a pickle may hold dicts, tensors and plain values, and every other
//! function or class that it names is an error. Opcodes as in Python's `pickletools`, protocols 2 to 5.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;

/// Maximum number of dimensions of a tensor.
const MAX_RANK: usize = 8;
/// Characters of a name that a message shows.
const SHOWN: usize = 60;

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
    /// The distance of consecutive elements along each axis, in elements; `None` for row-major order without gaps.
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

/// Index of a value. Values refer to others by index, so that a value in itself, or deep inside others, costs no recursion.
type Id = usize;

#[derive(Debug)]
enum Value<'a> {
    /// `None`, a float or a large integer, which no tensor needs.
    Plain,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    /// A tuple or a list.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage<'a>),
    /// Boxed, because it is much larger than the other values.
    Tensor(Box<PickledTensor<'a>>),
}

/// What a state dict names.
#[derive(Debug, Clone, Copy)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    StorageType(Dtype),
}

/// The elements of one or several tensors.
#[derive(Debug, Clone, Copy)]
struct Storage<'a> {
    dtype: Dtype,
    name: &'a str,
    elements: usize,
}

/// Names of the storage classes of torch.
const STORAGES: &[(&str, Dtype)] = &[
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::BF16),
    ("DoubleStorage", Dtype::F64),
    ("LongStorage", Dtype::I64),
    ("IntStorage", Dtype::I32),
    ("ShortStorage", Dtype::I16),
    ("CharStorage", Dtype::I8),
    ("ByteStorage", Dtype::U8),
    ("BoolStorage", Dtype::BOOL),
];

/// The first values of every pickle, so that the opcodes of one byte that push them need no memory for a value.
const PLAIN: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;

/// The virtual machine of pickles.
struct Unpickler<'a> {
    rest: &'a [u8],
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    storages: BTreeMap<&'a str, (usize, usize)>,
    /// Values, marks and entries of the memo that may still be made.
    left: usize,
}

fn truncated() -> PickleError {
    Corrupt("is truncated or corrupt: its pickle ends early".into())
}

fn malformed(what: &str) -> PickleError {
    Corrupt(format!("is corrupt: its pickle {what}"))
}

impl<'a> Unpickler<'a> {
    fn new(pickle: &'a [u8], max_values: usize) -> Self {
        Unpickler {
            rest: pickle,
            values: vec![Value::Plain, Value::Bool(false), Value::Bool(true)],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            storages: BTreeMap::new(),
            left: max_values,
        }
    }

    /// Counts a value, a mark or an entry of the memo: a byte of a pickle may make one that takes 50 bytes of memory.
    fn count(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Unsupported("has a pickle of more values than its tensors need, and is not read".into())
        })?;
        Ok(())
    }

    /// Runs the opcodes until STOP and returns the result.
    fn run(&mut self) -> Result<Id> {
        loop {
            let [opcode] = self.array()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO and FRAME: nothing that the opcodes do not say themselves.
            0x80 => return self.array::<1>().map(drop),
            0x95 => return self.array::<8>().map(drop),
            // NONE, NEWTRUE, NEWFALSE, BINFLOAT
            b'N' => return self.push_id(PLAIN),
            0x88 => return self.push_id(TRUE),
            0x89 => return self.push_id(FALSE),
            b'G' => {
                self.array::<8>()?;
                return self.push_id(PLAIN);
            }
            // BININT1, BININT2, BININT, LONG1
            b'K' => {
                let [x] = self.array()?;
                return self.push(Value::Int(x.into()));
            }
            b'M' => {
                let x = u16::from_le_bytes(self.array()?);
                return self.push(Value::Int(x.into()));
            }
            b'J' => {
                let x = i32::from_le_bytes(self.array()?);
                return self.push(Value::Int(x.into()));
            }
            0x8a => self.long()?,
            // SHORT_BINUNICODE, BINUNICODE
            0x8c => {
                let [length] = self.array()?;
                self.text(length.into())?;
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length as usize)?;
            }
            b'(' => {
                self.count()?;
                self.marks.push(self.stack.len());
            }
            // EMPTY_TUPLE, EMPTY_LIST, EMPTY_DICT, TUPLE1 to TUPLE3, TUPLE
            b')' | b']' => return self.push(Value::Sequence(Vec::new())),
            b'}' => return self.push(Value::Dict(Vec::new())),
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b't' => {
                let items = self.items()?;
                return self.push(Value::Sequence(items));
            }
            _ => return self.change(opcode),
        }
        Ok(())
    }

    /// The opcodes that use or change values.
    fn change(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' => {
                let [slot] = self.array()?;
                self.put(slot.into())
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.put(slot)
            }
            0x94 => self.put(self.memo.len() as u32),
            b'h' => {
                let [slot] = self.array()?;
                self.get(slot.into())
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.get(slot)
            }
            // APPEND, APPENDS, SETITEM, SETITEMS
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])
            }
            b'e' => {
                let items = self.items()?;
                self.append(items)
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])
            }
            b'u' => {
                let items = self.items()?;
                self.set_items(&items)
            }
            // GLOBAL, STACK_GLOBAL, BINPERSID, REDUCE
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.value(module), self.value(name)) {
                    (&Value::Text(module), &Value::Text(name)) => self.global(module, name),
                    _ => Err(malformed("names a class by something else than a text")),
                }
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id).ok_or_else(|| malformed("has a malformed storage"))?;
                let size = storage.dtype.bitsize() / 8;
                if *self.storages.entry(storage.name).or_insert((size, storage.elements))
                    != (size, storage.elements)
                {
                    return Err(malformed("gives a storage two sizes"));
                }
                self.push(Value::Storage(storage))
            }
            b'R' => self.reduce(),
            // BUILD: the `_metadata` of a state dict.
            b'b' => {
                self.pop()?;
                match self.top()? {
                    Value::Dict(_) => Ok(()),
                    _ => Err(Unsupported("holds objects with a state of their own, not only tensors".into())),
                }
            }
            other => Err(Unsupported(format!(
                "holds more than tensors, or is corrupt: its pickle has the opcode 0x{other:02x}, which no state dict has"
            ))),
        }
    }

    fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id]
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        self.values.push(value);
        self.push_id(self.values.len() - 1)
    }

    fn push_id(&mut self, id: Id) -> Result<()> {
        self.count()?;
        self.stack.push(id);
        Ok(())
    }

    /// Takes the value on top, which must be above the last mark.
    fn pop(&mut self) -> Result<Id> {
        match self.stack.pop() {
            Some(id) if self.marks.last().is_none_or(|mark| *mark <= self.stack.len()) => Ok(id),
            _ => Err(malformed("takes a value that it does not have")),
        }
    }

    fn top(&mut self) -> Result<&mut Value<'a>> {
        let id = self.stack.last().ok_or_else(|| malformed("changes a value that it does not have"))?;
        Ok(&mut self.values[*id])
    }

    /// Takes the values above the last mark, and the mark.
    fn items(&mut self) -> Result<Vec<Id>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(malformed("has no mark where it needs one")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The text up to the next line feed.
    fn line(&mut self) -> Result<&'a str> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(truncated)?;
        let line = utf8(self.bytes(end)?)?;
        self.array::<1>()?;
        Ok(line)
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let text = utf8(self.bytes(length)?)?;
        self.push(Value::Text(text))
    }

    /// LONG1: an integer of up to 255 bytes, of which 8 are enough for those that count.
    fn long(&mut self) -> Result<()> {
        let [length] = self.array()?;
        let bytes = self.bytes(length.into())?;
        if bytes.len() > 8 {
            return self.push_id(PLAIN);
        }
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut wide = [sign; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<Id>>>()?;
        items.reverse();
        self.push(Value::Sequence(items))
    }

    fn put(&mut self, slot: u32) -> Result<()> {
        self.count()?;
        let id = self.stack.last().ok_or_else(|| malformed("keeps a value that it does not have"))?;
        self.memo.insert(slot, *id);
        Ok(())
    }

    fn get(&mut self, slot: u32) -> Result<()> {
        let id = *self.memo.get(&slot).ok_or_else(|| malformed("uses a value that it has not kept"))?;
        self.push_id(id)
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        match self.top()? {
            Value::Sequence(list) => {
                list.extend(items);
                Ok(())
            }
            _ => Err(malformed("appends to something else than a list")),
        }
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let (pairs, []) = items.as_chunks::<2>() else { return Err(malformed("has a key without a value")) };
        match self.top()? {
            Value::Dict(entries) => {
                entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            _ => Err(malformed("sets an item of something else than a dict")),
        }
    }

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let storage = STORAGES.iter().find(|(known, _)| *known == name).filter(|_| module == "torch");
        let global = match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", name) if name.ends_with("Storage") => match storage {
                Some((_, dtype)) => Global::StorageType(*dtype),
                None => {
                    let name = shown(name);
                    return Err(Unsupported(format!(
                        "has elements of the type torch.{name}, which is not read"
                    )));
                }
            },
            _ => {
                return Err(Unsupported(format!(
                    "is refused: its pickle names {}, and only tensors are read, no code is run",
                    shown(&format!("{module}.{name}"))
                )));
            }
        };
        self.push(Value::Global(global))
    }

    /// The storage of a persistent id `("storage", class, name, device, number of elements)`; before PyTorch 1.6 also with `None`, and
    /// before 0.4 with the part of another storage that it is.
    fn storage(&self, id: Id) -> Option<Storage<'a>> {
        let Value::Sequence(parts) = self.value(id) else { return None };
        let &([kind, class, name, _, elements] | [kind, class, name, _, elements, PLAIN]) = &parts[..] else {
            return None;
        };
        let (Value::Text("storage"), Value::Global(Global::StorageType(dtype)), Value::Text(name)) =
            (self.value(kind), self.value(class), self.value(name))
        else {
            return None;
        };
        Some(Storage { dtype: *dtype, name, elements: self.size(elements)? })
    }

    fn size(&self, id: Id) -> Option<usize> {
        match self.value(id) {
            Value::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        }
    }

    fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        match self.value(id) {
            Value::Sequence(items) if items.len() <= MAX_RANK => {
                items.iter().map(|item| self.size(*item)).collect()
            }
            _ => None,
        }
    }

    fn reduce(&mut self) -> Result<()> {
        let (args, function) = (self.pop()?, self.pop()?);
        let (Value::Global(function), Value::Sequence(args)) = (self.value(function), self.value(args))
        else {
            return Err(malformed("calls something else than a function"));
        };
        match (function, &args[..]) {
            (Global::OrderedDict, []) => self.push(Value::Dict(Vec::new())),
            (Global::RebuildParameter, &[tensor, ..]) => self.push_id(tensor),
            (Global::RebuildTensor, &[storage, offset, shape, strides, ..]) => {
                let tensor = self.tensor(storage, offset, shape, strides)?;
                self.push(Value::Tensor(Box::new(tensor)))
            }
            _ => Err(malformed("calls a function with too few or too many arguments")),
        }
    }

    fn tensor(&self, storage: Id, offset: Id, shape: Id, strides: Id) -> Result<PickledTensor<'a>> {
        let Value::Storage(storage) = self.value(storage) else {
            return Err(malformed("has a tensor without a storage"));
        };
        let sizes = self.size(offset).zip(self.sizes(shape)).zip(self.sizes(strides));
        let Some(((offset, shape), strides)) =
            sizes.filter(|((_, shape), strides)| shape.len() == strides.len())
        else {
            return Err(malformed("has a tensor with a malformed shape"));
        };
        let elements = shape.iter().try_fold(1, |product: usize, size| product.checked_mul(*size));
        let last = shape.iter().zip(&strides).try_fold(0, |last: usize, (size, stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let span = match elements {
            Some(0) => Some(0),
            _ => last.and_then(|last| last.checked_add(1)),
        };
        let end = span.and_then(|span| offset.checked_add(span));
        // A tensor that repeats elements, which `expand` gives, could have any size.
        let has_all = |elements: &usize| *elements <= storage.elements;
        let (Some(elements), Some(span), Some(_)) =
            (elements.filter(has_all), span, end.filter(|end| *end <= storage.elements))
        else {
            return Err(malformed("has a tensor that is larger than its storage"));
        };
        let mut stride = 1;
        let mut is_row_major = true;
        for (size, found) in shape.iter().zip(&strides).rev() {
            is_row_major &= *size <= 1 || *found == stride || elements == 0;
            stride *= (*size).max(1);
        }
        let strides = Some(strides).filter(|_| !is_row_major);
        Ok(PickledTensor { dtype: storage.dtype, shape, strides, storage: storage.name, offset, span })
    }
}

/// The beginning of a name, for messages.
fn shown(name: &str) -> String {
    name.chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed("has a text that is not UTF-8"))
}
