//! The shapes and dtypes that the CUDA kernels of this crate support; candle's operations compute all others.
//! No other file decides it.

use candle_core::DType;

/// Head dims that the attention kernel is compiled for.
pub const HEAD_DIMS: [usize; 4] = [32, 64, 96, 128];

/// The properties of an attention layer that decide whether the kernel supports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionVariant {
    /// Head dim of queries and keys.
    pub qk_head_dim: usize,
    /// Head dim of values.
    pub v_head_dim: usize,
    /// Whether something is added to the scores, or they are bounded.
    pub changes_scores: bool,
    /// Whether scores or attention weights are mixed across heads.
    pub has_talking_heads: bool,
}

/// Whether cuBLAS and the kernel in `linear.cu` compute a linear layer of these widths. In f32 cuBLAS would
/// round the operands to TF32; widths that are not multiples of 8 are not aligned as it requires.
pub fn supports_linear(dtype: DType, widths: &[usize]) -> bool {
    is_16_bit(dtype) && widths.iter().all(|width| width.is_multiple_of(8))
}

/// Whether the kernel in `attention.cu` computes this attention: in 16 bits, with equal head dims that it is
/// compiled for, and with nothing but a window between the two matrix products.
pub fn supports_attention(dtype: DType, attention: &AttentionVariant) -> bool {
    let AttentionVariant { qk_head_dim, v_head_dim, changes_scores, has_talking_heads } = *attention;
    let is_plain = !changes_scores && !has_talking_heads;
    is_16_bit(dtype) && is_plain && qk_head_dim == v_head_dim && HEAD_DIMS.contains(&qk_head_dim)
}

/// Whether a dtype is that of the tensor cores, for which there are GEMM and attention kernels.
pub(in crate::ops) fn is_16_bit(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
