//! LayerNorm, RMSNorm and NoNorm over the hidden size, with the residual connection before them.

use candle_core::{CpuStorage, D, DType, InplaceOp1, Layout, Result, Tensor};
use rayon::prelude::*;

use super::gpu::{self, Launch, LaunchOutput};
use super::host::{host_slice, host_slice_mut, is_host_f32, optional_host_slice};
use super::scratch::ROWS_PER_TASK;
use crate::kernels::isa::Isa;
use crate::kernels::norm::Norm;
pub use crate::kernels::norm::NormKind;

/// The parameters of a norm.
pub struct NormWeights {
    /// What is normalised.
    pub kind: NormKind,
    /// `(H)`.
    pub weight: Tensor,
    /// `(H)`, if the norm has a bias.
    pub bias: Option<Tensor>,
    /// Added to the variance (LayerNorm) or the mean square (RMSNorm).
    pub eps: f64,
}

impl NormWeights {
    /// Its `NormCode` in `kernels/cuda/norm.cuh`.
    pub(super) fn code(&self) -> usize {
        match self.kind {
            NormKind::Layer => 0,
            NormKind::RootMeanSquare => 1,
            NormKind::Affine => 2,
        }
    }

    /// Checks that the parameters have this dtype and width.
    pub(super) fn check(&self, dtype: DType, width: usize) -> Result<()> {
        gpu::expect(&self.weight, dtype, &[width])?;
        gpu::expect(self.bias.as_ref(), dtype, &[width])
    }
}

/// `norm(x + residual)` over the last dimension, for `x` and `residual` of `(T, H)`. On the CPU the result
/// overwrites the storage of `x`.
///
/// # Errors
/// If the shape of the residual or the width of the parameters does not match `x`.
pub fn add_norm(x: Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    if x.device().is_cuda() {
        return launch(&x, residual, norm)?.run_or(&x, || reference(&x, residual, norm));
    }
    if !is_host_f32(&x) {
        return reference(&x, residual, norm);
    }
    let (_, width) = x.dims2()?;
    norm.check(DType::F32, width)?;
    if width == 0 || residual.is_some_and(|residual| residual.dims() != x.dims()) {
        candle_core::bail!(
            "a norm of {:?} needs a residual of the same shape, found {:?}",
            x.dims(),
            residual.map(Tensor::dims)
        );
    }
    let (weight, bias) = (host_slice(&norm.weight)?, optional_host_slice(norm.bias.as_ref())?);
    let residual = optional_host_slice(residual)?;
    let norm = Norm {
        kind: norm.kind,
        weight: &weight,
        bias: bias.as_deref().unwrap_or_default(),
        eps: norm.eps as f32,
    };
    x.inplace_op1(&AddNorm { norm, residual: residual.as_deref().unwrap_or_default() })?;
    Ok(x)
}

/// The launch of [`add_norm`] on a GPU: one block per row.
///
/// # Errors
/// Those of [`add_norm`], and if there is no kernel for the dtype.
pub fn launch<'a>(x: &'a Tensor, residual: Option<&'a Tensor>, norm: &'a NormWeights) -> Result<Launch<'a>> {
    let (rows, width) = x.dims2()?;
    gpu::expect(residual, x.dtype(), &[rows, width])?;
    norm.check(x.dtype(), width)?;
    Ok(Launch {
        kernel: format!("norm_{}", gpu::suffix(x.dtype())?),
        grid: [rows, 1, 1],
        block: 128,
        output: LaunchOutput::New(vec![rows, width], x.dtype()),
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

/// [`add_norm`] in plain candle operations, computed in f32.
pub fn reference(x: &Tensor, residual: Option<&Tensor>, norm: &NormWeights) -> Result<Tensor> {
    let dtype = x.dtype();
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let mut x = match residual {
        Some(residual) => (wide(x)? + wide(residual)?)?,
        None => wide(x)?,
    };
    // In two passes: mean square minus squared mean cancels digits if the mean is large.
    if norm.kind == NormKind::Layer {
        x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    }
    if norm.kind != NormKind::Affine {
        let square = (x.sqr()?.mean_keepdim(D::Minus1)? + norm.eps)?;
        x = x.broadcast_div(&square.sqrt()?)?;
    }
    let x = x.broadcast_mul(&wide(&norm.weight)?)?;
    let x = match &norm.bias {
        Some(bias) => x.broadcast_add(&wide(bias)?)?,
        None => x,
    };
    x.to_dtype(dtype)
}

struct AddNorm<'a> {
    norm: Norm<'a>,
    /// The shape of `x`, or empty.
    residual: &'a [f32],
}

impl InplaceOp1 for AddNorm<'_> {
    fn name(&self) -> &'static str {
        "add-norm"
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let task_len = self.norm.weight.len() * ROWS_PER_TASK;
        host_slice_mut(x, layout)?.par_chunks_mut(task_len).enumerate().for_each(|(task, rows)| {
            let residual = match self.residual {
                [] => &[],
                residual => &residual[task * task_len..][..rows.len()],
            };
            self.norm.forward(Isa::selected(), rows, residual);
        });
        Ok(())
    }
}
