//! Normalisation over the hidden size, with the residual connection that leads into it.

use candle_core::{CpuStorage, D, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use rayon::prelude::*;

use super::{ROWS_PER_TASK, elements, elements_mut, on_cpu, on_slice, on_slice_of};
use crate::kernels::norm::{layer_norm, rms_norm};

/// What a row is brought to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean 0 and variance 1 (Ba et al. 2016).
    Layer,
    /// A root mean square of 1 (Zhang & Sennrich 2019).
    RootMeanSquare,
}

/// The weights of a norm.
pub struct NormWeights {
    /// What it does.
    pub kind: NormKind,
    /// `(H)`.
    pub weight: Tensor,
    /// `(H)`.
    pub bias: Option<Tensor>,
    /// What is added to the variance, or to the mean square.
    pub eps: f64,
}

/// `norm(x + residual)` over the last dimension, for `x` and `residual` of `(T, H)`. On the CPU `x` is taken over:
/// the result lies where it lay.
pub fn add_norm(x: Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    if !on_cpu(&x) {
        return reference(&x, residual, norm);
    }
    if let Some(residual) = residual {
        x.inplace_op2(residual, &Add)?;
    }
    on_slice(&norm.weight, |weight| {
        on_slice_of(norm.bias.as_ref(), |bias| {
            let (bias, eps) = (bias.unwrap_or_default(), norm.eps as f32);
            x.inplace_op1(&Normalize { kind: norm.kind, weight, bias, eps })
        })
    })?;
    Ok(x)
}

/// [`add_norm`] in plain candle operations.
pub fn reference(x: &Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    let mut x = match residual {
        Some(residual) => (x + residual)?,
        None => x.clone(),
    };
    // In two passes: the difference of mean square and squared mean loses digits where the mean is large.
    if norm.kind == NormKind::Layer {
        x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    }
    let square = (x.sqr()?.mean_keepdim(D::Minus1)? + norm.eps)?;
    let x = x.broadcast_div(&square.sqrt()?)?.broadcast_mul(&norm.weight)?;
    match &norm.bias {
        Some(bias) => x.broadcast_add(bias),
        None => Ok(x),
    }
}

struct Add;

impl InplaceOp2 for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, x_l: &Layout, y: &CpuStorage, y_l: &Layout) -> Result<()> {
        let (x, y) = (elements_mut(x, x_l)?, elements(y, y_l)?);
        let chunk = 1 << 14;
        x.par_chunks_mut(chunk).zip(y.par_chunks(chunk)).for_each(|(x, y)| {
            for (x, y) in x.iter_mut().zip(y) {
                *x += y;
            }
        });
        Ok(())
    }
}

struct Normalize<'a> {
    kind: NormKind,
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
}

impl InplaceOp1 for Normalize<'_> {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Normalize { kind, weight, bias, eps } = self;
        let norm = match kind {
            NormKind::Layer => layer_norm,
            NormKind::RootMeanSquare => rms_norm,
        };
        elements_mut(x, layout)?.par_chunks_mut(weight.len() * ROWS_PER_TASK).for_each(|rows| {
            for row in rows.chunks_mut(weight.len()) {
                norm(row, weight, bias, *eps);
            }
        });
        Ok(())
    }
}
