//! Linear layers with their activation and residual connection: `y = f(x Wᵀ + b) + r`.

use candle_core::{Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rayon::prelude::*;

use super::activation::Activation;
use super::{on_slice, on_slice_of, scratch, written};
use crate::kernels::isa::Isa;
use crate::kernels::matmul::{Blocks, Compute, Converted, PackedMatrix, multiply};

/// The weights of a linear layer, in the form that their device computes with.
pub struct LinearWeights {
    weight: Weight,
    bias: Option<Tensor>,
}

enum Weight {
    /// For the CPU's kernel.
    Packed(PackedMatrix),
    /// `(outputs, inputs)`, for candle's operations.
    Tensor(Tensor),
}

/// Rows that one task takes through its panels: of each so much as is multiplied at a time, they stay in a core's second
/// cache.
const ROWS: usize = 168;

impl LinearWeights {
    /// From a `weight` of `(outputs, inputs)` and a `bias` of `(outputs)`, if there is one, both on one device. On the CPU
    /// products are of the type `compute`.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or weights on the CPU are not `f32`.
    pub fn new(weight: Tensor, bias: Option<Tensor>, compute: Compute) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [outputs]) {
            candle_core::bail!("a bias of {:?} for {outputs} outputs", bias.dims());
        }
        let weight = match weight.device() {
            // What is no plain matrix (a stand-in of one number, say) is not worth packing.
            Device::Cpu if weight.is_contiguous() => on_slice(&weight, |w| {
                Ok(Weight::Packed(PackedMatrix::pack(Isa::best(), compute, w, outputs, inputs)))
            })?,
            _ => Weight::Tensor(weight),
        };
        Ok(LinearWeights { weight, bias })
    }

    /// `f(x Wᵀ + b) + r` for `x` of `(T, inputs)` and a residual `r` of `(T, outputs)`, if there is one; returns
    /// `(T, outputs)`.
    pub fn forward(&self, x: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
        let bias = self.bias.as_ref();
        let weight = match &self.weight {
            Weight::Tensor(weight) => return reference(x, weight, bias, activation, residual),
            Weight::Packed(weight) => weight,
        };
        let (rows, inputs) = x.dims2()?;
        if inputs != weight.inputs() {
            candle_core::bail!("{inputs} columns for a layer of {} inputs", weight.inputs());
        }
        if let Some(residual) = residual.filter(|residual| residual.dims() != [rows, weight.outputs()]) {
            candle_core::bail!("a residual of {:?} for {rows} rows", residual.dims());
        }
        let y = on_slice(x, |x| {
            on_slice_of(bias, |bias| {
                on_slice_of(residual, |residual| {
                    Ok(packed(x, weight, bias.unwrap_or_default(), activation, residual.unwrap_or_default()))
                })
            })
        })?;
        Tensor::from_vec(y, (rows, weight.outputs()), x.device())
    }
}

/// A linear layer in plain candle operations: `x` of `(T, inputs)`, `weight` of `(outputs, inputs)`, `bias` of
/// `(outputs)`, `residual` of `(T, outputs)`; returns `(T, outputs)`.
pub fn reference(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let y = activation.reference(&Linear::new(weight.clone(), bias.cloned()).forward(x)?)?;
    match residual {
        Some(residual) => y + residual,
        None => Ok(y),
    }
}

/// Tasks are blocks of rows and, where those are too few for the threads, of outputs. Either way a number is computed from
/// the same operands in the same order.
fn packed(
    x: &[f32],
    weight: &PackedMatrix,
    bias: &[f32],
    activation: Activation,
    residual: &[f32],
) -> Vec<f32> {
    let (inputs, outputs, panels) = (weight.inputs(), weight.outputs(), weight.panels());
    let rows = x.len() / inputs;
    let isa = weight.isa();
    let row_tasks = rows.div_ceil(ROWS);
    let threads = rayon::current_num_threads();
    let column_tasks = match threads {
        1 => 1,
        threads => (4 * threads).div_ceil(row_tasks.max(1)).min(panels),
    };
    let panels_each = panels.div_ceil(column_tasks);
    let column_tasks = panels.div_ceil(panels_each);
    scratch(|converted: &mut Converted| {
        let x = converted.rows(weight, x, inputs, rows);
        let task = |to: &Blocks, task: usize| {
            let first = task / column_tasks * ROWS;
            let rows = first..rows.min(first + ROWS);
            let first = task % column_tasks * panels_each;
            let panels = first..panels.min(first + panels_each);
            // SAFETY: no two tasks have the same rows and panels; the product is written first of all.
            let mut block = unsafe { to.block(rows.clone(), weight.columns(panels.clone())) };
            multiply(x.part(rows.clone()), weight, panels, bias, &mut block, |block, columns| {
                block.activate(isa, activation);
                if !residual.is_empty() {
                    block.add(
                        isa,
                        &residual[rows.start * outputs..rows.end * outputs],
                        outputs,
                        columns.start,
                    );
                }
            });
        };
        // SAFETY: the tasks together write every row and column.
        unsafe {
            written(rows, outputs, |to| {
                (0..row_tasks * column_tasks).into_par_iter().for_each(|index| task(to, index));
            })
        }
    })
}
