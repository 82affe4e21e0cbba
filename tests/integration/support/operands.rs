//! Operands for tests that compare two implementations of an operation.

use candle_core::Tensor;
use sconce::ops::self_check;
pub use sconce::ops::self_check::cu_seqlens;

/// [`self_check::tensor`].
pub fn tensor(seed: usize, shape: &[usize]) -> Tensor {
    self_check::tensor(seed, shape).expect("a small tensor")
}

/// All elements of an f32 tensor in row-major order.
pub fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|t| t.to_vec1()).expect("a tensor of f32")
}

/// Their bits: -0 is not 0.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    flat(tensor).into_iter().map(f32::to_bits).collect()
}
