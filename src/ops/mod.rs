//! Operations of the encoder. Each file holds one operation: what the stack calls, the CPU path over
//! [`crate::kernels`], the launch of a kernel on a GPU where there is one, and a plain candle `reference`, which runs
//! everything else and which tests compare with.

pub mod activation;
pub mod add_norm;
pub mod attention;
pub mod engine;
pub mod gpu;
pub mod linear;
pub mod lookup;
pub mod memory;
pub mod pooling;
pub mod rotary;

use std::cell::RefCell;
use std::thread::LocalKey;

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};

use crate::kernels::matmul::{Blocks, Converted};

/// The elements of a contiguous `f32` tensor on the CPU.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => candle_core::bail!("the operand has to be contiguous f32"),
    }
}

/// The same, to be written.
fn elements_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (layout.contiguous_offsets(), storage) {
        (Some((start, end)), CpuStorage::F32(data)) => Ok(&mut data[start..end]),
        _ => candle_core::bail!("the operand has to be contiguous f32"),
    }
}

/// Calls `f` with the elements of a contiguous tensor on the CPU.
fn on_slice<T>(x: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(elements(storage, layout)?),
        _ => candle_core::bail!("the operand has to lie on the CPU"),
    }
}

/// The same where there may be no tensor.
fn on_slice_of<T>(x: Option<&Tensor>, f: impl FnOnce(Option<&[f32]>) -> Result<T>) -> Result<T> {
    match x {
        Some(x) => on_slice(x, |x| f(Some(x))),
        None => f(None),
    }
}

/// Refuses offsets that do not divide `tokens` tokens into sequences: `offsets[i]..offsets[i + 1]` are the tokens of
/// sequence `i`.
fn check_offsets(offsets: &[usize], tokens: usize) -> Result<()> {
    if offsets.first() != Some(&0) || offsets.last() != Some(&tokens) || !offsets.is_sorted() {
        candle_core::bail!(
            "offsets have to begin with 0, not decrease and end with the number of tokens, {tokens}"
        );
    }
    Ok(())
}

/// Refuses indices of rows that a table of `rows` rows does not have.
fn check_indices(indices: &[u32], rows: usize) -> Result<()> {
    match indices.iter().find(|index| **index as usize >= rows) {
        Some(index) => candle_core::bail!("row {index} of a table of {rows} rows"),
        None => Ok(()),
    }
}

/// Whether the CPU path of an operation serves this tensor.
fn on_cpu(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

/// Rows that one task of the thread pool works on: enough that handing them out costs nothing.
const ROWS_PER_TASK: usize = 16;

/// Memory that a thread uses again and again.
trait Scratch: Default + 'static {
    /// Where the thread keeps it.
    const KEPT: &'static LocalKey<RefCell<Self>>;
}

/// Calls `f` with this thread's scratch of a type; what is in it is left over from the last call. A call inside of a call,
/// as when the thread takes over another task while it waits, has one of its own.
fn scratch<S: Scratch, T>(f: impl FnOnce(&mut S) -> T) -> T {
    let mut scratch = S::KEPT.take();
    let result = f(&mut scratch);
    S::KEPT.set(scratch);
    result
}

thread_local! {
    static CONVERTED: RefCell<Converted> = RefCell::default();
}

impl Scratch for Converted {
    const KEPT: &'static LocalKey<RefCell<Self>> = &CONVERTED;
}

/// A matrix that `write` writes; nothing is written twice.
///
/// # Errors
/// If its elements cannot be counted.
///
/// # Safety
/// `write` writes every number.
unsafe fn written(rows: usize, columns: usize, write: impl FnOnce(&Blocks)) -> Result<Vec<f32>> {
    let Some(count) = rows.checked_mul(columns) else {
        candle_core::bail!("a result of {rows} rows and {columns} columns is too large")
    };
    let mut numbers = Vec::with_capacity(count);
    write(&Blocks::unwritten(numbers.spare_capacity_mut(), rows, columns));
    // SAFETY: the capacity is at least `count`, and by the contract of this function `write` has initialized the first
    // `count` elements.
    unsafe { numbers.set_len(count) };
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_whose_elements_cannot_be_counted_is_refused() {
        // SAFETY: nothing is returned, so there is nothing to be written.
        let result = unsafe { written(1 << 32, 1 << 32, |_| panic!("there is no memory to write to")) };
        assert!(result.unwrap_err().to_string().contains("is too large"));
    }
}
