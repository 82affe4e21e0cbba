//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(Q Kᵀ / √d) V` for every text and head by itself, with what variants put between the two products.

mod flow;
mod reference;

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::gpu::{self, Launch, Written};
use super::{on_cpu, on_slice, on_slice_of};
use crate::kernels::matmul::Compute;
use flow::Flow;
pub use flow::QUERIES;

/// How attention is done, apart from its operands.
#[derive(Debug, Clone)]
pub struct Attention<'a> {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; `heads / key_value_heads` neighbouring heads of the queries share one.
    pub key_value_heads: usize,
    /// What the product of a query and a key is multiplied by.
    pub scale: f64,
    /// `(heads, 2 L − 1)`, for texts of up to `L` tokens, added to the scaled scores: column `j − i + L − 1` to the
    /// score of query `i` and key `j`.
    pub bias: Option<&'a Tensor>,
    /// What the distance of two tokens adds to their product before it is scaled.
    pub relative: Option<Relative<'a>>,
    /// Which keys a query sees.
    pub visible: Visible,
    /// What the CPU multiplies in: its products are of bf16 where that is faster and wanted, and of f32 otherwise.
    pub compute: Compute,
    /// `(softmax heads, heads)`: mixes the scores of all heads, before the softmax and before the mask.
    pub mix_before: Option<&'a Tensor>,
    /// `(value heads, softmax heads)`: mixes the weights of all heads, after the softmax.
    pub mix_after: Option<&'a Tensor>,
    /// What [`tiles`] gives for the texts, where they lie on a GPU.
    pub tiles: Option<&'a Tensor>,
}

/// Queries of a tile: what a block of a GPU's threads takes on.
const TILE: usize = 64;
/// Sizes of heads that there are kernels for.
pub const SIZES: [usize; 4] = [32, 64, 96, 128];

/// The tiles of a batch, `(tiles, 3)`: where in the batch the tile's text begins, how many tokens it has, and where in the text
/// the tile begins. The long texts come first, so that no long one is left at the end.
pub fn tiles(offsets: &[usize], device: &Device) -> Result<Tensor> {
    let mut texts: Vec<(usize, usize)> = offsets.windows(2).map(|w| (w[0], w[1] - w[0])).collect();
    texts.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
    let tiles = texts.iter().flat_map(|&(start, tokens)| {
        (0..tokens).step_by(TILE).flat_map(move |first| [start as u32, tokens as u32, first as u32])
    });
    Tensor::from_iter(tiles, device)?.reshape(((), 3))
}

/// Embeddings of distances that meet queries and keys (He et al. 2021, equation 4): to the product of query `i` and
/// key `j` come those of query `i` and key row `rows[d]` and of key `j` and query row `rows[d]`, where `d` is
/// `i − j + L − 1` for texts of up to `L` tokens.
#[derive(Debug, Clone)]
pub struct Relative<'a> {
    /// `(R, heads · d)`: what queries meet.
    pub keys: Option<&'a Tensor>,
    /// `(R, heads · d)`: what keys meet.
    pub queries: Option<&'a Tensor>,
    /// `(2 L − 1)`, each below `R`.
    pub rows: &'a [u32],
}

/// How many tokens before itself and after itself a token sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visible {
    pub before: usize,
    pub after: usize,
}

impl Visible {
    /// Every token of the text.
    pub const ALL: Visible = Visible { before: usize::MAX, after: usize::MAX };

    /// What token `i` of `n` sees.
    fn of(self, i: usize, n: usize) -> Range<usize> {
        i.saturating_sub(self.before)..i.saturating_add(self.after).saturating_add(1).min(n)
    }
}

