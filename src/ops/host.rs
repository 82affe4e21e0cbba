//! Access to the elements of tensors on the CPU.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};

/// Whether the CPU path of an operation takes this tensor: it is f32 and on the CPU.
pub(super) fn is_host_f32(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

/// The elements of a contiguous f32 tensor on the CPU. `G` is the read guard of the tensor's storage, whose
/// type candle does not name.
struct HostSlice<G> {
    storage: G,
    range: Range<usize>,
}

impl<G: Deref<Target = Storage>> Deref for HostSlice<G> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.range.clone()],
            _ => unreachable!("`host_slice` has checked the storage, and the guard keeps it unchanged"),
        }
    }
}

/// The elements of a contiguous f32 tensor on the CPU. The result holds the read lock of the tensor's
/// storage.
///
/// # Errors
/// If the tensor is not contiguous, not f32 or not on the CPU.
pub(super) fn host_slice(tensor: &Tensor) -> Result<impl Deref<Target = [f32]>> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(_)), Some((start, end))) => {
            Ok(HostSlice { storage, range: start..end })
        }
        _ => candle_core::bail!(
            "the operand must be contiguous f32 on the CPU, found {:?} {:?} on {:?}",
            tensor.dtype(),
            tensor.dims(),
            tensor.device().location()
        ),
    }
}

/// [`host_slice`] of an optional tensor.
///
/// # Errors
/// Those of [`host_slice`].
pub(super) fn optional_host_slice(tensor: Option<&Tensor>) -> Result<Option<impl Deref<Target = [f32]>>> {
    tensor.map(host_slice).transpose()
}

/// The elements of a contiguous f32 tensor on the CPU, inside a candle operation that changes them in place.
///
/// # Errors
/// If the tensor is not contiguous or not f32.
pub(super) fn host_slice_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (layout.contiguous_offsets(), storage) {
        (Some((start, end)), CpuStorage::F32(values)) => Ok(&mut values[start..end]),
        _ => candle_core::bail!("an operation in place needs a contiguous f32 tensor"),
    }
}
