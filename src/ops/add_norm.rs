//! Normalisation over the hidden size, with the residual connection that leads into it.

use candle_core::{CpuStorage, D, DType, InplaceOp1, Layout, Result, Tensor};
use rayon::prelude::*;

use super::gpu::{self, Launch, Written};
use super::{ROWS_PER_TASK, elements_mut, on_cpu, on_slice, on_slice_of};
use crate::kernels::isa::Isa;
use crate::kernels::norm::Norm;
pub use crate::kernels::norm::NormKind;

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

impl NormWeights {
    /// The number of its kind in the kernels for a GPU.
    pub(super) fn code(&self) -> usize {
        match self.kind {
            NormKind::Layer => 0,
            NormKind::RootMeanSquare => 1,
        }
    }

    /// Refuses rows of another type or width.
    pub(super) fn expect(&self, dtype: DType, width: usize) -> Result<()> {
        gpu::expect(&self.weight, dtype, &[width])?;
        gpu::expect(self.bias.as_ref(), dtype, &[width])
    }
}

/// `norm(x + residual)` over the last dimension, for `x` and `residual` of `(T, H)`. On the CPU `x` is taken over:
/// the result lies where it lay.
///
/// # Errors
/// If the residual has another shape, or the weights another width.
pub fn add_norm(x: Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    if x.device().is_cuda() {
        return launch(&x, residual, norm)?.run(&x);
    }
    if !on_cpu(&x) {
        return reference(&x, residual, norm);
    }
    let (_, width) = x.dims2()?;
    norm.expect(DType::F32, width)?;
    if width == 0 || residual.is_some_and(|residual| residual.dims() != x.dims()) {
        candle_core::bail!("a residual of {:?} for rows of {:?}", residual.map(Tensor::dims), x.dims());
    }
    on_slice(&norm.weight, |weight| {
        on_slice_of(norm.bias.as_ref(), |bias| {
            on_slice_of(residual, |residual| {
                let (bias, eps) = (bias.unwrap_or_default(), norm.eps as f32);
                let residual = residual.unwrap_or_default();
                x.inplace_op1(&AddNorm { norm: Norm { kind: norm.kind, weight, bias, eps }, residual })
            })
        })
    })?;
    Ok(x)
}

/// [`add_norm`] on a GPU: a row a block.
pub fn launch<'a>(x: &'a Tensor, residual: Option<&'a Tensor>, norm: &'a NormWeights) -> Result<Launch<'a>> {
    let (rows, width) = x.dims2()?;
    gpu::expect(residual, x.dtype(), &[rows, width])?;
    norm.expect(x.dtype(), width)?;
    Ok(Launch {
        kernel: format!("norm_{}", gpu::suffix(x.dtype())?),
        grid: [rows, 1, 1],
        block: 128,
        to: Written::New(vec![rows, width], x.dtype()),
        args: vec![
            x.into(),
            residual.into(),
            (&norm.weight).into(),
            norm.bias.as_ref().into(),
            rows.into(),
            width.into(),
            norm.code().into(),
            norm.eps.into(),
        ],
    })
}

/// [`add_norm`] in plain candle operations, in f32.
pub fn reference(x: &Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    let dtype = x.dtype();
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let mut x = match residual {
        Some(residual) => (wide(x)? + wide(residual)?)?,
        None => wide(x)?,
    };
    // In two passes: the difference of mean square and squared mean loses digits where the mean is large.
    if norm.kind == NormKind::Layer {
        x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    }
    let square = (x.sqr()?.mean_keepdim(D::Minus1)? + norm.eps)?;
    let x = x.broadcast_div(&square.sqrt()?)?.broadcast_mul(&wide(&norm.weight)?)?;
    let x = match &norm.bias {
        Some(bias) => x.broadcast_add(&wide(bias)?)?,
        None => x,
    };
    x.to_dtype(dtype)
}

struct AddNorm<'a> {
    norm: Norm<'a>,
    /// Of the shape of `x`, or empty.
    residual: &'a [f32],
}

impl InplaceOp1 for AddNorm<'_> {
    fn name(&self) -> &'static str {
        "add-norm"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let numbers = self.norm.weight.len() * ROWS_PER_TASK;
        elements_mut(x, layout)?.par_chunks_mut(numbers).enumerate().for_each(|(task, rows)| {
            let residual = match self.residual {
                [] => &[],
                residual => &residual[task * numbers..][..rows.len()],
            };
            self.norm.forward(Isa::best(), rows, residual);
        });
        Ok(())
    }
}