impl Attention<'_> {
    /// Attention of every text over itself: `q` is `(T, heads · d)`, `k` is `(T, key_value_heads · d)` and `v` is
    /// `(T, key_value_heads · e)`; text `i` has the rows `offsets[i]..offsets[i + 1]`. Returns `(T, heads · e)`. Where
    /// heads are mixed, values and result have as many as come out.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        let ends = offsets.last() == Some(&q.dim(0)?);
        if let Some(tiles) = self.tiles.filter(|_| ends && self.is_for_gpu(q, k, v)) {
            return self.launch(q, k, v, tiles)?.run(q);
        }
        if !on_cpu(q) {
            return self.by_length(q, k, v, offsets);
        }
        let (keys, queries) = match &self.relative {
            Some(relative) => (relative.keys, relative.queries),
            None => (None, None),
        };
        let tokens = q.dim(0)?;
        let row = |x: &Tensor| x.dim(1);
        let mixed = |mix: Option<&Tensor>, heads| mix.map_or(Ok(heads), |mix| mix.dim(0));
        let softmax_heads = mixed(self.mix_before, self.heads)?;
        let value_heads = mixed(self.mix_after, softmax_heads)?;
        let (qk_size, value_groups) = (row(q)? / self.heads, self.value_heads(value_heads));
        let v_size = row(v)? / value_groups;
        if row(k)? != self.key_value_heads * qk_size || [k, v].iter().any(|x| x.dims()[0] != tokens) {
            candle_core::bail!(
                "keys of {:?} and values of {:?} for queries of {:?}",
                k.dims(),
                v.dims(),
                q.dims()
            );
        }
        let longest = offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        let bias_width = self.bias.map_or(Ok(2 * longest), row)?;
        if bias_width < (2 * longest).saturating_sub(1) || offsets.last().is_none_or(|end| *end != tokens) {
            candle_core::bail!(
                "{tokens} tokens and biases of {bias_width} distances for a text of {longest}"
            );
        }
        let out = on_slice(q, |q| {
            on_slice(k, |k| {
                on_slice(v, |v| {
                    on_slice_of(self.bias, |bias| {
                        on_slice_of(self.mix_before, |mix_before| {
                            on_slice_of(self.mix_after, |mix_after| {
                                on_slice_of(keys, |keys| {
                                    on_slice_of(queries, |queries| {
                                        let flow = Flow {
                                            attention: self,
                                            q,
                                            k,
                                            v,
                                            qk_size,
                                            v_size,
                                            softmax_heads,
                                            value_heads,
                                            value_groups,
                                            bias: bias.unwrap_or_default(),
                                            bias_width,
                                            mix_before,
                                            mix_after,
                                            key_table: keys.map(|table| self.pack_table(table, qk_size)),
                                            query_table: queries.map(|table| self.pack_table(table, qk_size)),
                                        };
                                        Ok(flow.run(offsets))
                                    })
                                })
                            })
                        })
                    })
                })
            })
        })?;
        Tensor::from_vec(out, (tokens, value_heads * v_size), q.device())
    }

    /// Heads of the values, where so many heads weigh them.
    fn value_heads(&self, heads: usize) -> usize {
        if self.key_value_heads < self.heads { self.key_value_heads } else { heads }
    }

    /// Whether the kernel for a GPU takes it: heads of a size that it knows, in 16 bits, and nothing but a mask between the two
    /// products.
    fn is_for_gpu(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> bool {
        let plain = self.bias.is_none() && self.relative.is_none();
        let unmixed = self.mix_before.is_none() && self.mix_after.is_none();
        let size = q.dims()[1] / self.heads;
        let same = [k, v].iter().all(|x| x.dims()[1] == self.key_value_heads * size);
        plain && unmixed && same && SIZES.contains(&size) && q.dtype() != DType::F32
    }

    /// [`Attention::forward`] on a GPU: a tile of the queries of one head a block.
    pub fn launch<'a>(
        &self,
        q: &'a Tensor,
        k: &'a Tensor,
        v: &'a Tensor,
        tiles: &'a Tensor,
    ) -> Result<Launch<'a>> {
        let (tokens, width) = q.dims2()?;
        for x in [k, v] {
            gpu::expect(x, q.dtype(), &[tokens, width / self.heads * self.key_value_heads])?;
        }
        gpu::expect(tiles, DType::U32, &[tiles.dim(0)?, 3])?;
        Ok(Launch {
            kernel: format!("attention_{}_{}", gpu::suffix(q.dtype())?, width / self.heads),
            grid: [tiles.dim(0)?, self.heads, 1],
            block: 128,
            to: Written::New(vec![tokens, width], q.dtype()),
            args: vec![
                q.into(),
                k.into(),
                v.into(),
                tiles.into(),
                self.heads.into(),
                self.key_value_heads.into(),
                self.scale.into(),
                self.visible.before.into(),
                self.visible.after.into(),
            ],
        })
    }
}
