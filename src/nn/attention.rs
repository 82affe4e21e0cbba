//! Multi-head self-attention (Vaswani et al. 2017, §3.2).

use anyhow::Result;
use candle_core::Tensor;

use super::linear::Linear;
use super::{Activation, EncoderSpec, Parameters, RaggedBatch, ScoreBias};
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
        let mut linear = |part: &str| Linear::load(parameters, &format!("{name}.{part}"), width, width, true);
        Ok(SelfAttention {
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            output: linear("output")?,
            heads: Heads { count: spec.heads, size: spec.head_size()? },
        })
    }

    /// `(T, H)` → `(T, H)`; tokens see the tokens of their own text only. `bias` is that of
    /// [`RelativeBias::by_distance`].
    pub fn forward(&self, x: &Tensor, batch: &RaggedBatch, bias: Option<&Tensor>) -> Result<Tensor> {
        let q = self.query.forward(x, Activation::Identity)?;
        let k = self.key.forward(x, Activation::Identity)?;
        let v = self.value.forward(x, Activation::Identity)?;
        let context = attention(&q, &k, &v, batch.offsets(), self.heads, bias)?;
        self.output.forward(&context, Activation::Identity)
    }
}

/// Bucketed relative position bias: near distances have a bucket each, farther ones share them on a logarithmic
/// scale (Raffel et al. 2020, §2.1).
pub struct RelativeBias {
    /// `(rows, heads)`.
    table: Tensor,
    buckets: usize,
    max_distance: usize,
}

impl RelativeBias {
    /// Loads `relative_bias.weight` if the spec has a bias.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Option<Self>> {
        match spec.score_bias {
            ScoreBias::None => Ok(None),
            ScoreBias::Bucketed { rows, buckets, max_distance } => Ok(Some(RelativeBias {
                table: parameters.tensor("relative_bias.weight", &[rows, spec.heads])?,
                buckets,
                max_distance,
            })),
        }
    }

    /// The bias of every distance in texts of up to `longest` tokens: `(heads, 2 · longest − 1)`, key − query from
    /// `1 − longest` on.
    pub fn by_distance(&self, longest: usize) -> Result<Tensor> {
        let longest = longest as i64;
        let rows: Vec<u32> = (1 - longest..longest).map(|distance| self.bucket(distance) as u32).collect();
        let rows = Tensor::new(rows, self.table.device())?;
        Ok(self.table.index_select(&rows, 0)?.t()?.contiguous()?)
    }

    /// The bucket of key − query, with the rounding of `transformers` in f32.
    fn bucket(&self, distance: i64) -> usize {
        let half = self.buckets / 2;
        let exact = half / 2;
        let after = if distance > 0 { half } else { 0 };
        let distance = distance.unsigned_abs() as usize;
        if distance < exact {
            return after + distance;
        }
        let farthest = (self.max_distance as f64 / exact as f64).ln() as f32;
        let share = (distance as f32 / exact as f32).ln() / farthest;
        after + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
    }
}
