//! What is done to a text's vector after pooling.

use std::fmt;

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, Isa, NormKind, NormSpec, Parameters, l2_normalize};

/// What a head computes.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadSpec {
    /// A linear layer with its activation.
    Dense {
        /// Dimensions of the vectors that it takes.
        inputs: usize,
        /// Dimensions of the vectors that it gives.
        outputs: usize,
        /// Whether a bias is added.
        bias: bool,
        /// What follows the product.
        activation: Activation,
        /// Whether the vector itself is added to the result, through a second matrix where the widths differ.
        residual: bool,
    },
    /// LayerNorm over the dimensions of a vector.
    LayerNorm {
        /// Their number.
        width: usize,
    },
    /// Scaling to unit length.
    Normalize,
}

impl HeadSpec {
    /// Dimensions of the vectors that the head takes; `None`: any.
    pub fn inputs(&self) -> Option<usize> {
        match self {
            HeadSpec::Dense { inputs, .. } => Some(*inputs),
            HeadSpec::LayerNorm { width } => Some(*width),
            HeadSpec::Normalize => None,
        }
    }

    /// Dimensions of the vector that the head makes of one with `inputs`.
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            HeadSpec::Dense { outputs, .. } => *outputs,
            HeadSpec::LayerNorm { .. } | HeadSpec::Normalize => inputs,
        }
    }
}

impl fmt::Display for HeadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadSpec::Dense { inputs, outputs, bias, activation, residual } => {
                let bias = if *bias { "" } else { ", no bias" };
                let residual = if *residual { ", residual" } else { "" };
                write!(f, "dense {inputs} → {outputs}, {activation}{bias}{residual}")
            }
            HeadSpec::LayerNorm { width } => write!(f, "layer norm of {width}"),
            HeadSpec::Normalize => f.write_str("normalize"),
        }
    }
}

/// One step from the pooled vector of a text to its final one. A row is computed from itself alone, so that a
/// text's vector does not depend on its batch.
pub enum Head {
    /// See [`HeadSpec::Dense`].
    Dense(Box<Dense>),
    /// See [`HeadSpec::LayerNorm`].
    LayerNorm(Norm),
    /// See [`HeadSpec::Normalize`].
    Normalize,
    /// The first dimensions, so many; the rest is left out.
    First(usize),
}

/// `f(x Wᵀ + b)`, and where there is a residual, `+ x` or `+ x Rᵀ`.
pub struct Dense {
    linear: Linear,
    activation: Activation,
    residual: Option<Residual>,
}

enum Residual {
    Same,
    Projected(Linear),
}

impl Head {
    /// Loads what the head needs: `NAME.linear.weight` of `(outputs, inputs)`, `NAME.linear.bias` of `(outputs)`
    /// and `NAME.residual.weight` of `(outputs, inputs)`, or `NAME.norm.weight` and `NAME.norm.bias` of `(width)`.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &HeadSpec) -> Result<Self> {
        match *spec {
            HeadSpec::Dense { inputs, outputs, bias, activation, residual } => {
                let linear = Linear::load(parameters, &format!("{name}.linear"), inputs, outputs, bias)?;
                let residual = match residual {
                    false => None,
                    true if inputs == outputs => Some(Residual::Same),
                    true => {
                        let name = format!("{name}.residual");
                        Some(Residual::Projected(Linear::load(parameters, &name, inputs, outputs, false)?))
                    }
                };
                Ok(Head::Dense(Box::new(Dense { linear, activation, residual })))
            }
            HeadSpec::LayerNorm { width } => {
                // The eps of torch.nn.LayerNorm; the module's file does not have one.
                let spec = NormSpec { kind: NormKind::Layer, bias: true, eps: 1e-5 };
                Ok(Head::LayerNorm(Norm::load(parameters, &format!("{name}.norm"), width, spec)?))
            }
            HeadSpec::Normalize => Ok(Head::Normalize),
        }
    }

    /// Loads a model's own pooler (Devlin et al. 2019), a dense layer with tanh for the hidden state of the first
    /// token: `pooler.weight` of `(H, H)` and `pooler.bias` of `(H)`.
    pub fn load_pooler(parameters: &mut dyn Parameters, hidden_size: usize) -> Result<Self> {
        let linear = Linear::load(parameters, "pooler", hidden_size, hidden_size, true)?;
        Ok(Head::Dense(Box::new(Dense { linear, activation: Activation::Tanh, residual: None })))
    }

    /// `(N, inputs)` → `(N, outputs)`.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        match self {
            Head::Dense(dense) => dense.forward(&x),
            Head::LayerNorm(norm) => norm.forward(x),
            Head::Normalize => {
                let (rows, width) = x.dims2()?;
                let mut values = x.flatten_all()?.to_vec1::<f32>()?;
                values.chunks_mut(width).for_each(|row| l2_normalize(Isa::best(), row));
                Ok(Tensor::from_vec(values, (rows, width), x.device())?)
            }
            Head::First(dimensions) => Ok(x.narrow(1, 0, *dimensions)?.contiguous()?),
        }
    }
}

impl Dense {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let projected = match &self.residual {
            Some(Residual::Projected(linear)) => Some(linear.forward(x, Activation::Identity)?),
            _ => None,
        };
        let residual = match self.residual {
            Some(Residual::Same) => Some(x),
            _ => projected.as_ref(),
        };
        self.linear.forward_residual(x, self.activation, residual)
    }
}
