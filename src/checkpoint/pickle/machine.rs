//! The virtual machine of pickles.

use std::collections::{BTreeMap, HashMap};

use super::state_dict::{Global, Storage};
use super::{Corrupt, PickleError, PickledTensor, Result, Unsupported};

/// Index of a value. Values refer to others by index, so that a value in itself, or deep inside others, costs
/// no recursion.
pub(super) type Id = usize;

#[derive(Debug)]
pub(super) enum Value<'a> {
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

/// The first values of every pickle, so that the opcodes of one byte that push them need no memory for a
/// value.
pub(super) const PLAIN: Id = 0;
const FALSE: Id = 1;
const TRUE: Id = 2;

/// The virtual machine of pickles.
pub(super) struct Unpickler<'a> {
    pub(super) rest: &'a [u8],
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    pub(super) storages: BTreeMap<&'a str, (usize, usize)>,
    /// Values, marks and entries of the memo that may still be made.
    left: usize,
}

fn truncated() -> PickleError {
    Corrupt("is truncated or corrupt: its pickle ends early".into())
}

pub(super) fn malformed(what: &str) -> PickleError {
    Corrupt(format!("is corrupt: its pickle {what}"))
}

impl<'a> Unpickler<'a> {
    pub(super) fn new(pickle: &'a [u8], max_values: usize) -> Self {
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

    /// Counts a value, a mark or an entry of the memo: a byte of a pickle may make one that takes 50 bytes of
    /// memory.
    fn count(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Unsupported("has a pickle of more values than its tensors need, and is not read".into())
        })?;
        Ok(())
    }

    /// Runs the opcodes until STOP and returns the result.
    pub(super) fn run(&mut self) -> Result<Id> {
        loop {
            let [opcode] = self.array()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
        }
    }

    /// Runs an opcode.
    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // PROTO and FRAME: nothing that the opcodes do not say themselves.
            0x80 => self.array::<1>().map(drop),
            0x95 => self.array::<8>().map(drop),
            // NONE, NEWTRUE, NEWFALSE, BINFLOAT
            b'N' => self.push_id(PLAIN),
            0x88 => self.push_id(TRUE),
            0x89 => self.push_id(FALSE),
            b'G' => {
                self.array::<8>()?;
                self.push_id(PLAIN)
            }
            // BININT1, BININT2, BININT, LONG1
            b'K' => {
                let [x] = self.array()?;
                self.push(Value::Int(x.into()))
            }
            b'M' => {
                let x = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(x.into()))
            }
            b'J' => {
                let x = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(x.into()))
            }
            0x8a => self.long(),
            // SHORT_BINUNICODE, BINUNICODE
            0x8c => {
                let [length] = self.array()?;
                self.text(length.into())
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length as usize)
            }
            // MARK
            b'(' => {
                self.count()?;
                self.marks.push(self.stack.len());
                Ok(())
            }
            // EMPTY_TUPLE, EMPTY_LIST, EMPTY_DICT, TUPLE1 to TUPLE3, TUPLE
            b')' | b']' => self.push(Value::Sequence(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84)),
            b't' => {
                let items = self.items()?;
                self.push(Value::Sequence(items))
            }
            _ => self.change(opcode),
        }
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

    pub(super) fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id]
    }

    pub(super) fn push(&mut self, value: Value<'a>) -> Result<()> {
        self.values.push(value);
        self.push_id(self.values.len() - 1)
    }

    pub(super) fn push_id(&mut self, id: Id) -> Result<()> {
        self.count()?;
        self.stack.push(id);
        Ok(())
    }

    /// Takes the value on top, which must be above the last mark.
    pub(super) fn pop(&mut self) -> Result<Id> {
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
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| malformed("has a text that is not UTF-8"))
}
