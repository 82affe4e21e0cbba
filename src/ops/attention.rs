//! Multi-head scaled dot-product attention over a ragged batch (Vaswani et al. 2017, equation 1):
//! `softmax(Q Kᵀ / √d) V` for every text and head by itself, with what variants put between the two products.

use std::ops::Range;

use candle_core::{CpuStorage, D, InplaceOp1, Layout, Result, Tensor};
use rayon::prelude::*;

use super::{ROWS_PER_TASK, elements_mut, on_cpu, on_slice, on_slice_of};
use crate::kernels::softmax::{scale_and_bias, softmax};

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

/// Queries whose scores are held at a time: memory grows with the length of a text, not with its square. Where a block
/// begins follows from the text alone.
const QUERIES: usize = 512;

/// Which queries and keys of a text scores are of.
#[derive(Debug, Clone, Copy)]
struct Block {
    first_query: usize,
    first_key: usize,
    /// Tokens of the text.
    n: usize,
}

impl Attention<'_> {
    /// Attention of every text over itself: `q` is `(T, heads · d)`, `k` is `(T, key_value_heads · d)` and `v` is
    /// `(T, key_value_heads · e)`; text `i` has the rows `offsets[i]..offsets[i + 1]`. Returns `(T, heads · e)`. Where
    /// heads are mixed, values and result have as many as come out.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        if !on_cpu(q) {
            return self.reference(q, k, v, offsets);
        }
        let mut blocks = Vec::new();
        for bounds in offsets.windows(2) {
            let (start, n) = (bounds[0], bounds[1] - bounds[0]);
            for first in (0..n).step_by(QUERIES) {
                let queries = first..n.min(first + QUERIES);
                let keys = self.visible.of(first, n).start..self.visible.of(queries.end - 1, n).end;
                let split = |x: &Tensor, heads: usize, tokens: &Range<usize>| {
                    let x = x.narrow(0, start + tokens.start, tokens.len())?;
                    x.reshape((tokens.len(), heads, ()))?.transpose(0, 1)
                };
                let q = split(q, self.heads, &queries)?;
                let k = split(k, self.key_value_heads, &keys)?;
                let weights = self.weights(&q, &k, Block { first_query: first, first_key: keys.start, n })?;
                let v = split(v, self.value_heads(weights.dim(0)?), &keys)?;
                blocks.push(matmul_shared(&weights, &v)?.transpose(0, 1)?.flatten_from(1)?);
            }
        }
        Tensor::cat(&blocks, 0)
    }

    /// The weights of some queries of a text over some of its keys, `(softmax heads, queries, keys)` or as many heads
    /// as they are mixed to, from `q` of `(heads, queries, d)` and `k` of `(key_value_heads, keys, d)`.
    fn weights(&self, q: &Tensor, k: &Tensor, block: Block) -> Result<Tensor> {
        let mut scores = matmul_shared(q, &k.transpose(1, 2)?)?;
        if let Some(relative) = &self.relative {
            relative.add(&scores, q, k, block)?;
        }
        let finish = |scores: &Tensor, visible| {
            let width = self.bias.map_or(Ok(0), |bias| bias.dim(1))?;
            let scale = self.scale as f32;
            on_slice_of(self.bias, |bias| {
                let bias = bias.unwrap_or_default();
                scores.inplace_op1(&ScoreRows { block, scale: Some((scale, bias, width)), visible })
            })
        };
        match self.mix_before {
            None => finish(&scores, Some(self.visible))?,
            Some(mix) => {
                finish(&scores, None)?;
                scores = mix_heads(mix, &scores)?;
                scores.inplace_op1(&ScoreRows { block, scale: None, visible: Some(self.visible) })?;
            }
        }
        match self.mix_after {
            Some(mix) => mix_heads(mix, &scores),
            None => Ok(scores),
        }
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

/// `x` of `(heads, n, d)` times `y` of `(groups, d, m)`, each of which serves neighbouring heads; `(heads, n, m)`.
fn matmul_shared(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (heads, n, d) = x.dims3()?;
    let groups = y.dim(0)?;
    if groups == heads {
        return x.matmul(y);
    }
    x.reshape((groups, heads / groups * n, d))?.matmul(y)?.reshape((heads, n, ()))
}

/// `(out, in)` times the heads of `(in, n, m)`; `(out, n, m)`.
fn mix_heads(mix: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (_, n, m) = x.dims3()?;
    mix.matmul(&x.flatten_from(1)?)?.reshape((mix.dim(0)?, n, m))
}

impl Relative<'_> {
    /// Adds to the products of some queries and keys of a text, `(heads, queries, keys)`.
    fn add(&self, scores: &Tensor, q: &Tensor, k: &Tensor, block: Block) -> Result<()> {
        for (tokens, table, transposed) in [(q, self.keys, false), (k, self.queries, true)] {
            let Some(table) = table else { continue };
            let heads = tokens.dim(0)?;
            let table = table.reshape((table.dim(0)?, heads, ()))?.permute((1, 2, 0))?;
            let all = tokens.matmul(&table)?;
            let (span, rows) = (all.dim(2)?, self.rows);
            on_slice(&all, |all| scores.inplace_op1(&AddByDistance { block, all, span, rows, transposed }))?;
        }
        Ok(())
    }
}

