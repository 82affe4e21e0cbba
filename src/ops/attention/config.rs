//! The parameters of an attention layer, and the check of its operands.

use candle_core::{Result, Tensor};

use crate::kernels::gemm::{AttentionWindow, GemmType};
use crate::ops::check::{check_cu_seqlens, check_indices};
use crate::ops::gpu::AttentionVariant;
use crate::ops::host::is_host_f32;

/// The parameters of an attention layer, without the queries, keys and values.
#[derive(Debug, Clone)]
pub struct Attention<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads / key_value_heads` consecutive query heads share one.
    pub key_value_heads: usize,
    /// Factor of the scores `Q Kᵀ`.
    pub scale: f64,
    /// The bound `c` of the scaled scores, which become `c · tanh(x / c)`.
    pub score_cap: Option<f64>,
    /// A bias by relative position, added to the scaled scores: `(heads, 2 L − 1)` for sequences of up to `L`
    /// tokens. Column `j − i + L − 1` belongs to query `i` and key `j`.
    pub bias: Option<&'a Tensor>,
    /// Terms by content and relative position, added to the scores before they are scaled.
    pub relative: Option<RelativePositions<'a>>,
    /// The keys that each query sees.
    pub window: AttentionWindow,
    /// The number of tokens of each sequence that are keys, its first ones, `(N)`; the others are queries
    /// only, and 0 where the window leaves them no key. `None`: all tokens.
    pub key_lengths: Option<&'a [usize]>,
    /// The number of tokens of each sequence, its first ones, that all queries see as keys, also outside
    /// the window, `(N)`. `None`: none.
    pub prefix_lengths: Option<&'a [usize]>,
    /// The type of both GEMMs on the CPU: bf16 if that is requested and the ISA is faster with it; f32 in
    /// place of int8.
    pub gemm_type: GemmType,
    /// Talking heads (Shazeer et al. 2020): the projection of the scores of all heads before mask and
    /// softmax, `(softmax heads, heads)`.
    pub pre_softmax: Option<&'a Tensor>,
    /// Talking heads: the projection of the attention weights of all heads after the softmax,
    /// `(value heads, softmax heads)`.
    pub post_softmax: Option<&'a Tensor>,
    /// The tiles of [`super::query_tiles`], if the batch is on a GPU.
    pub query_tiles: Option<&'a Tensor>,
    /// The token of each row of the queries, where [`Attention::selects_queries`] allows it. `None`: the
    /// queries of all tokens.
    pub queries: Option<&'a [u32]>,
}

/// Disentangled attention (He et al. 2021, equation 4). The score of query `i` and key `j` gets two more
/// terms: content to position (c2p), query `i` times the position key in row `buckets[d]`; and position to
/// content (p2c), key `j` times the position query in row `buckets[d]`. For sequences of up to `L` tokens,
/// `d` is `i − j + L − 1`.
#[derive(Debug, Clone)]
pub struct RelativePositions<'a> {
    /// The position keys of c2p, `(R, heads · qk_head_dim)`.
    pub position_keys: Option<&'a Tensor>,
    /// The position queries of p2c, `(R, heads · qk_head_dim)`.
    pub position_queries: Option<&'a Tensor>,
    /// The row of every relative position, `(2 L − 1)`, each below `R`.
    pub buckets: &'a [u32],
}

/// Head dims and numbers of heads, derived from the operands.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadDims {
    /// Head dim of queries and keys.
    pub qk_head_dim: usize,
    /// Head dim of values.
    pub v_head_dim: usize,
    /// Heads after the pre-softmax projection.
    pub softmax_heads: usize,
    /// Heads after the post-softmax projection: the heads of the result.
    pub value_heads: usize,
    /// Heads of the values; consecutive heads of the result share one.
    pub value_groups: usize,
}

impl Attention<'_> {
    /// Attention without biases, window or projections.
    pub fn plain(heads: usize, head_dim: usize) -> Self {
        Attention {
            heads,
            key_value_heads: heads,
            scale: 1.0 / (head_dim as f64).sqrt(),
            score_cap: None,
            bias: None,
            relative: None,
            window: AttentionWindow::FULL,
            key_lengths: None,
            prefix_lengths: None,
            gemm_type: GemmType::F32,
            pre_softmax: None,
            post_softmax: None,
            query_tiles: None,
            queries: None,
        }
    }

    /// Checks that the operands and `cu_seqlens` match, which every path relies on, and derives the head
    /// dims.
    pub(super) fn check(&self, q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &[usize]) -> Result<HeadDims> {
        let ((queries, width), tokens) = (q.dims2()?, k.dims2()?.0);
        check_cu_seqlens(cu_seqlens, tokens)?;
        if let Some(queries) = self.queries {
            check_indices(queries, tokens)?;
            if !self.selects_queries(q) {
                candle_core::bail!(
                    "attention of some queries needs f32 on the CPU, without a bias or talking heads"
                );
            }
        }
        self.check_key_lengths(cu_seqlens)?;
        self.check_prefix_lengths(cu_seqlens)?;
        let softmax_heads = projected_heads(self.pre_softmax, self.heads)?;
        let value_heads = projected_heads(self.post_softmax, softmax_heads)?;
        let value_groups = self.value_groups(value_heads);
        // 0 if the columns are not a multiple of the heads.
        let head_dim = |columns: usize, heads: usize| match columns.checked_rem(heads) {
            Some(0) => columns / heads,
            _ => 0,
        };
        let qk_head_dim = head_dim(width, self.heads);
        let v_head_dim = head_dim(v.dims2()?.1, value_groups);
        let are_shared = self.key_value_heads > 0 && self.heads.is_multiple_of(self.key_value_heads);
        if !are_shared
            || qk_head_dim == 0
            || v_head_dim == 0
            || head_dim(k.dims2()?.1, self.key_value_heads) != qk_head_dim
            || v.dims()[0] != tokens
            || queries != self.queries.map_or(tokens, <[u32]>::len)
        {
            candle_core::bail!(
                "queries of {:?} in {} heads do not match keys of {:?} and values of {:?} in {} heads",
                q.dims(),
                self.heads,
                k.dims(),
                v.dims(),
                self.key_value_heads
            );
        }
        let max_seqlen = cu_seqlens.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        self.check_positions(width, max_seqlen)?;
        Ok(HeadDims { qk_head_dim, v_head_dim, softmax_heads, value_heads, value_groups })
    }

    /// Whether queries of some tokens alone are supported, with operands of the device and dtype of `x`: on
    /// the CPU in f32, without a bias or talking heads. There the same keys are multiplied in the same order
    /// whatever other queries a task has.
    pub fn selects_queries(&self, x: &Tensor) -> bool {
        let is_plain = self.pre_softmax.is_none() && self.post_softmax.is_none() && self.relative.is_none();
        is_host_f32(x) && is_plain && self.bias.is_none()
    }

    /// Checks that every sequence with tokens has a key, and no more keys than tokens.
    fn check_key_lengths(&self, cu_seqlens: &[usize]) -> Result<()> {
        let Some(key_lengths) = self.key_lengths else { return Ok(()) };
        let lengths = cu_seqlens.windows(2).map(|bounds| bounds[1] - bounds[0]);
        let fits = |(n, &keys): (usize, &usize)| keys <= n && (keys > 0 || n == 0);
        if key_lengths.len() + 1 != cu_seqlens.len() || !lengths.zip(key_lengths).all(fits) {
            candle_core::bail!(
                "key lengths {key_lengths:?} do not fit sequences that begin at {cu_seqlens:?}"
            );
        }
        Ok(())
    }

    /// Checks that no sequence has fewer tokens than its prefix, nor projections or a bias beside it.
    fn check_prefix_lengths(&self, cu_seqlens: &[usize]) -> Result<()> {
        let Some(prefix_lengths) = self.prefix_lengths else { return Ok(()) };
        let lengths = cu_seqlens.windows(2).map(|bounds| bounds[1] - bounds[0]);
        let is_plain =
            self.pre_softmax.is_none() && self.post_softmax.is_none() && self.key_lengths.is_none();
        if !is_plain
            || self.bias.is_some()
            || prefix_lengths.len() + 1 != cu_seqlens.len()
            || lengths.zip(prefix_lengths).any(|(n, prefix)| *prefix > n)
        {
            candle_core::bail!(
                "prefixes of {prefix_lengths:?} tokens do not fit this attention of sequences that begin at {cu_seqlens:?}"
            );
        }
        Ok(())
    }

    /// The tokens of a sequence that all queries see.
    pub(super) fn prefix_length(&self, sequence: usize) -> usize {
        self.prefix_lengths.map_or(0, |lengths| lengths[sequence])
    }

    /// The keys of a sequence of `n` tokens.
    pub(super) fn key_length(&self, sequence: usize, n: usize) -> usize {
        self.key_lengths.map_or(n, |lengths| lengths[sequence])
    }

    /// Checks that bias and relative positions cover sequences of up to `max_seqlen` tokens, for queries of
    /// `width` columns.
    fn check_positions(&self, width: usize, max_seqlen: usize) -> Result<()> {
        let covers = |positions: usize| positions % 2 == 1 && positions.div_ceil(2) >= max_seqlen;
        if let Some(bias) = self.bias
            && !(bias.dims2()?.0 == self.heads && covers(bias.dims()[1]))
        {
            candle_core::bail!(
                "a bias of {:?} does not cover {} heads and sequences of up to {max_seqlen} tokens",
                bias.dims(),
                self.heads
            );
        }
        let Some(RelativePositions { position_keys, position_queries, buckets }) = &self.relative else {
            return Ok(());
        };
        if !covers(buckets.len()) {
            candle_core::bail!(
                "buckets for {} relative positions do not cover sequences of up to {max_seqlen} tokens",
                buckets.len()
            );
        }
        for table in [position_keys, position_queries].into_iter().flatten() {
            let (rows, columns) = table.dims2()?;
            if columns != width {
                candle_core::bail!("a table of relative positions needs {width} columns, found {columns}");
            }
            check_indices(buckets, rows)?;
        }
        Ok(())
    }

    /// Heads of the values, for a result of `value_heads` heads.
    pub(super) fn value_groups(&self, value_heads: usize) -> usize {
        if self.key_value_heads < self.heads { self.key_value_heads } else { value_heads }
    }

    /// The properties that decide whether a GPU kernel supports this attention.
    pub(super) fn variant(&self, dims: &HeadDims) -> AttentionVariant {
        AttentionVariant {
            qk_head_dim: dims.qk_head_dim,
            v_head_dim: dims.v_head_dim,
            changes_scores: self.bias.is_some() || self.relative.is_some() || self.score_cap.is_some(),
            has_talking_heads: self.pre_softmax.is_some() || self.post_softmax.is_some(),
        }
    }
}

/// The heads that a projection `(to, from)` of `from` heads returns; without a projection, `from`.
fn projected_heads(projection: Option<&Tensor>, from: usize) -> Result<usize> {
    match projection.map(Tensor::dims2).transpose()? {
        Some((to, columns)) if columns == from && to > 0 => Ok(to),
        Some(shape) => candle_core::bail!("a projection of {from} heads cannot have the shape {shape:?}"),
        None => Ok(from),
    }
}
