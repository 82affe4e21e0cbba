//! Linear layers with their activation: `y = f(x Wᵀ + b)`.

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor};
use rayon::prelude::*;

use super::{ROWS_PER_TASK, elements, elements_mut, on_cpu};
use crate::kernels::activation;

/// Activation functions by their names in Hugging Face configs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// No activation.
    Identity,
    /// `gelu`: the exact form over the error function.
    Gelu,
    /// `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`: the tanh form.
    GeluTanh,
    /// `relu`.
    Relu,
    /// `silu`, `swish`.
    Silu,
    /// `tanh`.
    Tanh,
}

impl Activation {
    fn apply(self, row: &mut [f32]) {
        let f = match self {
            Activation::Identity => return,
            Activation::Gelu => activation::gelu,
            Activation::GeluTanh => activation::gelu_tanh,
            Activation::Relu => activation::relu,
            Activation::Silu => activation::silu,
            Activation::Tanh => f32::tanh,
        };
        for x in row {
            *x = f(*x);
        }
    }

    fn reference(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Activation::Identity => Ok(x.clone()),
            Activation::Gelu => x.gelu_erf(),
            Activation::GeluTanh => x.gelu(),
            Activation::Relu => x.relu(),
            Activation::Silu => x.silu(),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// `f(x Wᵀ + b)` for `x` of `(T, in)`, `weight` of `(out, in)` and `bias` of `(out)`; returns `(T, out)`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    if !on_cpu(x) {
        return reference(x, weight, bias, activation);
    }
    let y = x.matmul(&weight.t()?)?;
    y.inplace_op2(bias, &Epilogue(activation))?;
    Ok(y)
}

/// [`linear`] in plain candle operations.
pub fn reference(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    activation.reference(&x.matmul(&weight.t()?)?.broadcast_add(bias)?)
}

/// Adds the bias and applies the activation where the product already lies.
struct Epilogue(Activation);

impl InplaceOp2 for Epilogue {
    fn name(&self) -> &'static str {
        "linear-epilogue"
    }

    fn cpu_fwd(&self, y: &mut CpuStorage, y_l: &Layout, bias: &CpuStorage, bias_l: &Layout) -> Result<()> {
        let (y, bias) = (elements_mut(y, y_l)?, elements(bias, bias_l)?);
        y.par_chunks_mut(bias.len() * ROWS_PER_TASK).for_each(|rows| {
            for row in rows.chunks_mut(bias.len()) {
                for (y, b) in row.iter_mut().zip(bias) {
                    *y += b;
                }
                self.0.apply(row);
            }
        });
        Ok(())
    }
}
