//! Gated short convolutions along sequences (Liquid AI 2025, arXiv:2511.23404).

use std::iter::repeat_n;
use std::ops::Range;

use candle_core::{DType, Result, Tensor};
use rayon::prelude::*;

use super::check::check_cu_seqlens;
use super::host::{host_slice, is_host_f32, optional_host_slice};
use super::scratch::ROWS_PER_TASK;

/// `y = c ∘ (w ⋆ (b ∘ x) + bias)`: a convolution of every column by itself (depthwise), between two gates.
pub struct ShortConvolution {
    /// Taps `w`, `(k, H)`.
    pub taps: Tensor,
    /// `(H)`.
    pub bias: Option<Tensor>,
    /// Tokens under the kernel after the token itself: 0 if it is causal. The others are the token and those
    /// before it.
    pub ahead: usize,
}

impl ShortConvolution {
    /// `(T, 3 H)`, `b`, `c` and `x` side by side, → `(T, H)`. Each sequence has zeros at both ends.
    ///
    /// # Errors
    /// If shapes do not match, or `cu_seqlens` does not divide T tokens into sequences.
    pub fn forward(&self, x: &Tensor, cu_seqlens: &[usize]) -> Result<Tensor> {
        if !is_host_f32(x) {
            return self.reference(x, cu_seqlens);
        }
        let (tokens, width) = self.check(x, cu_seqlens)?;
        let (values, taps, bias) =
            (host_slice(x)?, host_slice(&self.taps)?, optional_host_slice(self.bias.as_ref())?);
        let sequences = sequences_of_tokens(cu_seqlens);
        let mut output = vec![0.0; tokens * width];
        output.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, rows)| {
            for (row, y) in rows.chunks_exact_mut(width).enumerate() {
                let token = task * ROWS_PER_TASK + row;
                if let Some(bias) = &bias {
                    y.copy_from_slice(bias);
                }
                for (tap, weights) in taps.chunks_exact(width).enumerate() {
                    let Some(source) = self.source(token, tap, &sequences[token]) else { continue };
                    let [b, _, x] = parts(&values, source, width);
                    for (((y, w), b), x) in y.iter_mut().zip(weights).zip(b).zip(x) {
                        *y += w * (b * x);
                    }
                }
                let [_, c, _] = parts(&values, token, width);
                y.iter_mut().zip(c).for_each(|(y, c)| *y *= c);
            }
        });
        Tensor::from_vec(output, (tokens, width), x.device())
    }

    /// [`ShortConvolution::forward`] in plain candle operations, computed in f32.
    ///
    /// # Errors
    /// Those of [`ShortConvolution::forward`].
    pub fn reference(&self, x: &Tensor, cu_seqlens: &[usize]) -> Result<Tensor> {
        let (tokens, width) = self.check(x, cu_seqlens)?;
        let (dtype, device) = (x.dtype(), x.device());
        let x = x.to_dtype(DType::F32)?;
        let part = |index: usize| x.narrow(1, index * width, width)?.contiguous();
        let (gated, gate) = ((part(0)? * part(2)?)?, part(1)?);
        // The row after those of the tokens.
        let gated = Tensor::cat(&[gated, Tensor::zeros((1, width), DType::F32, device)?], 0)?;
        let sequences = sequences_of_tokens(cu_seqlens);
        let mut sum = Tensor::zeros((tokens, width), DType::F32, device)?;
        if let Some(bias) = &self.bias {
            sum = sum.broadcast_add(&bias.to_dtype(DType::F32)?)?;
        }
        for tap in 0..self.taps.dim(0)? {
            let source = |token| self.source(token, tap, &sequences[token]).unwrap_or(tokens) as u32;
            let sources = Tensor::from_iter((0..tokens).map(source), device)?;
            let taps = self.taps.narrow(0, tap, 1)?.to_dtype(DType::F32)?;
            sum = (sum + gated.index_select(&sources, 0)?.broadcast_mul(&taps)?)?;
        }
        (gate * sum)?.to_dtype(dtype)
    }

    /// The token that a tap of the kernel of a token is over, if its sequence has it.
    fn source(&self, token: usize, tap: usize, sequence: &Range<usize>) -> Option<usize> {
        let first = self.taps.dims()[0] - 1 - self.ahead;
        (token + tap).checked_sub(first).filter(|source| sequence.contains(source))
    }

    /// The tokens and the width.
    fn check(&self, x: &Tensor, cu_seqlens: &[usize]) -> Result<(usize, usize)> {
        let (tokens, columns) = x.dims2()?;
        let (taps, width) = self.taps.dims2()?;
        check_cu_seqlens(cu_seqlens, tokens)?;
        let bias = self.bias.as_ref().map_or(Ok(width), |bias| bias.dims1())?;
        if columns != 3 * width || bias != width || self.ahead >= taps {
            candle_core::bail!(
                "a short convolution of {taps} taps, {} of them ahead, with a bias of {bias} does not fit {width} columns of {columns}",
                self.ahead
            );
        }
        Ok((tokens, width))
    }
}

/// The tokens of the sequence of each token.
fn sequences_of_tokens(cu_seqlens: &[usize]) -> Vec<Range<usize>> {
    let of_sequence = |bounds: &[usize]| repeat_n(bounds[0]..bounds[1], bounds[1] - bounds[0]);
    cu_seqlens.windows(2).flat_map(of_sequence).collect()
}

/// The three parts of a row of `(T, 3 H)`.
fn parts(values: &[f32], row: usize, width: usize) -> [&[f32]; 3] {
    let row = &values[3 * row * width..3 * (row + 1) * width];
    let (b, rest) = row.split_at(width);
    let (c, x) = rest.split_at(width);
    [b, c, x]
}
