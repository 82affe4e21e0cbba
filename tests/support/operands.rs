//! Operands of operations, for those who compare two ways to compute one.

use candle_core::{Device, Tensor};
use sconce::kernels::matmul::Compute;
use sconce::ops::attention::{Attention, Visible};

/// Numbers that are the same in every run: a Weyl sequence over (-1, 1).
pub fn tensor(seed: usize, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i + 1) * (2 * seed + 1)) as f64 * 0.618_033_988_749_895 % 1.0;
    let values: Vec<f32> = (0..count).map(|i| 2.0 * value(i) as f32 - 1.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// All numbers, in order.
pub fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Where texts of these lengths begin, and the end of the last.
pub fn offsets(lengths: &[usize]) -> Vec<usize> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Plain attention over heads of so many columns.
pub fn plain<'a>(heads: usize, size: usize) -> Attention<'a> {
    Attention {
        heads,
        key_value_heads: heads,
        scale: 1.0 / (size as f64).sqrt(),
        bias: None,
        relative: None,
        visible: Visible::ALL,
        compute: Compute::F32,
        mix_before: None,
        mix_after: None,
        tiles: None,
    }
}
