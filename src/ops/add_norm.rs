//! Layer normalisation, with the residual connection that leads into it.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Result, Tensor};
use rayon::prelude::*;

use super::{ROWS_PER_TASK, elements, elements_mut, on_cpu};
use crate::kernels::norm::layer_norm;

/// `LayerNorm(x + residual)` over the last dimension (Ba et al. 2016), for `x` and `residual` of `(T, H)`,
/// `weight` and `bias` of `(H)`. On the CPU `x` is taken over: the result lies where it lay.
pub fn add_layer_norm(
    x: Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<Tensor> {
    if !on_cpu(&x) {
        return reference(&x, residual, weight, bias, eps);
    }
    if let Some(residual) = residual {
        x.inplace_op2(residual, &Add)?;
    }
    x.inplace_op3(weight, bias, &LayerNorm { eps: eps as f32 })?;
    Ok(x)
}

/// [`add_layer_norm`] in plain candle operations.
pub fn reference(
    x: &Tensor,
    residual: Option<&Tensor>,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<Tensor> {
    let x = match residual {
        Some(residual) => (x + residual)?,
        None => x.clone(),
    };
    // The two-pass form: candle-nn's faster one loses digits where the mean is large.
    candle_nn::ops::layer_norm_slow(&x, weight, bias, eps as f32)
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

struct LayerNorm {
    eps: f32,
}

impl InplaceOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        x_l: &Layout,
        weight: &CpuStorage,
        weight_l: &Layout,
        bias: &CpuStorage,
        bias_l: &Layout,
    ) -> Result<()> {
        let x = elements_mut(x, x_l)?;
        let (weight, bias) = (elements(weight, weight_l)?, elements(bias, bias_l)?);
        x.par_chunks_mut(weight.len() * ROWS_PER_TASK).for_each(|rows| {
            for row in rows.chunks_mut(weight.len()) {
                layer_norm(row, weight, bias, self.eps);
            }
        });
        Ok(())
    }
}
