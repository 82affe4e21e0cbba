//! Memory of operations on the CPU: buffers that a thread reuses, and output that is written once.

use std::cell::RefCell;
use std::thread::LocalKey;

use candle_core::Result;

use crate::kernels::gemm::{LhsBuffer, OutputMatrix};

/// Rows per rayon task of an elementwise operation: enough that the scheduling overhead does not show.
pub(super) const ROWS_PER_TASK: usize = 16;

/// A buffer that a thread reuses from call to call.
pub(super) trait Scratch: Default + 'static {
    /// The buffer of the current thread, once it has one.
    const THREAD_LOCAL: &'static LocalKey<RefCell<Option<Box<Self>>>>;
}

/// Calls `f` with this thread's buffer, which holds the values of the last call. A nested call, as when rayon
/// runs another task on this thread while a task waits, gets a buffer of its own.
pub(super) fn with_scratch<S: Scratch, T>(f: impl FnOnce(&mut S) -> T) -> T {
    let mut scratch = S::THREAD_LOCAL.take().unwrap_or_default();
    let result = f(&mut scratch);
    S::THREAD_LOCAL.set(Some(scratch));
    result
}

/// The first `count` values of a buffer, which grows to hold them and never shrinks: for the next longer
/// batch it would be zeroed again. The values are those of earlier calls.
pub(super) fn at_least(buffer: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if buffer.len() < count {
        buffer.resize(count, 0.0);
    }
    &mut buffer[..count]
}

thread_local! {
    static LHS_BUFFER: RefCell<Option<Box<LhsBuffer>>> = const { RefCell::new(None) };
}

impl Scratch for LhsBuffer {
    const THREAD_LOCAL: &'static LocalKey<RefCell<Option<Box<Self>>>> = &LHS_BUFFER;
}

/// Allocates a row-major `(rows, columns)` matrix and lets `write` fill it; the memory is not zeroed first.
///
/// # Errors
/// If the number of elements overflows.
///
/// # Safety
/// `write` initialises every element.
pub(super) unsafe fn new_matrix(
    rows: usize,
    columns: usize,
    write: impl FnOnce(&OutputMatrix),
) -> Result<Vec<f32>> {
    let Some(count) = rows.checked_mul(columns) else {
        candle_core::bail!("a result of {rows} rows and {columns} columns is too large")
    };
    let mut values = Vec::with_capacity(count);
    write(&OutputMatrix::uninit(values.spare_capacity_mut(), rows, columns));
    // SAFETY: the capacity is at least `count`, and `write` has initialised the first `count` elements by the
    // contract of this function.
    unsafe { values.set_len(count) };
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_whose_size_overflows_is_an_error() {
        // SAFETY: an error is returned before anything has to be written.
        let result = unsafe { new_matrix(1 << 32, 1 << 32, |_| panic!("there is no memory to write to")) };
        assert!(result.unwrap_err().to_string().contains("is too large"));
    }
}
