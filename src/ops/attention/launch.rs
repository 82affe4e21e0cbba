//! The launch of the CUDA attention kernel.

use candle_core::{DType, Device, Result, Tensor};

use super::config::Attention;
use crate::ops::check::check_cu_seqlens;
use crate::ops::gpu::{Launch, LaunchOutput, expect, suffix};

/// Queries of a tile, which one thread block computes for one head.
const QUERY_TILE: usize = 64;

/// Divides the queries of a batch into tiles, `(tiles, 3)` of u32: for each tile the first row of its
/// sequence, the tokens of the sequence, and the first query of the tile inside the sequence. Long sequences
/// come first, so that no long tile runs alone at the end.
///
/// # Errors
/// If `cu_seqlens` does not begin with 0, or decreases.
pub fn query_tiles(cu_seqlens: &[usize], device: &Device) -> Result<Tensor> {
    check_cu_seqlens(cu_seqlens, cu_seqlens.last().copied().unwrap_or(0))?;
    let mut sequences: Vec<(usize, usize)> = cu_seqlens.windows(2).map(|w| (w[0], w[1] - w[0])).collect();
    sequences.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
    let tiles = sequences.iter().flat_map(|&(start, tokens)| {
        (0..tokens).step_by(QUERY_TILE).flat_map(move |first| [start as u32, tokens as u32, first as u32])
    });
    Tensor::from_iter(tiles, device)?.reshape(((), 3))
}

/// The name of the kernel for a dtype and head dim.
///
/// # Errors
/// If there are no kernels for the dtype.
pub(in crate::ops) fn kernel_name(dtype: DType, head_dim: usize) -> Result<String> {
    Ok(format!("attention_{}_{head_dim}", suffix(dtype)?))
}

impl Attention<'_> {
    /// The launch of [`Attention::forward`] on a GPU: one block per tile and head.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or there are no kernels for the dtype.
    pub fn launch<'a>(
        &self,
        q: &'a Tensor,
        k: &'a Tensor,
        v: &'a Tensor,
        query_tiles: &'a Tensor,
    ) -> Result<Launch<'a>> {
        let (tokens, width) = q.dims2()?;
        let head_dim = width / self.heads;
        for x in [k, v] {
            expect(x, q.dtype(), &[tokens, head_dim * self.key_value_heads])?;
        }
        expect(query_tiles, DType::U32, &[query_tiles.dim(0)?, 3])?;
        Ok(Launch {
            kernel: kernel_name(q.dtype(), head_dim)?,
            grid: [query_tiles.dim(0)?, self.heads, 1],
            block: 128,
            output: LaunchOutput::New(vec![tokens, width], q.dtype()),
            args: vec![
                q.into(),
                k.into(),
                v.into(),
                query_tiles.into(),
                self.heads.into(),
                self.key_value_heads.into(),
                self.scale.into(),
                self.window.left.into(),
                self.window.right.into(),
            ],
        })
    }
}
