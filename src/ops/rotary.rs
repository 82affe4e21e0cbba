//! Rotary positions: pairs of columns of every head turn by an angle that grows with the place of the token (Su et
//! al. 2021, equation 34).

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};
use rayon::prelude::*;

use super::gpu::{self, Launch, Written};
use super::{ROWS_PER_TASK, check_indices, elements_mut, on_cpu, on_slice};

/// Cosines and sines of the angles, in f32, and how they are applied.
pub struct Rotation {
    /// `(L, pairs)`.
    pub cos: Tensor,
    /// `(L, pairs)`.
    pub sin: Tensor,
    /// Whether columns `2 i` and `2 i + 1` make a pair, not `i` and `i + pairs`.
    pub neighbours: bool,
}

impl Rotation {
    /// Turns the first `2 · pairs` columns of every head of `x`, `(T, heads · size)`; token `t` stands at
    /// `places[t]`, below `L`. `x` is taken over: the result lies where it lay, but for the reference's.
    ///
    /// # Errors
    /// If there is not one place a token, a place is not below `L`, `x` is not whole heads of `size` columns, heads have fewer
    /// than `2 · pairs` columns, or cosines and sines differ in shape.
    pub fn forward(&self, x: Tensor, places: &[u32], size: usize) -> Result<Tensor> {
        self.check(&x, places, size)?;
        if x.device().is_cuda() {
            let places = Tensor::new(places, x.device())?;
            return self.launch(&x, &places, size)?.run(&x);
        }
        if !on_cpu(&x) {
            return self.reference(&x, places, size);
        }
        on_slice(&self.cos, |cos| {
            on_slice(&self.sin, |sin| {
                let (pairs, neighbours) = (self.cos.dim(1)?, self.neighbours);
                x.inplace_op1(&Turn { cos, sin, pairs, neighbours, places, size })
            })
        })?;
        Ok(x)
    }

    /// [`Rotation::forward`] on a GPU, for `places` of `(T)`: a token a block.
    pub fn launch<'a>(&'a self, x: &'a Tensor, places: &'a Tensor, size: usize) -> Result<Launch<'a>> {
        let (tokens, width) = x.dims2()?;
        gpu::expect(&self.sin, DType::F32, self.cos.dims())?;
        gpu::expect(places, DType::U32, &[tokens])?;
        Ok(Launch {
            kernel: format!("rotate_{}", gpu::suffix(x.dtype())?),
            grid: [tokens, 1, 1],
            block: 128,
            to: Written::Over(x),
            args: vec![
                (&self.cos).into(),
                (&self.sin).into(),
                places.into(),
                tokens.into(),
                (width / size).into(),
                size.into(),
                self.cos.dim(1)?.into(),
                usize::from(self.neighbours).into(),
            ],
        })
    }

    fn check(&self, x: &Tensor, places: &[u32], size: usize) -> Result<()> {
        let (tokens, width) = x.dims2()?;
        let (rows, pairs) = self.cos.dims2()?;
        if size == 0 || !width.is_multiple_of(size) || pairs > size / 2 {
            candle_core::bail!("{pairs} pairs in each head of {size} of {width} columns");
        }
        if self.sin.dims() != self.cos.dims() {
            candle_core::bail!("cosines of {:?} and sines of {:?}", self.cos.dims(), self.sin.dims());
        }
        if places.len() != tokens {
            candle_core::bail!("{} places for {tokens} tokens", places.len());
        }
        check_indices(places, rows)
    }

    /// [`Rotation::forward`] in plain candle operations, in f32.
    ///
    /// # Errors
    /// Those of [`Rotation::forward`].
    pub fn reference(&self, x: &Tensor, places: &[u32], size: usize) -> Result<Tensor> {
        self.check(x, places, size)?;
        let (tokens, width) = x.dims2()?;
        let dtype = x.dtype();
        let x = x.to_dtype(DType::F32)?;
        let pairs = self.cos.dim(1)?;
        let places = Tensor::new(places, x.device())?;
        let angles = |table: &Tensor| table.index_select(&places, 0)?.reshape((tokens, 1, pairs));
        let (cos, sin) = (angles(&self.cos)?, angles(&self.sin)?);
        let x = x.reshape((tokens, width / size, size))?;
        let (turning, rest) = (x.narrow(2, 0, 2 * pairs)?, x.narrow(2, 2 * pairs, size - 2 * pairs)?);
        // Pairs as the two halves of the last dimension but one.
        let (first, second) = match self.neighbours {
            true => {
                let x = turning.reshape((tokens, width / size, pairs, 2))?;
                (x.narrow(3, 0, 1)?.squeeze(3)?, x.narrow(3, 1, 1)?.squeeze(3)?)
            }
            false => (turning.narrow(2, 0, pairs)?, turning.narrow(2, pairs, pairs)?),
        };
        let turned = [
            (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
            (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?,
        ];
        let turned = match self.neighbours {
            true => Tensor::stack(&turned, 3)?.flatten_from(2)?,
            false => Tensor::cat(&turned, 2)?,
        };
        Tensor::cat(&[turned, rest], 2)?.reshape((tokens, width))?.to_dtype(dtype)
    }
}

struct Turn<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    neighbours: bool,
    places: &'a [u32],
    size: usize,
}

impl InplaceOp1 for Turn<'_> {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let width = layout.dims()[1];
        let turn = |row: &mut [f32], place: u32| {
            let angles = place as usize * self.pairs..(place as usize + 1) * self.pairs;
            let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
            for head in row.chunks_mut(self.size) {
                for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
                    let (a, b) = if self.neighbours { (2 * i, 2 * i + 1) } else { (i, i + self.pairs) };
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        };
        elements_mut(x, layout)?
            .par_chunks_mut(width * ROWS_PER_TASK)
            .zip(self.places.par_chunks(ROWS_PER_TASK))
            .for_each(|(rows, places)| {
                rows.chunks_mut(width).zip(places).for_each(|(row, place)| turn(row, *place))
            });
        Ok(())
    }
}
