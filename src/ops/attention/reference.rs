//! Attention in plain candle operations: tests compare with it, and it computes what no kernel supports.

use candle_core::{D, DType, Device, Result, Tensor};

use super::config::{Attention, RelativePositions};
use crate::kernels::gemm::AttentionWindow;

/// The attention weights of a padded batch of `N` sequences of up to `L` tokens, in f32: row `i` of a head
/// has the weight of every key for query `i`. Rows of keys outside the window are 0.
pub struct AttentionWeights {
    /// The softmax of the scores, `(N, softmax heads, L, L)`: every row sums to 1.
    pub softmax: Tensor,
    /// The weights of the values, `(N, value heads, L, L)`: the softmax, or with talking heads its
    /// post-softmax projection.
    pub of_values: Tensor,
}

/// Maximum scores of a head in one padded batch, unless a single sequence has more.
const MAX_SCORES: usize = 1 << 22;

impl Attention<'_> {
    /// [`Attention::reference`] for groups of sequences of similar length, so that little padding is
    /// computed.
    pub(super) fn reference_by_length(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cu_seqlens: &[usize],
    ) -> Result<Tensor> {
        let (mut outputs, mut order) = (Vec::new(), Vec::new());
        for group in groups_by_length(cu_seqlens) {
            let rows: Vec<u32> =
                group.iter().flat_map(|&i| cu_seqlens[i] as u32..cu_seqlens[i + 1] as u32).collect();
            let mut group_seqlens = vec![0];
            group_seqlens.extend(group.iter().scan(0, |end, &i| {
                *end += cu_seqlens[i + 1] - cu_seqlens[i];
                Some(*end)
            }));
            let index = Tensor::new(&rows[..], q.device())?;
            let [q, k, v] = [q, k, v].map(|x| x.index_select(&index, 0));
            let key_lengths: Option<Vec<usize>> =
                self.key_lengths.map(|lengths| group.iter().map(|&i| lengths[i]).collect());
            let prefix_lengths: Option<Vec<usize>> =
                self.prefix_lengths.map(|lengths| group.iter().map(|&i| lengths[i]).collect());
            let attention = Attention {
                key_lengths: key_lengths.as_deref(),
                prefix_lengths: prefix_lengths.as_deref(),
                ..self.clone()
            };
            outputs.push(attention.reference(&q?, &k?, &v?, &group_seqlens)?);
            order.extend(rows);
        }
        let mut inverse = vec![0; order.len()];
        for (position, &row) in order.iter().enumerate() {
            inverse[row as usize] = position as u32;
        }
        Tensor::cat(&outputs, 0)?.index_select(&Tensor::new(&inverse[..], q.device())?, 0)
    }

    /// [`Attention::forward`] in plain candle operations, computed in f32 on a padded batch. The mask adds −∞
    /// to the scores of padding keys and of keys outside the window. A padding query has the mask of the
    /// first token, so that no row becomes NaN.
    ///
    /// # Errors
    /// Those of [`Attention::forward`], and if a sequence on a GPU has more scores than candle's kernels can
    /// index.
    pub fn reference(&self, q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &[usize]) -> Result<Tensor> {
        self.reference_with_weights(q, k, v, cu_seqlens, None)
    }

    /// [`Attention::reference`], which appends the attention weights to `kept`, if it is given.
    ///
    /// # Errors
    /// Those of [`Attention::reference`].
    pub fn reference_with_weights(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cu_seqlens: &[usize],
        kept: Option<&mut Vec<AttentionWeights>>,
    ) -> Result<Tensor> {
        self.check(q, k, v, cu_seqlens)?;
        if self.queries.is_some() {
            candle_core::bail!("the reference of attention needs the queries of all tokens");
        }
        let dtype = q.dtype();
        let (q, k, v) = (&to_f32(q)?, &to_f32(k)?, &to_f32(v)?);
        let batch = PaddedBatch::new(cu_seqlens, self.key_lengths, q.device())?;
        let (sequences, max_seqlen) = (batch.lengths.len(), batch.max_seqlen);
        // candle's CUDA kernels index in 32 bits.
        if q.device().is_cuda() && sequences * self.heads * max_seqlen.pow(2) > u32::MAX as usize {
            candle_core::bail!("a sequence of {max_seqlen} tokens has too many attention scores for a GPU");
        }
        let scores =
            self.scores(&batch, q, k)?.broadcast_add(&batch.mask(self.window, self.prefix_lengths)?)?;
        let mut softmax = candle_nn::ops::softmax(&scores, D::Minus1)?;
        if let Some(sees_a_key) = batch.sees_a_key(self.window)? {
            softmax =
                sees_a_key.broadcast_as(softmax.shape())?.where_cond(&softmax, &softmax.zeros_like()?)?;
        }
        let weights = match self.post_softmax {
            Some(projection) => project_heads(projection, &softmax)?,
            None => softmax.clone(),
        };
        match kept {
            Some(kept) => kept.push(AttentionWeights { softmax, of_values: weights.clone() }),
            None => drop(softmax),
        }
        let heads = weights.dim(1)?;
        let context = weights.matmul(&batch.pad(v, self.value_groups(heads), heads)?)?.transpose(1, 2)?;
        batch.unpad(&context)?.to_dtype(dtype)
    }

    /// The scores of every query and key before the mask, with their bound, biases and the pre-softmax
    /// projection:
    /// `(N, softmax heads, L, L)`.
    fn scores(&self, batch: &PaddedBatch, q: &Tensor, k: &Tensor) -> Result<Tensor> {
        let q = batch.pad(q, self.heads, self.heads)?;
        let k = batch.pad(k, self.key_value_heads, self.heads)?;
        let mut scores = q.matmul(&k.t()?)?;
        if let Some(relative) = &self.relative {
            scores = batch.add_relative_positions(scores, &q, &k, relative)?;
        }
        scores = (scores * self.scale)?;
        if let Some(cap) = self.score_cap {
            scores = ((scores / cap)?.tanh()? * cap)?;
        }
        if let Some(bias) = self.bias {
            scores = scores.broadcast_add(&batch.bias_matrix(bias)?)?;
        }
        if let Some(projection) = self.pre_softmax {
            scores = project_heads(projection, &scores)?;
        }
        Ok(scores)
    }
}

