//! The position-wise feed-forward network (Vaswani et al. 2017, §3.3).

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::{Activation, EncoderSpec, Parameters};

/// `down(f(up(x)))`.
pub struct FeedForward {
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl FeedForward {
    /// Loads `NAME.{up,down}`.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let (width, inner) = (spec.hidden_size, spec.intermediate_size);
        Ok(FeedForward {
            up: Linear::load(parameters, &format!("{name}.up"), width, inner, true)?,
            down: Linear::load(parameters, &format!("{name}.down"), inner, width, true)?,
            activation: spec.activation,
        })
    }

    /// `(T, H)` → `(T, H)`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x, self.activation)?, Activation::Identity)
    }
}
