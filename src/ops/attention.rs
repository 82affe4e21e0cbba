//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(Q Kᵀ / √d) V` for every text and head by itself.

use candle_core::{CpuStorage, D, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use rayon::prelude::*;

use super::{ROWS_PER_TASK, elements, elements_mut, on_cpu};
use crate::kernels::softmax::scaled_softmax;

/// How the columns of the queries, keys and values divide into heads.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Number of heads.
    pub count: usize,
    /// Columns of one head.
    pub size: usize,
}

impl Heads {
    fn scale(&self) -> f64 {
        1.0 / (self.size as f64).sqrt()
    }
}

/// Attention of every text over itself: `q`, `k`, `v` are `(T, heads · size)`, text `i` has the rows
/// `offsets[i]..offsets[i + 1]`, and so has the result.
///
/// `bias` of `(heads, 2 L − 1)`, for texts of up to `L` tokens, is added to the scaled scores: column
/// `j − i + L − 1` to the score of query `i` and key `j`.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    offsets: &[usize],
    heads: Heads,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    if !on_cpu(q) {
        return reference(q, k, v, offsets, heads, bias);
    }
    let scale = heads.scale() as f32;
    let texts = offsets
        .windows(2)
        .map(|bounds| {
            let split = |x: &Tensor| {
                let n = bounds[1] - bounds[0];
                x.narrow(0, bounds[0], n)?.reshape((n, heads.count, heads.size))?.transpose(0, 1)
            };
            let scores = split(q)?.matmul(&split(k)?.transpose(1, 2)?)?;
            match bias {
                Some(bias) => scores.inplace_op2(bias, &BiasedSoftmax { scale })?,
                None => scores.inplace_op1(&ScaledSoftmax { scale })?,
            }
            scores.matmul(&split(v)?)?.transpose(0, 1)?.flatten_from(1)
        })
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&texts, 0)
}

/// [`attention`] in plain candle operations, on a rectangle: texts are padded to the longest, and the padding
/// mask adds −∞ to the scores of padding keys. Every row keeps at least one key, so no row becomes NaN.
pub fn reference(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    offsets: &[usize],
    heads: Heads,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let lengths: Vec<usize> = offsets.windows(2).map(|w| w[1] - w[0]).collect();
    let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
    // (T, heads · size) → (batch, heads, longest, size)
    let pad = |x: &Tensor| {
        let texts = offsets
            .windows(2)
            .map(|w| x.narrow(0, w[0], w[1] - w[0])?.pad_with_zeros(0, 0, longest - (w[1] - w[0])))
            .collect::<Result<Vec<_>>>()?;
        Tensor::stack(&texts, 0)?
            .reshape((batch, longest, heads.count, heads.size))?
            .transpose(1, 2)?
            .contiguous()
    };
    let mask: Vec<f32> = lengths
        .iter()
        .flat_map(|&n| (0..longest).map(move |j| if j < n { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    let mask = Tensor::from_vec(mask, (batch, 1, 1, longest), q.device())?.to_dtype(q.dtype())?;

    let mut scores = (pad(q)?.matmul(&pad(k)?.t()?)? * heads.scale())?;
    if let Some(bias) = bias {
        let middle = (bias.dim(1)? - 1) / 2;
        let columns = (0..longest).flat_map(|i| (0..longest).map(move |j| (j + middle - i) as u32));
        let columns = Tensor::from_iter(columns, q.device())?;
        let square = bias.index_select(&columns, 1)?.reshape((1, heads.count, longest, longest))?;
        scores = scores.broadcast_add(&square)?;
    }
    let scores = scores.broadcast_add(&mask)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let context =
        weights.matmul(&pad(v)?)?.transpose(1, 2)?.reshape((batch, longest, heads.count * heads.size))?;
    let texts = lengths
        .iter()
        .enumerate()
        .map(|(i, &n)| context.get(i)?.narrow(0, 0, n))
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&texts, 0)
}

/// Softmax over the last dimension of the scaled scores, in place.
struct ScaledSoftmax {
    scale: f32,
}

impl InplaceOp1 for ScaledSoftmax {
    fn name(&self) -> &'static str {
        "scaled-softmax"
    }

    fn cpu_fwd(&self, scores: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let width = layout.dims()[layout.dims().len() - 1];
        elements_mut(scores, layout)?.par_chunks_mut(width * ROWS_PER_TASK).for_each(|rows| {
            for row in rows.chunks_mut(width) {
                scaled_softmax(row, self.scale, &[]);
            }
        });
        Ok(())
    }
}

/// The same for `(heads, n, n)` scores with a bias by distance, `(heads, 2 L − 1)`.
struct BiasedSoftmax {
    scale: f32,
}

impl InplaceOp2 for BiasedSoftmax {
    fn name(&self) -> &'static str {
        "biased-softmax"
    }

    fn cpu_fwd(
        &self,
        scores: &mut CpuStorage,
        layout: &Layout,
        bias: &CpuStorage,
        bias_l: &Layout,
    ) -> Result<()> {
        let (width, distances) = (layout.dims()[2], bias_l.dims()[1]);
        let (scores, bias) = (elements_mut(scores, layout)?, elements(bias, bias_l)?);
        scores.par_chunks_mut(width).enumerate().for_each(|(row, scores)| {
            let (head, query) = (row / width, row % width);
            let first = head * distances + (distances - 1) / 2 - query;
            scaled_softmax(scores, self.scale, &bias[first..first + width]);
        });
        Ok(())
    }
}