/// The indices of all sequences with tokens, in groups of similar length with at most [`MAX_SCORES`] scores
/// per head.
fn groups_by_length(cu_seqlens: &[usize]) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = cu_seqlens.windows(2).map(|w| w[1] - w[0]).collect();
    let mut sequences: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
    sequences.sort_by_key(|&i| lengths[i]);
    // The lengths of a class differ by at most a fifth.
    let class = |i: usize| (4.0 * (lengths[i] as f32).log2()) as u32;
    let classes = sequences.chunk_by(|&a, &b| class(a) == class(b));
    let groups = classes.flat_map(|class| {
        let max_seqlen = class.iter().map(|&i| lengths[i]).max().unwrap_or(1);
        class.chunks((MAX_SCORES / max_seqlen.pow(2)).max(1))
    });
    groups.map(<[usize]>::to_vec).collect()
}

fn to_f32(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)
}

/// Multiplies a projection `(to, from)` with the heads of `x`, `(N, from, L, L)`.
fn project_heads(projection: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (sequences, _, rows, columns) = x.dims4()?;
    let flat = x.flatten_from(2)?;
    let projected = to_f32(projection)?.unsqueeze(0)?.broadcast_matmul(&flat)?;
    projected.reshape((sequences, projection.dim(0)?, rows, columns))
}

/// A ragged batch padded to a rectangle of `N` sequences of `L` tokens.
struct PaddedBatch {
    /// Tokens of each of the `N` sequences.
    lengths: Vec<usize>,
    /// Keys of each sequence.
    key_lengths: Vec<usize>,
    /// L.
    max_seqlen: usize,
    /// The row of every token of the rectangle, `(N · L)`; T for padding.
    rows: Tensor,
}

impl PaddedBatch {
    fn new(cu_seqlens: &[usize], key_lengths: Option<&[usize]>, device: &Device) -> Result<Self> {
        let lengths: Vec<usize> = cu_seqlens.windows(2).map(|w| w[1] - w[0]).collect();
        let key_lengths = key_lengths.unwrap_or(&lengths).to_vec();
        let max_seqlen = lengths.iter().copied().max().unwrap_or(0);
        let tokens = cu_seqlens.last().copied().unwrap_or(0);
        let row = |sequence: usize, i: usize| {
            if i < lengths[sequence] { cu_seqlens[sequence] + i } else { tokens }
        };
        let rows = (0..lengths.len()).flat_map(|sequence| (0..max_seqlen).map(move |i| (sequence, i)));
        let rows = Tensor::from_iter(rows.map(|(sequence, i)| row(sequence, i) as u32), device)?;
        Ok(PaddedBatch { lengths, key_lengths, max_seqlen, rows })
    }

    /// `(T, groups · d)` → `(N, heads, L, d)`, where `heads / groups` consecutive heads share one. Padding
    /// is 0.
    fn pad(&self, x: &Tensor, groups: usize, heads: usize) -> Result<Tensor> {
        let padding = Tensor::zeros((1, x.dim(1)?), x.dtype(), x.device())?;
        let x = Tensor::cat(&[x, &padding], 0)?.index_select(&self.rows, 0)?;
        let x = x.reshape((self.lengths.len(), self.max_seqlen, groups, ()))?.transpose(1, 2)?;
        if groups == heads {
            return x.contiguous();
        }
        let shared = Tensor::from_iter((0..heads).map(|head| (head * groups / heads) as u32), x.device())?;
        x.contiguous()?.index_select(&shared, 1)
    }

    /// `(N, L, heads, d)` → `(T, heads · d)`.
    fn unpad(&self, x: &Tensor) -> Result<Tensor> {
        let max_seqlen = self.max_seqlen;
        let sequences = self.lengths.iter().enumerate();
        let rows = sequences.flat_map(|(sequence, &n)| sequence * max_seqlen..sequence * max_seqlen + n);
        let rows = Tensor::from_iter(rows.map(|row| row as u32), x.device())?;
        x.reshape((self.lengths.len() * max_seqlen, ()))?.index_select(&rows, 0)
    }

