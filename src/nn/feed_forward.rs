//! The position-wise feed-forward network (Vaswani et al. 2017, §3.3), plain or gated.

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::{Activation, EncoderSpec, Parameters};

/// `down(f(up(x)))`, or with a gate `down(f(gate(x)) ∘ up(x))` (Shazeer 2020).
pub struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl FeedForward {
    /// Loads `NAME.{up,down}`, and `NAME.gate` if there is one.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let (width, inner, bias) = (spec.hidden_size, spec.intermediate_size, spec.bias);
        let mut linear = |part: &str, inputs, outputs, bias| {
            Linear::load(parameters, &format!("{name}.{part}"), inputs, outputs, bias)
        };
        Ok(FeedForward {
            gate: spec.gated.then(|| linear("gate", width, inner, bias.up)).transpose()?,
            up: linear("up", width, inner, bias.up)?,
            down: linear("down", inner, width, bias.down)?,
            activation: spec.activation,
        })
    }

    /// `(T, H)` → `(T, H)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = match &self.gate {
            Some(gate) => (gate.forward(x, self.activation)? * self.up.forward(x, Activation::Identity)?)?,
            None => self.up.forward(x, self.activation)?,
        };
        self.down.forward(&inner, Activation::Identity)
    }
}
