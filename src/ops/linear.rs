//! Linear layers with their activation: `y = f(x Wᵀ + b)`.

use candle_core::{Device, Result, Storage, Tensor};
use candle_nn::{Linear, Module};
use rayon::prelude::*;

use super::elements;
use crate::kernels::activation;
use crate::kernels::isa::Isa;
use crate::kernels::matmul::{PANEL, PackedMatrix, multiply_panel};

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
            Activation::Silu => candle_nn::ops::silu(x),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// The weights of a linear layer, in the form that their device computes with.
pub struct LinearWeights {
    weight: Weight,
    bias: Tensor,
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
    /// From a `weight` of `(outputs, inputs)` and a `bias` of `(outputs)`, both on one device.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or weights on the CPU are not `f32`.
    pub fn new(weight: Tensor, bias: Tensor) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        if bias.dims() != [outputs] {
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
            Weight::Tensor(weight) => reference(x, weight, &self.bias, activation),
            Weight::Packed(weight) => {
                let (rows, inputs) = x.dims2()?;
                if inputs != weight.inputs() {
                    candle_core::bail!("{inputs} columns for a layer of {} inputs", weight.inputs());
                }
                let y =
                    on_slice(x, |x| on_slice(&self.bias, |bias| Ok(packed(x, weight, bias, activation))))?;
                Tensor::from_vec(y, (rows, weight.outputs()), x.device())
            }
        }
    }
}

/// A linear layer in plain candle operations: `x` of `(T, inputs)`, `weight` of `(outputs, inputs)`, `bias` of
/// `(outputs)`; returns `(T, outputs)`.
pub fn reference(x: &Tensor, weight: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    activation.reference(&Linear::new(weight.clone(), Some(bias.clone())).forward(x)?)
}

/// Many rows are shared out among the threads by rows; few rows, by panels of outputs. Either way a number is
/// computed from the same operands in the same order.
fn packed(x: &[f32], weight: &PackedMatrix, bias: &[f32], activation: Activation) -> Vec<f32> {
    let (inputs, outputs) = (weight.inputs(), weight.outputs());
    let rows = x.len() / inputs;
    let mut y = vec![0f32; rows * outputs];
    let finish = |panel: usize, sums: &[f32; PANEL], y: &mut [f32]| {
        for ((y, sum), bias) in y.iter_mut().zip(sums).zip(&bias[panel * PANEL..]) {
            *y = sum + bias;
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

/// Calls `f` with the elements of a contiguous tensor on the CPU.
fn on_slice<T>(x: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(elements(storage, layout)?),
        _ => candle_core::bail!("the operand has to lie on the CPU"),
    }
}
