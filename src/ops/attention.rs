//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(Q Kᵀ / √d) V` for every text and head by itself, with what variants put between the two products.

mod flow;

use std::ops::Range;

use candle_core::{D, Result, Tensor};

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
        if !on_cpu(q) {
            return self.reference(q, k, v, offsets);
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

    /// [`Attention::forward`] in plain candle operations, on a rectangle: texts are padded to the longest, and the
    /// mask adds −∞ to the scores of padding keys and of those that a query does not see. A query of padding sees
    /// what the first token sees, so that no row becomes NaN.
    pub fn reference(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        let lengths: Vec<usize> = offsets.windows(2).map(|w| w[1] - w[0]).collect();
        let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        // (T, heads · d) → (batch, heads, longest, d), each head as often as it is shared.
        let pad = |x: &Tensor, heads: usize, all: usize| {
            let texts = offsets
                .windows(2)
                .map(|w| x.narrow(0, w[0], w[1] - w[0])?.pad_with_zeros(0, 0, longest - (w[1] - w[0])))
                .collect::<Result<Vec<_>>>()?;
            let x = Tensor::stack(&texts, 0)?.reshape((batch, longest, heads, ()))?.transpose(1, 2)?;
            let shared = Tensor::from_iter((0..all).map(|head| (head * heads / all) as u32), x.device())?;
            x.contiguous()?.index_select(&shared, 1)
        };
        let (q, k) = (pad(q, self.heads, self.heads)?, pad(k, self.key_value_heads, self.heads)?);
        // (2 L − 1) columns, one a distance → (longest, longest)
        let by_distance = |width: usize, forward: bool| {
            let middle = (width - 1) / 2;
            let column = move |i: usize, j: usize| if forward { j + middle - i } else { i + middle - j };
            (0..longest).flat_map(move |i| (0..longest).map(move |j| column(i, j)))
        };
        let mut scores = q.matmul(&k.t()?)?;
        if let Some(Relative { keys, queries, rows }) = &self.relative {
            let rows = by_distance(rows.len(), false).map(|distance| rows[distance]);
            let rows = Tensor::from_iter(rows, q.device())?.reshape((1, 1, longest, longest))?;
            let gather = |tokens: &Tensor, table: &Tensor, rows: &Tensor| {
                let table = table.reshape((table.dim(0)?, self.heads, ()))?.transpose(0, 1)?.contiguous()?;
                let all = tokens.broadcast_matmul(&table.t()?.unsqueeze(0)?)?;
                all.gather(&rows.broadcast_as((batch, self.heads, longest, longest))?.contiguous()?, 3)
            };
            if let Some(table) = keys {
                scores = (scores + gather(&q, table, &rows)?)?;
            }
            if let Some(table) = queries {
                scores = (scores + gather(&k, table, &rows.t()?)?.t()?)?;
            }
        }
        scores = (scores * self.scale)?;
        if let Some(bias) = self.bias {
            let columns = by_distance(bias.dim(1)?, true).map(|column| column as u32);
            let columns = Tensor::from_iter(columns, q.device())?;
            let square = bias.index_select(&columns, 1)?.reshape((1, self.heads, longest, longest))?;
            scores = scores.broadcast_add(&square)?;
        }
        let mix = |mix: &Tensor, x: &Tensor| {
            let flat = x.flatten_from(2)?;
            mix.unsqueeze(0)?.broadcast_matmul(&flat)?.reshape((batch, mix.dim(0)?, longest, longest))
        };
        if let Some(before) = self.mix_before {
            scores = mix(before, &scores)?;
        }
        let mut mask = vec![f32::NEG_INFINITY; batch * longest * longest];
        for (text, &n) in lengths.iter().enumerate() {
            for i in 0..longest {
                let row = &mut mask[(text * longest + i) * longest..][..longest];
                row[self.visible.of(if i < n { i } else { 0 }, n)].fill(0.0);
            }
        }
        let mask = Tensor::from_vec(mask, (batch, 1, longest, longest), q.device())?.to_dtype(q.dtype())?;
        let mut weights = candle_nn::ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        if let Some(after) = self.mix_after {
            weights = mix(after, &weights)?;
        }
        let heads = weights.dim(1)?;
        let context = weights.matmul(&pad(v, self.value_heads(heads), heads)?)?.transpose(1, 2)?;
        let context = context.flatten_from(2)?;
        let texts = lengths
            .iter()
            .enumerate()
            .map(|(i, &n)| context.get(i)?.narrow(0, 0, n))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&texts, 0)
    }
}
