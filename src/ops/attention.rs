//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(Q Kᵀ / √d) V` for every text and head by itself, with what variants put between the two products.

mod flow;
mod reference;

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::gpu::{self, Launch, Written};
use super::{check_indices, check_offsets, on_cpu, on_slice, on_slice_of};
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
///
/// # Errors
/// If `offsets` do not begin with 0, or decrease.
pub fn tiles(offsets: &[usize], device: &Device) -> Result<Tensor> {
    check_offsets(offsets, offsets.last().copied().unwrap_or(0))?;
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

/// Columns and heads of the operands of an attention.
struct Sizes {
    /// Columns of a head of the queries and keys.
    qk_size: usize,
    /// Columns of a head of the values.
    v_size: usize,
    /// Heads after the first mix.
    softmax_heads: usize,
    /// Heads after the second.
    value_heads: usize,
    /// Heads of the values themselves, each shared by neighbours.
    value_groups: usize,
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
    ///
    /// # Errors
    /// If `offsets` do not begin with 0, decrease, or do not end with T; if the shapes of the operands, the bias, the tables or
    /// the mixes do not agree, or a bias or a table has no entry for a distance in the longest text.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        let sizes = self.check(q, k, v, offsets)?;
        if let Some(tiles) = self.tiles.filter(|_| self.is_for_gpu(q, k, v)) {
            return self.launch(q, k, v, tiles)?.run(q);
        }
        if !on_cpu(q) {
            return self.by_length(q, k, v, offsets);
        }
        let (keys, queries) = match &self.relative {
            Some(relative) => (relative.keys, relative.queries),
            None => (None, None),
        };
        let Sizes { qk_size, v_size, softmax_heads, value_heads, value_groups } = sizes;
        let bias_width = self.bias.map_or(Ok(0), |bias| bias.dim(1))?;
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
                                        flow.run(offsets)
                                    })
                                })
                            })
                        })
                    })
                })
            })
        })?;
        Tensor::from_vec(out, (q.dim(0)?, value_heads * v_size), q.device())
    }

    /// The sizes of the operands, once they and the offsets agree: the paths of every device rely on that.
    fn check(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Sizes> {
        let (tokens, width) = q.dims2()?;
        check_offsets(offsets, tokens)?;
        let mixed = |mix: Option<&Tensor>, heads: usize| match mix.map(Tensor::dims2).transpose()? {
            Some((to, from)) if from == heads && to > 0 => Ok(to),
            Some(shape) => candle_core::bail!("a mix of {shape:?} for {heads} heads"),
            None => Ok(heads),
        };
        let softmax_heads = mixed(self.mix_before, self.heads)?;
        let value_heads = mixed(self.mix_after, softmax_heads)?;
        let value_groups = self.value_heads(value_heads);
        // Columns of a head in a row of so many columns; 0 where a row is not whole heads.
        let size = |columns: usize, heads: usize| match columns.checked_rem(heads) {
            Some(0) => columns / heads,
            _ => 0,
        };
        let qk_size = size(width, self.heads);
        let v_size = size(v.dims2()?.1, value_groups);
        let are_shared = self.key_value_heads > 0 && self.heads.is_multiple_of(self.key_value_heads);
        let is_whole = are_shared && qk_size > 0 && v_size > 0;
        if !is_whole
            || size(k.dims2()?.1, self.key_value_heads) != qk_size
            || [k, v].iter().any(|x| x.dims()[0] != tokens)
        {
            candle_core::bail!(
                "{} heads of keys of {:?} and values of {:?} for {} heads of queries of {:?}",
                self.key_value_heads,
                k.dims(),
                v.dims(),
                self.heads,
                q.dims()
            );
        }
        let longest = offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        let has_distances = |count: usize| count % 2 == 1 && count.div_ceil(2) >= longest;
        if let Some(bias) = self.bias
            && !(bias.dims2()?.0 == self.heads && has_distances(bias.dims()[1]))
        {
            candle_core::bail!(
                "a bias of {:?} for {} heads and texts of up to {longest} tokens",
                bias.dims(),
                self.heads
            );
        }
        if let Some(Relative { keys, queries, rows }) = &self.relative {
            if !has_distances(rows.len()) {
                candle_core::bail!("rows of {} distances for texts of up to {longest} tokens", rows.len());
            }
            for table in [keys, queries].into_iter().flatten() {
                let (count, columns) = table.dims2()?;
                if columns != width {
                    candle_core::bail!("a table of {:?} for queries of {:?}", table.dims(), q.dims());
                }
                check_indices(rows, count)?;
            }
        }
        Ok(Sizes { qk_size, v_size, softmax_heads, value_heads, value_groups })
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
