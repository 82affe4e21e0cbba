//! The position-wise feed-forward network (Vaswani et al. 2017, §3.3), plain or gated.

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::linear::Linear;
use super::{Activation, EncoderSpec, Parameters};
use crate::kernels::activation::softplus;

/// `down(f(up(x)))`, or with a gate `down(f(gate(x)) ∘ up(x))` (Shazeer 2020).
pub struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl FeedForward {
    /// Loads `NAME.{up,down}`, and `NAME.gate` and the weights of `NAME.activation` if there are any.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let (width, inner, bias) = (spec.hidden_size, spec.intermediate_size, spec.bias);
        let mut linear = |part: &str, inputs, outputs, bias| {
            Linear::load(parameters, &format!("{name}.{part}"), inputs, outputs, bias)
        };
        let gate = spec.gated.then(|| linear("gate", width, inner, bias.up)).transpose()?;
        Ok(FeedForward {
            gate,
            up: linear("up", width, inner, bias.up)?,
            down: linear("down", inner, width, bias.down)?,
            activation: load_activation(spec.activation, parameters, &format!("{name}.activation"))?,
        })
    }

    /// `(T, H)` → `(T, H)`. A residual is added if there is one.
    pub fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let inner = match &self.gate {
            Some(gate) => (gate.forward(x, self.activation)? * self.up.forward(x, Activation::Identity)?)?,
            None => self.up.forward(x, self.activation)?,
        };
        self.down.forward_residual(&inner, Activation::Identity, residual)
    }
}

/// An activation with the weights of its own, if it has any.
fn load_activation(
    activation: Activation,
    parameters: &mut dyn Parameters,
    name: &str,
) -> Result<Activation> {
    let mut number = |part: &str, shape: &[usize]| -> Result<f32> {
        let number = parameters.tensor(&format!("{name}.{part}"), shape)?.flatten_all()?.get(0)?;
        Ok(number.to_dtype(DType::F32)?.to_scalar()?)
    };
    Ok(match activation {
        Activation::Prelu { .. } => Activation::Prelu { slope: number("weight", &[1])? },
        Activation::Xielu(_) => {
            // Learned behind a softplus, which keeps both above 0.
            let [positive, negative] = [number("alpha_p", &[1])?, number("alpha_n", &[1])?].map(softplus);
            let (beta, eps) = (number("beta", &[])?, number("eps", &[])?);
            Activation::Xielu([positive, beta + negative, beta, eps])
        }
        plain => plain,
    })
}
