//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(scale · Q Kᵀ) V` for every sequence and head, with the score biases, windows and talking heads of
//! the variants.

mod config;
mod cpu;
mod launch;
mod reach;
mod reference;

use candle_core::{Result, Tensor};

use super::gpu::supports_attention;
use super::host::is_host_f32;
pub use crate::kernels::gemm::AttentionWindow;
pub use config::{Attention, RelativePositions};
pub use cpu::QUERY_BLOCK;
pub(super) use launch::kernel_name;
pub use launch::query_tiles;
pub use reference::AttentionWeights;

impl Attention<'_> {
    /// Self-attention of every sequence. `q` is `(T, heads · qk_head_dim)`, `k` is
    /// `(T, key_value_heads · qk_head_dim)` and `v` is `(T, key_value_heads · v_head_dim)`; returns
    /// `(T, heads · v_head_dim)`. With talking heads, `v` and the result have the heads that the last
    /// projection returns. With [`Attention::queries`], `q` and the result have `R` rows, one for each of
    /// those tokens.
    ///
    /// # Errors
    /// If `cu_seqlens` does not divide T tokens into sequences, or the shapes of the operands, the bias, the
    /// relative positions or the projections do not match each other or the longest sequence.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &[usize]) -> Result<Tensor> {
        let dims = self.check(q, k, v, cu_seqlens)?;
        if let Some(query_tiles) = self.query_tiles
            && self.key_lengths.is_none()
            && self.prefix_lengths.is_none()
            && supports_attention(q.dtype(), &self.variant(&dims))
        {
            let reference = || self.reference_by_length(q, k, v, cu_seqlens);
            return self.launch(q, k, v, query_tiles)?.run_or(q, reference);
        }
        if is_host_f32(q) {
            self.forward_cpu(q, k, v, cu_seqlens, dims)
        } else {
            self.reference_by_length(q, k, v, cu_seqlens)
        }
    }
}
