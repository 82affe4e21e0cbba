//! Multi-head self-attention (Vaswani et al. 2017, §3.2).

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::{Activation, EncoderSpec, Parameters, RaggedBatch};
use crate::ops::attention::{Heads, attention};

/// Projections to queries, keys and values, attention within each text, and the output projection.
pub struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: Heads,
}

impl SelfAttention {
    /// Loads `NAME.{query,key,value,output}`.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let width = spec.hidden_size;
        let mut linear = |part: &str| Linear::load(parameters, &format!("{name}.{part}"), width, width);
        Ok(SelfAttention {
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            output: linear("output")?,
            heads: Heads { count: spec.heads, size: spec.head_size()? },
        })
    }

    /// `(T, H)` → `(T, H)`; tokens see the tokens of their own text only.
    pub fn forward(&self, x: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        let q = self.query.forward(x, Activation::Identity)?;
        let k = self.key.forward(x, Activation::Identity)?;
        let v = self.value.forward(x, Activation::Identity)?;
        let context = attention(&q, &k, &v, batch.offsets(), self.heads)?;
        self.output.forward(&context, Activation::Identity)
    }
}
