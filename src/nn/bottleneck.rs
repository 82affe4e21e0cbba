//! Bottlenecks around the sublayers of a layer (Sun et al. 2020, §3.1).

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, BottleneckSpec, EncoderSpec, WeightSource};

/// Linear layers with a norm, from the hidden size to the width of the sublayers and back.
pub(super) struct Bottleneck {
    input: Projection,
    /// That of queries and keys.
    attention: Option<Projection>,
    /// Whether queries, keys and values have the input of the residual connection.
    shared_input: bool,
    output: Projection,
}

/// What the sublayers of a layer compute from, each of `(T, width)` but the values.
pub(super) struct Narrowed {
    /// The input of the residual connection of attention.
    pub residual: Tensor,
    /// The inputs of queries and keys, and of values.
    pub attention: [Tensor; 2],
}

/// `norm(W x + b)`.
struct Projection {
    linear: Linear,
    norm: Norm,
}

impl Bottleneck {
    /// Loads `NAME.{input,attention,output}` and their norms `NAME.{input,attention,output}_norm`, those
    /// that the spec has.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        bottleneck: &BottleneckSpec,
    ) -> Result<Self> {
        let (hidden, width) = (spec.hidden_size, bottleneck.width);
        let mut projection = |module: &str, inputs, outputs| -> Result<Projection> {
            Ok(Projection {
                linear: Linear::load(source, &format!("{name}.{module}"), inputs, outputs, true)?,
                norm: Norm::load(source, &format!("{name}.{module}_norm"), outputs, spec.norm)?,
            })
        };
        let attention =
            bottleneck.own_attention.then(|| projection("attention", hidden, width)).transpose()?;
        Ok(Bottleneck {
            input: projection("input", hidden, width)?,
            attention: attention.filter(|_| !bottleneck.shared_input),
            shared_input: bottleneck.shared_input,
            output: projection("output", width, hidden)?,
        })
    }

    /// The inputs of the sublayers for hidden states of `(T, H)`.
    pub(super) fn narrow(&self, x: &Tensor) -> Result<Narrowed> {
        let narrow =
            |Projection { linear, norm }: &Projection| norm.forward(linear.forward(x, Activation::Identity)?);
        let residual = narrow(&self.input)?;
        let attention = match &self.attention {
            Some(attention) => [narrow(attention)?, x.clone()],
            None if self.shared_input => [residual.clone(), residual.clone()],
            None => [x.clone(), x.clone()],
        };
        Ok(Narrowed { residual, attention })
    }

    /// From the output of the sublayers, `(T, width)`, and the input of the layer, `(T, H)`, to the output
    /// of the layer, `(T, H)`.
    pub(super) fn widen(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let Projection { linear, norm } = &self.output;
        norm.forward_residual(linear.forward(y, Activation::Identity)?, x)
    }
}
