//! Linear layers with their activation: `y = f(x Wᵀ + b)`.

use candle_core::{Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rayon::prelude::*;

use super::activation::Activation;
use super::{on_slice, on_slice_of};
use crate::kernels::isa::Isa;
use crate::kernels::matmul::{PANEL, PackedMatrix, multiply_panel};

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

/// Rows that one task takes through all panels: few enough to stay in a core's cache.
const ROWS: usize = 96;

impl LinearWeights {
    /// From a `weight` of `(outputs, inputs)` and a `bias` of `(outputs)`, if there is one, both on one device.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or weights on the CPU are not `f32`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.dims() != [outputs]) {
            candle_core::bail!("a bias of {:?} for {outputs} outputs", bias.dims());
        }
        let weight = match weight.device() {
            // What is no plain matrix (a stand-in of one number, say) is not worth packing.
            Device::Cpu if weight.is_contiguous() => {
                on_slice(&weight, |w| Ok(Weight::Packed(PackedMatrix::pack(w, outputs, inputs))))?
            }
            _ => Weight::Tensor(weight),
        };
        Ok(LinearWeights { weight, bias })
    }

    /// `f(x Wᵀ + b)` for `x` of `(T, inputs)`; returns `(T, outputs)`.
    pub fn forward(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        match &self.weight {
            Weight::Tensor(weight) => reference(x, weight, self.bias.as_ref(), activation),
            Weight::Packed(weight) => {
                let (rows, inputs) = x.dims2()?;
                if inputs != weight.inputs() {
                    candle_core::bail!("{inputs} columns for a layer of {} inputs", weight.inputs());
                }
                let y = on_slice(x, |x| {
                    on_slice_of(self.bias.as_ref(), |bias| Ok(packed(x, weight, bias, activation)))
                })?;
                Tensor::from_vec(y, (rows, weight.outputs()), x.device())
            }
        }
    }
}

/// A linear layer in plain candle operations: `x` of `(T, inputs)`, `weight` of `(outputs, inputs)`, `bias` of
/// `(outputs)`; returns `(T, outputs)`.
pub fn reference(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    activation.reference(&Linear::new(weight.clone(), bias.cloned()).forward(x)?)
}

/// Many rows are shared out among the threads by rows; few rows, by panels of outputs. Either way a number is
/// computed from the same operands in the same order.
fn packed(x: &[f32], weight: &PackedMatrix, bias: Option<&[f32]>, activation: Activation) -> Vec<f32> {
    let (inputs, outputs) = (weight.inputs(), weight.outputs());
    let rows = x.len() / inputs;
    let mut y = vec![0f32; rows * outputs];
    let finish = |panel: usize, sums: &[f32; PANEL], y: &mut [f32]| {
        y.copy_from_slice(&sums[..y.len()]);
        if let Some(bias) = bias {
            for (y, bias) in y.iter_mut().zip(&bias[panel * PANEL..]) {
                *y += bias;
            }
        }
        activation.apply(y);
    };
    let columns = |panel: usize| panel * PANEL..outputs.min((panel + 1) * PANEL);
    let isa = Isa::best();
    if rows > ROWS {
        y.par_chunks_mut(ROWS * outputs).zip(x.par_chunks(ROWS * inputs)).for_each(|(y, x)| {
            for panel in 0..weight.panels() {
                multiply_panel(isa, x, weight, panel, |row, sums| {
                    finish(panel, sums, &mut y[row * outputs..][columns(panel)])
                });
            }
        });
        return y;
    }
    let multiply = |panel: usize| {
        let width = columns(panel).len();
        let mut y = vec![0f32; rows * width];
        multiply_panel(isa, x, weight, panel, |row, sums| {
            finish(panel, sums, &mut y[row * width..][..width])
        });
        y
    };
    let panels: Vec<Vec<f32>> = (0..weight.panels()).into_par_iter().map(multiply).collect();
    for (panel, part) in panels.iter().enumerate() {
        for (y, part) in y.chunks_mut(outputs).zip(part.chunks(columns(panel).len())) {
            y[columns(panel)].copy_from_slice(part);
        }
    }
    y
}
