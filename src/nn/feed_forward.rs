//! The position-wise feed-forward network (Vaswani et al. 2017, §3.3): plain, gated, or a mixture of experts.

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::experts::Experts;
use super::linear::Linear;
use super::{Activation, EncoderSpec, WeightSource};
use crate::kernels::activation::softplus;
use crate::ops::feed_forward::{FeedForwardLayers, feed_forward};

/// The feed-forward network of a layer.
pub(super) enum FeedForward {
    /// One network for all tokens.
    Dense(DenseFeedForward),
    /// A mixture of experts.
    Experts(Experts),
}

impl FeedForward {
    /// Loads the network of layer `index`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        index: usize,
    ) -> Result<Self> {
        match &spec.experts {
            Some(experts) if experts.layers[index] => {
                Ok(FeedForward::Experts(Experts::load(source, name, spec, experts)?))
            }
            _ => Ok(FeedForward::Dense(DenseFeedForward::load(source, name, spec)?)),
        }
    }

    /// The network's output, plus the residual if there is one: `(T, H)` → `(T, H)`.
    pub(super) fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match self {
            FeedForward::Dense(network) => network.forward(x, residual),
            FeedForward::Experts(experts) => experts.forward(x, residual),
        }
    }
}

/// `down(f(up(x)))`, or gated: `down(f(gate(x)) ∘ up(x))` (Shazeer 2020).
pub(super) struct DenseFeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl DenseFeedForward {
    /// Loads `NAME.{up,down}`, `NAME.gate` if the spec is gated, and the weights of `NAME.activation` if it
    /// has any.
    fn load(source: &mut dyn WeightSource, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let (hidden, intermediate, bias) = (spec.sublayer_width(), spec.intermediate_size, spec.bias);
        let mut linear = |module: &str, inputs, outputs, bias| {
            Linear::load(source, &format!("{name}.{module}"), inputs, outputs, bias)
        };
        let gate = spec.gated.then(|| linear("gate", hidden, intermediate, bias.up)).transpose()?;
        Ok(DenseFeedForward {
            gate,
            up: linear("up", hidden, intermediate, bias.up)?,
            down: linear("down", intermediate, hidden, bias.down)?,
            activation: load_activation(spec.activation, source, &format!("{name}.activation"))?,
        })
    }

    /// The network's output, plus the residual if there is one: `(T, H)` → `(T, H)`.
    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let DenseFeedForward { gate, up, down, activation } = self;
        let gate = gate.as_ref().map(|gate| &gate.weights);
        let layers = FeedForwardLayers { gate, up: &up.weights, down: &down.weights };
        Ok(feed_forward(layers, x, *activation, residual)?)
    }
}

/// The activation with its learned parameters, if it has any.
pub(super) fn load_activation(
    activation: Activation,
    source: &mut dyn WeightSource,
    name: &str,
) -> Result<Activation> {
    let scalar = |tensor: Tensor| -> Result<f32> {
        Ok(tensor.flatten_all()?.get(0)?.to_dtype(DType::F32)?.to_scalar()?)
    };
    let mut learned = |parameter: &str| scalar(source.tensor(&format!("{name}.{parameter}"), &[1])?);
    Ok(match activation {
        Activation::Prelu { .. } => Activation::Prelu { slope: learned("weight")? },
        Activation::Xielu(_) => {
            // Stored before a softplus, which makes both positive (Huang & Schlag 2024, xIELU).
            let [positive, negative] = [learned("alpha_p")?, learned("alpha_n")?].map(softplus);
            let mut constant = |parameter: &str| scalar(source.buffer(&format!("{name}.{parameter}"), &[])?);
            let (beta, eps) = (constant("beta")?, constant("eps")?);
            Activation::Xielu([positive, beta + negative, beta, eps])
        }
        without_parameters => without_parameters,
    })
}
