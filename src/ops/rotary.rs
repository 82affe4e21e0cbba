//! Rotary position embeddings: pairs of columns of every head are rotated by an angle proportional to the
//! position (Su et al. 2021, equation 34).

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};
use rayon::prelude::*;

use super::check::check_indices;
use super::gpu::{self, Launch, LaunchOutput};
use super::host::{host_slice, host_slice_mut, is_host_f32};
use super::scratch::ROWS_PER_TASK;

/// Cosines and sines of the angles of `L` positions, in f32, and the layout of the pairs.
#[derive(Clone)]
pub struct Rotation {
    /// `(L, pairs)`.
    pub cos: Tensor,
    /// `(L, pairs)`.
    pub sin: Tensor,
    /// Whether pair `i` is columns `2 i` and `2 i + 1` (interleaved), or else `i` and `i + pairs`
    /// (half-split, NeoX).
    pub interleaved: bool,
}

impl Rotation {
    /// Rotates the first `2 · pairs` columns of every head of `x`, `(T, heads · head_dim)`. Token `t` has the
    /// position `position_ids[t]`, below `L`. The result overwrites the storage of `x` where there is a
    /// kernel for it.
    ///
    /// # Errors
    /// If there is not one position per token, a position is not below `L`, the columns of `x` are not a
    /// multiple of `head_dim`, `head_dim` is below `2 · pairs`, or cosines and sines differ in shape.
    pub fn forward(&self, x: Tensor, position_ids: &[u32], head_dim: usize) -> Result<Tensor> {
        self.check(&x, position_ids, head_dim)?;
        if x.device().is_cuda() {
            let on_device = Tensor::new(position_ids, x.device())?;
            let reference = || self.reference(&x, position_ids, head_dim);
            return self.launch(&x, &on_device, head_dim)?.run_or(&x, reference);
        }
        if !is_host_f32(&x) {
            return self.reference(&x, position_ids, head_dim);
        }
        let (cos, sin) = (host_slice(&self.cos)?, host_slice(&self.sin)?);
        let (pairs, interleaved) = (self.cos.dim(1)?, self.interleaved);
        x.inplace_op1(&Rotate { cos: &cos, sin: &sin, pairs, interleaved, position_ids, head_dim })?;
        Ok(x)
    }

    /// The launch of [`Rotation::forward`] on a GPU, for `position_ids` of `(T)`: one block per token.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or there is no kernel for the dtype.
    pub fn launch<'a>(
        &'a self,
        x: &'a Tensor,
        position_ids: &'a Tensor,
        head_dim: usize,
    ) -> Result<Launch<'a>> {
        let (tokens, width) = x.dims2()?;
        gpu::expect(&self.sin, DType::F32, self.cos.dims())?;
        gpu::expect(position_ids, DType::U32, &[tokens])?;
        Ok(Launch {
            kernel: format!("rotate_{}", gpu::suffix(x.dtype())?),
            grid: [tokens, 1, 1],
            block: 128,
            output: LaunchOutput::InPlace(x),
            args: vec![
                (&self.cos).into(),
                (&self.sin).into(),
                position_ids.into(),
                tokens.into(),
                (width / head_dim).into(),
                head_dim.into(),
                self.cos.dim(1)?.into(),
                usize::from(self.interleaved).into(),
            ],
        })
    }

    fn check(&self, x: &Tensor, position_ids: &[u32], head_dim: usize) -> Result<()> {
        let (tokens, width) = x.dims2()?;
        let (positions, pairs) = self.cos.dims2()?;
        if head_dim == 0 || !width.is_multiple_of(head_dim) || pairs > head_dim / 2 {
            candle_core::bail!(
                "rotary embeddings of {pairs} pairs do not fit {width} columns in heads of {head_dim}"
            );
        }
        if self.sin.dims() != self.cos.dims() {
            candle_core::bail!(
                "sines and cosines must have the same shape, found {:?} and {:?}",
                self.sin.dims(),
                self.cos.dims()
            );
        }
        if position_ids.len() != tokens {
            candle_core::bail!("{tokens} tokens need as many position_ids, found {}", position_ids.len());
        }
        check_indices(position_ids, positions)
    }

    /// [`Rotation::forward`] in plain candle operations, computed in f32.
    ///
    /// # Errors
    /// Those of [`Rotation::forward`].
    pub fn reference(&self, x: &Tensor, position_ids: &[u32], head_dim: usize) -> Result<Tensor> {
        self.check(x, position_ids, head_dim)?;
        let (tokens, width) = x.dims2()?;
        let dtype = x.dtype();
        let x = x.to_dtype(DType::F32)?;
        let pairs = self.cos.dim(1)?;
        let position_ids = Tensor::new(position_ids, x.device())?;
        let select = |table: &Tensor| table.index_select(&position_ids, 0)?.reshape((tokens, 1, pairs));
        let (cos, sin) = (select(&self.cos)?, select(&self.sin)?);
        let x = x.reshape((tokens, width / head_dim, head_dim))?;
        let (rotary, rest) = (x.narrow(2, 0, 2 * pairs)?, x.narrow(2, 2 * pairs, head_dim - 2 * pairs)?);
        // The first and the second columns of all pairs, (T, heads, pairs) each.
        let (first, second) = if self.interleaved {
            let x = rotary.reshape((tokens, width / head_dim, pairs, 2))?;
            (x.narrow(3, 0, 1)?.squeeze(3)?, x.narrow(3, 1, 1)?.squeeze(3)?)
        } else {
            (rotary.narrow(2, 0, pairs)?, rotary.narrow(2, pairs, pairs)?)
        };
        let rotated = [
            (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
            (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?,
        ];
        let rotated = if self.interleaved {
            Tensor::stack(&rotated, 3)?.flatten_from(2)?
        } else {
            Tensor::cat(&rotated, 2)?
        };
        Tensor::cat(&[rotated, rest], 2)?.reshape((tokens, width))?.to_dtype(dtype)
    }
}

/// The operation that rotates a tensor in place on the CPU.
struct Rotate<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    interleaved: bool,
    position_ids: &'a [u32],
    head_dim: usize,
}

impl InplaceOp1 for Rotate<'_> {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let width = layout.dims()[1];
        let rotate = |row: &mut [f32], position: u32| {
            let angles = position as usize * self.pairs..(position as usize + 1) * self.pairs;
            let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
            for head in row.chunks_mut(self.head_dim) {
                for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                    let (a, b) = if self.interleaved { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) };
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        };
        host_slice_mut(x, layout)?
            .par_chunks_mut(width * ROWS_PER_TASK)
            .zip(self.position_ids.par_chunks(ROWS_PER_TASK))
            .for_each(|(rows, positions)| {
                rows.chunks_mut(width).zip(positions).for_each(|(row, position)| rotate(row, *position))
            });
        Ok(())
    }
}