/// Adds `all[i][rows[i − j]]` to the score of `i` and `j`, or `all[j][rows[i − j]]` where `all` is of the keys.
struct AddByDistance<'a> {
    block: Block,
    /// `(heads, queries, span)`, or `(heads, keys, span)`.
    all: &'a [f32],
    span: usize,
    rows: &'a [u32],
    transposed: bool,
}

impl InplaceOp1 for AddByDistance<'_> {
    fn name(&self) -> &'static str {
        "add-by-distance"
    }

    fn cpu_fwd(&self, scores: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (queries, keys) = (layout.dims()[1], layout.dims()[2]);
        let Block { first_query, first_key, .. } = self.block;
        let middle = (self.rows.len() - 1) / 2;
        elements_mut(scores, layout)?.par_chunks_mut(keys).enumerate().for_each(|(row, scores)| {
            let (head, i) = (row / queries, row % queries);
            for (j, score) in scores.iter_mut().enumerate() {
                let token = if self.transposed { head * keys + j } else { head * queries + i };
                let row = self.rows[first_query + i + middle - first_key - j];
                *score += self.all[token * self.span + row as usize];
            }
        });
        Ok(())
    }
}

/// Scale and bias, softmax, or both, over the rows of `(heads, queries, keys)` scores, in place.
struct ScoreRows<'a> {
    block: Block,
    /// The scale, and the bias by distance with the number of its columns.
    scale: Option<(f32, &'a [f32], usize)>,
    /// What goes through the softmax; what a query does not see becomes 0.
    visible: Option<Visible>,
}

impl InplaceOp1 for ScoreRows<'_> {
    fn name(&self) -> &'static str {
        "score-rows"
    }

    fn cpu_fwd(&self, scores: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (queries, keys) = (layout.dims()[1], layout.dims()[2]);
        let Block { first_query, first_key, n } = self.block;
        let finish = |row: usize, scores: &mut [f32]| {
            let (head, query) = (row / queries, first_query + row % queries);
            if let Some((scale, bias, width)) = self.scale {
                let bias = match bias.is_empty() {
                    true => bias,
                    false => &bias[head * width + (width - 1) / 2 + first_key - query..][..keys],
                };
                scale_and_bias(scores, scale, bias);
            }
            if let Some(visible) = self.visible {
                let visible = visible.of(query, n);
                let visible = visible.start - first_key..visible.end - first_key;
                scores[..visible.start].fill(0.0);
                scores[visible.end..].fill(0.0);
                softmax(&mut scores[visible]);
            }
        };
        let scores = elements_mut(scores, layout)?;
        scores.par_chunks_mut(keys * ROWS_PER_TASK).enumerate().for_each(|(task, rows)| {
            for (row, scores) in rows.chunks_mut(keys).enumerate() {
                finish(task * ROWS_PER_TASK + row, scores);
            }
        });
        Ok(())
    }
}
