//! Attention in plain candle operations: what tests compare with, and what devices run that have no kernel for it.

use candle_core::{D, DType, Result, Tensor};

use super::{Attention, Relative, Visible};

/// Scores of a head that are held at once, unless one text has more.
const MOST_SCORES: usize = 1 << 22;

impl Attention<'_> {
    /// [`Attention::reference`] for texts of like lengths at a time, so that little is computed for padding.
    pub(super) fn by_length(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        let lengths: Vec<usize> = offsets.windows(2).map(|w| w[1] - w[0]).collect();
        let mut texts: Vec<usize> = (0..lengths.len()).filter(|&text| lengths[text] > 0).collect();
        texts.sort_by_key(|&text| lengths[text]);
        let (mut parts, mut order) = (Vec::new(), Vec::new());
        // No text of a class is padded by more than a fifth.
        let class = |text: usize| (4.0 * (lengths[text] as f32).log2()) as u32;
        let classes = texts.chunk_by(|&a, &b| class(a) == class(b));
        let groups = classes.flat_map(|class| {
            let longest = class.iter().map(|&text| lengths[text]).max().unwrap_or(1);
            class.chunks((MOST_SCORES / longest.pow(2)).max(1))
        });
        for group in groups {
            let rows: Vec<u32> =
                group.iter().flat_map(|&i| offsets[i] as u32..offsets[i + 1] as u32).collect();
            let mut ends = vec![0];
            ends.extend(group.iter().scan(0, |end, &text| {
                *end += lengths[text];
                Some(*end)
            }));
            let index = Tensor::new(&rows[..], q.device())?;
            let [q, k, v] = [q, k, v].map(|x| x.index_select(&index, 0));
            parts.push(self.reference(&q?, &k?, &v?, &ends)?);
            order.extend(rows);
        }
        let mut back = vec![0; order.len()];
        for (at, &row) in order.iter().enumerate() {
            back[row as usize] = at as u32;
        }
        Tensor::cat(&parts, 0)?.index_select(&Tensor::new(&back[..], q.device())?, 0)
    }

    /// [`Attention::forward`] in plain candle operations, in f32 and on a rectangle: texts are padded to the longest, and the
    /// mask adds −∞ to the scores of padding keys and of those that a query does not see. A query of padding sees
    /// what the first token sees, so that no row becomes NaN.
    ///
    /// # Errors
    /// Those of [`Attention::forward`].
    pub fn reference(&self, q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[usize]) -> Result<Tensor> {
        self.check(q, k, v, offsets)?;
        let dtype = q.dtype();
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        let (q, k, v) = (&wide(q)?, &wide(k)?, &wide(v)?);
        let lengths: Vec<usize> = offsets.windows(2).map(|w| w[1] - w[0]).collect();
        let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        // candle's kernels count in 32 bits.
        if q.device().is_cuda() && batch * self.heads * longest.pow(2) > u32::MAX as usize {
            candle_core::bail!(
                "a text of {longest} tokens has too many scores for a GPU; pass a smaller --max-length, or --device cpu"
            );
        }
        let tokens = q.dim(0)?;
        let place = |text: usize, i: usize| if i < lengths[text] { offsets[text] + i } else { tokens };
        let places = (0..batch).flat_map(|text| (0..longest).map(move |i| (text, i)));
        let places = Tensor::from_iter(places.map(|(text, i)| place(text, i) as u32), q.device())?;
        // (T, heads · d) → (batch, heads, longest, d), each head as often as it is shared.
        let pad = |x: &Tensor, heads: usize, all: usize| {
            let padding = Tensor::zeros((1, x.dim(1)?), x.dtype(), x.device())?;
            let x = Tensor::cat(&[x, &padding], 0)?.index_select(&places, 0)?;
            let x = x.reshape((batch, longest, heads, ()))?.transpose(1, 2)?;
            if heads == all {
                return x.contiguous();
            }
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
                let table = wide(table)?.reshape((table.dim(0)?, self.heads, ()))?;
                let table = table.transpose(0, 1)?.contiguous()?;
                // All texts at once, or the table would be copied for each.
                let tokens = tokens.transpose(0, 1)?.reshape((self.heads, batch * longest, ()))?;
                let all = tokens.matmul(&table.t()?)?.reshape((self.heads, batch, longest, ()))?;
                all.transpose(0, 1)?
                    .contiguous()?
                    .gather(&rows.broadcast_as((batch, self.heads, longest, longest))?.contiguous()?, 3)
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
            let square = wide(bias)?.index_select(&columns, 1)?.reshape((1, self.heads, longest, longest))?;
            scores = scores.broadcast_add(&square)?;
        }
        let mix = |mix: &Tensor, x: &Tensor| {
            let flat = x.flatten_from(2)?;
            wide(mix)?.unsqueeze(0)?.broadcast_matmul(&flat)?.reshape((batch, mix.dim(0)?, longest, longest))
        };
        if let Some(before) = self.mix_before {
            scores = mix(before, &scores)?;
        }
        // Where every token sees all of its text, one row does for all.
        let rows = if self.visible == Visible::ALL { 1 } else { longest };
        let mut mask = vec![f32::NEG_INFINITY; batch * rows * longest];
        for (text, &n) in lengths.iter().enumerate() {
            for i in 0..rows {
                let row = &mut mask[(text * rows + i) * longest..][..longest];
                row[self.visible.of(if i < n { i } else { 0 }, n)].fill(0.0);
            }
        }
        let mask = Tensor::from_vec(mask, (batch, 1, rows, longest), q.device())?;
        let mut weights = candle_nn::ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        if let Some(after) = self.mix_after {
            weights = mix(after, &weights)?;
        }
        let heads = weights.dim(1)?;
        let context = weights.matmul(&pad(v, self.value_heads(heads), heads)?)?.transpose(1, 2)?;
        let rows = lengths.iter().enumerate().flat_map(|(text, &n)| text * longest..text * longest + n);
        let rows = Tensor::from_iter(rows.map(|row| row as u32), q.device())?;
        context.reshape((batch * longest, ()))?.index_select(&rows, 0)?.to_dtype(dtype)
    }
}