    /// The mask of padding and window, `(N, 1, L, L)`, or `(N, 1, 1, L)` if it is the same for all queries: 0
    /// or −∞.
    fn mask(&self, window: AttentionWindow, prefix_lengths: Option<&[usize]>) -> Result<Tensor> {
        let (sequences, max_seqlen) = (self.lengths.len(), self.max_seqlen);
        let rows = if window == AttentionWindow::FULL { 1 } else { max_seqlen };
        let mut mask = vec![f32::NEG_INFINITY; sequences * rows * max_seqlen];
        for (sequence, (&n, &keys)) in self.lengths.iter().zip(&self.key_lengths).enumerate() {
            for i in 0..rows {
                let row = &mut mask[(sequence * rows + i) * max_seqlen..][..max_seqlen];
                row[window.keys(if i < n { i } else { 0 }, keys)].fill(0.0);
                row[..prefix_lengths.map_or(0, |lengths| lengths[sequence])].fill(0.0);
            }
        }
        Tensor::from_vec(mask, (sequences, 1, rows, max_seqlen), self.rows.device())
    }

    /// Whether each query sees a key, `(N, 1, L, 1)` of u8; `None` if all do.
    fn sees_a_key(&self, window: AttentionWindow) -> Result<Option<Tensor>> {
        let sequences = self.lengths.iter().zip(&self.key_lengths);
        let sees = sequences.flat_map(|(&n, &keys)| {
            (0..self.max_seqlen).map(move |i| u8::from(i >= n || !window.keys(i, keys).is_empty()))
        });
        let sees: Vec<u8> = sees.collect();
        if sees.iter().all(|sees| *sees == 1) {
            return Ok(None);
        }
        let shape = (self.lengths.len(), 1, self.max_seqlen, 1);
        Ok(Some(Tensor::from_vec(sees, shape, self.rows.device())?))
    }

    /// The bias of every pair of tokens, `(1, heads, L, L)`, from a bias by relative position,
    /// `(heads, 2 M − 1)` with `M ≥ L`.
    fn bias_matrix(&self, bias: &Tensor) -> Result<Tensor> {
        let (heads, positions) = bias.dims2()?;
        let (middle, max_seqlen) = ((positions - 1) / 2, self.max_seqlen);
        let columns = self.pairs().map(|(i, j)| (j + middle - i) as u32);
        let columns = Tensor::from_iter(columns, bias.device())?;
        to_f32(bias)?.index_select(&columns, 1)?.reshape((1, heads, max_seqlen, max_seqlen))
    }

    /// Adds the c2p and p2c terms to scores of `(N, heads, L, L)`, for padded queries and keys.
    fn add_relative_positions(
        &self,
        mut scores: Tensor,
        q: &Tensor,
        k: &Tensor,
        relative: &RelativePositions,
    ) -> Result<Tensor> {
        let RelativePositions { position_keys, position_queries, buckets } = relative;
        let middle = (buckets.len() - 1) / 2;
        let buckets = self.pairs().map(|(i, j)| buckets[i + middle - j]);
        let buckets =
            Tensor::from_iter(buckets, q.device())?.reshape((1, 1, self.max_seqlen, self.max_seqlen))?;
        if let Some(table) = position_keys {
            scores = (scores + self.gather_products(q, table, &buckets)?)?;
        }
        if let Some(table) = position_queries {
            scores = (scores + self.gather_products(k, table, &buckets.t()?)?.t()?)?;
        }
        Ok(scores)
    }

    /// The product of every token of `x`, `(N, heads, L, d)`, with the row of `table`, `(R, heads · d)`, that
    /// `buckets`, `(1, 1, L, L)`, names for it and each other token: `(N, heads, L, L)`.
    fn gather_products(&self, x: &Tensor, table: &Tensor, buckets: &Tensor) -> Result<Tensor> {
        let (sequences, heads, max_seqlen, _) = x.dims4()?;
        let table = to_f32(table)?.reshape((table.dim(0)?, heads, ()))?;
        let table = table.transpose(0, 1)?.contiguous()?;
        // One matmul for all sequences; one per sequence would copy the table for each.
        let x = x.transpose(0, 1)?.reshape((heads, sequences * max_seqlen, ()))?;
        let products = x.matmul(&table.t()?)?.reshape((heads, sequences, max_seqlen, ()))?;
        let buckets = buckets.broadcast_as((sequences, heads, max_seqlen, max_seqlen))?.contiguous()?;
        products.transpose(0, 1)?.contiguous()?.gather(&buckets, 3)
    }

    /// All pairs `(i, j)` of positions, row by row.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let max_seqlen = self.max_seqlen;
        (0..max_seqlen).flat_map(move |i| (0..max_seqlen).map(move |j| (i, j)))
    }
}
