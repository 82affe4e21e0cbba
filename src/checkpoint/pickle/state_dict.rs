//! What the pickle of a state dict names: storages, and tensors in them.

use safetensors::Dtype;

use super::machine::{Id, PLAIN, Unpickler, Value, malformed};
use super::{PickledTensor, Result, Unsupported};

/// Maximum number of dimensions of a tensor.
const MAX_RANK: usize = 8;
/// Characters of a name that a message shows.
const SHOWN: usize = 60;

/// What a state dict names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    StorageType(Dtype),
}

/// The elements of one or several tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    pub(super) dtype: Dtype,
    pub(super) name: &'a str,
    pub(super) elements: usize,
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

impl<'a> Unpickler<'a> {
    pub(super) fn global(&mut self, module: &str, name: &str) -> Result<()> {
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

    /// The storage of a persistent id `("storage", class, name, device, number of elements)`; before PyTorch
    /// 1.6 also with `None`, and before 0.4 with the part of another storage that it is.
    pub(super) fn storage(&self, id: Id) -> Option<Storage<'a>> {
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

    pub(super) fn reduce(&mut self) -> Result<()> {
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
