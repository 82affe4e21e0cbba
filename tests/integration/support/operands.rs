//! Operands for tests that compare two implementations of an operation.

use candle_core::{Device, Tensor};
use sconce::kernels::gemm::GemmType;
use sconce::ops::attention::{Attention, AttentionWindow};

/// A tensor of deterministic values in (−1, 1): a Weyl sequence.
pub fn tensor(seed: usize, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i + 1) * (2 * seed + 1)) as f64 * 0.618_033_988_749_895 % 1.0;
    let values: Vec<f32> = (0..count).map(|i| 2.0 * value(i) as f32 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// All elements of an f32 tensor in row-major order.
pub fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|t| t.to_vec1()).expect("a tensor of f32")
}

/// Their bits: -0 is not 0.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    flat(tensor).into_iter().map(f32::to_bits).collect()
}

/// The `cu_seqlens` of sequences of these lengths.
pub fn cu_seqlens(lengths: &[usize]) -> Vec<usize> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Attention without biases, window or projections.
pub fn plain<'a>(heads: usize, head_dim: usize) -> Attention<'a> {
    Attention {
        heads,
        key_value_heads: heads,
        scale: 1.0 / (head_dim as f64).sqrt(),
        bias: None,
        relative: None,
        window: AttentionWindow::FULL,
        key_lengths: None,
        gemm_type: GemmType::F32,
        pre_softmax: None,
        post_softmax: None,
        query_tiles: None,
        queries: None,
    }
}
